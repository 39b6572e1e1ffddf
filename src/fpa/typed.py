"""From what people type, in a command or in a YAML file, to the type that a setting declares."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from fpa.errors import InputError, shortened
from fpa.files.documents import yaml_values
from fpa.values import UnfitError, as_type, shown, type_in_words


def typed(name: str, value: Any, kind: Any) -> Any:
    """A value as a type: text is read, and what YAML made of it (a number, a list) is fitted.

    A list may be typed without its brackets.

    >>> typed("--points", "21", int), typed("--estimators", "ig_sum,vg_abs", list[str])
    (21, ['ig_sum', 'vg_abs'])
    >>> typed("--points", "many", int | None)
    Traceback (most recent call last):
    fpa.errors.InputError: --points must be a whole number, got many
    """
    try:
        return as_type(value, kind, _read)
    except UnfitError:
        seen = shortened(" ".join(value.split()), 80) if isinstance(value, str) else shown(value)
        raise InputError(f"{name} must be {type_in_words(_without_null(kind))}, got {seen}") from None


READ_AS = "read as"

PYTHON_ONLY: dict[str, Any] = {READ_AS: None}
"""The metadata of a field that nobody can type."""


ALONE = "alone"


def read_as(kind: Any, *, alone: str | None = None) -> dict[str, Any]:
    """The metadata of a field that takes more in Python than can be typed: what text is read as.

    `alone` is what it means to type the name of the option without a value; None: nothing.
    """
    return {READ_AS: kind, **({} if alone is None else {ALONE: alone})}


def typed_fields(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass that can be typed, each with the type that text is read as.

    >>> from dataclasses import field, make_dataclass
    >>> typed_fields(make_dataclass("Curve", [("points", int), ("mask", Any, field(metadata=PYTHON_ONLY))]))
    {'points': <class 'int'>}
    """
    kinds = {item.name: item.metadata.get(READ_AS, item.type) for item in fields(settings)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def meant_alone(settings: Any) -> dict[str, str]:
    """Of the fields of a dataclass that may be typed without a value: what is meant then."""
    return {item.name: item.metadata[ALONE] for item in fields(settings) if ALONE in item.metadata}


def helps_of(source: Any) -> dict[str, str]:
    """What the docstring of a function says of its parameters, or of a class, and those below, of fields."""
    import docstring_parser

    found: dict[str, str] = {}
    for kind in reversed(getattr(source, "__mro__", [source])):
        document = docstring_parser.parse(kind.__doc__ or "")
        found |= {each.arg_name: each.description or "" for each in document.params}
    return found


def plain(text: str) -> Any:
    """What a text says where no type is declared: a number, a list, a mapping, or itself.

    >>> plain("4"), plain("1e-3"), plain("{a: [1, 2]}"), plain("blur")
    (4, 0.001, {'a': [1, 2]}, 'blur')
    """
    with suppress(UnfitError):
        return as_type(text, int | float, _read)
    try:
        return _from_yaml(text)
    except UnfitError:
        return text


def _without_null(kind: Any) -> Any:
    """The type that is asked for: who leaves a setting out need not be told to write null."""
    parts = tuple(part for part in get_args(kind) if part is not NoneType)
    return Union[parts] if get_origin(kind) in (Union, UnionType) else kind  # noqa: UP007


def _read(value: Any, kind: Any) -> Any:
    """What a text says where a value of this type must be given."""
    if not isinstance(value, str):
        return value
    origin = get_origin(kind)
    if origin in (list, tuple, Sequence):
        return _from_yaml(value if value.startswith("[") else f"[{value}]")
    if origin is dict and value.startswith("{"):
        return _from_yaml(value)
    if kind in (int, float):  # not as YAML, which takes 5e-4 for text
        return _number(value, kind)
    if kind is Path:
        return Path(value)
    return _WORDS.get((kind, value), value)


_WORDS = {(bool, "true"): True, (bool, "false"): False, (NoneType, "null"): None}


def _number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise UnfitError from error


def _from_yaml(text: str) -> Any:
    try:
        return yaml_values(text)
    except ValueError as error:
        raise UnfitError from error
