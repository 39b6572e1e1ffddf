"""Photos of cats and dogs: Oxford-IIIT Pets, in its official layout or as one table beside a folder."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fpa.data.photos import file_bytes, file_split
from fpa.data.splits import FileSplit
from fpa.errors import InputError

SPECIES = ("cat", "dog")

_TABLE = "pets.csv"
_LISTS = "annotations"
_PARTS = ("trainval", "test")
_LAYOUTS = {
    "clean": (_TABLE,),
    "images": tuple(f"{_LISTS}/{part}.txt" for part in _PARTS),
}
"""By the folder of the photos: what says which they are."""


class PetPhotos(NamedTuple):
    """The photos, labelled by species, to train on and to test."""

    train: FileSplit
    test: FileSplit


def pet_photos(root: Path, size: int) -> PetPhotos:
    """The photos in `root`, or in `pets` or `oxford-iiit-pet` in it, their centres at `size` x `size`.

    Either `images/` with the official lists, `annotations/trainval.txt` and `annotations/test.txt` (name,
    breed, and 1 for cats, 2 for dogs), or `clean/` with a table `pets.csv` (name, species, split).
    """
    folder, photos = _located(root)
    listing = folder / (_TABLE if photos == "clean" else _LISTS)
    rows = list(_of_table(listing) if photos == "clean" else _of_lists(listing))

    def split(part: str) -> FileSplit:
        files = [(species, f"{name}.jpg") for name, species, where in rows if where == part]
        return file_split(folder / photos, list(SPECIES), files, size, listing)

    return PetPhotos(train=split(_PARTS[0]), test=split(_PARTS[1]))


def _located(root: Path) -> tuple[Path, str]:
    """The folder of the set, and that of the photos in it."""
    places = [root / "pets", root / "oxford-iiit-pet", root]
    for folder in places:
        for photos, lists in _LAYOUTS.items():
            if all((folder / part).exists() for part in (photos, *lists)):
                return folder, photos
    needed = " or ".join(", ".join((*lists, f"{photos}/")) for photos, lists in _LAYOUTS.items())
    raise InputError(f"pets was not found: none of {', '.join(map(str, places))} holds {needed}")


def _of_table(path: Path) -> Iterator[tuple[str, str, str]]:
    """(name, species, part) of every row."""
    wanted = f"name, species ({' or '.join(SPECIES)}) and split ({' or '.join(_PARTS)})"
    text = file_bytes(path).decode(errors="replace")
    for row in csv.DictReader(text.splitlines()):
        name = row.get("name")
        species = row.get("species")
        part = row.get("split")
        if not name or species not in SPECIES or part not in _PARTS:
            seen = {key: row.get(key) for key in ("name", "species", "split")}
            raise InputError(f"{path} must be a table with the columns {wanted}: a row has {seen}")
        yield name, species, part


def _of_lists(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The same, of the official lists."""
    numbers = {str(number): species for number, species in enumerate(SPECIES, start=1)}
    for part in _PARTS:
        path = folder / f"{part}.txt"
        for line in file_bytes(path).decode(errors="replace").splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):  # list.txt, of the same form, begins with comments
                continue
            if len(words) < 3 or words[2] not in numbers:
                wanted = "a name, a number and the species (1 for cats, 2 for dogs)"
                raise InputError(f"{path} must have {wanted} on every line, got {line.strip()[:60]!r}")
            yield words[0], numbers[words[2]], part
