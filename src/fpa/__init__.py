"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below are loaded when first used, so that `import fpa` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpa.auditing.auditor import audit
    from fpa.auditing.verdict import Audit
    from fpa.engine.engine import Engine
    from fpa.errors import InputError
    from fpa.evaluation.evaluator import evaluate
    from fpa.evaluation.plan import Plan, make_plan
    from fpa.evaluation.result import Result
    from fpa.evaluation.shards import load_result
    from fpa.explanation.explainer import explain
    from fpa.models.saved import load_model
    from fpa.perturbation.curves import perturbation_curves
    from fpa.scores.fidelity import Fidelity
    from fpa.training.augment import FPA, Rectangle
    from fpa.training.finetuning import finetune

_HOME = {
    "Audit": "auditing.verdict",
    "Engine": "engine.engine",
    "FPA": "training.augment",
    "Fidelity": "scores.fidelity",
    "Rectangle": "training.augment",
    "Result": "evaluation.result",
    "InputError": "errors",
    "audit": "auditing.auditor",
    "evaluate": "evaluation.evaluator",
    "explain": "explanation.explainer",
    "finetune": "training.finetuning",
    "load_model": "models.saved",
    "load_result": "evaluation.shards",
    "perturbation_curves": "perturbation.curves",
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
