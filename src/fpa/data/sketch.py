"""How to tell whether images are the same as before, without keeping them."""

import hashlib
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMBERS = 16

DECODED = 0.05
"""How far photos may be off that are decoded again: as a share of the size of all images' values."""

DECODED_MEANS = 0.005
"""How far the means of their channels may be off, likewise: a decoder rounds up as often as down."""

COMPUTED = 2e-3
"""How far the sketches of equal images may be off: sums on another device, perhaps in TF32."""


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


def same_images(before: Any, now: Any, tolerance: float = DECODED) -> bool:
    """Whether images look the same as before, by the numbers [N, 16] that `sketches` gave.

    The root mean square difference of each image must be no more than a share of the size of all images'
    values. Another JPEG decoder, which changes pixels by a grey level of 255 or two, stays below 5 %; another
    image, or the same one shifted or flipped, is far above.

    >>> images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> before = sketches(images)
    >>> same_images(before, sketches(images + 0.01)), same_images(before, sketches(images.flip(0)))
    (True, False)
    """
    return _near(before, now, tolerance * _size(before, now))


def same_means(before: Any, now: Any, sketched: Any) -> bool:
    """Whether the means [N, C] of channels are those of before, for images of these sketches [N, 16].

    Noise of decoders has the mean 0; another normalisation, or something added to all pixels, has not.
    """
    return _near(before, now, DECODED_MEANS * _size(sketched, sketched))


def digests(images: Tensor) -> Tensor:
    """A number for each image or mask [N, ...] that differs where any of its bits does, int64 [N].

    >>> ones = torch.ones(2, 3, 8, 8)
    >>> (digests(ones) == digests(ones + torch.tensor([0, 1e-7])[:, None, None, None])).tolist()
    [True, False]
    """
    plain = images.detach().cpu().contiguous()
    kind = f"{plain.dtype} {list(plain.shape[1:])}".encode()
    hashed = [hashlib.blake2b(row.numpy(), digest_size=8, key=kind[:64]) for row in plain]
    numbers = [int.from_bytes(each.digest(), "little", signed=True) for each in hashed]
    return torch.tensor(numbers, dtype=torch.int64)


def _size(before: Any, now: Any) -> float:
    """The root mean square of the values of images, by their sketches."""
    both = [torch.as_tensor(values, dtype=torch.float32).cpu().flatten() for values in (before, now)]
    return float(torch.cat(both).square().mean().sqrt())


def _near(before: Any, now: Any, most: float) -> bool:
    """Whether the root mean square difference of every row is at most this."""
    old, new = (torch.as_tensor(values, dtype=torch.float32).cpu() for values in (before, now))
    return old.shape == new.shape and bool(((old - new).square().mean(-1).sqrt() <= most).all())
