"""What results say, in two sentences that follow from the numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fpa.auditing.rule import FEWEST_IMAGES
from fpa.errors import percent
from fpa.evaluation.result import Results
from fpa.show import summary
from fpa.show.names import model_name
from fpa.show.summary import pairs_counted, too_few, trained_with
from fpa.statistics.intervals import Estimate


class Meaning(StrEnum):
    """What numbers of opposite pairs mean, and what FPA changes about them."""

    NOTHING_TO_EXPLAIN = "nothing to explain"
    """A model whose accuracy is not above guessing by two standard errors has not learned its task."""

    # models trained elsewhere
    TOO_FEW_IMAGES = "too few images"
    AGREES = "agrees"
    CONTRADICTS = "contradicts"

    # a study, with FPA against without
    LESS_OFTEN = "less often"
    PERHAPS_LESS_OFTEN = "perhaps less often"
    """Fewer pairs, but the intervals overlap: it may be chance."""
    AS_OFTEN = "as often"
    NEVER = "never"
    """There is no such pair, with FPA or without."""
    PERHAPS_MORE_OFTEN = "perhaps more often"
    MORE_OFTEN = "more often"
    NO_OTHER_MODEL = "no other model"
    NO_FPA = "no FPA"


@dataclass(frozen=True)
class Finding:
    """How often an evaluation contradicts itself, and what that means."""

    kind: str
    """The pairs counted: signed-unsigned, or all where there is none of these."""
    pairs: int
    """How many there are."""
    opposite: Mapping[str, Estimate]
    """By model: those in opposite order. Where two models are compared, these two, the one with FPA last."""
    meaning: Meaning
    still_mostly: bool = False
    """It is fewer with FPA, but over half of the pairs all the same."""


def finding(results: Results) -> Finding:
    """How often the evaluation contradicts itself, and what FPA changes about that.

    Counted are pairs of a signed and an unsigned estimator (all pairs, if there is no such pair) that the
    mean area under MIF ranks one way and the one under LIF the other: `Reliability.opposite`, with its 95 %
    interval from the tests of the pairs. In a study, the first model trained with FPA is compared with the
    first one trained without augmentation or, if there is none, with the first other one.
    """
    kind, pairs = pairs_counted(results)
    study = results.recipe is not None
    with_fpa = any(trained_with(results, name) == "fpa" for name in results.models)
    compared = summary.compared(results)
    opposite = {name: results.models[name].reliability.opposite[kind] for name in compared or results.models}
    still_mostly = False
    if results.not_above_chance:
        meaning = Meaning.NOTHING_TO_EXPLAIN
    elif compared:
        meaning = _effect(*opposite.values())
        before, after = opposite.values()
        still_mostly = after.value < before.value and after.value > pairs / 2
    elif study:
        meaning = Meaning.NO_OTHER_MODEL if with_fpa else Meaning.NO_FPA
    elif results.images_used < FEWEST_IMAGES:
        meaning = Meaning.TOO_FEW_IMAGES
    else:
        meaning = Meaning.CONTRADICTS if any(each.value for each in opposite.values()) else Meaning.AGREES
    return Finding(kind, pairs, opposite, meaning, still_mostly=still_mostly)


def _effect(before: Estimate, after: Estimate) -> Meaning:
    """What FPA changes: surely only where the intervals lie apart."""
    if after.value == before.value:
        return Meaning.AS_OFTEN if after.value else Meaning.NEVER
    if after.value < before.value:
        return Meaning.LESS_OFTEN if after.high < before.low else Meaning.PERHAPS_LESS_OFTEN
    return Meaning.MORE_OFTEN if after.low > before.high else Meaning.PERHAPS_MORE_OFTEN


_BY_CHANCE = "often here, but the intervals overlap: the difference may be chance"

EFFECTS = {
    Meaning.LESS_OFTEN: "FPA makes the evaluation contradict itself less often here",
    Meaning.PERHAPS_LESS_OFTEN: f"With FPA the evaluation contradicts itself less {_BY_CHANCE}",
    Meaning.AS_OFTEN: "FPA does not change how often the evaluation contradicts itself here",
    Meaning.NEVER: "The evaluation agrees with itself with and without FPA, which changes nothing about it",
    Meaning.PERHAPS_MORE_OFTEN: f"With FPA the evaluation contradicts itself more {_BY_CHANCE}",
    Meaning.MORE_OFTEN: "FPA makes the evaluation contradict itself more often here",
}
"""What is said where two models are compared."""

ALONE = {
    Meaning.AGREES: "The evaluation does not contradict itself here; fpa audit says how far to trust it.",
    Meaning.CONTRADICTS: (
        "On such a pair the evaluation contradicts itself: it tells more about how the model reacts to "
        "removed pixels than about the explanations; fpa audit says how far to trust it, and fpa finetune "
        "can make it trustworthy."
    ),
    Meaning.NO_OTHER_MODEL: "There is no other model to compare with, so what FPA changes is not known.",
    Meaning.NO_FPA: "No model was trained with FPA, so what it would change is not known.",
}
"""What is said where nothing is compared."""


def verdict(results: Results) -> str:
    """The `finding` in sentences: how many pairs are in opposite order, and what that means."""
    found = finding(results)
    accuracies = [f"{percent(results.models[name].accuracy)} {_phrase(name)}" for name in found.opposite]
    compared = f" Accuracy: {', '.join(accuracies)}." if found.meaning in EFFECTS else ""
    return f"{_counted(results, found)} {_meant(results, found)}{compared}"


def meaning(results: Results) -> str:
    """What the counts mean, in a sentence that stands on its own."""
    return _meant(results, finding(results))


def _counted(results: Results, found: Finding) -> str:
    """How many pairs are in opposite order."""
    if found.pairs == 0:
        return "There are no two explanations to compare."
    whose = "a signed and an unsigned estimator" if found.kind == "signed-unsigned" else "estimators"
    named = results.recipe is not None or len(results.models) > 1
    counts: list[str] = []
    for name, count in found.opposite.items():
        interval = f"{'' if counts else '95 % interval '}{count.low:.0f} to {count.high:.0f}"
        where = f" {_phrase(name)}" if named else ""
        counts.append(f"{count.value:.0f}{'' if counts else ' in opposite order'}{where} ({interval})")
    return f"Of the {found.pairs} pairs of {whose}, MIF and LIF rank {_listed(counts)}."


def _meant(results: Results, found: Finding) -> str:
    """What that means."""
    if found.meaning is Meaning.NOTHING_TO_EXPLAIN:
        weak = results.not_above_chance
        of = f" {_listed([_phrase(name) for name in weak])}" if results.recipe is not None else ""
        accuracies = ", ".join(percent(results.models[name].accuracy) for name in weak)
        return f"The model{of} is no better than chance ({accuracies}): there is nothing to explain."
    if found.meaning is Meaning.TOO_FEW_IMAGES:
        return too_few(results.images_used)
    if found.meaning in ALONE:
        return ALONE[found.meaning]
    still = ", though most pairs are still in opposite order" if found.still_mostly else ""
    return f"{EFFECTS[found.meaning]}{still}."


def _phrase(name: str) -> str:
    if name in ("rectangle", "fpa"):
        return f"with {model_name(name)}"
    return "without augmentation" if name == "none" else f"for {name}"


def _listed(phrases: list[str]) -> str:
    return " and ".join(part for part in (", ".join(phrases[:-1]), phrases[-1]) if part)
