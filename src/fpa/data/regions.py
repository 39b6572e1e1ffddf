"""Where the objects are in photos: boxes in a table, or a mask image for each photo."""

import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

from fpa.data.crops import side_before_crop
from fpa.data.splits import FileSplit
from fpa.errors import InputError

BOXES = "boxes.csv"
MASKS = "masks"
TRIMAPS = "trimap"
"""A table, and folders of images named as the photos are; they lie beside the photos or their classes."""

_SIDES = ("xmin", "ymin", "xmax", "ymax")


class Regions:
    """The pixels of the objects in photos, read when asked for: `regions[indices]`, bool [N, size, size]."""

    def __init__(self, split: FileSplit, region: Callable[[Path], Tensor | None]) -> None:
        self.split = split
        self._region = region

    def __getitem__(self, indices: Tensor) -> Tensor:
        """All False for a photo of which nothing is known."""
        none = torch.zeros(self.split.size, self.split.size, dtype=torch.bool)
        found = (self._region(self.split.paths[index]) for index in indices.tolist())
        return torch.stack([none, *(none if region is None else region for region in found)])[1:]


def regions_of(split: FileSplit, folder: Path) -> Regions | None:
    """What is known of the objects in the photos of a split that lie in `folder`; None: nothing."""
    for place in (folder, folder.parent):
        if (place / BOXES).is_file():
            boxes = _read_boxes(place / BOXES)
            if any(path.stem in boxes for path in split.paths):
                return Regions(split, partial(_boxed, boxes=boxes, size=split.size))
        for kind in (MASKS, TRIMAPS):
            files = {file.stem: file for file in (place / kind).glob("*.png")}
            if any(path.stem in files for path in split.paths):
                return Regions(split, partial(_masked, files=files, size=split.size))
    return None


def box_mask(boxes: Sequence[Sequence[float]], width: int, height: int, size: int) -> Tensor:
    """The pixels of a test image whose centre lies in a box, bool [size, size].

    `boxes` are xmin, ymin, xmax, ymax as shares of a photo of `width` x `height`, which is resized and
    cropped as test images are.

    >>> box_mask([(0.0, 0.0, 0.5, 1.0)], width=8, height=8, size=7).float().mean(0).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """
    short = side_before_crop(size)
    wide, high = (max(short, int(short * side / min(width, height))) for side in (width, height))
    left, top = (round((side - size) / 2) for side in (wide, high))
    x, y = ((torch.arange(size) + 0.5 + start) / side for start, side in ((left, wide), (top, high)))
    mask = torch.zeros(size, size, dtype=torch.bool)
    for xmin, ymin, xmax, ymax in boxes:
        mask |= ((y >= ymin) & (y < ymax))[:, None] & ((x >= xmin) & (x < xmax))
    return mask


def _read_boxes(path: Path) -> dict[str, list[tuple[str | None, list[float]]]]:
    """By the name of the photo: the class of every box, where the table has one, and its sides."""
    boxes = defaultdict[str, list[tuple[str | None, list[float]]]](list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                box = [float(row[side]) for side in _SIDES]
                boxes[Path(row["name"]).stem].append((row.get("wnid") or row.get("class"), box))
    except (OSError, KeyError, TypeError, ValueError) as error:
        columns = f"name, {', '.join(_SIDES)} (shares of width and height) and, if known, wnid or class"
        raise InputError(f"{path} must be a table with the columns {columns}: {error}") from error
    return boxes


def _boxed(path: Path, boxes: dict[str, list[tuple[str | None, list[float]]]], size: int) -> Tensor | None:
    """Boxes of the photo's own class; of all classes where the table or the folders have none."""
    known = boxes.get(path.stem, [])
    own = [box for name, box in known if name == path.parent.name] or [box for _, box in known]
    if not own:
        return None
    with Image.open(path) as photo:
        return box_mask(own, *photo.size, size=size)


def _masked(path: Path, files: dict[str, Path], size: int) -> Tensor | None:
    """What is not 0 in a mask; what is 1 in a trimap, which has 2 for the background and 3 between them."""
    if (file := files.get(path.stem)) is None:
        return None
    short = v2.Resize(side_before_crop(size), InterpolationMode.NEAREST)
    with Image.open(file) as image:
        values = v2.Compose([short, v2.CenterCrop(size), v2.PILToTensor()])(image.convert("L"))[0]
    return values == 1 if file.parent.name == TRIMAPS else values > 0  # type: ignore[no-any-return]
