"""SG and SQ-SG, SmoothGrad and its squared variant: gradients at noisy copies of the image."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from fpa.explanation.raw import GradientMap, GradientPass, Settings, check_count, register
from fpa.explanation.task import Task
from fpa.seeds import Stream, by_image


@dataclass(frozen=True)
class NoisyCopies(GradientPass):
    """`samples` copies of the image with noise of `sigma` times the image's range max - min."""

    samples: int
    sigma: float
    label = "SG"

    @property
    def gradients(self) -> int:
        """One a copy."""
        return self.samples

    def prepare(self, task: Task) -> tuple[Tensor, Tensor]:
        """The noise of every copy, and how far it reaches in every image."""
        images = task.images
        shape = (self.samples, *images.shape[1:])
        noise = by_image(shape, task.seed, task.indices, Stream.SMOOTH, images.device)
        spread = self.sigma * (images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True))
        return noise.flatten(0, 1), spread

    def rows(self, task: Task, prepared: tuple[Tensor, Tensor], at: slice, image: Tensor) -> Tensor:
        """The noisy copies."""
        noise, spread = prepared
        own = noise[at].to(task.images.dtype)
        return task.images.index_select(0, image).addcmul_(spread.index_select(0, image), own)


@register
@dataclass(frozen=True)
class SmoothGrad(GradientMap):
    """The mean gradient of the noisy copies (Smilkov et al., 2017).

    What is left open is taken from `Settings.sg_samples` and `Settings.sigma`.
    """

    samples: int | None = None
    sigma: float | None = None
    family = "sg"
    label = "SG"

    def __post_init__(self) -> None:
        if self.samples is not None:
            check_count("samples", self.samples)

    def configured(self, settings: Settings) -> Self:
        """With the samples and the noise of the settings, where it has none of its own."""
        return replace(
            self,
            samples=settings.sg_samples if self.samples is None else self.samples,
            sigma=settings.sigma if self.sigma is None else self.sigma,
        )

    @property
    def at(self) -> NoisyCopies:
        """The noisy copies."""
        own = self.configured(Settings())
        return NoisyCopies(own.samples or 1, own.sigma or 0.0)


@register
@dataclass(frozen=True)
class SquaredSmoothGrad(SmoothGrad):
    """The mean squared gradient of the noisy copies, the same that SmoothGrad takes (Hooker et al., 2019)."""

    family = "sqsg"
    label = "SQ-SG"
    nonnegative = True

    def each(self, gradients: Tensor) -> Tensor:
        """Its square."""
        return gradients.square()
