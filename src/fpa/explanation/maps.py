"""What people bring as raw maps: maps computed before, functions, Captum's objects, Quantus' functions."""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fpa.data.loaders import as_tensor
from fpa.engine.lending import model_lent
from fpa.engine.tasks import Task
from fpa.errors import InputError, counted, first_line, unknown
from fpa.explanation.captum import at_image_size
from fpa.explanation.facts import Reduction
from fpa.explanation.raw_maps import FAMILIES, RawMap, checked_map, in_parts, register
from fpa.files import named_arrays
from fpa.models.wrap import untouched

_FORMATS = (".npy", ".npz", ".safetensors", ".pt", ".pth")
_SCAN_BYTES = 64 << 20


@register
@dataclass(frozen=True, eq=False)
class Maps(RawMap):
    """Maps computed before: [N, H, W], [N, 1, H, W] or [N, C, H, W], image i of the data set in row i.

    `source` is an array, a tensor or a file: .npy, .npz, .safetensors or .pt (a tensor or a dict of them,
    loaded without executing code); `array` names one of several in a file. Files are memory-mapped, except
    .npz. The estimator counts as signed if any value is negative.

    >>> Maps(torch.ones(5, 4, 4)).nonnegative, Maps(-torch.ones(5, 4, 4)).nonnegative
    (True, False)
    """

    source: Any
    array: str | None = None
    family = "maps"
    needs_numbers = True

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            object.__setattr__(self, "source", Path(self.source))
        if self.values.ndim not in (3, 4):
            kind = f"{self.values.dtype} {list(self.values.shape)}"
            raise InputError(f"{self._called} must be real numbers [N, H, W] or [N, C, H, W], got {kind}")

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """`maps:FILE` or `maps:FILE#ARRAY`."""
        file, _, array = argument.partition("#")
        return cls(Path(file), array or None), None

    @property
    def label(self) -> str:
        """The file without its folder, and the array."""
        if not isinstance(self.source, Path):
            return "maps"
        return self.source.stem + (f"#{self.array}" if self.array else "")

    @property
    def _called(self) -> str:
        if not isinstance(self.source, Path):
            return "the maps"
        return f"the maps in {self.source}" + (f" ({self.array})" if self.array else "")

    @cached_property
    def values(self) -> Tensor:
        """The maps as they were given."""
        from_file = isinstance(self.source, Path)
        return _read(self.source, self.array) if from_file else as_tensor(self._called, self.source)

    @cached_property
    def _scanned(self) -> tuple[str, bool]:
        digest = hashlib.sha256(f"{self.values.dtype} {list(self.values.shape)}".encode())
        negative = False
        # Hash and sign in one reading, a stretch at a time: a mapped file may be larger than the memory.
        step = max(1, _SCAN_BYTES // max(1, self.values[:1].nbytes))
        for start in range(0, len(self.values), step):
            here = self.values[start : start + step].cpu().contiguous()
            digest.update(here.flatten().view(torch.uint8).numpy().data)
            negative = negative or bool((here < 0).any())
        return digest.hexdigest()[:16], negative

    @property
    def nonnegative(self) -> bool:
        """Whether no value is negative."""
        return not self._scanned[1]

    def described(self) -> dict[str, Any]:
        """A hash of the values, so that a file may move but not change."""
        return {"name": "maps", "sha256": self._scanned[0]}

    def check(self, name: str, indices: Sequence[int], shape: Sequence[int]) -> None:
        """Refuse images without a map, and maps of another size."""
        count = len(self.values)
        if outside := [index for index in indices if not 0 <= index < count]:
            maps = f"{self._called} are {count}, one for each image of the data set in its order"
            number = f"there is an image number {outside[0]} (the first has number 0)"
            raise InputError(f"estimator {name}: {maps}, but {number}")
        channels, *sides = shape
        own = list(self.values.shape[1:])
        if own[-2:] != sides or (len(own) == 3 and own[0] not in (1, channels)):
            expected = f"{sides} or {[channels, *sides]} for an image"
            raise InputError(f"estimator {name}: {self._called} must be {expected}, got {own}")

    def check_total(self, name: str, total: int) -> None:
        """Refuse more maps than images: they are those of other images."""
        if len(self.values) > total:
            maps = f"{self._called} are {len(self.values)}, one for each image of the data set in its order"
            raise InputError(f"estimator {name}: {maps}, but there are {counted(total)}")

    def raw_map(self, name: str, task: Task) -> Tensor:
        """The rows of these images."""
        rows = self.values[torch.as_tensor(task.indices, device=self.values.device)]
        return checked_map(name, rows, task.images.shape).to(task.images)


def _read(path: Path, array: str | None) -> Tensor:
    """One array of a file, memory-mapped where the format allows it."""
    if path.suffix not in _FORMATS:
        raise InputError(f"maps are read from {', '.join(_FORMATS)} files, got {path}")
    try:
        arrays = named_arrays(path, "file of maps")
        if array is None and len(arrays) != 1:
            held = f"{len(arrays)} arrays ({', '.join(sorted(arrays)[:16])})"
            raise InputError(f"{path} holds {held}: name one as in maps:{path}#ARRAY")
        if array is not None and array not in arrays:
            raise unknown(f"array of {path}", array, arrays)
        return as_tensor(f"the maps in {path}", arrays[array or next(iter(arrays))]())
    except InputError:
        raise
    except Exception as error:  # of many types, where a file is damaged
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the maps in {path} cannot be read: {reason}") from error


def as_raw_map(source: Any) -> RawMap:
    """What a user may give as a raw map: a family's name, arrays, paths, functions and Captum's objects."""
    if isinstance(source, str):
        if source not in FAMILIES:
            raise unknown("raw map", source, FAMILIES)
        return FAMILIES[source]()
    if isinstance(source, RawMap):
        return source
    if isinstance(source, (Tensor, np.ndarray, Path)):
        return Maps(source)
    if hasattr(source, "attribute"):
        return CaptumObject(source)
    if callable(source):
        return from_quantus(source) if is_quantus(source) else Function(source)
    accepted = "a name, a callable (model, images, targets) -> [N, C, H, W], an array of maps"
    kind = type(source).__name__
    raise InputError(f"an estimator must be {accepted} or a Captum attribution object, got {kind}")


@dataclass(frozen=True, eq=False)
class Function(RawMap):
    """A function `(model, images, targets) -> [N, C, H, W]` (or already [N, H, W]).

    It gets a few images at a time, and the model to use as it likes.
    """

    function: Any

    def attributions(self, model: nn.Module, rows: Tensor, targets: Tensor) -> Any:
        """What the function returns for the images `rows`."""
        return self.function(model, rows, targets)

    def sized(self, name: str, returned: Any, rows: Tensor) -> Any:
        """What the function returned for the images `rows`, at their size."""
        return returned

    def raw_map(self, name: str, task: Task) -> Tensor:
        """All that the function returns; afterwards the model is as it was, or the function is refused."""
        with model_lent(task.engine, f"estimator {name}") as model:

            def run(rows: Tensor, at: slice) -> Any:
                try:
                    # A copy of the targets, too: those of the task are what the curves follow.
                    returned = self.attributions(model, rows, task.targets[at].clone())
                except TypeError as error:
                    raise InputError(f"estimator {name} cannot be called: {first_line(error)}") from error
                return self.sized(name, returned, rows)

            return in_parts(task, name, run)


class CaptumObject(Function):
    """An object with Captum's method `attribute`; it explains the model it was made with."""

    def attributions(self, model: nn.Module, rows: Tensor, targets: Tensor) -> Any:  # noqa: D102
        return self.function.attribute(rows.requires_grad_(), target=targets)

    @property
    def _method(self) -> Any:
        """Captum's method: a NoiseTunnel holds another object."""
        return getattr(self.function, "attribution_method", self.function)

    @property
    def _of_layer(self) -> bool:
        return hasattr(self._method, "layer")

    def sized(self, name: str, returned: Any, rows: Tensor) -> Any:
        """The map of a layer is smaller than the images: as of the same method by name, it is enlarged."""
        return at_image_size(name, returned, rows) if self._of_layer else returned

    @property
    def is_gradient(self) -> bool:
        """What Captum says of its gradient methods; those of layers and of removed windows are none."""
        of_input = hasattr(self._method, "gradient_func") and not self._of_layer
        return of_input and not getattr(self._method, "multiplies_by_inputs", True)

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What the object returns; the model it was made with is as it was, too."""
        model = getattr(self._method, "forward_func", None)
        with untouched(model if isinstance(model, nn.Module) else task.engine.model):
            return super().raw_map(name, task)


@dataclass(frozen=True, eq=False)
class Quantus(Function):
    """A function `explain_func(model, inputs, targets, **arguments) -> array`, called as Quantus calls it."""

    arguments: dict[str, Any] = field(default_factory=dict)

    def attributions(self, model: nn.Module, rows: Tensor, targets: Tensor) -> Any:
        """The function's arrays, from NumPy copies of the images and targets."""
        accepted = inspect.signature(self.function).parameters
        takes_device = "device" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        elsewhere = rows.device.type != "cpu" and takes_device
        arguments = ({"device": str(rows.device)} if elsewhere else {}) | self.arguments
        images = rows.cpu().numpy()
        classes = targets.cpu().numpy()
        return self.function(model=model, inputs=images, targets=classes, **arguments)


def from_quantus(explain_func: Callable[..., Any], **arguments: Any) -> Quantus:
    """A Quantus-style function as the raw map of an estimator; `arguments` are handed to it.

    It is called with `model`, `inputs` [N, C, H, W] and `targets` [N] by name, the last two NumPy arrays,
    and returns an array [N, C, H, W], [N, 1, H, W] or [N, H, W].

    >>> import torch
    >>> from fpa import explain
    >>> def brightness(model, inputs, targets, scale=1):
    ...     return scale * inputs.mean(1)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> maps = explain(model, torch.ones(1, 3, 2, 2), {"mine": from_quantus(brightness, scale=3)})
    >>> maps["mine"].tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """
    return Quantus(explain_func, arguments)


def is_quantus(function: Callable[..., Any]) -> bool:
    """Whether a function's arguments have the names Quantus requires: model, inputs, targets.

    >>> is_quantus(lambda model, inputs, targets, **others: inputs)
    True
    >>> is_quantus(lambda model, images, targets: images)
    False
    """
    try:
        return {"model", "inputs", "targets"} <= set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in
        return False
