"""What an explanation is worth, as a number for every image: one file per score, with formula and source.

A, the area between the LIF and the MIF curve, is the first; `Fidelity` is A with its intervals and counts.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fpa.scores.fidelity import Fidelity, common_images

if TYPE_CHECKING:
    from fpa.scores.area import Area
    from fpa.scores.score import SCORES, Block, Given, Passes, Score, get_scores, register

__all__ = [
    "SCORES", "Area", "Block", "Fidelity", "Given", "Passes", "Score", "common_images", "get_scores",
    "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Scores need torch, so they are imported when they are used: results are read without it."""
    if name not in __all__:
        raise AttributeError(f"module 'fpa.scores' has no attribute {name!r}")
    for module in iter_modules(__path__):  # each file registers its scores
        import_module(f"fpa.scores.{module.name}")
    return getattr(import_module(f"fpa.scores.{'area' if name == 'Area' else 'score'}"), name)
