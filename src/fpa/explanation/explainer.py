"""Importance estimators: VG, IG, SG, SQ-SG, random and any other, as 2-D maps of the pixels' importance.

An estimator is a *raw map* [N, C, H, W], optionally multiplied with the input (the paper's prime, an `x`
in the name), reduced over the channels: `sum` adds them, `abs` adds their absolute values. Estimators
computed together share their passes: all ten of the set "paper" cost ig_steps + sg_samples + 1 gradients
an image. Other people's methods (Captum's by name, precomputed maps, Quantus' functions) are in
`fpa.methods`.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from fpa.engine.engine import Engine
from fpa.errors import InputError, unknown
from fpa.explanation.estimator import Estimator, Method, RawMap, Settings, Task, check_indices, in_parts, some
from fpa.explanation.gradients import _RANDOM, _gradient_maps
from fpa.masking import Constant, Masking
from fpa.models.wrap import untouched
from fpa.seeds import by_image
from fpa.show.names import estimator_name

PAPER = {
    "random": Estimator("random"),
    "ig_sum": Estimator("ig"),
    "ig_abs": Estimator("ig", "abs"),
    "vg_abs": Estimator("vg", "abs"),
    "vgx_sum": Estimator("vg", times_input=True),
    "vgx_abs": Estimator("vg", "abs", times_input=True),
    "sg_abs": Estimator("sg", "abs"),
    "sgx_sum": Estimator("sg", times_input=True),
    "sgx_abs": Estimator("sg", "abs", times_input=True),
    "sqsg_sum": Estimator("sqsg"),
}


SETS = {"paper": PAPER}


Estimators = str | Iterable[str] | Mapping[str, Estimator | RawMap | Any]


def get_estimators(estimators: Estimators = "paper") -> dict[str, Estimator]:
    """Estimators by name: a set, one name, several, or a mapping of names to estimators or callables.

    Besides the ten of the set "paper" every `vg`, `ig`, `sg`, `sqsg`, with an `x` for times input where
    it makes sense, can be had as `_sum` and as `_abs`. `captum:DeepLift` is a method of Captum's (also
    `captum:DeepLift_abs`, `captum:LayerGradCam@layer4`), `maps:FILE` or `maps:FILE#ARRAY` precomputed maps.

    >>> list(get_estimators(["vg_sum", "random"]))
    ['vg_sum', 'random']
    """
    if isinstance(estimators, str):
        estimators = SETS.get(estimators, [estimators])
    if isinstance(estimators, Mapping):
        named = {
            str(name): _by_name(given)
            if isinstance(given, str)
            else given
            if isinstance(given, Estimator)
            else Estimator(given)
            for name, given in estimators.items()
        }
    else:
        names = list(estimators)
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"estimators named twice: {', '.join(repeated)}")
        named = {name: _by_name(name) for name in names}
    if not named:
        raise InputError("no estimators were given")
    return named


def gradients_per_image(estimators: Estimators = "paper", settings: Settings | None = None) -> int:
    """Gradient passes an image costs, own passes of custom estimators not counted.

    >>> gradients_per_image("paper")
    216
    """
    settings = settings or Settings()
    needed = {
        estimator.raw for estimator in get_estimators(estimators).values() if isinstance(estimator.raw, str)
    }
    smooth = settings.sg_samples if needed & {"sg", "sqsg"} else 0
    return ("vg" in needed) + settings.ig_steps * ("ig" in needed) + smooth


@torch.inference_mode(False)
def explain(
    model: nn.Module | Engine,
    images: Tensor,
    estimators: Estimators = "paper",
    *,
    targets: Tensor | int | None = None,
    indices: Sequence[int] | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    masking: Masking | None = None,
) -> dict[str, Tensor]:
    """A map [N, H, W] of every estimator for the images [N, C, H, W].

    `targets` [N] are the classes explained, by default those predicted; `indices` [N] number the images
    in their data set (by default 0, 1, ...): together with `seed` they fix all random numbers, so an
    image gets the same maps in whatever batch it comes. A warning names maps that are not finite.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> maps = explain(model, torch.rand(4, 3, 2, 2), ["ig_sum", "vg_abs"])
    >>> maps["ig_sum"].shape
    torch.Size([4, 2, 2])
    """
    named, engine = get_estimators(estimators), Engine.of(model)
    images = engine.images(images)
    indices = check_indices(indices, len(images))
    classes = engine.explained(engine.predict(images), targets)
    maps = maps_of(
        engine, images, named, classes, indices, seed, settings or Settings(), masking or Constant()
    )
    for name, values in maps.items():
        bad = (~values.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        if bad:
            numbers = [indices[row] for row in bad]
            warnings.warn(f"estimator {name}: {some(numbers, 'map')} not finite", stacklevel=3)
    return maps


def maps_of(
    engine: Engine,
    images: Tensor,
    estimators: Mapping[str, Estimator],
    targets: Tensor,
    indices: Sequence[int],
    seed: int,
    settings: Settings,
    masking: Masking,
) -> dict[str, Tensor]:
    """`explain` for arguments already checked and on the device; never waits for the device."""
    task = Task(engine, images, targets, indices, seed, settings, masking)
    for name, estimator in estimators.items():
        if isinstance(estimator.raw, Method):
            estimator.raw.check(name, indices, images.shape[1:])
    needed = {estimator.raw for estimator in estimators.values() if isinstance(estimator.raw, str)}
    raws = _gradient_maps(engine, images, needed, targets, indices, seed, settings, masking)
    if "random" in needed:
        raws["random"] = by_image((1, *images.shape[2:]), seed, indices, _RANDOM, images.device, "uniform")
    maps = {}
    for name, estimator in estimators.items():
        if isinstance(estimator.raw, str):
            raw = raws[estimator.raw]
        else:
            engine.watch(estimator_name(name))
            if isinstance(estimator.raw, Method):
                raw = estimator.raw.raw_map(name, task)
            else:
                raw = _custom(engine, name, estimator, images, targets)
        maps[name] = estimator.reduce(raw, images)
    return maps


def _custom(engine: Engine, name: str, estimator: Estimator, images: Tensor, targets: Tensor) -> Tensor:
    """The raw map of a callable or a Captum object, which may do with the model what it likes."""
    attribute = getattr(estimator.raw, "attribute", None)
    raw_map: Any = estimator.raw

    def part(rows: Tensor, at: slice) -> Any:
        if attribute is not None:
            return attribute(rows.requires_grad_(), target=targets[at])
        return raw_map(engine.model, rows, targets[at])

    with ExitStack() as stack:
        for model in (engine.model, *_models_inside(raw_map)):
            stack.enter_context(untouched(model))
        return in_parts(engine, name, images, part)


def _models_inside(raw: Any) -> list[nn.Module]:
    """The models a Captum object holds; a NoiseTunnel holds another object."""
    inner = getattr(raw, "attribution_method", raw)
    forward = getattr(inner, "forward_func", None)
    return [forward] if isinstance(forward, nn.Module) else []


def _by_name(name: str) -> Estimator:
    if name in PAPER:
        return PAPER[name]
    if name.startswith(("captum:", "maps:")):
        from fpa.explanation.named import by_name

        return by_name(name)
    match = re.fullmatch(r"(vg|ig|sg|sqsg)(x?)_(sum|abs)", name)
    if match is None or match[1] + match[2] == "igx":
        raise unknown("estimator", name, (*PAPER, *SETS, "captum:METHOD", "maps:FILE"))
    return Estimator(match[1], "sum" if match[3] == "sum" else "abs", times_input=bool(match[2]))
