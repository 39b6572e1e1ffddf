"""Food-101, in its official layout."""

from dataclasses import replace
from pathlib import Path

from fpa.data.photos import (
    _file_bytes,
    _file_data,
    _file_split,
    _locate,
    _test_transform,
    _warn_if_unofficial,
    _z_score,
    train_transform,
)
from fpa.data.splits import FileSplit, ImageData, Transform
from fpa.data.subset import _EVALUATION_IMAGES


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
