"""Image folders with a subfolder for each class."""

from pathlib import Path

from fpa.data.photos import (
    _two_folders,
)
from fpa.data.splits import ImageData
from fpa.errors import InputError


def _image_folder(
    name: str, folder: Path, evaluation_images: int | None, size: int, check: bool
) -> ImageData:
    test = next((folder / part for part in ("val", "test") if (folder / part).is_dir()), None)
    if test is None or not (folder / "train").is_dir():
        state = "does not hold both" if folder.is_dir() else "does not exist; it must hold"
        raise InputError(f"{folder} {state} train/ and val/ (or test/), each with a subfolder a class")
    return _two_folders(name, folder / "train", test, evaluation_images, size, check)
