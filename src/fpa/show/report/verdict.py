"""What a study found, in two sentences that follow from its numbers."""

from fpa.show.names import augmentation_name
from fpa.show.tables import FEWEST, percent
from fpa.statistics.contradictions import Reliability
from fpa.statistics.intervals import Estimate
from fpa.study.results import ModelResult, Study


def verdict(study: Study) -> str:
    """Two sentences: how often the evaluation contradicts itself, and what FPA changes about that.

    Counted are pairs of a signed and an unsigned estimator (all pairs, if the study has no such pair) that
    the mean area under MIF orders one way and the one under LIF the other: `Reliability.opposite`, with its
    95 % bootstrap interval over images. The model trained with FPA is compared with the one trained without
    augmentation or, if there is none, with the first other one. The rules, all of them:

    - Fewer or more such pairs, and the two intervals do not overlap: FPA makes it more, or less, consistent.
    - Fewer or more, but the intervals overlap: the same in weaker words, and that it may be chance.
    - As many: FPA changes nothing; if there are none at all, that the evaluation was consistent without it.
    - Better, but over half of the pairs are still ordered oppositely with FPA: that too.
    - One model, or none with FPA: that its effect is not known.
    - A model trained elsewhere: what such pairs mean, and where to go from there; under 100 images, that
      these are too few.
    - A model whose accuracy is not above guessing by two standard errors: that it has not learned its
      task, so that there is nothing to explain; this takes the place of the second sentence.

    Where two models are compared, the accuracy of both ends the second sentence.
    """
    kind, pairs = pairs_counted(next(iter(study.models.values())).reliability)
    whose = "a signed and an unsigned estimator" if kind == "signed-unsigned" else "estimators"
    with_fpa = study.models.get("fpa")
    others = [model for name, model in study.models.items() if name != "fpa"]
    before = study.models.get("none") or next(iter(others), None)
    compared = (before, with_fpa) if before and with_fpa else None

    counts: list[str] = []
    for model in compared or study.models.values():
        count = model.reliability.opposite[kind]
        interval = f"{'' if counts else '95 % interval '}{count.low:.0f} to {count.high:.0f}"
        trained = f" {_trained(model)}" if study.recipe else ""
        counts.append(f"{count.value:.0f} ({interval}){trained}")
    first = f"Of the {pairs} pairs of {whose}, MIF and LIF order oppositely {_listed(counts)}."
    if pairs == 0:
        first = "There are no two explanations to compare."
    if study.not_above_chance:
        weak = _listed([_trained(study.models[name]) for name in study.not_above_chance])
        accuracies = ", ".join(percent(study.models[name].accuracy) for name in study.not_above_chance)
        found = f"does not classify better than chance ({accuracies})"
        whom = f"the model {weak}" if study.recipe else "the model"
        return f"{first} But {whom} {found}: there is nothing to explain."
    if study.recipe is None:
        if study.images_used < FEWEST:
            return f"{first} {study.images_used} images are too few to conclude from: take {FEWEST} or more."
        return (
            f"{first} About such a pair the test contradicts itself: it says more about how the model takes "
            "removed pixels than about the explanations; fpa audit judges that, fpa finetune can mend it."
        )
    if compared:
        without, with_it = (model.reliability.opposite[kind] for model in compared)
        judgement = _judgement(without, with_it, pairs)
        accuracies = ", ".join(f"{percent(model.accuracy)} {_trained(model)}" for model in compared)
        return f"{first} {judgement} (accuracy {accuracies})."
    if with_fpa:
        return f"{first} There is no other model to compare with, so what FPA changes is not known."
    return f"{first} No model was trained with FPA, so what it would change is not known."


def pairs_counted(reliability: Reliability) -> tuple[str, int]:
    """The kind of pairs that the verdict counts, and how many there are."""
    for kind in ("signed-unsigned", "all"):
        pairs = sum(kind in (pair.kind, "all") for pair in reliability.pairs)
        if pairs:
            break
    return kind, pairs


def _judgement(before: Estimate, after: Estimate, pairs: int) -> str:
    if after.value == before.value:
        if after.value == 0:
            return "The evaluation is consistent with and without FPA, which changes nothing here"
        return "FPA changes nothing about how often the evaluation contradicts itself here"
    better = after.value < before.value
    apart = after.high < before.low if better else after.low > before.high
    if apart:
        said = f"FPA makes the evaluation {'more' if better else 'less'} consistent with itself here"
    else:
        said = f"With FPA the evaluation contradicts itself {'less' if better else 'more'} often here"
        said += ", but the intervals overlap: the difference may be chance"
    still = better and after.value > pairs / 2
    return f"{said}, though most pairs are still ordered oppositely" if still else said


def _trained(model: ModelResult) -> str:
    name = model.augmentation
    return "without augmentation" if name == "none" else f"with {augmentation_name(name)}"


def _listed(phrases: list[str]) -> str:
    return " and ".join(part for part in (", ".join(phrases[:-1]), phrases[-1]) if part)
