"""The images of an evaluation, from whatever holds them: `image_source`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fpa.data.blocks import PROBE, ImageBlock, ImageSource, IndexedSource, Maker, Rows
from fpa.data.brought import BatchedSource, StreamSource
from fpa.data.loaders import ImageBatches, Normaliser, in_order, single_images
from fpa.data.normalisation import Normalisation
from fpa.data.sets import check_normalised, load_evaluation_data
from fpa.data.splits import (
    UNREADABLE,
    USUAL_SIDE,
    ArraySplit,
    ImageData,
    check_labels,
    fixed_choice,
    read_batches,
    unreadable,
)
from fpa.errors import MOST_WORKERS, InputError, at_least
from fpa.values import checked

__all__ = ["ImageBlock", "ImageSource", "image_source"]


@checked
def image_source(
    data: Any,
    *,
    normalisation: Any = None,
    channels: int | None = None,
    labels: Sequence[int] | None = None,
    count: int | None = None,
    workers: int = 0,
    masks: Any = None,
    size: int = USUAL_SIDE,
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
    be given. `shapes`, `digits` and data sets of your own have theirs. `size` is the side of the images that
    are read from files so named.

    >>> source = image_source("shapes", count=100)
    >>> [(block.number, len(block.images)) for block in source.blocks(32, lambda number: number > 1)]
    [(2, 32), (3, 4)]
    """
    at_least("the number of images", count, 1)
    at_least("workers", workers, 0, MOST_WORKERS)
    if isinstance(data, ImageSource):
        if (count, labels, masks) != (None, None, None):
            raise InputError("an image source has its own labels, count and masks: pass them to image_source")
        return data
    if isinstance(data, str | Path):
        data = _named(str(data), normalisation, count, size)
    source = _opened(data, normalisation, channels, labels=labels, count=count, workers=workers)
    if masks is not None:
        source.bring_masks(masks)
    return source


def _named(name: str, normalisation: Normalisation | None, count: int | None, size: int) -> ImageData:
    """The data set of this name."""
    if normalisation is None:
        check_normalised(name)
    data = load_evaluation_data(name, size=size)
    if count is not None and len(data.evaluation) < count <= len(data.test):  # 5,000 may be usual
        data = replace(data, evaluation=fixed_choice(range(len(data.test)), count))
    return data


def _opened(
    data: Any,
    normalisation: Normalisation | None,
    channels: int | None,
    *,
    labels: Sequence[int] | None,
    count: int | None,
    workers: int,
) -> ImageSource:
    outputs = None if labels is None else torch.tensor([*labels, -1])
    if isinstance(data, ImageData):
        if labels is not None and data.classes and len(labels) != len(data.classes):
            known = len(data.classes)
            raise InputError(f"labels must name an output for each of the {known} classes, got {len(labels)}")
        normalised = Normaliser(normalisation or data.normalisation, channels)
        return EvaluationSource(data, normalised, outputs, count, workers)
    batches = ImageBatches(data, normalisation, channels)
    alone = single_images(data) and len(batches.first) == 1
    loader = DataLoader(data, 1, collate_fn=itemgetter(0), num_workers=workers) if alone else data
    # Batches can be made again one by one only if nothing of the user's own chooses what is in them.
    plain = type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler
    if plain and in_order(loader) and not isinstance(loader.dataset, IterableDataset):
        return BatchedSource(data, batches, outputs, count, loader=loader)
    return StreamSource(data, batches, outputs, count)


class EvaluationSource(IndexedSource):
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
        check_labels(data.test.labels[data.evaluation], data.evaluation)
        self.maker = None if data.world is None else Maker(data.world, normalised)
        outputs = data.test.labels if outputs is None else outputs[:-1]
        self.has_labels = bool((outputs >= 0).any())
        self.count = self._choose(count, data.evaluation.tolist())
        self.normalisation = normalised.normalisation
        if self._chosen is not None:
            self._data = replace(data, evaluation=data.evaluation[self._chosen])
        self.numbers = self._data.evaluation.tolist()
        self.total = len(data.test)
        # Those that are computed may differ by a grey level on another machine.
        self.exact = isinstance(data.test, ArraySplit) and data.name not in ("shapes", "digits")
        # Read here, in this process: workers would be started for a few images, and again for the rest.
        readable = (block.images for block in self.blocks(PROBE) if len(block.images))
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
