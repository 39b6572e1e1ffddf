"""Loaders, data sets, tensors and lists people bring, as normalised batches."""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import data as torch_data

from fpa.data import forms
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.errors import InputError


class Normaliser:
    """Images in any range as a model takes them; the range of the first images holds for all."""

    def __init__(self, normalisation: Any = None, channels: int | None = None) -> None:
        self.normalisation = as_normalisation(normalisation)
        self.channels = channels or (len(self.normalisation.mean) if self.normalisation else None)
        self._range: str | None = None

    def __call__(self, images: Tensor, number: int = 0) -> Tensor:
        """Images [N, C, H, W], normalised; `number` is that of their batch, for errors."""
        if self.channels is not None and images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise InputError(
                    f"the model takes {self.channels} channels, the images have {images.shape[1]} "
                    f"({list(images.shape)}): convert them"
                )
            images = images.expand(-1, self.channels, -1, -1)
        kind, low, high = forms.value_range(images)
        if self._range is None and not math.isnan(low):
            self._range = kind
            if self.normalisation is None:
                _explain(kind, low, high)
        elif not math.isnan(low) and not forms.same_range(str(self._range), kind):
            raise InputError(
                f"batch {number} reaches from {low:.3g} to {high:.3g}, the first one looked {self._range}: "
                "give all images in the same range"
            )
        images = images if images.dtype == torch.float64 else images.float()
        if self.normalisation is None or self._range == forms.NORMALISED:
            return images
        return self.normalisation(images / 255 if self._range == forms.BYTES else images)


def _explain(kind: str, low: float, high: float) -> None:
    """Say what the range of images without a normalisation means, if anything has to be said."""
    if kind == forms.BYTES:
        raise InputError(
            f"the images are not normalised (they reach from {low:.3g} to {high:.3g}): normalise them as in "
            "training, or pass normalisation=fpa.data.Normalisation(mean, std), for pixels in 0..1"
        )
    if kind == forms.UNIT:
        warnings.warn(
            "the images lie in 0..1 and are used as they are; if the model was trained on normalised "
            "images, pass normalisation=fpa.data.Normalisation(mean, std)",
            stacklevel=2,
        )


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

    >>> import numpy as np
    >>> grey = np.zeros((2, 8, 8), dtype=np.uint8)
    >>> batches = image_batches((grey, [3, 1]), Normalisation((0.5,) * 3, (0.5,) * 3))
    >>> next(iter(batches))[0].shape
    torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self,
        loader: Any,
        normalisation: Normalisation | None = None,
        channels: int | None = None,
        numbers: bool = True,
    ) -> None:
        self._normalised = Normaliser(normalisation, channels)
        self.normalisation, self.numbers = self._normalised.normalisation, numbers
        if isinstance(loader, str | Path):
            raise InputError(
                f"the images must be given, not their name {str(loader)!r}: load them, for instance with "
                "data = fpa.data.load_data(name), or use the command fpa evaluate --data"
            )
        self._source = [loader] if forms.is_batch(loader) else loader
        if hasattr(self._source, "__getitem__") and not hasattr(self._source, "__iter__"):
            self._source = _Items(self._source)
        try:
            self.one_pass = iter(self._source) is self._source
        except TypeError as error:
            raise InputError(
                "the images must be a tensor, an array, a list, or a loader that yields batches of them, got "
                f"{type(loader).__name__}"
            ) from error
        self._taken: list[Any] = []
        self._numbered = False
        self.seen: set[int] = set()
        self._needed = self._warned = False
        self._first: Tensor | None = None

    @property
    def dataset(self) -> Sequence[Any] | None:
        """Something with the number of images as its length; None where that is not known."""
        if isinstance(self._source, list) and len(self._source) == 1:
            return range(len(self.first))
        inner = self._source if isinstance(self._source, _Items) else getattr(self._source, "sampler", None)
        inner = inner if isinstance(inner, Sized) else getattr(self._source, "dataset", None)
        return range(len(inner)) if isinstance(inner, Sized) else None

    @property
    def shuffled(self) -> bool:
        """Whether the loader may give the images in another order than the data set's."""
        return not in_order(self._source)

    @property
    def drawn(self) -> bool:
        """Whether the loader draws the images at random, in another order every time."""
        random = (torch_data.RandomSampler, torch_data.SubsetRandomSampler, torch_data.WeightedRandomSampler)
        return any(isinstance(sampler, random) for sampler in _samplers(self._source))

    def check_numbers(self) -> None:
        """Refuse a loader of which one cannot tell which image is which, now or when a number repeats."""
        self._needed, _ = True, self.first
        if self.shuffled and not self._numbered:
            raise InputError(SHUFFLED)

    @property
    def first(self) -> Tensor:
        """The images of the first batch, normalised; a loader that can be read once loses nothing."""
        if self._first is None:
            source = iter(self._source)
            taken = list(itertools.islice(source, 1))
            if not taken:
                raise InputError("there are no images: the loader yields nothing")
            self._first = self.converted(taken[0], 0, 0)[0]
            if self.numbers and forms.batch_parts(taken[0])[2] is not None:
                if len(self._first) == 1:
                    taken += itertools.islice(source, 1)  # one image alone cannot show that numbers differ
                self._numbered = forms.are_numbers(taken, self._normalised.channels)
            if self.one_pass:
                self._taken = taken
        return self._first

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        _ = self.first  # what its range says holds for all batches
        taken, self._taken = self._taken, []
        self.seen, at = set(), 0
        for number, raw in enumerate(itertools.chain(taken, self._source)):
            batch = self.converted(raw, number, at)
            at += len(batch[0])
            yield batch

    def converted(self, raw: Any, number: int, at: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch as it came, as (images, labels, indices); it has this number and begins at image `at`."""
        pixels, labels, numbers = forms.batch_parts(raw)
        images = self._normalised(forms.as_batch(pixels, self._normalised.channels), number)
        if self._first is not None and images.shape[1:] != self._first.shape[1:]:
            raise InputError(
                f"images of different sizes: batch {number} has {list(images.shape[1:])}, the first one "
                f"{list(self._first.shape[1:])}: resize or crop them to one size"
            )
        count = len(images)
        indices = torch.arange(at, at + count)
        if self._numbered:
            indices = forms.whole_numbers("indices", numbers, count)
            self._check_new(indices.tolist())
        return images, forms.whole_numbers("labels", labels, count), indices

    def _check_new(self, numbers: list[int]) -> None:
        """Refuse numbers of images that came before: then they number something else, or images repeat."""
        repeated = next((number for number in numbers if number in self.seen), None)
        if repeated is None and len(set(numbers)) < len(numbers):
            repeated = max(numbers, key=numbers.count)
        self.seen.update(numbers)
        if repeated is None or self._warned:
            return
        problem = (
            f"the number {repeated} came with two images: the third part of a batch (or its index) "
            "numbers the images, so leave it out, or give every image a number of its own once"
        )
        if self._needed:
            raise InputError(problem)
        warnings.warn(f"{problem}; noise and ties of such images are drawn alike", stacklevel=4)
        self._warned = True


image_batches = ImageBatches


SHUFFLED = (
    "precomputed maps belong to images by number, and the loader shuffles them: use shuffle=False, "
    "without a sampler, or yield (images, labels, indices)"
)


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
    batches = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), getattr(batches, "sampler", None))
    return [sampler for sampler in samplers if sampler is not None]


class _Items:
    """A data set without an iterator of its own, item by item."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return (self.items[number] for number in range(len(self)))
