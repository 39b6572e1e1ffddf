"""Removing pixels in the order of a map, and following what the model says: ranks, features and curves.

MIF removes the most important first, LIF the least important.
"""

from fpa.engine.outputs import OUTPUTS, Output, check_outputs, output
from fpa.engine.tasks import problems
from fpa.perturbation.curves import (
    Curves,
    check_fractions,
    check_left,
    curves_of,
    not_finite,
    perturbation_curves,
    up_to,
)
from fpa.perturbation.features import features_of, ranks, segment_count
from fpa.perturbation.removal import outputs_without

__all__ = [
    "OUTPUTS", "Curves", "Output", "check_fractions", "check_left", "check_outputs", "curves_of",
    "features_of", "not_finite", "output", "outputs_without", "perturbation_curves", "problems", "ranks",
    "segment_count", "up_to",
]  # fmt: skip
