"""A few images of an evaluation, kept with the maps of every estimator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError
from fpa.evaluation.description import Origin
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
    """Of the evaluation that they were stored with, see `Origin.key`."""

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


def write_examples(folder: Path, examples: Examples, origin: Origin) -> None:
    """Store the examples of the evaluation that comes from here."""
    write_arrays(folder / EXAMPLES, examples.to_arrays() | {"key": np.array(origin.key)})


def read_examples(folder: Path, origin: Origin | None = None) -> Examples | None:
    """The examples in a folder, which must be of this evaluation if it is given; None if there are none."""
    path = folder / EXAMPLES
    found = Examples.read(path)
    if found is not None and origin is not None and found.key not in ("", origin.key):
        raise DamagedError({path: "it is of another evaluation or another model"})
    return found
