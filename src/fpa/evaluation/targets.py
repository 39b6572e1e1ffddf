"""Which classes an evaluation explains, and what is known of its maps before it begins."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.data import ImageSource
from fpa.engine.devices import sent
from fpa.engine.engine import Engine
from fpa.errors import InputError, unknown
from fpa.evaluation.plan import Plan
from fpa.evaluation.plan_values import Targets
from fpa.explanation import contributions, maps_of

_IMAGES_FOR_SIGNS = 4
"""Images whose maps tell the sign of a function, which may be slow."""


class Classes(NamedTuple):
    """What a model says of images, and the classes that matter to their evaluation, [N] each."""

    logits: Tensor
    """[N, classes]."""
    explained: Tensor
    predicted: Tensor
    true: Tensor
    """The labels; where one is unknown, the class predicted."""


def classes_of(engine: Engine, images: Tensor, labels: Tensor, plan: Plan, indices: Sequence[int]) -> Classes:
    """The classes of images with these labels, -1 where unknown; refuses labels that the model has not."""
    logits = engine.predict(images)
    predicted = engine.explained_classes(logits)
    # Labels are looked up with 0 for the unknown ones, so that nothing waits for the device to choose rows.
    labelled = engine.explained_classes(logits, labels.clamp(min=0), "labels")
    return Classes(
        logits=logits,
        explained=_chosen_classes(engine, logits, labels, plan.targets, indices),
        predicted=predicted,
        true=torch.where(sent(labels, labelled.device) >= 0, labelled, predicted),
    )


def _chosen_classes(
    engine: Engine, logits: Tensor, labels: Tensor, targets: Targets, indices: Sequence[int]
) -> Tensor:
    """The classes [N] that `targets` stands for; see `make_plan`."""
    if isinstance(targets, int):
        return engine.explained_classes(logits, targets)
    if isinstance(targets, tuple):
        without = next((index for index in indices if index >= len(targets)), None)
        if without is not None:
            rule = f"targets are {len(targets)}, one for each image of the data in its order"
            raise InputError(f"{rule}, but there is an image number {without} (the first has number 0)")
        return engine.explained_classes(logits, torch.tensor([targets[index] for index in indices]))
    if targets == "predicted":
        return engine.explained_classes(logits)
    if targets == "label":
        unknown = [index for index, label in zip(indices, labels.tolist(), strict=True) if label < 0]
        if unknown:
            raise InputError(f"the labels are to be explained, but image {unknown[0]} has none that is known")
        return engine.explained_classes(logits, labels, "labels")
    rank = int(targets.removeprefix("best:"))
    classes = logits.shape[1]
    if rank > classes:
        raise InputError(f"targets is {targets}, but the model has {classes} classes")
    return logits.topk(rank).indices[:, -1]


KINDS = ("predicted", "label")
"""Words that stand for a class of every image; best:2 and so on are others."""


def explaining(plan: Plan, classes: Sequence[str]) -> Plan:
    """The plan with the number of a class that was named; refuses a name that the model has not."""
    named = plan.targets
    if not isinstance(named, str) or named in KINDS or named.startswith("best:"):
        return plan
    places = [number for number, name in enumerate(classes) if name == named]
    if len(places) > 1:
        numbers = ", ".join(map(str, places))
        raise InputError(f"several classes of the model are called {named!r}: give the number, {numbers}")
    if not places:
        raise unknown("targets", named, [*KINDS, "best:2", *classes])
    return replace(plan, targets=places[0])


def with_signs(plan: Plan, engine: Engine, source: ImageSource) -> tuple[Plan, list[str]]:
    """The plan with a sign for every function among its estimators, and the names of the unsigned ones.

    A function does not say whether its maps can be negative, so those of the first images are looked at; nor
    whether they contain the input, where a score reads raw maps. Classes to be explained that the model, or
    the images, do not have are refused.
    """
    if plan.targets == "label" and not source.has_labels:
        raise InputError("the labels are to be explained, but none is known")
    undecided = {name: each for name, each in plan.estimators.items() if each.undecided}
    reads_raw_maps = any("raw maps" in score.needs for score in plan.scores)
    unclear = contributions.unclear(plan.estimators) if reads_raw_maps else {}
    if not undecided and not unclear and plan.targets in ("predicted", "label"):
        return plan, []
    images = engine.images(source.first[:_IMAGES_FOR_SIGNS])
    indices = range(len(images))
    # The labels of the first images are not known here, and maps of any class tell the sign.
    targets = "predicted" if plan.targets == "label" else plan.targets
    unlabelled = torch.full((len(images),), -1)
    classes = _chosen_classes(engine, engine.predict(images), unlabelled, targets, indices)
    # A function may draw random numbers: those of the evaluation itself must not depend on this look.
    with torch.random.fork_rng([engine.device] if engine.device.type == "cuda" else []):
        task = plan.task(engine, images, classes, indices)
        maps = maps_of(task, undecided)
        contain = contributions.contain_input(task, unclear) if unclear else {}
    unsigned = [name for name, values in maps.items() if _only_positive(values)]
    estimators = dict(plan.estimators)
    for name in undecided:
        estimators[name] = replace(estimators[name], kind="unsigned" if name in unsigned else "signed")
    for name, contains in contain.items():
        estimators[name] = replace(estimators[name], contains_input=contains)
    return replace(plan, estimators=estimators), unsigned


def _only_positive(maps: Tensor) -> bool:
    """Whether some value is positive and none negative; maps that are zero everywhere tell nothing."""
    return bool((maps > 0).any()) and not bool((maps < 0).any())
