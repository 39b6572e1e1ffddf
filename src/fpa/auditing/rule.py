"""The rule that turns evidence into a verdict."""

from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from fpa.errors import percent
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


def judge(evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """The rule: a verdict, and the sentences that say why.

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
    """
    reasons, judged = stops(evidence), criteria(evidence)
    states = {criterion.state for criterion in judged.values()}
    verdict: Verdict = "cannot tell"
    if not reasons and "bad" in states:
        verdict = "unreliable"
    elif not reasons and states == {"good"}:
        verdict = "reliable"
    worst_first = sorted(judged.items(), key=lambda item: ("bad", "unclear", "good").index(item[1].state))
    sentences = [*reasons, *(_sentence(name, criterion, evidence) for name, criterion in worst_first)]
    if evidence.chance is None:
        why = "all known labels are of one class" if evidence.labels else "no label is known"
        sentences.append(f"The accuracy was not compared with chance: {why}.")
    return verdict, tuple(sentences)


def stops(evidence: Evidence) -> dict[str, str]:
    """Why there is no verdict, whatever the criteria say, and what to do about each reason."""
    accuracy, labels, chance = evidence.accuracy, evidence.labels, evidence.chance
    change, left = evidence.change, evidence.images - evidence.used
    why = f" ({left} of {evidence.images} have no finite curves or no positive output)" if left else ""
    reasons: dict[str, str] = {}
    tested = labels >= FEWEST_IMAGES
    if tested and accuracy is not None and chance is not None and not above_chance(accuracy, labels, chance):
        right = f"{percent(accuracy)} of {labels} images, is not above chance"
        reasons[f"Nothing to explain: the accuracy, {right} ({percent(chance)}, the commonest label)."] = (
            "Check the labels, the order of the classes and the normalisation; or train the model."
        )
    if change is not None and not change.low > LEAST_CHANGE:
        little = f"{percent(change.value)} of the {in_words(evidence.output)}"
        little += (
            f" ({percent(change.low)} to {percent(change.high)}; more than {percent(LEAST_CHANGE)} is needed)"
        )
        most = evidence.most_masked
        what = "everything" if most == 1 else f"{percent(most)} of the pixels"
        reasons[f"Nothing to explain: masking {what} takes away {little}."] = (
            "Check that the model sees the images, or judge a masking that removes more."
        )
    if evidence.used < FEWEST_IMAGES:
        few = f"{evidence.used} could be used{why}, at least {FEWEST_IMAGES} are needed"
        reasons[f"Too few images: {few}."] = (
            f"Audit at least {FEWEST_IMAGES} images; 1,000 give narrow intervals."
        )
    allowed, rate = most_opposite(evidence.signed, evidence.unsigned)
    if evidence.opposite is not None and allowed < 0:
        few = f"{evidence.pairs} pairs of a signed and an unsigned one agree by chance in {percent(rate)}"
        reasons[f"Too few estimators: {few} of cases."] = "Audit with more estimators, such as the set paper."
    return reasons


def _sentence(name: str, criterion: Criterion, evidence: Evidence) -> str:
    (value, low, high), limit = criterion.estimate, f"{criterion.side} the limit of"
    if name == "opposite":
        allowed, rate = most_opposite(evidence.signed, evidence.unsigned)
        unrelated = f"{limit} {criterion.limit:.3g}, under which unrelated rankings fall in {percent(rate)}"
        compared = f"{unrelated} of cases" if allowed >= 0 else "too few for a limit"
        return (
            f"MIF and LIF rank {value:.0f} of {evidence.pairs} pairs of a signed and an unsigned "
            f"estimator in opposite order (95 % interval {low:.0f} to {high:.0f}, "
            f"{evidence.contradictions} significantly; {compared})."
        )
    return (
        f"With {MASKED[0]} % of the pixels masked at random the {in_words(evidence.output)} keeps "
        f"{percent(value)} of its size ({percent(low)} to {percent(high)}; {limit}"
        f" {percent(criterion.limit)})."
    )


def in_words(output: str) -> str:
    """An output as people call it."""
    return {"centred": "centred logit", "logit": "raw logit"}.get(output, output.replace("_", " "))


def in_short(output: str) -> str:
    """The last word of that.

    >>> in_short("centred"), in_short("log_odds")
    ('logit', 'log odds')
    """
    return "logit" if output in ("centred", "logit") else in_words(output)


MEANINGS: dict[Verdict, str] = {
    "reliable": "masking pixels of this model compares signed with unsigned explanations consistently.",
    "unreliable": "masking pixels of this model tests the model, not the explanations.",
    "cannot tell": "it is unclear whether masking pixels of this model tests the explanations.",
}
