"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below, and the subpackages (`fpa.masking`, `fpa.data`, ...), are loaded when first used:
`import fpa` costs next to nothing.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "FPA", "Audit", "Cell", "Curves", "DropTokens", "Engine", "Estimate", "Estimator", "FPASettings",
    "Fidelity", "InputError", "ModelCard", "Normalisation", "Plan", "Precision", "Protocol", "Recipe",
    "Rectangle", "Result", "Results", "Score", "Settings", "TrainingSettings", "TwinDistance", "audit",
    "audit_result", "estimate", "evaluate", "explain", "finetune", "get_estimators", "get_masking",
    "image_source", "load_data", "load_model", "load_recipe", "load_result", "make_plan", "open_model",
    "paired_test", "perturbation_curves", "read_results", "reliability", "run_study", "save_model",
    "suggested_fpa", "twin_distance",
]  # fmt: skip

if TYPE_CHECKING:
    from fpa.auditing.auditor import audit, audit_result
    from fpa.auditing.verdict import Audit
    from fpa.data import Normalisation, image_source, load_data
    from fpa.engine import Engine, Precision
    from fpa.engine.estimate import Estimate
    from fpa.errors import InputError
    from fpa.evaluation.evaluator import evaluate
    from fpa.evaluation.plan import Plan, make_plan
    from fpa.evaluation.result import Result, Results
    from fpa.evaluation.shards import load_result
    from fpa.explanation import Estimator, Settings, explain, get_estimators
    from fpa.masking import get_masking
    from fpa.models import ModelCard, load_model, open_model, save_model
    from fpa.perturbation import Curves, perturbation_curves
    from fpa.perturbation.protocols import Protocol
    from fpa.running import estimate, run_study
    from fpa.scores import Fidelity, Score
    from fpa.statistics import paired_test, reliability
    from fpa.study.read import read_results
    from fpa.study.recipe import Recipe, load_recipe
    from fpa.training import FPASettings, TrainingSettings, suggested_fpa
    from fpa.training.augment import FPA, Cell, Rectangle
    from fpa.training.finetuning import finetune
    from fpa.training.tokens import DropTokens
    from fpa.training.twins import TwinDistance, twin_distance

_HOMES = {
    "auditing.auditor": "audit audit_result", "auditing.verdict": "Audit",
    "data": "Normalisation image_source load_data",
    "engine": "Engine Precision", "engine.estimate": "Estimate",
    "errors": "InputError", "evaluation.evaluator": "evaluate",
    "evaluation.plan": "Plan make_plan", "evaluation.result": "Result Results",
    "evaluation.shards": "load_result", "explanation": "Estimator Settings explain get_estimators",
    "masking": "get_masking", "models": "ModelCard load_model open_model save_model",
    "perturbation": "Curves perturbation_curves", "perturbation.protocols": "Protocol",
    "scores": "Fidelity Score",
    "statistics": "paired_test reliability", "study.read": "read_results",
    "study.recipe": "Recipe load_recipe", "running": "estimate run_study",
    "training": "Cell DropTokens FPA FPASettings Rectangle TrainingSettings finetune suggested_fpa",
    "training.twins": "TwinDistance twin_distance",
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_ROOMS = {module.name for module in iter_modules(__path__)} - {"__main__"}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fpa.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    return getattr(import_module(f"fpa.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS, "__version__"]
