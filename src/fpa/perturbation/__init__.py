"""Removing pixels in the order of a map, and following what the model says: ranks, features and curves.

MIF removes the most important first, LIF the least important.
"""

from fpa.perturbation.curves import Curves, perturbation_curves
from fpa.perturbation.features import ranks
from fpa.perturbation.outputs import OUTPUTS

__all__ = ["OUTPUTS", "Curves", "perturbation_curves", "ranks"]
