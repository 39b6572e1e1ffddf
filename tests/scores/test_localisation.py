"""Scores of where the map lies: hand values, invariants, and masks from boxes and segmentations."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fpa
from blocks import block_of, images, linear, scored
from fpa.data.sets import load_data, load_evaluation_data
from fpa.data.source import image_source
from fpa.scores import Score

NAMES = ("pointing_game", "mass_accuracy", "rank_accuracy")


@pytest.fixture(scope="module")
def net():
    return linear()


def mask(*pixels):
    """A mask [4, 4] of these places."""
    return torch.zeros(16, dtype=torch.bool).index_fill(0, torch.tensor(pixels), True).view(4, 4)


def test_hand_values(net):
    maps = torch.zeros(2, 4, 4)
    maps[0, 0, :4] = torch.tensor([5.0, 3.0, -4.0, 2.0])
    maps[1, 3, 3] = 1.0
    masks = torch.stack([mask(0, 2, 3), mask(0)])
    block = block_of(net, images(2), {"map": maps}, masks=masks)
    assert scored("pointing_game", block)["map"] == [1, 0]
    assert scored("mass_accuracy", block)["map"] == [0.7, 0]
    assert scored("rank_accuracy", block)["map"] == [pytest.approx(2 / 3), 0]


@pytest.mark.parametrize("score", NAMES)
def test_the_object_itself_is_right_and_a_transform_changes_no_rank(net, score):
    masks = torch.stack([mask(0, 1, 5), mask(7), mask(3, 4)])
    exact, noise = masks.double(), torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))
    maps = {"exact": exact, "noise": noise, "squared": noise**2, "outside": 1 - exact}
    values = scored(score, block_of(net, images(3), maps, masks=masks))
    assert values["exact"] == [1, 1, 1]
    assert values["outside"] == [0, 0, 0]
    if score != "mass_accuracy":
        assert values["noise"] == values["squared"]


def test_a_map_that_says_nothing_is_as_good_as_chance(net):
    masks = mask(0, 1, 2, 3).expand(200, 4, 4)
    block = block_of(net, images(200), {"flat": torch.ones(200, 4, 4)}, masks=masks)
    assert scored("pointing_game", block)["flat"] == [0.25] * 200
    assert np.mean(scored("rank_accuracy", block)["flat"]) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("score", NAMES)
def test_images_without_an_object_or_explained_for_another_class_have_no_value(net, score):
    batch = images(4)
    target = net(batch).argmax(1)
    labels = torch.stack([target[0], target[1], (target[2] + 1) % 3, torch.tensor(-1)])
    masks = torch.stack([mask(0), mask(0) & False, mask(0), mask(0)])
    maps = torch.rand(4, 4, 4)
    values = scored(score, block_of(net, batch, {"map": maps}, masks=masks, labels=labels))["map"]
    assert np.isfinite(values).tolist() == [True, False, False, True]


def test_they_are_had_where_objects_are_known(net):
    chosen = {"estimators": ["ig_sum", "vg_abs"], "points": 3, "examples": 0, "progress": False}
    batch = images(3).float()
    with pytest.raises(fpa.InputError, match="the score mass_accuracy needs known masks of the objects"):
        fpa.evaluate(net.float(), batch, scores="mass_accuracy", **chosen)
    masks = torch.rand(3, 4, 4) > 0.5
    result = fpa.evaluate(net.float(), batch, scores="mass_accuracy", masks=masks, **chosen)
    maps = fpa.explain(net.float(), batch, "vg_abs")["vg_abs"]
    expected = (maps * masks).sum((1, 2)) / maps.sum((1, 2))
    np.testing.assert_allclose(result.evaluation.values["mass_accuracy"]["vg_abs"], expected, rtol=1e-6)
    with pytest.raises(fpa.InputError, match=r"masks must be bool \[3, 4, 4\], a mask for each image, got"):
        fpa.evaluate(net.float(), batch, scores="mass_accuracy", masks=masks[:2], **chosen)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8))
    result = fpa.evaluate(whole, "shapes", scores="all", count=3, **chosen)
    assert set(NAMES) < set(result.scores)


def photo(path, width, height, box):
    """A black photo with a white box, in pixels."""
    values = np.zeros((height, width, 3), np.uint8)
    x0, y0, x1, y1 = box
    values[y0:y1, x0:x1] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


@pytest.fixture
def photos(tmp_path):
    """Photos of several shapes whose white pixels are the object, in two classes."""
    boxes = {
        "n01440764/a": (400, 300, (100, 50, 250, 260)),
        "n01440764/b": (256, 256, (0, 0, 60, 256)),
        "n02102040/c": (300, 500, (120, 200, 260, 330)),
    }
    for name, (width, height, box) in boxes.items():
        photo(tmp_path / "set" / f"{name}.png", width, height, box)
    return tmp_path / "set", boxes


def write_boxes(folder, boxes):
    with (folder / "boxes.csv").open("w", newline="") as file:
        rows = [["name", "wnid", "xmin", "ymin", "xmax", "ymax"]]
        for name, (width, height, (x0, y0, x1, y1)) in boxes.items():
            wnid, stem = name.split("/")
            rows.append([stem, wnid, x0 / width, y0 / height, x1 / width, y1 / height])
            rows.append([stem, "n09999999", 0, 0, 1, 1])  # an object of another class
        csv.writer(file).writerows(rows)


def known_masks(folder):
    source = image_source(load_evaluation_data(f"folder:{folder}", size=224))
    (block,) = source.blocks(8)
    white = source.pictures(block.images).mean(1) > 127
    return block.foreground.numpy(), white


def test_boxes_follow_the_photos_through_resizing_and_cropping(photos):
    folder, boxes = photos
    write_boxes(folder, boxes)
    masks, white = known_masks(folder)
    for found, expected in zip(masks, white, strict=True):
        assert (found & expected).sum() / (found | expected).sum() > 0.97
    images, _ = photos
    (images / "boxes.csv").write_text("name,xmin\na,left\n")
    with pytest.raises(fpa.InputError, match="must be a table with the columns name, xmin, ymin, xmax, ymax"):
        load_evaluation_data(f"folder:{folder}")


@pytest.mark.parametrize("kind", ["masks", "trimap"])
def test_segmentations_lie_beside_the_photos(photos, kind):
    folder, boxes = photos
    (folder.parent / kind).mkdir()
    for name, (width, height, (x0, y0, x1, y1)) in boxes.items():
        values = np.full((height, width), 2 if kind == "trimap" else 0, np.uint8)
        values[y0:y1, x0:x1] = 1 if kind == "trimap" else 255
        Image.fromarray(values).save(folder.parent / kind / f"{name.split('/')[1]}.png")
    masks, white = known_masks(folder)
    for found, expected in zip(masks, white, strict=True):
        assert (found & expected).sum() / (found | expected).sum() > 0.97


def test_a_folder_without_either_knows_no_objects(photos):
    assert not image_source(load_evaluation_data(f"folder:{photos[0]}")).has_masks
    assert load_data("shapes").test.foreground is not None


def test_a_score_that_needs_labels_is_refused_without_them(photos):
    class Right(Score):
        name, title, source, higher_is_better = "right", "nothing", "nowhere", True
        needs = frozenset({"labels"})

        def __call__(self, block):
            return {name: block.truth.double() for name in block.maps}

    folder, _ = photos
    loose = folder.parent / "loose"
    loose.mkdir()
    for path in folder.rglob("*.png"):
        path.rename(loose / path.name)
    data = load_evaluation_data(f"folder:{loose}", size=32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    chosen = {"points": 3, "examples": 0, "progress": False}
    with pytest.raises(fpa.InputError, match="the score right needs the true classes of the images"):
        fpa.evaluate(model, data, ["vg_abs", "vg_sum"], scores=Right(), **chosen)
