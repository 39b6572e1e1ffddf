"""Identities over time: of code as it was given, and what has become of it since."""

import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from fpa.errors import shortened
from fpa.identity import identity

_VALUES = {
    "arguments": "argument", "attributes": "attribute", "closure": "closure value", "defaults": "default",
    "globals": "global value", "packages": "package", "wrapped": "wrapped",
}  # fmt: skip
"""What the values in an identity of user code are called, by their group."""

_GIVEN: dict[tuple[int, str], tuple[Callable[[], Any], Any, Any]] = {}
"""By object and method: the object, its identity before it was first called, and after it last was."""


def identity_as_given(value: Any) -> dict[str, Any] | None:
    """The identity that an object had before it was called, if nothing but calls has changed it since.

    A counter or stored activations must not make another method of it when a notebook evaluates it again;
    what the user sets must.
    """
    now = identity(value)
    _, before, after = _GIVEN.get(_place(value), (None, now, now))
    before = before if now == after else now
    _remember(value, before, now)
    return before


def note_calls_of(value: Any) -> None:
    """What calls have changed of an object since its identity was taken is their work: it is the same."""
    place = _place(value)
    if place in _GIVEN:
        _remember(value, _GIVEN[place][1], identity(value))


def _place(value: Any) -> tuple[int, str]:
    # A bound method is made anew whenever it is asked for: it is the object that stays.
    method = isinstance(value, types.MethodType)
    return (id(value.__self__), value.__name__) if method else (id(value), "")


def _remember(value: Any, before: Any, after: Any) -> None:
    place = _place(value)
    kept = value.__self__ if isinstance(value, types.MethodType) else value
    try:
        _GIVEN[place] = (weakref.ref(kept, lambda _: _GIVEN.pop(place, None)), before, after)
    except TypeError:  # it cannot be watched, and its place may be another's later
        _GIVEN.pop(place, None)


def unseen(code: Mapping[str, Any]) -> dict[str, str]:
    """Why code could not be seen, by its name, in identities of several things.

    >>> unseen({"outputs": {"mine": {"name": "m:mine", "code": None, "unseen": {"m:mine": "no source"}}}})
    {'m:mine': 'no source'}
    """
    found = dict(code.get("unseen", {}))
    for part in code.values():
        if isinstance(part, Mapping):
            found |= unseen(part)
    return found


def identity_differences(old: Any, new: Any, *path: str) -> list[str]:
    """The differences of two identities, with {} in place of the name of what they are of.

    >>> identity_differences({"name": "m:f", "code": "1f"}, {"name": "m:f", "code": "2e"})
    ['the code of {} has changed']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = [identity_differences(old.get(key), new.get(key), *path, key) for key in old | new]
        return list(dict.fromkeys(line for lines in found for line in lines))
    if old == new:
        return []
    if path and path[-1] in ("code", "definition"):
        return ["the code of {} has changed"]
    group, *inner = path or ("identity",)
    what = " ".join([_VALUES.get(group, group), *inner])
    return [f"{what} of {{}}: {short_value(old)} -> {short_value(new)}"]


def short_value(value: Any) -> str:
    """A value of a plan in a few characters.

    >>> short_value(None), short_value([1, 2, 3, 4, 5])
    ('none', '5 values')
    """
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values"
    return "none" if value is None else shortened(str(value), 40)
