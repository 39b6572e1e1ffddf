"""SG and SQ-SG, SmoothGrad and its squared variant: gradients at noisy copies of the image."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from fpa.explanation.raw import GradientMap, check_count, register
from fpa.explanation.task import Task
from fpa.seeds import Stream, by_image


@register
@dataclass(frozen=True)
class SmoothGrad(GradientMap):
    """The mean gradient of `samples` noisy copies (Smilkov et al., 2017).

    The noise has `sigma` times the image's range max - min. What is left open is taken from
    `Settings.sg_samples` and `Settings.sigma`.
    """

    samples: int | None = None
    sigma: float | None = None
    family = "sg"
    label = "SG"
    from_settings = {"samples": "sg_samples", "sigma": "sigma"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.samples is not None:
            check_count("samples", self.samples)

    @property
    def gradients(self) -> int:
        """One per copy."""
        return self.samples or 0

    @property
    def points(self) -> Hashable:
        """The noisy copies, those of subclasses too."""
        return SmoothGrad, self.samples, self.sigma

    def prepare(self, task: Task) -> tuple[Tensor, Tensor]:
        """The noise of every copy, and how far it reaches in every image."""
        images = task.images
        shape = (self.gradients, *images.shape[1:])
        noise = by_image(shape, task.seed, task.indices, Stream.SMOOTH, images.device)
        span = images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
        return noise.flatten(0, 1), (self.sigma or 0) * span

    def rows(self, task: Task, prepared: tuple[Tensor, Tensor], at: slice, image: Tensor) -> Tensor:
        """The noisy copies."""
        noise, spread = prepared
        own = noise[at].to(task.images.dtype)
        return task.images.index_select(0, image).addcmul_(spread.index_select(0, image), own)


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
