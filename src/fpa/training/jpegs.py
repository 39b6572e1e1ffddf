"""JPEG files decoded by the device: worker processes only read them, the device decodes and crops."""

import math
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fpa.data.crops import RandomCrop, aligned, resized_crops
from fpa.data.splits import FileSplit, SeededImages

SMALLEST: dict[str, int] = {"cuda": 128}
"""The smallest side of crops, by kind of device, from which on the device decodes JPEG files: workers keep up
with the training on smaller ones."""

_TOGETHER = 2**28
"""Pixels decoded at a time, which take 0.8 GB: a batch of large photos is decoded in parts."""

_RESIZED = 2**26
"""Pixels resized at a time, which take 1 GB with what is computed from them."""

_LARGEST = 8
"""Files with more bytes than this many crops are decoded by workers: they would fill the memory shared with
them."""


class PackedFiles(NamedTuple):
    """A batch as workers hand it on, in a few tensors however many images it has."""

    files: Tensor
    """The bytes of all JPEG files, one after the other."""
    lengths: Tensor
    """[N]: how many of them are of each image; 0 if a worker has decoded it."""
    sizes: Tensor
    """[N, 2]: heights and widths of the photos in the files; 0 if a worker has decoded it."""
    images: Tensor
    """The crops that workers have made, uint8 [M, 3, size, size]."""
    labels: Tensor
    indices: Tensor


class ReadImages(SeededImages):
    """A `FileSplit` for workers that read: keys (epoch, index) give `PackedFiles`.

    What is not a whole JPEG file of moderate size, in one of the two usual kinds of colour, is decoded and
    cropped here.
    """

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> PackedFiles:
        indices = torch.tensor([index for _, index in keys])
        most = _LARGEST * 3 * self.split.size**2
        files, sizes = zip(*[_usual_jpeg(self.split.paths[index], most) for _, index in keys], strict=True)
        lengths = torch.tensor([len(file) for file in files])
        labels = self.split.labels[indices]
        images = torch.zeros(len(keys), 3, self.split.size, self.split.size, dtype=torch.uint8)
        for row in (others := (lengths == 0).nonzero()[:, 0]).tolist():
            images[row], labels[row], _ = self[keys[row]]
        packed = torch.from_numpy(np.frombuffer(bytearray().join(files), np.uint8))
        return PackedFiles(
            packed, lengths, torch.tensor(sizes), images=images[others], labels=labels, indices=indices
        )

    @staticmethod
    def collate(batch: Any) -> Any:  # noqa: D102
        return batch


def _usual_jpeg(path: Path, most: int) -> tuple[bytes, tuple[int, int]]:
    """A file that decoders of JPEG read alike, and the photo's height and width; nothing for others."""
    try:
        if path.stat().st_size > most:
            return b"", (0, 0)
        with path.open("rb") as stream, Image.open(stream) as image:
            width, height = image.size
            # Files without the colour transform, and those with four channels, are not for every decoder.
            usual = image.mode in ("RGB", "L") and image.info.get("adobe_transform", 1) == 1
            if image.format == "JPEG" and usual and width * height <= (Image.MAX_IMAGE_PIXELS or math.inf):
                stream.seek(0)
                file = stream.read()
                if b"\xff\xd9" in file[-64:]:  # without its end a photo would be grey there, and nobody told
                    return file, (height, width)
    except Exception:  # damaged files make Pillow raise exceptions of many types
        pass
    return b"", (0, 0)


def decodes(split: FileSplit, device: torch.device) -> bool:
    """Whether the device is to decode these files; the same whenever a training is continued."""
    enough = split.size >= SMALLEST.get(device.type, math.inf)
    return enough and isinstance(split.transform, RandomCrop) and _can_decode(device)


@cache
def _can_decode(device: torch.device) -> bool:
    stream = BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    return _photos([torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)], device)[0] is not None


def _photos(files: list[Tensor], device: torch.device) -> list[Tensor | None]:
    """The photos, uint8 [3, H, W] on the device; None where it cannot decode a file."""
    if not files:
        return []
    if device.type == "cuda":
        # The decoder has a stream of its own: memory it is given must not be read by what runs before.
        torch.cuda.current_stream(device).synchronize()
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        return decode_jpeg(files, mode=ImageReadMode.RGB, device=device)  # type: ignore[no-any-return]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ImportError):
        half = len(files) // 2
        return [*_photos(files[:half], device), *_photos(files[half:], device)] if half else [None]


def decoded_crops(
    packed: PackedFiles, crop: RandomCrop, uniform: Tensor, device: torch.device
) -> tuple[Tensor, list[int]]:
    """The crops that the numbers [N, draws] stand for, uint8 [N, 3, size, size] on the device.

    Also the rows of files that the device cannot decode, which are zeros. As Pillow does it, within three
    grey levels where the decoder's pixels are Pillow's.
    """
    size = (len(packed.labels), 3, crop.size, crop.size)
    images = torch.zeros(size, dtype=torch.uint8, device=device)
    images[packed.lengths == 0] = packed.images.to(device)
    boxes = crop.boxes(uniform, *packed.sizes.unbind(1))
    files = packed.files.split_with_sizes(packed.lengths.tolist())
    part_of = packed.sizes.prod(1).cumsum(0) // _TOGETHER
    failed: list[int] = []
    for part in range(int(part_of[-1]) + 1):
        rows = ((part_of == part) & (packed.lengths > 0)).nonzero()[:, 0].tolist()
        photos = dict(zip(rows, _photos([files[row] for row in rows], device), strict=True))
        failed += [row for row in rows if photos[row] is None]
        done = sorted((row for row in rows if photos[row] is not None), key=lambda row: -_area(boxes[row]))
        while done:  # the largest parts first, with as many others as there is room for
            count = max(1, _RESIZED // _area(boxes[done[0]]))
            some = done[:count]
            done = done[count:]
            images[some] = _resized([photos[row] for row in some], boxes[some], crop.size)
    return images, failed


def _area(box: Tensor) -> int:
    return aligned(box[2]) * aligned(box[3])


def _resized(photos: list[Any], boxes: Tensor, size: int) -> Tensor:
    """The boxes [N, 5] of photos uint8 [3, H, W] of any size, resized and perhaps flipped."""
    _, _, heights, widths, flips = boxes.unbind(1)
    # Side by side in one tensor: what is beyond a part does not count when it is resized.
    shape = (len(photos), 3, aligned(heights), aligned(widths))
    canvas = torch.empty(shape, dtype=torch.uint8, device=photos[0].device)
    for place, photo, box in zip(canvas, photos, boxes.tolist(), strict=True):
        top, left, height, width, _ = box
        place[:, :height, :width] = photo[:, top : top + height, left : left + width]
    nought = torch.zeros_like(heights)
    inner = torch.stack([nought, nought, heights, widths, flips], 1)
    return resized_crops(canvas, inner.to(canvas.device), size)
