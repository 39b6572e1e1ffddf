"""Sources of the images that people bring: tensors, data sets, loaders and streams, in numbered blocks."""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import tee
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fpa.data.blocks import PROBE, ImageSource, IndexedSource, Rows
from fpa.data.loaders import ImageBatches, class_names_of, has_own_labels, inner_dataset, name_of
from fpa.data.splits import watched
from fpa.errors import InputError


def _are_tensors(data: Any) -> bool:
    """Whether images were given as a tensor or an array, with labels or in a `TensorDataset` or without."""
    images = data[0] if isinstance(data, tuple | list) and data else data
    return isinstance(images, Tensor | np.ndarray) or isinstance(inner_dataset(data), TensorDataset)


class BroughtSource(ImageSource):
    """A source that reads what people bring, through `ImageBatches`."""

    def __init__(self, data: Any, batches: ImageBatches, outputs: Tensor | None, count: int | None) -> None:
        self.name = name_of(data)
        self.classes = class_names_of(data)
        self.lost = set()
        self._batches = batches
        self._outputs = outputs
        self._limit = count
        self.normalisation = batches.normalisation
        self.first = batches.first[:PROBE]
        self.drawn = batches.drawn
        self.own_labels = has_own_labels(data)
        self.exact = _are_tensors(data)

    def check_numbers(self) -> None:  # noqa: D102
        self._batches.check_numbers()

    def _limited(self, total: int) -> int:
        count = self._choose(self._limit, range(total))
        self.total = None if self._batches.numbered else total
        if self._chosen is not None and not self._batches.numbered:
            self.numbers = self._chosen.tolist()
        return count


class BatchedSource(BroughtSource, IndexedSource):
    """A loader that reads its data set in order: its batches are addressed by number."""

    def __init__(
        self,
        data: Any,
        batches: ImageBatches,
        outputs: Tensor | None,
        count: int | None,
        *,
        loader: DataLoader[Any],
    ) -> None:
        super().__init__(data, batches, outputs, count)
        sampler: Any = loader.batch_sampler
        self._loader = loader
        self._size = sampler.batch_size
        total = len(sampler.sampler)
        total = total - total % self._size if sampler.drop_last else total
        self.count = self._limited(total)

    def _pieces(self, start: int, stop: int) -> Iterator[range]:
        # Whole batches, also where a block needs only a part of one: a collate_fn may mix its items.
        size = self._size
        numbers = range(start // self._size, -(-stop // self._size) if start < stop else 0)
        return (range(number * size, min((number + 1) * size, self.count)) for number in numbers)

    def _read_pieces(self, pieces: Iterable[range]) -> Iterator[tuple[range, Rows]]:
        self._batches.seen.clear()
        # Batches are made as the loader makes them, so that its collate_fn sees the same items together.
        given = self._loader
        # The loader's workers run ahead of the pieces that are yielded here.
        pieces, ahead = tee(pieces)
        chosen = self._chosen
        items = (list(piece) if chosen is None else chosen[list(piece)].tolist() for piece in ahead)
        loader: Any = DataLoader(
            given.dataset,
            batch_sampler=items,
            collate_fn=given.collate_fn,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            num_workers=given.num_workers,
            prefetch_factor=given.prefetch_factor,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            generator=torch.Generator(),  # leaves the global one alone
        )
        for batch, piece in zip(watched(loader), pieces, strict=True):
            number = piece.start // self._size
            images, labels, indices = self._batches.converted(batch, number, piece.start)
            if len(images) > len(piece):
                seen = f"batch {number} holds {len(images)} images, but is made of {len(piece)} items"
                raise InputError(f"{seen} of the data set: every item must be one image")
            if self._chosen is not None and not self._batches.numbered:  # they were counted as they came
                indices = self._chosen[indices]
            yield piece, (torch.tensor(piece), images, labels, indices)


class StreamSource(BroughtSource):
    """Images that come one batch after the other, or all at once; blocks are numbered as they come."""

    def __init__(self, data: Any, batches: ImageBatches, outputs: Tensor | None, count: int | None) -> None:
        super().__init__(data, batches, outputs, count)
        source = self._batches.source
        first = self._batches.first
        self._read_before = False
        self.indexed = isinstance(source, list) and len(source) == 1
        sized = [first] if self.indexed else [getattr(source, name, None) for name in ("sampler", "dataset")]
        total = next((len(images) for images in sized if isinstance(images, Sized)), None)
        self.count = total and min(total, self._limit or total)
        if self.indexed:
            self.count = self._limited(len(first))

    def _read(self, size: int, asked: Callable[[int], bool]) -> Iterator[tuple[range, Rows]]:
        if self._read_before and self._batches.one_pass:
            raise InputError("an iterator cannot be read again: give a list, a data set or a loader")
        self._read_before = True
        at = 0
        for batch in self._batches:
            if self._chosen is not None:  # all images are one batch
                batch = (batch[0][self._chosen], batch[1][self._chosen], batch[2][self._chosen])
            left = len(batch[0]) if self._limit is None else min(len(batch[0]), self._limit - at)
            self._check_masks(at + left)
            yield range(at, at + left), (torch.arange(at, at + left), *(part[:left] for part in batch))
            at += left
            if at == self._limit:
                return
        self._check_masks(at, ended=True)
        self.total = None if self._batches.numbered else at

    def _check_masks(self, images: int, *, ended: bool = False) -> None:
        """Refuse masks of other images; only on its way does a stream show how many it has."""
        if self._masks is None or self.indexed:
            return
        masks = len(self._masks)
        if masks < images or (ended and masks > images):
            seen = f"{images}" if ended else f"at least {images}"
            raise InputError(f"masks must be one for each image: there are {masks} for {seen} images")
