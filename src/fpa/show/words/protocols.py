"""The words for protocols: what is removed together, and how consistent they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from fpa.errors import percent
from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader


def in_words(features: str | int, masking: str) -> str:
    """A protocol for people who do not know its name; the usual masking goes without saying.

    >>> in_words("1/8", "constant"), in_words("segments:50", "blur"), in_words(4, "constant")
    ('patches of 1/8 of the side', 'about 50 segments (blur)', 'patches of 4 pixels')
    """
    name = str(features)
    what = "pixels"
    if name.startswith("segments:"):
        what = f"about {name.partition(':')[2]} segments"
    elif name != "pixels":
        size = f"{name} of the side" if "/" in name else f"{name} pixels"
        what = f"patches of {size}"
    return what if masking == "constant" else f"{what} ({masking})"


def in_opposite_order(low: int, high: int) -> str:
    """How many pairs are in opposite order: from those that surely are to all but those that surely agree.

    >>> in_opposite_order(15, 17), in_opposite_order(0, 0)
    ('15 to 17', '0')
    """
    return f"{low}" if low == high else f"{low} to {high}"


def _by_protocol(reader: Reader, *, own: Mapping[str, Any], fewest: Mapping[str, Any] | None) -> str:
    only = (
        "agreeing with itself is not being right: where the truth is known, it did not tell which errs least"
    )
    first = own if fewest is None else fewest
    start = (
        f"by {in_words(first['features'], first['masking'])} MIF and LIF rank "
        f"{in_opposite_order(first['low'], first['high'])} of {first['pairs']} signed-unsigned pairs in "
        "opposite order"
    )
    if fewest is None:
        return f"{start}, by no other protocol fewer; {only}"
    of = "" if own["pairs"] == fewest["pairs"] else f" of {own['pairs']}"
    mine = f"by {in_words(own['features'], own['masking'])} {in_opposite_order(own['low'], own['high'])}{of}"
    return f"{start}, {mine}; {only}"


def _recommended(
    reader: Reader,
    *,
    protocol: str,
    errors: Sequence[float],
    features: str | int,
    masking: str,
    own_errors: Sequence[float] | None,
    shown: bool,
) -> str:
    best = f"A by patches of 1/8 of the side (blur) prefers the worse one in {_without_and_with(errors)}"
    mine = ""
    if own_errors is not None:
        mine = f", A by {in_words(features, masking)} in {_without_and_with(own_errors)}"
    how = "its column is above"
    if not shown:
        how = f"{reader.setting('protocols', protocol)} adds it, for as many passes again"
    return f"where it is known which of two maps is truer, {best}{mine}: {how}"


def _without_and_with(errors: Sequence[float]) -> str:
    without, with_fpa = map(percent, errors)
    return f"{without} of pairs (with FPA {with_fpa})"


PHRASES: dict[Kind, Phrase] = {
    Kind.BY_PROTOCOL: _by_protocol,
    Kind.RECOMMENDED_PROTOCOL: _recommended,
}
