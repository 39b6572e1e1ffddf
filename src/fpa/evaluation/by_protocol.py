"""The maps of one result, put to the test by every protocol of its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpa.evaluation.evaluation import Evaluation
from fpa.notes import Kind, Note, Plain, Severity
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import Reliability, mif_lif_agreement
from fpa.statistics.intervals import Bools

if TYPE_CHECKING:
    from fpa.evaluation.result import Result


@dataclass(frozen=True, eq=False)
class ByProtocol:
    """What a protocol says of the maps."""

    features: str | int
    """What is removed together."""
    masking: Mapping[str, Any]
    """What removing it means: a name and its settings."""
    fidelity: dict[str, Fidelity]
    """By estimator: the area A; those without a finite curve, and maps that rank nothing, are not in here."""
    reliability: Reliability
    """How often MIF and LIF contradict each other."""
    forwards: int
    """Forward passes along the curves of one map of one image."""

    @property
    def opposite(self) -> "Opposite":
        """How many pairs are in opposite order."""
        _, low, high = self.reliability.opposite["signed-unsigned"]
        pairs = self.reliability.counts("signed-unsigned").pairs
        return Opposite(self.features, str(self.masking["name"]), int(low), int(high), pairs)


def by_protocol(result: "Result") -> dict[str, ByProtocol]:
    """By the names that people see, the plan's own protocol first; over the images of the result."""
    plan = result.description.plan
    evaluation = result.evaluation
    own = ByProtocol(
        features=plan.features,
        masking=plan.masking,
        fidelity=result.fidelity,
        reliability=result.reliability,
        forwards=forwards_of(evaluation, plan.features),
    )
    tested = {plan.protocol: own}
    keep = np.zeros(len(evaluation.indices), dtype=bool)
    for each in result.fidelity.values():
        keep |= each.kept
    for key, name in plan.protocol_names.items():
        part = evaluation.under[key]
        fidelity = areas_over(part, keep)
        tested[name] = ByProtocol(
            features=plan.protocols[key].features,
            masking=plan.protocols[key].masking,
            fidelity=fidelity,
            reliability=mif_lif_agreement(fidelity, plan.signed, plan.families),
            forwards=forwards_of(part, plan.protocols[key].features),
        )
    return tested


class Opposite(NamedTuple):
    """How many signed-unsigned pairs of estimators MIF and LIF rank in opposite order by a protocol."""

    features: str | int
    masking: str
    """Its name."""
    low: int
    """Those that surely are in opposite order."""
    high: int
    """All but those that surely agree."""
    pairs: int


def consistency(own: Opposite, others: Sequence[Opposite]) -> list[Note]:
    """The protocol by which the fewest pairs may be in opposite order, if they are fewer than by one's own.

    It goes by what can be excluded: by a protocol that orders no pair surely, none is surely opposite.

    >>> pixels = Opposite("pixels", "constant", low=15, high=17, pairs=18)
    >>> patches = Opposite("1/8", "constant", low=0, high=2, pairs=18)
    >>> halves = Opposite("1/2", "constant", low=0, high=18, pairs=18)
    >>> (note,) = consistency(pixels, [halves, patches])
    >>> note.values["fewest"]
    {'features': '1/8', 'masking': 'constant', 'low': 0, 'high': 2, 'pairs': 18}
    """
    comparable = [each for each in others if each.pairs]
    if not own.pairs or not comparable:
        return []
    # Of near-duplicates one takes part, and which maps nearly are depends on the protocol: so do the pairs.
    fewest = min(comparable, key=lambda each: each.high / each.pairs)
    fewer = fewest.high / fewest.pairs < own.high / own.pairs
    values: dict[str, Plain] = {"own": own._asdict(), "fewest": fewest._asdict() if fewer else None}
    return [Note(Kind.BY_PROTOCOL, Severity.INFO, values)]


def areas_over(part: Evaluation, images: Bools) -> dict[str, Fidelity]:
    """By estimator: the area A over some images, bool [N]; without those that have no finite curve there."""
    finite = {name: _finite(part, name) & images for name in part.mif}
    return {name: part.fidelity(name, keep=images) for name, those in finite.items() if those.any()}


def _finite(part: Evaluation, estimator: str) -> Bools:
    """The images, bool [N], that an estimator can be scored on."""
    curves = np.hstack([part.mif[estimator], part.lif[estimator]])
    finite: Bools = np.isfinite(curves).all(axis=1)
    return finite & (part.unmasked > 0) if part.divided else finite


def forwards_of(part: Evaluation, features: str | int) -> int:
    """Forward passes along the MIF and the LIF curve of one map of one image."""
    # Of features that all images have equally many of, each number is removed once, and the two ends serve
    # all maps; of segments every point is another number in each image, so all are run.
    if str(features).startswith("segments"):
        return 2 * len(part.fractions)
    inner = {share for share in part.fractions.tolist() if 0 < share < 1}
    return 2 * len(inner)
