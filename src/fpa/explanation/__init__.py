"""Importance estimators: from a model and images to maps of how much each pixel matters.

Captum's methods, maps computed before and plain functions are families of estimators too.
"""

from fpa.engine.tasks import Task, make_task
from fpa.explanation.baselines import Centre, Edges, Input
from fpa.explanation.cam import CAM
from fpa.explanation.captum import Captum, captum_methods
from fpa.explanation.estimator import PAPER, SETS, Estimator, Estimators, Label, get_estimators, passes
from fpa.explanation.explainer import explain, maps_of, raw_maps_of
from fpa.explanation.maps import Maps, from_quantus
from fpa.explanation.paper import IntegratedGradients, Random, SmoothGrad, SquaredSmoothGrad, VanillaGradient
from fpa.explanation.raw_maps import FAMILIES, GradientMap, RawMap, Settings, register

__all__ = [
    "CAM", "FAMILIES", "PAPER", "SETS", "Captum", "Centre", "Edges", "Estimator", "Estimators", "GradientMap",
    "Input", "IntegratedGradients", "Label", "Maps", "Random", "RawMap", "Settings", "SmoothGrad",
    "SquaredSmoothGrad", "Task", "VanillaGradient", "captum_methods", "explain", "from_quantus",
    "get_estimators", "make_task", "maps_of", "passes", "raw_maps_of", "register",
]  # fmt: skip
