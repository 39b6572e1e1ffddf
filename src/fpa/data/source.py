"""The images of an evaluation in numbered blocks, from whatever holds them: `image_source`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cache
from itertools import tee
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fpa.data.loaders import (
    ImageBatches,
    Normaliser,
    as_tensor,
    class_names_of,
    has_own_labels,
    in_order,
    name_of,
    single_images,
)
from fpa.data.normalisation import Normalisation
from fpa.data.sets import check_normalised, load_evaluation_data
from fpa.data.splits import UNREADABLE, ImageData, fixed_choice, read_batches, unreadable, watched
from fpa.errors import InputError, at_least
from fpa.values import checked

_PROBE = 16  # images that `first` holds at most
_DECODED = 64  # files that one worker decodes at a time

Rows = tuple[Tensor, ...]
"""Images as they were read: places in the source, images, labels, indices and, where known, foregrounds."""


@dataclass(frozen=True, eq=False)
class ImageBlock:
    """One block of an evaluation: block k of size s holds the images at the places k s, ..., k s + s - 1."""

    number: int
    images: Tensor
    """[N, C, H, W], normalised; N is smaller than the block where files could not be read, and may be 0."""
    labels: Tensor
    """int64 [N]: the model's classes, -1 where unknown."""
    indices: list[int]
    """The numbers of the images in their data set."""
    foreground: Tensor | None = None
    """bool [N, H, W]: the pixels of the object, where they are known."""


class ImageSource(ABC):
    """Images in numbered blocks, from `image_source`; all that an evaluation reads its images from."""

    name: str
    numbers: Sequence[int] = ()
    """Of the images in their data set, where they are known beforehand."""
    has_masks: bool = False
    """Whether the true pixels of the objects are known."""
    has_labels: bool = True
    """Whether true classes may be known; False where it is certain that none is."""
    count: int | None
    """The number of images; None where a stream does not say."""
    indexed: bool
    """Whether any block can be read alone; a stream has to be read from its start."""
    classes: list[str] | None
    """The names of the classes of the data, where it has them."""
    normalisation: Normalisation | None
    """How the images are normalised; None where they came so."""
    lost: set[Path]
    """Files that could not be read so far."""
    first: Tensor
    """A few normalised images [N, C, H, W] to try a model with; a stream loses nothing by it."""
    drawn = False
    """Whether the images are drawn at random, in another order every time."""
    own_labels = False
    """Whether something of the user's own makes the labels, so that they need not be numbers of `classes`."""

    _outputs: Tensor | None
    _masks: Tensor | None = None
    _chosen: Tensor | None = None
    """Where `count` chooses among images that can be indexed: the places of those it takes, rising."""
    _available: int | None = None
    """How many images can be indexed, before `count` chooses."""

    def relabel(self, labels: Sequence[int]) -> None:
        """Say for every class of the data which output of the model stands for it, -1 for none."""
        if self._outputs is not None:
            raise InputError("the image source has its own labels: pass class_index or labels once")
        self._outputs = torch.tensor([*labels, -1])
        self.has_labels = self.has_labels and any(label >= 0 for label in labels)

    def check_numbers(self) -> None:  # noqa: B027
        """Refuse images that cannot be told apart by number, now or when a number repeats."""

    @checked
    def blocks(self, size: int, wanted: Callable[[int], bool] = lambda number: True) -> Iterator[ImageBlock]:
        """The blocks of `size` images (the last may be smaller), in order.

        `wanted` is asked once for each block, in order and not long before the block is needed. Only the
        wanted blocks are yielded, and an indexed source reads no others. Which images a block holds, and
        their values, do not depend on it.
        """
        at_least("the number of images in a block", size, 1)
        return self._blocks(size, wanted)

    def _blocks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[ImageBlock]:
        asked = cache(wanted)  # an indexed source asks before it reads, all ask when the images have come
        held: list[list[Tensor]] = []
        for piece, rows in self._read(size, asked):
            for number in filter(asked, range(piece.start // size, -(-piece.stop // size))):
                ends = torch.tensor([number * size, (number + 1) * size])
                inside = slice(*torch.searchsorted(rows[0], ends).tolist())
                places = rows[0][inside] if self._chosen is None else self._chosen[rows[0][inside]]
                brought = [] if self._masks is None else [self._masks[places]]
                held.append([*(values[inside] for values in rows[1:]), *brought])
                if (number + 1) * size <= piece.stop:
                    yield self._joined(number, held)
                    held = []
        if held:
            yield self._joined(number, held)

    @abstractmethod
    def _read(self, size: int, asked: Callable[[int], bool]) -> Iterator[tuple[range, Rows]]:
        """The images, in order: at least those of the blocks for which `asked` says yes."""

    def _joined(self, number: int, parts: Iterable[Iterable[Tensor]]) -> ImageBlock:
        """The block, with the labels of the data as outputs of the model; -1 stays -1."""
        images, labels, indices, *foreground = map(torch.cat, zip(*parts, strict=True))
        if self._outputs is not None and len(labels):
            if (label := int(labels.max())) >= (known := len(self._outputs) - 1):
                raise InputError(f"an image has label {label}, but labels names outputs for {known} classes")
            labels = self._outputs[labels.clamp(min=-1)]
        return ImageBlock(number, images, labels, indices.tolist(), *foreground)

    def bring_masks(self, masks: Any) -> None:
        """Take bool masks [M, H, W] of the objects, in the order of all images, before `count` chooses."""
        self._masks = as_tensor("masks", masks)
        needed = self._available or self.count
        sides = list(self.first.shape[2:])
        shape = list(self._masks.shape)
        if self._masks.dtype != torch.bool or shape[1:] != sides or shape[0] < (needed or 1):
            expected = f"bool [{needed or 'M'}, {sides[0]}, {sides[1]}], a mask for each image"
            raise InputError(f"masks must be {expected}, got {self._masks.dtype} {shape}")
        if self.has_masks:
            raise InputError(f"{self.name} has masks of its own: leave out masks")
        self.has_masks = True

    def _choose(self, count: int | None, numbers: Sequence[int]) -> int:
        """Take `count` of the images with these numbers, always the same ones; returns how many that are.

        The first ones would be of one class, or a few, where the images are sorted.
        """
        self._available = len(numbers)
        if count is None:
            return self._available
        if count > self._available:
            raise InputError(f"the number of images must be in 1..{self._available}, got {count}")
        self._chosen = fixed_choice(numbers, count)
        return count

    def pictures(self, images: Tensor, like: Tensor | None = None) -> NDArray[np.uint8]:
        """Normalised images [N, C, H, W] as bytes for people.

        Where the normalisation is not known, each image is stretched from black to white: by its own smallest
        and largest value, or by those of the same image in `like`.
        """
        if self.normalisation is not None:
            unit = self.normalisation.inverse(images.cpu())
        else:
            finite = (images if like is None else like).cpu().nan_to_num(posinf=0, neginf=0)
            low = finite.amin((1, 2, 3), keepdim=True)
            high = finite.amax((1, 2, 3), keepdim=True)
            unit = (images.cpu() - low) / (high - low).clamp(min=1e-6)
        return np.asarray(unit.nan_to_num().mul(255).round().clamp(0, 255).byte())


@checked
def image_source(
    data: Any,
    *,
    normalisation: Normalisation | None = None,
    channels: int | None = None,
    labels: Sequence[int] | None = None,
    count: int | None = None,
    workers: int = 0,
    masks: Any = None,
) -> ImageSource:
    """The images of `data` in numbered blocks, normalised for a model.

    `data` is an `ImageData`, of which the evaluation subset is taken, or the name of a data set; or a tensor,
    an array, a list of PIL images, (images, labels), a data set, a `DataLoader`, or anything that yields
    batches, in all the forms that `ImageBatches` takes, which also says what `normalisation` and `channels`
    do. Blocks of a data set and of a loader that reads its data set in order are read alone, through the
    loader's own workers and `collate_fn`; everything else is a stream, read from its start.

    `labels` says for every class of the data which output of the model stands for it, -1 for none; without
    it labels stay as they are. `workers` processes decode the files of an `ImageData`. `masks`, bool
    [M, H, W] in the order of all images, are the pixels of the objects, for the scores that need them; data
    sets that know them bring them along.

    `count` takes only so many images. Of a data set, a folder, a tensor or a loader that reads its data set
    in order they are spread over all by a random choice that is always the same, and the same as that of the
    commands; a stream gives its first ones.

    The name of a folder or of published files says nothing about a model: with those a `normalisation` must
    be given. `shapes`, `digits` and data sets of your own have theirs.

    >>> source = image_source("shapes", count=100)
    >>> [(block.number, len(block.images)) for block in source.blocks(32, lambda number: number > 1)]
    [(2, 32), (3, 4)]
    """
    at_least("the number of images", count, 1)
    if isinstance(data, ImageSource):
        if (count, labels, masks) != (None, None, None):
            raise InputError("an image source has its own labels, count and masks: pass them to image_source")
        return data
    source = _opened(data, normalisation, channels, labels=labels, count=count, workers=workers)
    if masks is not None:
        source.bring_masks(masks)
    return source


def _opened(
    data: Any,
    normalisation: Normalisation | None,
    channels: int | None,
    *,
    labels: Sequence[int] | None,
    count: int | None,
    workers: int,
) -> ImageSource:
    if isinstance(data, str | Path):
        if normalisation is None:
            check_normalised(str(data))
        data = load_evaluation_data(str(data))
        if count is not None and len(data.evaluation) < count <= len(data.test):  # 5,000 may be usual
            data = replace(data, evaluation=fixed_choice(range(len(data.test)), count))
    outputs = None if labels is None else torch.tensor([*labels, -1])
    if isinstance(data, ImageData):
        if labels is not None and data.classes and len(labels) != len(data.classes):
            known = len(data.classes)
            raise InputError(f"labels must name an output for each of the {known} classes, got {len(labels)}")
        normalised = Normaliser(normalisation or data.normalisation, channels)
        return _Evaluation(data, normalised, outputs, count, workers)
    batches = ImageBatches(data, normalisation, channels)
    alone = single_images(data) and len(batches.first) == 1
    loader = DataLoader(data, 1, collate_fn=itemgetter(0), num_workers=workers) if alone else data
    plain = type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler
    if plain and in_order(loader) and not isinstance(loader.dataset, IterableDataset):
        return _Batched(data, batches, outputs, count, loader=loader)
    return _Stream(data, batches, outputs, count)


class _Indexed(ImageSource):
    """A source of which any block can be read alone."""

    indexed = True
    count: int

    def _read(self, size: int, asked: Callable[[int], bool]) -> Iterator[tuple[range, Rows]]:
        def pieces() -> Iterator[range]:
            done = 0
            for number in filter(asked, range(-(-self.count // size))):
                for piece in self._pieces(max(done, number * size), min((number + 1) * size, self.count)):
                    done = piece.stop
                    yield piece

        return self._read_pieces(pieces())

    def _pieces(self, start: int, stop: int) -> Iterator[range]:
        """What is read at a time to have the images at these places, perhaps with others around them."""
        return (range(at, min(at + _DECODED, stop)) for at in range(start, stop, _DECODED))

    @abstractmethod
    def _read_pieces(self, pieces: Iterable[range]) -> Iterator[tuple[range, Rows]]:
        """The images of each piece."""


class _Evaluation(_Indexed):
    """The evaluation subset of an `ImageData`."""

    def __init__(
        self, data: ImageData, normalised: Normaliser, outputs: Tensor | None, count: int | None, workers: int
    ) -> None:
        self.name = data.name
        self.classes = data.classes or None
        self.lost = set()
        self._data = data
        self._normalised = normalised
        self._outputs = outputs
        self._workers = 0
        self._foreground = data.test.foreground
        self.has_masks = self._foreground is not None
        outputs = data.test.labels if outputs is None else outputs[:-1]
        self.has_labels = bool((outputs >= 0).any())
        self.count = self._choose(count, data.evaluation.tolist())
        self.normalisation = normalised.normalisation
        if self._chosen is not None:
            self._data = replace(data, evaluation=data.evaluation[self._chosen])
        self.numbers = self._data.evaluation.tolist()
        readable = (block.images for block in self.blocks(_PROBE) if len(block.images))
        first = next(readable, None)
        self._workers = workers
        if first is None:
            raise InputError(f"none of the {self.count} images of {self.name} can be read")
        self.first = first

    def _read_pieces(self, pieces: Iterable[range]) -> Iterator[tuple[range, Rows]]:
        split = self._data.test
        chosen = self._data.evaluation
        pieces, ahead = tee(pieces)
        numbers = (chosen[piece.start : piece.stop] for piece in ahead)
        batches = read_batches(split, numbers, workers=self._workers)
        for (indices, images, labels), piece in zip(batches, pieces, strict=True):
            self.lost.update(unreadable(split, indices, labels))
            good = labels != UNREADABLE
            foreground = () if self._foreground is None else (self._foreground[indices[good]],)
            known = labels[good], indices[good], *foreground
            yield piece, (torch.tensor(piece)[good], self._normalised(images[good]), *known)


class _Brought(ImageSource):
    """A source that reads what people bring, through `ImageBatches`."""

    def __init__(self, data: Any, batches: ImageBatches, outputs: Tensor | None, count: int | None) -> None:
        self.name = name_of(data)
        self.classes = class_names_of(data)
        self.lost = set()
        self._batches = batches
        self._outputs = outputs
        self._limit = count
        self.normalisation = batches.normalisation
        self.first = batches.first[:_PROBE]
        self.drawn = batches.drawn
        self.own_labels = has_own_labels(data)

    def check_numbers(self) -> None:
        self._batches.check_numbers()

    def _limited(self, total: int) -> int:
        count = self._choose(self._limit, range(total))
        if self._chosen is not None and not self._batches.numbered:
            self.numbers = self._chosen.tolist()
        return count


class _Batched(_Brought, _Indexed):
    """A loader that reads its data set in order: its batches are addressed by number."""

    def __init__(self, *about: Any, loader: DataLoader[Any]) -> None:
        super().__init__(*about)
        sampler: Any = loader.batch_sampler
        self._loader = loader
        self._size = sampler.batch_size
        total = len(sampler.sampler)
        total = total - total % self._size if sampler.drop_last else total
        self.count = self._limited(total)

    def _pieces(self, start: int, stop: int) -> Iterator[range]:
        size = self._size
        numbers = range(start // self._size, -(-stop // self._size) if start < stop else 0)
        return (range(number * size, min((number + 1) * size, self.count)) for number in numbers)

    def _read_pieces(self, pieces: Iterable[range]) -> Iterator[tuple[range, Rows]]:
        self._batches.seen.clear()
        # Batches are made as the loader makes them, so that its collate_fn sees the same items together.
        given = self._loader
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
        for raw, piece in zip(watched(loader), pieces, strict=True):
            number = piece.start // self._size
            images, labels, indices = self._batches.converted(raw, number, piece.start)
            if len(images) > len(piece):
                seen = f"batch {number} holds {len(images)} images, but is made of {len(piece)} items"
                raise InputError(f"{seen} of the data set: every item must be one image")
            if self._chosen is not None and not self._batches.numbered:  # they were counted as they came
                indices = self._chosen[indices]
            yield piece, (torch.tensor(piece), images, labels, indices)


class _Stream(_Brought):
    """Images that come one batch after the other, or all at once; blocks are numbered as they come."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
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
            yield range(at, at + left), (torch.arange(at, at + left), *(part[:left] for part in batch))
            at += left
            if at == self._limit:
                break
