"""How the values of images are brought to what a model takes."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fpa.errors import InputError
from fpa.values import check_types, shown


@dataclass(frozen=True)
class Normalisation:
    """`(x - mean) / std` for each channel, x in 0..1.

    Nothing is copied from the host, so a call can be compiled and captured in a CUDA graph.

    >>> Normalisation((0.5,), (0.5,))(torch.tensor([[[0, 51, 255]]], dtype=torch.uint8))
    tensor([[[-1.0000, -0.6000,  1.0000]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        check_types(self)
        fits = len(self.mean) == len(self.std) > 0 and all(map(math.isfinite, (*self.mean, *self.std)))
        if not fits or min(self.std) <= 0:
            values = f"mean {list(self.mean)} and std {list(self.std)}"
            raise InputError(f"a normalisation needs a mean and a positive std for every channel: {values}")
        # Pixels are in 0..1: no mean or deviation of theirs is anywhere near these.
        if min(self.mean) < -1 or max(self.mean) > 2 or max(self.std) > 10:
            values = f"mean {list(self.mean)} and std {list(self.std)}"
            raise InputError(
                f"a normalisation is for pixels in 0..1: divide those for 0..255 by 255: {values}"
            )

    def __call__(self, images: Tensor) -> Tensor:
        """Bytes, or floats in 0..1, [..., C, H, W] to normalised float32."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        elif not images.dtype.is_floating_point:
            raise InputError(f"images must be uint8 in 0..255 or floats in 0..1, got {images.dtype}")
        return (images.float() - self._channels(self.mean, images)) / self._channels(self.std, images)

    def to_json(self) -> dict[str, list[float]]:
        """Its numbers by name."""
        return {"mean": [*self.mean], "std": [*self.std]}

    def inverse(self, images: Tensor) -> Tensor:
        """Normalised images [..., C, H, W] back to 0..1, as float32."""
        return images.float() * self._channels(self.std, images) + self._channels(self.mean, images)

    def _channels(self, values: tuple[float, ...], images: Tensor) -> Tensor | float:
        if images.ndim < 3 or images.shape[-3] != len(values):
            shape = list(images.shape)
            raise InputError(f"this normalisation takes images [..., {len(values)}, H, W], got {shape}")
        if len(set(values)) == 1:
            return values[0]
        # Filled where the images are: a tensor made on the host would have to be copied, which waits.
        return torch.cat([images.new_full((1, 1, 1), value, dtype=torch.float32) for value in values])


def minus_one_to_one(channels: int) -> Normalisation:
    """The normalisation that scales 0..1 to -1..1."""
    return Normalisation((0.5,) * channels, (0.5,) * channels)


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The means and deviations of ImageNet, which torchvision's models and many others take."""


def as_normalisation(values: Any) -> Normalisation | None:
    """How images are normalised, in any of the forms that people have it in; None stays None.

    A Normalisation, (mean, std), "imagenet", or a transform: `v2.Normalize`, torchvision's presets, or a
    `Compose` with one of them in it.

    >>> as_normalisation(((0.5,), (0.25,)))
    Normalisation(mean=(0.5,), std=(0.25,))
    >>> as_normalisation("imagenet") == IMAGENET
    True
    """
    if values is None or isinstance(values, Normalisation):
        return values
    if isinstance(values, str) and values.lower() == "imagenet":
        return IMAGENET
    parts: Any = values
    if not isinstance(values, (tuple, list)):
        steps = [each for each in getattr(values, "transforms", [values]) if hasattr(each, "mean")]
        found = steps[0] if len(steps) == 1 else None
        parts = [getattr(found, name, 0) for name in ("mean", "std")]
    try:
        mean, std = (tuple(float(value) for value in part) for part in parts)
    except (TypeError, ValueError) as error:
        pair = "(mean, std) with a number for each channel, v2.Normalize(mean, std), 'imagenet'"
        expected = f"{pair}, or fpa.Normalisation(mean, std)"
        raise InputError(f"normalisation must be {expected}, got {shown(values)}") from error
    return Normalisation(mean, std)
