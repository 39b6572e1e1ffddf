"""Importance estimators: from a model and images to maps of how much each pixel matters.

A file a family; Captum's methods, maps computed before and plain functions are families too.
"""

from fpa.explanation.captum import Captum, captum_methods
from fpa.explanation.estimator import PAPER, SETS, Estimator, Estimators, Label, get_estimators, passes
from fpa.explanation.explainer import explain, maps_of, raw_maps_of
from fpa.explanation.integrated import IntegratedGradients
from fpa.explanation.maps import Maps, from_quantus
from fpa.explanation.random import Random
from fpa.explanation.raw import FAMILIES, GradientMap, RawMap, Settings, register
from fpa.explanation.smooth import SmoothGrad, SquaredSmoothGrad
from fpa.explanation.task import Task, make_task
from fpa.explanation.vanilla import VanillaGradient

__all__ = [
    "FAMILIES", "PAPER", "SETS", "Captum", "Estimator", "Estimators", "GradientMap", "IntegratedGradients",
    "Label", "Maps", "Random", "RawMap", "Settings", "SmoothGrad", "SquaredSmoothGrad", "Task",
    "VanillaGradient", "captum_methods", "explain", "from_quantus", "get_estimators", "make_task", "maps_of",
    "passes", "raw_maps_of", "register",
]  # fmt: skip
