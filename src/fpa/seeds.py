"""Random numbers that depend only on what they are for: a seed and a few whole numbers.

The noise of image 17 is drawn from `generator(device, seed, 17)`, so it is the same whatever the
batch size, the order of the images or the number of processes.
"""

import torch

_MASK = (1 << 64) - 1


def derive(seed: int, *keys: int) -> int:
    """A new seed in [0, 2**63) from a seed and keys (splitmix64, a key at a time).

    >>> derive(0, 1) == derive(0, 1), derive(0, 1) == derive(1, 0)
    (True, False)
    """
    state = seed & _MASK
    for key in (len(keys), *keys):
        state = (state ^ (key & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1


def generator(device: torch.device | str, seed: int, *keys: int) -> torch.Generator:
    """A fresh generator on `device`, seeded with `derive(seed, *keys)`."""
    return torch.Generator(device).manual_seed(derive(seed, *keys))
