"""Random numbers that depend only on what they are for: a seed and a few whole numbers.

The noise of image 17 is drawn from `generator(device, seed, 17, stream)`, so it is the same whatever the
batch size, the order of the images or the number of processes. That takes millions of seeds: splitmix64
makes them several times faster than numpy's SeedSequence, and stored trainings keep their numbers.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Stream(IntEnum):
    """Keys that keep the random numbers of different purposes apart: each purpose has one of its own.

    Trainings draw from (stream, epoch), evaluations from (number of the image, stream). Those of the latter
    lie beyond any epoch, so that no two keys are equal.
    """

    ORDER = 1
    """The order of the images in an epoch; without an epoch, which images are chosen."""
    WORKERS = 2
    """The transformations of images read from files."""
    INITIAL = 3
    """The weights a training starts from."""
    AUGMENT = 4
    """The masks of FPA and of the rectangles."""
    DROPOUT = 5
    """What the model itself draws."""
    SMOOTH = 2**32 + 1
    """The noise of SmoothGrad."""
    RANDOM_MAP = 2**32 + 2
    """The random map."""
    TIES = 2**32 + 3
    """The order of pixels with equal scores."""
    MASKING = 2**32 + 4
    """The noise of a masking."""
    CAPTUM = 2**32 + 5
    """What methods of Captum draw."""
    SUBSETS = 2**32 + 6
    """The sets of pixels of faithfulness correlation."""
    SIZES = 2**32 + 7
    """The sets of pixels of sensitivity-n."""
    SQUARES = 2**32 + 8
    """The squares of infidelity."""
    NEIGHBOURS = 2**32 + 9
    """The images around an image, for max-sensitivity and smooth parameter randomisation."""
    RANDOMISED = 2**32 + 10
    """The parameters of randomised models."""
    ORDERS = 2**32 + 11
    """The orders in which players of a scene come, where there are too many for all settings."""
    LADDER = 2**32 + 12
    """How maps made from the truth of an image are damaged."""


_MASK = (1 << 64) - 1


def derive(seed: int, *keys: int) -> int:
    """A new seed in [0, 2**63) from a seed and keys (splitmix64, a key at a time).

    >>> derive(0, 1) == derive(0, 1), derive(0, 1) == derive(1, 0)
    (True, False)
    """
    state = seed & _MASK
    # Their number first: else (0, 1, 0) would pass through the seed of (0, 1).
    for key in (len(keys), *keys):
        state = (state ^ (key & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1  # an int64, as torch takes it


def generator(device: torch.device | str, seed: int, *keys: int) -> torch.Generator:
    """A fresh generator on `device`, seeded with `derive(seed, *keys)`."""
    return torch.Generator(device).manual_seed(derive(seed, *keys))


def uniform_by_index(seed: int, indices: Sequence[int], count: int) -> Tensor:
    """Uniform numbers in [0, 1), float32 [N, count]: row n depends on the seed and on `indices[n]` alone.

    They are splitmix64's sequence from the seed on, so that any of millions of rows is made in a moment.

    >>> both, second = uniform_by_index(0, [4, 7], 3), uniform_by_index(0, [7], 3)
    >>> bool((both[1] == second[0]).all())
    True
    """
    whole = np.uint64
    place = np.asarray(indices, whole)[:, None] * whole(count) + np.arange(1, count + 1, dtype=whole)
    state: Any = place * whole(0x9E3779B97F4A7C15) + whole(seed)
    state = (state ^ (state >> whole(30))) * whole(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> whole(27))) * whole(0x94D049BB133111EB)
    # 24 bits are all that a float32 below 1 holds: more would round some numbers up to 1.
    bits = (state ^ (state >> whole(31))) >> whole(40)
    return torch.from_numpy(bits.astype(np.float32) / 2**24)


def by_image(
    shape: Sequence[int],
    seed: int,
    indices: Sequence[int],
    stream: int,
    device: torch.device | str = "cpu",
    draw: str = "normal",
) -> Tensor:
    """Random numbers [N, *shape]: row n depends on the seed, on `indices[n]` and on the kind of device alone.

    `stream` keeps the draws for different purposes apart; `draw` is "normal" (float32), "uniform"
    (float32 in [0, 1)) or "integers" (int64 in [0, 2**63)).

    >>> both, second = by_image((2,), 0, [4, 7], stream=1), by_image((2,), 0, [7], stream=1)
    >>> bool((both[1] == second[0]).all())
    True
    """
    name = {"normal": "normal_", "uniform": "uniform_", "integers": "random_"}[draw]
    dtype = torch.int64 if draw == "integers" else torch.float32
    numbers = torch.empty((len(indices), *shape), dtype=dtype, device=device)
    source = torch.Generator(device)
    for row, index in zip(numbers, indices, strict=True):
        getattr(row, name)(generator=source.manual_seed(derive(seed, index, stream)))
    return numbers
