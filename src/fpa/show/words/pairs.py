"""The words for pairs of estimators: where MIF and LIF agree, and what cannot be ordered."""

from collections.abc import Mapping, Sequence

from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader

Counts = Mapping[str, Sequence[int]]
"""By kind of pair: how many there are, how many are in opposite order, and of these surely."""


def _consistent(reader: Reader, *, images: int, kinds: Counts) -> str:
    return f"no pair is surely in opposite order, by {images:,} images: {_counted(kinds)}"


def _not_consistent(reader: Reader, *, kinds: Counts) -> str:
    return f"some pairs are surely in opposite order: {_counted(kinds)}"


def _counted(kinds: Counts) -> str:
    return ", ".join(
        f"{kind} ({opposite} of {pairs} in opposite order, {surely} surely)"
        for kind, (pairs, opposite, surely) in kinds.items()
    )


def _contradictions(reader: Reader, *, pairs: Sequence[Sequence[str]], more: int) -> str:
    return f"cannot be ordered, because they are surely in opposite order: {_named(reader, pairs, more)}"


def _ties(reader: Reader, *, pairs: Sequence[Sequence[str]], more: int) -> str:
    return f"cannot be ordered, because A does not differ significantly: {_named(reader, pairs, more)}"


def _named(reader: Reader, pairs: Sequence[Sequence[str]], more: int) -> str:
    named = [" and ".join(map(reader.name, pair)) for pair in pairs]
    return "; ".join([*named, f"{more} more"] if more else named)


def _near_duplicates(reader: Reader, *, of: Mapping[str, str]) -> str:
    named = (f"{reader.name(each)} (as {reader.name(other)})" for each, other in of.items())
    return f"near-duplicates, in no pair: {', '.join(named)}"


def _in_all_opposite(reader: Reader, *, estimator: str, pairs: int) -> str:
    return f"all {pairs} pairs in opposite order have {reader.name(estimator)} in them"


PHRASES: dict[Kind, Phrase] = {
    Kind.CONSISTENT: _consistent,
    Kind.NOT_CONSISTENT: _not_consistent,
    Kind.CONTRADICTIONS: _contradictions,
    Kind.TIES: _ties,
    Kind.NEAR_DUPLICATES: _near_duplicates,
    Kind.IN_ALL_OPPOSITE: _in_all_opposite,
}
