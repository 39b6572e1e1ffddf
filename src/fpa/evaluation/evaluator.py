"""From a model and images to an answer: `evaluate`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fpa.data.labels import labels_for, other_classes, read_class_index
from fpa.data.normalisation import Normalisation
from fpa.data.source import ImageSource, image_source
from fpa.data.splits import ImageData
from fpa.engine.engine import Engine
from fpa.errors import InputError, warn
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.keywords import with_options
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.options import EvaluateOptions
from fpa.evaluation.own_code import warn_of_unseen
from fpa.evaluation.plan import Plan, plan_of
from fpa.evaluation.result import Result
from fpa.evaluation.shards import load_result
from fpa.masking import get_masking, masking_json
from fpa.models.hubs import class_names, normalisation_of
from fpa.models.wrap import check_head, classifier, input_channels, unwrapped
from fpa.notes import Kind, Note, Severity
from fpa.showing import clause
from fpa.values import checked


@with_options(EvaluateOptions)
@checked
@torch.inference_mode(False)
def evaluate(model: nn.Module | Engine, data: Any, options: EvaluateOptions) -> Result:
    """Which explanations describe this model? Explain, perturb and score all images.

    Args:
        model: Any image classifier, or an `fpa.Engine`; it may be wrapped, compiled, in half precision or
            return an object with `.logits`, and is left exactly as it was.
        data: A tensor, (images, labels), a loader, a data set, the name of a data set, ...; see
            `fpa.image_source`. Labels are the numbers of the model's outputs; without them only the accuracy
            is missing. Where the data have other classes than the model, their names or `class_index` decide.
        options: Each is a keyword.

    >>> images = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> result = evaluate(net, images, ["ig_sum", "vg_abs"], points=5, progress=False)
    >>> sorted(result.fidelity), result.accuracy
    (['ig_sum', 'vg_abs'], None)

    """
    plan = plan_of(options)
    engine, source = open_subject(
        model,
        data,
        plan,
        normalisation=options.normalisation,
        count=options.count,
        batch_size=options.batch_size,
        device=options.device,
        masks=options.masks,
        class_index=options.class_index,
        classes=options.classes,
        stored=options.folder is not None,
    )
    about = describe_subject(engine, source, options.name, options.classes)
    judging = None
    if options.judge is not None:
        where = None if isinstance(options.judge, Engine) else engine.device
        judging, _ = open_subject(options.judge, source, plan, device=where)
        about = replace(about, judge=judge_name(engine, judging, source))
    noted = notes(judging or engine, plan)
    for note in noted:
        warn(clause(note))
    with tempfile.TemporaryDirectory(prefix="fpa-") as temporary:
        place = Path(options.folder or temporary)
        evaluate_blocks(
            engine,
            source,
            plan,
            place,
            subject=with_notes(about, noted),
            examples=options.examples,
            judge=judging,
            progress=options.progress,
        )
        return load_result(place)


def open_subject(
    model: nn.Module | Engine,
    data: Any,
    plan: Plan,
    *,
    normalisation: Normalisation | None = None,
    count: int | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    masks: Any = None,
    class_index: Any = None,
    classes: Sequence[str] | None = None,
    stored: bool = False,
) -> tuple[Engine, ImageSource]:
    """The model made ready for many passes, and the images; refuses what the plan cannot be carried out on.

    Where the evaluation is to be `stored`, a loader that shuffles is refused, and code that cannot be
    compared with that of a later run is named.
    """
    inner = model.model if isinstance(model, Engine) else model
    if normalisation is None and isinstance(data, str | Path | ImageData):
        normalisation = normalisation_of(inner)
    reading: dict[str, Any] = {"normalisation": normalisation, "count": count, "masks": masks}
    source = image_source(data, channels=input_channels(inner), **reading)
    if stored and source.drawn:
        remedy = "use shuffle=False, without a sampler"
        raise InputError(f"the loader shuffles, so a stored evaluation could not be continued: {remedy}")
    if not isinstance(model, Engine):
        network = classifier(model, source.first, device)
        model = Engine(network, precision=plan.precision, batch_size=batch_size)
    elif batch_size is not None:
        raise InputError("the engine has a batch size of its own: leave out batch_size, or make another")
    elif device is not None and torch.empty(0, device=device).device != model.device:
        raise InputError(f"the engine is on {model.device}: make one on {device} or leave out device")
    elif plan.precision not in (None, model.precision):
        raise InputError(f"the engine works in {model.precision}: leave out precision, or make another")
    if stored:
        warn_of_unseen(plan.stored(model))
    check_head(model.predict, source.first)
    if class_index is not None or not isinstance(data, ImageSource):
        _assign_labels(source, model, classes, class_index)
    return model, source


def _assign_labels(
    source: ImageSource, engine: Engine, classes: Sequence[str] | None, class_index: Any
) -> None:
    """Turn labels into the model's outputs where the data have other classes than the model, or as told."""
    outputs, known = engine.predict(source.first[:1]).shape[1], source.classes
    if class_index is not None and not known and not isinstance(class_index, str | Path):
        known = [str(number) for number in range(len(read_class_index(class_index)))]
    if class_index is None and (not known or len(known) == outputs or source.own_labels):
        return
    named = list(classes or class_names(engine.model))
    numbers, note = labels_for(known or [], outputs, named, class_index)
    source.relabel([-1] * len(known or []) if numbers is None else numbers)
    if note is not None:
        warn(clause(note))


def describe_subject(
    engine: Engine, source: ImageSource, name: str | None = None, classes: Sequence[str] | None = None
) -> SubjectFacts:
    """What evaluation.json says of a model and its images; a model without a name is called by its class."""
    card = getattr(engine.model, "card", None)
    network = unwrapped(engine.model)
    augmentation = getattr(card, "augmentation", "")
    training = getattr(card, "recipe", {}).get(augmentation, {})
    return SubjectFacts(
        name=name or type(getattr(network, "model", network)).__name__,
        classes=_class_names(classes, engine, source),
        data=source.name,
        augmentation=augmentation,
        training=training if isinstance(training, Mapping) else None,
    )


def notes(engine: Engine, plan: Plan) -> list[Note]:
    """What a person must know before the work begins: a masking that the model was not trained with."""
    card = getattr(engine.model, "card", None)
    known = getattr(card, "recipe", {}).get("masking")
    if card is None or card.augmentation == "none" or known is None:
        return []
    trained: dict[str, Any] = dict(known) if isinstance(known, Mapping) else {"name": known}
    if ":" not in str(trained["name"]):  # one of somebody's own is not imported because a file names it
        trained = masking_json(get_masking(known, card.mean, card.std))
    evaluated = masking_json(plan.masking)
    if trained == evaluated:
        return []
    return [Note(Kind.OTHER_MASKING, Severity.WARNING, {"trained": trained, "evaluated": evaluated})]


def with_notes(subject: SubjectFacts, notes: Sequence[Note]) -> SubjectFacts:
    """The subject with what a person was told of it: in words, and as facts for `Result.noted`."""
    return replace(subject, notes=tuple(map(clause, notes)), note_facts=tuple(notes))


_WORDS = {"input_shape": "images", "mean": "means", "std": "standard deviations"}


def judge_name(engine: Engine, judge: Engine, source: ImageSource, name: str | None = None) -> str:
    """What a judge is called, or the error that says why it cannot judge this model."""
    judged = name or describe_subject(judge, source).name
    theirs, ours = (each.predict(source.first[:1]).shape[1] for each in (judge, engine))
    facts: dict[str, tuple[Any, Any]] = {"outputs": (theirs, ours)}
    cards: list[Any] = [getattr(each.model, "card", None) for each in (judge, engine)]
    if None not in cards:
        for fact in _WORDS:
            first, second = (getattr(card, fact) for card in cards)
            facts[_WORDS[fact]] = (list(first), list(second))
    refused = f"{judged} cannot judge this model:"
    for fact, (judges, models) in facts.items():
        if judges != models:
            raise InputError(f"{refused} its {fact} differ: {judges}, not {models}")
    if None not in cards and (differ := other_classes(*(card.classes for card in cards))):
        raise InputError(f"{refused} {differ}")
    return judged


def _class_names(classes: Sequence[str] | None, engine: Engine, source: ImageSource) -> tuple[str, ...]:
    """The names given; else those the model or the data set has, if there are as many as outputs."""
    outputs = engine.predict(source.first[:1]).shape[1]
    if classes is not None and len(classes) != outputs:
        raise InputError(f"the model has {outputs} outputs, but {len(classes)} classes are named")
    numbered = [f"class {number}" for number in range(outputs)]
    known = (classes or (), class_names(engine.model), source.classes or (), numbered)
    return tuple(str(name) for name in next(names for names in known if len(names) == outputs))
