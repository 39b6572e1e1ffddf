"""What maps and curves are made from, and how other people's methods get it: a few images at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpa.engine import Engine
from fpa.errors import InputError
from fpa.masking import Masking


@dataclass(frozen=True)
class Task:
    """All that a map or a curve may depend on besides its own settings."""

    engine: Engine
    images: Tensor
    """[N, C, H, W], on the engine's device."""
    targets: Tensor
    """[N], on the engine's device: the classes explained."""
    indices: Sequence[int]
    """[N]: the numbers of the images in their data set."""
    seed: int
    masking: Masking


def in_parts(task: Task, name: str, run: Callable[[Tensor, slice], Any], *, memory_factor: int = 1) -> Tensor:
    """Raw maps [N, C, H, W] or [N, 1, H, W] from `run(rows, where)`, which gets a few images at a time.

    Their number is the engine's batch size of gradient passes, divided by `memory_factor`.
    """
    engine, images = task.engine, task.images
    parts: list[Tensor] = []
    start = 0

    def part(batch: int) -> Tensor:
        at = slice(start, start + max(1, batch // memory_factor))
        rows = images[at].to(engine.dtype).clone()
        return checked_map(name, run(rows, at), rows.shape).to(images)

    with torch.inference_mode(False), torch.enable_grad():
        while start < len(images):
            raw = engine.attempt("gradients", images[:1], part)
            if raw is not None:
                parts.append(raw)
                start += len(raw)
    return torch.cat(parts)


def checked_map(name: str, raw: Any, shape: Sequence[int]) -> Tensor:
    """What estimator `name` returned for images of this shape, as a tensor [N, C, H, W] or [N, 1, H, W]."""
    if isinstance(raw, np.ndarray):
        raw = torch.from_numpy(np.ascontiguousarray(raw))
    plain, full = (shape[0], *shape[2:]), tuple(shape)
    if not isinstance(raw, Tensor) or tuple(raw.shape) not in (full, (shape[0], 1, *shape[2:]), plain):
        seen = list(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise InputError(f"estimator {name} must return a tensor {list(full)} for these images, got {seen}")
    return (raw.unsqueeze(1) if raw.ndim == 3 else raw).detach()


def check_indices(indices: Sequence[int] | Tensor | None, count: int) -> list[int]:
    """The numbers of the images in their data set: those given, or 0, 1, ..."""
    if indices is None:
        return list(range(count))
    numbers = [int(index) for index in indices]
    if len(numbers) != count:
        raise InputError(f"there are {count} images but {len(numbers)} indices")
    return numbers


def some(numbers: Sequence[int], what: str) -> str:
    """How many of what, and the first few by number.

    >>> some([3, 5], "map"), some(list(range(9)), "image")
    ('2 maps (images 3, 5) are', '9 images (images 0, 1, 2, 3, 4, ...) are')
    """
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    if len(numbers) == 1:
        return f"1 {what} (image {shown}) is"
    return f"{len(numbers)} {what}s (images {shown}) are"
