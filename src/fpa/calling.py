"""How the functions of the package are called: keywords that they have not, and keywords of other names."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args

from fpa.errors import InputError, shortened, warn

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE = {"display": "progress", "verbose": "progress", "quiet": "progress", "num_images": "count"}
"""What other libraries, and earlier versions, call a keyword."""


class KeywordError(InputError, TypeError):
    """A function has no such keyword; Python's own error for that is a TypeError."""


def check_keywords(
    caller: str, given: Mapping[str, Any], known: Iterable[str], kinds: Mapping[str, Any]
) -> None:
    """Refuse keywords that a function has not, with what was probably meant.

    - `kinds`: the types of its keywords, some of which may have settings of their own.

    >>> check_keywords("train", {"epoch": 3}, ["epochs", "seed"], {})
    Traceback (most recent call last):
    fpa.calling.KeywordError: train() has no keyword epoch: did you mean epochs?
    """
    names = [*known]
    for keyword, value in given.items():
        if keyword not in names:
            raise KeywordError(f"{caller}() has no keyword {keyword}{_instead(keyword, value, names, kinds)}")


def _instead(keyword: str, value: Any, names: list[str], kinds: Mapping[str, Any]) -> str:
    """What to write in place of a keyword that there is not."""
    for name, kind in kinds.items():
        parts = (kind, *get_args(kind))
        inner = next((part for part in parts if is_dataclass(part) and _has_field(part, keyword)), None)
        if inner is not None and name in names:
            seen = shortened(" ".join(repr(value).split()), 60)
            as_mapping = Mapping in [getattr(part, "__origin__", part) for part in parts]
            named = f"fpa.{getattr(inner, '__name__', '')}({keyword}={seen})"
            return f"; it is a setting: {name}=" + (f"{{'{keyword}': {seen}}}" if as_mapping else named)
    meant = _ELSEWHERE.get(keyword)
    near = [meant] if meant in names else difflib.get_close_matches(keyword, names, n=1, cutoff=0.6)
    if near:
        return f": did you mean {near[0]}?"
    return f" (it has {', '.join(names)})"


def _has_field(kind: Any, name: str) -> bool:
    return any(item.name == name for item in fields(kind))


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that takes keywords under the names that they had before, too, and says so.

    >>> @renamed(output="folder")
    ... def store(folder: str) -> str:
    ...     return folder
    >>> store("here")
    'here'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def calling(*arguments: P.args, **named: P.kwargs) -> R:
            for before, now in names.items():
                if before not in named:
                    continue
                if now in named:
                    raise KeywordError(f"{function.__name__}() got {before} and {now}, which are one keyword")
                what = f"{function.__name__}({before}=...) is now {function.__name__}({now}=...)"
                warn(f"{what}; the old name will go", DeprecationWarning)
                named[now] = named.pop(before)
            return function(*arguments, **named)

        return calling

    return decorate


def has_any_keywords(signature: inspect.Signature) -> bool:
    """Whether a function takes keywords of any name."""
    return any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
