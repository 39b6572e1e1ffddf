"""The words for why an audit comes to its verdict."""

import math
from collections.abc import Sequence

from fpa.errors import percent
from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader, listed, output_name

MEANINGS = {
    "reliable": "MIF and LIF agree on which signed and unsigned explanations of this model are better",
    "unreliable": "masking pixels of this model tests the model, not the explanations",
    "cannot tell": "it is unclear whether masking pixels of this model tests the explanations",
}
"""What a verdict means."""


def headline(verdict: str) -> str:
    """A verdict in a sentence."""
    return f"{verdict.capitalize()}: {MEANINGS[verdict]}."


def _not_above_chance(reader: Reader, *, accuracy: float, labels: int, chance: float) -> str:
    return (
        f"nothing to explain: the accuracy, {percent(accuracy)} of {labels} images, is not above chance "
        f"({percent(chance)}, the commonest label)"
    )


def _little_change(
    reader: Reader, *, output: str, change: Sequence[float], needed: float, masked: float
) -> str:
    value, low, high = change
    what = "everything" if masked == 1 else f"{percent(masked)} of the pixels"
    return (
        f"nothing to explain: masking {what} takes away {percent(value)} of the {output_name(output)} "
        f"({percent(low)} to {percent(high)}; more than {percent(needed)} is needed)"
    )


def _too_few_images(reader: Reader, *, images: int, used: int, needed: int) -> str:
    left = images - used
    lacking = "no finite curves, or an output that is not positive or under a tenth of the median"
    why = f" ({left} of {images} have {lacking})" if left else ""
    return f"too few images: {used} could be used{why}, at least {needed} are needed"


def _too_few_estimators(reader: Reader, *, pairs: int, by_chance: float) -> str:
    agree = f"agree by chance in {percent(by_chance)} of cases"
    return f"too few estimators: {pairs} pairs of a signed and an unsigned one {agree}"


_AGAINST = {"below": "no more than", "above": "more than", "across": "on both sides of"}


def _opposite_pairs(reader: Reader, *, opposite: Sequence[float], pairs: int, allowed: int, side: str) -> str:
    value, low, high = opposite
    return (
        f"MIF and LIF rank {value:.0f} of {pairs} pairs of a signed and an unsigned estimator in opposite "
        f"order (by paired tests {low:.0f} to {high:.0f}, {_AGAINST[side]} the {allowed} allowed)"
    )


def _agreeing_by_chance(
    reader: Reader, *, pairs: int, allowed: int, alike: float, groups: float, apart: float
) -> str:
    return (
        f"what no number of images excludes: rankings that have nothing to do with each other have at most "
        f"{allowed} of {pairs} pairs in opposite order in {percent(alike)} of cases, in {percent(groups)} "
        f"where signed and unsigned estimators are two groups {apart:g} standard deviations apart"
    )


def _output_kept(
    reader: Reader, *, output: str, masked: int, kept: Sequence[float], side: str, limit: float
) -> str:
    value, low, high = kept
    keeps = f"with {masked} % of the pixels masked at random the {output_name(output)} keeps {percent(value)}"
    if math.isnan(low):
        return f"{keeps} of its size (too few images for an interval; the limit is {percent(limit)})"
    within = f"{percent(low)} to {percent(high)}; {side} the limit of {percent(limit)}"
    return f"{keeps} of its size ({within})"


def _chance_unknown(reader: Reader, *, labels: int) -> str:
    why = "all known labels are of one class" if labels else "no label is known"
    return f"the accuracy was not compared with chance: {why}"


def _small_not_judged(reader: Reader, *, small: int, images: int, output: str) -> str:
    have = "has" if small == 1 else "have"
    return (
        f"{small} of {images} images {have} a {output_name(output)} under a tenth of the median, and curves "
        "that are divided by it swing by themselves: the verdict is without them"
    )


def _other_output(reader: Reader, *, output: str, centred_verdict: str | None) -> str:
    judged = f"what is judged here is the {output_name(output)}; the limits are those of the centred logit"
    if centred_verdict is None:
        return judged
    return f"{judged}, which along the same maps gives: {centred_verdict}"


def _raw_logit_differs(reader: Reader, *, verdict: str, offset: float) -> str:
    return (
        "the raw logit, which a number added to all logits changes, would give another verdict: "
        f"{verdict} (the mean of all logits is {percent(offset)} of the centred logit)"
    )


def _other_protocols_differ(reader: Reader, *, judged: str, others: Sequence[str]) -> str:
    differ = f"by {listed(others)} the ranking of the estimators may be different"
    return f"the verdict holds for the protocol {judged}: {differ}"


PHRASES: dict[Kind, Phrase] = {
    Kind.NOT_ABOVE_CHANCE: _not_above_chance,
    Kind.LITTLE_CHANGE: _little_change,
    Kind.TOO_FEW_IMAGES: _too_few_images,
    Kind.TOO_FEW_ESTIMATORS: _too_few_estimators,
    Kind.OPPOSITE_PAIRS: _opposite_pairs,
    Kind.AGREEING_BY_CHANCE: _agreeing_by_chance,
    Kind.OUTPUT_KEPT: _output_kept,
    Kind.CHANCE_UNKNOWN: _chance_unknown,
    Kind.SMALL_NOT_JUDGED: _small_not_judged,
    Kind.OTHER_OUTPUT: _other_output,
    Kind.RAW_LOGIT_DIFFERS: _raw_logit_differs,
    Kind.OTHER_PROTOCOLS_DIFFER: _other_protocols_differ,
}
