"""Protocols: what is removed together, and what removing it means.

By name: FEATURES or FEATURES+MASKING, as in "pixels", "1/8" and "segments:50+blur".
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import Tensor

from fpa.errors import InputError
from fpa.masking import Channels, Masking, get_masking
from fpa.models.tokens import TokenGrid
from fpa.notes import Kind, Note, Plain, Severity
from fpa.perturbation.dropping import misfit
from fpa.perturbation.features import (
    check_segmentation,
    features_of,
    patch_side,
    segment_count,
    segments_can_be_found,
    side_divisor,
)
from fpa.values import check_type

USUAL = ("pixels", "1/8", "1/4", "segments:50", "1/8+blur")
"""What the word `usual` stands for: from single pixels to a sixteenth of the image, with one other masking.

Sizes are shares of the side, so that the list means the same for every size of images."""

USUAL_WORD = "usual"

FEWEST_FEATURES = 10
"""An image of fewer has none to remove at 10 %."""


@dataclass(frozen=True)
class Protocol:
    """How maps are put to the test: what is removed together, and what removing it means.

    >>> from fpa.masking import Blur
    >>> Protocol("1/8", Blur(sigma=4.0))
    Protocol(features='1/8', masking=Blur(sigma=4.0))
    """

    features: str | int
    """See `checked_features`."""
    masking: Masking


@dataclass(frozen=True)
class ChosenProtocols:
    """The protocols that were asked for, and those of the usual ones that cannot be had."""

    protocols: dict[str, Protocol]
    """By name."""
    optional: frozenset[str] = frozenset()
    """Those that nobody named: they are left out where the images do not allow them."""
    left_out: tuple[Note, ...] = ()


def checked_features(features: str | int) -> str | int:
    """Features as plans have them: "pixels", "1/8", so many pixels a side, or "segments:100".

    >>> checked_features("4"), checked_features("segments"), checked_features("1/08")
    (4, 'segments:100', '1/8')
    """
    if isinstance(features, str) and features.isdecimal() and len(features) < 9:
        return int(features)
    if divisor := side_divisor(features):
        return f"1/{divisor}"
    segments = segment_count(features)
    return f"segments:{segments}" if segments else features


def get_protocols(
    protocols: str | Iterable[Any] | Mapping[str, Any],
    masking: Masking,
    mean: Channels | None = None,
    std: Channels | None = None,
) -> dict[str, Protocol]:
    """Protocols by name, or a mapping of names to them; features without a masking have this one.

    `mean` and `std` are those of the images' normalisation, which the masking `black` needs.

    >>> from fpa.masking import Constant
    >>> get_protocols(["1/8+mean"], Constant())["1/8+mean"]
    Protocol(features='1/8', masking=Mean())
    """
    return choose_protocols(protocols, masking, mean=mean, std=std).protocols


def choose_protocols(
    protocols: str | Iterable[Any] | Mapping[str, Any],
    masking: Masking,
    *,
    there: Collection[Protocol] = (),
    mean: Channels | None = None,
    std: Channels | None = None,
) -> ChosenProtocols:
    """As `get_protocols`, where `usual` stands for a list, and those that are `there` are not run again.

    Protocols that were named and cannot be had are refused, usual ones are left out.

    >>> from fpa.masking import Constant
    >>> pixels = Protocol("pixels", Constant())
    >>> list(choose_protocols("1/16,usual", Constant(), there=[pixels]).protocols)
    ['1/16', '1/8', '1/4', 'segments:50', '1/8+blur']
    """
    check_type("protocols", protocols, str | Iterable[Any])
    if isinstance(protocols, Mapping):
        by_name = {str(name): _protocol(each, masking, mean, std) for name, each in protocols.items()}
        _check_different(by_name)
        _check_segments(by_name)
        return ChosenProtocols(by_name)
    listed = list(protocols)
    if isinstance(protocols, str):
        listed = [each.strip() for each in protocols.split(",")]
    named: dict[str, Protocol] = {}
    for each in listed:
        if not isinstance(each, str | int):
            raise InputError(f"a protocol in a list must be a name as in 1/8 or 1/8+blur, got {each!r}")
        if list(map(str, listed)).count(str(each)) > 1:
            raise InputError(f"the protocol {each} is there twice")
        if each != USUAL_WORD:
            named[str(each)] = _protocol(each, masking, mean, std)
    _check_different(named)
    named = {name: each for name, each in named.items() if each not in there}
    _check_segments(named)
    chosen = ChosenProtocols(named)
    return _with_usual(chosen, masking, there, mean, std) if USUAL_WORD in listed else chosen


def _with_usual(
    chosen: ChosenProtocols,
    masking: Masking,
    there: Collection[Protocol],
    mean: Channels | None,
    std: Channels | None,
) -> ChosenProtocols:
    """The usual protocols after those that were named, without any twice."""
    protocols = dict(chosen.protocols)
    left_out = []
    for name in USUAL:
        protocol = _protocol(name, masking, mean, std)
        if segment_count(protocol.features) and not segments_can_be_found():
            left_out.append(_left_out(name, "no scikit-image"))
        elif protocol not in there and protocol not in protocols.values():
            protocols[name] = protocol
    optional = frozenset(protocols.keys() - chosen.protocols.keys())
    return ChosenProtocols(protocols, optional, tuple(left_out))


def unsuited(name: str, protocol: Protocol, images: Tensor, grid: TokenGrid | None = None) -> Note | None:
    """Why a usual protocol makes no sense for images [N, C, H, W] of this size; None: it does.

    `grid` is where the tokens of the images lie, where some are left out.
    """
    shorter = min(images.shape[2:])
    divisor = side_divisor(protocol.features)
    if divisor and (divisor > shorter or patch_side(divisor, shorter) == 1):
        return _left_out(name, "single pixels")
    parts = features_of(protocol.features, images[:1])
    if protocol.masking.selects and grid is not None and misfit(grid, parts) is not None:
        return _left_out(name, "no patches", features=grid.patch)
    if parts.most < FEWEST_FEATURES:
        return _left_out(name, "few features", features=parts.most, needed=FEWEST_FEATURES)
    return None


def _left_out(name: str, why: str, **counts: int) -> Note:
    values: dict[str, Plain] = {"protocol": name, "why": why, **counts}
    return Note(Kind.PROTOCOL_LEFT_OUT, Severity.INFO, values)


def _check_different(protocols: Mapping[str, Protocol]) -> None:
    """Refuse two names of one protocol, which would be run twice."""
    for (first, one), (second, other) in combinations(protocols.items(), 2):
        if one == other:
            raise InputError(f"{first} and {second} are the same protocol: name it once")


def _check_segments(protocols: Mapping[str, Protocol]) -> None:
    """Refuse segments, before any work, where the package that finds them is not installed."""
    if any(segment_count(each.features) for each in protocols.values()):
        check_segmentation()


def _protocol(given: Any, masking: Masking, mean: Channels | None, std: Channels | None) -> Protocol:
    if isinstance(given, Protocol):
        return Protocol(checked_features(given.features), get_masking(given.masking, mean, std))
    if not isinstance(given, str | int):
        raise InputError(f"a protocol must be a name as in 1/8+blur or an fpa.Protocol, got {given!r}")
    features, plus, name = str(given).partition("+")
    try:
        removal = get_masking(name, mean, std) if plus else masking
        return Protocol(checked_features(features), removal)
    except InputError as error:
        raise InputError(f"the protocol {given!r}: {error}") from None
