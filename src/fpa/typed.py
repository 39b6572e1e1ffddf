"""From what people type, in a command or in a YAML file, to the type that a setting declares."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fpa.errors import InputError, shortened
from fpa.values import check_type, shown, type_in_words


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
        fitted = _typed(value, kind)
    except _UnfitError:
        seen = shortened(" ".join(value.split()), 80) if isinstance(value, str) else shown(value)
        raise InputError(f"{name} must be {type_in_words(_without_null(kind))}, got {seen}") from None
    check_type(name, fitted, kind)  # numbers that are too large for any computer's own
    return fitted


def plain(text: str) -> Any:
    """What a text says where no type is declared: a number, a list, a mapping, or itself.

    >>> plain("4"), plain("1e-3"), plain("{a: [1, 2]}"), plain("blur")
    (4, 0.001, {'a': [1, 2]}, 'blur')
    """
    with suppress(_UnfitError):
        return _typed(text, int | float)
    try:
        return _from_yaml(text)
    except _UnfitError:
        return text


def _without_null(kind: Any) -> Any:
    """The type that is asked for: who leaves a setting out need not be told to write null."""
    parts = tuple(part for part in get_args(kind) if part is not NoneType)
    return Union[parts] if get_origin(kind) in (Union, UnionType) else kind  # noqa: UP007


class _UnfitError(ValueError):
    """The value is not of the type."""


def _typed(value: Any, kind: Any) -> Any:
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        return _first_that_fits(value, inner)
    if origin is Literal:
        return _one_of(value, inner)
    if origin in (list, tuple, Sequence):
        return _several(value, tuple if origin is tuple else list, inner)
    if origin is dict:
        return _mapping(value, inner)
    if kind is Any:
        return value
    return _single(value, kind)


def _first_that_fits(value: Any, kinds: Sequence[Any]) -> Any:
    # Every text is a str, so that comes last: "8" is a number of pixels where that is possible.
    for kind in sorted(kinds, key=lambda each: each is str):
        with suppress(_UnfitError):
            return _typed(value, kind)
    raise _UnfitError


def _one_of(value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise _UnfitError


def _several(value: Any, whole: type, kinds: Sequence[Any]) -> Any:
    if isinstance(value, str):
        value = _from_yaml(value if value.startswith("[") else f"[{value}]")
    if not isinstance(value, (list, tuple)):
        raise _UnfitError
    if whole is list or kinds[-1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(value) != len(kinds):
        raise _UnfitError
    return whole(_typed(each, kind) for each, kind in zip(value, kinds, strict=True))


def _mapping(value: Any, kinds: Sequence[Any]) -> dict[Any, Any]:
    if isinstance(value, str) and value.startswith("{"):
        value = _from_yaml(value)
    if not isinstance(value, dict):
        raise _UnfitError
    return {_typed(key, kinds[0]): _typed(part, kinds[1]) for key, part in value.items()}


_WORDS = {"true": True, "false": False}


def _single(value: Any, kind: Any) -> Any:
    """A value of a type that holds no others."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is NoneType and value in (None, "null"):
        return None
    if kind is bool and (isinstance(value, bool) or value in ("true", "false")):
        return _WORDS.get(value, value)
    if kind is int and isinstance(value, (int, str)) and not isinstance(value, bool):
        return _number(value, int)
    if kind is float and (is_number or isinstance(value, str)):  # YAML takes 5e-4 for text
        return _number(value, float)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is str and isinstance(value, str):
        return value
    raise _UnfitError


def _number(value: Any, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except (ValueError, OverflowError) as error:
        raise _UnfitError from error


def _from_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise _UnfitError from error
