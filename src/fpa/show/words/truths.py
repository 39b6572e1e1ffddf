"""The words for how often an evaluation prefers the worse of two maps."""

import math
from collections.abc import Mapping, Sequence

from fpa.notes import Kind
from fpa.show.words.protocols import in_words
from fpa.show.words.reader import Phrase, Reader, listed


def points(share: float, half: float, unit: str = " %") -> str:
    """A share with half of its interval, in percent or points.

    >>> points(0.2614, 0.0178), points(0.05, math.nan, " points"), points(math.nan, math.nan)
    ('26.1 ± 1.8 %', '5.0 points', '–')
    """
    if math.isnan(share):
        return "–"
    shown = "" if math.isnan(half) else f" ± {100 * half:.1f}"
    return f"{100 * share:.1f}{shown}{unit}"


def _prefers_worse(
    reader: Reader, *, features: str | int, masking: str, errors: Mapping[str, Sequence[float]]
) -> str:
    start = f"of two maps of an image, A by {in_words(features, masking)}"
    parts = list[str]()
    for name, (share, half) in errors.items():
        whose = f" ({reader.name(name)})" if len(errors) > 1 else ""
        if not math.isnan(share):
            parts.append(f"{points(share, half)}{'' if parts else ' of pairs'}{whose}")
    if not parts:
        return f"{start} could not be asked: no pair of maps differs in truth by more than its noise"
    return f"{start} prefers the worse one in {listed(parts)}"


def _error_changes(
    reader: Reader,
    *,
    features: str | int,
    masking: str,
    before: str,
    after: str,
    reduction: float,
    interval: float,
) -> str:
    way = "lower" if reduction > 0 else "higher"
    amount = points(abs(reduction), interval, " points")
    models = f"with {reader.name(after)} than with {reader.name(before)}"
    said = f"by {in_words(features, masking)} this error is {amount} {way} {models}"
    return said if abs(reduction) > interval else f"{said}, which may be chance"


def _truth_at_chance(reader: Reader, *, models: Sequence[str]) -> str:
    are = "is" if len(models) == 1 else "are"
    named = listed([reader.name(name) for name in models])
    return f"{named} {are} no better than chance: what is true of a model that knows nothing says little"


_WHY = {"not finite": "not finite", "zero": "0 wherever something has an effect"}


def _maps_without_truth(reader: Reader, *, why: str, of: Mapping[str, int], model: str = "") -> str:
    whose = f" of {reader.name(model)}" if model else ""
    named = ", ".join(f"{count} by {reader.name(name)}" for name, count in of.items())
    return f"maps{whose} without truth, as they are {_WHY[why]}: {named}"


PHRASES: dict[Kind, Phrase] = {
    Kind.PREFERS_WORSE: _prefers_worse,
    Kind.ERROR_CHANGES: _error_changes,
    Kind.TRUTH_AT_CHANCE: _truth_at_chance,
    Kind.MAPS_WITHOUT_TRUTH: _maps_without_truth,
}
