"""Functions whose keywords are the fields of a class of options, for people and for type checkers alike."""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, get_type_hints

from fpa.calling import check_keywords
from fpa.typed import helps_of
from fpa.values import check_arguments

P = ParamSpec("P")
Made = TypeVar("Made")
Model = TypeVar("Model")
Data = TypeVar("Data")
Model_contra = TypeVar("Model_contra", contravariant=True)
Data_contra = TypeVar("Data_contra", contravariant=True)
Returned = TypeVar("Returned")
Returned_co = TypeVar("Returned_co", covariant=True)


class OfModelAndData(Protocol[Model_contra, Data_contra, P, Returned_co]):
    """A function of a model, data and the fields of options."""

    def __call__(
        self, model: Model_contra, data: Data_contra, *fields: P.args, **named: P.kwargs
    ) -> Returned_co:
        """Called with keywords."""


PLACE = "options: Each is a keyword."
"""The line of a docstring that stands for the options; what they mean is put in its place."""


def with_keywords(
    options: Callable[P, Made],
) -> Callable[[Callable[[Made], Returned]], Callable[P, Returned]]:
    """Make a function of options into one of their fields."""

    def decorate(function: Callable[[Made], Returned]) -> Callable[P, Returned]:
        @wraps(function)
        def calling(*fields: P.args, **named: P.kwargs) -> Returned:
            return function(_made(options, function.__name__, *fields, **named))

        _describe(calling, function, options)
        return calling

    return decorate


def with_options(
    options: Callable[P, Made],
) -> Callable[[Callable[[Model, Data, Made], Returned]], OfModelAndData[Model, Data, P, Returned]]:
    """Make a function of a model, data and options into one of a model, data and their fields."""

    def decorate(
        function: Callable[[Model, Data, Made], Returned],
    ) -> OfModelAndData[Model, Data, P, Returned]:
        @wraps(function)
        def calling(model: Model, data: Data, *fields: P.args, **named: P.kwargs) -> Returned:
            return function(model, data, _made(options, function.__name__, *fields, **named))

        _describe(calling, function, options)
        return calling

    return decorate


def _made(options: Callable[P, Made], caller: str, /, *fields: P.args, **named: P.kwargs) -> Made:
    """The options with these fields; refuses fields that there are not, and values of other types."""
    signature = inspect.signature(options)
    check_keywords(caller, named, signature.parameters, _types(options))
    bound = signature.bind(*fields, **named)
    check_arguments(bound, _types(options))
    return options(*bound.args, **bound.kwargs)


@cache
def _types(options: Callable[..., Any]) -> dict[str, Any]:
    """The types of the fields; those that need torch are known here, where somebody has a model already."""
    import torch
    from torch import nn

    from fpa.engine.arithmetic import Precision
    from fpa.engine.engine import Engine
    from fpa.explanation import Settings
    from fpa.models.hubs import Opened

    classes = (Engine, Opened, Precision, Settings)
    names = {"torch": torch, "nn": nn, **{each.__name__: each for each in classes}}
    return get_type_hints(options, localns=names)


def _describe(calling: Callable[..., Any], function: Callable[..., Any], options: Callable[..., Any]) -> None:
    """Give a function the signature that it is called with, and the help of its options."""
    own = inspect.signature(function)
    leading = [each for each in own.parameters.values() if each.name != "options"]
    fields = inspect.signature(options).parameters.values()
    calling.__signature__ = own.replace(parameters=[*leading, *fields])  # type: ignore[attr-defined]
    helps = helps_of(options)
    lines = [f"{each.name}: {' '.join(helps[each.name].split())}" for each in fields]
    calling.__doc__ = (function.__doc__ or "").replace(PLACE, "\n        ".join(lines))
