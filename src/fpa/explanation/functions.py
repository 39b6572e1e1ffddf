"""Plain functions, Captum's objects and Quantus' functions as raw maps."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fpa.errors import InputError
from fpa.explanation.maps import Maps
from fpa.explanation.raw import RawMap
from fpa.explanation.task import Task, in_parts
from fpa.models.wrap import untouched


def as_raw_map(source: Any) -> RawMap:
    """What a user may give as a raw map: arrays, tensors, paths, functions and Captum's objects."""
    if isinstance(source, RawMap):
        return source
    if isinstance(source, (Tensor, np.ndarray, Path)):
        return Maps(source)
    if hasattr(source, "attribute"):
        return CaptumObject(source)
    if callable(source):
        return from_quantus(source) if is_quantus(source) else Function(source)
    raise InputError(
        "an estimator must be a name, a callable (model, images, targets) -> [N, C, H, W], an array "
        f"of maps or a Captum attribution object, got {type(source).__name__}"
    )


@dataclass(frozen=True, eq=False)
class Function(RawMap):
    """A function `(model, images, targets) -> [N, C, H, W]` (or already [N, H, W])."""

    function: Callable[[nn.Module, Tensor, Tensor], Tensor]

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What the function returns; it may do with the model what it likes."""

        def run(rows: Tensor, at: slice) -> Any:
            return self.function(task.engine.model, rows, task.targets[at])

        with untouched(task.engine.model):
            return in_parts(task, name, run)


@dataclass(frozen=True, eq=False)
class CaptumObject(RawMap):
    """An object with Captum's method `attribute`; it explains the model it was made with."""

    attribution: Any

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What the object's method returns."""
        # A NoiseTunnel holds another object.
        inner = getattr(self.attribution, "attribution_method", self.attribution)
        model = getattr(inner, "forward_func", None)
        with ExitStack() as stack:
            for touched in (task.engine.model, *([model] if isinstance(model, nn.Module) else [])):
                stack.enter_context(untouched(touched))
            return in_parts(
                task,
                name,
                lambda rows, at: self.attribution.attribute(rows.requires_grad_(), target=task.targets[at]),
            )


@dataclass(frozen=True, eq=False)
class Quantus(RawMap):
    """A function `explain_func(model, inputs, targets, **arguments) -> array`, called as Quantus calls it."""

    explain_func: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    def raw_map(self, name: str, task: Task) -> Tensor:
        """The function's arrays, from NumPy copies of the images and targets."""
        engine, arguments = task.engine, dict(self.arguments)
        accepted = inspect.signature(self.explain_func).parameters
        takes_device = "device" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        if engine.device.type != "cpu" and takes_device:
            arguments.setdefault("device", str(engine.device))

        def run(rows: Tensor, at: slice) -> Any:
            inputs, targets = rows.cpu().numpy(), task.targets[at].cpu().numpy()
            return self.explain_func(model=engine.model, inputs=inputs, targets=targets, **arguments)

        with untouched(engine.model):
            return in_parts(task, name, run)


def from_quantus(explain_func: Callable[..., Any], **arguments: Any) -> Quantus:
    """A Quantus-style function as the raw map of an estimator; `arguments` are handed to it.

    It is called with `model`, `inputs` [N, C, H, W] and `targets` [N] by name, the last two NumPy arrays,
    and returns an array [N, C, H, W], [N, 1, H, W] or [N, H, W].

    >>> import torch
    >>> from fpa import explain
    >>> def brightness(model, inputs, targets, scale=1):
    ...     return scale * inputs.mean(1)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> maps = explain(model, torch.ones(1, 3, 2, 2), {"mine": from_quantus(brightness, scale=3)})
    >>> maps["mine"].tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """
    return Quantus(explain_func, arguments)


def is_quantus(function: Callable[..., Any]) -> bool:
    """Whether a function's arguments have the names Quantus requires: model, inputs, targets.

    >>> is_quantus(lambda model, inputs, targets, **others: inputs)
    True
    >>> is_quantus(lambda model, images, targets: images)
    False
    """
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in
        return False
    return {"model", "inputs", "targets"} <= set(names)
