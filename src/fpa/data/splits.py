"""The two forms of a set of images: held whole as bytes, or files decoded when asked for."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fpa.data.normalisation import Normalisation
from fpa.errors import InputError
from fpa.seeds import Stream, derive, generator

UNREADABLE = -100  # the label of an image that could not be read: cross_entropy's default ignore_index

Transform = Callable[[Image.Image], Tensor]


class UnreadableImage(InputError):  # noqa: N818
    """An image file that cannot be decoded."""

    def __init__(self, path: Path, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read the image {self.path}: {self.reason}"


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """A split held whole: images uint8 [N, C, H, W], labels int64 [N].

    `foreground`, bool [N, H, W], is True on the pixels of the object, where they are known (shapes).
    """

    images: Tensor
    labels: Tensor
    foreground: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "ArraySplit":
        """The same split on another device."""
        foreground = None if self.foreground is None else self.foreground.to(device)
        return ArraySplit(self.images.to(device), self.labels.to(device), foreground)


class PathList(Sequence[Path]):
    """Files below one folder, their names in one array.

    A million `Path` objects would be copied into every worker process, as their reference counts change;
    the array stays shared.

    >>> PathList(Path("data"), ["train/a.png", "train/b.png"])[1].as_posix()
    'data/train/b.png'
    """

    def __init__(self, folder: Path, names: Iterable[str]):
        self.folder = folder
        self._names: NDArray[np.bytes_] = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.folder / os.fsdecode(self._names[index])


@dataclass(frozen=True, eq=False)
class FileSplit:
    """A split of image files, decoded when asked for.

    `transform` makes an RGB image uint8 [3, size, size].
    """

    paths: Sequence[Path]
    labels: Tensor
    transform: Transform
    size: int

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int, seed: int | None = None) -> Tensor:
        """Image `index`, uint8 [3, size, size]; random transforms are drawn from `seed` if it is given."""
        image = decode(self.paths[index])
        if seed is None:
            return self.transform(image)
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also reseed the GPUs, which fork_rng does not restore here.
            torch.default_generator.manual_seed(seed)
            return self.transform(image)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: its two splits, and what a model and an evaluation need to know about them.

    `evaluation` [M] holds the indices into `test` that perturbation curves are measured on. `crop_padding`
    and `flip` describe the training augmentation of an `ArraySplit`; a `FileSplit` has its own transform.
    """

    name: str
    classes: list[str]
    normalisation: Normalisation
    input_shape: tuple[int, int, int]
    train: ArraySplit | FileSplit
    test: ArraySplit | FileSplit
    evaluation: Tensor
    crop_padding: int = 0
    flip: bool = False


class SeededImages(Dataset[tuple[Tensor, int, int]]):
    """A `FileSplit` for DataLoader workers: key (epoch, index) gives (image, label, index).

    The random transforms depend on the seed, the epoch and the index only, not on the workers. An image
    that cannot be read is returned as zeros, with the label `UNREADABLE`.
    """

    def __init__(self, split: FileSplit, seed: int = 0):
        self.split, self.seed = split, seed

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, index = key
        try:
            image = self.split.load(index, derive(self.seed, epoch, index))
        except UnreadableImage:
            return torch.zeros(3, self.split.size, self.split.size, dtype=torch.uint8), UNREADABLE, index
        return image, int(self.split.labels[index]), index


def evaluation_batches(
    split: ArraySplit | FileSplit,
    indices: Tensor,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The images of `indices`, in their order: (indices, uint8 images on `device`, labels on `device`).

    Images that cannot be read are zeros with the label `UNREADABLE`; see `unreadable`.
    """
    return read_batches(split, torch.split(indices, batch_size), device, workers)


def read_batches(
    split: ArraySplit | FileSplit,
    batches: Iterable[Tensor],
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """As `evaluation_batches`, a batch for each tensor of indices, which are asked for as they are needed."""
    if isinstance(split, ArraySplit):
        for part in batches:
            chosen = part.to(split.labels.device)
            yield part, split.images[chosen].to(device), split.labels[chosen].to(device)
        return
    loader = DataLoader(
        SeededImages(split),
        batch_sampler=([(0, index) for index in part.tolist()] for part in batches),
        num_workers=min(workers, os.cpu_count() or 1),
        pin_memory=torch.device(device).type == "cuda",
        generator=torch.Generator(),  # leaves the global one alone
    )
    for images, labels, numbers in loader:
        yield numbers, images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def unreadable(split: ArraySplit | FileSplit, indices: Tensor, labels: Tensor) -> list[Path]:
    """The files that could not be read, among the images of `indices` that came with these labels."""
    if isinstance(split, ArraySplit):
        return []
    return [split.paths[index] for index in indices[(labels == UNREADABLE).to(indices.device)].tolist()]


def decode(path: Path) -> Image.Image:
    """The RGB image in a file."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # damaged files make Pillow raise exceptions of many types
        raise UnreadableImage(path, reason(error)) from error


def reason(error: Exception) -> str:
    """What an exception about a file says, for people."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or damaged from its start"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def first_images(split: ArraySplit | FileSplit, images: int, seed: int = 0) -> ArraySplit | FileSplit:
    """A smaller training set: `images` of the split chosen by the seed, in their old order."""
    chosen = torch.randperm(len(split), generator=generator("cpu", seed, Stream.ORDER))[:images].sort().values
    if isinstance(split, ArraySplit):
        foreground = None if split.foreground is None else split.foreground[chosen]
        return ArraySplit(split.images[chosen], split.labels[chosen], foreground)
    return replace(split, paths=[split.paths[i] for i in chosen], labels=split.labels[chosen])
