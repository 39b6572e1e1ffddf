"""Plain functions and Quantus' functions as raw maps."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fpa.explanation.estimator import Method, Task, in_parts
from fpa.models.wrap import untouched


@dataclass(frozen=True)
class Quantus(Method):
    """A function `explain_func(model, inputs, targets, **arguments) -> array`, called as Quantus calls it."""

    explain_func: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    def described(self) -> Any:
        """The function's name and arguments, as far as they can be seen."""
        function, arguments = self.explain_func, dict(self.arguments)
        while hasattr(function, "func"):  # functools.partial
            arguments = {**getattr(function, "keywords", {}), **arguments}
            function = function.func
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return {"name": name, **{key: repr(value) for key, value in sorted(arguments.items())}}

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
            return in_parts(engine, name, task.images, run)


def from_quantus(explain_func: Callable[..., Any], **arguments: Any) -> Quantus:
    """A Quantus-style function as the raw map of an estimator; `arguments` are handed to it.

    It is called with `model`, `inputs` [N, C, H, W] and `targets` [N] by name, the last two NumPy arrays,
    and returns an array [N, C, H, W], [N, 1, H, W] or [N, H, W].

    >>> import torch
    >>> from torch import nn
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
