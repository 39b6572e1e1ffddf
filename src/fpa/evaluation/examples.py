"""A few images of an evaluation, kept with the maps of every estimator."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError
from fpa.files import read_arrays, write_arrays

EXAMPLES = "examples.npz"


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
    key: str = ""
    """Of the evaluation that they were stored with, see `key_of`."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
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
        parts: dict[str, Any] = {"maps": {}, "ranks": {}}
        try:
            for key, values in read_arrays(path).items():
                kind, _, name = key.partition(".")
                (parts[f"{kind}s"] if name else parts)[name or kind] = values
            found = cls(**parts | {"key": str(parts.get("key", ""))})
            if wrong := found._misshapen():
                raise InputError(f"{wrong} has another shape or type than its images say")
            return found
        except (InputError, KeyError, TypeError) as error:  # TypeError: parts that are missing, or unknown
            raise DamagedError({path: error}) from error

    def _misshapen(self) -> str | None:
        """The name of a part that does not fit the images, if there is one."""
        images, sides = self.images, (len(self.images), *self.images.shape[2:])
        plain: dict[str, Any] = {"images": (images, images.shape if images.ndim == 4 else None, "u")}
        plain |= {name: (getattr(self, name), sides[:1], "i") for name in ("indices", "labels", "targets")}
        plain |= {"fill": (self.fill, images.shape, "u")}
        plain |= {f"map.{name}": (values, sides, "f") for name, values in self.maps.items()}
        plain |= {f"rank.{name}": (values, sides, "i") for name, values in self.ranks.items()}
        if self.foreground is not None:
            plain["foreground"] = (self.foreground, sides, "b")
        fits = ((name, x.shape == shape and x.dtype.kind == kind) for name, (x, shape, kind) in plain.items())
        return next((name for name, right in fits if not right), None)


def key_of(about: Mapping[str, Any]) -> str:
    """What the files of one evaluation have in common: its plan and the model's weights."""
    text = json.dumps([about["plan"], about["model"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_examples(folder: Path, examples: Examples, about: Mapping[str, Any]) -> None:
    """Store the examples of the evaluation that `about` describes."""
    write_arrays(folder / EXAMPLES, examples.to_arrays() | {"key": np.array(key_of(about))})


def read_examples(folder: Path, about: Mapping[str, Any] | None = None) -> Examples | None:
    """The examples of the evaluation that `about` describes; None if there are none."""
    found = Examples.read(path := folder / EXAMPLES)
    if found is not None and about is not None and found.key not in ("", key_of(about)):
        raise DamagedError({path: "it is of another evaluation or another model"})
    return found
