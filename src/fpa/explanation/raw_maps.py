"""Raw maps: the task they are made for, and what a family of estimators is.

A family is a class of raw maps that declares its passes, its sign and its settings. Families made of
gradients say at which points the gradients are taken and what becomes of them: all passes of a task are one
list of rows, and raw maps with equal points share them. Other people's methods get a few images at a time.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fpa.data.loaders import as_tensor
from fpa.engine import Engine, Work
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import Task
from fpa.errors import InputError, unknown
from fpa.explanation.facts import Reduction
from fpa.masking import Masking
from fpa.masking.masking import finite_number
from fpa.values import check_type, check_types, fields_as_json, is_fpas, name_of, shape_or_type, shown


def in_parts(
    task: Task, name: str, run: Callable[[Tensor, slice], Any], *, memory_factor: int = 1, alone: bool = False
) -> Tensor:
    """Raw maps [N, C, H, W] or [N, 1, H, W] from `run(rows, where)`, which gets a few images at a time.

    Their number is the engine's batch size of gradient passes, divided by `memory_factor`, or 1 where
    every image must be `alone`.
    """
    parts: list[Tensor] = []

    # Called anew for every part, as the batch size may shrink between two of them.
    def part(batch: int) -> Tensor:
        at = slice(start, start + (1 if alone else max(1, batch // memory_factor)))
        # A copy: what people write may change its input in place.
        rows = task.images[at].to(task.engine.dtype).clone()
        # And a copy back: it may return memory that it uses again for the next images.
        return checked_map(name, run(rows, at), rows.shape).to(task.images, copy=True)

    with torch.inference_mode(False), torch.enable_grad():
        while (start := sum(map(len, parts))) < len(task.images):
            if (raw_map := task.engine.attempt("gradients", task.images[:1], part)) is not None:
                parts.append(raw_map)
    return torch.cat(parts)


def checked_map(name: str, returned: Any, shape: Sequence[int]) -> Tensor:
    """What estimator `name` returned for images of this shape, as a tensor [N, C, H, W] or [N, 1, H, W]."""
    if isinstance(returned, np.ndarray | Tensor):
        returned = as_tensor(f"what estimator {name} returns", returned)
    count, _, *sides = shape
    accepted = ([*shape], [count, 1, *sides], [count, *sides])
    if not isinstance(returned, Tensor) or list(returned.shape) not in accepted:
        got = shape_or_type(returned)
        raise InputError(f"estimator {name} must return a tensor {[*shape]} for these images, got {got}")
    return returned.unsqueeze(1) if returned.ndim == 3 else returned


MOST = 1_000_000
"""Steps of integrated gradients, or noisy copies."""


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1."""
    # True is an int for Python.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    if value > MOST:
        raise InputError(f"{name} must be at most {MOST:,}, got {value}")


@dataclass(frozen=True)
class Settings:
    """The numbers of the families that come with fpa; each takes what is its own.

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
    [-1, 1]; otherwise the masking `fpa.masking.black(mean, std)`), a number, one number per channel, a tensor
    that broadcasts to the images, or a masking."""

    def __post_init__(self) -> None:
        check_count("ig_steps", self.ig_steps)
        check_count("sg_samples", self.sg_samples)
        check_types(self)
        if not 0 <= self.sigma < float("inf"):
            raise InputError(f"sigma must be a finite number of at least 0, got {self.sigma}")
        object.__setattr__(self, "reference", checked_reference(self.reference))


def checked_reference(reference: Any) -> Any:
    """What `Settings.reference` may be; arrays as tensors and lists as tuples, to find equal passes."""
    if isinstance(reference, str) and reference not in ("masked", "black"):
        raise unknown("reference", reference, ("masked", "black"))
    several = isinstance(reference, Tensor | np.ndarray)
    truth = isinstance(reference, bool) or (several and str(reference.dtype).endswith("bool"))
    if truth or not (several or isinstance(reference, str | float | int | tuple | list | Masking)):
        expected = "masked, black, a number, one number per channel, a tensor or a masking"
        raise InputError(f"reference must be {expected}, got {shown(reference)}")
    if isinstance(reference, tuple | list):
        check_type("reference", reference, Sequence[float])
        reference = tuple(reference)
    # Checked, not made a float: blocks are found by the text of their plan, where 0 is not 0.0.
    for number in reference if isinstance(reference, tuple) else (reference,):
        if isinstance(number, int | float):
            finite_number("reference", number)
    return as_tensor("reference", reference) if isinstance(reference, np.ndarray | Tensor) else reference


class RawMap:
    """Base of the families. A subclass is a frozen dataclass; its fields are its settings.

    `register` gives it a name: the estimators `NAME_sum` and `NAME_abs`, and with times input `NAMEx_sum`
    and `NAMEx_abs`.
    """

    family: ClassVar[str] = ""
    """The name in `FAMILIES`."""
    baseline: ClassVar[bool] = False
    """Whether it is no explanation but what explanations are compared with: neither signed nor unsigned."""
    input_inside: ClassVar[bool] = False
    """Whether it already contains the input as a factor, so that no name with an `x` exists."""
    knows_truth: ClassVar[bool] = False
    """Whether it is made from the true effects of cues, and so needs images that a world made."""
    needs_numbers: ClassVar[bool] = False
    """Whether the maps depend on the numbers of the images in their data set."""
    from_settings: ClassVar[Mapping[str, str]] = {}
    """The fields that are taken from `Settings` while they are None, and what they are called there."""

    @property
    def nonnegative(self) -> bool:
        """Whether it is known that no value is negative."""
        return False

    @property
    def is_gradient(self) -> bool:
        """Whether its values are what a change of the image by 1 does, and not what a pixel contributes."""
        return False

    @property
    def label(self) -> str:
        """A short name for people."""
        return self.family or type(self).__name__

    @property
    def gradients(self) -> int:
        """Gradient passes per image that the engine runs."""
        return 0

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """The raw map named `FAMILY:ARGUMENT`, and the reduction if the argument names one."""
        raise InputError(f"the estimator {cls.family} takes no argument, got {argument!r}")

    def configured(self, settings: Settings) -> Self:
        """The raw map with what it leaves open taken from the settings."""
        # What a raw map was made with wins: settings are for those that are had by name.
        names = [name for name in self.from_settings if getattr(self, name) is None]
        values = {name: getattr(settings, self.from_settings[name]) for name in names}
        return replace(self, **values) if values else self  # type: ignore[type-var]

    def described(self) -> dict[str, Any]:
        """JSON that differs where the maps would."""
        return {"name": self.family or name_of(self), **fields_as_json(self)}

    def check(self, name: str, indices: Sequence[int], shape: Sequence[int]) -> None:
        """Refuse, before any work, images [C, H, W] of these numbers that estimator `name` cannot explain."""

    def check_total(self, name: str, total: int) -> None:
        """Refuse, before any work, a data set of so many images that estimator `name` was not made for."""

    def check_model(self, name: str, engine: Engine, images: Tensor) -> None:
        """Refuse, before any work, a model that estimator `name` cannot explain on such images."""

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, C, H, W] or [N, 1, H, W] for the images of the task."""
        raise NotImplementedError


FAMILIES: dict[str, type[RawMap]] = {}
"""The families by name; see `register`."""


def register(family: type[RawMap]) -> type[RawMap]:
    """Make the estimators of a family known by name; use it as a decorator of the class."""
    if not family.family:
        raise InputError(f"{family.__name__} must give its name in the attribute `family`")
    FAMILIES[family.family] = family
    return family


class GradientMap(RawMap):
    """Base of the families that are sums over gradients, taken at `gradients` points for each image.

    A subclass of `SmoothGrad`, say, with another `each` shares the points of SmoothGrad.
    """

    @property
    def is_gradient(self) -> bool:
        """Whether the input does not come in: a sum over gradients is one."""
        return not self.input_inside

    @property
    def points(self) -> Hashable:
        """Equal for raw maps whose gradients are taken at the same points: these are run once."""
        return self

    def prepare(self, task: Task) -> Any:
        """What `rows` and `finish` need, made once per task."""
        return None

    def rows(self, task: Task, prepared: Any, at: slice, image: Tensor) -> Tensor:
        """The rows `at` of the list of all points, image by image; `image` [rows] says whose each row is."""
        raise NotImplementedError

    def each(self, gradients: Tensor) -> Tensor:
        """What is summed up for each gradient."""
        return gradients

    def finish(self, total: Tensor, prepared: Any) -> Tensor:
        """The raw map from the sum [N, C, H, W], computed in place; by default the mean."""
        return total.div_(self.gradients)


def gradient_maps(task: Task, wanted: Iterable[RawMap]) -> dict[RawMap, Tensor]:
    """Those of the raw maps that are made of gradients, all from one list of rows."""
    # SG and SQ-SG take the same gradients and differ in what they sum up: one list of rows, a total each.
    sharing: dict[Hashable, dict[GradientMap, Tensor]] = {}
    for raw_map in wanted:
        if isinstance(raw_map, GradientMap):
            sharing.setdefault(raw_map.points, {})[raw_map] = torch.zeros_like(task.images)
    # One call for all lists: their rows fill batches together, and the engine knows how many there are
    # when it decides whether compiling pays.
    works = []
    for totals in sharing.values():
        leading = _leading(totals)
        own = own_task(leading, task)
        works.append((own, leading.prepare(own), totals))
    task.engine.gradients([_work(own, prepared, totals) for own, prepared, totals in works])
    finished: dict[RawMap, Tensor] = {}
    for _, prepared, totals in works:
        for raw_map, total in totals.items():
            # Others finish with the same: a family of one's own may work in place.
            finished[raw_map] = raw_map.finish(
                total, prepared if is_fpas(raw_map) else copy.deepcopy(prepared)
            )
    return finished


def _leading(totals: Mapping[GradientMap, Tensor]) -> GradientMap:
    """The one that makes the rows for all that share its points: fpa's own where there is one."""
    return next((raw_map for raw_map in totals if is_fpas(raw_map)), next(iter(totals)))


def own_task(raw_map: RawMap, task: Task) -> Task:
    """The task for a raw map to work on: a family that is not fpa's own may change its images in place."""
    if is_fpas(raw_map):
        return task
    return replace(task, images=task.images.clone(), targets=task.targets.clone())


def _work(task: Task, prepared: Any, totals: Mapping[GradientMap, Tensor]) -> Work:
    """The rows of raw maps that share their points, one image after the other."""
    first = _leading(totals)

    def image(start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=task.images.device) // first.gradients

    def rows(start: int, stop: int) -> Tensor:
        return first.rows(task, prepared, slice(start, stop), image(start, stop))

    def take(start: int, stop: int, gradients: Tensor) -> None:
        for raw_map, total in totals.items():
            each = raw_map.each(gradients if is_fpas(raw_map) else gradients.clone())
            _add_by_image(total, first.gradients, start, each)

    def targets(start: int, stop: int) -> Tensor:
        return task.targets.index_select(0, image(start, stop))

    return Work(
        len(task.images) * first.gradients,
        rows,
        take,
        targets,
        name=lambda start: first.label,
        output=OUTPUTS[task.output],
    )


def _add_by_image(total: Tensor, per_image: int, start: int, rows: Tensor) -> None:
    """Add each of the rows from `start` on to its image's total: a first part, whole images, a last part."""
    # Whole images are one sum over a reshaped tensor. A scatter would add rows in an order that depends on
    # the device, and the last digits with it.
    at = start
    stop = start + len(rows)
    while at < stop:
        image, past = divmod(at, per_image)
        whole = 0 if past else (stop - at) // per_image
        count = whole * per_image or min(per_image - past, stop - at)
        images = max(whole, 1)
        part = torch.unflatten(rows[at - start : at - start + count], 0, (images, count // images))
        total[image : image + images] += part.sum(1, dtype=total.dtype)
        at += count
