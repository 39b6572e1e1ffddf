"""What a reader must know, as facts: a kind, how much it matters, and its numbers.

Whatever computes returns notes; `fpa.show.words` alone turns them into sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
"""A value that JSON can hold."""


class Severity(StrEnum):
    """How much a note matters."""

    INFO = "info"
    """Good to know."""
    ADVICE = "advice"
    """What to do."""
    WARNING = "warning"
    """It casts doubt on the numbers."""
    BLOCKING = "blocking"
    """There is no verdict before it is mended."""


class Kind(StrEnum):
    """Everything that a note can be about; `fpa.show.words` has a sentence for each."""

    # the labels of images, and the outputs of the model that stand for them
    NO_LABELS = "no labels"
    NUMBERS_OR_ORDER = "numbers or order"
    NUMBERS = "numbers"
    WORDNET_IDS = "WordNet ids"
    ORDER_ASSUMED = "order assumed"
    LABELS_UNKNOWN = "labels unknown"

    # what an evaluation leaves out, and what it costs
    NOT_FINITE = "not finite"
    NEVER_FINITE = "never finite"
    LEFT_OUT = "left out"
    SINGLE_IMAGE = "single image"
    SMALL_OUTPUTS = "small outputs"
    INCOMPLETE = "incomplete"
    PASSES = "passes"
    LONG_WORK = "long work"
    QUICK_LOOK = "quick look"
    PASSES_OF_SCORES = "passes of scores"
    TAKEN_FOR_UNSIGNED = "taken for unsigned"
    SCORE_LEFT_OUT = "score left out"
    PROTOCOL_LEFT_OUT = "protocol left out"
    TOKENS_LEFT_OUT = "tokens left out"

    # what to doubt about a model
    OTHER_MASKING = "other masking"
    DOUBTFUL_CLASSES = "doubtful classes"
    OFFSET_MATTERS = "offset matters"

    # how often an evaluation prefers the worse of two maps
    PREFERS_WORSE = "prefers worse"
    ERROR_CHANGES = "error changes"
    TRUTH_AT_CHANCE = "truth at chance"
    MAPS_WITHOUT_TRUTH = "maps without truth"

    # how far MIF agrees with LIF
    CONSISTENT = "consistent"
    NOT_CONSISTENT = "not consistent"
    CONTRADICTIONS = "contradictions"
    TIES = "ties"
    NEAR_DUPLICATES = "near-duplicates"
    IN_ALL_OPPOSITE = "in all opposite pairs"
    BY_PROTOCOL = "by protocol"
    RECOMMENDED_PROTOCOL = "recommended protocol"

    # why an audit comes to its verdict
    NOT_ABOVE_CHANCE = "not above chance"
    LITTLE_CHANGE = "little change"
    TOO_FEW_IMAGES = "too few images"
    TOO_FEW_ESTIMATORS = "too few estimators"
    OPPOSITE_PAIRS = "opposite pairs"
    AGREEING_BY_CHANCE = "agreeing by chance"
    OUTPUT_KEPT = "output kept"
    CHANCE_UNKNOWN = "chance unknown"
    SMALL_NOT_JUDGED = "small outputs not judged"
    OTHER_OUTPUT = "other output"
    RAW_LOGIT_DIFFERS = "raw logit differs"
    OTHER_PROTOCOLS_DIFFER = "other protocols differ"

    # what an audit advises
    EVALUATE = "evaluate"
    DO_NOT_CHOOSE = "do not choose"
    FINE_TUNE = "fine-tune"
    OTHER_TRAINING_IMAGES = "other training images"
    CHECK_LABELS = "check labels"
    CHECK_MASKING = "check masking"
    ENOUGH_IMAGES = "enough images"
    MORE_ESTIMATORS = "more estimators"
    MORE_IMAGES = "more images"

    # how far fine-tuning has moved a model
    TWIN_MOVED = "twin moved"
    TWIN_FORGOT = "twin forgot"

    # what an earlier version of fpa stored in its own words
    EARLIER_WORDS = "earlier words"


@dataclass(frozen=True)
class Note:
    """A fact for a reader.

    >>> few = Note(Kind.SINGLE_IMAGE)
    >>> few.severity, Note.from_json(few.to_json()) == few
    (<Severity.INFO: 'info'>, True)
    """

    kind: Kind
    severity: Severity = Severity.INFO
    values: Mapping[str, Plain] = field(default_factory=dict)
    """Its numbers and names, by what they are; estimators by the names that they have in the plan."""

    def to_json(self) -> dict[str, Plain]:
        """As plain values."""
        return {"kind": str(self.kind), "severity": str(self.severity), "values": dict(self.values)}

    @classmethod
    def from_json(cls, stored: Any) -> "Note":
        """The note of plain values; of a sentence, as earlier versions stored them, one that holds it."""
        if isinstance(stored, str):
            return cls(Kind.EARLIER_WORDS, Severity.WARNING, {"text": stored})
        return cls(Kind(stored["kind"]), Severity(stored["severity"]), stored["values"])
