"""What results say, in two sentences that follow from the numbers."""

from fpa.auditing.rule import FEWEST_IMAGES
from fpa.errors import percent
from fpa.evaluation.result import Results
from fpa.show.names import model_name
from fpa.show.summary import pairs_counted, too_few, trained_with
from fpa.statistics.intervals import Estimate


def verdict(results: Results) -> str:
    """Two sentences: how often the evaluation contradicts itself, and what FPA changes about that.

    Counted are pairs of a signed and an unsigned estimator (all pairs, if there is no such pair) that the
    mean area under MIF ranks one way and the one under LIF the other: `Reliability.opposite`, with its 95 %
    interval from the tests of the pairs. In a study, the first model trained with FPA is compared with the
    first one trained without augmentation or, if there is none, with the first other one. The rules, all of
    them:

    - Fewer or more such pairs, and the intervals do not overlap: FPA makes it contradict itself less or more.
    - Fewer or more, but the intervals overlap: the same in weaker words, and that it may be chance.
    - As many: FPA changes nothing; if there are none at all, that the evaluation agreed without it.
    - Better, but over half of the pairs are still in opposite order with FPA: that too.
    - One model, or none with FPA: that its effect is not known.
    - Models trained elsewhere: what such pairs mean, and where to go from there; under 100 images, that these
      are too few.
    - A model whose accuracy is not above guessing by two standard errors: that it has not learned its task,
      so that there is nothing to explain; this takes the place of the second sentence.

    Where two models are compared, the accuracy of both ends the second sentence.
    """
    kind, pairs = pairs_counted(results)
    whose = "a signed and an unsigned estimator" if kind == "signed-unsigned" else "estimators"
    study = results.recipe is not None
    trainings = {name: trained_with(results, name) for name in results.models}
    with_fpa = _preferred(trainings, "fpa")
    others = (name for name, training in trainings.items() if training != "fpa")
    before = _preferred(trainings, "none") or next(others, "")
    compared = (before, with_fpa) if study and before and with_fpa else None

    counts: list[str] = []
    for name in compared or results.models:
        count = results.models[name].reliability.opposite[kind]
        interval = f"{'' if counts else '95 % interval '}{count.low:.0f} to {count.high:.0f}"
        where = f" {_phrase(name)}" if study or len(results.models) > 1 else ""
        counts.append(f"{count.value:.0f}{'' if counts else ' in opposite order'}{where} ({interval})")
    first = f"Of the {pairs} pairs of {whose}, MIF and LIF rank {_listed(counts)}."
    if pairs == 0:
        first = "There are no two explanations to compare."
    if weak := results.not_above_chance:
        models = f"the model {_listed([_phrase(name) for name in weak])}" if study else "the model"
        accuracies = ", ".join(percent(results.models[name].accuracy) for name in weak)
        return f"{first} But {models} is no better than chance ({accuracies}): there is nothing to explain."
    if not study and (used := results.images_used) < FEWEST_IMAGES:
        return f"{first} {too_few(used)}"
    if not study and not any(model.reliability.opposite[kind].value for model in results.models.values()):
        return f"{first} The evaluation does not contradict itself here; fpa audit says how far to trust it."
    if not study:
        return (
            f"{first} On such a pair the evaluation contradicts itself: it tells more about how the model "
            "reacts to removed pixels than about the explanations; fpa audit says how far to trust it, and "
            "fpa finetune can make it trustworthy."
        )
    if compared:
        without, with_it = (results.models[name].reliability.opposite[kind] for name in compared)
        each = [f"{percent(results.models[name].accuracy)} {_phrase(name)}" for name in compared]
        return f"{first} {_judgement(without, with_it, pairs)} (accuracy {', '.join(each)})."
    if with_fpa:
        return f"{first} There is no other model to compare with, so what FPA changes is not known."
    return f"{first} No model was trained with FPA, so what it would change is not known."


def _judgement(before: Estimate, after: Estimate, pairs: int) -> str:
    if after.value == before.value:
        if after.value == 0:
            return "The evaluation agrees with itself with and without FPA, which changes nothing here"
        return "FPA does not change how often the evaluation contradicts itself here"
    better = after.value < before.value
    apart = after.high < before.low if better else after.low > before.high
    if apart:
        sentence = f"FPA makes the evaluation contradict itself {'less' if better else 'more'} often here"
    else:
        sentence = f"With FPA the evaluation contradicts itself {'less' if better else 'more'} often here"
        sentence += ", but the intervals overlap: the difference may be chance"
    still = better and after.value > pairs / 2
    return f"{sentence}, though most pairs are still in opposite order" if still else sentence


def _preferred(trainings: dict[str, str], training: str) -> str:
    """The model trained so that has its name, else the first trained so; empty if there is none."""
    names = [name for name in trainings if trainings[name] == training]
    return training if training in names else next(iter(names), "")


def _phrase(name: str) -> str:
    if name in ("rectangle", "fpa"):
        return f"with {model_name(name)}"
    return "without augmentation" if name == "none" else f"for {name}"


def _listed(phrases: list[str]) -> str:
    return " and ".join(part for part in (", ".join(phrases[:-1]), phrases[-1]) if part)
