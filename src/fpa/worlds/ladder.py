"""Maps made from the truth of an image and damaged step by step: which is the truer one is then known.

A *ladder* is one kind of damage, its *rungs* are sizes of it. Damage is done to the effects (noise, forgotten
cues, signs), which are then spread over their regions, or to the map itself (shift, blur, the truth of
another image). What is drawn for it depends on the seed and on the number of the scene alone, and is the same
on all rungs of a ladder: a rung differs from the next by its size only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.errors import InputError, at_least, one_of
from fpa.seeds import Stream, by_image, derive, uniform_by_index
from fpa.worlds.scenes import Scenes

LADDERS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "noise": (0.5, 1.0, 2.0, 4.0),
        "shift": (1 / 32, 1 / 16, 1 / 8, 1 / 4),
        "blur": (1 / 32, 1 / 16, 1 / 8, 1 / 4),
        "forgotten": (1.0, 2.0, 3.0),
        "sign_lost": (0.25, 0.5, 0.75, 1.0),
        "sign_flipped": (1.0, 2.0, 3.0),
        "another": (0.25, 0.5, 0.75, 1.0),
    }
)
"""Sizes of the rungs of each ladder, the truest first; 0 is no damage, on every ladder.

- `noise`: normal noise on every effect, in root mean squares of the effects of the image.
- `shift`: in a random direction, as a share of the side; what leaves the image returns at the other side.
- `blur`: width (standard deviation) of a Gaussian as a share of the side, around the image likewise.
- `forgotten`: so many cues, in a random order, have no effect; one at least keeps it.
- `sign_lost`: how much of e becomes |e|: at 1/2 negative effects are 0, at 1 all are positive.
- `sign_flipped`: of so many cues, the weakest first; the strongest keeps its sign.
- `another`: the share of the map of another image in a mixture, both scaled alike.
"""


class Rung(NamedTuple):
    """One size of a kind of damage."""

    ladder: str
    size: float

    @property
    def name(self) -> str:
        """As it is stored.

        >>> Rung("shift", 1 / 8).name
        'shift-0.125'
        """
        return f"{self.ladder}-{self.size:g}"

    @property
    def signed(self) -> bool:
        """Whether the map can have negative values, as those of signed estimators."""
        return self.ladder != "sign_lost" or self.size < 0.5


RUNGS = tuple(Rung(ladder, size) for ladder, sizes in LADDERS.items() for size in sizes)


@dataclass(frozen=True, eq=False)
class KnownTruth:
    """Scenes with the true effects of their cues and backgrounds, and how these spread inside of regions."""

    scenes: Scenes
    effects: Tensor
    """[N, cues + 1], the background's last: `true_effects(...).shapley` of one output."""
    weights: Tensor | None = None
    """[N, H, W], 0 or more: an effect is divided among the pixels of its region in proportion to them, say to
    |VG|; without them in equal shares. So it is in a region whose weights are all 0."""

    def __post_init__(self) -> None:
        count, cues = self.scenes.cues.shape
        if self.effects.shape != (count, cues + 1):
            shape = list(self.effects.shape)
            raise InputError(
                f"effects must be [{count}, {cues + 1}], one a cue and the background's, got {shape}"
            )
        self._refuse(~self.effects.isfinite(), "effects must be finite")
        if self.weights is None:
            return
        size = self.scenes.part_at.shape
        if self.weights.shape != size:
            raise InputError(f"weights must be {list(size)}, got {list(self.weights.shape)}")
        self._refuse(~(self.weights.isfinite() & (self.weights >= 0)), "weights must be finite, 0 or more")

    def _refuse(self, wrong: Tensor, words: str) -> None:
        rows = wrong.flatten(1).any(1)
        if rows.any():
            number = self.scenes.numbers[int(rows.nonzero()[0])]
            raise InputError(f"{words}; those of scene {number} are not")

    def spread(self, effects: Tensor) -> Tensor:
        """Maps float64 [N, H, W] whose sums over cues and the rest are these effects [N, cues + 1]."""
        masks = self.scenes.masks()
        # A cue that is not there has no pixels, and no effect either.
        regions = torch.cat([masks, ~masks.any(1, keepdim=True)], 1).double()
        share = regions / regions.sum((2, 3), keepdim=True).clamp(min=1)
        if self.weights is not None:
            weighted = regions * self.weights.double()[:, None]
            total = weighted.sum((2, 3), keepdim=True)
            share = torch.where(total > 0, weighted / total.masked_fill(total == 0, 1), share)
        return torch.einsum("nrhw,nr->nhw", share, effects.double())


def ladder_maps(rung: Rung, known: KnownTruth, *, another: KnownTruth | None = None, seed: int = 0) -> Tensor:
    """The truth of each scene as a map, damaged as the rung says: float64 [N, H, W].

    `another` is what is known of other images, one for each; only the ladder `another` needs it, and
    `other_numbers` draws which.

    >>> from fpa.worlds import Cues
    >>> known = KnownTruth(Cues().test_scenes([0]), torch.tensor([[1.0, 0, 0, 0, 0, 0, 0.5]]))
    >>> ladder_maps(Rung("sign_lost", 1.0), known).shape
    torch.Size([1, 32, 32])
    """
    check_rung(rung)
    key = derive(seed, Stream.LADDER, list(LADDERS).index(rung.ladder))
    if rung.ladder == "another":
        return _mixed(known, another, rung.size)
    if rung.ladder in _OF_EFFECTS:
        return known.spread(_OF_EFFECTS[rung.ladder](known, rung.size, key))
    maps = known.spread(known.effects)
    return _OF_MAPS[rung.ladder](maps, rung.size, uniform_by_index(key, known.scenes.numbers, 1)[:, 0])


def check_rung(rung: Rung) -> None:
    """Refuse an unknown ladder, and sizes that mean nothing on it.

    >>> check_rung(Rung("forgotten", 1.5))
    Traceback (most recent call last):
    fpa.errors.InputError: the size of a rung of forgotten must be a whole number of cues, got 1.5
    """
    one_of("ladder", rung.ladder, LADDERS)
    what = f"the size of a rung of {rung.ladder}"
    at_least(what, rung.size, 0, 1 if rung.ladder in _SHARES else _LARGEST)
    if rung.ladder in _COUNTS and rung.size != round(rung.size):
        raise InputError(f"{what} must be a whole number of cues, got {rung.size:g}")


def other_numbers(seed: int, numbers: Sequence[int], count: int) -> list[int]:
    """For each image the number of another one among the first `count`, drawn from the seed and its number.

    >>> other_numbers(0, [0, 1, 2], 3)
    [2, 2, 1]
    """
    at_least("count", count, 2)
    key = derive(seed, Stream.LADDER, len(LADDERS))
    steps = (uniform_by_index(key, numbers, 1)[:, 0].double() * (count - 1)).long() + 1
    return [(number + step) % count for number, step in zip(numbers, steps.tolist(), strict=True)]


def _noise(known: KnownTruth, size: float, key: int) -> Tensor:
    """On the players alone, so that cues that are not there stay without effect."""
    effects = known.effects.double()
    there = known.scenes.cues
    players = torch.cat([there, torch.ones_like(there[:, :1])], 1)
    # Drawn on the CPU: other devices draw other numbers from the same seed.
    drawn = by_image(effects.shape[1:], key, known.scenes.numbers, Stream.LADDER).to(effects)
    mean_square = effects.square().sum(1, keepdim=True) / players.sum(1, keepdim=True)
    return effects + size * mean_square.sqrt() * drawn * players


def _first_cues(keys: Tensor, there: Tensor, size: float) -> Tensor:
    """The `size` cues with the smallest keys, bool [N, cues]; one cue of a scene at least is none of them."""
    rank = keys.masked_fill(~there, torch.inf).argsort(dim=1).argsort(dim=1)
    most = (there.sum(1, keepdim=True) - 1).clamp(min=0)
    return there & (rank < most.clamp(max=round(size)))


def _with_factors(known: KnownTruth, factors: Tensor) -> Tensor:
    """The effects, those of cues times these factors [N, cues]."""
    effects = known.effects.double()
    return torch.cat([effects[:, :-1] * factors, effects[:, -1:]], 1)


def _forgotten(known: KnownTruth, size: float, key: int) -> Tensor:
    there = known.scenes.cues
    # The first so many of one random order: what a rung forgets, the next one forgets too.
    keys = uniform_by_index(key, known.scenes.numbers, there.shape[1]).to(there.device)
    return _with_factors(known, (~_first_cues(keys, there, size)).double())


def _sign_lost(known: KnownTruth, size: float, key: int) -> Tensor:
    effects = known.effects.double()
    return (1 - size) * effects + size * effects.abs()


def _sign_flipped(known: KnownTruth, size: float, key: int) -> Tensor:
    weak = _first_cues(known.effects[:, :-1].double().abs(), known.scenes.cues, size)
    return _with_factors(known, 1 - 2 * weak.double())


def _shifted(maps: Tensor, size: float, turn: Tensor) -> Tensor:
    height, width = maps.shape[1:]
    angle = 2 * math.pi * turn.double()[:, None]
    down = (size * height * angle.sin()).round().long().to(maps.device)
    across = (size * width * angle.cos()).round().long().to(maps.device)
    rows = (torch.arange(height, device=maps.device) - down) % height
    columns = (torch.arange(width, device=maps.device) - across) % width
    images = torch.arange(len(maps), device=maps.device)
    return maps[images[:, None, None], rows[:, :, None], columns[:, None, :]]


def _blurred(maps: Tensor, size: float, turn: Tensor) -> Tensor:
    height, width = maps.shape[1:]
    down = _gaussian(height, size * height).to(maps)
    across = _gaussian(width, size * width).to(maps)
    return down @ maps @ across


def _gaussian(length: int, width: float) -> Tensor:
    """How much of each pixel goes to each other, [length, length], around a ring: nothing gets lost."""
    if width == 0:
        return torch.eye(length, dtype=torch.float64)
    steps = torch.arange(length, dtype=torch.float64)
    apart = (steps[:, None] - steps).abs()
    weights = torch.exp(-torch.minimum(apart, length - apart).square() / (2 * width**2))
    return weights / weights.sum(1, keepdim=True)


def _mixed(known: KnownTruth, another: KnownTruth | None, size: float) -> Tensor:
    if another is None:
        raise InputError("the ladder another needs what is known of other images: another=KnownTruth(...)")
    own = known.scenes.numbers
    others = another.scenes.numbers
    if len(own) != len(others):
        raise InputError(
            f"the ladder another needs one other image for each, got {len(others)} for {len(own)}"
        )
    same = [number for number, other in zip(own, others, strict=True) if number == other]
    if same:
        raise InputError(f"the ladder another needs another image for each, but scene {same[0]} got itself")
    # Effects of the same length: else the image with the larger logits would win every mixture.
    lengths = known.effects.double().norm(dim=1)
    other_lengths = another.effects.double().norm(dim=1)
    scale = lengths / other_lengths.masked_fill(other_lengths == 0, 1)
    foreign = another.spread(another.effects * scale[:, None])
    return (1 - size) * known.spread(known.effects) + size * foreign


_OF_EFFECTS: dict[str, Callable[[KnownTruth, float, int], Tensor]] = {
    "noise": _noise,
    "forgotten": _forgotten,
    "sign_lost": _sign_lost,
    "sign_flipped": _sign_flipped,
}
_OF_MAPS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {"shift": _shifted, "blur": _blurred}
_SHARES = frozenset({"sign_lost", "another", "shift", "blur"})
"""Ladders whose sizes are shares, 1 at most."""
_COUNTS = frozenset({"forgotten", "sign_flipped"})
"""Ladders whose sizes are numbers of cues."""
_LARGEST = 1000
"""What others may have: of the truth, nothing is left long before."""
