"""The training that a fine-tuning is: what it starts from, its settings, what determines its weights."""

import copy
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fpa.errors import InputError
from fpa.masking import get_masking, masking_code, masking_json
from fpa.models.saved import ModelCard, fingerprint
from fpa.models.wrap import tried_classifier
from fpa.training.augment import Cell
from fpa.training.perturbations import Perturbation
from fpa.training.run import Job
from fpa.training.settings import FPASettings, TrainingSettings
from fpa.training.tokens import DropTokens
from fpa.training.tuning_images import TuningImages
from fpa.training.twins import network_distance

RATES = {"labels": 0.01, "model": 0.0003}
"""The largest learning rate by what the model learns: of SGD for labels, of AdamW for its own predictions."""

STEPS = 7800
MOST_EPOCHS = 60
"""So many steps are taken where nobody says how many epochs, but no more epochs than this."""


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


def start_of(original: nn.Module, images: Tensor) -> Start:
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


def tuning_settings(
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


def tuning_job(
    start: Start,
    images: TuningImages,
    settings: TrainingSettings,
    augment: Perturbation,
    nearness: Nearness,
    *,
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
        description=_description(start, images.origin, settings, augment, nearness, seed=seed, index=index),
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
    seed: int,
    index: list[int] | None,
) -> dict[str, Any]:
    """All that determines the weights, as plain values: the recipe in the model file."""
    kind = "cell" if isinstance(augment, Cell) else "fpa"
    code = masking_code(augment.masking)
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
