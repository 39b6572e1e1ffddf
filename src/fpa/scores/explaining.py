"""What scores that explain again share: noisy copies of the images, and which estimators can explain them."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from fpa.explanation import passes
from fpa.explanation.estimator import Estimator
from fpa.explanation.maps import CaptumObject, Maps
from fpa.scores.score import Block, Given, Passes, Score
from fpa.seeds import Stream, by_image


class Explaining(Score):
    """Base of the scores that explain other images, or another model."""

    needs = frozenset({"explain"})
    other_model: ClassVar[bool] = False
    """Whether another model is explained."""

    @property
    @abstractmethod
    def explanations(self) -> int:
        """How often every estimator explains again."""

    @abstractmethod
    def values(self, block: Block) -> Mapping[str, Tensor]:
        """The values [N] of every estimator."""

    def able(self, estimator: Estimator) -> bool:
        """Whether an estimator can explain again: not maps that were computed before, nor, for another model,
        objects that were made for this one.
        """
        return not isinstance(estimator.raw, (Maps, CaptumObject) if self.other_model else Maps)

    def missing(self, given: Given) -> str | None:  # noqa: D102
        if not any(map(self.able, given.estimators.values())):
            what = "another model" if self.other_model else "other images"
            return f"needs an estimator that can explain {what}"
        return super().missing(given)

    def passes(self, given: Given) -> Passes:  # noqa: D102
        gradients = self.explanations * passes(given.estimators)
        return Passes(explanations=self.explanations, gradients=gradients)

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        again = {name: each for name, each in block.estimators.items() if self.able(each)}
        maps = {name: block.maps[name] for name in again}
        values = self.values(replace(block, estimators=again, maps=maps))
        return block.all_of(values)


def noisy(block: Block, samples: int, draw: str) -> Tensor:
    """Random numbers [samples, N, C, H, W] for copies of the images: "normal", or "uniform" in -1..1."""
    task = block.task
    numbers = by_image(
        (samples, *task.images.shape[1:]),
        task.seed,
        task.indices,
        Stream.NEIGHBOURS,
        device=task.images.device,
        draw=draw,
    )
    return (2 * numbers - 1 if draw == "uniform" else numbers).transpose(0, 1).to(task.images.dtype)


def spans(images: Tensor) -> Tensor:
    """Largest minus smallest value of every image, [N, 1, 1, 1]."""
    return images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
