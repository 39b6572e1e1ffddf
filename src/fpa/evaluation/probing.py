"""Asks models for their answers to a few fixed images; see `answers`."""

import numpy as np
import torch
from torch import Tensor

from fpa.data import sketches
from fpa.engine.engine import Engine
from fpa.engine.outputs import Output
from fpa.evaluation.answers import Answers

_COARSE = 4
"""Squares a side of the coarse image."""


def answers_now(engine: Engine, shape: torch.Size) -> Answers:
    """What a model answers to the fixed images of this shape (C, H, W), in the arithmetic it was given in."""
    logits, gradients = engine.answers(fixed_images(shape), Output(_mixed))
    return Answers(
        arithmetic=str(engine.dtype).removeprefix("torch."),
        logits=_rounded(logits),
        gradients=None if gradients is None else _rounded(gradients),
    )


def fixed_images(shape: torch.Size) -> Tensor:
    """Two images [2, C, H, W] of values around 0 like those of normalised images: fine noise, and coarse.

    >>> fixed_images(torch.Size([3, 8, 8])).std((1, 2, 3)).round().tolist()
    [1.0, 1.0]
    """
    channels, height, width = shape
    # numpy guarantees the values of this stream for good
    stream = np.random.PCG64([channels, height, width, 1])
    fine = _uniform(stream, channels, height, width)
    coarse = _uniform(stream, channels, _COARSE, _COARSE)
    rows = np.arange(height) * _COARSE // height
    columns = np.arange(width) * _COARSE // width
    # Flat squares alone would make ties in poolings, which devices break differently.
    mixed = 0.8 * coarse[:, rows][:, :, columns] + 0.6 * _uniform(stream, channels, height, width)
    return torch.from_numpy(np.stack([fine, mixed.astype(np.float32)]))


def _uniform(stream: np.random.PCG64, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Numbers of mean 0 and variance 1."""
    share = (stream.random_raw(int(np.prod(shape))) >> np.uint64(40)).astype(np.float32) / 2**24
    return ((share - 0.5) * 12**0.5).reshape(shape).astype(np.float32)


def _mixed(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """All logits in one number. With equal signs, what is added to all of them would be most of it."""
    signs = 1 - 2 * (torch.arange(logits.shape[1], device=logits.device) % 2)
    return (logits * signs).sum(1)


def _rounded(values: Tensor) -> list[list[float]]:
    """Sketches of values [N, ...], with as many digits as float32 has."""
    return [[float(f"{number:.7g}") for number in row] for row in sketches(values).tolist()]
