"""How far a model's logits are from centred, and what that does to A and to the pairs in opposite order."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpa.notes import Kind, Note, Plain, Severity
from fpa.scores.fidelity import Fidelity
from fpa.showing import clause
from fpa.statistics.contradictions import Reliability, reliability
from fpa.statistics.intervals import Estimate

if TYPE_CHECKING:
    from fpa.evaluation.evaluation import Evaluation

MOVED = 0.05
"""A would be another where it moves by more than its interval, and by more than this share of the largest."""


class Head(NamedTuple):
    """What adding a number to all logits, which changes no probability, has done to an evaluation."""

    offset: float
    """The mean of all logits, over images, as a share of the mean centred logit; 0 is a centred head."""
    areas: dict[str, tuple[float, float]]
    """By estimator: A of the logit, and A of the centred logit along the same maps."""
    moved: tuple[str, ...]
    """The estimators whose A would be another."""
    opposite: tuple[Estimate, Estimate]
    """Signed-unsigned pairs in opposite order, by the logit and by the centred one."""

    @property
    def facts(self) -> tuple[Note, ...]:
        """What a reader must know; nothing where A and the pairs are the same without the offset."""
        logit, centred = self.opposite
        apart = logit.low > centred.high or centred.low > logit.high
        if not self.moved and not apart:
            return ()
        largest = max(self.moved or self.areas, key=lambda name: abs(self.areas[name][0]))
        values: dict[str, Plain] = {
            "offset": self.offset,
            "estimator": largest,
            "areas": self.areas[largest],
            "opposite": (logit.value, centred.value),
        }
        return (Note(Kind.OFFSET_MATTERS, Severity.WARNING, values),)

    @property
    def warning(self) -> str:
        """The same in words; empty where there is nothing to say."""
        return next(map(clause, self.facts), "")


def offset(logit: Any, centred: Any) -> float:
    """The mean of all logits as a share of the mean centred logit, from both of the unmasked images [N].

    >>> offset([6.0, 9.0], [4.0, 6.0])
    0.5
    """
    finite = np.isfinite(logit) & np.isfinite(centred)
    means = [np.mean(np.asarray(each, dtype=np.float64)[finite]) for each in (logit, centred) if finite.any()]
    return float(means[0] / means[1] - 1) if means and means[1] else math.nan


def head_of(
    evaluation: "Evaluation",
    scores: Mapping[str, Fidelity],
    agreement: Reliability,
    signed: Mapping[str, bool],
) -> Head | None:
    """The head of a model whose logit was scored; None where the centred logit was not followed beside it."""
    beside = evaluation.others.get("centred")
    if beside is None or not evaluation.divided:
        return None
    centred = {name: beside.fidelity(name) for name in scores}
    both = {name: (each.area, centred[name].area) for name, each in scores.items()}
    least = MOVED * max((abs(area) for areas in both.values() for area in areas), default=0.0)
    widths = {name: min(scores[name].interval, centred[name].interval) for name in both}
    moved = [name for name, (logit, other) in both.items() if abs(logit - other) > max(least, widths[name])]
    # Both must count the same pairs: what said the same as another by the logit enters none by either.
    counted = {name: sign for name, sign in signed.items() if name not in agreement.duplicates}
    other = reliability(centred, counted).opposite["signed-unsigned"]
    pairs = agreement.opposite["signed-unsigned"], other
    return Head(offset(evaluation.unmasked, beside.unmasked), both, tuple(moved), opposite=pairs)
