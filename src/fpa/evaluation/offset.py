"""How far a model's logits are from centred, and what that does to A and to the pairs in opposite order."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fpa.notes import Kind, Note, Plain, Severity
from fpa.scores.fidelity import Fidelity
from fpa.showing import clause
from fpa.statistics.contradictions import Reliability, mif_lif_agreement
from fpa.statistics.intervals import Estimate

if TYPE_CHECKING:
    from fpa.evaluation.evaluation import Evaluation

MOVED = 0.05
"""A would be another where it moves by more than its interval, and by more than this share of the largest."""


class LogitOffset(NamedTuple):
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


def mean_offset(logit: ArrayLike, centred: ArrayLike) -> float:
    """The mean of all logits as a share of the mean centred logit, from both of the unmasked images [N].

    A centred logit is the logit minus the mean of all logits, so that mean is the difference of the two.

    >>> mean_offset([6.0, 9.0], [4.0, 6.0])
    0.5
    """
    logits = np.asarray(logit, dtype=np.float64)
    centred_logits = np.asarray(centred, dtype=np.float64)
    finite = np.isfinite(logits) & np.isfinite(centred_logits)
    if not finite.any():
        return math.nan
    mean_centred = centred_logits[finite].mean()
    return float(logits[finite].mean() / mean_centred - 1) if mean_centred else math.nan


def logit_offset(
    evaluation: "Evaluation",
    fidelity: Mapping[str, Fidelity],
    agreement: Reliability,
    signed: Mapping[str, bool],
) -> LogitOffset | None:
    """The offset of a model whose logit was scored; None where the centred logit was not followed beside it.

    `fidelity`, `agreement` and `signed` are those of the logit.
    """
    centred = evaluation.others.get("centred")
    if centred is None or not evaluation.divided:
        return None
    fidelity_centred = {name: centred.fidelity(name) for name in fidelity}
    areas = {name: (each.area, fidelity_centred[name].area) for name, each in fidelity.items()}
    largest = max((abs(area) for both in areas.values() for area in both), default=0.0)
    moved = []
    for name, (area, area_centred) in areas.items():
        # What is smaller than either interval, or small beside the other areas, is no other A.
        interval = min(fidelity[name].interval, fidelity_centred[name].interval)
        if abs(area - area_centred) > max(MOVED * largest, interval):
            moved.append(name)
    # Both must count the same pairs: what said the same as another by the logit enters none by either.
    counted = {name: sign for name, sign in signed.items() if name not in agreement.duplicates}
    agreement_centred = mif_lif_agreement(fidelity_centred, counted)
    return LogitOffset(
        offset=mean_offset(evaluation.unmasked, centred.unmasked),
        areas=areas,
        moved=tuple(moved),
        opposite=(
            agreement.opposite["signed-unsigned"],
            agreement_centred.opposite["signed-unsigned"],
        ),
    )
