"""A study's results in memory: what tables, figures and the report are made of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.blocks import Evaluation
from fpa.fidelity import Fidelity, Reliability
from fpa.recipe import Recipe

SHOWN = ("tables", "figures", "report")
"""The stages of a study that follow from the results of the others."""


def above_chance(accuracy: float, images: int, classes: int) -> bool:
    """Whether an accuracy over so many images is above guessing by two standard errors.

    >>> above_chance(0.6, 100, 2), above_chance(0.61, 100, 2)
    (False, True)
    """
    chance = 1 / classes
    return accuracy > chance + 2 * math.sqrt(chance * (1 - chance) / max(images, 1))


@dataclass(frozen=True)
class Examples:
    """A few evaluation images with the maps of every estimator, for figures and the explorer."""

    images: NDArray[np.uint8]
    """[M, C, H, W], as the data set has them."""
    indices: NDArray[np.int64]
    """[M]: their numbers in the test split; the same number stands in `Evaluation.indices`."""
    labels: NDArray[np.int64]
    """[M]: true classes."""
    targets: NDArray[np.int64]
    """[M]: classes the model predicts, and explained."""
    maps: dict[str, NDArray[np.float32]]
    """[M, H, W] for every estimator."""
    ranks: dict[str, NDArray[np.int32]]
    """[M, H, W] for every estimator: the place in the LIF order, 0 is removed first; MIF is the reverse."""
    fill: NDArray[np.uint8]
    """[M, C, H, W]: the fully masked images, as bytes: what a removed pixel looks like."""
    foreground: NDArray[np.bool_] | None = None
    """[M, H, W]: the pixels of the true shape, where known."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in ("images", "indices", "labels", "targets", "fill")
        }
        if self.foreground is not None:
            arrays["foreground"] = self.foreground
        arrays |= {f"map.{name}": values for name, values in self.maps.items()}
        return arrays | {f"rank.{name}": values for name, values in self.ranks.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Examples":
        """The examples that `to_arrays` took apart."""

        def named(prefix: str) -> dict[str, NDArray[Any]]:
            found = {name: values for name, values in arrays.items() if name.startswith(prefix)}
            return {name.removeprefix(prefix): values for name, values in found.items()}

        plain = {name: arrays[name] for name in ("images", "indices", "labels", "targets", "fill")}
        return cls(**plain, maps=named("map."), ranks=named("rank."), foreground=arrays.get("foreground"))


@dataclass(frozen=True)
class ModelResult:
    """One model of a study."""

    augmentation: str
    accuracy: float | None
    """Share of correctly classified evaluation images; None where no labels are known."""
    history: dict[str, list[float | None]]
    """Columns of training.csv: epoch, learning_rate, loss, accuracy, test_accuracy, images_per_second."""
    evaluation: Evaluation
    fidelity: dict[str, Fidelity]
    """For every estimator, over the images that all models of the study keep."""
    reliability: Reliability
    examples: Examples | None = None


@dataclass(frozen=True)
class Study:
    """The results of a study, from `fpa.study.read_study`."""

    name: str
    recipe: Recipe | None
    """None where the model was trained elsewhere."""
    classes: list[str]
    models: dict[str, ModelResult]
    """By augmentation, in the order of the recipe."""
    signed: dict[str, bool]
    """For every estimator whether it is signed; "random" is in neither group and not in here."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Versions, device, seeds, timings of every stage, as in manifest.json."""
    published: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """For the paper's data sets: augmentation -> estimator -> (published A, half-width of its interval)."""
    folder: Path | None = None
    """Where it was read from."""

    @property
    def images_used(self) -> int:
        """Images that every estimator's score of every model is over at least."""
        return min(score.used for model in self.models.values() for score in model.fidelity.values())

    @property
    def not_above_chance(self) -> list[str]:
        """The models whose accuracy is not above guessing by two standard errors: nothing to explain.

        Under 30 images with a label nothing is said: that is too few to tell.
        """
        found = []
        for name, model in self.models.items():
            known = int((model.evaluation.labels >= 0).sum())
            if known < 30:
                continue
            if model.accuracy is not None and not above_chance(model.accuracy, known, len(self.classes)):
                found.append(name)
        return found

    @property
    def estimators(self) -> list[str]:
        """All names, random first, then the signed, then the unsigned."""
        names = list(next(iter(self.models.values())).fidelity)
        return sorted(names, key=lambda name: (name in self.signed, not self.signed.get(name, True)))
