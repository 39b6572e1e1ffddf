"""What an explanation is worth, as a number for every image: one file per score, with formula and source.

A, the area between the LIF and the MIF curve, is the first; `Fidelity` is A with its intervals and counts.
"""

from fpa.scores import (  # noqa: F401 (they fill SCORES)
    aopc,
    comprehensiveness,
    deletion,
    faithfulness_correlation,
    infidelity,
    insertion,
    mass_accuracy,
    max_sensitivity,
    parameter_randomisation,
    pixel_flipping,
    pointing_game,
    rank_accuracy,
    road,
    sensitivity_n,
    single_deletion,
)
from fpa.scores.area import Area
from fpa.scores.fidelity import Fidelity, common_images
from fpa.scores.score import SCORES, Block, Given, Passes, Score, get_scores, register

__all__ = [
    "SCORES", "Area", "Block", "Fidelity", "Given", "Passes", "Score", "common_images", "get_scores",
    "register",
]  # fmt: skip
