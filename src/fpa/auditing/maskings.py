"""Several maskings, each by a name of its own."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fpa.errors import InputError
from fpa.masking import Channels, FunctionMasking, Masking, get_masking, masking_json


def compared(
    maskings: Any, judged: Any = None, mean: Channels | None = None, std: Channels | None = None
) -> list[Any]:
    """The masking that is judged, or the first of several, and those that differ from it.

    >>> compared(["constant", "blur"], "blur"), compared(["constant", "blur"])
    (['blur', 'constant'], ['constant', 'blur'])
    """
    listed = [maskings] if isinstance(maskings, (str, Mapping)) or callable(maskings) else list(maskings)
    if judged is None:
        return listed
    way = _way_of(get_masking(judged, mean, std))
    return [judged, *(each for each in listed if _way_of(get_masking(each, mean, std)) != way)]


def by_name(
    listed: Sequence[Any], mean: Channels | None = None, std: Channels | None = None
) -> dict[str, Masking]:
    """Each masking by a name of its own: with its settings where others have the same name."""
    names = [_called(each) for each in listed]
    made = [get_masking(each, mean, std) for each in listed]
    ways = [_way_of(each) for each in made]
    if not made or any(way in ways[:place] for place, way in enumerate(ways)):
        raise InputError(f"maskings must be one or more, all different, got {', '.join(names) or 'none'}")
    longer = [
        name if names.count(name) == 1 else _with_settings(name, masking)
        for name, masking in zip(names, made, strict=True)
    ]
    # Two lambdas have no settings that tell them apart either: they are numbered.
    before = [longer[:place].count(name) for place, name in enumerate(longer)]
    numbered = [
        f"{name} ({count + 1})" if count else name for name, count in zip(longer, before, strict=True)
    ]
    return dict(zip(numbered, made, strict=True))


def _called(masking: Any) -> str:
    if isinstance(masking, Mapping):
        settings = (f"{key}={value}" for key, value in masking.items() if key != "name")
        return " ".join([str(masking.get("name")), *settings])
    if isinstance(masking, str):
        return masking
    named = masking.func if isinstance(masking, partial) else masking
    return str(getattr(named, "__name__", type(named).__name__)).lower()


def _with_settings(name: str, masking: Masking) -> str:
    """A name and the settings that are not left open.

    >>> _with_settings("blur", get_masking({"name": "blur", "sigma": 4}))
    'blur sigma=4'
    """
    settings = {key: value for key, value in masking_json(masking).items() if key != "name"}
    words = {key: f"{value:g}" if isinstance(value, float) else value for key, value in settings.items()}
    return " ".join([name, *(f"{key}={word}" for key, word in words.items() if word is not None)])


def _way_of(masking: Masking) -> tuple[Any, ...]:
    """Equal for maskings that remove pixels in the same way; functions that share a name do not."""
    function = masking.function if isinstance(masking, FunctionMasking) else None
    return masking_json(masking), id(function.func if isinstance(function, partial) else function)
