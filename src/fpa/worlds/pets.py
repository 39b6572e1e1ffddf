"""The world `pets`: photos of cats and dogs with cards pasted on them; animal and cards decide the class.

The photo is the background of its scene: where a card is left out, the photo itself shows. Another photo of
the set takes its place where the background is drawn again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from fpa.data.normalisation import IMAGENET
from fpa.data.pets import SPECIES, pet_photos
from fpa.data.photos import check_files
from fpa.data.splits import USUAL_SIDE, DataRequest, FileSplit, ImageData
from fpa.errors import InputError, at_least
from fpa.seeds import derive, uniform_by_index
from fpa.worlds.cards import MOST, Cards, draw_cards
from fpa.worlds.scenes import Scenes
from fpa.worlds.world import TEST, TRAIN, World, check_world

SMALLEST = 48
"""Pixels a side: on smaller photos the bands of a card would be a pixel wide."""

"""How the photos are normalised: as networks with weights of ImageNet take them."""

_CARDS = 0
_BACKGROUNDS = 1
"""What random numbers are for; backgrounds drawn again have the numbers after it."""


class Pets(World):
    """Photos of cats and dogs, with up to four cards on each.

    The files are those of Oxford-IIIT Pets below `root`: see `fpa.data.pets`. An animal counts 1 for its
    species; a card counts 1.5, 1 or 0.5 for cat or for dog, or nothing, by its kind, times the share of its
    parts that are there. The label is the species for which more speaks, after some noise. Scene n is photo
    n, with cards that depend on the seed and on n alone.
    """

    classes = SPECIES

    def __init__(
        self, root: Path | str = "data", size: int = USUAL_SIDE, *, cards: int = 4, seed: int = 0
    ) -> None:
        if size < SMALLEST:
            raise InputError(
                f"pets needs photos of at least {SMALLEST} px, for the cards on them; got {size}"
            )
        at_least("the number of cards on a photo", cards, 1, MOST)
        self.root = Path(root)
        self.size = size
        self.cards = cards
        self.seed = seed
        self.photos = pet_photos(self.root, size)
        _check_species("training", self.photos.train)
        _check_species("test", self.photos.test)
        self.train_images = len(self.photos.train)
        self.test_images = len(self.photos.test)

    def asked(self, request: DataRequest) -> "Pets":
        """With photos of the size that was asked for, unless that is the usual one."""
        if request.size in (USUAL_SIDE, self.size):
            return self
        return Pets(self.root, request.size, cards=self.cards, seed=self.seed)

    def draw(self, seed: int, numbers: Sequence[int], device: torch.device | str = "cpu") -> Scenes:
        """The test photos of these numbers, with the cards that they have by this seed."""
        return self._scenes(self.photos.test, seed, numbers, device)

    def train_scenes(self, numbers: Sequence[int], device: torch.device | str = "cpu") -> Scenes:
        """The scenes of training images."""
        return self._scenes(self.photos.train, derive(self.seed, TRAIN), numbers, device)

    def __call__(self, request: DataRequest) -> ImageData:
        """The data set: the photos stay files, and are read and pasted on when they are asked for."""
        world = self.asked(request)
        train, test = world.photos
        for split in world.photos if request.check else ():
            check_files(split.paths)
        check_world(world)
        return ImageData(
            request.name,
            list(SPECIES),
            IMAGENET,
            (3, world.size, world.size),
            train=world._pasted(train, derive(world.seed, TRAIN), world.train_scenes, mirrored=True),
            test=world._pasted(test, derive(world.seed, TEST), world.test_scenes),
            evaluation=request.subset(len(test)),
            world=world,
        )

    def _pasted(
        self,
        photos: FileSplit,
        seed: int,
        scenes: Callable[[Sequence[int]], Scenes],
        *,
        mirrored: bool = False,
    ) -> "Pasted":
        cards = self._cards(seed, range(len(photos)), "cpu")
        return Pasted(
            photos.paths,
            _labels(photos.labels, cards),
            photos.transform,
            photos.size,
            scenes=scenes,
            numbers=torch.arange(len(photos)),
            mirrored=mirrored,
        )

    def _cards(self, seed: int, numbers: Sequence[int], device: torch.device | str) -> Cards:
        return draw_cards(derive(seed, _CARDS), numbers, self.cards, device)

    def _scenes(
        self, photos: FileSplit, seed: int, numbers: Sequence[int], device: torch.device | str
    ) -> Scenes:
        cards = self._cards(seed, numbers, device)
        paint, opacity, part_at = cards.painted(self.size)
        species = photos.labels[list(numbers)].to(device)
        return Scenes(
            numbers=list(numbers),
            labels=_labels(species, cards),
            present=cards.present,
            paint=paint,
            opacity=opacity,
            part_at=part_at,
            # the last one is held, as a truth renders many settings on it
            background=lru_cache(maxsize=1)(partial(_backgrounds, photos, seed, list(numbers), device)),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Pasted(FileSplit):
    """Photos with their cards on them, made when they are asked for."""

    scenes: Callable[[Sequence[int]], Scenes]
    """(numbers) -> the scenes of these photos."""
    numbers: Tensor
    """int64 [N]: which photos these are."""
    mirrored: bool = False
    """Whether every other one is mirrored, in every epoch others."""

    def load(self, index: int, seed: int | None = None, epoch: int = 0) -> Tensor:
        """Photo `index`, uint8 [3, size, size]; seed and epoch decide whether it is mirrored."""
        image = self.scenes([int(self.numbers[index])]).render()[0]
        turned = self.mirrored and seed is not None and bool(_coin(derive(seed, epoch), index))
        return image.flip(2) if turned else image

    def chosen(self, places: Tensor) -> "Pasted":
        """Only those at these places [M]; they keep their cards."""
        fewer = super().chosen(places)
        assert isinstance(fewer, Pasted)
        return replace(fewer, numbers=self.numbers[places])


def _coin(seed: int, index: int) -> Tensor:
    return uniform_by_index(seed, [index], 1)[0, 0] < 0.5


def _check_species(part: str, photos: FileSplit) -> None:
    """Refuse too few photos: where the background is drawn again, there must be another one."""
    for species, count in zip(SPECIES, photos.labels.bincount(minlength=len(SPECIES)).tolist(), strict=True):
        if count < 2:
            found = f"found {count} of {species}s"
            raise InputError(f"pets needs at least two {part} photos of cats and of dogs, {found}")


def _labels(species: Tensor, cards: Cards) -> Tensor:
    """The classes [N] of photos of these species: what animal and cards speak for."""
    animal = 2 * species - 1
    return (animal + cards.evidence() > 0).long()


def _backgrounds(
    photos: FileSplit, seed: int, numbers: list[int], device: torch.device | str, redraw: int
) -> Tensor:
    """The photos of these numbers, [N, 3, size, size] in 0..1; with a redraw n > 0, others in their place.

    Cats and dogs take turns from one redraw to the next, so that they are equally many: what is absent then
    speaks for neither.
    """
    chosen = numbers if redraw == 0 else _others(photos, seed, numbers, redraw)
    images = torch.stack([photos.load(number) for number in chosen])
    return images.to(device) / 255


def _others(photos: FileSplit, seed: int, numbers: list[int], redraw: int) -> list[int]:
    """For each photo another one, of the species whose turn it is."""
    eligible = (photos.labels == redraw % len(SPECIES)).nonzero()[:, 0]
    uniform = uniform_by_index(derive(seed, _BACKGROUNDS + redraw), numbers, 1)[:, 0]
    places = (uniform * len(eligible)).long()
    # Where the photo itself was drawn, the next one is taken.
    same = eligible[places] == torch.tensor(numbers)
    return eligible[(places + same.long()) % len(eligible)].tolist()


def load(request: DataRequest) -> ImageData:
    """The data set `pets`."""
    return Pets(request.root, request.size)(request)
