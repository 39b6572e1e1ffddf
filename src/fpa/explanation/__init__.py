"""Importance estimators: from a model and images to maps of how much each pixel matters.

A file a family; Captum's methods, maps computed before and plain functions are families too.
"""

from fpa.explanation.captum import Captum, captum_methods
from fpa.explanation.estimator import Estimator, Settings
from fpa.explanation.explainer import explain, get_estimators
from fpa.explanation.functions import from_quantus
from fpa.explanation.maps import Maps

__all__ = [
    "Captum",
    "Estimator",
    "Maps",
    "Settings",
    "captum_methods",
    "explain",
    "from_quantus",
    "get_estimators",
]
