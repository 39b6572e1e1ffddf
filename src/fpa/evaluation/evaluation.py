"""What was measured of every image of one model: its curves and scores, from the blocks of an evaluation."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa import showing
from fpa.notes import Kind, Note, Severity
from fpa.scores.fidelity import Fidelity
from fpa.statistics.intervals import surprisingly_low

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """What was measured of every image; NaN marks what was left out because it was not finite."""

    fractions: Floats
    """[K]: the share of pixels removed at each point."""
    indices: Integers
    """[N]: the numbers of the images in their data set."""
    labels: Integers
    """[N]: their true classes, -1 where unknown."""
    targets: Integers
    """[N]: the classes explained."""
    unmasked: Floats
    """[N]: the value of the unmasked image."""
    mif: dict[str, Floats]
    """Most important first, [N, K] for every estimator."""
    lif: dict[str, Floats]
    """Least important first, [N, K] for every estimator."""
    predicted: Integers | None = None
    """[N]: the classes predicted, where others are explained."""
    confidence: Floats | None = None
    """[N]: the probability of the class predicted."""
    shares_mif: dict[str, Floats] | None = None
    """Exact share of pixels removed, [N, K], where features differ in size."""
    shares_lif: dict[str, Floats] | None = None
    values: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """By score and estimator: the value of every image, [N]."""
    units: dict[str, Floats] = field(default_factory=dict)
    """By score: what its values are in, [N], where that differs between models."""
    importance: dict[str, Floats] = field(default_factory=dict)
    """For every estimator the mean over images of the image's importance scores sorted in LIF order, at
    evenly spaced places from the first pixel removed to the last, [P] with P at most 201."""
    others: dict[str, "Evaluation"] = field(default_factory=dict)
    """The same curves for the other outputs: "probability", "margin", "accuracy", ..."""
    image_facts: dict[str, Floats] = field(default_factory=dict)
    """What scores knew of every image besides their values, [N] by name: see `Score.image_facts`."""
    under: dict[str, "Evaluation"] = field(default_factory=dict)
    """The same maps perturbed by further protocols: other features, or another masking."""
    divided: bool = True
    """Whether an image's curve is divided by its own start, as logits are."""
    left_out: list[Note] = field(default_factory=list)
    """Images, maps and curves that were left out."""
    complete: bool = True
    """Whether the run came to its end."""

    def fidelity(self, estimator: str, *, keep: NDArray[np.bool_] | None = None) -> Fidelity:
        """The area A of an estimator, each image over the shares of its own pixels that were removed."""
        return Fidelity.from_curves(
            self.mif[estimator],
            self.lif[estimator],
            self.shares_mif[estimator] if self.shares_mif else self.fractions,
            fractions_lif=self.shares_lif[estimator] if self.shares_lif else None,
            normalise="each" if self.divided else "none",
            keep=keep,
            indices=self.indices,
        )

    @property
    def never_finite(self) -> list[str]:
        """The estimators that have no finite curve for any image, though others have: they are not scored."""
        # One image with all values finite is enough: single images are left out on their own.
        curves = {name: np.hstack([self.mif[name], self.lif[name]]) for name in self.mif}
        return [name for name, each in curves.items() if not np.isfinite(each).all(axis=1).any()]

    @property
    def problems(self) -> list[str]:
        """What was left out, in words."""
        return [showing.clause(note) for note in self.left_out]

    @property
    def accuracy(self) -> float | None:
        """Share of correctly classified images among those with a label; None if there are none."""
        known = self.labels >= 0
        predicted = self.targets if self.predicted is None else self.predicted
        return float((self.labels == predicted)[known].mean()) if known.any() else None

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing, the share of the commonest label; None where no two classes occur."""
        _, counts = np.unique(self.labels[self.labels >= 0], return_counts=True)
        return float(counts.max() / counts.sum()) if len(counts) > 1 else None

    @property
    def facts(self) -> tuple[Note, ...]:
        """What to doubt: an accuracy near chance although the model is confident of its predictions."""
        known = self.labels >= 0
        accuracy = self.accuracy
        if accuracy is None or self.confidence is None or not np.isfinite(self.confidence[known]).any():
            return ()
        # A model that is right as often as it says is sound, however low that is.
        confidence = float(np.nanmean(self.confidence[known]))
        low = surprisingly_low(accuracy, int(known.sum()), confidence=confidence, chance=self.chance or 0.0)
        if not confidence >= 0.5 or not low:
            return ()
        values = {"accuracy": accuracy, "confidence": confidence}
        return (Note(Kind.DOUBTFUL_CLASSES, Severity.WARNING, values),)

    def doubt(self) -> str | None:
        """The same in words; None where there is nothing to doubt."""
        return next(map(showing.clause, self.facts), None)
