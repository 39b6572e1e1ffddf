"""Random crops and flips, as pure functions of random numbers.

A worker that decodes a file and a device that holds decoded photos cut the same boxes from them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from fpa.seeds import derive, uniform_by_index

_ATTEMPTS = 10
_AREA = (0.08, 1.0)
_RATIO = (math.log(3 / 4), math.log(4 / 3))


def side_before_crop(size: int) -> int:
    """The shorter side of a test image before its centre of `size` x `size` is cut out."""
    return round(size * 256 / 224)


def aligned(sides: Tensor) -> int:
    """The side of a tensor that has room for all of these: other than multiples of 16 are slow in float16.

    >>> aligned(torch.tensor([20, 33]))
    48
    """
    return math.ceil(int(sides.max()) / 16) * 16


@dataclass(frozen=True)
class RandomCrop:
    """A random part of a photo, resized to `size` x `size`, and flipped every other time.

    As torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`: the part has 8 to 100 % of the area and
    a width of 3/4 to 4/3 of its height; where ten draws do not fit, it is the centre. Without `crop` it is
    always the centre, as large as in a test; without `flip` it is never flipped.
    """

    size: int
    crop: bool = True
    flip: bool = True
    draws = 2 * _ATTEMPTS + 3
    """Uniform numbers for each photo."""

    def boxes(self, uniform: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
        """Top, left, height, width and whether to flip, int64 [N, 5], from numbers [N, draws] in [0, 1).

        >>> RandomCrop(8).boxes(torch.full((1, 23), 0.5), torch.tensor([40]), torch.tensor([80])).tolist()
        [[0, 13, 40, 53, 0]]
        """
        area, ratio, rest = torch.split(uniform.double(), [_ATTEMPTS, _ATTEMPTS, 3], 1)
        area = (_AREA[0] + area * (_AREA[1] - _AREA[0])) * (heights * widths)[:, None]
        ratio = torch.exp(_RATIO[0] + ratio * (_RATIO[1] - _RATIO[0]))
        height = (area / ratio).sqrt().round()
        width = (area * ratio).sqrt().round()
        fits = (width >= 1) & (width <= widths[:, None]) & (height >= 1) & (height <= heights[:, None])
        first = fits.int().argmax(1, keepdim=True)
        height = height.gather(1, first)[:, 0]
        width = width.gather(1, first)[:, 0]
        top = (rest[:, 0] * (heights - height + 1)).floor()
        left = (rest[:, 1] * (widths - width + 1)).floor()
        # Nothing fits: the largest part of the centre with a ratio that is allowed.
        most_wide = (heights * math.exp(_RATIO[1])).round()
        most_tall = (widths / math.exp(_RATIO[0])).round()
        whole = torch.minimum(heights.double(), most_tall), torch.minimum(widths.double(), most_wide)
        centre = ((heights - whole[0]) / 2).floor(), ((widths - whole[1]) / 2).floor()
        columns = zip((top, left, height, width), (*centre, *whole), strict=True)
        box = [torch.where(fits.any(1), drawn, otherwise) for drawn, otherwise in columns]
        flipped = (rest[:, 2] < 0.5) & self.flip
        if not self.crop:
            side = torch.minimum(heights, widths) * self.size / side_before_crop(self.size)
            side = side.round().clamp(min=1)
            box = [((heights - side) / 2).floor(), ((widths - side) / 2).floor(), side, side]
        return torch.stack([*box, flipped], 1).long()

    def uniform(self, seed: int, epoch: int, indices: Sequence[int]) -> Tensor:
        """The numbers [N, draws] of these photos in this epoch."""
        return uniform_by_index(derive(seed, epoch), indices, self.draws)

    def __call__(self, image: Image.Image, uniform: Tensor | None = None) -> Tensor:
        """The part of a photo that these numbers [draws] stand for, uint8 [3, size, size].

        Without numbers, PyTorch's global generator draws them.
        """
        width, height = image.size
        numbers = torch.rand(self.draws) if uniform is None else uniform
        boxes = self.boxes(numbers[None], torch.tensor([height]), torch.tensor([width]))
        top, left, tall, wide, flipped = boxes[0].tolist()
        part = image.crop((left, top, left + wide, top + tall))
        part = part.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if flipped:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return pil_to_tensor(part)  # type: ignore[no-any-return]


def resized_crops(images: Tensor, boxes: Tensor, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """The `boxes` [N, 5] of photos uint8 [N, C, H, W], each resized and perhaps flipped, [N, C, size, size].

    As Pillow does it, within two grey levels: linear between pixels, over as many as make one of the result,
    rounded after either way. It reads nothing back from the device. The arithmetic is float32, on CUDA
    float16 (which has all bytes), where matrices are multiplied several times as fast; `dtype` overrules it.

    >>> photo = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    >>> resized_crops(photo, torch.tensor([[0, 2, 2, 2, 1]]), 2).tolist()
    [[[[3, 2], [7, 6]]]]
    """
    top, left, height, width, flipped = boxes.unbind(1)
    down = _weights(top, height, images.shape[2], size)
    across = _weights(left, width, images.shape[3], size)
    across = torch.where(flipped.bool()[:, None, None], across.flip(1), across)
    kind = dtype or (torch.float16 if images.is_cuda else torch.float32)
    middle = 0 if kind == torch.float32 else 128  # float16 is finer near 0
    rows = (images.to(kind).sub_(middle) @ across.to(kind).mT[:, None] + 0.5).floor()
    return ((down.to(kind)[:, None] @ rows + 0.5).floor() + middle).clamp(0, 255).byte()


def crop_and_flip(
    images: Tensor, chosen: Tensor, shift: Tensor, flipped: Tensor, *, mirrored: bool = False
) -> Tensor:
    """Chosen images [N, C, H, W], each moved by its own (rows, columns), zeros moving in, then flipped.

    With `mirrored` the image goes on behind its border as in a mirror, instead of zeros.

    >>> image = torch.arange(4).view(1, 1, 2, 2)
    >>> crop_and_flip(image, torch.tensor([0]), torch.tensor([[1], [0]]), torch.tensor([True])).tolist()
    [[[[3, 2], [0, 0]]]]
    """
    height, width = images.shape[2:]
    channels, rows, columns = (torch.arange(size, device=images.device) for size in images.shape[1:])
    rows = rows + shift[0, :, None]
    columns = torch.where(flipped[:, None], width - 1 - columns, columns) + shift[1, :, None]
    if mirrored:
        rows = _reflected(rows, height)
        columns = _reflected(columns, width)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    rows = rows.clamp(0, height - 1)[:, None, :, None]
    columns = columns.clamp(0, width - 1)[:, None, None]
    picked = images[chosen[:, None, None, None], channels[:, None, None], rows, columns]
    return picked * inside[:, None].to(picked.dtype)


def _reflected(places: Tensor, side: int) -> Tensor:
    """Places up to `side` - 1 beyond a border, mirrored at it.

    >>> _reflected(torch.arange(-2, 6), 4).tolist()
    [2, 1, 0, 1, 2, 3, 2, 1]
    """
    return side - 1 - (side - 1 - places.abs()).abs()


def _weights(start: Tensor, length: Tensor, extent: int, size: int) -> Tensor:
    """How much each of `extent` pixels counts for each of `size` in the result, [N, size, extent]."""
    scale = (length / size)[:, None, None]
    place = torch.arange(extent, device=start.device) + 0.5 - start[:, None, None]
    centre = (torch.arange(size, device=start.device) + 0.5)[:, None] * scale
    weights = (1 - (place - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((place > 0) & (place < length[:, None, None]))
    return weights / weights.sum(-1, keepdim=True)
