"""How functions are compiled, where compiling pays."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")


_R = TypeVar("_R")


def compiled(function: Callable[_P, _R], *, repeatable: bool = False) -> Callable[_P, _R]:
    """`torch.compile` for fixed shapes; with `repeatable`, no timing decides how a sum is computed.

    Elementwise kernels are not tuned: timing their variants takes long, and the chosen ones are no faster.
    """
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.autotune_pointwise": False}
    if repeatable:
        options["deterministic"] = True
    return torch.compile(function, dynamic=False, options=options)
