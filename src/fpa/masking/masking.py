"""What a masking is: images and a mask in, masked copies out."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fpa.errors import InputError, first_line
from fpa.values import as_json, check_plain, name_of, shape_or_type, shown


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
    selects: ClassVar[bool] = False
    """Whether it leaves tokens out in place of filling the image; see `fpa.masking.Drop`."""

    @property
    def is_users(self) -> bool:
        """Whether it is not fpa's own, and may work in place on what it is given."""
        return type(self).__module__.partition(".")[0] != "fpa"

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

    @property
    def is_users(self) -> bool:  # noqa: D102
        return True

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
        return {"name": name_of(self.function), **as_json(getattr(self.function, "keywords", {}))}


def code_of(masking: Masking) -> Any:
    """The function or object whose code a masking runs."""
    return masking.function if isinstance(masking, FunctionMasking) else masking


_Lent = TypeVar("_Lent", Tensor, Tensor | None)


def lent(masking: Masking, tensor: _Lent) -> _Lent:
    """A tensor that others use too, for a masking to work on: a copy, unless the masking is fpa's own."""
    return tensor if tensor is None or not masking.is_users else tensor.clone()


def check_mask(images: Tensor, mask: Tensor) -> None:
    """Refuse images that are not [N, C, H, W] and masks that are not bool [N, H, W] of the same sizes."""
    for name, value in (("images", images), ("mask", mask)):
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, got {type(value).__name__}")
        if not torch.compiler.is_compiling():  # what is compiled was checked before
            check_plain(name, value)
    if images.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got shape {list(images.shape)}")
    expected = (images.shape[0], *images.shape[2:])
    if mask.dtype != torch.bool or mask.shape != expected:
        raise InputError(f"the mask must be bool {list(expected)}, got {mask.dtype} {list(mask.shape)}")


def finite_number(name: str, value: Any, above: float = -math.inf, least: float | None = None) -> float:
    """A parameter of a masking as a float; refuses what is not a finite number within its bounds."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Whole numbers have no largest one, floats have.
    good = good and above < value and abs(value) <= sys.float_info.max
    if not good or (least is not None and value < least):
        wanted = "a finite number" + (f" above {above:g}" if above > -math.inf else "")
        wanted += "" if least is None else f" of at least {least:g}"
        raise InputError(f"{name} must be {wanted}, got {shown(value)}")
    return float(value)


def floating(images: Tensor) -> Tensor:
    """In the precision of the arithmetic: float64 stays, everything else is computed in float32."""
    return images if images.dtype == torch.float64 else images.float()


def in_type_of(values: Tensor, images: Tensor) -> Tensor:
    """Computed values in the type of the images; bytes are rounded."""
    return (values if images.dtype.is_floating_point else values.round()).to(images.dtype)
