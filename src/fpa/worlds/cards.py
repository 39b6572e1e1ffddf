"""Cards: small square signs of several kinds, each of three bands, to be pasted on a photo.

What a card looks like is computed with sums, products, quotients and roundings alone, which IEEE 754 rounds
the same everywhere: no device changes a card.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.worlds.drawing import between, keep_apart, uniform_by_name

PARTS = 3
"""Of every card: bands across it."""

MOST = 6
"""Cards that have room on a photo, whatever their sizes."""

_BARE = 0.15
"""How often a photo has no card at all."""
_PRESENT = 0.7
_WHOLE = 0.75
"""How often a card is there otherwise, and how often it then has all its parts; else each half the time."""
_HALF = (0.061, 0.1)
"""Half the side of a card, as a share of the photo's side: 1.5 to 4 % of the area."""
_TURN = 0.13
"""The tangent of half the largest angle by which cards are turned: 15 degrees."""
_REACH = 1.23
"""How far a turned card reaches across and down, in halves of its side, at most."""
_EDGE = 0.0105
"""Half a pixel of a photo of 48 px, which the soft edge of a card takes outside of it."""
_CANDIDATES = 64
"""Places that are tried for a card, until it overlaps none of those before it."""
_NOISE = 0.5
"""Of the evidence: what keeps the label from following animal and cards in every photo."""

_ROOT_HALF = 0.5**0.5

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """What cards of a kind look like and say."""

    evidence: float
    """For a dog; negative: for a cat. An animal has 1."""
    paper: Colour
    ink: Colour
    glyph: Callable[[Tensor, Tensor], Tensor]
    """How far inside of the glyph a pixel lies; the card reaches from -1 to 1. Mirrored it is the same."""


def _disc(x: Tensor, y: Tensor) -> Tensor:
    return 0.55 - (x * x + y * y).sqrt()


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return 0.14 - ((x * x + y * y).sqrt() - 0.48).abs()


def _square(x: Tensor, y: Tensor) -> Tensor:
    return 0.14 - (torch.maximum(x.abs(), y.abs()) - 0.45).abs()


def _diamond(x: Tensor, y: Tensor) -> Tensor:
    return (0.65 - x.abs() - y.abs()) * _ROOT_HALF


def _cross(x: Tensor, y: Tensor) -> Tensor:
    arms = 0.17 - torch.minimum(x.abs(), y.abs())
    return torch.minimum(arms, 0.65 - torch.maximum(x.abs(), y.abs()))


def _saltire(x: Tensor, y: Tensor) -> Tensor:
    return _cross((x + y) * _ROOT_HALF, (x - y) * _ROOT_HALF)


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(0.5 - y, (y + 0.6) * 0.45 - 0.9 * x.abs())


def _rows(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_stripes(y), 0.7 - x.abs())


def _columns(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_stripes(x), 0.7 - y.abs())


def _stripes(place: Tensor) -> Tensor:
    """Three of them."""
    return 0.13 - torch.minimum(place.abs(), (place.abs() - 0.5).abs())


KINDS = (
    Kind(-1.5, (0.95, 0.86, 0.25), (0.15, 0.15, 0.55), _disc),
    Kind(-1.0, (0.85, 0.93, 0.97), (0.10, 0.45, 0.25), _triangle),
    Kind(-0.5, (0.93, 0.55, 0.72), (0.35, 0.05, 0.25), _columns),
    Kind(1.5, (0.20, 0.55, 0.85), (0.97, 0.97, 0.90), _cross),
    Kind(1.0, (0.95, 0.62, 0.25), (0.30, 0.15, 0.05), _square),
    Kind(0.5, (0.60, 0.85, 0.45), (0.10, 0.15, 0.35), _rows),
    Kind(0.0, (0.96, 0.95, 0.90), (0.75, 0.15, 0.15), _ring),
    Kind(0.0, (0.45, 0.35, 0.65), (0.95, 0.85, 0.55), _diamond),
    Kind(0.0, (0.55, 0.55, 0.55), (0.10, 0.10, 0.10), _saltire),
)
"""Three for cats, three for dogs, three that say nothing. A card is of each kind equally often."""


class _Pixels(NamedTuple):
    """Where pixels lie on a card, in halves of its side from its centre."""

    x: Tensor
    y: Tensor
    inside: Tensor
    """How far from its edge; negative outside."""

    @classmethod
    def at(cls, x: Tensor, y: Tensor) -> "_Pixels":
        """Of pixels at these places; the corners of a card are cut off a little."""
        corner = (1.85 - x.abs() - y.abs()) * _ROOT_HALF
        return cls(x, y, torch.minimum(1 - torch.maximum(x.abs(), y.abs()), corner))

    def chosen(self, places: tuple[Tensor, ...]) -> "_Pixels":
        """Only some of them."""
        return _Pixels(self.x[places], self.y[places], self.inside[places])


class Cards(NamedTuple):
    """The cards of N photos; all are placed, whether they are there or not."""

    kind: Tensor
    """int64 [N, cards]: numbers in `KINDS`."""
    present: Tensor
    """bool [N, cards, parts]."""
    centre: Tensor
    """[N, cards, 2]: x and y, as shares of the side."""
    half: Tensor
    """[N, cards]: half the side."""
    turn: Tensor
    """[N, cards]: the tangent of half the angle."""
    light: Tensor
    """[N, cards]: how bright it is."""
    noise: Tensor
    """[N]: what is added to the evidence."""

    def evidence(self) -> Tensor:
        """What the cards that are there say for a dog, with the noise of the label, [N]."""
        of_kind = self.light.new_tensor([kind.evidence for kind in KINDS])[self.kind]
        return (of_kind * self.present.sum(2) / PARTS).sum(1) + self.noise

    def painted(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Paint [N, 3, size, size], opacity [N, size, size], whose pixel it is, int64 [N, size, size]."""
        count, cards = self.kind.shape
        paint = self.light.new_zeros(count, 3, size, size)
        opacity = self.light.new_zeros(count, size, size)
        part_at = torch.full(opacity.shape, -1, device=opacity.device)
        pixels = (torch.arange(size, device=opacity.device) + 0.5) / size
        for card in range(cards):
            on_card = self._on_card(card, pixels)
            # Edges are one pixel wide, whatever the size of the photo.
            covered = (on_card.inside * (self.half[:, card] * size)[:, None, None] + 0.5).clamp(0, 1)
            scene, row, column = (covered > opacity).nonzero().unbind(1)
            at = (scene, row, column)
            own = on_card.chosen(at)
            paint[scene, :, row, column] = self._colours(card, scene, own, size)
            part_at[at] = PARTS * card + ((own.y + 1) * (PARTS / 2)).floor().long().clamp(0, PARTS - 1)
            opacity[at] = covered[at]
        return paint, opacity, part_at

    def _on_card(self, card: int, pixels: Tensor) -> _Pixels:
        """Where all pixels of the photos lie on this card, [N, size, size]."""
        across = (pixels - self.centre[:, card, :1])[:, None, :]
        down = (pixels - self.centre[:, card, 1:])[:, :, None]
        tangent = self.turn[:, card, None, None]
        # Sine and cosine are ratios of powers of the tangent of half the angle.
        norm = (1 + tangent * tangent) * self.half[:, card, None, None]
        cosine = (1 - tangent * tangent) / norm
        sine = 2 * tangent / norm
        return _Pixels.at(cosine * across + sine * down, cosine * down - sine * across)

    def _colours(self, card: int, scene: Tensor, own: _Pixels, size: int) -> Tensor:
        """The colours [M, 3] of this card's pixels in scenes [M]."""
        x, y, inside = own
        kind = self.kind[scene, card]
        glyph = x.new_zeros(len(x))
        for number, each in enumerate(KINDS):
            glyph = torch.where(kind == number, each.glyph(x, y), glyph)
        border = 0.1 - (inside - 0.14).abs()
        drawn = (torch.maximum(glyph, border) * (self.half[scene, card] * size) + 0.5).clamp(0, 1)
        paper = x.new_tensor([each.paper for each in KINDS])[kind]
        ink = x.new_tensor([each.ink for each in KINDS])[kind]
        grain = _wave(2.5 * x) * _wave(2.5 * y)
        # Lit from above, and a little rough.
        shade = self.light[scene, card] - 0.06 * y + 0.05 * grain
        return ((paper + (ink - paper) * drawn[:, None]) * shade[:, None]).clamp(0, 1)


def _wave(phase: Tensor) -> Tensor:
    """A triangle wave in -1..1."""
    return 4 * (phase - phase.floor() - 0.5).abs() - 1


def draw_cards(seed: int, numbers: Sequence[int], count: int, device: torch.device | str = "cpu") -> Cards:
    """So many cards for each photo; they depend on the seed and the number of the photo alone.

    >>> cards = draw_cards(0, [5, 3], 4)
    >>> cards.present.shape, cards.centre[1].equal(draw_cards(0, [3], 4).centre[0])
    (torch.Size([2, 4, 3]), True)
    """
    drawn = uniform_by_name(
        seed,
        numbers,
        {
            "bare": (1, 1),
            "presence": (count, 2 + PARTS),
            "kind": (count,),
            "half": (count,),
            "candidates": (count, _CANDIDATES, 2),
            "turn": (count,),
            "light": (count,),
            "noise": (2,),
        },
        device,
    )
    presence = drawn["presence"]
    there = (drawn["bare"] >= _BARE) & (presence[:, :, :1] < _PRESENT)
    whole = presence[:, :, 1:2] < _WHOLE
    half = between(_HALF, drawn["half"])
    return Cards(
        kind=(drawn["kind"] * len(KINDS)).floor().long(),
        present=there & (whole | (presence[:, :, 2:] < 0.5)),
        centre=_centres(drawn["candidates"], half),
        half=half,
        turn=between((-_TURN, _TURN), drawn["turn"]),
        light=between((0.8, 1.0), drawn["light"]),
        noise=_NOISE * (drawn["noise"][:, 0] + drawn["noise"][:, 1] - 1),
    )


def _centres(candidates: Tensor, half: Tensor) -> Tensor:
    """Places [N, cards, 2] at which cards do not overlap; all places are equally likely."""
    reach = _REACH * half + _EDGE
    margin = _REACH * _HALF[1] + _EDGE  # the largest for all: where a card lies says nothing about its size
    side = 1 - 2 * margin

    def room(card: int, other: int, gaps: Tensor) -> Tensor:
        return gaps.amax(2) - (reach[:, card] + reach[:, other])[:, None]

    return keep_apart(margin + side * candidates, side, room)
