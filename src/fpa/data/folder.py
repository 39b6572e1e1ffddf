"""Folders of images, with a subfolder for each class or without: `folder:PATH`."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from fpa.data import photos
from fpa.data.request import DataRequest
from fpa.data.splits import FileSplit, ImageData, PathList
from fpa.errors import InputError

PREFIX = "folder:"


def folder_path(name: str) -> Path | None:
    """The folder that `folder:PATH` names; None for any other name."""
    return Path(name.removeprefix(PREFIX)).expanduser() if name.startswith(PREFIX) else None


def load(request: DataRequest) -> ImageData:
    """`train/` and `val/` (or `test/`), each with a subfolder for each class."""
    folder = _asked(request)
    test = _test_folder(folder)
    if test is None or not (folder / "train").is_dir():
        state = "does not hold both" if folder.is_dir() else "does not exist; it must hold"
        raise InputError(f"{folder} {state} train/ and val/ (or test/), each with a subfolder for each class")
    return photos.two_folders(request, folder / "train", test)


def load_evaluation(request: DataRequest) -> ImageData:
    """`val/`, `test/`, `train/` or the folder itself, with a subfolder for each class or only images."""
    folder = _asked(request)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    test = _test_folder(folder) or (folder / "train" if (folder / "train").is_dir() else folder)
    loose = sorted(file.name for file in test.iterdir() if file.name.lower().endswith(IMG_EXTENSIONS))
    classes, transform = photos.subfolders(test), photos.test_transform(request.size)
    files = [(label, file) for label in classes for file in photos.images_below(test, label)]
    if len(loose) > len(files) or (loose and len(classes) < 2):
        if files:
            warnings.warn(
                f"{test} holds images, so those in its subfolders are left out: {len(files)}", stacklevel=2
            )
        classes = []
        split = FileSplit(PathList(test, loose), torch.full((len(loose),), -1), transform, request.size)
    else:
        if loose:
            warnings.warn(
                f"{test} has a folder for each class, so the images beside them are left out: {len(loose)}, "
                f"the first is {loose[0]}",
                stacklevel=2,
            )
        split = photos.file_split(test, photos.class_folders(test), files, size=request.size, train=False)
    none = FileSplit([], torch.zeros(0, dtype=torch.int64), transform, request.size)
    return photos.file_data(request, classes, none, split)


def load_tuning(request: DataRequest) -> ImageData:
    """As `load`; where there is no test folder, all images are trained on and also tested on."""
    if _test_folder(_asked(request)):
        return load(request)
    data = load_evaluation(request)
    assert isinstance(data.test, FileSplit)
    return replace(data, train=replace(data.test, transform=photos.train_transform(request.size)))


def has_training_images(folder: Path) -> bool:
    """Whether a folder has images to fine-tune on, besides those to evaluate on."""
    return (folder / "train").is_dir() or _test_folder(folder) is None


def _asked(request: DataRequest) -> Path:
    folder = folder_path(request.name)
    assert folder is not None
    return folder


def _test_folder(folder: Path) -> Path | None:
    return next((folder / part for part in ("val", "test") if (folder / part).is_dir()), None)
