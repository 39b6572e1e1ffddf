"""Image data sets by name: their images, labels, classes, normalisation and evaluation subset.

Small sets (`shapes`, `digits`, `cifar10`) are held whole as bytes, to live on the device; large ones
(`food101`, `imagenet`, `folder:PATH`) are lists of files that DataLoader workers decode. What is wrong with
the files is said before training starts; an image that cannot be read later comes with the label
`UNREADABLE`, which `cross_entropy` ignores, so that it can be named and counted.
"""

import hashlib
import json
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.datasets.utils import download_and_extract_archive
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from fpa.errors import InputError, unknown
from fpa.seeds import derive
from fpa.shapes import CLASSES as SHAPES
from fpa.shapes import draw_shapes
from fpa.store import write_text

DATA_SETS = ("shapes", "digits", "cifar10", "food101", "imagenet")
UNREADABLE = -100  # the label of an image that could not be read: cross_entropy's default ignore_index

_EVALUATION_SEED = 0
_EVALUATION_IMAGES = 5000  # of Food-101 and ImageNet, as in the paper
_DECODED_SAMPLE = 64  # files of a split decoded whole before training, besides the suspicious ones

Transform = Callable[[Image.Image], Tensor]
Result = TypeVar("Result")


class UnreadableImage(InputError):  # noqa: N818
    """An image file that cannot be decoded."""

    def __init__(self, path: Path, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read the image {self.path}: {self.reason}"


@dataclass(frozen=True)
class Normalisation:
    """`(x - mean) / std` for each channel, x in 0..1.

    Nothing is copied from the host, so a call can be compiled and captured in a CUDA graph.

    >>> Normalisation((0.5,), (0.5,))(torch.tensor([[[0, 51, 255]]], dtype=torch.uint8))
    tensor([[[-1.0000, -0.6000,  1.0000]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise InputError(
                "a normalisation needs a mean and a positive standard deviation for each channel, "
                f"got mean {list(self.mean)} and std {list(self.std)}"
            )

    def __call__(self, images: Tensor) -> Tensor:
        """Bytes, or floats in 0..1, [..., C, H, W] to normalised float32."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        elif not images.dtype.is_floating_point:
            raise InputError(f"images must be uint8 in 0..255 or floats in 0..1, got {images.dtype}")
        return (images.float() - self._channels(self.mean, images)) / self._channels(self.std, images)

    def inverse(self, images: Tensor) -> Tensor:
        """Normalised images [..., C, H, W] back to 0..1, as float32."""
        return images.float() * self._channels(self.std, images) + self._channels(self.mean, images)

    def _channels(self, values: tuple[float, ...], images: Tensor) -> Tensor | float:
        if images.ndim < 3 or images.shape[-3] != len(values):
            raise InputError(
                f"images must be [..., {len(values)}, H, W] for this normalisation, got {list(images.shape)}"
            )
        if len(set(values)) == 1:
            return values[0]
        return torch.cat(
            [torch.full((1, 1, 1), value, device=images.device, dtype=torch.float32) for value in values]
        )


def minus_one_to_one(channels: int) -> Normalisation:
    """The normalisation that scales 0..1 to -1..1."""
    return Normalisation((0.5,) * channels, (0.5,) * channels)


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
        image = _decode(self.paths[index])
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
    crop_padding: int
    flip: bool


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
    if isinstance(split, ArraySplit):
        for start in range(0, len(indices), batch_size):
            part = indices[start : start + batch_size]
            chosen = part.to(split.labels.device)
            yield part, split.images[chosen].to(device), split.labels[chosen].to(device)
        return
    loader = DataLoader(
        SeededImages(split),
        batch_size,
        sampler=[(0, index) for index in indices.tolist()],
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


def load_data(
    name: str,
    root: Path | str = "data",
    *,
    evaluation_images: int | None = None,
    size: int = 224,
    check: bool = True,
) -> ImageData:
    """A data set by name: `shapes`, `digits`, `cifar10`, `food101`, `imagenet` or `folder:PATH`.

    `root` is the folder where the official files of `cifar10`, `food101` and `imagenet` are. `size` is the
    side of the images of the sets that are files. The evaluation subset is the whole test split, for
    `food101` and `imagenet` 5,000 images of it; `evaluation_images` asks for another number. The choice is
    always the same. All files are looked at before anything else happens, unless `check` is False, as
    processes of one run may set it when another has already looked.

    >>> data = load_data("shapes")
    >>> data.classes[:3], data.input_shape, len(data.train), len(data.test), len(data.evaluation)
    (['disc', 'square', 'diamond'], (3, 32, 32), 4000, 1000, 1000)
    """
    root = Path(root)
    if size < 1:
        raise InputError(f"the size of the images must be at least 1, got {size}")
    if name == "shapes":
        return _shapes(evaluation_images)
    if name == "digits":
        return _digits(evaluation_images)
    if name == "cifar10":
        return _cifar10(root, evaluation_images)
    if name == "food101":
        return _food101(root, evaluation_images, size, check)
    if name == "imagenet":
        return _imagenet(root, evaluation_images, size, check)
    if name.startswith("folder:"):
        folder = Path(name.removeprefix("folder:")).expanduser()
        return _image_folder(name, folder, evaluation_images, size, check)
    if Path(name).expanduser().is_dir():
        raise InputError(f"unknown data set {name!r}: did you mean folder:{name}?")
    raise unknown("data set", name, [*DATA_SETS, "folder:PATH"])


def load_evaluation_data(
    name: str, root: Path | str = "data", *, evaluation_images: int | None = None, size: int = 224
) -> ImageData:
    """A data set for a model that is trained already: as `load_data`, but a folder needs no training images.

    `folder:PATH` may hold `val/` or `test/` (which is then taken), a subfolder a class, or only images,
    whose labels are then unknown (-1). Nothing else of a folder is looked at; a few images beside folders of
    classes are left out, or the few in subfolders beside many images, with a warning.
    """
    if not name.startswith("folder:"):
        return load_data(name, root, evaluation_images=evaluation_images, size=size)
    folder = Path(name.removeprefix("folder:")).expanduser()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    test = next((folder / part for part in ("val", "test", "train") if (folder / part).is_dir()), folder)
    loose = sorted(file.name for file in test.iterdir() if file.name.lower().endswith(IMG_EXTENSIONS))
    transform = _test_transform(size)
    classes = _subfolders(test)
    files = [(label, file) for label in classes for file in _images_below(test, label)]
    if len(loose) > len(files) or (loose and len(classes) < 2):
        if files:
            warnings.warn(
                f"{test} holds images, so those in its subfolders are left out: {len(files)}", stacklevel=2
            )
        classes = []
        split = FileSplit(PathList(test, loose), torch.full((len(loose),), -1), transform, size)
    else:
        if loose:
            warnings.warn(
                f"{test} has a folder a class, so the images beside them are left out: {len(loose)}, "
                f"the first is {loose[0]}",
                stacklevel=2,
            )
        split = _file_split(test, _class_folders(test), test, files, transform, size)
    none = FileSplit([], torch.zeros(0, dtype=torch.int64), transform, size)
    return _file_data(name, classes, none, split, evaluation_images, True, None)


def _evaluation_subset(count: int, wanted: int | None) -> Tensor:
    """`wanted` of `count` indices (None: all), always the same ones, in rising order."""
    if wanted is None:
        return torch.arange(count)
    if not 1 <= wanted <= count:
        raise InputError(f"the number of evaluation images must be in 1..{count}, got {wanted}")
    order = np.argsort(np.random.PCG64(_EVALUATION_SEED).random_raw(count), kind="stable")
    return torch.from_numpy(np.sort(order[:wanted]))


def _array_data(
    name: str,
    classes: list[str],
    train: ArraySplit,
    test: ArraySplit,
    evaluation_images: int | None,
    *,
    crop_padding: int,
    flip: bool,
) -> ImageData:
    channels, height, width = train.images.shape[1:]
    return ImageData(
        name=name,
        classes=classes,
        normalisation=minus_one_to_one(channels),
        input_shape=(channels, height, width),
        train=train,
        test=test,
        evaluation=_evaluation_subset(len(test), evaluation_images),
        crop_padding=crop_padding,
        flip=flip,
    )


def _shapes(evaluation_images: int | None) -> ImageData:
    train, test = (
        ArraySplit(*map(torch.from_numpy, draw_shapes(count, seed))) for count, seed in ((4000, 0), (1000, 1))
    )
    # Every shape is its own mirror image; shapes lie anywhere already, so crops would add only borders.
    return _array_data("shapes", list(SHAPES), train, test, evaluation_images, crop_padding=0, flip=True)


def _digits(evaluation_images: int | None) -> ImageData:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    values = torch.from_numpy(bunch.images).float().unsqueeze(1) * (255 / 16)
    larger = torch.nn.functional.interpolate(values, (32, 32), mode="bilinear", align_corners=False)
    images, labels = larger.round().to(torch.uint8), torch.from_numpy(bunch.target).long()
    parts = train_test_split(np.arange(len(labels)), test_size=360, stratify=bunch.target, random_state=0)
    train, test = (ArraySplit(images[part], labels[part]) for part in map(np.sort, parts))
    classes = [str(digit) for digit in range(10)]
    return _array_data("digits", classes, train, test, evaluation_images, crop_padding=2, flip=False)


def _cifar10(root: Path, evaluation_images: int | None) -> ImageData:
    for folder_name, first_file, read in (
        ("cifar-10-batches-bin", "data_batch_1.bin", _cifar10_binary),
        (datasets.CIFAR10.base_folder, "data_batch_1", _cifar10_python),
    ):
        below = root / folder_name
        if below.is_dir() or (root / first_file).is_file():
            content = read(below if below.is_dir() else root)
            break
    else:
        content = _cifar10_python(_download_cifar10(root))
    return _array_data("cifar10", *content, evaluation_images, crop_padding=4, flip=True)


def _cifar10_binary(folder: Path) -> tuple[list[str], ArraySplit, ArraySplit]:
    """The official binary version: records of a label byte and 3 x 1024 bytes of colour planes."""
    classes = _file_bytes(folder / "batches.meta.txt").decode().split()
    if len(classes) != 10:
        raise InputError(f"{folder / 'batches.meta.txt'} must list 10 class names, it has {len(classes)}")

    def read(name: str) -> ArraySplit:
        path = folder / f"{name}.bin"
        raw = np.frombuffer(_file_bytes(path), dtype=np.uint8)
        if len(raw) == 0 or len(raw) % 3073:
            raise InputError(f"{path} has {len(raw)} bytes: expected records of 3,073 (10,000 of them)")
        records = raw.reshape(-1, 3073)
        if len(records) != 10_000:
            warnings.warn(f"{path} has {len(records)} images, the official file has 10,000", stacklevel=2)
        labels = torch.from_numpy(records[:, 0].astype(np.int64))
        if labels.max() > 9:
            raise InputError(f"{path} has the label {labels.max()}: expected labels in 0..9")
        return ArraySplit(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), labels)

    return classes, _joined([read(f"data_batch_{i}") for i in range(1, 6)]), read("test_batch")


def _cifar10_python(folder: Path) -> tuple[list[str], ArraySplit, ArraySplit]:
    """The official python version: pickles, which could run any code, so only the official bytes are read."""
    official = datasets.CIFAR10

    def entry(name: str, md5: str) -> Any:
        content = _file_bytes(folder / name)
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            raise InputError(
                f"{folder / name} is not the official file, and was not unpickled: "
                f"its md5 is {found}, expected {md5}"
            )
        return pickle.loads(content, encoding="latin1")

    def read(name: str, md5: str) -> ArraySplit:
        batch = entry(name, md5)
        images = torch.from_numpy(batch["data"].reshape(-1, 3, 32, 32).copy())
        return ArraySplit(images, torch.tensor(batch["labels"]))

    classes = entry(official.meta["filename"], official.meta["md5"])[official.meta["key"]]
    train, test = (
        _joined([read(*file) for file in files]) for files in (official.train_list, official.test_list)
    )
    return list(classes), train, test


def _download_cifar10(root: Path) -> Path:
    official = datasets.CIFAR10
    folder: Path = root / official.base_folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".cifar10.") as temporary:
            download_and_extract_archive(
                official.url, temporary, filename=official.filename, md5=official.tgz_md5
            )
            (Path(temporary) / official.base_folder).rename(folder)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cifar10 is not in {root} (expected the folder cifar-10-batches-bin or {official.base_folder}, "
            f"the official binary or python version) and could not be downloaded from {official.url}: {error}"
        ) from error
    return folder


def _joined(parts: list[ArraySplit]) -> ArraySplit:
    return ArraySplit(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


def _food101(root: Path, evaluation_images: int | None, size: int, check: bool) -> ImageData:
    needed = ("images", "meta/classes.txt", "meta/train.txt", "meta/test.txt")
    folder = _locate("food101", root, "food-101", needed)
    classes = sorted(_file_bytes(folder / "meta/classes.txt").decode().split())

    def split(list_name: str, transform: Transform) -> FileSplit:
        listed = folder / "meta" / list_name
        files = [(line.partition("/")[0], f"{line}.jpg") for line in _file_bytes(listed).decode().split()]
        return _file_split(listed, classes, folder / "images", files, transform, size)

    train, test = split("train.txt", train_transform(size)), split("test.txt", _test_transform(size))
    data = _file_data("food101", classes, train, test, evaluation_images, check, usual=_EVALUATION_IMAGES)
    _warn_if_unofficial(data, folder, 101)
    measured = replace(train, transform=test.transform)
    return replace(data, normalisation=_z_score(measured, folder / f"fpa-normalisation-{size}.json"))


def _imagenet(root: Path, evaluation_images: int | None, size: int, check: bool) -> ImageData:
    folder = _locate("imagenet", root, "imagenet", ("train", "val"))
    data = _two_folders(
        "imagenet", folder / "train", folder / "val", evaluation_images, size, check, usual=_EVALUATION_IMAGES
    )
    _warn_if_unofficial(data, folder, 1000)
    if (len(data.classes), data.classes[0], data.classes[-1]) != (1000, "n01440764", "n15075141"):
        return data
    # torchvision keeps the class names in the order of the sorted WordNet identifiers.
    return replace(data, classes=list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"]))


def _image_folder(
    name: str, folder: Path, evaluation_images: int | None, size: int, check: bool
) -> ImageData:
    test = next((folder / part for part in ("val", "test") if (folder / part).is_dir()), None)
    if test is None or not (folder / "train").is_dir():
        state = "does not hold both" if folder.is_dir() else "does not exist; it must hold"
        raise InputError(f"{folder} {state} train/ and val/ (or test/), each with a subfolder a class")
    return _two_folders(name, folder / "train", test, evaluation_images, size, check)


def _two_folders(
    name: str,
    train: Path,
    test: Path,
    evaluation_images: int | None,
    size: int,
    check: bool,
    usual: int | None = None,
) -> ImageData:
    """Images in `train`/CLASS and `test`/CLASS."""
    classes, test_classes = _class_folders(train), _class_folders(test)
    for only, here, there in (
        (set(classes) - set(test_classes), train, test),
        (set(test_classes) - set(classes), test, train),
    ):
        if only:
            others = f" (nor are {len(only) - 1} others)" if len(only) > 1 else ""
            raise InputError(f"class {min(only)!r} is in {here} but not in {there}{others}")

    def split(folder: Path, transform: Transform) -> FileSplit:
        files = [(label, file) for label in classes for file in _images_below(folder, label)]
        return _file_split(folder, classes, folder, files, transform, size)

    splits = split(train, train_transform(size)), split(test, _test_transform(size))
    return _file_data(name, classes, *splits, evaluation_images, check, usual)


def _file_data(
    name: str,
    classes: list[str],
    train: FileSplit,
    test: FileSplit,
    evaluation_images: int | None,
    check: bool,
    usual: int | None,
) -> ImageData:
    """`usual` evaluation images, or as many as there are, if no number is asked for."""
    if evaluation_images is None and usual is not None and usual < len(test):
        evaluation_images = usual
    evaluation = _evaluation_subset(len(test), evaluation_images)
    if check:
        _check_files(train.paths)
        _check_files(test.paths)
    return ImageData(
        name=name,
        classes=classes,
        normalisation=minus_one_to_one(3),
        input_shape=(3, train.size, train.size),
        train=train,
        test=test,
        evaluation=evaluation,
        crop_padding=0,
        flip=False,
    )


def _file_split(
    source: Path,
    classes: list[str],
    folder: Path,
    files: list[tuple[str, str]],
    transform: Transform,
    size: int,
) -> FileSplit:
    """A split of (class, file below `folder`) pairs; `source` is what errors name."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = {name for name, _ in files}
    for name in sorted(found - set(classes)):
        raise InputError(f"{source} has the class {name!r}, which is not among the {len(classes)} known ones")
    for name in sorted(set(classes) - found):
        raise InputError(f"class {name!r} has no images in {source}: expected at least one")
    labels = torch.tensor([numbers[name] for name, _ in files])
    return FileSplit(PathList(folder, (file for _, file in files)), labels, transform, size)


def train_transform(size: int) -> Transform:
    """What is done to the files of a training set: random crops and flips, drawn anew every epoch."""
    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])  # type: ignore[no-any-return]


def _test_transform(size: int) -> Transform:
    return v2.Compose([v2.Resize(round(size * 256 / 224)), v2.CenterCrop(size), v2.PILToTensor()])  # type: ignore[no-any-return]


def _locate(name: str, root: Path, usual: str, needed: tuple[str, ...]) -> Path:
    """The folder that holds what is needed: `root` itself or `usual` in it."""
    for folder in (root / usual, root):
        if all((folder / part).exists() for part in needed):
            return folder
    raise InputError(f"{name} was not found: neither {root / usual} nor {root} holds {', '.join(needed)}")


def _warn_if_unofficial(data: ImageData, folder: Path, classes: int) -> None:
    if len(data.classes) != classes:
        warnings.warn(
            f"{data.name} in {folder} has {len(data.classes)} classes, the official set has {classes}",
            stacklevel=4,
        )


def _subfolders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error


def _class_folders(folder: Path) -> list[str]:
    names = _subfolders(folder)
    if not names:
        raise InputError(f"{folder} has no subfolders: expected one for each class, with its images")
    return names


def _images_below(folder: Path, label: str) -> list[str]:
    """Image files of a class at any depth, relative to `folder`, sorted."""
    return sorted(
        os.path.relpath(os.path.join(parent, file), folder)
        for parent, _, files in os.walk(folder / label, followlinks=True)
        for file in files
        if file.lower().endswith(IMG_EXTENSIONS)
    )


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}, a file of the official set: {error.strerror}") from error


def _check_files(paths: Sequence[Path]) -> None:
    """Refuse files that are not whole images: a glance at each, a full decoding of few."""
    step = max(1, len(paths) // _DECODED_SAMPLE)

    def problem(index: int) -> UnreadableImage | None:
        try:
            if index % step == 0 or not _looks_whole(paths[index]):
                _decode(paths[index])
        except UnreadableImage as error:
            return error
        return None

    bad = [error for error in _in_threads(problem, len(paths), "looking at the images") if error]
    if bad:
        named = "; ".join(f"{error.path} ({error.reason})" for error in bad[:5])
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise InputError(f"{len(bad)} of {len(paths)} image files cannot be read: {named}{more}")


def _looks_whole(path: Path) -> bool:
    """Whether the file starts and ends as a JPEG or a PNG does, whatever its name."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
            end = file.read()
    except OSError as error:
        raise UnreadableImage(path, _reason(error)) from error
    if start.startswith(b"\xff\xd8\xff"):
        return end.endswith(b"\xff\xd9")
    return start == b"\x89PNG\r\n\x1a\n" and end == b"IEND\xaeB`\x82"


def _decode(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # damaged files make Pillow raise exceptions of many types
        raise UnreadableImage(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or damaged from its start"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _z_score(split: FileSplit, cache: Path) -> Normalisation:
    """Mean and standard deviation of each channel over all pixels of the split, kept in `cache`.

    What is kept counts only for the same files: their names and sizes are its key.
    """
    listing = hashlib.sha256()
    for path in split.paths:
        try:
            listing.update(f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode())
        except OSError as error:
            raise UnreadableImage(path, _reason(error)) from error
    key = listing.hexdigest()
    try:
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if kept["files"] == key:
            return Normalisation(tuple(kept["mean"]), tuple(kept["std"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing usable was kept: measured anew below

    def sums(index: int) -> Tensor:
        values = split.load(index).long()
        return torch.stack([values.sum((1, 2)), values.square().sum((1, 2))])

    # Whole numbers: the result does not depend on the order of the threads.
    total, squares = sum(
        _in_threads(sums, len(split), "measuring colours"), torch.zeros(2, 3).long()
    ).double()
    pixels = len(split) * split.size**2
    mean = total / pixels
    std = (squares / pixels - mean**2).clamp(min=0).sqrt()
    if std.min() == 0:
        raise InputError(f"a channel of the {len(split)} training images is constant: it cannot be z-scored")
    result = Normalisation(tuple((mean / 255).tolist()), tuple((std / 255).tolist()))
    try:
        write_text(cache, json.dumps({"files": key, "mean": result.mean, "std": result.std}, indent=1) + "\n")
    except (OSError, InputError) as error:
        warnings.warn(f"{cache} cannot be kept, it will be measured again next time: {error}", stacklevel=2)
    return result


def _in_threads(function: Callable[[int], Result], count: int, what: str) -> Iterator[Result]:
    """`function` of 0, 1, ..., count - 1, in order; a bar on a terminal shows how far it is."""
    chunk = 64  # many small tasks would cost more than their work
    pool = ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1)))
    try:
        results = pool.map(
            lambda start: [function(index) for index in range(start, min(start + chunk, count))],
            range(0, count, chunk),
        )
        shown = track(
            results,
            what,
            total=-(-count // chunk),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        for part in shown:
            yield from part
    finally:
        pool.shutdown(cancel_futures=True)
