"""What an estimator is: a raw map and its way to two dimensions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fpa.engine.engine import Engine
from fpa.errors import InputError, unknown
from fpa.masking import Masking

Reduction = Literal["sum", "abs"]


RawMap = Callable[[nn.Module, Tensor, Tensor], Tensor]


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


def _adopted(raw: Any) -> Any:
    """Arrays, tensors and paths become maps, Quantus-style functions what calls them; the rest stays."""
    if isinstance(raw, (Tensor, np.ndarray, Path)):
        from fpa.explanation.maps import Maps

        return Maps(raw)
    if callable(raw) and not isinstance(raw, Method):
        from fpa.explanation.functions import from_quantus, is_quantus

        return from_quantus(raw) if is_quantus(raw) else raw
    return raw


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
