"""The images of an evaluation, from whatever holds them: `image_source`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fpa.data.blocks import ImageBlock, ImageSource, IndexedSource, Rows, joined
from fpa.data.forms import is_batch, single_images
from fpa.data.loaders import ImageBatches, Normaliser, in_order
from fpa.data.looks import looks, same_images
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_evaluation_data
from fpa.data.splits import UNREADABLE, ImageData, read_batches, unreadable
from fpa.errors import InputError

__all__ = ["ImageBlock", "ImageSource", "image_source", "looks", "same_images"]

_PROBE = 16  # images that `first` holds at most
_DECODED = 64  # files that one worker decodes at a time


def image_source(
    data: Any,
    *,
    normalisation: Normalisation | None = None,
    channels: int | None = None,
    labels: Sequence[int] | None = None,
    count: int | None = None,
    workers: int = 0,
) -> ImageSource:
    """The images of `data` in numbered blocks, normalised for a model.

    `data` is an `ImageData`, of which the evaluation subset is taken, or the name of a data set; or a tensor,
    an array, a list of PIL images, (images, labels), a data set, a `DataLoader`, or anything that yields
    batches, in all the forms that `image_batches` takes, which also says what `normalisation` and `channels`
    do. Blocks of a data set and of a loader that reads its data set in order are read alone, through the
    loader's own workers and `collate_fn`; everything else is a stream, read from its start.

    `labels` says for every class of the data which output of the model stands for it, -1 for none; without
    it labels stay as they are. `count` takes only the first so many images. `workers` processes decode the
    files of an `ImageData`.

    >>> source = image_source("shapes", count=100)
    >>> [(block.number, len(block.images)) for block in source.blocks(32, lambda number: number > 1)]
    [(2, 32), (3, 4)]
    """
    if count is not None and count < 1:
        raise InputError(f"the number of images must be at least 1, got {count}")
    if isinstance(data, ImageSource):
        if count is not None or labels is not None:
            raise InputError("an image source has its own labels and count: give them to image_source alone")
        return data
    if isinstance(data, str | Path):
        data = load_evaluation_data(str(data))
    if isinstance(data, ImageData):
        normalised = Normaliser(normalisation or data.normalisation, channels)
        return _Evaluation(data, normalised, _Labels(labels, data.classes), count, workers)
    batches = ImageBatches(data, normalisation, channels)
    inner = getattr(data, "dataset", data)
    classes = getattr(inner, "classes", None)
    about: dict[str, Any] = {
        "name": "images" if is_batch(data) or isinstance(data, Iterator | list) else type(inner).__name__,
        "classes": [str(name) for name in classes] if isinstance(classes, list | tuple) else None,
        "labels": _Labels(labels, None),
        "count": count,
    }
    if is_batch(data):
        return _Array(batches, **about)
    if _holds_single_images(data) and len(batches.first) == 1:
        loader: DataLoader[Any] = DataLoader(data, 1, collate_fn=_only, num_workers=workers)
        return _Indexed(batches, loader, **about)
    return _Indexed(batches, data, **about) if _by_number(data) else _Stream(batches, **about)


class _Labels:
    """Labels of the data as outputs of the model; -1 stays -1."""

    def __init__(self, outputs: Sequence[int] | None, classes: Sequence[str] | None) -> None:
        if outputs is not None and classes is not None and len(outputs) != len(classes):
            raise InputError(
                f"labels must name an output of the model for each of the {len(classes)} classes, "
                f"got {len(outputs)}"
            )
        self.outputs = None if outputs is None else torch.tensor([*outputs, -1])

    def __call__(self, labels: Tensor) -> Tensor:
        if self.outputs is None or len(labels) == 0:
            return labels
        if int(labels.max()) >= len(self.outputs) - 1:
            raise InputError(
                f"an image has the label {int(labels.max())}, but labels names outputs of the model for "
                f"{len(self.outputs) - 1} classes"
            )
        return self.outputs[labels.clamp(min=-1)]


class _Evaluation(IndexedSource):
    """The evaluation subset of an `ImageData`."""

    def __init__(
        self, data: ImageData, normalised: Normaliser, labels: _Labels, count: int | None, workers: int
    ) -> None:
        self.name, self.classes, self.lost = data.name, data.classes or None, set()
        self.data, self.chosen, self.workers = data, data.evaluation, workers
        self.has_masks = getattr(data.test, "foreground", None) is not None
        self.count = _counted(count, len(data.evaluation))
        self._labels, self._normalised = labels, normalised
        self.normalisation = normalised.normalisation
        few = (range(place, min(place + _PROBE, self.count)) for place in range(0, self.count, _PROBE))
        first = next((rows.images for rows in self._read(few, workers=0) if len(rows.images)), None)
        if first is None:
            raise InputError(f"none of the {self.count} images of {self.name} can be read")
        self.first = first

    def _read(self, spans: Iterable[range], workers: int | None = None) -> Iterator[Rows]:
        ahead: deque[range] = deque()  # the places of batches that workers have been asked for

        def batches() -> Iterator[Tensor]:
            for span in spans:
                for start in range(span.start, span.stop, _DECODED):
                    ahead.append(range(start, min(start + _DECODED, span.stop)))
                    yield self.chosen[start : ahead[-1].stop]

        split, foreground = self.data.test, getattr(self.data.test, "foreground", None)
        workers = self.workers if workers is None else workers
        for indices, images, labels in read_batches(split, batches(), workers=workers):
            self.lost.update(unreadable(split, indices, labels))
            place, good = ahead.popleft(), labels != UNREADABLE
            yield Rows(
                places=torch.arange(place.start, place.stop)[good],
                images=self._normalised(images[good]),
                labels=self._labels(labels[good]),
                indices=indices[good],
                stop=place.stop,
                foreground=None if foreground is None else foreground[indices[good]],
            )


class _Brought(ImageSource):
    """A source that reads what people bring, through `ImageBatches`."""

    def __init__(self, batches: ImageBatches, name: str, classes: list[str] | None, labels: _Labels) -> None:
        self.name, self.classes, self.lost = name, classes, set()
        self.batches, self._labels = batches, labels
        self.normalisation = batches.normalisation
        self.shuffled, self.drawn = batches.shuffled, batches.drawn
        self.first = batches.first[:_PROBE]

    def check_numbers(self) -> None:
        self.batches.check_numbers()

    def _rows(self, batch: tuple[Tensor, Tensor, Tensor], at: int, stop: int) -> Rows:
        images, labels, indices = batch
        return Rows(torch.arange(at, at + len(images)), images, self._labels(labels), indices, stop)


class _Array(_Brought, IndexedSource):
    """Images that are held whole."""

    def __init__(self, batches: ImageBatches, count: int | None, **about: Any) -> None:
        super().__init__(batches, **about)
        self.count = _counted(count, len(batches.first))

    def _read(self, spans: Iterable[range]) -> Iterator[Rows]:
        whole = next(iter(self.batches))
        for span in spans:
            images, labels, indices = (part[span.start : span.stop] for part in whole)
            yield self._rows((images, labels, indices), span.start, span.stop)


class _Indexed(_Brought, IndexedSource):
    """A loader that reads its data set in order: its batches are addressed by number."""

    def __init__(
        self, batches: ImageBatches, loader: DataLoader[Any], count: int | None, **about: Any
    ) -> None:
        super().__init__(batches, **about)
        sampler: Any = loader.batch_sampler
        self.loader, self.size, total = loader, sampler.batch_size, len(sampler.sampler)
        self.total = total - total % self.size if sampler.drop_last else total
        self.count = _counted(count, self.total)

    def _read(self, spans: Iterable[range]) -> Iterator[Rows]:
        size = self.size
        asked: deque[range] = deque()  # the places of batches that are on their way

        def places() -> Iterator[list[int]]:
            wanted, done = iter(spans), 0
            span = next(wanted, None)
            while span is not None:
                stop = (span.stop - 1) // size + 1
                following = next(wanted, None)
                while following is not None and following.stop <= stop * size:  # needs no other batch
                    following = next(wanted, None)
                for number in range(max(span.start // size, done), stop):
                    asked.append(range(number * size, min((number + 1) * size, self.total)))
                    yield list(asked[-1])
                done, span = stop, following

        self.batches.seen.clear()
        # Batches are made as the loader makes them, so that its collate_fn sees the same items together.
        making = ("collate_fn", "worker_init_fn", "multiprocessing_context")
        reading = ("num_workers", "prefetch_factor", "pin_memory", "timeout")
        loader: DataLoader[Any] = DataLoader(
            self.loader.dataset,
            batch_sampler=places(),
            generator=torch.Generator(),  # leaves the global one alone
            **{name: getattr(self.loader, name) for name in (*making, *reading)},
        )
        for raw in loader:
            place = asked.popleft()
            batch = self.batches.converted(raw, place.start // size, place.start)
            if len(batch[0]) > len(place):
                raise InputError(
                    f"batch {place.start // size} holds {len(batch[0])} images, but is made of {len(place)} "
                    "items of the data set: every item must be one image"
                )
            images, labels, indices = (part[: self.count - place.start] for part in batch)
            yield self._rows((images, labels, indices), place.start, place.stop)


class _Stream(_Brought):
    """Images that come one batch after the other; blocks are numbered as they come."""

    indexed = False

    def __init__(self, batches: ImageBatches, count: int | None, **about: Any) -> None:
        super().__init__(batches, **about)
        self.limit = count
        total = None if batches.dataset is None else len(batches.dataset)
        self.count = total if total is None or count is None else min(count, total)
        self._read_before = False

    def _blocks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[ImageBlock]:
        if self._read_before and self.batches.one_pass:
            raise InputError(
                "the images were read before and cannot be read again: give a list, a data set or a loader "
                "instead of an iterator"
            )
        self._read_before = True
        held: list[Rows] = []
        at = number = 0
        for batch in self.batches:
            left = len(batch[0]) if self.limit is None else min(len(batch[0]), self.limit - at)
            images, labels, indices = (part[:left] for part in batch)
            held.append(self._rows((images, labels, indices), at, at + left))
            at += left
            while at >= (number + 1) * size:
                if wanted(number):
                    yield joined(number, size, held)
                number += 1
            held = [rows for rows in held if rows.stop > number * size]
            if at == self.limit:
                break
        if at > number * size and wanted(number):
            yield joined(number, size, held)


def _counted(count: int | None, total: int) -> int:
    if count is not None and count > total:
        raise InputError(f"the number of images must be in 1..{total}, got {count}")
    return count or total


def _holds_single_images(data: Any) -> bool:
    """Whether `data` is a data set of single images, read by number."""
    sized = hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, IterableDataset)
    return sized and single_images(data)


def _by_number(loader: Any) -> bool:
    """Whether the batches of a loader can be read by number, instead of one after the other."""
    plain = type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler
    return plain and in_order(loader) and not isinstance(loader.dataset, IterableDataset)


def _only(items: list[Any]) -> Any:
    """The item of a batch of one, as it is."""
    return items[0]
