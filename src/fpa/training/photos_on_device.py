"""Photos decoded once and kept as bytes on the device, where they are small enough for that."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from fpa.data.crops import RandomCrop, aligned
from fpa.data.photos import in_processes
from fpa.data.splits import UNREADABLE, ArraySplit, FileSplit, UnreadableImage, decode, read_batches

MEMORY_SHARE = 0.25
"""How much of the memory of a device may hold photos."""

_GLANCES = 64


@dataclass(frozen=True, eq=False)
class PhotosOnDevice:
    """All photos of a training set, uint8 [N, 3, H, W] on the device, each in the upper left of its place."""

    images: Tensor
    labels: Tensor
    """[N], on the device; `UNREADABLE` for photos that could not be read."""
    heights: Tensor
    widths: Tensor
    crop: RandomCrop
    unreadable: set[Path]

    def __len__(self) -> int:
        return len(self.labels)


def photos_on_device(split: FileSplit, device: torch.device, workers: int = 0) -> PhotosOnDevice | None:
    """The photos of a training set, decoded; None where they do not fit or are not cropped at random."""
    room = MEMORY_SHARE * _memory(device)
    count = len(split)
    too_many = 3 * count * split.size**2 > room
    if not isinstance(split.transform, RandomCrop) or device.type == "mps" or too_many:
        return None
    # A glance at a few tells a set of large photos without opening all of its files.
    for step in (max(1, count // _GLANCES), 1):
        sides = in_processes(partial(_size, split.paths, step), -(-count // step), "measuring")
        widths, heights = torch.cat([*sides]).unbind(1)
        if 3 * count * aligned(heights) * aligned(widths) > room:
            return None
    shape = (count, 3, aligned(heights), aligned(widths))
    # One tensor, each photo in the corner of an equal place: a captured step can pick any of them by number.
    images = torch.zeros(shape, dtype=torch.uint8, device=device)
    sizes = torch.stack([heights, widths], 1)
    start = 0
    readable = torch.zeros(count, dtype=torch.bool)
    padded = partial(_padded, split.paths, shape[1:])
    for pixels, size in in_processes(padded, count, "decoding the photos", workers):
        here = slice(start, start := start + len(pixels))
        images[here] = pixels.to(device)
        readable[here] = (size == sizes[here]).all(1)
    labels = torch.where(readable, split.labels, UNREADABLE).to(device)
    unreadable = {split.paths[index] for index in (~readable).nonzero()[:, 0].tolist()}
    return PhotosOnDevice(images, labels, heights, widths, crop=split.transform, unreadable=unreadable)


def images_on_device(
    split: FileSplit, chosen: Tensor, device: torch.device, workers: int
) -> ArraySplit | None:
    """The chosen images of a test set, decoded and resized; None where they do not fit."""
    if 3 * len(chosen) * split.size**2 > MEMORY_SHARE * _memory(device):
        return None
    parts = [part[1:] for part in read_batches(split, torch.split(chosen, 256), device, workers)]
    images, labels = map(torch.cat, zip(*parts, strict=True))
    return ArraySplit(images, labels)


def _memory(device: torch.device) -> int:
    """Bytes that the device has. Not those left: a training that is continued must choose as before."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):
        return 0
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text().strip() if limit.exists() else "max"
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(host, int(text)) if text.isdigit() else host


def _size(paths: Sequence[Path], step: int, index: int) -> Tensor:
    """Width and height of a photo, without decoding it; 1 x 1 where that cannot be read."""
    try:
        with Image.open(paths[step * index]) as image:
            return torch.tensor(image.size)
    except Exception:  # damaged files make Pillow raise exceptions of many types
        return torch.tensor([1, 1])


def _padded(paths: Sequence[Path], shape: tuple[int, int, int], index: int) -> tuple[Tensor, Tensor]:
    """A photo in the upper left of an array of the shape, and its height and width; 0 if it does not fit."""
    place = torch.zeros(shape, dtype=torch.uint8)
    try:
        pixels = pil_to_tensor(decode(paths[index]))
        place[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    except (UnreadableImage, RuntimeError):
        return place, torch.zeros(2, dtype=torch.int64)
    return place, torch.tensor(pixels.shape[1:])
