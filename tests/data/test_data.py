"""The data sets: what is on disk is what is loaded, and what is wrong is said."""

import dataclasses
import hashlib
import json
import os
import pickle
import tarfile
import warnings
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from fpa.data import array_data, image_source, register
from fpa.data import splits as module
from fpa.data.crops import RandomCrop
from fpa.data.normalisation import Normalisation
from fpa.data.sets import DATA_SETS, has_own_test, load_data, load_evaluation_data, tuning_data
from fpa.data.shapes import CLASSES, draw_shapes
from fpa.data.splits import ArraySplit, SeededImages, UnreadableImage, unreadable
from fpa.errors import InputError
from miniatures import (
    CIFAR10_CLASSES,
    cifar10_arrays,
    write_cifar10_binary,
    write_cifar10_python,
    write_food101,
    write_image_folder,
    write_imagenet,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*the official:UserWarning")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])
    return path


def keys(epoch, count):
    return [(epoch, index) for index in range(count)]


# Normalisation


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.5,) * 3, (0.5,) * 3), ((0.55, 0.44, 0.34), (0.27, 0.27, 0.28))],
    ids=["equal", "unequal"],
)
def test_normalisation_is_torchvisions_and_inverts(mean, std):
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    expected = v2.Normalize(mean, std)(v2.ToDtype(torch.float32, scale=True)(images))
    normalise = Normalisation(mean, std)
    torch.testing.assert_close(normalise(images), expected)
    torch.testing.assert_close(normalise(images / 255), expected)
    torch.testing.assert_close(normalise(images[0]), expected[0])
    torch.testing.assert_close(normalise.inverse(expected), images / 255)
    compiled = torch.compile(normalise.__call__, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images), normalise(images))


def test_black_and_white_are_exactly_minus_one_and_one():
    ends = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 2)
    assert Normalisation((0.5,), (0.5,))(ends).flatten().tolist() == [-1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_normalisation_can_be_captured_in_a_graph():
    normalise = Normalisation((0.55, 0.44, 0.34), (0.27, 0.27, 0.28))
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = normalise(images)
    images.fill_(100)
    graph.replay()
    torch.testing.assert_close(result.cpu(), normalise(images.cpu()))


def test_normalisation_refuses_other_images():
    with pytest.raises(InputError, match=r"\[\.\.\., 3, H, W\], got \[2, 1, 4, 4\]"):
        Normalisation((0.5,) * 3, (0.5,) * 3)(torch.zeros(2, 1, 4, 4))
    with pytest.raises(InputError, match=r"uint8 in 0..255 or floats in 0..1, got torch.int64"):
        Normalisation((0.5,), (0.5,))(torch.zeros(2, 1, 4, 4, dtype=torch.long))


# Embedded sets


def test_shapes_are_the_same_everywhere():
    images, _, foreground = draw_shapes(16, seed=0)
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == "6df678119b1ff0e2"
    assert hashlib.sha256(foreground.tobytes()).hexdigest()[:16] == "bf9d7858209fadf5"


def test_shapes_depend_on_the_seed_and_not_on_the_count():
    few, many, other = draw_shapes(20, 3)[0], draw_shapes(600, 3)[0], draw_shapes(20, 4)[0]
    assert np.array_equal(few, many[:20])
    assert not (few == other).all((1, 2, 3)).any()
    assert len(np.unique(many.reshape(600, -1), axis=0)) == 600


def test_foreground_marks_the_shape():
    images, labels, foreground = draw_shapes(800, seed=5)
    fill, centre = np.empty(800), np.empty(800, bool)
    for i, mask in enumerate(foreground):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert 9 <= max(box.shape) <= 26
        fill[i], centre[i] = box.mean(), box[box.shape[0] // 2, box.shape[1] // 2]
    of_class = {name: labels == number for number, name in enumerate(CLASSES)}
    assert fill[of_class["disc"]].mean() == pytest.approx(np.pi / 4, abs=0.05)
    assert fill[of_class["square"]].mean() > 0.8
    assert fill[of_class["diamond"]].mean() == pytest.approx(0.55, abs=0.08)
    for name, mask in of_class.items():
        assert centre[mask].all() == (name not in ("ring", "frame"))
        assert centre[mask].any() == (name not in ("ring", "frame"))
    # The colour inside differs from the one outside.
    values = images.transpose(0, 2, 3, 1) / 255
    inside = [v[m] for v, m in zip(values, foreground, strict=True)]
    outside = [v[~m] for v, m in zip(values, foreground, strict=True)]
    apart = [np.abs(a.mean(0) - b.mean(0)).max() for a, b in zip(inside, outside, strict=True)]
    assert np.quantile(apart, 0.05) > 0.2


def test_shapes_set():
    data = load_data("shapes")
    assert data.classes == CLASSES
    assert data.train.labels.bincount().tolist() == [500] * 8
    assert data.test.labels.bincount().tolist() == [125] * 8
    assert data.train.foreground.shape == (4000, 32, 32)
    assert data.train.images.dtype == torch.uint8
    assert data.normalisation == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert torch.equal(data.evaluation, torch.arange(1000))
    assert data.flip
    both = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert len(both.unique(dim=0)) == 5000
    moved = data.test.to("cpu")
    assert torch.equal(moved.foreground, data.test.foreground)


def test_digits_are_scikit_learns_enlarged():
    data = load_data("digits")
    assert (len(data.train), len(data.test), data.input_shape) == (1437, 360, (1, 32, 32))
    assert not data.flip
    # Bilinear by hand: pixel i of 32 lies at (i + 0.5) / 4 - 0.5 among the 8, held inside.
    place = ((np.arange(32) + 0.5) / 4 - 0.5).clip(0, 7)
    weights = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(8)))
    digits = load_digits()
    larger = weights @ (digits.images * 255 / 16) @ weights.T
    # A half may be rounded either way, so images are matched by their nearest.
    found = torch.cat([data.train.images, data.test.images]).flatten(1).float()
    labels = torch.cat([data.train.labels, data.test.labels])
    distance = torch.cdist(found, torch.from_numpy(larger).flatten(1).float())
    nearest = distance.argmin(1)
    assert sorted(nearest.tolist()) == list(range(1797))
    assert np.abs(found.numpy() - larger[nearest].reshape(1797, -1)).max() <= 0.51
    assert np.array_equal(labels, digits.target[nearest])
    share = data.test.labels.bincount() / torch.from_numpy(digits.target).bincount()
    assert (share - 360 / 1797).abs().max() < 0.01


# CIFAR-10


def test_cifar10_binary_is_read_as_written(tmp_path):
    write_cifar10_binary(tmp_path, per_file=20)
    with pytest.warns(UserWarning, match=r"data_batch_1.bin has 20 images, but the official file has 10,000"):
        data = load_data("cifar10", tmp_path)
    files = cifar10_arrays(20)
    train = np.concatenate([files[f"data_batch_{number}"][0] for number in range(1, 6)])
    assert np.array_equal(data.train.images.numpy(), train)
    assert data.train.labels.tolist() == [n for i in range(1, 6) for n in files[f"data_batch_{i}"][1]]
    assert np.array_equal(data.test.images.numpy(), files["test_batch"][0])
    assert data.classes == CIFAR10_CLASSES
    assert (data.crop_padding, data.flip, data.input_shape) == (4, True, (3, 32, 32))
    assert data.normalisation == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert len(data.evaluation) == 20


def test_cifar10_python_and_binary_versions_are_equal_also_when_root_is_the_folder(tmp_path, monkeypatch):
    binary = load_data("cifar10", write_cifar10_binary(tmp_path / "binary"))
    python = load_data("cifar10", write_cifar10_python(tmp_path / "python", monkeypatch))
    below = load_data("cifar10", tmp_path / "python")
    for other in (python, below):
        assert other.classes == binary.classes
        for one, two in ((binary.train, other.train), (binary.test, other.test)):
            assert torch.equal(one.images, two.images)
            assert torch.equal(one.labels, two.labels)
            assert two.labels.dtype == torch.int64


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_pickle_with_another_md5_is_never_opened(tmp_path, monkeypatch, name):
    folder = write_cifar10_python(tmp_path, monkeypatch)
    content = pickle.dumps(Malicious(tmp_path / "was here"))
    (folder / name).write_bytes(content)
    with pytest.raises(
        InputError, match=rf"{name} is not the official file.*md5 is {hashlib.md5(content).hexdigest()}"
    ):
        load_data("cifar10", tmp_path)
    assert not (tmp_path / "was here").exists()
    pickle.loads(content)
    assert (tmp_path / "was here").exists()  # it would have run


def test_cifar10_damaged_binary_files(tmp_path):
    folder = write_cifar10_binary(tmp_path)
    good = (folder / "data_batch_2.bin").read_bytes()
    (folder / "data_batch_2.bin").write_bytes(good[:-1])
    with pytest.raises(InputError, match=r"data_batch_2.bin has 61459 bytes: expected records of 3,073"):
        load_data("cifar10", tmp_path)
    (folder / "data_batch_2.bin").write_bytes(b"\x0a" + good[1:])
    with pytest.raises(InputError, match=r"data_batch_2.bin has the label 10: expected labels in 0..9"):
        load_data("cifar10", tmp_path)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(InputError, match=r"cannot read .*data_batch_2.bin.*No such file"):
        load_data("cifar10", tmp_path)


def test_cifar10_is_downloaded_when_absent(tmp_path, monkeypatch):
    folder = write_cifar10_python(tmp_path / "server", monkeypatch)
    archive = tmp_path / "server" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=archive.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
        data = load_data("cifar10", tmp_path / "data")
        server.shutdown()
    assert len(data.train) == 100
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", (tmp_path / "nowhere.tar.gz").as_uri())
    with pytest.raises(
        InputError, match=r"cifar-10-batches-bin or cifar-10-batches-py.*could not be downloaded"
    ):
        load_data("cifar10", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


# Sets of files


def test_food101(tmp_path):
    folder = write_food101(tmp_path, train=4, test=2)
    with pytest.warns(UserWarning, match="3 classes, the official set has 101"):
        data = load_data("food101", tmp_path, size=32)
    assert data.classes == ["apple_pie", "beef_tartare", "waffles"]
    assert (len(data.train), len(data.test), data.input_shape) == (12, 6, (3, 32, 32))
    listed = (folder / "meta/test.txt").read_text().split()
    assert [path.relative_to(folder / "images").as_posix() for path in data.test.paths] == [
        f"{n}.jpg" for n in listed
    ]
    assert [data.classes[label] for label in data.test.labels] == [name.split("/")[0] for name in listed]
    assert torch.equal(data.evaluation, torch.arange(6))


def test_food101_normalisation_is_the_z_score_of_its_training_set(tmp_path):
    folder = write_food101(tmp_path)
    data = load_data("food101", tmp_path, size=32)
    pixels = []
    for name in (folder / "meta/train.txt").read_text().split():
        image = Image.open(folder / "images" / f"{name}.jpg").convert("RGB")
        # size 32: the shorter side becomes 32 * 256 / 224 = 37, then the centre
        scale = 37 / min(image.size)
        longer = int(max(image.size) * scale)
        width, height = (37, longer) if image.width <= image.height else (longer, 37)
        image = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        top, left = round((height - 32) / 2), round((width - 32) / 2)
        pixels.append(image[top : top + 32, left : left + 32].reshape(-1, 3) / 255)
    pixels = np.concatenate(pixels)
    assert data.normalisation.mean == pytest.approx(pixels.mean(0), abs=1e-9)
    assert data.normalisation.std == pytest.approx(pixels.std(0), abs=1e-9)


def test_kept_normalisation_counts_only_for_the_same_files(tmp_path):
    folder = write_food101(tmp_path)
    first = load_data("food101", tmp_path, size=32).normalisation
    kept = folder / "fpa-normalisation-32.json"
    content = json.loads(kept.read_text())
    for damaged in (json.dumps(content | {"mean": [0.1, 0.2, 0.3]}), "half a fi"):
        kept.write_text(damaged)
        assert load_data("food101", tmp_path, size=32).normalisation == first
    del content["checksum"]  # as earlier versions wrote it
    kept.write_text(json.dumps(content | {"mean": [0.1, 0.2, 0.3]}))
    assert load_data("food101", tmp_path, size=32).normalisation.mean == (0.1, 0.2, 0.3)
    kept.write_text(json.dumps(content | {"mean": [0.1, 0.2, 0.3]}))
    (folder / "meta/train.txt").write_text("\n".join((folder / "meta/train.txt").read_text().split()[1:]))
    changed = load_data("food101", tmp_path, size=32).normalisation
    assert changed.mean != (0.1, 0.2, 0.3)
    assert changed != first


def test_normalisation_that_cannot_be_kept_is_still_used(tmp_path):
    folder = write_food101(tmp_path)
    (folder / "fpa-normalisation-32.json").mkdir()  # in the way of the file, for root too
    with pytest.warns(UserWarning, match="fpa-normalisation-32.json cannot be saved"):
        assert min(load_data("food101", tmp_path, size=32).normalisation.std) > 0


def test_imagenet(tmp_path):
    folder = write_imagenet(tmp_path)
    with pytest.warns(UserWarning, match="3 classes, the official set has 1000"):
        data = load_data("imagenet", tmp_path, size=48)
    assert data.classes == ["n01440764", "n02102040", "n03000684"]
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.paths[0] == folder / "val/n01440764/n01440764_0.JPEG"
    assert data.normalisation == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert len(load_data("imagenet", folder, size=48).test) == 6


def test_all_of_imagenet_has_names_people_know(tmp_path):
    wnids = ["n01440764", *(f"n{number:08d}" for number in range(2_000_000, 2_000_998)), "n15075141"]
    folder = write_imagenet(tmp_path, ("template",), train=1, val=1)
    for split in ("train", "val"):
        image = (folder / split / "template/template_0.JPEG").rename(tmp_path / f"{split}.JPEG")
        (folder / split / "template").rmdir()
        for wnid in wnids:
            (folder / split / wnid).mkdir()
            (folder / split / wnid / "image.JPEG").symlink_to(image)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_data("imagenet", tmp_path)
    assert data.classes == ResNet50_Weights.IMAGENET1K_V2.meta["categories"]
    assert data.classes[0] == "tench"


@pytest.mark.parametrize(("suffix", "test_name"), [(".jpg", "val"), (".png", "test")])
def test_any_image_folder(tmp_path, suffix, test_name):
    folder = write_image_folder(tmp_path, suffix=suffix, test_name=test_name)
    (folder / "train/cat/.DS_Store").write_bytes(b"not an image")
    (folder / "train/.cache").mkdir()
    data = load_data(f"folder:{folder}", size=24)
    assert data.classes == ["cat", "dog"]
    assert (len(data.train), len(data.test), len(data.evaluation)) == (12, 6, 6)
    assert data.train.load(3).shape == (3, 24, 24)


def test_test_transform_is_resize_256_centre_crop_224(tmp_path):
    folder = write_image_folder(tmp_path, suffix=".png")
    data = load_data(f"folder:{folder}")
    image = Image.open(data.test.paths[0])
    scale = 256 / min(image.size)
    size = [256 if side == min(image.size) else int(side * scale) for side in image.size]
    large = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    top, left = round((large.shape[0] - 224) / 2), round((large.shape[1] - 224) / 2)
    expected = large[top : top + 224, left : left + 224].transpose(2, 0, 1)
    assert np.array_equal(data.test.load(0).numpy(), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16"])
def test_images_of_every_mode_become_rgb(tmp_path, mode):
    folder = write_image_folder(tmp_path, suffix=".png")
    path = folder / "train/cat/cat_0.png"
    if mode == "I;16":
        image = Image.fromarray(np.full((40, 50), 30_000, np.uint16))
    else:
        image = Image.open(path).convert(mode)
    image.save(path, format="JPEG" if mode == "CMYK" else "PNG")
    assert load_data(f"folder:{folder}", size=24).train.load(0).shape == (3, 24, 24)


# The evaluation subset


def test_evaluation_subset_is_fixed():
    chosen = load_data("shapes", evaluation_images=100).evaluation
    assert chosen[:6].tolist() == [2, 3, 11, 13, 20, 48]
    assert len(chosen.unique()) == 100
    assert torch.equal(chosen, chosen.sort().values)


def test_food101_and_imagenet_are_evaluated_on_5000(tmp_path):
    write_imagenet(tmp_path, ("n01440764",), train=1, val=1)
    for number in range(5200):
        (tmp_path / f"imagenet/val/n01440764/{number}.JPEG").symlink_to("n01440764_0.JPEG")
    data = load_data("imagenet", tmp_path)
    assert (len(data.test), len(data.evaluation)) == (5201, 5000)
    assert len(load_data(f"folder:{tmp_path / 'imagenet'}").evaluation) == 5201


@pytest.mark.parametrize("count", [0, -1, 361])
def test_impossible_number_of_evaluation_images(count):
    with pytest.raises(InputError, match=rf"evaluation images must be in 1..360, got {count}"):
        load_data("digits", evaluation_images=count)


def test_impossible_number_of_evaluation_images_is_said_before_the_files_are_read(tmp_path):
    folder = write_food101(tmp_path)
    with pytest.raises(InputError, match=r"evaluation images must be in 1..6, got 7"):
        load_data("food101", tmp_path, evaluation_images=7)
    assert not (folder / "fpa-normalisation-224.json").exists()
    assert len(load_data("food101", tmp_path, evaluation_images=4).evaluation) == 4


# Reading in workers


def test_crops_depend_on_epoch_and_index_not_on_workers(tmp_path):
    split = load_data(f"folder:{write_image_folder(tmp_path)}", size=24).train
    images = {}
    for epoch in (0, 1):
        for workers in (0, 2):
            loader = DataLoader(
                SeededImages(split, seed=7), 4, sampler=keys(epoch, len(split)), num_workers=workers
            )
            batches = list(loader)
            images[epoch, workers] = torch.cat([batch[0] for batch in batches])
            assert torch.equal(torch.cat([batch[1] for batch in batches]), split.labels)
            assert torch.cat([batch[2] for batch in batches]).tolist() == list(range(len(split)))
    assert images[0, 0].dtype == torch.uint8
    assert torch.equal(images[0, 0], images[0, 2])
    assert torch.equal(images[1, 0], images[1, 2])
    assert not (images[0, 0] == images[1, 0]).flatten(1).all(1).any()
    other_seed = torch.stack([SeededImages(split, seed=8)[key][0] for key in keys(0, len(split))])
    assert not (other_seed == images[0, 0]).flatten(1).all(1).any()


def test_a_seeded_load_leaves_the_global_generator_alone(tmp_path):
    split = load_data(f"folder:{write_image_folder(tmp_path)}", size=24).train
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = split.load(0, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(split.load(0, seed=1), one)
    torch.manual_seed(5)
    list(module.read_batches(split, torch.arange(4).split(2)))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_test_batches_of_files(tmp_path, workers):
    split = load_data(f"folder:{write_image_folder(tmp_path)}", size=24).test
    order = torch.tensor([4, 0, 5, 1, 2])
    indices, images, labels = zip(*module.read_batches(split, order.split(2), workers=workers), strict=True)
    assert [len(part) for part in indices] == [2, 2, 1]
    assert torch.equal(torch.cat(indices), order)
    assert torch.equal(torch.cat(images), torch.stack([split.load(index) for index in order.tolist()]))
    assert torch.equal(torch.cat(labels), split.labels[order])


def test_test_batches_of_arrays():
    split = load_data("digits").test
    order = torch.tensor([9, 3, 7])
    indices, images, labels = zip(*module.read_batches(split, order.split(2)), strict=True)
    assert torch.equal(torch.cat(indices), order)
    assert torch.equal(torch.cat(images), split.images[order])
    assert torch.equal(torch.cat(labels), split.labels[order])
    assert unreadable(split, order, split.labels[order]) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_lost_after_the_start_is_named_and_counted(tmp_path, workers):
    split = load_data(f"folder:{write_image_folder(tmp_path)}", size=24).test
    gone, cut = split.paths[1], truncate(split.paths[4])
    gone.unlink()
    named, seen = [], 0
    for indices, images, labels in module.read_batches(split, torch.arange(6).split(4), workers=workers):
        named += unreadable(split, indices, labels)
        seen += len(indices)
        assert not images[labels == module.UNREADABLE].any()
    assert (named, seen) == ([gone, cut], 6)
    with pytest.raises(UnreadableImage, match=rf"cannot read the image {gone}: No such file"):
        split.load(1)
    with pytest.raises(UnreadableImage, match="truncated") as caught:
        split.load(4)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # it can cross processes
    logits = torch.zeros(2, 3, requires_grad=True)
    torch.nn.functional.cross_entropy(logits, torch.tensor([module.UNREADABLE, 1])).backward()
    assert not logits.grad[0].any()


# What is wrong is said before training starts


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_truncated_and_empty_images_are_found_among_many(tmp_path, suffix):
    folder = write_image_folder(tmp_path, train=100, suffix=suffix)
    cut = truncate(folder / f"train/dog/dog_37{suffix}")
    empty = folder / f"train/cat/cat_51{suffix}"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match="2 of 200 image files cannot be read") as caught:
        load_data(f"folder:{folder}", size=24)
    assert f"{cut} (" in str(caught.value)
    assert f"{empty} (" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(load_data(f"folder:{folder}", size=24, check=False).train) == 200


def test_a_whole_image_with_trailing_bytes_is_fine(tmp_path):
    folder = write_image_folder(tmp_path)
    for path in (folder / "train/cat").iterdir():
        path.write_bytes(path.read_bytes() + b"\0" * 16)
    assert len(load_data(f"folder:{folder}", size=24).train) == 12


def test_many_unreadable_images_are_counted_and_a_few_named(tmp_path):
    folder = write_image_folder(tmp_path, train=8)
    for path in (folder / "train/cat").iterdir():
        path.write_text("text")
    with pytest.raises(InputError, match=r"8 of 16 image files.*cat_0.jpg \(not an image.*; and 3 more$"):
        load_data(f"folder:{folder}")


def test_food101_listed_image_that_is_missing(tmp_path):
    folder = write_food101(tmp_path)
    (folder / "images/waffles/waffles_1.jpg").unlink()
    with pytest.raises(InputError, match=r"1 of 12 .*waffles_1.jpg \(No such file"):
        load_data("food101", tmp_path)
    with pytest.raises(InputError, match=r"waffles_1.jpg: No such file"):
        load_data("food101", tmp_path, check=False)


def test_food101_class_without_images(tmp_path):
    folder = write_food101(tmp_path)
    lines = (folder / "meta/test.txt").read_text().split()
    (folder / "meta/test.txt").write_text("\n".join(line for line in lines if "waffles" not in line))
    with pytest.raises(InputError, match=r"class 'waffles' has no images in .*meta/test.txt"):
        load_data("food101", tmp_path)
    (folder / "meta/test.txt").write_text("\n".join([*lines, "sushi/1"]))
    with pytest.raises(InputError, match=r"meta/test.txt has the class 'sushi', which is not among the 3"):
        load_data("food101", tmp_path)


def test_class_folders_that_do_not_fit(tmp_path):
    folder = write_image_folder(tmp_path, classes=("cat", "dog", "owl"))
    for path in (folder / "val/dog").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"class 'dog' has no images in .*val: expected at least one"):
        load_data(f"folder:{folder}")
    (folder / "val/dog").rmdir()
    with pytest.raises(InputError, match=r"class 'dog' is in .*train but not in .*val$"):
        load_data(f"folder:{folder}")
    (folder / "val/eel").mkdir()
    (folder / "train/dog").rename(tmp_path / "dog")
    with pytest.raises(InputError, match=r"class 'eel' is in .*val but not in .*train$"):
        load_data(f"folder:{folder}")


def test_validation_images_not_sorted_into_classes(tmp_path):
    folder = write_imagenet(tmp_path)
    for path in sorted((folder / "val").glob("*/*")):
        path.rename(folder / "val" / path.name)
    for path in (folder / "val").iterdir():
        if path.is_dir():
            path.rmdir()
    with pytest.raises(InputError, match=r"imagenet/val has no subfolders: expected one for each class"):
        load_data("imagenet", tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("food101", "food101 was not found: neither .*food-101 nor .* holds images, meta/classes.txt"),
        ("imagenet", "imagenet was not found: neither .*imagenet nor .* holds train, val"),
        ("folder:{}/none", r"none does not exist; it must hold train/ and val/ \(or test/\)"),
        ("folder:{}", r"does not hold both train/ and val/ \(or test/\)"),
        ("folder:~/no such folder", "/no such folder does not exist"),
    ],
)
def test_missing_folder(tmp_path, name, expected):
    with pytest.raises(InputError, match=expected):
        load_data(name.format(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"), [("cifar-10", "'cifar10'"), ("shape", "'shapes'"), ("folder", "'folder:PATH'")]
)
def test_unknown_names_get_the_nearest(name, nearest):
    with pytest.raises(InputError, match=f"unknown data set '{name}': did you mean {nearest}"):
        load_data(name)


def test_impossible_size(tmp_path):
    with pytest.raises(InputError, match="size of the images must be at least 1, got 0"):
        load_data(f"folder:{tmp_path}", size=0)


def test_a_subfolder_beside_many_images_does_not_replace_them(tmp_path):
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "thumbs").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "thumbs" / "x.png")
    with pytest.warns(UserWarning, match="those in its subfolders are left out: 1"):
        found = load_evaluation_data(f"folder:{tmp_path}", size=8)
    assert (len(found.test), found.classes) == (4, [])


def test_photos_without_classes_to_fine_tune_on_and_others_to_test_on(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        (tmp_path / part).mkdir()
        for number in range(count):
            Image.new("RGB", (8, 8), (0, 0, 90 * number)).save(tmp_path / part / f"{number}.png")
    data = tuning_data(f"folder:{tmp_path}", size=8)
    assert (len(data.train), len(data.test), data.classes) == (3, 2, [])
    assert data.train.labels.tolist() == [-1, -1, -1]
    assert {Path(path).parent.name for path in data.train.paths} == {"train"}
    assert isinstance(data.train.transform, RandomCrop)
    assert not isinstance(data.test.transform, RandomCrop)
    assert has_own_test(data)
    (tmp_path / "train" / "cat").mkdir()
    with pytest.raises(InputError, match="has no subfolders: expected one for each class"):
        tuning_data(f"folder:{tmp_path}", size=8)


# Data sets from outside


def two_pairs(request):
    images = torch.arange(30 * 3 * 4 * 4).remainder(256).to(torch.uint8).reshape(30, 3, 4, 4)
    labels = np.arange(30) % 3
    return (images[:20], labels[:20]), (images[20:].numpy(), labels[20:])


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr("fpa.data.sets.DATA_SETS", dict(DATA_SETS))
    return register


def test_a_data_set_added_from_outside_is_loaded_by_name(registered):
    registered("stripes", two_pairs)
    data = load_data("stripes", evaluation_images=4)
    (images, _), (test_images, test_labels) = two_pairs(None)
    assert (data.name, data.classes, data.input_shape) == ("stripes", ["0", "1", "2"], (3, 4, 4))
    assert torch.equal(data.train.images, images)
    assert data.test.images.tolist() == test_images.tolist()
    assert data.test.labels.tolist() == test_labels.tolist()
    assert len(data.evaluation) == 4
    assert len(load_evaluation_data("stripes").evaluation) == 10
    assert len(tuning_data("stripes").train) == 20
    (block,) = image_source("stripes").blocks(64)
    assert torch.equal(block.images, data.normalisation(data.test.images))


def test_a_data_set_from_outside_says_all_about_itself(registered):
    normalisation = Normalisation((0.1,) * 3, (0.2,) * 3)

    def load(request):
        (images, labels), _ = two_pairs(request)
        split = ArraySplit(images, torch.from_numpy(labels))
        data = array_data(request, split, split, ["a", "b", "c"], flip=True)
        return dataclasses.replace(data, normalisation=normalisation, evaluation=torch.arange(5))

    registered("own", load)
    data = load_data("own")
    assert (data.classes, data.normalisation, data.flip) == (["a", "b", "c"], normalisation, True)
    assert data.evaluation.tolist() == [0, 1, 2, 3, 4]
    assert len(load_data("own", evaluation_images=7).evaluation) == 7
    with pytest.raises(InputError, match=r"evaluation images must be in 1..20, got 21"):
        load_data("own", evaluation_images=21)


def test_a_function_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\n"
        "def squares(request):\n"
        "    images = np.full((6, 1, 8, 8), request.size, dtype=np.uint8)\n"
        "    return (images, np.arange(6) % 2), (images[:2], [0, 1])\n"
        "def floats(request):\n"
        "    return ((np.zeros((6, 1, 8, 8)), np.arange(6)),) * 2\n"
        "def lost(request):\n"
        "    return open(request.root / 'missing.npz')\n"
        "def nothing(request):\n"
        "    return None\n"
    )
    data = load_data("my_data:squares", size=17)
    assert (data.name, data.input_shape, len(data.evaluation)) == ("my_data:squares", (1, 8, 8), 2)
    assert int(data.train.images.max()) == 17
    for name, said in (
        (
            "my_data:floats",
            r"must be an fpa.data.ImageData or .*uint8.*got images torch.float64 \[6, 1, 8, 8\]",
        ),
        ("my_data:lost", r"my_data:lost failed with FileNotFoundError: .*missing.npz.*--debug shows where"),
        ("my_data:nothing", "must be an fpa.data.ImageData or"),
        ("my_data:circles", "my_data:circles cannot be imported from the current folder or the environment"),
        ("no_data:circles", "no_data:circles cannot be imported"),
    ):
        with pytest.raises(InputError, match=said):
            load_data(name)


def test_names_that_cannot_be_registered(registered):
    with pytest.raises(InputError, match="'shapes' is a data set of fpa"):
        registered("shapes", two_pairs)
    with pytest.raises(InputError, match="one word without a colon, got 'a:b'"):
        registered("a:b", two_pairs)


def test_a_link_to_a_parent_folder_adds_no_images(tmp_path):
    folder = write_image_folder(tmp_path / "photos")
    linked = tmp_path / "elsewhere.jpg"
    (folder / "train/cat/cat_0.jpg").rename(linked)
    (folder / "train/cat/cat_0.jpg").symlink_to(linked)  # a link to a file is the file
    before = load_data(f"folder:{folder}", size=32)
    (folder / "train/cat/all").symlink_to(folder)
    with pytest.warns(UserWarning, match=r"1 links to folders are left out, the first is .*train/cat/all"):
        after = load_data(f"folder:{folder}", size=32)
    assert list(before.train.paths) == list(after.train.paths)
    assert len(after.train) == 12


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("../..", "class 'zoo' .* is a link to a folder that holds it"),
        ("cat", "is a link to the same folder"),
    ],
)
def test_a_class_that_is_a_link_to_others_is_refused(tmp_path, target, message):
    folder = write_image_folder(tmp_path / "photos")
    for part in ("train", "val"):
        (folder / part / "zoo").symlink_to(target)
    with pytest.raises(InputError, match=message):
        load_data(f"folder:{folder}", size=32)


def test_a_class_may_be_a_link_to_a_folder_elsewhere(tmp_path):
    folder = write_image_folder(tmp_path / "photos")
    for part in ("train", "val"):
        (folder / part / "cat").rename(tmp_path / f"cats-{part}")
        (folder / part / "cat").symlink_to(tmp_path / f"cats-{part}")
    assert load_data(f"folder:{folder}", size=32).classes == ["cat", "dog"]


def test_a_class_whose_name_is_not_utf_8_is_refused_before_any_work(tmp_path):
    folder = write_image_folder(tmp_path / "photos")
    for part in ("train", "val"):
        os.rename(folder / part / "cat", os.fsencode(folder / part) + b"/caf\xe9")
    with pytest.raises(InputError, match=r"caf\\xe9' is not UTF-8"):
        load_data(f"folder:{folder}", size=32)


def test_an_image_beyond_pillows_limit_is_refused_by_name(tmp_path, monkeypatch):
    folder = write_image_folder(tmp_path / "photos", suffix=".png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200 * 200)
    load_data(f"folder:{folder}", size=32)
    Image.new("RGB", (210, 210)).save(folder / "train/cat/huge.png")
    with pytest.raises(InputError, match=r"huge.png \(.*(Pillow's limit|exceeds limit of 40000 pixels)"):
        load_data(f"folder:{folder}", size=32)


def test_a_smaller_training_set_looks_up_only_the_files_that_are_asked_for(tmp_path):
    class Counted(Sequence):
        """A million files, of which none may be looked up before it is needed."""

        asked: ClassVar[list[int]] = []

        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            self.asked.append(index)
            return tmp_path / f"{index}.png"

        def __iter__(self):
            raise AssertionError("all files were looked up")

    paths = Counted()
    split = module.FileSplit(paths, torch.arange(1_000_000), v2.ToImage(), 8)
    few = module.first_images(split, 600_000)
    assert (len(few), len(few.paths), paths.asked) == (600_000, 600_000, [])
    assert [few.paths[place].stem for place in (0, 1234, -1)] == [
        str(int(few.labels[place])) for place in (0, 1234, -1)
    ]
    assert [path.stem for path in few.paths[5:8]] == [str(label) for label in few.labels[5:8].tolist()]
    assert len(paths.asked) == 6
    assert few.labels.diff().min() > 0
    with pytest.raises(IndexError):
        few.paths[600_000]
