"""Reliable evaluation of importance estimators with feature perturbation augmentation (FPA).

The names below, and the rooms of the package (`fpa.masking`, `fpa.data`, ...), are loaded when first used:
`import fpa` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpa.auditing.auditor import audit as audit
    from fpa.auditing.verdict import Audit as Audit
    from fpa.data.normalisation import Normalisation as Normalisation
    from fpa.data.sets import load_data as load_data
    from fpa.data.source import image_source as image_source
    from fpa.engine.engine import Engine as Engine
    from fpa.engine.forms import Precision as Precision
    from fpa.errors import InputError as InputError
    from fpa.evaluation.evaluator import evaluate as evaluate
    from fpa.evaluation.plan import Plan as Plan
    from fpa.evaluation.plan import make_plan as make_plan
    from fpa.evaluation.result import Result as Result
    from fpa.evaluation.result import Results as Results
    from fpa.evaluation.shards import load_result as load_result
    from fpa.explanation.estimator import Estimator as Estimator
    from fpa.explanation.estimator import get_estimators as get_estimators
    from fpa.explanation.explainer import explain as explain
    from fpa.explanation.raw import Settings as Settings
    from fpa.masking import get_masking as get_masking
    from fpa.models.saved import ModelCard as ModelCard
    from fpa.models.saved import load_model as load_model
    from fpa.models.saved import open_model as open_model
    from fpa.models.saved import save_model as save_model
    from fpa.perturbation.curves import Curves as Curves
    from fpa.perturbation.curves import perturbation_curves as perturbation_curves
    from fpa.scores.fidelity import Fidelity as Fidelity
    from fpa.scores.score import Score as Score
    from fpa.statistics.contradictions import reliability as reliability
    from fpa.statistics.paired import paired_test as paired_test
    from fpa.study.read import read_results as read_results
    from fpa.study.recipe import Recipe as Recipe
    from fpa.study.recipe import load_recipe as load_recipe
    from fpa.study.run import run_study as run_study
    from fpa.training.augment import FPA as FPA
    from fpa.training.augment import Rectangle as Rectangle
    from fpa.training.finetuning import finetune as finetune
    from fpa.training.settings import FPASettings as FPASettings
    from fpa.training.settings import TrainingSettings as TrainingSettings
    from fpa.training.settings import suggested_fpa as suggested_fpa

_HOMES = {
    "auditing.auditor": ["audit"],
    "auditing.verdict": ["Audit"],
    "data.normalisation": ["Normalisation"],
    "data.sets": ["load_data"],
    "data.source": ["image_source"],
    "engine.engine": ["Engine"],
    "engine.forms": ["Precision"],
    "errors": ["InputError"],
    "evaluation.evaluator": ["evaluate"],
    "evaluation.plan": ["Plan", "make_plan"],
    "evaluation.result": ["Result", "Results"],
    "evaluation.shards": ["load_result"],
    "explanation.estimator": ["Estimator", "get_estimators"],
    "explanation.explainer": ["explain"],
    "explanation.raw": ["Settings"],
    "masking": ["get_masking"],
    "models.saved": ["ModelCard", "load_model", "open_model", "save_model"],
    "perturbation.curves": ["Curves", "perturbation_curves"],
    "scores.fidelity": ["Fidelity"],
    "scores.score": ["Score"],
    "statistics.contradictions": ["reliability"],
    "statistics.paired": ["paired_test"],
    "study.read": ["read_results"],
    "study.recipe": ["Recipe", "load_recipe"],
    "study.run": ["run_study"],
    "training.augment": ["FPA", "Rectangle"],
    "training.finetuning": ["finetune"],
    "training.settings": ["FPASettings", "TrainingSettings", "suggested_fpa"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = (
    "auditing", "cli", "data", "engine", "errors", "evaluation", "explanation", "functional", "masking",
    "models", "perturbation", "scores", "show", "statistics", "study", "training",
)  # fmt: skip

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fpa.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fpa' has no attribute {name!r}")
    return getattr(import_module(f"fpa.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS, "__version__"]
