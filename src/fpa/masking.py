"""What "removing a pixel" means: the one definition used by training and by evaluation.

A masking takes images [N, C, H, W] and a bool mask [N, H, W], True where the pixel (all its channels) is
removed, and returns masked copies. Every masking that comes with fpa, ROAD's apart, is described by its
*fill*, the image with everything removed: a masked pixel takes the value the fill has at its place. The fully
masked image is also what integrated gradients start from by default.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fpa.described import described, described_fields, name_of, shape_or_type
from fpa.errors import InputError, first_line, unknown
from fpa.files import load_object
from fpa.imputation import harmonic
from fpa.schema import checked
from fpa.seeds import Stream, generator


class Masking:
    """Base of the maskings: a subclass says what an image looks like when the pixels of a mask are removed.

    It may depend on the whole mask. Random numbers come from `noise` alone, which the evaluation draws for
    each image from the seed and the image's number: along a curve, and in whatever batch, they stay the same.
    A frozen dataclass gets its JSON form, and its parameters in recipes and commands, from its fields.
    """

    most: ClassVar[float] = 1.0
    """The largest share of an image's pixels that can be removed; curves end there."""
    trains: ClassVar[bool] = True
    """Whether models can be trained with it: it never waits for the device."""

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor | None:
        """The random numbers [N, ...] needed for these images; None when there is no need of any."""
        return None

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
        """Copies of `images` [N, C, H, W] without the pixels of `mask` [N, H, W]."""
        raise NotImplementedError


MaskingLike = str | Mapping[str, Any] | Masking | Callable[[Tensor, Tensor], Tensor]
"""What `get_masking` accepts."""

Channels = tuple[float, ...]
"""One number per channel."""


@dataclass(frozen=True)
class FunctionMasking(Masking):
    """A plain function `(images, mask) -> images` as a masking."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        if torch.compiler.is_compiling():
            return self.function(images, mask)
        try:
            masked = self.function(images, mask)
        except TypeError as error:
            problem = f"{name_of(self.function)} cannot be a masking (images, mask) -> images"
            raise InputError(f"{problem}: {first_line(error)}") from error
        if not isinstance(masked, Tensor) or masked.shape != images.shape:
            wanted = f"must return images {list(images.shape)}"
            raise InputError(f"{name_of(self.function)} {wanted}, it returned {shape_or_type(masked)}")
        return masked

    def described(self) -> Any:
        """Where the function is, and its parameters."""
        return {"name": name_of(self.function), **described(getattr(self.function, "keywords", {}))}


@dataclass(frozen=True)
class Fill(Masking):
    """Base of the maskings that are known by the fully masked image; a subclass says what that is.

    Randomness is apart from the arithmetic: `noise` draws, `fill` is a pure function of its arguments.
    """

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """The fully masked images, of a shape that broadcasts to [N, C, H, W]."""
        raise NotImplementedError

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
        """Copies of `images` [N, C, H, W] with the pixels of `mask` [N, H, W] replaced by the fill.

        Unmasked pixels keep their exact bits; the input is never changed.
        """
        check_mask(images, mask)
        noise = self.noise(images) if noise is None else noise
        return torch.where(mask.unsqueeze(1), self.fill(images, noise), images)


@dataclass(frozen=True)
class Constant(Fill):
    """Masked pixels take one value, or one value per channel; 0 after normalisation is the paper's.

    >>> images, mask = torch.ones(1, 3, 2, 2), torch.tensor([[[True, False], [False, False]]])
    >>> Constant()(images, mask)[0, 0].tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    value: float | Channels = 0.0

    def __post_init__(self) -> None:
        values = self.value if isinstance(self.value, (tuple, list)) else (self.value,)
        checked = tuple(_number("value", value) for value in values)
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
        return _like(_floating(images).mean((2, 3), keepdim=True), images)


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
        values, noise = _floating(images), self.noise(images) if noise is None else noise
        low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
        return _like(torch.minimum(low + noise.to(values.dtype) * (high - low), high), images)


def gaussian(sigma: float, like: Tensor) -> Tensor:
    """The weights of a Gaussian line, up to three sigma to either side, on device and in dtype of `like`.

    >>> [round(weight, 3) for weight in gaussian(0.5, torch.zeros(0)).tolist()]
    [0.0, 0.106, 0.787, 0.106, 0.0]
    """
    reach = max(1, math.ceil(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
    line = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return line / line.sum()


@dataclass(frozen=True)
class Blur(Fill):
    """Masked pixels take their value in a Gaussian-blurred copy of the image.

    `sigma` is in pixels; by default a sixteenth of the shorter side (2 at 32 px, 14 at 224 px).
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            object.__setattr__(self, "sigma", _number("sigma", self.sigma, above=0))

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        sigma = min(images.shape[-2:]) / 16 if self.sigma is None else self.sigma
        values, channels = _floating(images), images.shape[1]
        line = gaussian(sigma, values)
        reach = len(line) // 2
        for kernel, pad in ((line[:, None], (0, 0, reach, reach)), (line[None, :], (reach, reach, 0, 0))):
            padded = functional.pad(values, pad, mode="replicate")
            values = functional.conv2d(padded, kernel.expand(channels, 1, *kernel.shape), groups=channels)
        return _like(values, images)


@dataclass(frozen=True)
class Bokeh(Fill):
    """Masked pixels take their value in a copy out of focus: each pixel the mean over a disc.

    `radius` is in pixels; by default an eighth of the shorter side (4 at 32 px, 28 at 224 px).
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            object.__setattr__(self, "radius", _number("radius", self.radius, above=0))

    def fill(self, images: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        radius = min(images.shape[-2:]) / 8 if self.radius is None else self.radius
        reach, values = math.floor(radius), _floating(images)
        halves = [math.isqrt(int(radius**2 - offset**2)) for offset in range(-reach, reach + 1)]
        # A row of the disc is a run of ones: the sum over the disc is a few box sums, each a difference
        # of running sums, so the cost grows with the radius and not with its square.
        padded = functional.pad(values, (reach, reach, reach, reach), mode="replicate")
        running = functional.pad(padded.to(torch.float64).cumsum(-1), (1, 0))
        (height, width), total = images.shape[-2:], torch.zeros_like(values, dtype=torch.float64)
        for row, half in enumerate(halves):
            rows = running[..., row : row + height, :]
            right = rows[..., reach + half + 1 : reach + half + 1 + width]
            total += right - rows[..., reach - half : reach - half + width]
        return _like((total / sum(2 * half + 1 for half in halves)).to(values.dtype), images)


@dataclass(frozen=True)
class Road(Masking):
    r"""Masked pixels take weighted means of their neighbours, and noise: noisy linear imputation.

    That of ROAD (Rong et al., 2022). For every masked pixel, with weights w of 1/6 for the four nearest and
    of 1/12 for the four diagonal neighbours, of those that are in the image: $\sum_j w_j (x - x_j) = 0$, all
    equations of an image together (`fpa.imputation`). The noise is normal, `sigma` times the range of each
    channel of the image. A pixel must be left: there is no fully masked image, curves end at 95 %, and 0
    stands in where others use it (integrated gradients).
    """

    sigma: float = 0.01
    most = 0.95
    trains = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _number("sigma", self.sigma, least=0))

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        device = images.device if generator is None else generator.device
        return torch.randn(images.shape, generator=generator, device=device).to(images.device)

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        check_mask(images, mask)
        if mask.flatten(1).all(1).any():
            raise InputError("road imputes pixels from those that are left: a mask must leave one or more")
        values, noise = _floating(images), self.noise(images) if noise is None else noise
        spread = self.sigma * (values.amax((2, 3), keepdim=True) - values.amin((2, 3), keepdim=True))
        imputed = harmonic(values, mask) + spread * noise.to(values.dtype)
        return torch.where(mask.unsqueeze(1), _like(imputed, images), images)


_KINDS = (Constant, black, Mean, Minimum, Maximum, Uniform, Blur, Bokeh, Road)
MASKINGS: dict[str, Callable[..., Masking]] = {make.__name__.lower(): make for make in _KINDS}
"""What makes a masking of its parameters, by name; add yours."""


ALIASES = {"zero": "constant", "noise": "uniform"}
"""Names people use for two of them."""


@checked
def get_masking(
    masking: MaskingLike | None = None, mean: Channels | None = None, std: Channels | None = None
) -> Masking:
    """A masking by name, by name and parameters, or the masking or function itself; without any, 0.

    Besides the names in `MASKINGS`, `module:Class` is a masking of your own; `black` needs the normalisation
    of the images.

    >>> get_masking("blur"), get_masking({"name": "blur", "sigma": 4})
    (Blur(sigma=None), Blur(sigma=4.0))
    >>> get_masking("zero") == get_masking("constant") == get_masking()
    True
    """
    if masking is None or isinstance(masking, Masking):
        return Constant() if masking is None else masking
    if callable(masking):
        return FunctionMasking(masking)
    parameters = {"name": masking} if isinstance(masking, str) else dict(masking)
    name = parameters.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"a masking must have a name, got {masking}")
    name = ALIASES.get(name, name)
    if name == "black" and not parameters:
        if mean is None or std is None:
            raise InputError("masking 'black' needs the mean and std the images were normalised with")
        return black(mean, std)
    if name not in MASKINGS and ":" not in name:
        raise unknown("masking", name, [*MASKINGS, *ALIASES, "module:Class"])
    make: Any = MASKINGS.get(name) or load_object(name, "masking")
    maker = isinstance(make, type) or make in MASKINGS.values()  # else it is a function of images and mask
    try:
        accepted = list(inspect.signature(make).parameters)[0 if maker else 2 :]
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a masking or a function of images and mask: {error}") from error
    taken = ", ".join(accepted)
    if not set(parameters) <= set(accepted):
        given = ", ".join(map(str, parameters))
        raise InputError(f"the masking {name} takes {taken or 'no parameters'}, got {given}")
    if not maker:
        return get_masking(partial(make, **parameters) if parameters else make)
    try:
        return get_masking(make(**parameters))
    except (TypeError, ValueError) as error:
        raise InputError(f"the masking {name} ({taken}): {error}") from error


def masking_json(masking: MaskingLike | None) -> dict[str, Any]:
    """The one JSON form of a masking; `get_masking` reads it again where its name says where it is.

    >>> masking_json("blur"), masking_json({"name": "blur", "sigma": 4})
    ({'name': 'blur', 'sigma': None}, {'name': 'blur', 'sigma': 4.0})
    """
    masking = get_masking(masking)
    if hasattr(masking, "described"):
        return dict(masking.described())
    name = next((name for name, kind in MASKINGS.items() if kind is type(masking)), name_of(masking))
    return {"name": name, **(described_fields(masking) if hasattr(masking, "__dataclass_fields__") else {})}


def fully_masked(masking: MaskingLike, images: Tensor, noise: Tensor | None = None) -> Tensor:
    """The images with every pixel removed, [N, C, H, W]; 0 for a masking that must leave some."""
    masking = get_masking(masking)
    if masking.most < 1:
        return torch.zeros_like(images)
    if isinstance(masking, Fill):
        return masking.fill(images, noise).expand_as(images)
    return masking(images, torch.ones_like(images[:, 0], dtype=torch.bool), noise)


def noise_by_image(masking: Masking, images: Tensor, seed: int, indices: Sequence[int]) -> Tensor | None:
    """The noise of `masking` for these images, each drawn from the seed and the index of its image.

    >>> noise_by_image(Constant(), torch.ones(1, 3, 2, 2), 0, [5]) is None
    True
    """
    rows = []
    for image, index in zip(torch.split(images, 1), indices, strict=True):
        noise = masking.noise(image, generator(images.device, seed, index, Stream.MASKING))
        if noise is None:
            return None
        rows.append(noise)
    return torch.cat(rows) if rows else None


def check_mask(images: Tensor, mask: Tensor) -> None:
    """Refuse images that are not [N, C, H, W] and masks that are not bool [N, H, W] of the same sizes."""
    for name, value in (("images", images), ("mask", mask)):
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, got {type(value).__name__}")
    if images.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got shape {list(images.shape)}")
    expected = (images.shape[0], *images.shape[2:])
    if mask.dtype != torch.bool or mask.shape != expected:
        raise InputError(f"the mask must be bool {list(expected)}, got {mask.dtype} {list(mask.shape)}")


def _number(name: str, value: Any, above: float = -math.inf, least: float | None = None) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and above < value < math.inf
    if not good or (least is not None and value < least):
        wanted = "a finite number" + (f" above {above:g}" if above > -math.inf else "")
        wanted += "" if least is None else f" of at least {least:g}"
        raise InputError(f"{name} must be {wanted}, got {value!r}")
    return float(value)


def _floating(images: Tensor) -> Tensor:
    """In the precision of the arithmetic: float64 stays, everything else is computed in float32."""
    return images if images.dtype == torch.float64 else images.float()


def _like(values: Tensor, images: Tensor) -> Tensor:
    return (values if images.dtype.is_floating_point else values.round()).to(images.dtype)
