"""A study's results in memory: what tables, figures and the report are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fpa.evaluation.examples import Examples
from fpa.evaluation.shards import Evaluation
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import Reliability
from fpa.statistics.intervals import above_chance
from fpa.study.recipe import Recipe

SHOWN = ("tables", "figures", "report")
"""The stages of a study that follow from the results of the others."""


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
    """The results of a study, from `fpa.study.read.read_study`."""

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
