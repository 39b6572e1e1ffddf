"""What tables, figures and reports share: groups of estimators, counts, titles, sentences on all models."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fpa.auditing.rule import FEWEST_IMAGES
from fpa.errors import counted
from fpa.evaluation.rankings import is_binary
from fpa.evaluation.result import Result, Results
from fpa.evaluation.stored_plan import GIVEN, ScoreFacts
from fpa.notes import Kind
from fpa.show import words
from fpa.statistics import Counts

TRUTH = "Made from the truth"
"""The title of maps that no estimator gives."""


def groups(*several: Results) -> dict[str, list[str]]:
    """The estimators by the titles below, without empty groups."""
    signs = dict.fromkeys(
        (name, TRUTH if facts.knows_truth else facts.sign)
        for each in several
        for name in each.estimators
        if (facts := each.first.description.plan.estimators[name])
    )
    titles = {"Baseline": "baseline", "Signed": "signed", "Unsigned": "unsigned", "Blurred twin": "twin"}
    titles[TRUTH] = TRUTH
    grouped = {title: [name for name, sign in signs if sign == kind] for title, kind in titles.items()}
    return {title: names for title, names in grouped.items() if names}


def measured(model: Result, score: str, *, compared: bool = False) -> dict[str, tuple[float, float]]:
    """The mean of a score, which may be "A", and half its interval, by estimator.

    Where models are `compared`, scores that have a unit are divided by it.
    """
    if score == "A":
        return {name: (fidelity.area, fidelity.interval) for name, fidelity in model.fidelity.items()}
    summaries = model.comparable(score) if compared else model.scores[score]
    return {name: (each.mean, each.interval) for name, each in summaries.items()}


def over_unit(several: Sequence[Results], score: str) -> str:
    """What a score is divided by where models are compared, in words.

    Empty where it is not: it needs no unit, a single model is shown, or one was stored without it.
    """
    having = [results for results in several if score in results.score_titles]
    models = [model for results in having for model in results.models.values()]
    if len(models) < 2 or not all(score in model.evaluation.units for model in models):
        return ""
    return f" over {having[0].score_titles[score].unit}"


def ends_of_shares(model: Result, score: str) -> dict[str, str]:
    """By estimator the ends of Wilson's interval, of a score that is 0 or 1; nothing of others."""
    if not is_binary(model, score):
        return {}
    known = {name: each for name, each in model.scores[score].items() if each.used}
    return {name: f"{each.low:.2f} to {each.high:.2f}" for name, each in known.items()}


def without_value(results: Results, names: Mapping[str, str]) -> list[str]:
    """Scores that are missing and why, and those that have no value for some estimators or images.

    `names` are those of the estimators that people see.
    """
    lines: dict[str, None] = {}  # each once, in this order
    lost: dict[str, int] = {}
    for model in results.models.values():
        for score, reason in (model.description.scores_left_out or {}).items():
            lines[f"The score {score} {reason}."] = None
        for score, by in model.scores.items():
            if score not in results.score_titles:
                continue
            if none := [names.get(name, name) for name, each in by.items() if not each.used]:
                lines[f"{score} has no value for {', '.join(none)}."] = None
            asked_for = model.asked_for(score)
            if not asked_for.all():
                count = counted(int(asked_for.sum()))
                lines[f"{score} is computed for {count}, evenly over the data."] = None
            lacking = [
                int((model.fidelity[name].kept & asked_for).sum()) - each.used
                for name, each in by.items()
                if each.used
            ]
            if most := max(lacking, default=0):
                lost[score] = max(most, lost.get(score, 0))
    for most in sorted(set(lost.values())):
        scores = [score for score, count in lost.items() if count == most]
        have, they = ("has", "it leaves") if len(scores) == 1 else ("have", "they leave")
        images = "1 image" if most == 1 else f"{most} images"
        lines[f"{', '.join(scores)} {have} no value for up to {images}, which {they} out."] = None
    return list(lines)


def direction(score: ScoreFacts) -> str:
    """Which way a score is good."""
    return "higher is better" if score.higher_is_better else "lower is better"


def opposite_pairs(results: Results) -> dict[str, Counts]:
    """For every model, how often MIF and LIF contradict each other over signed-unsigned pairs."""
    return {name: model.reliability.counts("signed-unsigned") for name, model in results.models.items()}


def of_pairs(counts: Counts) -> str:
    """How many pairs are in opposite order, and in brackets how many of them surely.

    >>> of_pairs(Counts(pairs=18, opposite=4, significant=1))
    '4 of 18 (1)'
    """
    return f"{counts.opposite} of {counts.pairs} ({counts.significant})"


def pairs_counted(results: Results) -> tuple[str, int]:
    """The kind of pairs that a verdict counts, and how many there are: all where none is signed-unsigned."""
    mixed = results.first.reliability.counts("signed-unsigned").pairs
    return ("signed-unsigned", mixed) if mixed else ("all", len(results.first.reliability.pairs))


def removed_unit(results: Results) -> str:
    """What is removed: "pixels", "patches" or "segments"."""
    features = str(results.first.description.plan.features)
    in_patches = features.isdecimal() or "/" in features
    return "patches" if in_patches else features.partition(":")[0]


def removed(results: Results) -> list[str]:
    """What is removed, in a sentence, where it is not single pixels."""
    features = str(results.first.description.plan.features)
    unit = removed_unit(results)
    if unit == "segments":
        what = f"about {features.partition(':')[2]} segments (SLIC superpixels) of each image"
        return [f"The features removed are not single pixels but {what}; small ones have far fewer."]
    if unit != "patches":
        return []
    size = f"{features} x {features} pixels" if features.isdecimal() else f"{features} of the image's side"
    return [f"Patches of {size} are removed, not single pixels."]


def warned(results: Results) -> list[str]:
    """What was said about the models before they were evaluated, in sentences."""
    sentences = [words.sentence(note) for model in results.models.values() for note in model.noted]
    return [*dict.fromkeys(sentences)]


def explained_class(results: Results) -> list[str]:
    """Which class is explained, in a sentence, where it is not the one predicted."""
    targets = results.first.description.plan.targets
    if targets == "predicted":
        return []
    what = f"number {str(targets)[5:]} in the model's ranking"
    if targets == "label":
        what = "its label"
    elif str(targets).startswith(GIVEN):
        what = "the one given for it"
    elif isinstance(targets, int):
        what = f"class {targets}, {results.first.classes[targets]}"
    return [f"The class explained of every image is {what}, not the one predicted."]


def too_few(used: int) -> str:
    """What so few images allow, in a sentence."""
    are = "is" if used == 1 else "are"
    return f"{counted(used)} {are} too few for conclusions: use {FEWEST_IMAGES} or more."


def up_to(results: Results) -> str:
    """Over which part of the image areas are taken, in words; empty where that is all of it."""
    last = float(results.first.evaluation.fractions[-1])
    return "" if last == 1 else f" over the first {100 * last:.3g} % of the {removed_unit(results)}"


def output_in_words(results: Results) -> str:
    """What is scored, as people say it.

    The centred logit is the one that audits judge.
    """
    name = output_name(results)
    return {"centred": "centred logit", "log_odds": "log-odds"}.get(name, name)


def output_name(results: Results) -> str:
    """What the curves show of the model: "logit", "probability", ..."""
    return results.first.description.plan.output


def trained_with(results: Results, name: str) -> str:
    """The augmentation of a model in the words of its card; a variant that says nothing is its own name."""
    return results.models[name].augmentation or (name if results.recipe is not None else "")


def compared(results: Results) -> tuple[str, str] | tuple[()]:
    """The two models of a study that show what FPA changes: without and with it; empty where there are none.

    That is the first model trained with FPA, and the first one trained without augmentation or, if there is
    none, the first other one.
    """
    trainings = {name: trained_with(results, name) for name in results.models}
    with_fpa = _preferred(trainings, "fpa")
    others = (name for name, training in trainings.items() if training != "fpa")
    before = _preferred(trainings, "none") or next(others, "")
    return (before, with_fpa) if results.recipe is not None and before and with_fpa else ()


def _preferred(trainings: Mapping[str, str], training: str) -> str:
    """The model trained so that has its name, else the first trained so; empty if there is none."""
    names = [name for name in trainings if trainings[name] == training]
    return training if training in names else next(iter(names), "")


def by_training(results: Results) -> dict[str, str]:
    """The names of the models by what a comparison matches them by.

    That is the variant of a study; for a model evaluated alone what it was trained with, "" if not known.
    """
    alone = results.recipe is None and len(results.models) == 1
    return {model.augmentation if alone else name: name for name, model in results.models.items()}


def references(results: Results) -> list[str]:
    """Where integrated gradients start, a sentence for each place."""
    plan = results.first.description.plan
    raws = [each.raw for each in plan.estimators.values() if each.kind == "ig"]
    starts = [raw.get("reference") for raw in raws if raw is not None]
    word = (results.recipe or {}).get("evaluation", {}).get("reference")
    shown = dict.fromkeys(word or in_words(start) for start in starts)
    unfilled = plan.masking.get("name") in ("road", "drop")  # there is no fully masked image
    places = {"masked": "the fully masked image; the paper uses black", "black": "black, as in the paper"}
    places |= {"masked": "0"} if unfilled else {}
    return [f"Integrated gradients start from {places.get(start, start)}." for start in shown]


def in_words(setting: Any) -> str:
    """A setting of a plan on one line.

    >>> in_words({"name": "fpa.masking:Blur", "sigma": 4.0}), in_words({"steps": 200}), in_words([0, 0.5])
    ('blur (sigma 4.0)', 'steps 200', '0, 0.5')
    """
    if isinstance(setting, Mapping):
        parameters = ", ".join(f"{key} {in_words(value)}" for key, value in setting.items() if key != "name")
        name = str(setting.get("name", "")).removeprefix("fpa.masking:").lower()
        return f"{name} ({parameters})" if name and parameters else name or parameters
    return ", ".join(map(str, setting)) if isinstance(setting, list | tuple) else str(setting)


def titles(several: Sequence[Results]) -> list[list[str]]:
    """What tells each from the others: its name, its seed where names repeat, then its folder too."""
    parts = [[results.name] for results in several]
    seeds = [f"seed {results.first.description.plan.seed}" for results in several]
    folders = [f"({results.folder})" if results.folder else "" for results in several]
    for more in (seeds, folders):
        repeated = [part if parts.count(title) > 1 else "" for title, part in zip(parts, more, strict=True)]
        parts = [[*title, part] if part else title for title, part in zip(parts, repeated, strict=True)]
    return parts


_ROUNDING = 5e-7
"""Half of an interval below this is 0 but for rounding, as that of the truth of the truth itself."""


def with_interval(mean: float, interval: float, digits: int | None = None) -> tuple[str, str]:
    """A score and half its interval in `digits`, else in those that mean something: two of the interval's.

    A score that is not known is a dash, an interval that is not known is empty.

    >>> with_interval(0.0398, 0.00031), with_interval(12.34, float("nan")), with_interval(-0.00001, 0.2)
    (('0.03980', '0.00031'), ('12.3', ''), ('0.00', '0.20'))
    """
    if math.isnan(mean):
        return "–", ""
    if interval < _ROUNDING:
        interval = 0.0
    if digits is None and not (math.isfinite(interval) and interval > 0):
        return f"{mean:.3g}", "" if math.isnan(interval) else f"{interval:.2g}"
    if digits is None:
        digits = min(max(1 - math.floor(math.log10(interval)), 0), 6)
    half = "" if math.isnan(interval) else f"{interval:.{digits}f}"
    # Adding 0.0 turns a rounded -0.0 into 0.0: a score that is not negative must not look so.
    return f"{round(mean, digits) + 0.0:.{digits}f}", half


def doubts(results: Results, *, brief: bool = False) -> list[str]:
    """What the accuracies of the models and the offsets of their heads make doubtful, in words.

    In `brief`, heads are named in one line, without their numbers.
    """
    several = len(results.models) > 1
    texts: list[str] = []
    offset: list[str] = []
    for name, model in results.models.items():
        of = f"{name}: " if several else ""
        for note in model.facts:
            if brief and note.kind is Kind.OFFSET_MATTERS:
                offset.append(name)
            else:
                texts.append(of + words.clause(note))
    if offset:
        of = f"{', '.join(offset)}: " if several else ""
        short = "A depends on a number added to all logits, which changes no prediction"
        texts.append(f"{of}{short}: use the output centred")
    return texts


def judges(results: Results) -> list[str]:
    """Whose curves are shown, where it is another model than the one explained."""
    named = {name: model.description.subject.judge for name, model in results.models.items()}
    return [
        f"The maps and the accuracy are of {name}, the curves of {judge}."
        for name, judge in named.items()
        if judge
    ]
