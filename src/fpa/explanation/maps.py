"""Maps computed before, from arrays and files."""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fpa.errors import InputError, unknown
from fpa.explanation.raw import RawMap, Reduction, register
from fpa.explanation.task import Task, checked_map
from fpa.files import check_torch_file, what_it_is

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
        shape = list(self.values.shape)
        if self.values.ndim not in (3, 4) or self.values.is_complex():
            raise InputError(
                f"{self._called} must be real numbers [N, H, W] or [N, C, H, W], "
                f"got {self.values.dtype} {shape}"
            )

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
        if isinstance(self.source, Path):
            return _read(self.source, self.array)
        if isinstance(self.source, Tensor):
            return self.source.detach()
        return _as_tensor(self.source, self._called)

    @cached_property
    def _scanned(self) -> tuple[str, bool]:
        digest, negative = hashlib.sha256(f"{self.values.dtype} {list(self.values.shape)}".encode()), False
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

    def check(self, name: str, indices: Sequence[int], shape: Sequence[int] | None = None) -> None:
        """Refuse images without a map, and maps of another size."""
        count = len(self.values)
        outside = [index for index in indices if not 0 <= index < count]
        if outside:
            raise InputError(
                f"estimator {name}: {self._called} are {count}, one for each image of the data set in its "
                f"order, but there is an image number {outside[0]} (the first has number 0)"
            )
        if shape is None:
            return
        channels, *sides = shape
        own = list(self.values.shape[1:])
        if own[-2:] != sides or (len(own) == 3 and own[0] not in (1, channels)):
            raise InputError(
                f"estimator {name}: {self._called} must be {sides} or {[channels, *sides]} for an image, "
                f"got {own}"
            )

    def raw_map(self, name: str, task: Task) -> Tensor:
        """The rows of these images."""
        rows = self.values[torch.as_tensor(task.indices, device=self.values.device)]
        return checked_map(name, rows, task.images.shape).to(task.images)


def _read(path: Path, array: str | None) -> Tensor:
    """One array of a file, memory-mapped where the format allows it."""
    kinds = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch}
    if path.suffix not in kinds:
        raise InputError(f"maps are read from {', '.join(kinds)} files, got {path}")
    if not path.is_file():
        raise InputError(f"there is no file of maps {path}")
    with path.open("rb") as file:
        other = what_it_is(file.read(64))
    if other is not None:
        raise InputError(f"{path} is not a file of maps: {other}")
    try:
        arrays, get = kinds[path.suffix](path)
        if array is None and len(arrays) != 1:
            listed = ", ".join(sorted(arrays)[:16])
            raise InputError(
                f"{path} holds {len(arrays)} arrays ({listed}): name one as in maps:{path}#ARRAY"
            )
        if array is not None and array not in arrays:
            raise unknown(f"array of {path}", array, arrays)
        return _as_tensor(get(arrays[0] if array is None else array), f"the maps in {path}")
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            f"the maps in {path} cannot be read: it holds more than tensors, and loading that could execute "
            "code; save a tensor or a dict of tensors"
        ) from error
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"the maps in {path} cannot be read: {said}") from error


_Arrays = tuple[list[str], Callable[[str], Any]]


def _npy(path: Path) -> _Arrays:
    # Copy on write: torch takes no read-only arrays.
    return [path.stem], lambda _: np.load(path, mmap_mode="c", allow_pickle=False)


def _npz(path: Path) -> _Arrays:
    arrays = np.load(path, allow_pickle=False)
    return list(arrays.files), arrays.__getitem__


def _safetensors(path: Path) -> _Arrays:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    return list(file.keys()), file.get_tensor


def _torch(path: Path) -> _Arrays:
    check_torch_file(path, "file of maps")
    try:
        held = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except RuntimeError:  # written in the older format, which cannot be mapped
        held = torch.load(path, weights_only=True, map_location="cpu")
    arrays = {path.stem: held} if isinstance(held, Tensor) else held
    if not isinstance(arrays, dict) or not all(isinstance(value, Tensor) for value in arrays.values()):
        raise InputError(f"{path} must hold a tensor or a dict of tensors, got {type(held).__name__}")
    return [str(name) for name in arrays], {str(name): value for name, value in arrays.items()}.__getitem__


def _as_tensor(values: Any, called: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        # Neither read-only memory nor another byte order is for torch.
        native = np.require(values, values.dtype.newbyteorder("="), ["W"])
        return torch.from_numpy(native)
    except TypeError as error:
        raise InputError(f"{called} must be numbers, got {values.dtype}") from error
