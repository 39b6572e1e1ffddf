"""Sets of image files: `folder:PATH`, and what published sets share: listing, checking, decoding."""

import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import v2

from fpa.data.crops import RandomCrop, side_before_crop
from fpa.data.normalisation import Normalisation, minus_one_to_one
from fpa.data.regions import regions_of
from fpa.data.splits import (
    DataRequest,
    FileSplit,
    ImageData,
    PathList,
    Transform,
    UnreadableImage,
    decode,
    next_batch_of,
)
from fpa.errors import InputError, warn
from fpa.files import read_json, write_json

_USUAL_IMAGES = 5000  # evaluation images of Food-101 and ImageNet, as in the paper

_DECODED_SAMPLE = 64  # files of a split decoded whole before training, besides the suspicious ones

_BATCH = 64  # files that a process looks at before it hands on what it found
_WORTH_PROCESSES = 4096  # fewer files than this take no longer than starting the processes

PREFIX = "folder:"


def folder_path(name: str) -> Path | None:
    """The folder that `folder:PATH` names; None for any other name."""
    return Path(os.path.expanduser(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else None


def load_folder(request: DataRequest, folder: Path) -> ImageData:
    """`train/` and `val/` (or `test/`), each with a subfolder for each class."""
    test = test_folder(folder)
    if test is None or not os.path.isdir(folder / "train"):
        state = "does not hold both" if os.path.isdir(folder) else "does not exist; it must hold"
        raise InputError(f"{folder} {state} train/ and val/ (or test/), each with a subfolder for each class")
    return two_folders(request, folder / "train", test)


def load_evaluation_folder(request: DataRequest, folder: Path) -> ImageData:
    """`val/`, `test/`, `train/` or the folder itself, with a subfolder for each class or only images."""
    if not os.path.isdir(folder):
        raise InputError(f"there is no folder {folder}")
    test = test_folder(folder) or (folder / "train" if (folder / "train").is_dir() else folder)
    loose = sorted(file.name for file in test.iterdir() if file.name.lower().endswith(IMG_EXTENSIONS))
    classes = subfolders(test)
    transform = test_transform(request.size)
    files = images_below(test, classes)
    if not loose and not classes:
        raise InputError(f"there are no images in {test}: expected some, or a subfolder for each class")
    if len(loose) > len(files) or (loose and len(classes) < 2):
        left_out = f"{test} holds images, so those in its subfolders are left out: {len(files)}"
        classes = []
        split = FileSplit(PathList(test, loose), torch.full((len(loose),), -1), transform, request.size)
    else:
        left_out = f"{test} has a folder for each class, so the images beside them are left out: {len(loose)}"
        left_out += f", the first is {loose[0]}" if loose else ""
        split = file_split(test, class_folders(test), files, request.size)
    if loose and files:
        warn(left_out)
    split = replace(split, foreground=regions_of(split, test))
    none = FileSplit([], torch.zeros(0, dtype=torch.int64), transform, request.size)
    return file_data(request, classes, none, split)


def load_tuning_folder(request: DataRequest, folder: Path) -> ImageData:
    """As `load_folder`, also without classes; without a test folder, all are trained on and tested on."""
    test = test_folder(folder)
    train = folder / "train"
    if test and (not train.is_dir() or subfolders(train) or subfolders(test)):
        return load_folder(request, folder)
    data = load_evaluation_folder(request, folder)
    source = load_evaluation_folder(request, train).test if test else data.test
    assert isinstance(source, FileSplit)
    return replace(data, train=replace(source, transform=train_transform(request.size)))


def test_folder(folder: Path) -> Path | None:
    """Where the images to evaluate on are, apart from others."""
    return next((folder / part for part in ("val", "test") if os.path.isdir(folder / part)), None)


def two_folders(request: DataRequest, train: Path, test: Path, official: int | None = None) -> ImageData:
    """Images in `train`/CLASS and `test`/CLASS; `official` as for `file_data`."""
    classes = class_folders(train)
    for here, there in ((train, test), (test, train)):
        if only := sorted(set(class_folders(here)) - set(class_folders(there))):
            others = f" (nor are {len(only) - 1} others)" if len(only) > 1 else ""
            raise InputError(f"class {only[0]!r} is in {here} but not in {there}{others}")
    splits = [file_split(part, classes, images_below(part, classes), request.size) for part in (train, test)]
    known = replace(splits[1], foreground=regions_of(splits[1], test))
    return file_data(request, classes, splits[0], known, official)


def file_data(
    request: DataRequest, classes: list[str], train: FileSplit, test: FileSplit, official: int | None = None
) -> ImageData:
    """The data set of two splits of files, scaled to [-1, 1].

    `official` is the number of classes of a published set, which is usually evaluated on 5,000 images.
    """
    chosen = request.subset(len(test), None if official is None else _USUAL_IMAGES)
    for split in (train, test) if request.check else ():
        check_files(split.paths)
    if official not in (None, len(classes)):
        seen = f"{request.name} in {request.root} has {len(classes)} classes"
        warn(f"{seen}, the official set has {official}")
    train = replace(train, transform=train_transform(request.size))
    shape = (3, request.size, request.size)
    return ImageData(request.name, classes, minus_one_to_one(3), shape, train, test=test, evaluation=chosen)


def file_split(
    folder: Path, classes: list[str], files: list[tuple[str, str]], size: int, listing: Path | None = None
) -> FileSplit:
    """A split of (class, file below `folder`) pairs; errors name `listing`, where the files stand."""
    numbers = {name: number for number, name in enumerate(classes)}
    filled = {name for name, _ in files}
    place = listing or folder
    known = len(classes)
    for name in sorted(filled - set(classes)):
        raise InputError(f"{place} has the class {name!r}, which is not among the {known} known ones")
    for name in sorted(set(classes) - filled):
        raise InputError(f"class {name!r} has no images in {place}: expected at least one")
    labels = torch.tensor([numbers[name] for name, _ in files])
    return FileSplit(PathList(folder, (file for _, file in files)), labels, test_transform(size), size)


def train_transform(size: int) -> Transform:
    """What is done to the files of a training set: random crops and flips, drawn anew every epoch."""
    return RandomCrop(size)


def test_transform(size: int) -> Transform:
    """What is done to the files of a test set: the centre of each image, resized as usual."""
    return v2.Compose([v2.Resize(side_before_crop(size)), v2.CenterCrop(size), v2.PILToTensor()])  # type: ignore[no-any-return]


def locate(request: DataRequest, usual: str, needed: tuple[str, ...]) -> Path:
    """The folder that holds what is needed: the root itself or `usual` in it."""
    root = request.root
    for folder in (root / usual, root):
        if all((folder / part).exists() for part in needed):
            return folder
    parts = ", ".join(needed)
    raise InputError(f"{request.name} was not found: neither {root / usual} nor {root} holds {parts}")


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in `folder`, sorted, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error


def class_folders(folder: Path) -> list[str]:
    """The subfolders, of which there must be some."""
    names = subfolders(folder)
    if not names:
        files = any(folder.iterdir())
        state = "has no subfolders: expected one" if files else "is empty: expected a subfolder"
        raise InputError(f"{folder} {state} for each class, with its images")
    places: dict[str, str] = {}
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the name of the folder {os.fsencode(folder / name)!r} is not UTF-8") from error
        place = os.path.realpath(folder / name)
        if Path(os.path.realpath(folder)).is_relative_to(place) or place in places:
            other = f"the same folder as {places[place]!r}" if place in places else "a folder that holds it"
            raise InputError(f"class {name!r} in {folder} is a link to {other}")
        places[place] = name
    return names


def images_below(folder: Path, classes: list[str]) -> list[tuple[str, str]]:
    """(class, image file) for the files at any depth, relative to `folder`, sorted in each class."""
    files = list[tuple[str, str]]()
    links = list[str]()
    for name in classes:
        for place, inner, names in os.walk(folder / name):  # links to folders are not followed: they may loop
            links += [path for path in (os.path.join(place, each) for each in inner) if os.path.islink(path)]
            images = (each for each in names if each.lower().endswith(IMG_EXTENSIONS))
            files += [(os.path.join(place, each), name) for each in images]
    if links:
        shown = f"{len(links)} links to folders are left out, the first is {min(links)}"
        warn(f"{shown}: images are looked for in real folders and in linked classes")
    return [(name, os.path.relpath(path, folder)) for path, name in sorted(files)]


def file_bytes(path: Path) -> bytes:
    """The content of a file that an official set has."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}, a file of the official set: {error.strerror}") from error


def check_files(paths: Sequence[Path]) -> None:
    """Refuse files that are not whole images: a glance at each, a full decoding of few."""
    step = max(1, len(paths) // _DECODED_SAMPLE)
    wrong = [*in_processes(partial(_is_damaged, paths, step), len(paths), "checking the images")]
    if bad := torch.cat(wrong).nonzero()[:, 0].tolist() if wrong else []:
        errors = [error for index in bad[:5] if (error := _error(paths[index]))]
        named = "; ".join(f"{error.path} ({error.reason})" for error in errors)
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise InputError(f"{len(bad)} of {len(paths)} image files cannot be read: {named}{more}")


def _is_damaged(paths: Sequence[Path], step: int, index: int) -> Tensor:
    """Whether a file is not an image, as far as a glance tells; every `step`-th one is decoded."""
    path = paths[index]
    return torch.tensor((index % step == 0 or not _looks_whole(path)) and _error(path) is not None)


def _error(path: Path) -> UnreadableImage | None:
    try:
        decode(path)
    except UnreadableImage as error:
        return error
    return None


def _looks_whole(path: Path) -> bool:
    """Whether the file starts and ends as a JPEG or a PNG does, whatever its name."""
    try:
        with path.open("rb") as file:
            start = file.read(24)
            file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
            end = file.read()
    except OSError:
        return False
    if start.startswith(b"\xff\xd8\xff"):
        return end.endswith(b"\xff\xd9")
    sides = (int.from_bytes(start[16:20]), int.from_bytes(start[20:24]))
    whole = start.startswith(b"\x89PNG\r\n\x1a\n") and end == b"IEND\xaeB`\x82"
    return whole and sides[0] * sides[1] <= (Image.MAX_IMAGE_PIXELS or math.inf)


def z_score(split: FileSplit, cache: Path) -> Normalisation:
    """Mean and standard deviation of each channel over all pixels of the split, kept in `cache`.

    What is kept counts only for the same files: their names and sizes are its key.
    """
    listing = hashlib.sha256()
    for path in split.paths:
        try:
            listing.update(f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode())
        except OSError as error:
            raise UnreadableImage(path, error) from error
    key = listing.hexdigest()
    try:
        stored = read_json(cache)
        if stored["files"] == key:
            return Normalisation(tuple(stored["mean"]), tuple(stored["std"]))
    except (ValueError, KeyError, TypeError):
        pass  # nothing usable was kept: measured anew below

    totals = torch.zeros(2, 3).long()
    measured = in_processes(partial(_sums, split), len(split), "measuring colours")
    for start, (sums, readable) in enumerate(measured):
        if not bool(readable.all()):
            split.load(_BATCH * start + int(readable.int().argmin()))  # which says what is wrong with it
        totals += sums.sum(0)
    mean, squares = totals.double() / (len(split) * split.size**2)
    std = (squares - mean**2).clamp(min=0).sqrt()
    if std.min() == 0:
        raise InputError(f"a channel of the {len(split)} training images is constant: it cannot be z-scored")
    result = Normalisation(tuple((mean / 255).tolist()), tuple((std / 255).tolist()))
    try:
        write_json(cache, {"files": key, "mean": result.mean, "std": result.std})
    except (OSError, InputError) as error:
        warn(f"{cache} cannot be saved and will be measured again next time: {error}")
    return result


def _sums(split: FileSplit, index: int) -> tuple[Tensor, bool]:
    """The sums of the bytes of an image by channel and of their squares, as whole numbers: exact."""
    try:
        values = split.load(index).long()
    except UnreadableImage:
        return torch.zeros(2, 3).long(), False
    return torch.stack([values.sum((1, 2)), values.square().sum((1, 2))]), True


def _stacked(function: Callable[[int], Any], indices: list[int]) -> Any:
    return default_collate([function(index) for index in indices])


def in_processes(function: Callable[[int], Any], count: int, what: str, most: int = 16) -> Iterator[Any]:
    """`function` of 0, 1, ..., count - 1, in order, stacked to batches; a terminal shows a progress bar.

    Many calls are shared among processes, at `most` so many: for small images, threads wait for each other
    most of the time.
    """
    workers = min(most, os.cpu_count() or 1) if count >= _WORTH_PROCESSES else 0
    loader: Any = DataLoader(
        range(count),  # type: ignore[arg-type]
        _BATCH,
        num_workers=workers,
        collate_fn=partial(_stacked, function),
        generator=torch.Generator(),  # leaves the global one alone
    )
    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    batches = iter(loader)
    for _ in track(range(len(loader)), what, console=console, transient=True, disable=hidden):
        yield next_batch_of(batches)
