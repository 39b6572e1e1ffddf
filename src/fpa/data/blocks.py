"""The images of an evaluation in numbered blocks: what every source of them has in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data.loaders import as_tensor
from fpa.data.normalisation import Normalisation
from fpa.data.splits import fixed_choice
from fpa.errors import InputError, TooFewImagesError, at_least
from fpa.values import checked

PROBE = 16
"""Images that `ImageSource.first` holds at most."""

_DECODED = 64  # files that one worker decodes at a time

Rows = tuple[Tensor, ...]
"""Images as they were read: places in the source, images, labels, indices and, where known, foregrounds."""


@dataclass(frozen=True, eq=False)
class Maker:
    """How images that a world made can be made again."""

    world: Any
    """The `fpa.worlds.World` of the test images."""
    normalised: Callable[[Tensor], Tensor]
    """Bytes [N, C, H, W] -> as the model takes them."""


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
    exact: bool = False
    """See `ImageSource.exact`."""
    maker: Maker | None = None
    """What made the images, where a world did."""


class ImageSource(ABC):
    """Images in numbered blocks, from `image_source`; all that an evaluation reads its images from."""

    name: str
    numbers: Sequence[int] = ()
    """Of the images in their data set, where they are known beforehand."""
    has_masks: bool = False
    """Whether the true pixels of the objects are known."""
    maker: Maker | None = None
    """What made the images, where a world did."""
    has_labels: bool = True
    """Whether true classes may be known; False where it is certain that none is."""
    count: int | None
    """The number of images; None where a stream does not say."""
    total: int | None = None
    """How many there are before `count` chooses, numbered from 0 on; None where that is not known."""
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
    exact: bool = False
    """Whether the images are tensors, the same to the bit whenever they are read; photos are decoded anew."""
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
        self._outputs = torch.tensor([*labels, -1])  # label -1 picks the last: unknown stays unknown
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
        held: list[list[Tensor]] = []  # the parts of one block that have come so far
        # What is read at a time has its own size, that of a loader's batches: a piece may hold the end of
        # one block, all of the next and the beginning of a third. Its places say which; where files could
        # not be read, places are missing, and no block is filled up with images of the next.
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
        return ImageBlock(
            number,
            images,
            labels,
            indices.tolist(),
            foreground=foreground[0] if foreground else None,
            exact=self.exact,
            maker=self.maker,
        )

    def bring_masks(self, masks: Any) -> None:
        """Take bool masks [M, H, W] of the objects, in the order of all images, before `count` chooses."""
        self._masks = as_tensor("masks", masks)
        needed = self._available or self.count
        sides = list(self.first.shape[2:])
        shape = list(self._masks.shape)
        fits = len(shape) == 3 and shape[1:] == sides
        # The first ones of a stream are among images that nobody has counted.
        if fits:
            fits = shape[0] == needed if self.indexed else shape[0] >= (needed or 1)
        if self._masks.dtype != torch.bool or not fits:
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
            raise TooFewImagesError(f"the number of images must be in 1..{self._available}, got {count}")
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


class IndexedSource(ImageSource):
    """A source of which any block can be read alone."""

    indexed = True
    count: int

    def _read(self, size: int, asked: Callable[[int], bool]) -> Iterator[tuple[range, Rows]]:
        def pieces() -> Iterator[range]:
            done = 0
            for number in filter(asked, range(-(-self.count // size))):
                # A piece may reach into the next block: what was read with it is not read again.
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
