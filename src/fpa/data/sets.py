"""Image data sets by name: their images, labels, classes, normalisation and evaluation subset.

Small sets (`shapes`, `digits`, `cifar10`) are held whole as bytes, to live on the device; large ones
(`food101`, `imagenet`, `folder:PATH`) are lists of files that DataLoader workers decode. What is wrong with
the files is said before training starts; an image that cannot be read later comes with the label
`UNREADABLE`, which `cross_entropy` ignores, so that it can be named and counted.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from fpa.data.cifar10 import _cifar10
from fpa.data.digits import _digits
from fpa.data.folder import _image_folder
from fpa.data.food101 import _food101
from fpa.data.imagenet import _imagenet
from fpa.data.photos import (
    _class_folders,
    _file_data,
    _file_split,
    _images_below,
    _subfolders,
    _test_transform,
    train_transform,
)
from fpa.data.shapes import _shapes
from fpa.data.splits import FileSplit, ImageData, PathList
from fpa.errors import InputError, unknown

DATA_SETS = ("shapes", "digits", "cifar10", "food101", "imagenet")


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


def tuning_data(name: str, root: Path | str = "data", *, size: int = 224) -> ImageData:
    """A data set by name to fine-tune on: as `load_data`, but a folder needs no images for a test.

    `folder:PATH` may hold `train/` alone, a subfolder a class, or only images, whose labels are then unknown
    (-1). All are trained on, and then also tested on: see `has_own_test`.
    """
    folder = Path(name.removeprefix("folder:")).expanduser()
    if not name.startswith("folder:") or _has_test_images(folder):
        return load_data(name, root, size=size)
    data = load_evaluation_data(name, root, size=size)
    assert isinstance(data.test, FileSplit)
    return replace(data, train=replace(data.test, transform=train_transform(size)))


def has_own_test(data: ImageData) -> bool:
    """Whether the test images are others than those trained on."""
    train, test = data.train, data.test
    return (
        not isinstance(train, FileSplit) or not isinstance(test, FileSplit) or train.paths is not test.paths
    )


def has_training_images(name: str) -> bool:
    """Whether a data set has images to fine-tune on, besides those to evaluate on."""
    folder = Path(name.removeprefix("folder:")).expanduser()
    return not name.startswith("folder:") or (folder / "train").is_dir() or not _has_test_images(folder)


def _has_test_images(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in ("val", "test"))
