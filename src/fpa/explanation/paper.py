"""The families of the paper: VG, SG, SQ-SG and IG, which are made of gradients, and random scores."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fpa.engine.tasks import Task
from fpa.errors import InputError
from fpa.explanation.raw_maps import GradientMap, RawMap, check_count, checked_reference, register
from fpa.masking import fully_masked, get_masking, noise_by_image
from fpa.seeds import Stream, by_image


@register
@dataclass(frozen=True)
class VanillaGradient(GradientMap):
    """The gradient of the logit with respect to the image (Simonyan et al., 2014)."""

    family = "vg"
    label = "VG"
    gradients = 1

    def rows(self, task: Task, prepared: Any, at: slice, image: Tensor) -> Tensor:
        """The images."""
        return task.images[at]


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
        # The class by name, and not that of `self`: SQ-SG takes the same copies and so the same passes.
        return SmoothGrad, self.samples, self.sigma

    def prepare(self, task: Task) -> tuple[Tensor, Tensor]:
        """The noise of every copy, and its standard deviation in every image."""
        images = task.images
        shape = (self.gradients, *images.shape[1:])
        # Drawn before the list is cut into batches, and for each image from its own number: in whatever batch
        # a copy is run, and whichever images are beside it, its noise is the same.
        noise = by_image(shape, task.seed, task.indices, Stream.SMOOTH, images.device)
        span = images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
        return noise.flatten(0, 1), (self.sigma or 0) * span

    def rows(self, task: Task, prepared: tuple[Tensor, Tensor], at: slice, image: Tensor) -> Tensor:
        """The noisy copies."""
        noise, deviation = prepared
        own = noise[at].to(task.images.dtype)
        return task.images.index_select(0, image).addcmul_(deviation.index_select(0, image), own)


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


@register
@dataclass(frozen=True)
class Random(RawMap):
    """Scores uniform in [0, 1), drawn from the seed and the number of the image."""

    family = "random"
    label = "Random"
    baseline = True
    nonnegative = True

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, 1, H, W]."""
        return by_image(
            (1, *task.images.shape[2:]),
            task.seed,
            task.indices,
            Stream.RANDOM_MAP,
            device=task.images.device,
            draw="uniform",
        )


@register
@dataclass(frozen=True)
class IntegratedGradients(GradientMap):
    """The mean gradient on the path, times its length (Sundararajan et al., 2017).

    What is left open is taken from `Settings.ig_steps` and `Settings.reference`.
    """

    steps: int | None = None
    reference: Any = None
    family = "ig"
    label = "IG"
    input_inside = True
    from_settings = {"steps": "ig_steps", "reference": "reference"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.reference is not None:
            object.__setattr__(self, "reference", checked_reference(self.reference))

    @property
    def gradients(self) -> int:
        """One per step."""
        return self.steps or 0

    @property
    def points(self) -> Hashable:
        """The path."""
        return IntegratedGradients, self.steps, self.reference

    def prepare(self, task: Task) -> Tensor:
        """The difference between the image and the reference."""
        return task.images - reference_images(self.reference, task)

    def rows(self, task: Task, prepared: Tensor, at: slice, image: Tensor) -> Tensor:
        """The points of the right Riemann sum, k = 1 .. steps."""
        step = torch.arange(at.start, at.stop, device=image.device) - image * self.gradients + 1
        # From the image back towards the reference, so that the last point is the image to the bit.
        back = (step.to(prepared.dtype) / self.gradients - 1)[:, None, None, None]
        return task.images.index_select(0, image).addcmul_(back, prepared.index_select(0, image))

    def finish(self, total: Tensor, prepared: Tensor) -> Tensor:
        """The mean gradient times that difference."""
        return total.mul_(prepared).div_(self.gradients)


def reference_images(reference: Any, task: Task) -> Tensor:
    """Where the path of integrated gradients starts, [N, C, H, W]; see `Settings.reference`."""
    images = task.images
    if isinstance(reference, str) and reference == "black":
        low, high = images.nan_to_num().aminmax()
        if low < -1.01 or high > 1.01:
            problem = 'reference "black" means -1 and needs images scaled to [-1, 1]'
            span = f"these range from {float(low):.3g} to {float(high):.3g}"
            raise InputError(f"{problem}; {span}: give reference=fpa.masking.black(mean, std) instead")
        reference = -1.0
    if reference is None or isinstance(reference, str):
        reference = task.masking
    if callable(reference):
        masking = get_masking(reference)
        # The noise of the curves: the path starts at exactly what removing every pixel leaves there.
        return fully_masked(masking, images, noise_by_image(masking, images, task.seed, task.indices))
    values = torch.as_tensor(reference, dtype=images.dtype, device=images.device)
    if values.ndim == 1:
        values = values[:, None, None]
    try:
        return values.expand_as(images)
    except RuntimeError:
        raise InputError(f"reference {list(values.shape)} does not fit images {list(images.shape)}") from None
