"""The rule that turns evidence into a verdict."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fpa.statistics.intervals import Estimate, above_chance

Verdict = Literal["reliable", "unreliable", "cannot tell"]


State = Literal["good", "bad", "unclear"]


EXIT_CODES: dict[Verdict, int] = {"reliable": 0, "unreliable": 3, "cannot tell": 4}


FEWEST_IMAGES = 100
"""Fewer images that can be used: cannot tell."""


FEWEST_PAIRS = 6
"""Fewer pairs of a signed and an unsigned estimator: cannot tell."""


MOST_OPPOSITE = 1 / 4
"""The share of signed-unsigned pairs that MIF and LIF rank in opposite order must be below this."""


LEAST_KEPT = 0.8
"""The share of the logit kept with 10 % of the pixels masked at random must lie above."""


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
    """Of them those with finite curves and a positive unmasked logit."""
    classes: int
    accuracy: float | None
    """Of the unmasked images whose label is known; None where none is."""
    labels: int
    """How many labels are known."""
    logit_change: float
    """How much masking everything (see `most_masked`) changes the logit of the predicted class: the mean."""
    logit_spread: float
    """Standard deviation over images of the unmasked logit of the predicted class."""
    most_masked: float = 1.0
    """The largest share of the pixels masked: 1, unless a masking must leave some."""
    pairs: int = 0
    """Pairs of a signed and an unsigned estimator."""
    opposite: Estimate | None = None
    """Those of them that MIF and LIF rank in opposite order; None where fewer than two images can be used."""
    contradictions: int = 0
    """Of these, those where both differences are significant."""
    correlation: Estimate | None = None
    """Spearman's correlation of the ranking by MIF with that by LIF, over all estimators."""
    kept: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random: the mean logit as a share of the unmasked one."""
    right: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random, and 0: the accuracy of images whose label is known; where none is, the
    share predicted as before. Empty where fewer than two labelled images can be used."""
    rise: dict[str, Estimate] = field(default_factory=dict)
    """By signed estimator: LIF over the first 10 % of the pixels, relative to the unmasked logit, minus 1."""
    kept_by_masking: dict[str, Estimate] = field(default_factory=dict)
    """By masking: the share of the logit kept with 10 % of the pixels masked at random."""
    agreement: dict[str, Estimate] = field(default_factory=dict)
    """By other masking: Spearman's correlation of A with that under the masking judged."""


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
        "opposite": Criterion(evidence.opposite, MOST_OPPOSITE * evidence.pairs, "below"),
        "kept": Criterion(evidence.kept[MASKED[0]], LEAST_KEPT, "above"),
    }


def judge(evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """The rule: a verdict, and the sentences that say why.

    In this order:

    1. Nothing to explain (accuracy not above chance, or masking everything changes the logit by no more
       than its spread over images), fewer than `FEWEST_IMAGES` images or `FEWEST_PAIRS` pairs: cannot tell.
    2. A criterion's whole interval on the bad side of its limit: unreliable.
    3. Every criterion's whole interval on the good side: reliable.
    4. Otherwise an interval lies across a limit: cannot tell.

    >>> from dataclasses import replace
    >>> evidence = Evidence(
    ...     images=500, used=500, classes=10, accuracy=0.9, labels=500, logit_change=9, logit_spread=2,
    ...     pairs=18, opposite=Estimate(16, 14, 17), contradictions=15, kept={10: Estimate(0.5, 0.48, 0.52)},
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
    return verdict, (*reasons, *(_sentence(name, criterion, evidence) for name, criterion in worst_first))


def stops(evidence: Evidence) -> dict[str, str]:
    """Why there is no verdict, whatever the criteria say, and what to do about each reason."""
    accuracy, labels, classes = evidence.accuracy, evidence.labels, evidence.classes
    change, spread, left = abs(evidence.logit_change), evidence.logit_spread, evidence.images - evidence.used
    why = f" ({left} of {evidence.images} have no finite curves or no positive logit)" if left else ""
    reasons: dict[str, str] = {}
    if accuracy is not None and not above_chance(accuracy, labels, classes):
        right = f"{percent(accuracy)} of {labels} images, is not above chance ({percent(1 / classes)})"
        reasons[f"Nothing to explain: the accuracy, {right}."] = (
            "Check the labels, the order of the classes and the normalisation; or train the model."
        )
    if not change > spread:
        little = f"{change:.2g} on average, no more than its spread over images ({spread:.2g})"
        most = evidence.most_masked
        what = "everything" if most == 1 else f"{percent(most)} of the pixels"
        reasons[f"Nothing to explain: masking {what} changes the logit by {little}."] = (
            "Check that the model sees the images, or judge a masking that removes more."
        )
    if evidence.used < FEWEST_IMAGES:
        few = f"{evidence.used} could be used{why}, at least {FEWEST_IMAGES} are needed"
        reasons[f"Too few images: {few}."] = (
            f"Audit at least {FEWEST_IMAGES} images; 1,000 give narrow intervals."
        )
    if evidence.opposite is not None and evidence.pairs < FEWEST_PAIRS:
        few = f"{evidence.pairs} pairs of a signed and an unsigned one, at least {FEWEST_PAIRS} are needed"
        reasons[f"Too few estimators: {few}."] = "Audit with more estimators, such as the set paper."
    return reasons


def _sentence(name: str, criterion: Criterion, evidence: Evidence) -> str:
    (value, low, high), limit = criterion.estimate, f"{criterion.side} the limit of"
    if name == "opposite":
        return (
            f"MIF and LIF rank {value:.0f} of {evidence.pairs} pairs of a signed and an unsigned "
            f"estimator in opposite order (95 % interval {low:.0f} to {high:.0f}, "
            f"{evidence.contradictions} significantly; {limit} {criterion.limit:.3g})."
        )
    return (
        f"With {MASKED[0]} % of the pixels masked at random the logit keeps {percent(value)} of "
        f"its size ({percent(low)} to {percent(high)}; {limit} {percent(criterion.limit)})."
    )


MEANINGS: dict[Verdict, str] = {
    "reliable": "masking pixels of this model tests the explanations.",
    "unreliable": "masking pixels of this model tests the model, not the explanations.",
    "cannot tell": "it is unclear whether masking pixels of this model tests the explanations.",
}


def percent(share: float, sign: str = "") -> str:
    """A share for people: one digit after the point, no minus sign before a zero.

    >>> percent(0.8), percent(-0.0001), percent(0.051, "+")
    ('80.0 %', '0.0 %', '+5.1 %')
    """
    return f"{round(100 * share, 1) + 0.0:{sign}.1f} %"
