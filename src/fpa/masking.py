"""What "removing a pixel" means: the one definition used by training and by evaluation.

A masking is a callable `masking(images, mask) -> images` with images [N, C, H, W] and a bool mask
[N, H, W], True where the pixel (all its channels) is removed. Every masking here is described by its
*fill*, the image with everything removed: a masked pixel takes the value the fill has at its place.
The fill is also what integrated gradients start from by default.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fpa.errors import InputError, unknown
from fpa.seeds import generator

Masking = Callable[[Tensor, Tensor], Tensor]


_NOISE_STREAM = 4  # 1 to 3: the noise of SmoothGrad, the random map, the order of ties


@dataclass(frozen=True)
class Fill:
    """Base of the maskings: a subclass says what the fully masked image is.

    Randomness is apart from the arithmetic: `noise` draws, `fill` is a pure function of its arguments.
    """

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor | None:
        """The random numbers `fill` needs for these images; None when it needs none."""
        return None

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """The fully masked images, of a shape that broadcasts to [N, C, H, W]."""
        raise NotImplementedError

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
        """Copies of `images` [N, C, H, W] with the pixels of `mask` [N, H, W] replaced by the fill.

        Unmasked pixels keep their exact bits; the input is never changed.
        """
        check_mask(images, mask)
        if noise is None:
            noise = self.noise(images)
        return torch.where(mask.unsqueeze(1), self.fill(images, noise), images)


@dataclass(frozen=True)
class Constant(Fill):
    """Masked pixels take one value, or one value a channel; 0 after normalisation is the paper's.

    >>> images, mask = torch.ones(1, 3, 2, 2), torch.tensor([[[True, False], [False, False]]])
    >>> Constant()(images, mask)[0, 0].tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    value: float | tuple[float, ...] = 0.0

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        if isinstance(self.value, tuple):
            if len(self.value) != images.shape[1]:
                raise InputError(
                    f"the masking has {len(self.value)} channel values, the images {images.shape[1]} channels"
                )
            channels = [images.new_full((1, 1, 1, 1), value) for value in self.value]
            return torch.cat(channels, dim=1)
        return images.new_full((1, 1, 1, 1), self.value)


def black(mean: tuple[float, ...], std: tuple[float, ...]) -> Constant:
    """Masked pixels take what 0 (black) became in the normalisation `(x - mean) / std`.

    >>> black((0.5,), (0.5,))
    Constant(value=(-1.0,))
    """
    return Constant(tuple(-m / s for m, s in zip(mean, std, strict=True)))


@dataclass(frozen=True)
class Mean(Fill):
    """Masked pixels take the mean colour of their image (the mean of each channel)."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return _like(_floating(images).mean((2, 3), keepdim=True), images)


@dataclass(frozen=True)
class Minimum(Fill):
    """Masked pixels take the smallest value of each channel of their image."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return images.amin((2, 3), keepdim=True)


@dataclass(frozen=True)
class Maximum(Fill):
    """Masked pixels take the largest value of each channel of their image."""

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        return images.amax((2, 3), keepdim=True)


@dataclass(frozen=True)
class Uniform(Fill):
    """Masked pixels take random values, uniform between the extremes of each channel of their image."""

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        device = images.device if generator is None else generator.device
        return torch.rand(images.shape, generator=generator, device=device).to(images.device)

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        if noise is None:
            noise = self.noise(images)
        values = _floating(images)
        low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
        return _like(torch.minimum(low + noise.to(values.dtype) * (high - low), high), images)


@dataclass(frozen=True)
class Blur(Fill):
    """Masked pixels take their value in a Gaussian-blurred copy of the image.

    `sigma` is in pixels; by default a sixteenth of the shorter side (2 at 32 px, 14 at 224 px).
    """

    sigma: float | None = None

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        sigma = min(images.shape[-2:]) / 16 if self.sigma is None else self.sigma
        reach = max(1, math.ceil(3 * sigma))
        values = _floating(images)
        offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=values.dtype)
        line = torch.exp(-0.5 * (offsets / sigma) ** 2)
        line = line / line.sum()
        down = _convolve(values, line[:, None], (0, reach))
        return _like(_convolve(down, line[None, :], (reach, 0)), images)


@dataclass(frozen=True)
class Bokeh(Fill):
    """Masked pixels take their value in a copy out of focus: each pixel the mean over a disc.

    `radius` is in pixels; by default an eighth of the shorter side (4 at 32 px, 28 at 224 px).
    """

    radius: float | None = None

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        radius = min(images.shape[-2:]) / 8 if self.radius is None else self.radius
        reach = math.floor(radius)
        values = _floating(images)
        offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=values.dtype)
        disc = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).to(values.dtype)
        # A row of the disc is a run of ones: the sum over the disc is a few box sums, each a difference
        # of running sums, so the cost grows with the radius and not with its square.
        padded = functional.pad(values, (reach, reach, reach, reach), mode="replicate")
        running = functional.pad(padded.to(torch.float64).cumsum(-1), (1, 0))
        height, width = images.shape[-2:]
        total = torch.zeros_like(values, dtype=torch.float64)
        for row in range(2 * reach + 1):
            half = math.isqrt(int(radius**2 - (row - reach) ** 2))
            rows = running[..., row : row + height, :]
            right = rows[..., reach + half + 1 : reach + half + 1 + width]
            total += right - rows[..., reach - half : reach - half + width]
        return _like((total / disc.sum()).to(values.dtype), images)


MASKINGS: dict[str, Callable[..., Fill]] = {
    "constant": Constant,
    "black": black,
    "mean": Mean,
    "minimum": Minimum,
    "maximum": Maximum,
    "uniform": Uniform,
    "blur": Blur,
    "bokeh": Bokeh,
}


ALIASES = {"zero": "constant", "noise": "uniform"}
"""Names people use for two of them."""


def get_masking(
    name: str | Masking, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
) -> Masking:
    """A masking by name (or the masking itself); `black` needs the normalisation of the images.

    >>> get_masking("blur"), get_masking("zero") == get_masking("constant")
    (Blur(sigma=None), True)
    """
    if not isinstance(name, str):
        return name
    name = ALIASES.get(name, name)
    if name not in MASKINGS:
        raise unknown("masking", name, [*MASKINGS, *ALIASES])
    if name == "black":
        if mean is None or std is None:
            raise InputError("masking 'black' needs the mean and std the images were normalised with")
        return black(mean, std)
    return MASKINGS[name]()


def fully_masked(masking: Masking, images: Tensor, noise: Tensor | None = None) -> Tensor:
    """The images with every pixel removed, [N, C, H, W], for any masking."""
    if isinstance(masking, Fill):
        return masking.fill(images, noise).expand_as(images)
    return masking(images, torch.ones_like(images[:, 0], dtype=torch.bool))


def noise_by_image(masking: Masking, images: Tensor, seed: int, indices: Sequence[int]) -> Tensor | None:
    """The noise of `masking` for these images, each drawn from the seed and the index of its image.

    >>> noise_by_image(Constant(), torch.ones(1, 3, 2, 2), 0, [5]) is None
    True
    """
    if not isinstance(masking, Fill) or len(images) == 0:
        return None
    rows = []
    for image, index in zip(torch.split(images, 1), indices, strict=True):
        noise = masking.noise(image, generator(images.device, seed, index, _NOISE_STREAM))
        if noise is None:
            return None
        rows.append(noise)
    return torch.cat(rows)


def check_mask(images: Tensor, mask: Tensor) -> None:
    """Refuse images that are not [N, C, H, W] and masks that are not bool [N, H, W] of the same sizes."""
    if images.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got shape {list(images.shape)}")
    expected = (images.shape[0], *images.shape[2:])
    if mask.dtype != torch.bool or mask.shape != expected:
        raise InputError(f"the mask must be bool {list(expected)}, got {mask.dtype} {list(mask.shape)}")


def _floating(images: Tensor) -> Tensor:
    """In the precision of the arithmetic: float64 stays, everything else is computed in float32."""
    return images if images.dtype == torch.float64 else images.float()


def _like(values: Tensor, images: Tensor) -> Tensor:
    if not images.dtype.is_floating_point:
        values = values.round()
    return values.to(images.dtype)


def _convolve(values: Tensor, kernel: Tensor, pad: tuple[int, int]) -> Tensor:
    """Depthwise convolution with the border repeated; `pad` is (columns, rows)."""
    padded = functional.pad(values, (pad[0], pad[0], pad[1], pad[1]), mode="replicate")
    channels = values.shape[1]
    return functional.conv2d(padded, kernel.expand(channels, 1, *kernel.shape), groups=channels)
