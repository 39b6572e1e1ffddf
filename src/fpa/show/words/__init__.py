"""Notes in words: one phrase for each kind, put together where it is shown.

`clause` gives a phrase that can stand behind a colon, `sentence` the same as a sentence of its own.
"""

from collections.abc import Iterable, Mapping

from fpa.notes import Kind, Note, Plain
from fpa.show.words import advice, evaluations, labels, pairs, protocols, truths, twins, verdicts
from fpa.show.words.reader import Phrase, Reader, as_sentence

__all__ = ["PHRASES", "Phrase", "Reader", "clause", "sentence", "sentences"]

PHRASES: dict[Kind, Phrase] = {
    **labels.PHRASES,
    **evaluations.PHRASES,
    **pairs.PHRASES,
    **protocols.PHRASES,
    **truths.PHRASES,
    **twins.PHRASES,
    **verdicts.PHRASES,
    **advice.PHRASES,
}


def clause(note: Note, reader: Reader | None = None) -> str:
    """A note in words, without a capital and a full stop.

    >>> clause(Note(Kind.SINGLE_IMAGE))
    'a single image is used: there is no interval'
    """
    facts: Mapping[str, Plain] = note.values
    return PHRASES[note.kind](reader or Reader(), **facts)


def sentence(note: Note, reader: Reader | None = None) -> str:
    """A note as a sentence.

    >>> sentence(Note(Kind.SINGLE_IMAGE))
    'A single image is used: there is no interval.'
    """
    return as_sentence(clause(note, reader))


def sentences(notes: Iterable[Note], reader: Reader | None = None) -> list[str]:
    """Several notes, a sentence each."""
    return [sentence(note, reader) for note in notes]
