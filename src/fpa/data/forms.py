"""The many forms a batch comes in, and what its values look like."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate

from fpa.errors import InputError

IMAGE_KEYS = ("image", "images", "pixel_values", "img", "x", "input", "inputs")

LABEL_KEYS = ("label", "labels", "y", "target", "targets")

INDEX_KEYS = ("index", "indices", "idx")

# Resizing with antialiasing overshoots a little; normalised images leave 0..1 by far more.
_OVERSHOOT = 0.05

# Normalised pixels stay within a few standard deviations, bytes as floats do not.
_LIKE_BYTES = 16

BYTES, UNIT, NORMALISED = "like bytes (0..255)", "like 0..1", "normalised"


def value_range(images: Tensor) -> tuple[str, float, float]:
    """What the values look like, and their smallest and largest."""
    if images.dtype == torch.bool:
        return UNIT, 0.0, 1.0
    whole = not images.is_floating_point()
    finite = images if whole else images[images.isfinite()]
    if finite.numel() == 0:
        return NORMALISED, float("nan"), float("nan")
    low, high = (float(value) for value in finite.aminmax())
    if whole:
        if low < 0 or high > 255:
            raise InputError(f"whole-numbered images must be in 0..255, they reach from {low:g} to {high:g}")
        return BYTES, low, high
    if low >= -1 and high > _LIKE_BYTES:
        return BYTES, low, high
    unit = low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT
    return (UNIT if unit else NORMALISED), low, high


def same_range(first: str, now: str) -> bool:
    """A dark batch of bytes or a pale one of normalised images may look like 0..1; else none differs."""
    return first == now or (now == UNIT and first != UNIT)


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_image(value: Any) -> bool:
    """Whether a value is one image or an array of them, rather than a label."""
    return isinstance(value, Image.Image) or (_is_array(value) and value.ndim >= 2)


def _are_images(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(_is_image, value))


def is_batch(loader: Any) -> bool:
    """Whether the loader is itself one batch: images, with labels or without."""
    if _is_array(loader) or isinstance(loader, Mapping):
        return True
    if isinstance(loader, list):
        return _are_images(loader) and not any(_is_array(part) and part.ndim == 4 for part in loader)
    return isinstance(loader, tuple) and len(loader) > 0 and (_is_image(loader[0]) or _are_images(loader[0]))


def single_images(items: Any) -> bool:
    """Whether a sequence holds single images, with labels or without, instead of batches."""
    if len(items) == 0:
        return False
    image, label, _ = batch_parts(items[0])
    alone = isinstance(image, Image.Image) or (_is_array(image) and image.ndim < 4)
    return alone and (label is None or np.ndim(label) == 0)


def batch_parts(batch: Any) -> tuple[Any, Any, Any]:
    """Images, labels and numbers of a batch, None where it has none."""
    if isinstance(batch, Mapping):
        keys = {str(key).lower(): value for key, value in batch.items()}
        image = next((key for key in IMAGE_KEYS if key in keys), None)
        if image is None:
            raise InputError(
                f"a batch with the keys {', '.join(map(str, batch))} has no images: "
                f"expected one of {', '.join(IMAGE_KEYS)}"
            )
        label, index = (
            next((keys[key] for key in known if key in keys), None) for known in (LABEL_KEYS, INDEX_KEYS)
        )
        return keys[image], label, index
    if _is_image(batch) or _is_array(batch):
        return batch, None, None
    if isinstance(batch, (list, tuple)) and batch:
        if len(batch) > 1 and _are_images(batch) and not _is_image_pair(batch):
            return batch, None, None
        if len(batch) <= 3 and (_is_image(batch[0]) or _are_images(batch[0])):
            return batch[0], *(batch[n] if len(batch) > n else None for n in (1, 2))
    what = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    raise InputError(
        "a batch must be images, (images, labels), (images, labels, indices) or a dict of them, with images "
        f"as tensors, arrays or PIL images; got {what}"
    )


def collated(items: list[Any]) -> Any:
    """Items of a data set as one batch: as PyTorch does it, or, where it cannot, images and labels as lists.

    >>> images, labels = collated([(Image.new("RGB", (4, 4)), 2), (Image.new("RGB", (4, 4)), 0)])
    >>> len(images), labels
    (2, [2, 0])
    """
    try:
        return default_collate(items)
    except (TypeError, RuntimeError):  # PIL images, or images of several sizes
        parts = [batch_parts(item) for item in items]
        labels = [label for _, label, _ in parts]
        return [image for image, _, _ in parts], None if any(label is None for label in labels) else labels


def _is_image_pair(batch: Sequence[Any]) -> bool:
    """Images and labels [N, 1] or [N, classes], which look like a small image themselves."""
    first, second = batch[:2]
    return _is_array(first) and _is_array(second) and first.ndim > second.ndim == 2


def as_batch(pixels: Any, channels: int | None) -> Tensor:
    """Any form of images as a tensor [N, C, H, W] in its own range."""
    if isinstance(pixels, (list, tuple)):
        parts = [as_batch(image, channels) for image in pixels]
        sizes = sorted({tuple(part.shape[1:]) for part in parts})
        if len(sizes) > 1:
            raise InputError(
                f"images of different sizes, {list(sizes[0])} and {list(sizes[1])}: "
                "resize or crop them to one size"
            )
        return torch.cat(parts)
    if isinstance(pixels, Image.Image):
        grey = channels == 1 or (channels is None and pixels.mode in ("L", "1"))
        pixels = np.array(pixels.convert("L" if grey else "RGB"))
    try:
        images = torch.as_tensor(pixels).detach()
    except TypeError as error:
        raise InputError(f"images must be numbers, got an array of {pixels.dtype}") from error
    if images.ndim == 2:
        return images[None, None]
    if images.ndim == 3:
        if images.shape[0] != (channels or 3) and images.shape[-1] not in (3, 4):
            return images[:, None]  # grey images
        one = images[None]
        return one if images.shape[0] == (channels or 3) else as_batch(one, channels)
    if images.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got {list(images.shape)}")
    if images.shape[1] in (1, 3, channels):
        return images
    if images.shape[-1] == 4 and channels == 3:  # red, green, blue and opacity
        images = images[..., :3]
    last = images.shape[-1] in (1, 3, channels) or (images.shape[-1] == 4 and channels is None)
    return images.permute(0, 3, 1, 2) if last else images


def are_numbers(batches: Sequence[Any], channels: int | None) -> bool:
    """Whether the third parts of these batches number the images; they may be paths or anything else."""
    numbers: list[int] = []
    for images, _, values in map(batch_parts, batches):
        try:
            numbers += whole_numbers("indices", values, len(as_batch(images, channels))).tolist()
        except InputError:
            return False
    return len(set(numbers)) == len(numbers)


def whole_numbers(name: str, values: Any, count: int) -> Tensor:
    """Labels or indices as int64 [count] on the CPU; -1 where there are none."""
    if values is None:
        return torch.full((count,), -1)
    try:
        numbers = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be whole numbers, one for each image, got {values!r:.80}") from error
    if numbers.ndim == 0 or numbers.shape == (count, 1):
        numbers = numbers.reshape(-1)
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise InputError(
            f"{name} must be whole numbers [{count}], one for each image, got {numbers.dtype} "
            f"{list(numbers.shape)}"
        )
    return numbers.to(torch.int64)
