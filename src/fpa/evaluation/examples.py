"""A few images of an evaluation, kept with the maps of every estimator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError
from fpa.files import read_arrays


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

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, value in vars(self).items():
            if isinstance(value, dict):
                arrays |= {f"{kind.removesuffix('s')}.{name}": values for name, values in value.items()}
            elif value is not None:
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
            return cls(**parts)
        except (InputError, KeyError, TypeError) as error:  # TypeError: parts that are missing, or unknown
            raise DamagedError({path: error}) from error
