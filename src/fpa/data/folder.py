"""Folders of images, with a subfolder for each class or without: `folder:PATH`."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from fpa.data import photos
from fpa.data.splits import DataRequest, FileSplit, ImageData, PathList
from fpa.errors import InputError

PREFIX = "folder:"


def folder_path(name: str) -> Path | None:
    """The folder that `folder:PATH` names; None for any other name."""
    return Path(name.removeprefix(PREFIX)).expanduser() if name.startswith(PREFIX) else None


def load(request: DataRequest, folder: Path) -> ImageData:
    """`train/` and `val/` (or `test/`), each with a subfolder for each class."""
    test = _test_folder(folder)
    if test is None or not (folder / "train").is_dir():
        state = "does not hold both" if folder.is_dir() else "does not exist; it must hold"
        raise InputError(f"{folder} {state} train/ and val/ (or test/), each with a subfolder for each class")
    return photos.two_folders(request, folder / "train", test)


def load_evaluation(request: DataRequest, folder: Path) -> ImageData:
    """`val/`, `test/`, `train/` or the folder itself, with a subfolder for each class or only images."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    test = _test_folder(folder) or (folder / "train" if (folder / "train").is_dir() else folder)
    loose = sorted(file.name for file in test.iterdir() if file.name.lower().endswith(IMG_EXTENSIONS))
    classes, transform = photos.subfolders(test), photos.test_transform(request.size)
    files = photos.images_below(test, classes)
    if len(loose) > len(files) or (loose and len(classes) < 2):
        left_out = f"{test} holds images, so those in its subfolders are left out: {len(files)}"
        classes = []
        split = FileSplit(PathList(test, loose), torch.full((len(loose),), -1), transform, request.size)
    else:
        left_out = f"{test} has a folder for each class, so the images beside them are left out: {len(loose)}"
        left_out += f", the first is {loose[0]}" if loose else ""
        split = photos.file_split(test, photos.class_folders(test), files, request.size)
    if loose and files:
        warnings.warn(left_out, stacklevel=2)
    none = FileSplit([], torch.zeros(0, dtype=torch.int64), transform, request.size)
    return photos.file_data(request, classes, none, split)


def load_tuning(request: DataRequest, folder: Path) -> ImageData:
    """As `load`; where there is no test folder, all images are trained on and also tested on."""
    if _test_folder(folder):
        return load(request, folder)
    data = load_evaluation(request, folder)
    assert isinstance(data.test, FileSplit)
    return replace(data, train=replace(data.test, transform=photos.train_transform(request.size)))


def has_training_images(folder: Path) -> bool:
    """Whether a folder has images to fine-tune on, besides those to evaluate on."""
    return (folder / "train").is_dir() or _test_folder(folder) is None


def _test_folder(folder: Path) -> Path | None:
    return next((folder / part for part in ("val", "test") if (folder / part).is_dir()), None)
