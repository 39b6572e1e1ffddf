"""Plain functions, Captum's objects and Quantus' functions as raw maps."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fpa.errors import InputError, unknown
from fpa.explanation.maps import Maps
from fpa.explanation.raw import FAMILIES, RawMap
from fpa.explanation.task import Task, in_parts
from fpa.models.wrap import untouched


def as_raw_map(source: Any) -> RawMap:
    """What a user may give as a raw map: a family's name, arrays, paths, functions and Captum's objects."""
    if isinstance(source, str):
        if source not in FAMILIES:
            raise unknown("raw map", source, FAMILIES)
        return FAMILIES[source]()
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


class Foreign(RawMap):
    """Base of other people's methods: they get a few images at a time, and the model to use as they like."""

    def attributions(self, task: Task, rows: Tensor, at: slice) -> Any:
        """What the method returns for the images `rows`, those of the task at `at`."""
        raise NotImplementedError

    def raw_map(self, name: str, task: Task) -> Tensor:
        """All that the method returns; afterwards the model is as it was."""
        with untouched(task.engine.model):
            return in_parts(task, name, partial(self.attributions, task))


@dataclass(frozen=True, eq=False)
class Function(Foreign):
    """A function `(model, images, targets) -> [N, C, H, W]` (or already [N, H, W])."""

    function: Callable[[nn.Module, Tensor, Tensor], Tensor]

    def attributions(self, task: Task, rows: Tensor, at: slice) -> Any:  # noqa: D102
        return self.function(task.engine.model, rows, task.targets[at])


@dataclass(frozen=True, eq=False)
class CaptumObject(Foreign):
    """An object with Captum's method `attribute`; it explains the model it was made with."""

    attribution: Any

    def attributions(self, task: Task, rows: Tensor, at: slice) -> Any:  # noqa: D102
        return self.attribution.attribute(rows.requires_grad_(), target=task.targets[at])

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What the object returns; the model it was made with is as it was, too."""
        # A NoiseTunnel holds another object.
        inner = getattr(self.attribution, "attribution_method", self.attribution)
        model = getattr(inner, "forward_func", None)
        with untouched(model) if isinstance(model, nn.Module) else nullcontext():
            return super().raw_map(name, task)


@dataclass(frozen=True, eq=False)
class Quantus(Foreign):
    """A function `explain_func(model, inputs, targets, **arguments) -> array`, called as Quantus calls it."""

    explain_func: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    def attributions(self, task: Task, rows: Tensor, at: slice) -> Any:
        """The function's arrays, from NumPy copies of the images and targets."""
        accepted = inspect.signature(self.explain_func).parameters
        takes_device = "device" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        elsewhere = task.engine.device.type != "cpu" and takes_device
        arguments = ({"device": str(task.engine.device)} if elsewhere else {}) | self.arguments
        inputs, targets = rows.cpu().numpy(), task.targets[at].cpu().numpy()
        return self.explain_func(model=task.engine.model, inputs=inputs, targets=targets, **arguments)


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
        return {"model", "inputs", "targets"} <= set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in
        return False
