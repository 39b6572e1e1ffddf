"""Which classes an evaluation explains, and what is known of its maps before it begins."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fpa.data import ImageSource
from fpa.engine.devices import sent
from fpa.engine.engine import Engine
from fpa.errors import InputError
from fpa.evaluation.plan import Plan
from fpa.explanation import maps_of

_LOOKED_AT = 4
"""Images whose maps tell the sign of a function, which may be slow."""


def answered(
    engine: Engine, images: Tensor, labels: Tensor, plan: Plan, indices: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logits, then classes [N]: those explained, predicted and true; an unknown one is the predicted."""
    logits = engine.predict(images)
    predicted = engine.explained_classes(logits)
    known = engine.explained_classes(logits, labels.clamp(min=0), "labels")
    truth = torch.where(sent(labels, known.device) >= 0, known, predicted)
    return logits, _explained(engine, logits, labels, plan.targets, indices), predicted, truth


def _explained(
    engine: Engine, logits: Tensor, labels: Tensor, targets: str | int, indices: Sequence[int]
) -> Tensor:
    if isinstance(targets, int):
        return engine.explained_classes(logits, targets)
    if targets == "predicted":
        return engine.explained_classes(logits)
    if targets == "label":
        if without := [number for number, label in zip(indices, labels.tolist(), strict=True) if label < 0]:
            raise InputError(f"the labels are to be explained, but image {without[0]} has none that is known")
        return engine.explained_classes(logits, labels, "labels")
    rank, count = int(targets.partition(":")[2]), logits.shape[1]
    if rank > count:
        raise InputError(f"targets is {targets}, but the model has {count} classes")
    return logits.topk(rank).indices[:, -1]


def looked_at(plan: Plan, engine: Engine, source: ImageSource) -> tuple[Plan, list[str]]:
    """The plan with a sign for every function among its estimators, and the names of those without negatives.

    A function does not say whether its maps can be negative, so those of the first images are looked at.
    Classes to be explained that the model, or the images, do not have are refused.
    """
    if plan.targets == "label" and not source.has_labels:
        raise InputError("the labels are to be explained, but none is known")
    asked = {name: each for name, each in plan.estimators.items() if each.undecided}
    if not asked and plan.targets in ("predicted", "label"):
        return plan, []
    images = engine.images(source.first[:_LOOKED_AT])
    numbers = range(len(images))
    logits, unknown = engine.predict(images), torch.full((len(images),), -1)
    targets = "predicted" if plan.targets == "label" else plan.targets
    classes = _explained(engine, logits, unknown, targets, numbers)
    with torch.random.fork_rng([engine.device] if engine.device.type == "cuda" else []):
        maps = maps_of(plan.task(engine, images, classes, numbers), asked)
    unsigned = [name for name, each in maps.items() if bool((each > 0).any()) and not bool((each < 0).any())]
    known = {name: replace(each, kind="signed") for name, each in asked.items()}
    known |= {name: replace(asked[name], kind="unsigned") for name in unsigned}
    return replace(plan, estimators={**plan.estimators, **known}), unsigned
