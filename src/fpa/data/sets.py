"""Image data sets by name: their images, labels, classes, normalisation and evaluation subset.

Small sets (`shapes`, `digits`, `cifar10`, worlds) are held whole as bytes, to live on the device; large ones
(`food101`, `imagenet`, `folder:PATH`) are lists of files that DataLoader workers decode. What is wrong with
the files is said before training starts; an image that cannot be read later comes with the label
`UNREADABLE`, which `cross_entropy` ignores, so that it can be named and counted.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fpa.data import photos
from fpa.data.splits import USUAL_SIDE, ArraySplit, DataRequest, ImageData, array_data
from fpa.errors import InputError, first_line, unknown
from fpa.plugins import call_object
from fpa.values import checked

Load = Callable[[DataRequest], Any]
"""Loads a data set: an `ImageData`, or ((images, labels), (images, labels)) to train on and to test."""

_PUBLISHED = ("cifar10", "food101", "imagenet")
_FILES = ("shapes", "digits", *_PUBLISHED)
_WORLDS = {
    "cues": "fpa.worlds.cues:ADDITIVE",
    "cues-redundant": "fpa.worlds.cues:REDUNDANT",
    "cues-joint": "fpa.worlds.cues:JOINT",
    "cues-small": "fpa.worlds.cues:SMALL",
    "pets": "fpa.worlds.pets:load",
}
_SHIPPED = (*_FILES, *_WORLDS)

DATA_SETS: dict[str, Load] = {name: import_module(f"fpa.data.{name}").load for name in _FILES}
"""The data sets known by name, a module each; a name above, or `register`, adds one."""

# Worlds are made of data sets, so they are imported when they are asked for, like a user's own.
DATA_SETS |= {name: partial(call_object, spec, "data set") for name, spec in _WORLDS.items()}


def register(name: str, load: Load) -> None:
    """Make a data set known by name to `load_data`, recipes and commands.

    `load(request)` returns an `ImageData`, or two pairs ((images, labels), (images, labels)), to train on and
    to test: uint8 arrays or tensors [N, C, H, W] and whole numbers [N], which are then scaled to [-1, 1].
    `request` is a `DataRequest`: what was asked for, and where files are.

    >>> images, labels = torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2
    >>> register("blank", lambda request: ((images, labels), (images, labels)))
    >>> load_data("blank").classes
    ['0', '1']
    >>> del DATA_SETS["blank"]
    """
    if not name or ":" in name:
        raise InputError(f"the name of a data set must be one word without a colon, got {name!r}")
    if name in _SHIPPED:
        raise InputError(f"{name!r} is a data set of fpa: choose another name")
    DATA_SETS[name] = load


@checked
def load_data(
    name: str,
    root: Path | str = "data",
    *,
    evaluation_images: int | None = None,
    size: int = USUAL_SIDE,
    check: bool = True,
) -> ImageData:
    """A data set by name: `shapes`, `digits`, `cifar10`, `food101`, `imagenet`, `folder:PATH` or your own.

    `cues`, `cues-redundant`, `cues-joint`, `cues-small` and `pets` are worlds: see `fpa.worlds`.

    `root` is the folder where the files of `cifar10`, `food101`, `imagenet` and `pets` are. `size` is the
    side of the images of the sets that are files. The evaluation subset is the whole test split, for
    `food101` and `imagenet` 5,000 images of it; `evaluation_images` asks for another number. The choice is
    always the same. All files are looked at before anything else happens, unless `check` is False, as
    processes of one run may set it when another has already looked.

    Your own data set is `module:function`, a function in the current folder or the environment, or a name
    given to `register`, which says what the function takes and returns.

    >>> data = load_data("shapes")
    >>> data.classes[:3], data.input_shape, len(data.train), len(data.test), len(data.evaluation)
    (['disc', 'square', 'diamond'], (3, 32, 32), 4000, 1000, 1000)
    """
    return _load(DataRequest(name, Path(root), size, evaluation_images, check), photos.load_folder)


@checked
def load_evaluation_data(
    name: str, root: Path | str = "data", *, evaluation_images: int | None = None, size: int = USUAL_SIDE
) -> ImageData:
    """A data set for a model that is trained already: as `load_data`, but a folder needs no training images.

    `folder:PATH` may hold `val/` or `test/` (which is then taken), a subfolder for each class, or only
    images, whose labels are then unknown (-1). Nothing else of a folder is looked at; a few images beside
    folders of classes are left out, or the few in subfolders beside many images, with a warning.
    """
    return _load(DataRequest(name, Path(root), size, evaluation_images), photos.load_evaluation_folder)


@checked
def tuning_data(name: str, root: Path | str = "data", *, size: int = USUAL_SIDE) -> ImageData:
    """A data set by name to fine-tune on: as `load_data`, but a folder needs no images for a test.

    `folder:PATH` may hold `train/` alone, a subfolder for each class, or only images, whose labels are then
    unknown (-1). All are trained on, and then also tested on, see `has_own_test`. `train/` and `val/` may
    also hold only images.
    """
    return _load(DataRequest(name, Path(root), size), photos.load_tuning_folder)


def check_normalised(name: str) -> None:
    """Refuse the name of images that models take in many normalisations, where none was given.

    The sets that fpa makes, and a user's own, say theirs: whoever trains on them follows it. Photos and
    published files are normalised as the authors of each model liked.
    """
    if name not in (*_PUBLISHED, "pets") and photos.folder_path(name) is None:
        return
    example = "fpa.Normalisation((0.5,) * 3, (0.5,) * 3) for images in -1..1"
    raise InputError(
        f"neither the model nor {name} says how the model's images are normalised: pass "
        f"normalisation=fpa.Normalisation(mean, std), for pixels in 0..1 (for instance {example})"
    )


def has_own_test(data: ImageData) -> bool:
    """Whether the test images are others than those trained on."""
    # Two splits of the same files differ in how they cut and turn images, but share their list of paths.
    return getattr(data.train, "paths", data.train) is not getattr(data.test, "paths", data.test)


def has_training_images(name: str) -> bool:
    """Whether a data set has images to fine-tune on, besides those to evaluate on."""
    path = photos.folder_path(name)
    return path is None or (path / "train").is_dir() or photos.test_folder(path) is None


def is_plain_name(name: object) -> bool:
    """Whether a name, say one in a file, can be loaded without running a function of someone's own."""
    return isinstance(name, str) and (name in DATA_SETS or photos.folder_path(name) is not None)


def _load(request: DataRequest, from_folder: Callable[[DataRequest, Path], ImageData]) -> ImageData:
    name = request.name
    if name in DATA_SETS:
        return _as_data(DATA_SETS[name](request), request)
    if path := photos.folder_path(name):
        return from_folder(request, path)
    if os.path.isdir(os.path.expanduser(name)):
        raise InputError(f"unknown data set {name!r}: did you mean folder:{name}?")
    if ":" not in name:
        raise unknown("data set", name, [*DATA_SETS, "folder:PATH", "module:function"])
    return _as_data(call_object(name, "data set", request), request)


def _as_data(loaded: Any, request: DataRequest) -> ImageData:
    """What a function returned, as a data set with as many evaluation images as were asked for."""
    if not isinstance(loaded, ImageData):
        try:
            train, test = (_split(images, labels) for images, labels in loaded)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the data set {request.name} must be an fpa.data.ImageData or ((images, labels), (images, "
                f"labels)) with uint8 images [N, C, H, W] and labels [N]: {first_line(error)}"
            ) from error
        return array_data(request, train, test)
    if request.evaluation_images in (None, len(loaded.evaluation)):
        return loaded
    return replace(loaded, evaluation=request.subset(len(loaded.test)))


def _split(images: Any, labels: Any) -> ArraySplit:
    images = torch.as_tensor(images)
    labels = torch.as_tensor(labels).long()
    if images.dtype != torch.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
        raise ValueError(f"got images {images.dtype} {list(images.shape)} and labels {list(labels.shape)}")
    return ArraySplit(images, labels)
