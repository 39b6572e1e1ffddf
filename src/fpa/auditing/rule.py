"""The rule that turns evidence into a verdict."""

from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from fpa.notes import Kind, Note, Plain, Severity
from fpa.statistics.contradictions import opposite_by_chance
from fpa.statistics.intervals import Estimate, above_chance

Verdict = Literal["reliable", "unreliable", "cannot tell"]


State = Literal["good", "bad", "unclear"]


EXIT_CODES: dict[Verdict, int] = {"reliable": 0, "unreliable": 3, "cannot tell": 4}


FEWEST_IMAGES = 100
"""Fewer images that can be used: cannot tell."""


ERROR_RATE = 0.05
"""How often MIF and LIF that have nothing to do with each other may pass as consistent, at most."""


LEAST_KEPT = 0.8
"""The share of the centred logit kept with 10 % of the pixels masked at random must lie above."""


LEAST_CHANGE = 0.1
"""Masking everything must take away more than this share of the centred logit; else nothing is explained."""


SAME_RANKING = 0.7
"""Spearman's correlation of A with that under another masking: above it, the ranking survives."""


MASKED = (10, 25, 50)
"""Percent of the pixels masked at random at which logit and accuracy are reported; the first is judged."""


@dataclass(frozen=True)
class Evidence:
    """Everything the rule sees, and what supports it; intervals are 95 %, from resampling images."""

    images: int
    """Images given."""
    used: int
    """Of them those with finite curves and a positive unmasked output."""
    accuracy: float | None
    """Of the unmasked images whose label is known; None where none is."""
    labels: int
    """How many labels are known."""
    chance: float | None
    """The share of the commonest label; None where fewer than two classes occur."""
    change: Estimate | None = None
    """What masking everything takes away, as a share of the unmasked output of the predicted class."""
    most_masked: float = 1.0
    """The share of the pixels that "everything" is: 1, unless a masking must leave some."""
    signed: int = 0
    """Signed estimators compared."""
    unsigned: int = 0
    """Unsigned estimators compared."""
    opposite: Estimate | None = None
    """Of the pairs of a signed and an unsigned one those that MIF and LIF rank in opposite order; None where
    fewer than two images can be used."""
    contradictions: int = 0
    """Of these, those where both differences are significant."""
    correlation: Estimate | None = None
    """Spearman's correlation of the ranking by MIF with that by LIF, over all estimators."""
    kept: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random: the mean output as a share of the unmasked one."""
    right: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random, and 0: the accuracy of images whose label is known; where none is, the
    share predicted as before. Empty where fewer than two labelled images can be used."""
    rise: dict[str, Estimate] = field(default_factory=dict)
    """By signed estimator: LIF over the first 10 % of the pixels, over the unmasked output, minus 1."""
    kept_by_masking: dict[str, Estimate] = field(default_factory=dict)
    """By masking: the share of the output kept with 10 % of the pixels masked at random."""
    agreement: dict[str, Estimate] = field(default_factory=dict)
    """By other masking: Spearman's correlation of A with that under the masking judged."""
    output: str = "centred"
    """What it is about."""
    offset: float = 0.0
    """The mean of all logits as a share of the mean centred logit: how far the head is from centred."""
    raw: "Evidence | None" = None
    """The same of the raw logit, or of the centred one where another output is judged, along the same maps:
    shown, not judged."""

    @property
    def pairs(self) -> int:
        """Pairs of a signed and an unsigned estimator."""
        return self.signed * self.unsigned


@cache
def most_opposite(signed: int, unsigned: int) -> tuple[int, float]:
    """How many pairs in opposite order are allowed, and how often as few come up by chance.

    The most with which two rankings that have nothing to do with each other pass in no more than
    `ERROR_RATE` of cases; -1 where even none at all comes up more often.

    >>> most_opposite(3, 6)[0], most_opposite(1, 2)[0]
    (3, -1)
    """
    rates = opposite_by_chance(signed, unsigned) if signed and unsigned else [1.0]
    allowed = int(sum(rate <= ERROR_RATE for rate in rates)) - 1
    return allowed, float(rates[max(allowed, 0)])


class Criterion(NamedTuple):
    """A number of the evidence with the limit that the rule sets it."""

    estimate: Estimate
    limit: float
    good: Literal["below", "above"]

    @property
    def side(self) -> Literal["below", "above", "across"]:
        """Where the whole interval lies."""
        low, high = self.estimate[1:]
        return "below" if high < self.limit else "above" if low > self.limit else "across"

    @property
    def state(self) -> State:
        """Whether the whole interval lies on the good side of the limit, on the bad one, or across it."""
        return "unclear" if self.side == "across" else "good" if self.side == self.good else "bad"


def criteria(evidence: Evidence) -> dict[str, Criterion]:
    """What the verdict depends on; empty where too few images could be used to measure it."""
    if evidence.opposite is None:
        return {}
    return {
        "opposite": Criterion(
            evidence.opposite, most_opposite(evidence.signed, evidence.unsigned)[0] + 0.5, "below"
        ),
        "kept": Criterion(evidence.kept[MASKED[0]], LEAST_KEPT, "above"),
    }


def judge(evidence: Evidence) -> tuple[Verdict, tuple[Note, ...]]:
    """The rule: a verdict, and why, as notes; the worst first.

    In this order:

    1. Nothing to explain (accuracy not above chance, or masking everything takes away no more than
       `LEAST_CHANGE` of the centred logit), fewer than `FEWEST_IMAGES` images, or so few estimators that even
       full agreement may be chance: cannot tell.
    2. A criterion's whole interval on the bad side of its limit: unreliable.
    3. Every criterion's whole interval on the good side: reliable.
    4. Otherwise an interval lies across a limit: cannot tell.

    >>> from dataclasses import replace
    >>> evidence = Evidence(
    ...     images=500, used=500, accuracy=0.9, labels=500, chance=0.1, change=Estimate(0.9, 0.8, 1),
    ...     signed=3, unsigned=6, opposite=Estimate(16, 14, 17), contradictions=15,
    ...     kept={10: Estimate(0.5, 0.48, 0.52)},
    ... )
    >>> judge(evidence)[0], judge(replace(evidence, used=80))[0]
    ('unreliable', 'cannot tell')
    >>> [str(note.kind) for note in judge(replace(evidence, used=80))[1]]
    ['too few images', 'opposite pairs', 'output kept']
    """
    reasons = stops(evidence)
    judged = criteria(evidence)
    states = {criterion.state for criterion in judged.values()}
    verdict: Verdict = "cannot tell"
    if not reasons and "bad" in states:
        verdict = "unreliable"
    elif not reasons and states == {"good"}:
        verdict = "reliable"
    worst_first = sorted(judged, key=lambda name: ("bad", "unclear", "good").index(judged[name].state))
    notes = [*reasons, *(_compared(name, judged[name], evidence) for name in worst_first)]
    if evidence.chance is None:
        notes.append(Note(Kind.CHANCE_UNKNOWN, Severity.INFO, {"labels": evidence.labels}))
    return verdict, tuple(notes)


def stops(evidence: Evidence) -> list[Note]:
    """Why there is no verdict, whatever the criteria say."""
    found: dict[Kind, dict[str, Plain]] = {}
    accuracy = evidence.accuracy
    labels = evidence.labels
    chance = evidence.chance
    tested = labels >= FEWEST_IMAGES  # few labels say little about the accuracy
    if tested and accuracy is not None and chance is not None and not above_chance(accuracy, labels, chance):
        found[Kind.NOT_ABOVE_CHANCE] = {"accuracy": accuracy, "labels": labels, "chance": chance}
    if evidence.change is not None and not evidence.change.low > LEAST_CHANGE:
        found[Kind.LITTLE_CHANGE] = {
            "output": evidence.output,
            "change": evidence.change,
            "needed": LEAST_CHANGE,
            "masked": evidence.most_masked,
        }
    if evidence.used < FEWEST_IMAGES:
        found[Kind.TOO_FEW_IMAGES] = {
            "images": evidence.images,
            "used": evidence.used,
            "needed": FEWEST_IMAGES,
        }
    allowed, by_chance = most_opposite(evidence.signed, evidence.unsigned)
    if evidence.opposite is not None and allowed < 0:
        found[Kind.TOO_FEW_ESTIMATORS] = {"pairs": evidence.pairs, "by_chance": by_chance}
    return [Note(kind, Severity.BLOCKING, values) for kind, values in found.items()]


def _compared(name: str, criterion: Criterion, evidence: Evidence) -> Note:
    """On which side of its limit a criterion lies."""
    severity = Severity.INFO if criterion.state == "good" else Severity.WARNING
    if name == "opposite":
        allowed, by_chance = most_opposite(evidence.signed, evidence.unsigned)
        return Note(
            Kind.OPPOSITE_PAIRS,
            severity,
            {
                "opposite": criterion.estimate,
                "pairs": evidence.pairs,
                "significant": evidence.contradictions,
                "side": criterion.side,
                "limit": criterion.limit if allowed >= 0 else None,
                "by_chance": by_chance,
            },
        )
    return Note(
        Kind.OUTPUT_KEPT,
        severity,
        {
            "output": evidence.output,
            "masked": MASKED[0],
            "kept": criterion.estimate,
            "side": criterion.side,
            "limit": criterion.limit,
        },
    )
