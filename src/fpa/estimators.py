"""Importance estimators: VG, IG, SG, SQ-SG, random and any other, as 2-D maps of the pixels' importance.

An estimator is a *raw map* [N, C, H, W], optionally multiplied with the input (the paper's prime, an `x`
in the name), reduced over the channels: `sum` adds them, `abs` adds their absolute values. Estimators
computed together share their passes: all ten of the set "paper" cost ig_steps + sg_samples + 1 gradients
an image. Other people's methods (Captum's by name, precomputed maps, Quantus' functions) are in
`fpa.methods`.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fpa.engine import Engine, Work, untouched
from fpa.errors import InputError, unknown
from fpa.masking import Constant, Masking, fully_masked, noise_by_image
from fpa.names import estimator_name
from fpa.seeds import by_image

Reduction = Literal["sum", "abs"]
RawMap = Callable[[nn.Module, Tensor, Tensor], Tensor]

_NOISE, _RANDOM = 1, 2  # streams of random numbers


@dataclass(frozen=True)
class Task:
    """All that a map may depend on; images [N, C, H, W] and targets [N] are on the engine's device."""

    engine: Engine
    images: Tensor
    targets: Tensor
    indices: Sequence[int]
    seed: int
    settings: "Settings"
    masking: Masking


class Method:
    """Base of the raw maps that need more than model, images and targets; see `fpa.methods`."""

    needs_numbers: ClassVar[bool] = False
    """Whether the maps depend on the numbers of the images in their data set."""

    @property
    def nonnegative(self) -> bool:
        """Whether it is known that no value is negative."""
        return False

    def described(self) -> Any:
        """JSON that differs where the maps would."""
        raise NotImplementedError

    def check(self, name: str, indices: Sequence[int], shape: Sequence[int] | None = None) -> None:
        """Refuse, before any work, images [C, H, W] of these numbers that estimator `name` cannot explain."""

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, C, H, W] or [N, 1, H, W] for the images of the task."""
        raise NotImplementedError


def needs_numbers(estimators: "Mapping[str, Estimator]") -> bool:
    """Whether the maps of any of them depend on the numbers of the images in their data set."""
    return any(isinstance(one.raw, Method) and one.raw.needs_numbers for one in estimators.values())


@dataclass(frozen=True)
class Estimator:
    """A raw map and its way to two dimensions.

    `raw` is "vg", "ig", "sg", "sqsg" or "random", a callable `(model, images, targets) -> [N, C, H, W]`
    (or already [N, H, W]), a Captum attribution object, precomputed maps (an array, a tensor, a path),
    or a Quantus-style function; see `fpa.methods` for the last two.

    >>> Estimator("vg", "sum", times_input=True).signed, Estimator("vg", "abs").signed
    (True, False)
    """

    raw: str | RawMap | Any
    reduction: Reduction = "sum"
    times_input: bool = False
    kind: Literal["signed", "unsigned"] | None = field(default=None, compare=False)
    """Overrules `signed`; the maps are the same."""

    def __post_init__(self) -> None:
        if not isinstance(self.raw, str):
            object.__setattr__(self, "raw", _adopted(self.raw))
        if self.kind not in (None, "signed", "unsigned"):
            raise unknown("kind of estimator", str(self.kind), ("signed", "unsigned"))
        if self.reduction not in ("sum", "abs"):
            raise unknown("reduction", str(self.reduction), ("sum", "abs"))
        if isinstance(self.raw, str) and self.raw not in RAW_MAPS:
            raise unknown("raw map", self.raw, RAW_MAPS)
        accepted = isinstance(self.raw, (str, Method)) or callable(self.raw) or hasattr(self.raw, "attribute")
        if not accepted:
            raise InputError(
                "an estimator must be a name, a callable (model, images, targets) -> [N, C, H, W], an array "
                f"of maps or a Captum attribution object, got {type(self.raw).__name__}"
            )

    @property
    def signed(self) -> bool:
        """Whether negative scores, evidence against the class, can occur."""
        if self.kind is not None:
            return self.kind == "signed"
        if self.reduction == "abs" or self.raw == "random":
            return False
        nonnegative = self.raw == "sqsg" or (isinstance(self.raw, Method) and self.raw.nonnegative)
        return self.times_input or not nonnegative

    def reduce(self, raw: Tensor, images: Tensor) -> Tensor:
        """The map [N, H, W] of a raw map [N, C, H, W] for these images."""
        if self.times_input:
            raw = raw * images
        return (raw.abs() if self.reduction == "abs" else raw).sum(1)


RAW_MAPS = ("vg", "ig", "sg", "sqsg", "random")

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


@dataclass(frozen=True)
class Settings:
    """The numbers of the estimators.

    >>> Settings(ig_steps=50)
    Settings(ig_steps=50, sg_samples=15, sigma=0.15, reference='masked')
    """

    ig_steps: int = 200
    """m, the steps of the right Riemann sum of integrated gradients."""
    sg_samples: int = 15
    """n, the noisy copies of SmoothGrad and of its squared variant."""
    sigma: float = 0.15
    """Standard deviation of their noise, as a share of each image's range max - min."""
    reference: Any = "masked"
    """Where integrated gradients start: "masked" (the fully masked image), "black" (-1, for images scaled to
    [-1, 1]; otherwise the masking `fpa.masking.black(mean, std)`), a number, one number a channel, a tensor
    that broadcasts to the images, or a masking."""

    def __post_init__(self) -> None:
        for name in ("ig_steps", "sg_samples"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 0 <= self.sigma < float("inf"):
            raise InputError(f"sigma must be a finite number of at least 0, got {self.sigma}")
        if isinstance(self.reference, str) and self.reference not in ("masked", "black"):
            raise unknown("reference", self.reference, ("masked", "black"))


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


def _gradient_maps(
    engine: Engine,
    images: Tensor,
    needed: set[str],
    targets: Tensor,
    indices: Sequence[int],
    seed: int,
    settings: Settings,
    masking: Masking,
) -> dict[str, Tensor]:
    """The raw maps that are made of gradients, all from one list of rows."""
    count, device = len(images), images.device
    raws: dict[str, Tensor] = {}
    works: list[Work] = []

    def add(
        name: str,
        per_image: int,
        rows: Callable[[int, int, Tensor], Tensor],
        take: Callable[[int, int, Tensor], None],
    ) -> None:
        """`per_image` rows for each image, one image after the other."""

        def build(start: int, stop: int) -> Tensor:
            return rows(start, stop, torch.arange(start, stop, device=device) // per_image)

        def classes(start: int, stop: int) -> Tensor:
            return targets.index_select(0, torch.arange(start, stop, device=device) // per_image)

        works.append(Work(count * per_image, build, take, classes, lambda start: name))

    if "ig" in needed:
        steps, total = settings.ig_steps, torch.zeros_like(images)
        away = images - reference_images(settings.reference, images, masking, seed, indices)

        def interpolated(start: int, stop: int, image: Tensor) -> Tensor:
            step = torch.arange(start, stop, device=device) - image * steps + 1
            back = (step.to(images.dtype) / steps - 1)[:, None, None, None]
            return images.index_select(0, image).addcmul_(back, away.index_select(0, image))

        add("IG", steps, interpolated, lambda a, b, gradients: _add_by_image(total, steps, a, b, gradients))
        raws["ig"] = total
    if "vg" in needed:
        plain = raws["vg"] = torch.empty_like(images)

        def keep(start: int, stop: int, gradients: Tensor) -> None:
            plain[start:stop] = gradients

        add("VG", 1, lambda start, stop, _: images[start:stop], keep)
    if needed & {"sg", "sqsg"}:
        samples, mean, square = settings.sg_samples, torch.zeros_like(images), torch.zeros_like(images)
        noise = by_image((samples, *images.shape[1:]), seed, indices, _NOISE, device)
        spread = settings.sigma * (
            images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
        )

        noise = noise.flatten(0, 1)

        def noisy(start: int, stop: int, image: Tensor) -> Tensor:
            own = noise[start:stop].to(images.dtype)
            return images.index_select(0, image).addcmul_(spread.index_select(0, image), own)

        def take(start: int, stop: int, gradients: Tensor) -> None:
            _add_by_image(mean, samples, start, stop, gradients)
            if "sqsg" in needed:
                _add_by_image(square, samples, start, stop, gradients.square())

        add("SG", samples, noisy, take)
        raws["sg"], raws["sqsg"] = mean, square
    engine.gradients(works)
    if "ig" in needed:
        total.mul_(away).div_(steps)
    if needed & {"sg", "sqsg"}:
        mean.div_(samples)
        square.div_(samples)
    return raws


def _add_by_image(total: Tensor, per_image: int, start: int, stop: int, rows: Tensor) -> None:
    """Add each of the rows start:stop to its image's total: a first part, whole images, a last part."""
    at = start
    while at < stop:
        image, past = divmod(at, per_image)
        whole = 0 if past else (stop - at) // per_image
        count = whole * per_image or min(per_image - past, stop - at)
        images = max(whole, 1)
        part = torch.unflatten(rows[at - start : at - start + count], 0, (images, count // images))
        total[image : image + images] += part.sum(1, dtype=total.dtype)
        at += count


def reference_images(
    reference: Any, images: Tensor, masking: Masking, seed: int, indices: Sequence[int]
) -> Tensor:
    """Where the path of integrated gradients starts, [N, C, H, W]; see `Settings.reference`."""
    if isinstance(reference, str) and reference == "black":
        low, high = images.nan_to_num().aminmax()
        if low < -1.01 or high > 1.01:
            raise InputError(
                'reference "black" means -1 and needs images scaled to [-1, 1]; these reach from '
                f"{float(low):.3g} to {float(high):.3g}: give reference=fpa.masking.black(mean, std) instead"
            )
        reference = -1.0
    if isinstance(reference, str):
        reference = masking
    if callable(reference):
        return fully_masked(reference, images, noise_by_image(reference, images, seed, indices))
    values = torch.as_tensor(reference, dtype=images.dtype, device=images.device)
    if values.ndim == 1:
        values = values[:, None, None]
    try:
        return values.expand_as(images)
    except RuntimeError as error:
        raise InputError(
            f"the reference {list(values.shape)} does not fit images {list(images.shape)}"
        ) from error


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


def in_parts(
    engine: Engine, name: str, images: Tensor, run: Callable[[Tensor, slice], Any], share: int = 1
) -> Tensor:
    """Raw maps [N, C, H, W] or [N, 1, H, W] from `run(rows, where)`, which gets a few images at a time.

    Their number is the engine's batch size of gradient passes, divided by `share`.
    """
    parts: list[Tensor] = []
    start = 0

    def part(batch: int) -> Tensor:
        at = slice(start, start + max(1, batch // share))
        rows = images[at].to(engine.dtype).clone()
        return checked_map(name, run(rows, at), rows.shape).to(images)

    with torch.inference_mode(False), torch.enable_grad():
        while start < len(images):
            raw = engine.attempt("gradients", images[:1], part)
            if raw is not None:
                parts.append(raw)
                start += len(raw)
    return torch.cat(parts)


def checked_map(name: str, raw: Any, shape: Sequence[int]) -> Tensor:
    """What estimator `name` returned for images of this shape, as a tensor [N, C, H, W] or [N, 1, H, W]."""
    if isinstance(raw, np.ndarray):
        raw = torch.from_numpy(np.ascontiguousarray(raw))
    plain, full = (shape[0], *shape[2:]), tuple(shape)
    if not isinstance(raw, Tensor) or tuple(raw.shape) not in (full, (shape[0], 1, *shape[2:]), plain):
        found = list(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise InputError(f"estimator {name} must return a tensor {list(full)} for these images, got {found}")
    return (raw.unsqueeze(1) if raw.ndim == 3 else raw).detach()


def _models_inside(raw: Any) -> list[nn.Module]:
    """The models a Captum object holds; a NoiseTunnel holds another object."""
    inner = getattr(raw, "attribution_method", raw)
    forward = getattr(inner, "forward_func", None)
    return [forward] if isinstance(forward, nn.Module) else []


def _adopted(raw: Any) -> Any:
    """Arrays, tensors and paths become maps, Quantus-style functions what calls them; the rest stays."""
    if isinstance(raw, (Tensor, np.ndarray, Path)):
        from fpa.methods import Maps

        return Maps(raw)
    if callable(raw) and not isinstance(raw, Method):
        from fpa.methods import from_quantus, is_quantus

        return from_quantus(raw) if is_quantus(raw) else raw
    return raw


def _by_name(name: str) -> Estimator:
    if name in PAPER:
        return PAPER[name]
    if name.startswith(("captum:", "maps:")):
        from fpa.methods import by_name

        return by_name(name)
    match = re.fullmatch(r"(vg|ig|sg|sqsg)(x?)_(sum|abs)", name)
    if match is None or match[1] + match[2] == "igx":
        raise unknown("estimator", name, (*PAPER, *SETS, "captum:METHOD", "maps:FILE"))
    return Estimator(match[1], "sum" if match[3] == "sum" else "abs", times_input=bool(match[2]))


def check_indices(indices: Sequence[int] | Tensor | None, count: int) -> list[int]:
    """The numbers of the images in their data set: those given, or 0, 1, ..."""
    if indices is None:
        return list(range(count))
    numbers = [int(index) for index in indices]
    if len(numbers) != count:
        raise InputError(f"there are {count} images but {len(numbers)} indices")
    return numbers


def some(numbers: Sequence[int], what: str) -> str:
    """How many of what, and the first few by number.

    >>> some([3, 5], "map"), some(list(range(9)), "image")
    ('2 maps (images 3, 5) are', '9 images (images 0, 1, 2, 3, 4, ...) are')
    """
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    if len(numbers) == 1:
        return f"1 {what} (image {shown}) is"
    return f"{len(numbers)} {what}s (images {shown}) are"
