"""Random crops from uniform numbers, against torchvision's own."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fpa.data.crops import RandomCrop, resized_crops
from miniatures import picture


def photo(seed, height, width):
    rng = np.random.default_rng(seed)
    grain = rng.integers(-60, 60, (height, width, 3))
    return Image.fromarray((picture(rng, height, width, 0.4) + grain).clip(0, 255).astype(np.uint8))


def box_by_torchvision(uniform, height, width, monkeypatch):
    """What torchvision's loop makes of the same numbers, handed to it one after the other."""
    areas, ratios = iter(uniform[:10].tolist()), iter(uniform[10:20].tolist())
    calls = iter(range(1000))

    def uniform_(low, high):
        share = next(areas) if next(calls) % 2 == 0 else next(ratios)
        return torch.tensor([low + share * (high - low)], dtype=torch.float64)

    places = iter(uniform[20:22].tolist())
    monkeypatch.setattr(torch, "empty", lambda n: type("", (), {"uniform_": staticmethod(uniform_)}))
    monkeypatch.setattr(torch, "randint", lambda a, b, size: torch.tensor([int(next(places) * b)]))
    crop = v2.RandomResizedCrop(32)
    box = crop.make_params([Image.new("RGB", (width, height))])
    monkeypatch.undo()
    return [box["top"], box["left"], box["height"], box["width"]]


@pytest.mark.parametrize("shape", [(64, 64), (40, 80), (300, 20), (11, 90), (1, 1)])
def test_boxes_are_those_of_torchvision(shape, monkeypatch):
    uniform = torch.rand(200, RandomCrop.draws, generator=torch.Generator().manual_seed(3)).double()
    heights, widths = (torch.full((200,), side) for side in shape)
    boxes = RandomCrop(32).boxes(uniform, heights, widths)
    for row, box in zip(uniform, boxes.tolist(), strict=True):
        assert box[:4] == box_by_torchvision(row, *shape, monkeypatch)
        assert box[4] == (row[22] < 0.5)
    assert len(set(map(tuple, boxes.tolist()))) > 100 or max(shape) / min(shape) > 3 or max(shape) == 1


@pytest.mark.parametrize("dtype", [None, torch.float16])  # the second as on CUDA
@pytest.mark.parametrize(
    ("height", "width", "size"), [(64, 64, 64), (90, 50, 32), (40, 40, 64), (200, 260, 48)]
)
def test_decoded_photos_are_cut_as_files_are(height, width, size, dtype):
    crop = RandomCrop(size)
    images = [photo(seed, height, width) for seed in range(6)]
    uniform = torch.rand(6, crop.draws, generator=torch.Generator().manual_seed(0))
    from_files = torch.stack([crop(*pair) for pair in zip(images, uniform, strict=True)])
    # Photos of other sizes share the tensor: what lies beyond a photo must not matter.
    decoded = torch.full((6, 3, height + 7, width + 5), 255, dtype=torch.uint8)
    decoded[:, :, :height, :width] = torch.stack([functional.pil_to_tensor(image) for image in images])
    boxes = crop.boxes(uniform, torch.full((6,), height), torch.full((6,), width))
    ours = resized_crops(decoded, boxes, size, dtype)
    assert ours.shape == from_files.shape
    difference = ours.int() - from_files.int()
    # Versions of Pillow differ in which way they go first.
    assert difference.abs().max() <= (2 if dtype else 1)
    assert abs(difference.float().mean()) < (0.05 if dtype else 0.02)


def test_a_box_is_cut_resized_and_flipped_as_torchvision_does_it():
    image = photo(0, 70, 90)
    uniform = [0.3] * 20 + [0.5, 0.5]
    for flip in (0.2, 0.8):
        crop = RandomCrop(32)
        top, left, height, width, _ = crop.boxes(
            torch.tensor([[*uniform, flip]]), torch.tensor([70]), torch.tensor([90])
        )[0].tolist()
        expected = functional.pil_to_tensor(
            functional.resized_crop(image, top, left, height, width, [32, 32])
        )
        expected = expected.flip(2) if flip < 0.5 else expected
        assert torch.equal(crop(image, torch.tensor([*uniform, flip])), expected)


def test_areas_ratios_places_and_flips_spread_as_they_should():
    uniform = torch.rand(20000, RandomCrop.draws, generator=torch.Generator().manual_seed(1))
    side = torch.full((20000,), 500)
    top, left, height, width, flipped = RandomCrop(64).boxes(uniform, side, side).double().unbind(1)
    assert flipped.mean() == pytest.approx(0.5, abs=0.02)
    share, ratio = height * width / 500**2, width / height
    assert 0.079 < share.min() < 0.09
    assert 0.9 < share.max() <= 1
    assert ratio.min() > 3 / 4 - 0.01
    assert ratio.max() < 4 / 3 + 0.01
    assert ratio.log().mean() == pytest.approx(0, abs=0.01)
    assert ((top + height / 2) / 500).mean() == pytest.approx(0.5, abs=0.01)
    assert ((left + width / 2) / 500).mean() == pytest.approx(0.5, abs=0.01)
    assert math.isclose(share.mean(), 0.5, abs_tol=0.06)
