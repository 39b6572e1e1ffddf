"""From a model and images to maps.

An estimator is a *raw map* [N, C, H, W], optionally multiplied with the input (the paper's prime, an `x`
in the name), reduced over the channels: `sum` adds them, `abs` adds their absolute values. Estimators
computed together share their passes: all ten of the set "paper" cost ig_steps + sg_samples + 1 gradients
an image.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fpa.engine.tasks import Model, Targets, Task, make_task, problems
from fpa.errors import warn
from fpa.explanation.estimator import Estimator, Estimators, get_estimators
from fpa.explanation.raw_maps import RawMap, Settings, gradient_maps, own_task
from fpa.masking import MaskingLike
from fpa.showing import clause
from fpa.values import checked


@checked
@torch.inference_mode(False)
def explain(
    model: Model,
    images: Tensor,
    estimators: Estimators = "paper",
    *,
    targets: Targets = None,
    indices: Sequence[int] | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    masking: MaskingLike | None = None,
    output: str = "logit",
) -> dict[str, Tensor]:
    """A map [N, H, W] of every estimator for the images [N, C, H, W].

    `targets` [N] are the classes explained, by default those predicted; `indices` [N] number the images
    in their data set (by default 0, 1, ...): together with `seed` they fix all random numbers, so an
    image gets the same maps in whatever batch it comes. `output` is what is explained of a class: its
    "logit", "centred" logit, "margin", "log_odds" or "probability"; functions and precomputed maps explain
    what they do. A warning names maps that are not finite.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> maps = explain(model, torch.rand(4, 3, 2, 2), ["ig_sum", "vg_abs"])
    >>> maps["ig_sum"].shape
    torch.Size([4, 2, 2])
    """
    named = get_estimators(estimators, settings or Settings())
    task, _ = make_task(model, images, targets, masking=masking, seed=seed, indices=indices, output=output)
    if indices is None:  # the images are all that there are
        for name, estimator in named.items():
            estimator.raw.check_total(name, len(images))
    maps = maps_of(task, named)
    bad = {("map", name): ~values.isfinite().flatten(1).all(1) for name, values in maps.items()}
    for problem in problems(bad, task.indices):
        warn(clause(problem))
    return maps


def maps_of(task: Task, estimators: Mapping[str, Estimator]) -> dict[str, Tensor]:
    """The maps [N, H, W] of estimators from `get_estimators`; never waits for the device."""
    maps = {name: estimators[name].reduce(raw_map) for name, raw_map in _raw_maps(task, estimators)}
    return {name: maps[name] for name in estimators}


def raw_maps_of(task: Task, estimators: Mapping[str, Estimator]) -> dict[str, Tensor]:
    """The maps before the reduction, [N, C, H, W] or [N, 1, H, W]; `Estimator.reduce` reduces them."""
    raw_maps = dict(_raw_maps(task, estimators))
    return {name: raw_maps[name] for name in estimators}


def _raw_maps(task: Task, estimators: Mapping[str, Estimator]) -> Iterator[tuple[str, Tensor]]:
    """By name, and by raw map: estimators of equal raw maps come one after the other and share it."""
    by_raw_map: dict[RawMap, list[str]] = {}
    for name, estimator in estimators.items():
        estimator.raw.check(name, task.indices, task.images.shape[1:])
        # What is still open is filled in here too, so that "ig" and IG with 200 steps are one raw map.
        by_raw_map.setdefault(estimator.raw.configured(Settings()), []).append(name)
    shared = gradient_maps(task, by_raw_map)
    for raw_map, names in by_raw_map.items():
        # Handed over one at a time and forgotten: raw maps have three channels, reduced ones a single one.
        values = shared.pop(raw_map, None)
        if values is None:
            task.engine.watch(estimators[names[0]].label(names[0]).text)
            values = raw_map.raw_map(names[0], own_task(raw_map, task))
        for name in names:
            yield name, estimators[name].scaled(values, task.images)
