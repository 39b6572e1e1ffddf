"""Importance estimators: from a model and images to maps of how much each pixel matters.

Captum's methods, maps computed before and plain functions are families of estimators too.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpa.engine.tasks import Task, make_task
    from fpa.explanation.attention import Attention
    from fpa.explanation.baselines import Centre, Edges, Input
    from fpa.explanation.cam import CAM
    from fpa.explanation.captum import Captum, captum_methods
    from fpa.explanation.estimator import PAPER, SETS, Estimator, Estimators, get_estimators, passes
    from fpa.explanation.explainer import explain, maps_of, raw_maps_of
    from fpa.explanation.facts import Label
    from fpa.explanation.maps import Maps, from_quantus
    from fpa.explanation.paper import (
        IntegratedGradients,
        Random,
        SmoothGrad,
        SquaredSmoothGrad,
        VanillaGradient,
    )
    from fpa.explanation.raw_maps import FAMILIES, GradientMap, RawMap, Settings, register

__all__ = [
    "CAM", "FAMILIES", "PAPER", "SETS", "Attention", "Captum", "Centre", "Edges", "Estimator", "Estimators",
    "GradientMap", "Input", "IntegratedGradients", "Label", "Maps", "Random", "RawMap", "Settings",
    "SmoothGrad", "SquaredSmoothGrad", "Task", "VanillaGradient", "captum_methods", "explain", "from_quantus",
    "get_estimators", "make_task", "maps_of", "passes", "raw_maps_of", "register",
]  # fmt: skip

_HOMES = {
    "attention": "Attention",
    "baselines": "Centre Edges Input",
    "cam": "CAM",
    "captum": "Captum captum_methods",
    "estimator": "PAPER SETS Estimator Estimators get_estimators passes",
    "explainer": "Task explain make_task maps_of raw_maps_of",
    "facts": "Label",
    "maps": "Maps from_quantus",
    "paper": "IntegratedGradients Random SmoothGrad SquaredSmoothGrad VanillaGradient",
    "raw_maps": "FAMILIES GradientMap RawMap Settings register",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = {module.name for module in iter_modules(__path__)}


def __getattr__(name: str) -> Any:
    """Estimators need torch, so they are imported when they are used: `facts` are read without it."""
    if name in _MODULES:
        return import_module(f"fpa.explanation.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fpa.explanation' has no attribute {name!r}")
    import_module("fpa.explanation.estimator")  # registers all families, whichever name is asked for
    return getattr(import_module(f"fpa.explanation.{_HOME[name]}"), name)
