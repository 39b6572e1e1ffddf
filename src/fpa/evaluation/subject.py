"""A model, its images and a plan, made ready: what a few images tell about the model is found out once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fpa.data.labels import labels_for, other_classes, read_class_index
from fpa.data.normalisation import Normalisation
from fpa.data.source import EvaluationSource, ImageSource, image_source
from fpa.data.splits import USUAL_SIDE, ImageData
from fpa.engine.arithmetic import Precision
from fpa.engine.engine import Engine
from fpa.errors import InputError, TooFewImagesError
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.options import EvaluateOptions, SubjectOptions
from fpa.evaluation.own_code import warn_of_unseen
from fpa.evaluation.plan import Plan
from fpa.evaluation.quick import IMAGES
from fpa.evaluation.targets import explaining
from fpa.masking import get_masking, masking_json
from fpa.models.hubs import Opened, class_names, image_side_of, normalisation_of
from fpa.models.saved import ModelCard
from fpa.models.tokens import TokenGrid
from fpa.models.wrap import check_head, classifier, input_channels, unwrapped
from fpa.notes import Kind, Note, Plain, Severity
from fpa.perturbation import features_of
from fpa.perturbation.dropping import share_given
from fpa.showing import clause

Given = TypeVar("Given", bound=SubjectOptions)

TRIED = 100
"""Images that tell, where two numberings of the classes are possible, by which the model is right."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model ready for many passes, with what its answer to a few images tells."""

    engine: Engine
    name: str
    classes: tuple[str, ...]
    """The names of its classes, in the order of the logits."""

    @property
    def outputs(self) -> int:
        """How many classes the model tells apart."""
        return len(self.classes)

    @property
    def card(self) -> ModelCard | None:
        """What a model of fpa says about itself."""
        return getattr(self.engine.model, "card", None)


@dataclass(frozen=True, eq=False)
class Case:
    """All that an evaluation needs: a model, its images, and the plan that is carried out on them."""

    subject: Subject
    source: ImageSource
    plan: Plan
    judge: Subject | None = None
    """The model whose curves are followed, where it is another than the one explained."""
    label_note: Note | None = None
    """What is not certain about the labels."""
    quick: bool | None = None
    """Whether it is a quick look; None where nobody could have asked for one."""

    @property
    def token_grid(self) -> TokenGrid | None:
        """Where the tokens of the images lie; None where the plan leaves none out."""
        return self.plan.token_grid((self.judge or self.subject).engine, self.source.first)

    @property
    def notes(self) -> list[Note]:
        """What a person must know before the work begins.

        A masking that the model was not trained with; that tokens are left out, and how many; what a quick
        look cannot decide.
        """
        return [*self._other_masking(), *self._tokens_left_out(), *self._quick_look()]

    def _quick_look(self) -> list[Note]:
        values: dict[str, Plain] = {
            "images": self.source.count,
            "gradients": self.plan.gradients,
            "points": len(self.plan.fractions),
            "protocols": 1 + len(self.plan.protocols),
        }
        return [Note(Kind.QUICK_LOOK, Severity.INFO, values)] if self.quick else []

    def _tokens_left_out(self) -> list[Note]:
        grid = self.token_grid
        if grid is None or not self.plan.masking.selects:
            return []
        parts = features_of(self.plan.features, self.source.first)
        values: dict[str, Plain] = {
            "patch": grid.patch,
            "share": share_given(grid, parts, self.plan.fractions),
            "class_token": grid.fewest == 0,
        }
        return [Note(Kind.TOKENS_LEFT_OUT, Severity.INFO, values)]

    def _other_masking(self) -> list[Note]:
        card = (self.judge or self.subject).card
        known = None if card is None else card.recipe.get("masking")
        if card is None or card.augmentation == "none" or known is None:
            return []
        trained: dict[str, Any] = dict(known) if isinstance(known, Mapping) else {"name": known}
        if ":" not in str(trained["name"]):  # one of somebody's own is not imported because a file names it
            trained = masking_json(get_masking(known, card.mean, card.std))
        evaluated = masking_json(self.plan.masking)
        if trained == evaluated:
            return []
        return [Note(Kind.OTHER_MASKING, Severity.WARNING, {"trained": trained, "evaluated": evaluated})]

    def facts(self, command: str | None = None) -> SubjectFacts:
        """What evaluation.json says of the model and its images."""
        card = self.subject.card
        augmentation = "" if card is None else card.augmentation
        training = {} if card is None else card.recipe.get(augmentation, {})
        return SubjectFacts(
            name=self.subject.name,
            classes=self.subject.classes,
            data=self.source.name,
            augmentation=augmentation,
            training=training if isinstance(training, Mapping) else None,
            judge=None if self.judge is None else self.judge.name,
            notes=tuple(map(clause, self.notes)),
            note_facts=tuple(self.notes),
            command=command,
        )


def opened(model: nn.Module | Engine | Opened, options: Given) -> tuple[nn.Module | Engine, Given]:
    """A model, and the options with what `open_model` knows of it where they say nothing else."""
    if not isinstance(model, Opened):
        return model, options
    known = replace(options, name=options.name or model.name)
    if isinstance(known, EvaluateOptions) and known.classes is None:
        known.classes = model.classes
    return model.model, known


def prepare(
    model: nn.Module | Engine,
    data: Any,
    plan: Plan,
    options: SubjectOptions,
    *,
    normalisation: Normalisation | None = None,
    classes: Sequence[str] | None = None,
    masks: Any = None,
    judge: nn.Module | Engine | Opened | None = None,
    judge_name: str | None = None,
    workers: int = 0,
) -> Case:
    """Make a model and its images ready; refuses what the plan cannot be carried out on.

    `classes` are the names of the model's outputs; `workers` processes decode the files of a data set. The
    other keywords are options of `evaluate`.
    """
    network = model.model if isinstance(model, Engine) else model
    if normalisation is None and isinstance(data, str | Path | ImageData):
        normalisation = normalisation_of(network)
    opening = partial(
        image_source,
        data,
        normalisation=normalisation,
        channels=input_channels(network),
        workers=workers,
        masks=masks,
        size=image_side_of(network) or USUAL_SIDE,
    )
    try:
        source = opening(count=IMAGES if options.quick and options.count is None else options.count)
    except TooFewImagesError:
        if options.count is not None:
            raise
        source = opening()  # a quick look takes as many as there are
    if options.folder is not None and source.drawn:
        remedy = "use shuffle=False, without a sampler"
        raise InputError(f"the loader shuffles, so a stored evaluation could not be continued: {remedy}")
    subject = open_subject(model, source, options, precision=plan.precision, classes=classes)
    plan = explaining(plan, subject.classes)
    note = None
    if options.class_index is not None or not isinstance(data, ImageSource):
        note = _assign_labels(source, subject, classes, options.class_index)
    judging = None
    if isinstance(judge, Opened):
        judge_name = judge_name or judge.name
        judge = judge.model
    if judge is not None:
        place = None if isinstance(judge, Engine) else subject.engine.device
        size = None if isinstance(judge, Engine) else options.batch_size
        asked = replace(options, name=judge_name, device=place, batch_size=size)
        judging = open_subject(judge, source, asked, precision=plan.precision)
        _check_judge(judging, subject)
    if options.folder is not None:
        warn_of_unseen(plan.stored(subject.engine, None if judging is None else judging.engine))
    for name, estimator in plan.estimators.items():
        estimator.raw.check_model(name, subject.engine, source.first)
    case = Case(subject, source, plan, judging, note, quick=options.quick)
    grid = case.token_grid
    if grid is not None:  # before a folder is made; other features are looked at when the work begins
        plan.suiting(source.first, grid).check_features(source.first, grid)
    return case


def open_subject(
    model: nn.Module | Engine,
    source: ImageSource,
    options: SubjectOptions,
    *,
    precision: Precision | None = None,
    classes: Sequence[str] | None = None,
) -> Subject:
    """The model made ready for many passes; one that cannot take these images is refused."""
    if not isinstance(model, Engine):
        network = classifier(model, source.first, options.device)
        engine = Engine(network, precision=precision, batch_size=options.batch_size)
    else:
        engine = model
        _check_engine(engine, options, precision)
    outputs = check_head(engine.predict, source.first).shape[1]
    network = unwrapped(engine.model)
    return Subject(
        engine,
        name=options.name or type(getattr(network, "model", network)).__name__,
        classes=_class_names(classes, engine, source, outputs),
    )


def _check_engine(engine: Engine, options: SubjectOptions, precision: Precision | None) -> None:
    """Refuse options that an engine has settled already."""
    if options.batch_size is not None:
        raise InputError("the engine has a batch size of its own: leave out batch_size, or make another")
    if options.device is not None and torch.empty(0, device=options.device).device != engine.device:
        place = options.device
        raise InputError(f"the engine is on {engine.device}: make one on {place} or leave out device")
    if precision not in (None, engine.precision):
        raise InputError(f"the engine works in {engine.precision}: leave out precision, or make another")


def _class_names(
    classes: Sequence[str] | None, engine: Engine, source: ImageSource, outputs: int
) -> tuple[str, ...]:
    """The names given; else those the model or the data set has, if there are as many as outputs."""
    if classes is not None and len(classes) != outputs:
        raise InputError(f"the model has {outputs} outputs, but {len(classes)} classes are named")
    numbered = [f"class {number}" for number in range(outputs)]
    known = (classes or (), class_names(engine.model), source.classes or (), numbered)
    return tuple(str(name) for name in next(names for names in known if len(names) == outputs))


def _assign_labels(
    source: ImageSource, subject: Subject, classes: Sequence[str] | None, class_index: Any
) -> Note | None:
    """Turn the labels of the data into the model's outputs; what is not certain about it.

    Those of a data set are numbers of its classes, which are found among the model's. Those of somebody's own
    loader or tensor are outputs of the model already, unless there are more or fewer classes than outputs.
    """
    known = source.classes
    if class_index is not None and not known and not isinstance(class_index, str | Path):
        known = [str(number) for number in range(len(read_class_index(class_index)))]
    outputs = subject.outputs
    are_outputs = not known or len(known) == outputs or source.own_labels
    if class_index is None and are_outputs and not isinstance(source, EvaluationSource):
        return None
    named = list(classes or class_names(subject.engine.model))
    right = _right_among_few(subject.engine, source)
    numbers, note = labels_for(known or [], outputs, named, class_index, right=right)
    source.relabel([-1] * len(known or []) if numbers is None else numbers)
    return note


def _right_among_few(engine: Engine, source: ImageSource) -> Callable[[list[int]], int]:
    """How many of a few images are classified correctly if the classes of the data are these outputs.

    The model is asked once, and only where somebody wants to know it.
    """

    @cache
    def answers() -> tuple[Tensor, Tensor]:
        count = source.count or 0
        places = set(torch.linspace(0, count - 1, min(count, TRIED)).long().tolist())
        blocks = list(source.blocks(1, places.__contains__))
        predicted = engine.predict(torch.cat([block.images for block in blocks])).argmax(1)
        return predicted.cpu(), torch.cat([block.labels for block in blocks])

    def right(numbers: list[int]) -> int:
        if not source.indexed:
            return 0
        predicted, labels = answers()
        return int((predicted == torch.tensor(numbers)[labels]).sum())

    return right


def _check_judge(judge: Subject, subject: Subject) -> None:
    """Refuse a judge of other classes or other images."""
    refused = f"{judge.name} cannot judge this model:"
    facts: dict[str, tuple[Any, Any]] = {"outputs": (judge.outputs, subject.outputs)}
    theirs = judge.card
    ours = subject.card
    if theirs is not None and ours is not None:
        facts["images"] = (list(theirs.input_shape), list(ours.input_shape))
        facts["means"] = (list(theirs.mean), list(ours.mean))
        facts["standard deviations"] = (list(theirs.std), list(ours.std))
    for fact, (judges, models) in facts.items():
        if judges != models:
            raise InputError(f"{refused} its {fact} differ: {judges}, not {models}")
    if theirs is not None and ours is not None and (differ := other_classes(theirs.classes, ours.classes)):
        raise InputError(f"{refused} {differ}")
