"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below, and the rooms of the package (`fpa.masking`, `fpa.data`, ...), are loaded when first used:
`import fpa` costs next to nothing.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "FPA", "Audit", "Curves", "Engine", "Estimator", "FPASettings", "Fidelity", "InputError", "ModelCard",
    "Normalisation", "Plan", "Precision", "Recipe", "Rectangle", "Result", "Results", "Score", "Settings",
    "TrainingSettings", "audit", "evaluate", "explain", "finetune", "get_estimators", "get_masking",
    "image_source", "load_data", "load_model", "load_recipe", "load_result", "make_plan", "open_model",
    "paired_test", "perturbation_curves", "read_results", "reliability", "run_study", "save_model",
    "suggested_fpa",
]  # fmt: skip

if TYPE_CHECKING:
    from fpa.auditing.auditor import audit
    from fpa.auditing.verdict import Audit
    from fpa.data.normalisation import Normalisation
    from fpa.data.sets import load_data
    from fpa.data.source import image_source
    from fpa.engine.engine import Engine
    from fpa.engine.forms import Precision
    from fpa.errors import InputError
    from fpa.evaluation.evaluator import evaluate
    from fpa.evaluation.plan import Plan, make_plan
    from fpa.evaluation.result import Result, Results
    from fpa.evaluation.shards import load_result
    from fpa.explanation.estimator import Estimator, get_estimators
    from fpa.explanation.explainer import explain
    from fpa.explanation.raw import Settings
    from fpa.masking import get_masking
    from fpa.models.saved import ModelCard, load_model, open_model, save_model
    from fpa.perturbation.curves import Curves, perturbation_curves
    from fpa.scores.fidelity import Fidelity
    from fpa.scores.score import Score
    from fpa.statistics.contradictions import reliability
    from fpa.statistics.intervals import paired_test
    from fpa.study.read import read_results
    from fpa.study.recipe import Recipe, load_recipe
    from fpa.study.run import run_study
    from fpa.training.augment import FPA, Rectangle
    from fpa.training.finetuning import finetune
    from fpa.training.settings import FPASettings, TrainingSettings, suggested_fpa

_HOMES = {
    "auditing.auditor": "audit", "auditing.verdict": "Audit", "data.normalisation": "Normalisation",
    "data.sets": "load_data", "data.source": "image_source", "engine.engine": "Engine",
    "engine.forms": "Precision", "errors": "InputError", "evaluation.evaluator": "evaluate",
    "evaluation.plan": "Plan make_plan", "evaluation.result": "Result Results",
    "evaluation.shards": "load_result", "explanation.estimator": "Estimator get_estimators",
    "explanation.explainer": "explain", "explanation.raw": "Settings", "masking": "get_masking",
    "models.saved": "ModelCard load_model open_model save_model",
    "perturbation.curves": "Curves perturbation_curves", "scores.fidelity": "Fidelity",
    "scores.score": "Score", "statistics.contradictions": "reliability",
    "statistics.intervals": "paired_test", "study.read": "read_results", "study.recipe": "Recipe load_recipe",
    "study.run": "run_study", "training.augment": "FPA Rectangle", "training.finetuning": "finetune",
    "training.settings": "FPASettings TrainingSettings suggested_fpa",
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
