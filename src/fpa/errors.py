"""The one exception type that means: the input was wrong, here is what to change."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, and what would be accepted.

    The command line shows the message alone and exits with code 2.
    """


class DamagedError(InputError):
    """Files that fpa wrote and cannot read back, each with the reason.

    >>> print(DamagedError({Path("a.npz"): "it is empty"}))
    a.npz is damaged (it is empty): remove it (fpa run --repair does, in a study) and run again to recreate it
    """

    def __init__(self, reasons: Mapping[Path, object]) -> None:
        self.reasons = dict(reasons)
        damage = "; ".join(f"{path} is damaged ({reason})" for path, reason in reasons.items())
        it = "it" if len(reasons) == 1 else "them"
        remedy = f"remove {it} (fpa run --repair does, in a study) and run again to recreate {it}"
        super().__init__(f"{damage}: {remedy}")


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("recipe", "cifar", ["shapes", "cifar10"]))
    unknown recipe 'cifar': did you mean 'cifar10'? (known: cifar10, shapes)
    """
    known = sorted(known)
    name = shortened(str(name))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    if not near or len(known) <= 16:
        hint += f" (known: {', '.join(known[:16])}{', ...' if len(known) > 16 else ''})"
    return InputError(f"unknown {kind} {name!r}{hint}")


def one_of(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that does not exist."""
    if name not in known:
        raise unknown(kind, name, known)


NO_MATTER = (
    "data.root", "data.workers", "training.compile", "training.test_every", "training.checkpoint_seconds",
)  # fmt: skip
"""Recipe fields that do not change a result."""


def differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> list[str]:
    """One line a field that differs between two recipes; fields that change no result are passed over.

    >>> differences({"a": {"b": 1}}, {"a": {"b": 2}})
    ['a.b: 2 -> 1']
    """
    lines = []
    for key in ours | theirs:
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            lines += differences(mine, other, f"{prefix}{key}.")
        elif mine != other and f"{prefix}{key}" not in NO_MATTER:
            lines.append(f"{prefix}{key}: {other} -> {mine}")
    return lines


def at_least(name: str, value: float | None, least: float) -> None:
    """Refuse a setting that is smaller than it may be; None is one that was not made."""
    if value is not None and not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value}")


def check_types(settings: Any, prefix: str = "") -> None:
    """Refuse a dataclass whose values are not of the types of its fields: the one schema of all settings.

    >>> from dataclasses import make_dataclass
    >>> check_types(make_dataclass("Curve", [("points", int), ("name", str | None)])(21, None))
    """
    for item in fields(settings):
        check_type(f"{prefix}{item.name}", getattr(settings, item.name), item.type)


def check_type(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of a type, in words.

    >>> check_type("points", None, int)
    Traceback (most recent call last):
    fpa.errors.InputError: points must be a whole number, got None
    """
    if not _of_type(value, kind):
        raise InputError(f"{name} must be {_in_words(kind)}, got {repr(value)[:80]}")


def _of_type(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_of_type(value, each) for each in inner)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin is list:
        return isinstance(value, list) and all(_of_type(each, inner[0]) for each in value)
    if origin is tuple:
        fits = isinstance(value, (list, tuple)) and len(value) == len(inner)
        return fits and all(map(_of_type, value, inner))
    if origin is dict:
        return isinstance(value, dict) and all(
            _of_type(key, inner[0]) and _of_type(each, inner[1]) for key, each in value.items()
        )
    if kind in (int, float):
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        return number and not (isinstance(value, int) and abs(value) >= 2**63)
    return kind is Any or isinstance(value, kind)


def _in_words(kind: Any) -> str:
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (list, tuple):
        return f"a list of {_in_words(inner[0]).removeprefix('a ')}s"
    return plain.get(kind, "a mapping" if origin is dict else f"a {getattr(kind, '__name__', kind)}")


def same_format(path: Path, version: Any, ours: int, remedy: str) -> None:
    """Refuse what another version of fpa has written in a format of its own."""
    if version != ours:
        formats = f"format {version}, this one reads {ours}"
        raise InputError(f"{path} was written by another version of fpa ({formats}): {remedy}")


def shortened(text: str, most: int = 300) -> str:
    """A text that may be very long, with its middle left out.

    >>> shortened("a" * 1000, 7)
    'aaa ... aaa'
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def first_line(error: BaseException) -> str:
    r"""The first line of an exception's message, or its type where it has none.

    >>> first_line(ValueError("no such layer\nmore")), first_line(KeyError())
    ('no such layer', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
