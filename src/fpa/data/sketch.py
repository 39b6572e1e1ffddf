"""How to tell whether images are the same as before, without keeping them."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMBERS = 16

_TOLERANCE = 0.05


def sketches(images: Tensor) -> Tensor:
    """What tells images [N, C, H, W] apart, in 16 numbers each, float32 [N, 16].

    They are projections on fixed random signs, divided by the root of the number of values: the root mean
    square of the difference of two images' numbers is about that of the images themselves.

    >>> sketches(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 16])
    """
    values = images.detach().flatten(1).float().nan_to_num(nan=0, posinf=0, neginf=0)
    return values @ _signs(tuple(images.shape[1:])).to(values.device)


@lru_cache(maxsize=2)
def _signs(shape: tuple[int, ...]) -> Tensor:
    """[values of an image, 16] of +-1, divided by the root of the number of values."""
    count = math.prod(shape)
    # numpy guarantees the values of this stream for good.
    stream = np.random.PCG64([*shape]).random_raw(-(-count // 4)).astype("<u8").view(np.uint8)
    bits = np.unpackbits(stream)[: count * _NUMBERS].reshape(count, _NUMBERS)
    return torch.from_numpy((bits * 2.0 - 1) / count**0.5).float()


def same_images(before: Any, now: Any) -> bool:
    """Whether images look the same as before, by the numbers [N, 16] that `sketches` gave.

    The root mean square difference of each image must be below 5 % of the size of all images' values. Another
    JPEG decoder, which changes pixels by a grey level of 255 or two, stays below 3 %; another image, the same
    one shifted or flipped, or normalised in another way is far above.

    >>> images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> before = sketches(images)
    >>> same_images(before, sketches(images + 0.01)), same_images(before, sketches(images.flip(0)))
    (True, False)
    """
    old, new = (torch.as_tensor(values, dtype=torch.float32).cpu() for values in (before, now))
    if old.shape != new.shape:
        return False
    scale = torch.cat([old, new]).square().mean().sqrt()
    return bool(((old - new).square().mean(-1).sqrt() <= _TOLERANCE * scale).all())
