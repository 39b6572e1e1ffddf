"""Loaders, data sets, tensors and lists people bring, in whatever form, as normalised batches."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils import data as torch_data

from fpa.data.normalisation import as_normalisation
from fpa.data.splits import check_labels, watched
from fpa.errors import InputError, warn
from fpa.values import check_plain, shown

IMAGE_KEYS = ("image", "images", "pixel_values", "img", "x", "input", "inputs")

LABEL_KEYS = ("label", "labels", "y", "target", "targets")

INDEX_KEYS = ("index", "indices", "idx")

# Resizing with antialiasing overshoots a little; normalised images leave 0..1 by far more.
_OVERSHOOT = 0.05

# Normalised pixels stay within a few standard deviations, bytes as floats do not.
_LIKE_BYTES = 16

BYTES = "like bytes (0..255)"
UNIT = "like 0..1"
NORMALISED = "normalised"


def value_range(images: Tensor) -> tuple[str, float, float]:
    """What the values look like, and their smallest and largest; "" where none is finite."""
    whole = not images.is_floating_point() and images.dtype != torch.bool
    finite = images if whole else images[images.isfinite()]
    if finite.numel() == 0:
        return "", 0.0, 0.0
    low, high = map(float, finite.aminmax())
    if whole and (low < 0 or high > 255):
        raise InputError(f"integer images must be in 0..255, but range from {low:g} to {high:g}")
    if whole or (low >= -1 and high > _LIKE_BYTES):
        return BYTES, low, high
    return UNIT if low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT else NORMALISED, low, high


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_image(value: Any) -> bool:
    """Whether a value is one image or an array of them, rather than a label."""
    return isinstance(value, Image.Image) or (_is_array(value) and value.ndim >= 2)


def _are_images(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(_is_image, value))


def inner_dataset(loader: Any) -> Any:
    """The data set inside of loaders and of parts of data sets; itself where it is neither."""
    for _ in range(5):  # a loader of a part of a data set, for instance
        loader = getattr(loader, "dataset", loader)
    return loader


def class_names_of(loader: Any) -> list[str] | None:
    """The names of the classes that a data set has, also inside of a loader; None where it has none."""
    classes = getattr(inner_dataset(loader), "classes", None)
    return [str(name) for name in classes] if isinstance(classes, list | tuple) else None


def has_own_labels(loader: Any) -> bool:
    """Whether something of the user's own makes the labels: they need not be numbers of the classes."""
    return getattr(inner_dataset(loader), "target_transform", None) is not None


def name_of(data: Any) -> str:
    """What images are called: by the kind of their data set, if they are in one."""
    plain = is_batch(data) or isinstance(data, Iterator | list)
    return "images" if plain else type(inner_dataset(data)).__name__


def is_batch(loader: Any) -> bool:
    """Whether the loader is itself one batch: images, with labels or without."""
    if _is_array(loader) or isinstance(loader, Mapping):
        return True
    if isinstance(loader, list):
        return _are_images(loader) and not any(_is_array(part) and part.ndim == 4 for part in loader)
    return isinstance(loader, tuple) and len(loader) > 0 and (_is_image(loader[0]) or _are_images(loader[0]))


def single_images(items: Any) -> bool:
    """Whether something that can be indexed holds single images, with labels or without, and not batches."""
    indexed = isinstance(items, Sized) and hasattr(items, "__getitem__") and not is_batch(items)
    if not indexed or isinstance(items, torch_data.IterableDataset) or len(items) == 0:
        return False
    image, label, _ = batch_parts(items[0])
    alone = isinstance(image, Image.Image) or (_is_array(image) and image.ndim < 4)
    return alone and (label is None or np.ndim(label) == 0)


def batch_parts(batch: Any) -> tuple[Any, Any, Any]:
    """Images, labels and numbers of a batch, None where it has none."""
    if isinstance(batch, Mapping):
        keys = {str(key).lower(): value for key, value in batch.items()}
        known = (IMAGE_KEYS, LABEL_KEYS, INDEX_KEYS)
        image, label, index = (next((keys[key] for key in some if key in keys), None) for some in known)
        if image is None:
            names = ", ".join(map(str, batch))
            expected = ", ".join(IMAGE_KEYS)
            raise InputError(f"a batch with the keys {names} has no images: expected one of {expected}")
        return image, label, index
    if _is_image(batch) or _is_array(batch):
        return batch, None, None
    if isinstance(batch, (list, tuple)) and batch:
        # Labels [N, 1] or [N, classes] look like a small image themselves.
        pair = len(batch) > 1 and all(map(_is_array, batch[:2])) and batch[0].ndim > batch[1].ndim == 2
        if len(batch) > 1 and _are_images(batch) and not pair:
            return batch, None, None
        if len(batch) <= 3 and (_is_image(batch[0]) or _are_images(batch[0])):
            return batch[0], *(batch[n] if len(batch) > n else None for n in (1, 2))
    what = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    accepted = "images, (images, labels), (images, labels, indices) or a dict of them"
    raise InputError(f"a batch must be {accepted}, with images as tensors, arrays or PIL images; got {what}")


def collated(items: list[Any]) -> Any:
    """Items of a data set as one batch: as PyTorch does it, or, where it cannot, images and labels as lists.

    >>> images, labels = collated([(Image.new("RGB", (4, 4)), 2), (Image.new("RGB", (4, 4)), 0)])
    >>> len(images), labels
    (2, [2, 0])
    """
    try:
        return torch_data.default_collate(items)
    except (TypeError, RuntimeError):  # PIL images, or images of several sizes
        images, labels, _ = map(list, zip(*map(batch_parts, items), strict=True))
        return images, None if any(label is None for label in labels) else labels


def as_batch(pixels: Any, channels: int | None) -> Tensor:
    """Any form of images as a tensor [N, C, H, W] in its own range."""
    if isinstance(pixels, (list, tuple)):
        parts = [as_batch(image, channels) for image in pixels]
        for number, part in enumerate(parts):
            check_size(f"image {number}", part, list(parts[0].shape[1:]))
        return torch.cat(parts)
    if isinstance(pixels, Image.Image):
        grey = channels == 1 or (channels is None and pixels.mode in ("L", "1"))
        pixels = np.array(pixels.convert("L" if grey else "RGB"))
    images = as_tensor("images", pixels)
    if images.ndim == 2:
        return images[None, None]
    if images.ndim == 3:
        if images.shape[0] == (channels or 3):
            return images[None]
        if images.shape[-1] not in (3, 4):
            return images[:, None]  # grey images
        images = images[None]
    if images.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got {list(images.shape)}")
    if images.shape[1] in (1, 3, channels):
        return images
    if images.shape[-1] == 4 and channels == 3:  # red, green, blue and opacity
        images = images[..., :3]
    last = images.shape[-1] in (1, 3, channels) or (images.shape[-1] == 4 and channels is None)
    return images.permute(0, 3, 1, 2) if last else images


def as_tensor(what: str, values: Any) -> Tensor:
    """An array or a tensor as a plain tensor; anything else is refused by name."""
    try:
        if isinstance(values, np.ndarray):  # torch takes no read-only memory, other byte orders, [..., ::-1]
            values = np.require(values, values.dtype.newbyteorder("="), ["W"])
            values = values.copy() if any(stride < 0 for stride in values.strides) else values
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"{what} must be numbers, got {kind}") from error
    return check_plain(what, tensor)


def check_size(what: str, images: Tensor, expected: list[int]) -> None:
    """Refuse images [N, C, H, W] of another shape than the first ones have."""
    if (shape := list(images.shape[1:])) != expected:
        problem = f"images of different sizes: {what} has {shape}, the first one {expected}"
        raise InputError(f"{problem}: resize or crop them to one size")


def are_numbers(batches: Sequence[Any], channels: int | None) -> bool:
    """Whether the third parts of these batches number the images; they may be paths or anything else."""
    try:
        parts = [(values, len(as_batch(images, channels))) for images, _, values in map(batch_parts, batches)]
        numbers = torch.cat([whole_numbers("indices", *part) for part in parts])
    except InputError:
        return False
    return len(set(numbers.tolist())) == len(numbers)


def whole_numbers(name: str, values: Any, count: int) -> Tensor:
    """Labels or indices as int64 [count] on the CPU; -1 where there are none."""
    if values is None:
        return torch.full((count,), -1)
    try:
        numbers = as_tensor(name, values).cpu()
    except InputError as error:
        raise InputError(f"{name} must be whole numbers, one for each image, got {shown(values)}") from error
    if numbers.ndim == 0 or numbers.shape == (count, 1):
        numbers = numbers.reshape(-1)
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        kind = f"{numbers.dtype} {list(numbers.shape)}"
        raise InputError(f"{name} must be whole numbers [{count}], one for each image, got {kind}")
    return numbers.to(torch.int64)


class Normaliser:
    """Images in any range as a model takes them; the range of the first images holds for all."""

    def __init__(self, normalisation: Any = None, channels: int | None = None) -> None:
        self.normalisation = as_normalisation(normalisation)
        self.channels = channels or (len(self.normalisation.mean) if self.normalisation else None)
        self._range = ""

    def __call__(self, images: Tensor, number: int = 0) -> Tensor:
        """Images [N, C, H, W], normalised; `number` is that of their batch, for errors."""
        if images.shape[1] == 1:
            images = images.expand(-1, self.channels or 1, -1, -1)
        if self.channels not in (None, images.shape[1]):
            problem = f"the model takes {self.channels} channels, but the images have {images.shape[1]}"
            raise InputError(f"{problem} ({list(images.shape)}): convert them")
        kind, low, high = value_range(images)
        span = f"from {low:.3g} to {high:.3g}"
        # A dark batch of bytes or a pale one of normalised images may look like 0..1; else none differs.
        if self._range and kind not in (self._range, UNIT, ""):
            problem = f"batch {number} ranges {span}, but the first one looked {self._range}"
            raise InputError(f"{problem}: give all images in the same range")
        if not self._range and self.normalisation is None:
            remedy = "pass normalisation=fpa.data.Normalisation(mean, std)"
            if kind == BYTES:
                problem = f"the images are not normalised (they range {span})"
                raise InputError(f"{problem}: normalise them as in training, or {remedy}, for pixels in 0..1")
            if kind == UNIT:
                problem = "the images lie in 0..1 and are used as they are; if the model was trained on"
                warn(f"{problem} normalised images, {remedy}")
        self._range = self._range or kind
        images = images if images.dtype == torch.float64 else images.float()
        if self.normalisation is None or self._range == NORMALISED:
            return images
        return self.normalisation(images / 255 if self._range == BYTES else images)


class ImageBatches:
    """Batches (images [N, C, H, W] normalised, labels [N], indices [N]) from whatever holds images.

    They can be read again and again if the loader can be.

    `loader` is a tensor, an array, a list of PIL images, (images, labels), a data set, or anything that
    yields such batches; a batch may also be a dict ("image", "pixel_values", "label", ...) or have a third
    part, which numbers the images if it is whole numbers. Unknown labels are -1. Grey images are repeated
    to the `channels` the model takes, and opacity, a fourth channel at the end, is dropped.

    With a `normalisation`, bytes and floats in 0..255 or in 0..1 are normalised, images outside of these
    ranges are taken to be normalised already. Without one, bytes are refused, and a warning tells that
    images in 0..1 are used as they are. The first batch decides for all. Without `numbers` a third part is
    left aside: in training an image may come twice.

    >>> grey = np.zeros((2, 8, 8), dtype=np.uint8)
    >>> batches = ImageBatches((grey, [3, 1]), normalisation=((0.5,) * 3, (0.5,) * 3))
    >>> next(iter(batches))[0].shape
    torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self, loader: Any, normalisation: Any = None, channels: int | None = None, numbers: bool = True
    ) -> None:
        self._normalised = Normaliser(normalisation, channels)
        self.normalisation = self._normalised.normalisation
        if isinstance(loader, str | Path):
            remedy = "load them with fpa.data.load_data(name), or use the command fpa evaluate --data"
            raise InputError(f"pass the images themselves, not their name {str(loader)!r}: {remedy}")
        self.source = [loader] if is_batch(loader) else loader
        if hasattr(self.source, "__getitem__") and not hasattr(self.source, "__iter__"):
            self.source = torch_data.DataLoader(loader, batch_size=None, generator=torch.Generator())
        try:
            self.one_pass = iter(self.source) is self.source
        except TypeError as error:
            expected = "a tensor, an array, a list, or a loader that yields batches of them"
            raise InputError(f"the images must be {expected}, got {type(loader).__name__}") from error
        random = (torch_data.RandomSampler, torch_data.SubsetRandomSampler, torch_data.WeightedRandomSampler)
        self.shuffled = not in_order(self.source)
        """Whether the loader may give the images in another order than the data set's."""
        self.drawn = any(isinstance(sampler, random) for sampler in _samplers(self.source))
        """Whether the loader draws the images at random, in another order every time."""
        self.seen = set[int]()
        self._shape = list[int]()
        self._needed = self._warned = False
        self._checks_labels = numbers  # in training, what is below 0 may be left out on purpose
        self.numbered = False
        """Whether the batches bring the numbers of their images."""
        source = watched(iter(self.source))
        if not (taken := list(itertools.islice(source, 1))):
            raise InputError("there are no images: the loader yields nothing")
        self.first = self.converted(taken[0], 0, 0)[0]
        """The images of the first batch, normalised; a loader that can be read once loses nothing."""
        if numbers and batch_parts(taken[0])[2] is not None:
            if len(self.first) == 1:
                taken += itertools.islice(source, 1)  # one image alone cannot show that numbers differ
            self.numbered = are_numbers(taken, self._normalised.channels)
        self._taken = taken if self.one_pass else []

    def check_numbers(self) -> None:
        """Refuse a loader of which one cannot tell which image is which, now or when a number repeats."""
        self._needed = True
        if self.shuffled and not self.numbered:
            problem = "precomputed maps are matched to images by number, but the loader shuffles them"
            remedy = "use shuffle=False, without a sampler, or yield (images, labels, indices)"
            raise InputError(f"{problem}: {remedy}")

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        taken = self._taken
        self._taken = []
        self.seen = set()
        at = 0
        for number, brought in enumerate(itertools.chain(taken, watched(self.source))):
            batch = self.converted(brought, number, at)
            at += len(batch[0])
            yield batch

    def converted(self, brought: Any, number: int, at: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch as it came, as (images, labels, indices); it has this number and begins at image `at`."""
        pixels, labels, numbers = batch_parts(brought)
        images = self._normalised(as_batch(pixels, self._normalised.channels), number)
        self._shape = self._shape or list(images.shape[1:])
        check_size(f"batch {number}", images, self._shape)
        count = len(images)
        indices = torch.arange(at, at + len(images))
        if self.numbered:
            indices = whole_numbers("indices", numbers, count)
            self._check_new(indices.tolist())
        classes = whole_numbers("labels", labels, count)
        if self._checks_labels:
            check_labels(classes, indices)
        return images, classes, indices

    def _check_new(self, numbers: list[int]) -> None:
        """Refuse numbers of images that came before: then they number something else, or images repeat."""
        repeated = [value for value, times in Counter(numbers).items() if times > 1 or value in self.seen]
        self.seen.update(numbers)
        if not repeated or self._warned:
            return
        remedy = "leave it out, or give every image a unique number"
        rule = f"the third part of a batch (or its index) numbers the images, so {remedy}"
        problem = f"the number {repeated[0]} belongs to two images: {rule}"
        if self._needed:
            raise InputError(problem)
        warn(f"{problem}; such images get the same noise and order of ties")
        self._warned = True


def in_order(loader: Any) -> bool:
    """Whether a loader gives the images of its data set one after the other, from the first to the last.

    Anything without a sampler does, as far as that can be seen; so does a data set that is only iterated.

    >>> from torch.utils.data import DataLoader, SubsetRandomSampler
    >>> import torch
    >>> images = torch.zeros(4, 1, 2, 2)
    >>> in_order(DataLoader(images)), in_order(DataLoader(images, sampler=SubsetRandomSampler([2, 0])))
    (True, False)
    """
    if isinstance(getattr(loader, "dataset", None), torch_data.IterableDataset):
        return True
    batches = getattr(loader, "batch_sampler", None)
    # A batch sampler of another kind may draw as it likes, whatever it says about a sampler.
    plain = batches is None or type(batches) is torch_data.BatchSampler
    return plain and all(isinstance(sampler, torch_data.SequentialSampler) for sampler in _samplers(loader))


def _samplers(loader: Any) -> list[Any]:
    """What chooses the images of a loader: its sampler, and that of its batches."""
    samplers = (getattr(part, "sampler", None) for part in (loader, getattr(loader, "batch_sampler", None)))
    return [sampler for sampler in samplers if sampler is not None]
