"""Images in numbered blocks: what an evaluation reads, whatever they come from."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data.normalisation import Normalisation
from fpa.errors import InputError


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


@dataclass(frozen=True, eq=False)
class Rows:
    """Images as they were read: their places in the source, and the place at which reading goes on."""

    places: Tensor
    images: Tensor
    labels: Tensor
    indices: Tensor
    stop: int
    foreground: Tensor | None = None

    def between(self, start: int, stop: int) -> "Rows":
        """The images at these places."""
        first, last = torch.searchsorted(self.places, torch.tensor([start, stop])).tolist()
        tensors = (self.places, self.images, self.labels, self.indices)
        places, images, labels, indices = (values[first:last] for values in tensors)
        foreground = None if self.foreground is None else self.foreground[first:last]
        return Rows(places, images, labels, indices, stop, foreground)


class ImageSource(ABC):
    """Images in numbered blocks, from `image_source`; all that an evaluation reads its images from."""

    name: str
    has_masks: bool = False
    """Whether the true pixels of the objects are known."""
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
    shuffled = False
    """Whether the images may come in another order than the data set's."""
    drawn = False
    """Whether the images are drawn at random, in another order every time."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.first.shape[1:]
        return channels, height, width

    def check_numbers(self) -> None:  # noqa: B027
        """Refuse images that cannot be told apart by number, now or when a number repeats."""

    def blocks(self, size: int, wanted: Callable[[int], bool] | None = None) -> Iterator[ImageBlock]:
        """The blocks of `size` images (the last may be smaller), in order.

        `wanted` is asked once for each block, in order and not long before the block is needed. Only the
        wanted blocks are yielded, and an indexed source reads no others. Which images a block holds, and
        their values, do not depend on it.
        """
        if size < 1:
            raise InputError(f"a block must have at least 1 image, got {size}")
        return self._blocks(size, wanted or (lambda number: True))

    @abstractmethod
    def _blocks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[ImageBlock]: ...

    def pictures(self, images: Tensor, like: Tensor | None = None) -> NDArray[np.uint8]:
        """Normalised images [N, C, H, W] as bytes for people.

        Where the normalisation is not known, each image is stretched from black to white: by its own smallest
        and largest value, or by those of the same image in `like`.
        """
        if self.normalisation is not None:
            unit = self.normalisation.inverse(images.cpu())
        else:
            finite = (images if like is None else like).cpu().nan_to_num(posinf=0, neginf=0)
            low, high = finite.amin((1, 2, 3), keepdim=True), finite.amax((1, 2, 3), keepdim=True)
            unit = (images.cpu() - low) / (high - low).clamp(min=1e-6)
        picture: NDArray[np.uint8] = unit.nan_to_num().mul(255).round().clamp(0, 255).byte().numpy()
        return picture


class IndexedSource(ImageSource):
    """A source of which any block can be read alone."""

    indexed = True
    count: int

    @abstractmethod
    def _read(self, spans: Iterable[range]) -> Iterator[Rows]:
        """The images at the places of the spans, in order; perhaps others around them."""

    def _blocks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[ImageBlock]:
        asked: deque[int] = deque()  # workers read ahead, so several blocks may be on their way

        def spans() -> Iterator[range]:
            for number in range(-(-self.count // size)):
                if wanted(number):
                    asked.append(number)
                    yield range(number * size, min((number + 1) * size, self.count))

        held: list[Rows] = []
        for rows in self._read(spans()):
            held.append(rows)
            while asked and min((asked[0] + 1) * size, self.count) <= rows.stop:
                yield joined(asked.popleft(), size, held)
            held = [part for part in held if asked and part.stop > asked[0] * size]


def joined(number: int, size: int, held: Sequence[Rows]) -> ImageBlock:
    """The block with this number, from all the rows that were read for it."""
    parts = [rows.between(number * size, (number + 1) * size) for rows in held]
    images, labels, indices = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels", "indices")
    )
    masks = [part.foreground for part in parts if part.foreground is not None]
    return ImageBlock(number, images, labels, indices.tolist(), torch.cat(masks) if masks else None)
