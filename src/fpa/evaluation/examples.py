"""A few images of an evaluation, kept with the maps of every estimator."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError, Misplaced
from fpa.evaluation.description import Origin
from fpa.files import read_arrays, write_arrays

EXAMPLES = "examples.npz"

_MAYBE = {"foreground", "regions", "effects", "key"}
_PLAIN = {"images", "indices", "labels", "targets", "fill"} | _MAYBE
"""The arrays of a file besides those of the estimators, and those that it may lack."""


@dataclass(frozen=True)
class Examples:
    """A few evaluation images with the maps of every estimator, for figures and the explorer."""

    images: NDArray[np.uint8]
    """[M, C, H, W], as the data set has them."""
    indices: NDArray[np.int64]
    """[M]: their numbers in the data set; the same number stands in `Evaluation.indices`."""
    labels: NDArray[np.int64]
    """[M]: true classes."""
    targets: NDArray[np.int64]
    """[M]: classes the model predicts, and explained."""
    maps: dict[str, NDArray[np.float32]]
    """[M, H, W] for every estimator."""
    ranks: dict[str, NDArray[np.int32]]
    """[M, H, W] for every estimator: the place of each pixel's feature in the LIF order, 0 is removed first
    and the pixels of a feature share their place; MIF is the reverse."""
    fill: NDArray[np.uint8]
    """[M, C, H, W]: the fully masked images, as bytes: what a removed pixel looks like."""
    foreground: NDArray[np.bool_] | None = None
    """[M, H, W]: the pixels of the true shape, where known."""
    regions: NDArray[np.int16] | None = None
    """[M, H, W]: the cue that each pixel belongs to, -1 for the background's, where the truth is known."""
    effects: NDArray[np.float64] | None = None
    """[M, cues + 1]: the true effects of cues and background on the centred logit of the class explained."""
    key: str = ""
    """Of the evaluation that they were stored with, see `Origin.key`."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
        # The key is written by `write_examples`: it is that of the folder, not of what was read.
        arrays: dict[str, NDArray[Any]] = {}
        for kind, value in vars(self).items():
            if isinstance(value, dict):
                arrays |= {f"{kind.removesuffix('s')}.{name}": values for name, values in value.items()}
            elif isinstance(value, np.ndarray):
                arrays[kind] = value
        return arrays

    @classmethod
    def read(cls, path: Path) -> "Examples | None":
        """The examples in a file that `to_arrays` filled; None if it is not there."""
        if not path.exists():
            return None
        try:
            found = cls._of_arrays(read_arrays(path))
            wrong = found._misshapen()
            if wrong is not None:
                raise InputError(f"{wrong} has another shape or type than its images say")
            return found
        except InputError as error:
            raise DamagedError({path: error}) from error

    @classmethod
    def _of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Examples":
        """The reverse of `to_arrays`; refuses arrays that it does not write."""
        maps: dict[str, NDArray[np.float32]] = {}
        ranks: dict[str, NDArray[np.int32]] = {}
        plain: dict[str, NDArray[Any]] = {}
        for key, values in arrays.items():
            kind, dot, estimator = key.partition(".")
            if dot and kind == "map":
                maps[estimator] = values
            elif dot and kind == "rank":
                ranks[estimator] = values
            elif key in _PLAIN:
                plain[key] = values
            else:
                raise InputError(f"it holds {key}, which is not known")
        missing = sorted(_PLAIN - _MAYBE - plain.keys())
        if missing:
            raise InputError(f"it has no {', '.join(missing)}")
        return cls(
            images=plain["images"],
            indices=plain["indices"],
            labels=plain["labels"],
            targets=plain["targets"],
            maps=maps,
            ranks=ranks,
            fill=plain["fill"],
            foreground=plain.get("foreground"),
            regions=plain.get("regions"),
            effects=plain.get("effects"),
            key=str(plain.get("key", "")),
        )

    def _misshapen(self) -> str | None:
        """The name of a part that does not fit the images, if there is one."""
        if self.images.ndim != 4:
            return "images"
        count, _, height, width = self.images.shape
        pictures = (count, height, width)
        # by name: the array, and the shape and the kind of number that it must have
        expected: dict[str, tuple[NDArray[Any], tuple[int, ...], str]] = {
            "images": (self.images, self.images.shape, "u"),
            "indices": (self.indices, (count,), "i"),
            "labels": (self.labels, (count,), "i"),
            "targets": (self.targets, (count,), "i"),
            "fill": (self.fill, self.images.shape, "u"),
            **{f"map.{name}": (values, pictures, "f") for name, values in self.maps.items()},
            **{f"rank.{name}": (values, pictures, "i") for name, values in self.ranks.items()},
        }
        if self.foreground is not None:
            expected["foreground"] = (self.foreground, pictures, "b")
        if self.regions is not None:
            expected["regions"] = (self.regions, pictures, "i")
        if self.effects is not None:
            # one for each cue that a pixel may belong to, and the background's
            cues = 0 if self.regions is None else int(self.regions.max(initial=-1)) + 1
            players = max(self.effects.shape[-1] if self.effects.ndim == 2 else 0, cues + 1)
            expected["effects"] = (self.effects, (count, players), "f")
        for name, (values, shape, kind) in expected.items():
            if values.shape != shape or values.dtype.kind != kind:
                return name
        return None


def write_examples(folder: Path, examples: Examples, origin: Origin) -> None:
    """Store the examples of the evaluation that comes from here."""
    write_arrays(folder / EXAMPLES, examples.to_arrays() | {"key": np.array(origin.key)})


def read_examples(folder: Path, origin: Origin | None = None) -> Examples | None:
    """The examples in a folder, which must be of this evaluation if it is given; None if there are none."""
    path = folder / EXAMPLES
    found = Examples.read(path)
    if found is not None and origin is not None and found.key not in ("", origin.key):
        raise DamagedError({path: Misplaced("it is of another evaluation or another model")})
    return found
