"""What a fine-tuning is made of, before it begins: the images, the model to start from, and the job."""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.data.sets import check_normalised, tuning_data
from fpa.data.splits import USUAL_SIDE, ImageData
from fpa.engine.devices import check_device, chosen_device
from fpa.engine.engine import Engine
from fpa.engine.estimate import LIMIT, Estimate
from fpa.errors import MOST_WORKERS, InputError, at_least, unknown
from fpa.masking import MaskingLike, code_of, get_masking, masking_code, masking_json
from fpa.models.hubs import Opened, image_side_of, normalisation_of
from fpa.models.saved import ModelCard, fingerprint
from fpa.models.wrap import input_channels, tried_classifier, unwrapped
from fpa.training.augment import FPA, Cell
from fpa.training.batches import LoaderBatches
from fpa.training.estimate import estimate_training
from fpa.training.perturbations import Perturbation, check_fits, perturbation_of, with_masking
from fpa.training.run import Job
from fpa.training.settings import FPASettings, TrainingSettings, check_rate
from fpa.training.tokens import DropTokens
from fpa.training.tuning_images import ClassIndex, DataSetImages, LoaderImages, TuningImages, Variation
from fpa.training.twins import network_distance

Targets = Literal["auto", "labels", "model"]

RATES = {"labels": 0.01, "model": 0.0003}
"""The largest learning rate by what the model learns: of SGD for labels, of AdamW for its own predictions."""

STEPS = 7800
MOST_EPOCHS = 60
"""So many steps are taken where nobody says how many epochs, but no more epochs than this."""


@dataclass(frozen=True, eq=False)
class TuningChoices:
    """Keywords of `finetune` that decide what is trained."""

    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int = 64
    fpa: FPA | Cell | DropTokens | FPASettings | Mapping[str, Any] | None = None
    masking: MaskingLike | None = None
    targets: Targets = "auto"
    class_index: ClassIndex | None = None
    normalisation: Any = None
    crop: bool = True
    flip: bool = True
    clean: float = 0.0
    way: float = 1.0
    seed: int = 0
    device: str | None = None
    folder: Path | str | None = None
    data_root: Path | str = "data"
    workers: int = 8


@dataclass(frozen=True)
class Nearness:
    """What keeps a twin near its original, beside its teacher."""

    clean: float = 0.0
    """The share of the loss that the images without masks have."""
    way: float = 1.0
    """How much of the way from the weights of the original to those that were learned the twin goes."""

    def __post_init__(self) -> None:
        if not 0 <= self.clean < 1:
            raise InputError(f"clean must be a share in [0, 1): at 1 nothing is masked; got {self.clean}")
        if not 0 < self.way <= 1:
            raise InputError(f"way must be a share in (0, 1]: at 0 nothing changes; got {self.way}")

    def changed(self) -> dict[str, float]:
        """What is not the default: trainings that were begun before there was a choice go on."""
        usual = asdict(Nearness())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass(frozen=True, eq=False)
class Tuning:
    """A fine-tuning that can begin."""

    job: Job
    images: TuningImages
    start: "Start"
    index: list[int] | None
    """The model's class for each class of the images; None where it learns its own predictions."""
    choices: TuningChoices
    code: Any
    """The user's own code of the masking, if there is any."""

    def learned_from(self) -> ImageData | LoaderBatches:
        """What is trained on; a model that teaches itself is asked about the test images first."""
        if self.index is not None:
            return self.images.labelled(self.index, self.start.names)
        device = chosen_device(self.choices.device)
        return self.images.taught(self.start.network, self.start.names, device, self.choices.workers)

    def estimate(self, seconds: float = LIMIT) -> Estimate:
        """What it takes."""
        if self.index is None:
            data = self.images.untaught(self.start.names)
        else:
            data = self.images.labelled(self.index, self.start.names)
        device = chosen_device(self.choices.device)
        stage = estimate_training(
            [self.job],
            data,
            device=self.choices.device,
            workers=self.choices.workers,
            # The teacher is asked before the training, and weights part of the way are tested after it.
            further_tests=int(self.index is None) + int(self.job.way < 1),
            seconds=seconds,
        )
        return Estimate((stage,), device)


def prepare_tuning(model: nn.Module | Engine | Opened, data: Any, choices: TuningChoices) -> Tuning:
    """All that can be refused is refused here, and nothing is trained or written yet."""
    _check_choices(choices)
    nearness = Nearness(choices.clean, choices.way)
    model = model.model if isinstance(model, Engine | Opened) else model
    original = unwrapped(model)
    if choices.folder is not None:
        _check_has_card(original)
    images = _opened(
        data,
        original,
        batch_size=choices.batch_size,
        normalisation=as_normalisation(choices.normalisation),
        seed=choices.seed,
        device=chosen_device(choices.device),
        root=choices.data_root,
        workers=choices.workers,
        variation=Variation(choices.crop, choices.flip),
    )
    start = _start_of(original, images.first)
    index = _learned_classes(choices.targets, choices.class_index, images, start)
    settings = _settings(images, index is None, choices.epochs, choices.learning_rate)
    augment = perturbation_of(with_masking(choices.fpa, choices.masking), images, index is None)
    code = masking_code(augment.masking)
    check_fits(augment, start.network, images)
    job = _job(
        start,
        images,
        settings,
        augment,
        nearness,
        code=code,
        seed=choices.seed,
        index=index,
        folder=choices.folder,
    )
    return Tuning(
        job=job,
        images=images,
        start=start,
        index=index,
        choices=choices,
        code=code_of(augment.masking),
    )


def _check_choices(choices: TuningChoices) -> None:
    """Refuse what cannot be, before anything is opened, by the names that the arguments have here."""
    check_device(choices.device)
    if choices.targets not in get_args(Targets):
        raise unknown("targets", choices.targets, get_args(Targets))
    at_least("epochs", choices.epochs, 1)
    at_least("batch_size", choices.batch_size, 1)
    at_least("workers", choices.workers, 0, MOST_WORKERS)
    check_rate("learning_rate", choices.learning_rate)


def _check_has_card(original: nn.Module) -> None:
    """Refuse to write a file for a model that nobody could load from it."""
    if getattr(original, "card", None) is None:
        name = type(original).__name__
        rule = f"a model file can only be written for a model that fpa can rebuild, not for a {name}"
        raise InputError(f"{rule}: leave out folder and save the returned model")


def _opened(
    data: Any,
    original: nn.Module,
    *,
    batch_size: int,
    normalisation: Normalisation | None,
    seed: int,
    device: str,
    root: Path | str,
    workers: int,
    variation: Variation,
) -> TuningImages:
    """The images, opened once, normalised as the model takes them."""
    card: ModelCard | None = getattr(original, "card", None)
    # The batches of a loader are normalised by whoever wrote it: without a card, nothing is assumed of them.
    if normalisation is None and (card is not None or isinstance(data, str | ImageData)):
        normalisation = normalisation_of(original)
    if isinstance(data, str):
        if normalisation is None:
            check_normalised(data)
        data = tuning_data(data, root, size=image_side_of(original) or USUAL_SIDE)
    if isinstance(data, ImageData):
        data = data if normalisation is None else replace(data, normalisation=normalisation)
        return DataSetImages(data, batch_size, root=str(root), workers=workers, variation=variation)
    channels = input_channels(original)
    return LoaderImages(
        data, batch_size, normalisation, channels, seed=seed, device=device, variation=variation
    )


@dataclass(frozen=True, eq=False)
class Start:
    """The model that the training begins with."""

    tuned: nn.Module
    """A copy of the original in float32, with weights that can be trained."""
    network: nn.Module
    """The same module, or one around it that returns its logits alone."""
    outputs: int
    card: ModelCard | None

    @property
    def architecture(self) -> str:
        """What the model is called."""
        return type(self.tuned).__name__ if self.card is None else self.card.architecture

    @property
    def names(self) -> list[str]:
        """Of the outputs: their numbers, where the model does not say."""
        return [str(number) for number in range(self.outputs)] if self.card is None else self.card.classes


def _start_of(original: nn.Module, images: Tensor) -> Start:
    """A copy of the model to train, tried once on an image."""
    tuned = copy.deepcopy(original).float()
    parameters = list(tuned.parameters())
    if not parameters:
        raise InputError("the model has no weights to fine-tune")
    if not any(parameter.requires_grad for parameter in parameters):
        tuned.requires_grad_(True)  # all are frozen, as in models for inference
    # The network shares its weights with the copy: the training, and the file, may know either by its names.
    network, outputs = tried_classifier(tuned, images)
    return Start(tuned, network, outputs, card=getattr(original, "card", None))


def _learned_classes(
    targets: Targets, class_index: ClassIndex | None, images: TuningImages, start: Start
) -> list[int] | None:
    """The model's class for each class of the images; None where it learns its own predictions."""
    if targets == "model" or (targets == "auto" and class_index is None):
        return None
    if class_index is not None:
        return images.indexed(class_index, start.outputs)
    return images.matched(start.outputs, None if start.card is None else start.names)


def _settings(
    images: TuningImages, own_predictions: bool, epochs: int | None, learning_rate: float | None
) -> TrainingSettings:
    """The optimisation; without a number of epochs, small sets are seen more often."""
    enough = min(MOST_EPOCHS, math.ceil(STEPS / max(images.steps, 1)))
    usual_rate = RATES["model" if own_predictions else "labels"]
    return TrainingSettings(
        epochs=enough if epochs is None else epochs,
        batch_size=images.batch_size,
        learning_rate=usual_rate if learning_rate is None else learning_rate,
        weight_decay=0.0,
        schedule="warm-cosine",
        compile=images.equal_batches,
    )


def _job(
    start: Start,
    images: TuningImages,
    settings: TrainingSettings,
    augment: Perturbation,
    nearness: Nearness,
    *,
    code: dict[str, Any] | None,
    seed: int,
    index: list[int] | None,
    folder: Path | str | None,
) -> Job:
    """The training, as the trainer takes it."""
    kind = "cell" if isinstance(augment, Cell) else "fpa"
    if folder is not None:
        get_masking(masking_json(augment.masking))  # who reads the file must be able to make it again
    return Job(
        kind,
        settings,
        seed,
        model=images.copies(start.network),
        description=_description(
            start, images.origin, settings, augment, nearness, code=code, seed=seed, index=index
        ),
        augment=augment,
        teacher=start.network if index is None else None,
        clean=nearness.clean,
        way=nearness.way,
        compared=partial(
            network_distance, start.network, images=images.some, learned_from=images.some_learned
        ),
        folder=None if folder is None else Path(folder),
        card=None if start.card is None else replace(start.card, augmentation=kind, variant=""),
    )


def _description(
    start: Start,
    origin: dict[str, Any],
    settings: TrainingSettings,
    augment: Perturbation,
    nearness: Nearness,
    *,
    code: dict[str, Any] | None,
    seed: int,
    index: list[int] | None,
) -> dict[str, Any]:
    """All that determines the weights, as plain values: the recipe in the model file."""
    kind = "cell" if isinstance(augment, Cell) else "fpa"
    named = ["p", "grid"] if kind == "cell" else [item.name for item in fields(FPASettings)]
    if isinstance(augment, DropTokens):
        named = ["p", "p1_max"]
    description = {
        "name": "finetune",
        "model": start.architecture,
        "masking": masking_json(augment.masking),
        "seed": seed,
        "data": origin,
        "training": asdict(settings),
        "augmentation": kind,
        kind: {name: getattr(augment, name) for name in named},
        "start": fingerprint(start.tuned),
        "targets": "model" if index is None else "labels",
        "optimizer": "adamw" if index is None else "sgd",
        "class_index": None if index == list(range(start.outputs)) else index,
        **nearness.changed(),
        **({} if code is None else {"code": {"masking": code}}),
    }
    # As it will be read from the file, so that a description made again compares equal to it.
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return plain
