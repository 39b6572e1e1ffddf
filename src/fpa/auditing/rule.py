"""The rule that turns evidence into a verdict."""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from fpa.notes import Kind, Note, Plain, Severity
from fpa.statistics.chance import opposite_by_chance
from fpa.statistics.intervals import Estimate, above_chance
from fpa.statistics.orders import ALPHA

Verdict = Literal["reliable", "unreliable", "cannot tell"]


State = Literal["good", "bad", "unclear"]


EXIT_CODES: dict[Verdict, int] = {"reliable": 0, "unreliable": 3, "cannot tell": 4}


FEWEST_IMAGES = 100
"""Fewer images that can be used: cannot tell."""


ERROR_RATE = ALPHA
"""How often a verdict on the contradictions may be wrong, at most: the level of the tests of the pairs."""


OPPOSITE_SHARE = 6
"""One pair in so many may be in opposite order, rounded down."""


BY_CHANCE = 0.05
"""How often full agreement may come up by chance, at most: where it is more, there are too few estimators."""


GROUPS_APART = 4.0
"""How far signed and unsigned estimators lie apart as groups where that is asked for beside a verdict, in
standard deviations within a group: of models without FPA, 2.6 to 5.1 were seen by MIF (docs/audit.md)."""


LEAST_KEPT = 0.8
"""The share of the centred logit kept with 10 % of the pixels masked at random must lie above."""


LEAST_CHANGE = 0.1
"""Masking everything must take away more than this share of the centred logit; else nothing is explained."""


MASKED = (10, 25, 50)
"""Percent of the pixels masked at random at which logit and accuracy are reported; the first is judged."""


@dataclass(frozen=True)
class Evidence:
    """Everything the rule sees, and what supports it; intervals are 95 %.

    That of the opposite pairs comes from the tests of the pairs, Wilson's is that of accuracies, all others
    from resampling images.
    """

    images: int
    """Images given."""
    used: int
    """Of them those with finite curves and a positive unmasked output that is not `small`."""
    accuracy: float | None
    """Of the unmasked images whose label is known; None where none is."""
    labels: int
    """How many labels are known."""
    chance: float | None
    """The share of the commonest label; None where fewer than two classes occur."""
    change: Estimate | None = None
    """What masking everything takes away, as a share of the unmasked output of the predicted class."""
    small: int = 0
    """Images that are not used only because their unmasked output is under a tenth of the median: curves that
    are divided by it would swing by themselves."""
    most_masked: float = 1.0
    """The share of the pixels that "everything" is: 1, unless a masking must leave some."""
    signed: int = 0
    """Signed estimators compared."""
    unsigned: int = 0
    """Unsigned estimators compared."""
    opposite: Estimate | None = None
    """Of the pairs of a signed and an unsigned one those that MIF and LIF rank in opposite order, from those
    that surely are to all but those that surely agree; None where fewer than two images can be used."""
    contradictions: int = 0
    """Those that surely are in opposite order."""
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
    """By masking or protocol: the share of the output kept with 10 % of the pixels masked at random."""
    agreement: dict[str, Estimate] = field(default_factory=dict)
    """By other masking or protocol: Spearman's correlation of A with that by the protocol judged."""
    reordered: dict[str, Estimate] = field(default_factory=dict)
    """By other masking or protocol: the pairs of estimators that A orders oppositely there, by the tests of
    the pairs. The ranking survives where surely no more than a sixth of the pairs do."""
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


def most_opposite(pairs: int) -> int:
    """How many of so many pairs may be in opposite order: a sixth of them, rounded down.

    >>> most_opposite(18), most_opposite(5)
    (3, 0)
    """
    return pairs // OPPOSITE_SHARE


@cache
def agreeing_by_chance(signed: int, unsigned: int, *, group_effect: float = 0.0) -> float:
    """How often two rankings that have nothing to do with each other agree as far as *reliable* asks.

    It is no error rate, since no number of images can lower it, but a limit of the method.

    >>> round(agreeing_by_chance(3, 6), 3), round(agreeing_by_chance(3, 6, group_effect=4), 2)
    (0.024, 0.3)
    """
    rates = opposite_by_chance(signed, unsigned, group_effect=group_effect)
    return float(rates[most_opposite(signed * unsigned)])


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
        "opposite": Criterion(evidence.opposite, most_opposite(evidence.pairs) + 0.5, "below"),
        "kept": Criterion(evidence.kept[MASKED[0]], LEAST_KEPT, "above"),
    }


def ranking_kept(evidence: Evidence, protocol: str) -> State:
    """Whether the ranking by A surely survives another protocol ("good"), or surely does not ("bad")."""
    estimators = evidence.signed + evidence.unsigned
    allowed = most_opposite(estimators * (estimators - 1) // 2)
    return Criterion(evidence.reordered[protocol], allowed + 0.5, "below").state


def judge(evidence: Evidence) -> tuple[Verdict, tuple[Note, ...]]:
    """The rule: a verdict, and why, as notes; the worst first.

    In this order:

    1. Nothing to explain (accuracy not above chance, or masking everything takes away no more than
       `LEAST_CHANGE` of the centred logit), fewer than `FEWEST_IMAGES` images, or so few estimators that even
       full agreement may be chance: cannot tell.
    2. A criterion's whole interval on the bad side of its limit: unreliable.
    3. Every criterion's whole interval on the good side: reliable.
    4. Otherwise an interval lies across a limit: cannot tell.

    The interval of the opposite pairs is O to n - G, with O of the n pairs surely opposite and G surely
    agreeing, and its limit a sixth of them: so it is unreliable if O is more, reliable if n - G is not.

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
    if verdict == "reliable":
        notes.append(_by_chance(evidence))
    if evidence.chance is None:
        notes.append(Note(Kind.CHANCE_UNKNOWN, Severity.INFO, {"labels": evidence.labels}))
    if evidence.small:
        about: dict[str, Plain] = {
            "small": evidence.small,
            "images": evidence.images,
            "output": evidence.output,
        }
        notes.append(Note(Kind.SMALL_NOT_JUDGED, Severity.INFO, about))
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
    # Under `FEWEST_IMAGES` images there is no interval to judge by, and that is said already.
    change = evidence.change
    if change is not None and math.isfinite(change.low) and not change.low > LEAST_CHANGE:
        found[Kind.LITTLE_CHANGE] = {
            "output": evidence.output,
            "change": change,
            "needed": LEAST_CHANGE,
            "masked": evidence.most_masked,
        }
    if evidence.used < FEWEST_IMAGES:
        found[Kind.TOO_FEW_IMAGES] = {
            "images": evidence.images,
            "used": evidence.used,
            "needed": FEWEST_IMAGES,
        }
    if evidence.opposite is not None:
        full_agreement = _full_agreement(evidence.signed, evidence.unsigned)
        if full_agreement > BY_CHANCE:
            found[Kind.TOO_FEW_ESTIMATORS] = {"pairs": evidence.pairs, "by_chance": full_agreement}
    return [Note(kind, Severity.BLOCKING, values) for kind, values in found.items()]


@cache
def _full_agreement(signed: int, unsigned: int) -> float:
    """How often unrelated rankings order every pair alike; always where there is none."""
    return float(opposite_by_chance(signed, unsigned)[0]) if signed and unsigned else 1.0


def _by_chance(evidence: Evidence) -> Note:
    """What a verdict on the contradictions cannot exclude."""
    signed = evidence.signed
    unsigned = evidence.unsigned
    return Note(
        Kind.AGREEING_BY_CHANCE,
        Severity.INFO,
        {
            "pairs": evidence.pairs,
            "allowed": most_opposite(evidence.pairs),
            "alike": agreeing_by_chance(signed, unsigned),
            "groups": agreeing_by_chance(signed, unsigned, group_effect=GROUPS_APART),
            "apart": GROUPS_APART,
        },
    )


def _compared(name: str, criterion: Criterion, evidence: Evidence) -> Note:
    """On which side of its limit a criterion lies."""
    severity = Severity.INFO if criterion.state == "good" else Severity.WARNING
    if name == "opposite":
        return Note(
            Kind.OPPOSITE_PAIRS,
            severity,
            {
                "opposite": criterion.estimate,
                "pairs": evidence.pairs,
                "allowed": most_opposite(evidence.pairs),
                "side": criterion.side,
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
