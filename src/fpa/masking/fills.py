"""Maskings by their *fill*, the image with everything removed: a masked pixel takes its value there."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fpa.errors import InputError
from fpa.masking.masking import Channels, Masking, check_mask, finite_number, floating, in_type_of, lent


@dataclass(frozen=True)
class Fill(Masking):
    """Base of the maskings that are known by the fully masked image; a subclass says what that is.

    Randomness is apart from the arithmetic: `noise` draws, `fill` is a pure function of its arguments.
    """

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """The fully masked images, of a shape that broadcasts to [N, C, H, W]."""
        raise NotImplementedError

    def check(self, images: Tensor) -> None:
        """Refuse parameters that do not suit images of this size; nothing is computed."""

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
        """Copies of `images` [N, C, H, W] with the pixels of `mask` [N, H, W] replaced by the fill.

        Unmasked pixels keep their exact bits; the input is never changed.
        """
        check_mask(images, mask)
        noise = self.noise(images) if noise is None else noise
        return torch.where(mask.unsqueeze(1), self.fill(lent(self, images), noise), images)


@dataclass(frozen=True)
class Constant(Fill):
    """Masked pixels take one value, or one value per channel; 0 after normalisation is the paper's.

    >>> import torch
    >>> images = torch.ones(1, 3, 2, 2)
    >>> mask = torch.tensor([[[True, False], [False, False]]])
    >>> Constant()(images, mask)[0, 0].tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    value: float | Channels = 0.0

    def __post_init__(self) -> None:
        values = self.value if isinstance(self.value, (tuple, list)) else (self.value,)
        checked = tuple(finite_number("value", value) for value in values)
        object.__setattr__(self, "value", checked if values is self.value else checked[0])

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        if isinstance(self.value, tuple) and len(values) != images.shape[1]:
            raise InputError(f"the masking has {len(values)} channel values for {images.shape[1]} channels")
        return torch.cat([images.new_full((1, 1, 1, 1), value) for value in values], dim=1)


def black(mean: Channels, std: Channels) -> Constant:
    """Masked pixels take what 0 (black) became in the normalisation `(x - mean) / std`.

    >>> black((0.5,), (0.5,))
    Constant(value=(-1.0,))
    """
    if len(mean) != len(std) or 0 in std:
        raise InputError(f"mean and std must be a number for every channel, std not 0; got {mean} and {std}")
    return Constant(tuple(-m / s for m, s in zip(mean, std, strict=True)))


class Mean(Fill):
    """Masked pixels take the mean colour of their image (the mean of each channel)."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return in_type_of(floating(images).mean((2, 3), keepdim=True), images)


class Minimum(Fill):
    """Masked pixels take the smallest value of each channel of their image."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return images.amin((2, 3), keepdim=True)


class Maximum(Fill):
    """Masked pixels take the largest value of each channel of their image."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return images.amax((2, 3), keepdim=True)


class Uniform(Fill):
    """Masked pixels take random values, uniform between the extremes of each channel of their image."""

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        device = images.device if generator is None else generator.device
        return torch.rand(images.shape, generator=generator, device=device).to(images.device)

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        values = floating(images)
        noise = self.noise(images) if noise is None else noise
        low = values.amin((2, 3), keepdim=True)
        high = values.amax((2, 3), keepdim=True)
        # Noise just under 1 may round up past the largest value there is.
        return in_type_of(torch.minimum(low + noise.to(values.dtype) * (high - low), high), images)


def gaussian(sigma: float, beside: Tensor) -> Tensor:
    """The weights of a Gaussian line, up to three sigma to either side, on device and in dtype of `beside`.

    >>> [round(weight, 3) for weight in gaussian(0.5, torch.zeros(0)).tolist()]
    [0.0, 0.106, 0.787, 0.106, 0.0]
    """
    reach = max(1, math.ceil(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=beside.device, dtype=beside.dtype)
    line = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return line / line.sum()


def within_image(name: str, pixels: float | None, images: Tensor) -> None:
    """Refuse a width of a blur beyond the longer side of the images: it would only ask for memory.

    The border is repeated as far as the blur reaches, so memory grows with it; the picture is flat by then.
    """
    longer = max(images.shape[-2:])
    if pixels is not None and pixels > longer:
        wanted = f"at most {longer}, the longer side of the images"
        raise InputError(f"{name} must be {wanted}, in pixels, got {pixels:g}")


@dataclass(frozen=True)
class Blur(Fill):
    """Masked pixels take their value in a Gaussian-blurred copy of the image.

    `sigma` is in pixels; by default a sixteenth of the shorter side (2 at 32 px, 14 at 224 px).
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            object.__setattr__(self, "sigma", finite_number("sigma", self.sigma, above=0))

    def check(self, images: Tensor) -> None:  # noqa: D102
        within_image("sigma", self.sigma, images)

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        self.check(images)
        sigma = min(images.shape[-2:]) / 16 if self.sigma is None else self.sigma
        values = floating(images)
        channels = images.shape[1]
        line = gaussian(sigma, values)
        reach = len(line) // 2
        # A Gaussian square is a column times a row: two passes of a line cost 2 k instead of k * k a pixel.
        # The border is repeated, as zeros around the image would darken its rim.
        for kernel, pad in ((line[:, None], (0, 0, reach, reach)), (line[None, :], (reach, reach, 0, 0))):
            padded = functional.pad(values, pad, mode="replicate")
            values = functional.conv2d(padded, kernel.expand(channels, 1, *kernel.shape), groups=channels)
        return in_type_of(values, images)


@dataclass(frozen=True)
class Bokeh(Fill):
    """Masked pixels take their value in a copy out of focus: each pixel the mean over a disc.

    `radius` is in pixels; by default an eighth of the shorter side (4 at 32 px, 28 at 224 px).
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            object.__setattr__(self, "radius", finite_number("radius", self.radius, above=0))

    def check(self, images: Tensor) -> None:  # noqa: D102
        within_image("radius", self.radius, images)

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        self.check(images)
        radius = min(images.shape[-2:]) / 8 if self.radius is None else self.radius
        reach = math.floor(radius)
        values = floating(images)
        halves = [math.isqrt(int(radius**2 - offset**2)) for offset in range(-reach, reach + 1)]
        # A row of the disc is a run of ones: the sum over the disc is a few box sums, each a difference
        # of running sums, so the cost grows with the radius and not with its square. In float64: a running
        # sum over a wide row would lose the digits that the difference is about.
        padded = functional.pad(values, (reach, reach, reach, reach), mode="replicate")
        running = functional.pad(padded.to(torch.float64).cumsum(-1), (1, 0))
        height, width = images.shape[-2:]
        total = torch.zeros_like(values, dtype=torch.float64)
        for row, half in enumerate(halves):
            rows = running[..., row : row + height, :]
            right = rows[..., reach + half + 1 : reach + half + 1 + width]
            total += right - rows[..., reach - half : reach - half + width]
        return in_type_of((total / sum(2 * half + 1 for half in halves)).to(values.dtype), images)
