"""What is asked of a data set, and the two forms of its images: held whole as bytes, or files to decode."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fpa.data.crops import RandomCrop
from fpa.data.normalisation import Normalisation, minus_one_to_one
from fpa.errors import LARGEST_SIDE, InputError, at_least
from fpa.seeds import Stream, derive, generator

T = TypeVar("T")

UNREADABLE = -100  # the label of an image that could not be read: cross_entropy's default ignore_index

_EVALUATION_SEED = 0

Transform = Callable[[Image.Image], Tensor]


class UnreadableImage(InputError):  # noqa: N818
    """An image file that cannot be decoded."""

    def __init__(self, path: Path, error: Exception):
        super().__init__(path, error)
        self.path = path
        self.reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            self.reason = "not an image, or damaged from its start"

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
        self._names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.folder / os.fsdecode(self._names[index])


class ChosenPaths(Sequence[Path]):
    """Some of many files by their places [N], looked up when they are asked for.

    A list of them would undo what `PathList` is for.

    >>> files = PathList(Path("data"), ["a.png", "b.png", "c.png"])
    >>> [path.name for path in ChosenPaths(files, np.array([0, 2]))]
    ['a.png', 'c.png']
    """

    def __init__(self, paths: Sequence[Path], places: NDArray[np.int64]):
        self._paths = paths
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ChosenPaths(self._paths, self._places[index])
        return self._paths[int(self._places[index])]


@dataclass(frozen=True, eq=False)
class FileSplit:
    """A split of image files, decoded when asked for.

    `transform` makes an RGB image uint8 [3, size, size]. `foreground[indices]` is bool [N, size, size], the
    pixels of the objects, where they are known.
    """

    paths: Sequence[Path]
    labels: Tensor
    transform: Transform
    size: int
    foreground: Any = None

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int, seed: int | None = None, epoch: int = 0) -> Tensor:
        """Image `index`, uint8 [3, size, size]; with a `seed`, random transforms follow it and the epoch."""
        image = decode(self.paths[index])
        if seed is not None and isinstance(self.transform, RandomCrop):
            return self.transform(image, self.transform.uniform(seed, epoch, [index])[0])
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                # torch.manual_seed would also reseed the GPUs, which fork_rng does not restore here.
                torch.default_generator.manual_seed(derive(seed, epoch, index))
            return self.transform(image)

    def chosen(self, places: Tensor) -> "FileSplit":
        """Only the images at these places [M], without what is known of their objects."""
        paths = ChosenPaths(self.paths, places.numpy())
        return replace(self, paths=paths, labels=self.labels[places], foreground=None)


Split = ArraySplit | FileSplit


def check_labels(labels: Tensor, numbers: Tensor) -> None:
    """Refuse labels below -1, which stands for an unknown one, of images with these numbers."""
    wrong = (labels < -1).nonzero().flatten().tolist()
    if wrong:
        first = f"{int(labels[wrong[0]])} of image {int(numbers[wrong[0]])}"
        raise InputError(f"labels must be numbers of classes, or -1 for an unknown one; got {first}")


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: its two splits, and what a model and an evaluation need to know about them.

    `evaluation` [M] holds the indices into `test` that perturbation curves are measured on. `crop_padding`
    and `flip` describe the training augmentation of an `ArraySplit`; a `FileSplit` has its own transform.
    `world` is the `fpa.worlds.World` that made the images, if one did: it can make them again.
    """

    name: str
    classes: list[str]
    normalisation: Normalisation
    input_shape: tuple[int, int, int]
    train: Split
    test: Split
    evaluation: Tensor
    crop_padding: int = 0
    flip: bool = False
    world: Any = None


USUAL_SIDE = 224
"""Of the images of sets that are files, in pixels, where nobody says it."""


@dataclass(frozen=True)
class DataRequest:
    """What `load_data` asks a data set for."""

    name: str
    """The name the data set was asked for by: `cifar10`, `folder:PATH`, `module:function`."""
    root: Path = Path("data")
    """The folder where the files of data sets are."""
    size: int = USUAL_SIDE
    """The side of the images of sets that are files."""
    evaluation_images: int | None = None
    """How many test images to evaluate on; None: as many as is usual for the set."""
    check: bool = True
    """Whether to look at all files before anything else happens."""

    def __post_init__(self) -> None:
        at_least("the size of the images", self.size, 1, LARGEST_SIDE)

    def subset(self, count: int, usual: int | None = None) -> Tensor:
        """The numbers of the evaluation images among `count`: always the same ones, in rising order.

        Without a wish there are `usual` ones, or all where there are fewer or nothing is usual.
        """
        wanted = self.evaluation_images
        if wanted is None:
            wanted = min(usual or count, count)
        elif not 1 <= wanted <= count:
            raise InputError(f"the number of evaluation images must be in 1..{count}, got {wanted}")
        return fixed_choice(range(count), wanted)


def fixed_choice(numbers: Sequence[int], count: int) -> Tensor:
    """The places of `count` of these image numbers, in rising order: always the same ones, spread at random.

    Every number has a random key of its own, and the smallest keys are taken. So it does not matter whether
    some are chosen of all images of a data set or of an earlier, larger choice: the same ones are found.

    >>> larger = fixed_choice(range(100), 20)
    >>> larger[fixed_choice(larger.tolist(), 5)].tolist() == fixed_choice(range(100), 5).tolist()
    True
    """
    chosen = np.asarray(numbers, dtype=np.int64)
    keys = np.random.PCG64(_EVALUATION_SEED).random_raw(int(chosen.max(initial=-1)) + 1)
    order = np.argsort(keys[chosen], kind="stable")
    return torch.from_numpy(np.sort(order[:count]))


def array_data(
    request: DataRequest,
    train: ArraySplit,
    test: ArraySplit,
    classes: Sequence[str] | None = None,
    *,
    crop_padding: int = 0,
    flip: bool = False,
) -> ImageData:
    """The data set of two splits held whole, scaled to [-1, 1]; classes without names are called by number.

    `crop_padding` and `flip` are how training varies its images: random crops after padding, mirroring.
    """
    channels, height, width = train.images.shape[1:]
    if classes is None:
        classes = [str(number) for number in range(int(max(train.labels.max(), test.labels.max())) + 1)]
    return ImageData(
        request.name,
        list(classes),
        minus_one_to_one(channels),
        (channels, height, width),
        train=train,
        test=test,
        evaluation=request.subset(len(test)),
        crop_padding=crop_padding,
        flip=flip,
    )


class SeededImages(Dataset[tuple[Tensor, int, int]]):
    """A `FileSplit` for DataLoader workers: key (epoch, index) gives (image, label, index).

    The random transforms depend on the seed, the epoch and the index only, not on the workers. An image
    that cannot be read is returned as zeros, with the label `UNREADABLE`.
    """

    collate = staticmethod(default_collate)
    """Makes a batch of what the keys give."""

    def __init__(self, split: FileSplit, seed: int = 0):
        self.split = replace(split, foreground=None)
        self.seed = seed  # which no worker needs

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, index = key
        try:
            image = self.split.load(index, self.seed, epoch)
        except UnreadableImage:
            return torch.zeros(3, self.split.size, self.split.size, dtype=torch.uint8), UNREADABLE, index
        return image, int(self.split.labels[index]), index


def read_batches(
    split: Split, batches: Iterable[Tensor], device: torch.device | str = "cpu", workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each tensor of indices its images: (indices, uint8 images on `device`, labels on `device`).

    The indices are asked for as they are needed. Images that cannot be read are zeros with the label
    `UNREADABLE`; see `unreadable`.
    """
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
    batches = iter(loader)
    while (batch := next_batch_of(batches)) is not None:
        images, labels, numbers = batch
        yield numbers, images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def next_batch_of(batches: Iterator[Any]) -> Any:
    """The next batch of a DataLoader, or None; what went wrong in a worker is said in one line."""
    try:
        return next(batches, None)
    except InputError:
        raise
    except Exception as error:
        raise unread(error) from error


def unread(error: Exception) -> InputError:
    """What went wrong in a DataLoader, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = lines[-1 if lines[0].startswith("Caught ") else 0].strip().rstrip(".")
    words = ("shared memory", "signal", "exited unexpectedly", "No space")
    if isinstance(error, ConnectionError | EOFError):
        reason = f"a worker process has died ({reason})"
    if isinstance(error, ConnectionError | EOFError) or any(word in str(error) for word in words):
        reason += "; the memory, or the shared memory (/dev/shm), may be too small: try fewer workers"
    return InputError(f"the images cannot be read: {reason}")


def watched(batches: Iterable[T]) -> Iterator[T]:
    """The batches of somebody's loader; a worker that was killed is said in one line, and what to do."""
    try:
        # not "yield from", which would close a generator that is to be read on
        for batch in batches:  # noqa: UP028
            yield batch
    except (ConnectionError, EOFError) as error:
        raise unread(error) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise unread(error) from error


def unreadable(split: Split, indices: Tensor, labels: Tensor) -> list[Path]:
    """The files that could not be read, among the images of `indices` that came with these labels."""
    if isinstance(split, ArraySplit):
        return []
    return [split.paths[index] for index in indices[(labels == UNREADABLE).to(indices.device)].tolist()]


def decode(path: Path) -> Image.Image:
    """The RGB image in a file; one with more pixels than Pillow takes for safe is refused."""
    try:
        with Image.open(path) as image:
            (width, height) = image.size
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and width * height > limit:
                raise ValueError(f"it has {width} x {height} pixels, more than Pillow's limit of {limit:,}")
            return image.convert("RGB")
    except Exception as error:  # damaged files make Pillow raise exceptions of many types
        raise UnreadableImage(path, error) from error


def first_images(split: Split, images: int, seed: int = 0) -> Split:
    """A smaller training set: `images` of the split chosen by the seed, in their old order."""
    chosen = torch.randperm(len(split), generator=generator("cpu", seed, Stream.ORDER))[:images].sort().values
    if isinstance(split, ArraySplit):
        foreground = None if split.foreground is None else split.foreground[chosen]
        return ArraySplit(split.images[chosen], split.labels[chosen], foreground)
    return split.chosen(chosen)
