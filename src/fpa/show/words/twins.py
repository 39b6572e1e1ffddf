"""The words for how far fine-tuning has moved a model."""

from fpa.errors import counted, percent
from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader, listed


def _moved(
    reader: Reader,
    *,
    images: int,
    agreement: float,
    logits: float | None,
    maps: float | None,
    learned_from: bool,
) -> str:
    where = f"{counted(images)} without masks"
    where += ", among those it learned from" if learned_from else ""
    known = {"logits": logits, "their maps": maps}
    similar = [f"{value:.2f} of {name}" for name, value in known.items() if value is not None]
    end = f"; correlation {listed(similar)}" if similar else ""
    return f"compared with the original on {where}: same class for {percent(agreement)}{end}"


def _forgot(reader: Reader, *, images: int, agreement: float) -> str:
    far = f"after fine-tuning the model classifies only {percent(agreement)} of {counted(images)} as before"
    return f"{far}: it says little about the original; more images, and more epochs, bring it closer"


PHRASES: dict[Kind, Phrase] = {Kind.TWIN_MOVED: _moved, Kind.TWIN_FORGOT: _forgot}
