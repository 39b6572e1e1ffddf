"""What maps and curves are made from, and how other people's methods get it: a few images at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fpa.described import shape_or_type
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.masking import Masking, MaskingLike, get_masking


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


def make_task(
    model: nn.Module | Engine,
    images: Tensor,
    targets: Tensor | int | None = None,
    *,
    masking: MaskingLike | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
) -> tuple[Task, Tensor]:
    """The task of arguments that a user gave, and the logits [N, classes] of the images."""
    engine = Engine.of(model)
    images = engine.images(images)
    numbers, removal = check_indices(indices, len(images)), get_masking(masking)
    logits = engine.predict(images)
    classes = engine.explained(logits, targets)
    return Task(engine, images, classes, numbers, seed=seed, masking=removal), logits


def in_parts(
    task: Task, name: str, run: Callable[[Tensor, slice], Any], *, memory_factor: int = 1, alone: bool = False
) -> Tensor:
    """Raw maps [N, C, H, W] or [N, 1, H, W] from `run(rows, where)`, which gets a few images at a time.

    Their number is the engine's batch size of gradient passes, divided by `memory_factor`, or 1 where
    every image must be `alone`.
    """
    parts: list[Tensor] = []
    start = 0

    def part(batch: int) -> Tensor:
        at = slice(start, start + (1 if alone else max(1, batch // memory_factor)))
        rows = task.images[at].to(task.engine.dtype).clone()
        return checked_map(name, run(rows, at), rows.shape).to(task.images)

    with torch.inference_mode(False), torch.enable_grad():
        while start < len(task.images):
            if (raw := task.engine.attempt("gradients", task.images[:1], part)) is not None:
                parts.append(raw)
                start += len(raw)
    return torch.cat(parts)


def checked_map(name: str, raw: Any, shape: Sequence[int]) -> Tensor:
    """What estimator `name` returned for images of this shape, as a tensor [N, C, H, W] or [N, 1, H, W]."""
    if isinstance(raw, np.ndarray):
        raw = torch.from_numpy(np.ascontiguousarray(raw))
    count, _, *sides = shape
    if not isinstance(raw, Tensor) or list(raw.shape) not in ([*shape], [count, 1, *sides], [count, *sides]):
        raise InputError(
            f"estimator {name} must return a tensor {[*shape]} for these images, got {shape_or_type(raw)}"
        )
    return (raw.unsqueeze(1) if raw.ndim == 3 else raw).detach()


def check_indices(indices: Sequence[int] | Tensor | None, count: int) -> list[int]:
    """The numbers of the images in their data set: those given, or 0, 1, ..."""
    numbers = list(range(count)) if indices is None else [int(index) for index in indices]
    if len(numbers) != count:
        raise InputError(f"there are {count} images but {len(numbers)} indices")
    return numbers


def problems(not_finite: Mapping[tuple[str, str], Tensor], indices: Sequence[int]) -> list[str]:
    """What is not finite, bool [N] by (what, estimator), in words: how many of what, of which images.

    >>> problems({("map", "vg_sum"): torch.tensor([True, False, True])}, [3, 4, 5])
    ['estimator vg_sum: 2 maps (images 3, 5) are not finite']
    """
    lines = []
    for (what, name), bad in not_finite.items():
        if rows := bad.nonzero().flatten().tolist():
            shown = ", ".join(str(indices[row]) for row in rows[:5]) + ", ..." * (len(rows) > 5)
            s, are = ("", "is") if len(rows) == 1 else ("s", "are")
            of = f"estimator {name}: " if name else ""
            lines.append(f"{of}{len(rows)} {what}{s} (image{s} {shown}) {are} not finite")
    return lines
