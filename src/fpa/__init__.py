"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below are loaded when first used, so that `import fpa` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpa.augment import FPA, Rectangle
    from fpa.errors import InputError
    from fpa.fidelity import Fidelity
    from fpa.models import load_model

_HOME = {
    "FPA": "augment",
    "Fidelity": "fidelity",
    "Rectangle": "augment",
    "InputError": "errors",
    "load_model": "models",
}

__all__ = ["FPA", "Fidelity", "InputError", "Rectangle", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    return getattr(import_module(f"fpa.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
