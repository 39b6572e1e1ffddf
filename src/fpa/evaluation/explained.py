"""What is known of the maps of an evaluation before it begins."""

from dataclasses import replace

import torch

from fpa.data import ImageSource
from fpa.engine.engine import Engine
from fpa.evaluation.plan import Plan
from fpa.explanation import Task, maps_of


def looked_at(plan: Plan, engine: Engine, source: ImageSource) -> tuple[Plan, list[str]]:
    """The plan with a sign for every function among its estimators, and the names of those without negatives.

    A function does not say whether its maps can be negative, so those of the first images are looked at.
    """
    asked = {name: each for name, each in plan.estimators.items() if each.undecided}
    if not asked:
        return plan, []
    images = engine.images(source.first)
    targets, numbers = engine.explained(engine.predict(images)), range(len(images))
    how = {"seed": plan.seed, "masking": plan.masking, "output": plan.maps_of}
    with torch.random.fork_rng([engine.device] if engine.device.type == "cuda" else []):
        maps = maps_of(Task(engine, images, targets, numbers, **how), asked)  # type: ignore[arg-type]
    unsigned = [name for name, each in maps.items() if bool((each > 0).any()) and not bool((each < 0).any())]
    known = {
        name: replace(each, kind="unsigned" if name in unsigned else "signed") for name, each in asked.items()
    }
    return replace(plan, estimators={**plan.estimators, **known}), unsigned
