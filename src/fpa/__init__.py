"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below are loaded when first used, so that `import fpa` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpa.augment import FPA, Rectangle
    from fpa.curves import perturbation_curves
    from fpa.engine import Engine
    from fpa.errors import InputError
    from fpa.estimators import explain
    from fpa.evaluation import Result, evaluate, load_result
    from fpa.fidelity import Fidelity
    from fpa.models import load_model
    from fpa.trust import Audit, audit
    from fpa.tuning import finetune

_HOME = {
    "Audit": "trust",
    "Engine": "engine",
    "FPA": "augment",
    "Fidelity": "fidelity",
    "Rectangle": "augment",
    "Result": "evaluation",
    "InputError": "errors",
    "audit": "trust",
    "evaluate": "evaluation",
    "explain": "estimators",
    "finetune": "tuning",
    "load_model": "models",
    "load_result": "evaluation",
    "perturbation_curves": "curves",
}

__all__ = [
    "FPA",
    "Audit",
    "Engine",
    "Fidelity",
    "InputError",
    "Rectangle",
    "Result",
    "audit",
    "evaluate",
    "explain",
    "finetune",
    "load_model",
    "load_result",
    "perturbation_curves",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    return getattr(import_module(f"fpa.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
