"""The world `cues`: small textured cues on natural-looking noise, whose setting decides the class.

Whether a cue is there, how strong it is, how large and where: all this is drawn independently. Every cue is
placed in every scene, and only then it is drawn which of them are there, so that a scene with a cue left out
looks like one that never had it: nothing gives away the empty place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fpa.data.splits import DataRequest
from fpa.errors import InputError, one_of
from fpa.seeds import derive
from fpa.worlds.backgrounds import draw_backgrounds
from fpa.worlds.drawing import between, keep_apart, uniform_by_name
from fpa.worlds.effects import REDRAWS
from fpa.worlds.scenes import Scenes
from fpa.worlds.world import World

Rule = Literal["additive", "redundant", "joint"]
RULES: tuple[Rule, ...] = get_args(Rule)

PARTS = 3
"""Of every cue: bands across it."""

_SCENE = 0
_BACKGROUNDS = 1
"""What random numbers are for; backgrounds drawn again have the numbers after it."""

_PRESENT = 0.5
_WHOLE = 0.7
"""How often a cue is there, and how often it then has all of its parts; else each is there half the time."""
_STRENGTH = (0.5, 1.0)
"""Opacity, and the weight of its evidence."""
_RADIUS = (0.075, 0.125)
"""As shares of the side."""
_PERIOD = 0.125
"""Of the textures, as a share of the side."""
_CANDIDATES = 64
"""Places that are tried for a cue, until it overlaps none of those before it."""
_NOISE = 0.25
"""Of the evidence: what keeps the label from following the cues in every scene."""

_ROOT_HALF = 0.5**0.5


class _Coordinates(NamedTuple):
    """Where pixels lie from the centres of cues, in pixels of an image of 32."""

    x: Tensor
    y: Tensor
    distance: Tensor

    @classmethod
    def around(cls, centre: Tensor, x: Tensor, y: Tensor) -> "_Coordinates":
        """Of pixels at these places, from centres [..., 2]."""
        across = x - centre[..., 0]
        down = y - centre[..., 1]
        return cls(across, down, (across * across + down * down).sqrt())

    def divided(self, length: float) -> "_Coordinates":
        """The same in this unit of length."""
        return _Coordinates(self.x / length, self.y / length, self.distance / length)


def _wave(phase: Tensor) -> Tensor:
    """A triangle wave in -1..1, cut at its peaks: no sine, which devices round differently."""
    return (8 * (phase - phase.floor() - 0.5).abs() - 2).clamp(-1, 1)


@dataclass(frozen=True)
class Kind:
    """What cues of a kind look like."""

    name: str
    outline: Callable[[_Coordinates], Tensor]
    """How far a pixel lies from the centre, as a radius of this shape."""
    texture: Callable[[_Coordinates, Tensor], Tensor]
    """(place in periods, phase) -> -1..1."""
    tint: tuple[float, float, float]
    """How red, green and blue follow the texture."""


def _disc(at: _Coordinates) -> Tensor:
    return at.distance


def _square(at: _Coordinates) -> Tensor:
    return torch.maximum(at.x.abs(), at.y.abs()) * 1.25


def _diamond(at: _Coordinates) -> Tensor:
    return (at.x.abs() + at.y.abs()) * 0.9


def _sloping(at: _Coordinates, phase: Tensor) -> Tensor:
    """Distance along one diagonal or, half the time, the other: mirrored scenes are scenes of this world."""
    return (at.x * (phase - 0.5).sign() + at.y) * _ROOT_HALF


KINDS = (
    Kind("rows", _disc, lambda at, phase: _wave(at.y + phase), (1.0, -0.4, -0.4)),
    Kind("columns", _disc, lambda at, phase: _wave(at.x + phase), (-0.4, 1.0, -0.4)),
    Kind("checks", _square, lambda at, phase: _wave(at.x + phase) * _wave(at.y + phase), (-0.4, -0.4, 1.0)),
    Kind("rings", _disc, lambda at, phase: _wave(at.distance + phase), (1.0, 1.0, 1.0)),
    Kind("plain", _diamond, lambda at, phase: (phase - 0.5).sign().expand_as(at.x), (1.0, 1.0, -0.6)),
    Kind("slopes", _square, lambda at, phase: _wave(_sloping(at, phase) + 2 * phase), (1.0, -0.6, 1.0)),
)
"""The kinds of cues; a scene has at most one of each."""


@dataclass(frozen=True)
class Cues(World):
    """Up to six cues on coloured noise; half as many classes.

    Cue c is about class c % classes. Its evidence s is its strength times the share of its parts that are
    there, 0 without it; with a and b the evidence of a class's first and second cue, the class has

    - `additive`: a - b, the first cue speaks for it, the second against it;
    - `redundant`: max(a, b), each is enough (OR);
    - `joint`: 2 min(a, b), both are needed (AND).

    The label is the class with the most evidence after noise. The same seed has the same pictures under all
    rules, with other labels.

    >>> world = Cues(size=32)
    >>> scenes = world.draw(0, [7])
    >>> scenes.render().shape, scenes.present.shape
    (torch.Size([1, 3, 32, 32]), torch.Size([1, 6, 3]))
    """

    rule: Rule = "additive"
    size: int = 32
    cues: int = 6
    seed: int = 0
    train_images: int = 6000
    test_images: int = 1000
    flip: bool = True
    redraws: int = REDRAWS
    judged_cues: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        # Letters, as a class is no thing but a setting of cues; an attribute of all worlds, no setting.
        object.__setattr__(self, "classes", ("A", "B", "C")[: self.cues // 2])
        one_of("rule", self.rule, RULES)
        if self.cues not in (4, 6):
            raise InputError(f"a scene must have places for 4 or 6 cues, got {self.cues}")
        if self.size < 16:
            raise InputError(f"cues need images of at least 16 px, got {self.size}")

    def asked(self, request: DataRequest) -> "Cues":
        """With images of the size that was asked for, unless that is the usual size of photos."""
        return self if request.size == DataRequest.size else replace(self, size=request.size)

    def draw(self, seed: int, numbers: Sequence[int], device: torch.device | str = "cpu") -> Scenes:
        """The scenes of these numbers; a scene depends on the seed and its number alone."""
        drawn = self._drawn(seed, numbers, device)
        paint, opacity, part_at = self._painted(drawn)
        present = self._present(drawn)
        return Scenes(
            numbers=list(numbers),
            labels=self._labels(drawn, present),
            present=present,
            paint=paint,
            opacity=opacity,
            part_at=part_at,
            # the last one is held, as a truth renders many settings on it
            background=lru_cache(maxsize=1)(partial(self._backgrounds, seed, list(numbers), device)),
        )

    def _backgrounds(self, seed: int, numbers: list[int], device: torch.device | str, redraw: int) -> Tensor:
        return draw_backgrounds(derive(seed, _BACKGROUNDS + redraw), numbers, self.size, device)

    def _drawn(self, seed: int, numbers: Sequence[int], device: torch.device | str) -> "_Drawn":
        cues = self.cues
        shapes = {
            "presence": (cues, 2 + PARTS),
            "strength": (cues,),
            "radius": (cues,),
            "candidates": (cues, _CANDIDATES, 2),
            "order": (cues,),
            "turn": (cues,),
            "phase": (cues,),
            "middle": (cues, 3),
            "contrast": (cues, 3),
            "noise": (cues // 2, 2),
        }
        fields: dict[str, Tensor] = uniform_by_name(derive(seed, _SCENE), numbers, shapes, device)
        return _Drawn(**fields)

    def _present(self, drawn: "_Drawn") -> Tensor:
        """The parts that are there, bool [N, cues, parts]."""
        there = drawn.presence[:, :, :1] < _PRESENT
        whole = drawn.presence[:, :, 1:2] < _WHOLE
        return there & (whole | (drawn.presence[:, :, 2:] < 0.5))

    def _labels(self, drawn: "_Drawn", present: Tensor) -> Tensor:
        """The classes by the rule, int64 [N]."""
        evidence = between(_STRENGTH, drawn.strength) * present.sum(2) / PARTS
        first, second = evidence.view(-1, 2, self.cues // 2).unbind(1)
        if self.rule == "additive":
            total = first - second
        elif self.rule == "redundant":
            total = torch.maximum(first, second)
        else:
            total = 2 * torch.minimum(first, second)
        return (total + _NOISE * (drawn.noise[:, :, 0] + drawn.noise[:, :, 1] - 1)).argmax(1)

    def _painted(self, drawn: "_Drawn") -> tuple[Tensor, Tensor, Tensor]:
        """Paint [N, 3, H, W], opacity [N, H, W], and whose pixel it is, int64 [N, H, W]."""
        places, radii = _placed(drawn)
        owner, inside = self._outlined(places, radii)
        paint = radii.new_zeros(len(radii), 3, self.size, self.size)
        part_at = torch.full_like(owner, -1)
        period = 32 * _PERIOD
        for cue, kind in enumerate(KINDS[: self.cues]):
            # Textures are made for the pixels of the cue alone, which are few.
            scene, row, column = (owner == cue).nonzero().unbind(1)
            at = _Coordinates.around(places[scene, cue], self._pixels(column), self._pixels(row))
            texture = kind.texture(at.divided(period), drawn.phase[scene, cue])
            middle = 0.3 + 0.4 * drawn.middle[scene, cue]
            contrast = 0.25 + 0.25 * drawn.contrast[scene, cue]
            tint = contrast.new_tensor(kind.tint)
            paint[scene, :, row, column] = (middle + contrast * (tint * texture[:, None])).clamp(0, 1)
            band = _band(at, radii[scene, cue], drawn.turn[scene, cue])
            part_at[scene, row, column] = PARTS * cue + band
        strength = between(_STRENGTH, drawn.strength)
        of_owner = strength.gather(1, owner.flatten(1).clamp(min=0)).view_as(inside)
        return paint, inside * of_owner, part_at

    def _outlined(self, places: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        """Whose pixel it is, int64 [N, H, W] with -1 for no cue's, and how much of it lies inside, 0..1."""
        unit = self.size / 32
        pixels = self._pixels(torch.arange(self.size, device=radii.device))
        most = radii.new_zeros(len(radii), self.size, self.size)
        owner = torch.full(most.shape, -1, device=radii.device)
        for cue, kind in enumerate(KINDS[: self.cues]):
            at = _Coordinates.around(places[:, cue, None, None], pixels, pixels[:, None])
            # Edges are one pixel wide, whatever the size of the image.
            inside = ((radii[:, cue, None, None] - kind.outline(at)) * unit + 0.5).clamp(0, 1)
            own = inside > most  # all that lies inside, nearly always: cues seldom overlap
            owner = torch.where(own, cue, owner)
            most = torch.where(own, inside, most)
        return owner, most

    def _pixels(self, number: Tensor) -> Tensor:
        """Where rows or columns of these numbers lie, in pixels of an image of 32."""
        return (number + 0.5) / (self.size / 32)


class _Drawn(NamedTuple):
    """Uniform numbers in 0..1, [N, cues, ...]: all that is random about scenes but their backgrounds."""

    presence: Tensor
    strength: Tensor
    radius: Tensor
    candidates: Tensor
    order: Tensor
    turn: Tensor
    phase: Tensor
    middle: Tensor
    contrast: Tensor
    noise: Tensor


def _placed(drawn: _Drawn) -> tuple[Tensor, Tensor]:
    """Centres [N, cues, 2] and radii [N, cues] in pixels of an image of 32, so that cues do not overlap."""
    radii = 32 * between(_RADIUS, drawn.radius)
    margin = 32 * _RADIUS[1] + 0.5  # the largest for all: where a cue lies says nothing about its size
    side = 32 - 2 * margin

    def room(cue: int, other: int, gaps: Tensor) -> Tensor:
        apart = radii[:, cue] + radii[:, other] + 1
        squared = gaps[..., 0] * gaps[..., 0] + gaps[..., 1] * gaps[..., 1]
        return squared - (apart * apart)[:, None]

    centres = keep_apart(margin + side * drawn.candidates, side, room)
    # Which cue takes which place is drawn as well: the last ones may not have found room.
    order = drawn.order.argsort(dim=1, stable=True)
    return centres.gather(1, order[:, :, None].expand(-1, -1, 2)), radii.gather(1, order)


def _band(at: _Coordinates, radius: Tensor, turn: Tensor) -> Tensor:
    """The part of a cue that each pixel belongs to: bands across it, in any direction."""
    tangent = 2 * turn - 1  # of half the angle: sine and cosine are ratios of its powers
    norm = 1 + tangent * tangent
    across = ((2 - norm) * at.y - 2 * tangent * at.x) / norm
    return ((across / radius + 1) * (PARTS / 2)).floor().long().clamp(0, PARTS - 1)


ADDITIVE = Cues("additive")
REDUNDANT = Cues("redundant")
JOINT = Cues("joint")
SMALL = Cues("additive", redraws=4, judged_cues=(3, 4))
"""What data sets by name are made by; the truth of the last one is cheap enough for a study of minutes."""
