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
from fpa.errors import InputError, at_least, warn
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.own_code import warn_of_unseen
from fpa.evaluation.plan import Plan, make_plan
from fpa.evaluation.result import Result
from fpa.evaluation.shards import load_result
from fpa.explanation import Estimators, Settings
from fpa.masking import get_masking, masking_json
from fpa.models.hubs import class_names, normalisation_of
from fpa.models.wrap import check_head, classifier, input_channels, unwrapped
from fpa.notes import Kind, Note, Severity
from fpa.progress import Tell
from fpa.showing import clause
from fpa.values import checked


@checked
@torch.inference_mode(False)
def evaluate(
    model: nn.Module | Engine,
    data: Any,
    estimators: Estimators = "paper",
    *,
    masking: Any = None,
    points: int = 21,
    fractions: Sequence[float] | None = None,
    settings: Settings | None = None,
    features: str | int = "pixels",
    outputs: str | Sequence[str] = ("logit",),
    maps_of: str | None = None,
    scores: Any = ("A",),
    score_images: int = 100,
    targets: str | int = "predicted",
    normalisation: Normalisation | None = None,
    classes: Sequence[str] | None = None,
    class_index: Any = None,
    count: int | None = None,
    seed: int = 0,
    precision: Any = None,
    device: torch.device | str | None = None,
    judge: nn.Module | Engine | None = None,
    masks: Any = None,
    examples: int = 8,
    folder: str | Path | None = None,
    name: str | None = None,
    progress: "bool | Tell" = True,
) -> Result:
    """Which explanations describe this model? Explain, perturb and score all images.

    - `model`: any image classifier, or an `fpa.Engine`; it may be wrapped, compiled, in half precision
      or return an object with `.logits`, and is left exactly as it was.
    - `data`: a tensor, (images, labels), a loader, a data set, the name of a data set, ...; see
      `fpa.data.image_source`. Labels are the numbers of the model's outputs; without them only the accuracy
      is missing. Where the data have other classes than the model, their names or `class_index` decide.
    - `estimators`: a set ("paper"), names, or a mapping of names to callables, Captum objects, ...
    - `masking`, `points`, `fractions`, `features`, `outputs`, `maps_of`, `scores`, `score_images`, `targets`
      (which class is explained) and `precision`: see `fpa.make_plan`.
    - `normalisation`: how the model's images are normalised: needed for bytes and for images in 0..1, and
      for folders and published data sets by name unless the model says it (a model of fpa or timm, or one
      from `fpa.open_model`).
    - `classes`: their names, in the order of the logits.
    - `class_index`: which output of the model each class of the data stands for: a list [0, 217] or an array,
      a mapping of names to numbers, or a JSON file of one.
    - `count`: use only so many images: a random choice that is always the same, also in the commands. Of
      a stream, and of a loader that shuffles, the first ones.
    - `device`: where to work; by default where the model is.
    - `judge`: another model with the same classes, for example one fine-tuned with FPA: the maps and the
      explained classes are those of `model`, the curves and scores those of the judge.
    - `masks`: bool [N, H, W], the pixels of the objects, for scores that need them; shapes, and folders with
      boxes or segmentations, have their own.
    - `examples`: images kept with their maps for the report.
    - `folder`: where every block of images is stored as soon as it is done, so that the same call continues
      after a crash; by default nothing stays on the disk.

    >>> images = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> result = evaluate(net, images, ["ig_sum", "vg_abs"], points=5, progress=False)
    >>> sorted(result.fidelity), result.accuracy
    (['ig_sum', 'vg_abs'], None)
    """
    at_least("examples", examples, 0)
    plan = make_plan(
        estimators,
        settings=settings,
        masking=masking,
        points=points,
        fractions=fractions,
        features=features,
        outputs=outputs,
        maps_of=maps_of,
        scores=scores,
        score_images=score_images,
        targets=targets,
        seed=seed,
        precision=precision,
        normalisation=normalisation,
    )
    opening: dict[str, Any] = {"normalisation": normalisation, "count": count, "device": device}
    opening |= {"masks": masks, "class_index": class_index, "classes": classes}
    engine, source = open_subject(model, data, plan, stored=folder is not None, **opening)
    about = describe_subject(engine, source, name, classes)
    judging = None
    if judge is not None:
        where = None if isinstance(judge, Engine) else engine.device
        judging, _ = open_subject(judge, source, plan, device=where)
        about = replace(about, judge=judge_name(engine, judging, source))
    noted = notes(judging or engine, plan)
    about = with_notes(about, noted)
    for note in noted:
        warn(clause(note))
    with tempfile.TemporaryDirectory(prefix="fpa-") as temporary:
        place = Path(folder or temporary)
        how: dict[str, Any] = {"subject": about, "examples": examples, "judge": judging}
        evaluate_blocks(engine, source, plan, place, progress=progress, **how)
        return load_result(place)


def open_subject(
    model: nn.Module | Engine,
    data: Any,
    plan: Plan,
    *,
    normalisation: Normalisation | None = None,
    count: int | None = None,
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
        model = Engine(classifier(model, source.first, device), precision=plan.precision)
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
    return SubjectFacts(
        name=name or type(getattr(network, "model", network)).__name__,
        classes=_class_names(classes, engine, source),
        data=source.name,
        augmentation=augmentation,
        training=getattr(card, "recipe", {}).get(augmentation, {}),
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
