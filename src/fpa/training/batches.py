"""Training batches: which images, cropped and flipped how, in what order.

Everything random about a batch depends on the seed, the epoch and the step, so a run that was stopped goes
on exactly where it was. A batch is made in two parts: `advance` on the host, then `batch` on the device,
which reads nothing back and can be captured in a CUDA graph.
"""

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fpa.data.crops import RandomCrop, crop_and_flip, resized_crops
from fpa.data.splits import (
    UNREADABLE,
    ArraySplit,
    FileSplit,
    ImageData,
    SeededImages,
    next_batch_of,
    unreadable,
    watched,
)
from fpa.errors import InputError
from fpa.seeds import Stream, derive, generator
from fpa.training.jpegs import ReadImages, decoded_crops, decodes
from fpa.training.photos_on_device import PhotosOnDevice

REMEDY = "give class_index, or targets='model' to do without labels"
"""What helps where the labels of the images are not the model's classes."""


class Batches(ABC):
    """What training needs of the images."""

    steps: int
    """Steps of an epoch."""
    batch_size: int
    """Images of a step, over all processes together."""
    mine = slice(None)
    """This process's share of a batch."""
    _images: Tensor
    _labels: Tensor

    @abstractmethod
    def start(self, epoch: int, step: int) -> None:
        """Begin an epoch, or continue in the middle of it at `step`."""

    def advance(self) -> bool:
        """The host's part of the next batch; False: there is nothing to learn from it."""
        return True

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """The device's part: images [N, C, H, W], bytes or normalised, and labels [N]."""
        return self._images, self._labels


def training_batches(
    data: "ImageData | LoaderBatches",
    batch_size: int,
    seed: int,
    device: torch.device,
    *,
    rank: int = 0,
    processes: int = 1,
    workers: int = 0,
    photos: PhotosOnDevice | None = None,
) -> Batches:
    """The batches of this process: its share of every batch of `batch_size` images, or those of a loader.

    `photos` are those of the data's files, where they were decoded before.
    """
    if isinstance(data, LoaderBatches):
        data.device = device
        data.seed = seed
        return data
    size = math.ceil(batch_size / processes)
    mine = slice(rank * size, (rank + 1) * size)
    if isinstance(data.train, ArraySplit):
        return ArrayBatches(data.train.to(device), data, batch_size, seed, mine)
    if photos is not None:
        return PhotoBatches(photos, batch_size, seed, mine)
    files = DeviceFileBatches if decodes(data.train, device) else FileBatches
    return files(data, batch_size, seed, mine=mine, device=device, workers=workers)


def nothing_readable(path: Path, count: int) -> InputError:
    """The error for a batch without a single image that can be read: there is nothing to learn from."""
    gone = "are the files still there? run again to continue"
    return InputError(f"none of the {count} images of a batch can be read, one is {path}: {gone}")


def _order(images: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """The images of every step of an epoch, [steps, batch_size]; those left over wait for another epoch."""
    steps = images // batch_size
    order = torch.randperm(images, generator=generator("cpu", seed, Stream.ORDER, epoch))
    return order[: steps * batch_size].view(steps, batch_size)


class HeldBatches(Batches):
    """A data set that lives on the device as uint8. The device counts its own steps."""

    def __init__(
        self, split: ArraySplit | PhotosOnDevice, batch_size: int, seed: int, mine: slice = slice(None)
    ) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.mine = mine
        self.count = len(split)
        self.steps = len(split) // batch_size
        device = split.images.device
        self._order = torch.zeros(self.steps, batch_size, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)

    def start(self, epoch: int, step: int) -> None:  # noqa: D102
        # Into the tensors that there are: a captured step reads these, and counts the steps itself.
        self._order.copy_(_order(self.count, self.batch_size, self.seed, epoch))
        self._step.fill_(step)

    def next_rows(self) -> Tensor:
        """The numbers [batch_size] of the next images."""
        chosen = self._order.index_select(0, self._step)[0]
        self._step += 1
        return chosen


class ArrayBatches(HeldBatches):
    """Images of one size, moved by a few pixels and flipped, each independently."""

    def __init__(
        self, split: ArraySplit, data: ImageData, batch_size: int, seed: int, mine: slice = slice(None)
    ) -> None:
        super().__init__(split, batch_size, seed, mine)
        self.split = split
        self.padding = data.crop_padding
        self.flip = data.flip

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:  # noqa: D102
        chosen = self.next_rows()
        device = chosen.device
        # Every process draws for the whole batch and keeps its share: their number changes nothing.
        shift = torch.randint(0, 2 * self.padding + 1, (2, self.batch_size), generator=draws, device=device)
        flipped = torch.rand(self.batch_size, generator=draws, device=device) < 0.5
        rows = chosen[self.mine]
        shift = shift[:, self.mine]
        flipped = flipped[self.mine]
        images = crop_and_flip(self.split.images, rows, shift - self.padding, flipped & self.flip)
        return images, self.split.labels[rows]


class PhotoBatches(HeldBatches):
    """Decoded photos of any size, a random part of each resized: the same parts as those of `FileBatches`."""

    def __init__(self, photos: PhotosOnDevice, batch_size: int, seed: int, mine: slice = slice(None)) -> None:
        super().__init__(photos, batch_size, seed, mine)
        self.photos = photos
        self.unreadable = photos.unreadable
        self._boxes = torch.zeros(len(photos), 5, dtype=torch.int64, device=photos.images.device)

    def start(self, epoch: int, step: int) -> None:  # noqa: D102
        super().start(epoch, step)
        crop = self.photos.crop
        photos = self.photos
        uniform = crop.uniform(derive(self.seed, Stream.WORKERS), epoch, range(len(photos)))
        self._boxes.copy_(crop.boxes(uniform, photos.heights, photos.widths))
        if photos.unreadable and bool((photos.labels[self._order] == UNREADABLE).all(1).any()):
            raise nothing_readable(min(photos.unreadable), self.batch_size)

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:  # noqa: D102
        rows = self.next_rows()[self.mine]
        photos = self.photos
        return resized_crops(photos.images[rows], self._boxes[rows], photos.crop.size), photos.labels[rows]


class FileBatches(Batches):
    """Image files, decoded and cropped by worker processes, copied to fixed places on the device.

    Runs that see the same images share it: a batch is read once for all of them.
    """

    _in_workers = SeededImages

    def __init__(
        self, data: ImageData, batch_size: int, seed: int, *, mine: slice, device: torch.device, workers: int
    ) -> None:
        assert isinstance(data.train, FileSplit)
        self.split = data.train
        self.unreadable = set[Path]()
        self.steps = len(data.train) // batch_size
        self.batch_size = batch_size
        self.seed = seed
        self.mine = mine
        self._keys = _Keys()
        self._source = self._in_workers(data.train, derive(seed, Stream.WORKERS))
        self._loader: DataLoader[Any] = DataLoader(
            self._source,
            batch_sampler=self._keys,
            collate_fn=self._source.collate,
            num_workers=min(workers, os.cpu_count() or 1),
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # leaves the global one alone
        )
        self._next: Iterator[Any] = iter(())
        share = len(range(batch_size)[mine])
        self._images = torch.zeros((share, *data.input_shape), dtype=torch.uint8, device=device)
        self._labels = torch.zeros(share, dtype=torch.int64, device=device)

    def start(self, epoch: int, step: int) -> None:  # noqa: D102
        order = _order(len(self.split), self.batch_size, self.seed, epoch)[step:, self.mine]
        self._keys.rest = ([(epoch, index) for index in batch.tolist()] for batch in order)
        self._next = iter(self._loader)

    def advance(self) -> bool:  # noqa: D102
        images, labels, indices = self._read()
        bad = unreadable(self.split, indices, labels)
        self.unreadable.update(bad)
        if len(bad) == len(labels) > 1:
            raise nothing_readable(bad[0], len(bad))
        self._images.copy_(images, non_blocking=True)
        self._labels.copy_(labels, non_blocking=True)
        return len(bad) < len(labels)

    def _read(self) -> Any:
        """The next images, wherever they are, with labels and indices on the host."""
        return next_batch_of(self._next)

    def close(self) -> None:
        """End the processes that read images."""
        self._next = iter(())
        iterator: Any = self._loader._iterator
        if iterator is not None:  # it does so when nobody holds it, but an error on its way up may
            iterator._shutdown_workers()


class DeviceFileBatches(FileBatches):
    """JPEG files that worker processes read and the device decodes: the same parts as those of `FileBatches`.

    A thread has the next batch decoded, on a stream of its own, while the device is busy with a step.
    """

    _in_workers = ReadImages

    def __init__(
        self, data: ImageData, batch_size: int, seed: int, *, mine: slice, device: torch.device, workers: int
    ) -> None:
        super().__init__(data, batch_size, seed, mine=mine, device=device, workers=workers)
        self.device = device
        self._thread = ThreadPoolExecutor(1)
        self._epoch = 0
        cuda = device.type == "cuda"
        # Its many small kernels go before the large ones of the step, or they would wait for each of them.
        self._stream = torch.cuda.Stream(device, -1) if cuda else None  # type: ignore[no-untyped-call]

    def start(self, epoch: int, step: int) -> None:  # noqa: D102
        self._thread.submit(lambda: None).result()  # it may still read on from where the last epoch was left
        super().start(epoch, step)
        self._epoch = epoch
        self._ahead = self._thread.submit(self._decoded)  # which reads the epoch

    def _read(self) -> Any:
        images, labels, indices = next(watched(each.result() for each in (self._ahead,)))
        if images.is_cuda:  # it was made on another stream than the one that will copy it
            images.record_stream(torch.cuda.current_stream(self.device))
        self._ahead = self._thread.submit(self._decoded)
        return images, labels, indices

    def _decoded(self) -> Any:
        """The thread's work; None after the last batch of an epoch."""
        if (packed := next_batch_of(self._next)) is None:
            return None
        labels = packed.labels
        indices = packed.indices
        crop = self.split.transform
        assert isinstance(crop, RandomCrop)
        uniform = crop.uniform(self._source.seed, self._epoch, indices.tolist())
        with torch.cuda.stream(self._stream):
            images, failed = decoded_crops(packed, crop, uniform, self.device)
            for row in failed:  # for one more try, as the workers do it
                image, labels[row], _ = self._source[self._epoch, int(indices[row])]
                images[row] = image.to(self.device)
        if self._stream:
            self._stream.synchronize()
        return images, labels, indices

    def close(self) -> None:  # noqa: D102
        self._thread.shutdown(cancel_futures=True)
        super().close()


class _Keys:
    """Batches of (epoch, index): with the epoch, a worker knows the randomness of an image."""

    rest: Iterator[list[tuple[int, int]]] = iter(())

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.rest


class LoaderBatches(Batches):
    """A user's own loader: normalised float images in batches of any size, in the loader's own order.

    With `index`, label n stands for the model's class `index[n]`; a batch without labels is passed over, and
    so is a batch of one image where there are others: one image has no batch statistics. Without an index the
    labels do not matter, as for a model that teaches itself. To continue in the middle of an epoch, the
    loader is read again from the start of it.

    Images are moved by up to `shift` pixels and, with `flip`, flipped every other time, each on its own. What
    moves in is the mirrored image: black, or what else would be natural there, depends on a normalisation
    that only the author of the loader knows.
    """

    normalisation = nn.Identity()

    def __init__(
        self,
        loader: Iterable[tuple[Tensor, Tensor, Tensor]],
        steps: int,
        index: Tensor | None,
        *,
        shift: int = 0,
        flip: bool = False,
    ) -> None:
        self.loader = loader
        self.steps = steps
        self.index = index
        self.shift = shift
        self.flip = flip
        self.device = torch.device("cpu")
        self.seed = 0
        self.batch_size = 0
        self._next: Iterator[tuple[Tensor, Tensor, Tensor]] = iter(())
        self._images = self._labels = torch.empty(0)

    def start(self, epoch: int, step: int) -> None:  # noqa: D102
        self._next = itertools.chain.from_iterable([self.loader])  # begins with the first batch, not now
        if step:  # a loader without a generator of its own shuffled by this seed
            torch.manual_seed(derive(self.seed, Stream.DROPOUT, epoch))
        for _ in range(step):
            next(self._next, None)

    def advance(self) -> bool:  # noqa: D102
        images, labels, _ = next(self._next, (self._images[:0], self._labels[:0], None))
        alone = len(images) == 1 and self.steps > 1 and self.index is not None
        if len(images) == 0 or alone:
            return False
        if self.index is not None:
            if (largest := int(labels.max())) > (last := len(self.index) - 1):
                raise InputError(f"labels must be in 0..{last}, found {largest}: {REMEDY}")
            if not (labels >= 0).any():
                return False
            labels = torch.where(labels >= 0, self.index[labels.clamp(min=0)], UNREADABLE)
        else:
            labels = torch.zeros_like(labels)
        self._images = images.to(self.device, torch.float32)
        self._labels = labels.to(self.device)
        self.batch_size = len(images)
        return True

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:  # noqa: D102
        images = self._images
        if not self.shift and not self.flip:
            return images, self._labels
        count = len(images)
        device = images.device
        moved = torch.randint(0, 2 * self.shift + 1, (2, count), generator=draws, device=device)
        flipped = torch.rand(count, generator=draws, device=device) < 0.5
        every = torch.arange(count, device=device)
        varied = crop_and_flip(images, every, moved - self.shift, flipped & self.flip, mirrored=True)
        return varied, self._labels
