"""Values that people pass: their types, checked at the door, and their one form as JSON.

Types are the one schema of settings, options and arguments. As JSON, values are equal where they are equal
and different where they differ, as far as that can be seen.
"""

import errno
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from fpa.calling import check_keywords, has_any_keywords
from fpa.errors import InputError, first_line

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def check_types(settings: Any, prefix: str = "") -> None:
    """Refuse a dataclass whose values are not of the types of its fields.

    >>> from dataclasses import make_dataclass
    >>> check_types(make_dataclass("Curve", [("points", int), ("name", str | None)])(21, None))
    """
    for item in fields(settings):
        value = plain_number(getattr(settings, item.name))
        check_type(f"{prefix}{item.name}", value, item.type)
        object.__setattr__(settings, item.name, value)  # also where the dataclass is frozen


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments that are not of the types it declares.

    >>> @checked
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double("two")
    Traceback (most recent call last):
    fpa.errors.InputError: number must be a whole number, got 'two'
    """
    signature = inspect.signature(function)
    kinds = {name: each.annotation for name, each in signature.parameters.items()}
    # `self` declares nothing. A type in quotes would not be looked up: checked functions have none.
    kinds = {name: Any if kind is inspect.Parameter.empty else kind for name, kind in kinds.items()}

    open_ended = has_any_keywords(signature)
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def calling(*arguments: P.args, **named: P.kwargs) -> R:
        if not open_ended:
            check_keywords(called, named, kinds, kinds)
        bound = signature.bind(*arguments, **named)
        check_arguments(bound, kinds)
        try:
            return function(*bound.args, **bound.kwargs)
        except (OSError, ValueError) as error:
            if not is_impossible_path(error):
                raise
            raise InputError(f"there can be no such file or folder: {first_line(error)}") from error

    return calling


def is_impossible_path(error: OSError | ValueError) -> bool:
    """Whether the operating system says of a path that there can be none: too long, or with a null byte.

    Any look at it may raise this, for instance `Path.exists`, so it is said once, at the door.
    """
    too_long = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
    return too_long or "embedded null" in str(error)


def check_arguments(bound: inspect.BoundArguments, kinds: Mapping[str, Any]) -> None:
    """Refuse arguments that are not of these types; numbers of NumPy become plain ones."""
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if several or value is parameter.default:
            continue
        value = plain_number(value)
        check_type(name, value, kinds[name])
        bound.arguments[name] = value


def plain_number(value: Any) -> Any:
    """A number of NumPy or a fraction as Python's own, which JSON can hold; anything else as it is.

    >>> from fractions import Fraction
    >>> plain_number(Fraction(1, 4)), plain_number("1/4")
    (0.25, '1/4')
    """
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    kind: type = type(value)
    if kind in (bool, int, float) or not issubclass(kind, Real):
        return value
    with suppress(OverflowError):  # which is then refused as what it is
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def check_type(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of a type, in words.

    >>> check_type("points", None, int)
    Traceback (most recent call last):
    fpa.errors.InputError: points must be a whole number, got None
    """
    try:
        as_type(value, kind)
    except UnfitError:
        raise InputError(f"{name} must be {type_in_words(kind)}, got {shown(value)}") from None


def part_of(values: Mapping[str, Any], name: str, kind: Any, *, of: str = "") -> Any:
    """A part of what was read from JSON, which must be of this type; one that is not there is None.

    >>> part_of({"seed": 3}, "seed", int), part_of({"seed": 3}, "judge", str | None)
    (3, None)
    """
    value = values.get(name)
    check_type(f"{name} of {of}" if of else name, value, kind)
    return value


def besides(values: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """What was read from JSON and is no field of these dataclasses.

    >>> from dataclasses import make_dataclass
    >>> besides({"points": 21, "later": 1}, make_dataclass("Curve", [("points", int)]))
    {'later': 1}
    """
    known = {each.name for kind in kinds for each in fields(kind)}
    return {key: value for key, value in values.items() if key not in known}


class UnfitError(ValueError):
    """A value is not of a type."""


Read = Callable[[Any, Any], Any]
"""What makes of a text (the first) a value of a type (the second); anything else it leaves as it is."""


def as_type(value: Any, kind: Any, read: Read = lambda value, kind: value) -> Any:
    """A value as a type, every part of it, or an `UnfitError`; texts are first `read` as the type.

    More is taken than Python's own types say, as people mean it: NumPy's numbers are numbers, whole numbers
    are real ones, lists serve as tuples, and arrays and tensors of one dimension as sequences. True is no
    number, a text no list of letters.

    >>> as_type([1, 2], tuple[float, ...])
    (1.0, 2.0)
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _as_first_that_fits(value, inner, read)
    value = read(value, kind)
    if kind in (int, float):
        return _as_number(value, kind)
    if origin in (list, tuple, Sequence):
        return _as_several(value, origin, inner, read)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {as_type(name, inner[0], read): as_type(part, inner[1], read) for name, part in value.items()}
    if not _is_of(value, kind, origin):
        raise UnfitError
    return value


def _as_first_that_fits(value: Any, kinds: Sequence[Any], read: Read) -> Any:
    # Every text is a str, so that comes last: "8" is a number of pixels where that is possible.
    for kind in sorted(kinds, key=lambda each: each is str):
        with suppress(UnfitError):
            return as_type(value, kind, read)
    raise UnfitError


def _as_number(value: Any, kind: type[int] | type[float]) -> int | float:
    """One that a computer counts with: 10**30 would end in an error far from here."""
    is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if not is_number or (isinstance(value, Integral) and abs(int(value)) >= 2**63):
        raise UnfitError
    try:
        return kind(value)
    except OverflowError as error:  # a fraction beyond all floats
        raise UnfitError from error


def _as_several(value: Any, whole: Any, kinds: Sequence[Any], read: Read) -> Any:
    """A list, a tuple or a sequence, the `whole`, of parts of these types."""
    if whole is Sequence and _is_array(value):
        if _dimensions(value) != 1:
            raise UnfitError
        value = value.tolist()
    taken = (list, tuple) if whole is tuple else whole
    if not isinstance(value, taken) or isinstance(value, (str, bytes)):
        raise UnfitError
    if whole is not tuple or kinds[-1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(value) != len(kinds):
        raise UnfitError
    parts = [as_type(part, kind, read) for part, kind in zip(value, kinds, strict=True)]
    return tuple(parts) if whole is tuple else parts


def _is_of(value: Any, kind: Any, origin: Any) -> bool:
    """Whether a value is of a type that is taken as it is."""
    if origin is Literal:  # 1 == True, so the type counts too
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    if origin is Iterable:
        return _dimensions(value) > 0 if _is_array(value) else isinstance(value, Iterable)
    if origin is Callable:
        return callable(value)
    return isinstance(value, origin or kind)


def _is_array(value: Any) -> bool:
    return hasattr(value, "ndim") and hasattr(value, "dtype")


def _dimensions(value: Any) -> int:
    """Of an array or a tensor; -1 where its numbers cannot be looked at."""
    try:
        return -1 if getattr(value, "is_meta", False) else int(value.ndim)
    except RuntimeError:  # of a nested tensor
        return -1


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    dict: "a mapping",
    Mapping: "a mapping",
    Callable: "a function",
    Iterable: "several of them",
}


def type_in_words(kind: Any) -> str:
    """What an error says must be given where a value of this type must.

    >>> type_in_words(int | None), type_in_words(tuple[float, ...]), type_in_words(list[str | int])
    ('a whole number or null', 'a list of numbers', 'a list of texts or whole numbers')
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(type_in_words, inner)))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (list, tuple, Sequence):
        several = get_args(inner[0]) if get_origin(inner[0]) in (Union, UnionType) else inner[:1]
        return f"a list of {' or '.join(type_in_words(each).removeprefix('a ') + 's' for each in several)}"
    if (origin or kind) in _WORDS:
        return _WORDS[origin or kind]
    if kind.__name__ == "Opened":
        return "what fpa.open_model returns"
    name = "torch.nn.Module" if kind.__name__ == "Module" else kind.__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def shown(value: Any) -> str:
    """What an error says of a value: the kind and shape of an array, the beginning of anything else."""
    try:
        if _is_array(value):
            return f"{type(value).__name__} {value.dtype} {list(value.shape)}"
        return " ".join(repr(value).split())[:80]
    except Exception:  # of objects that cannot even be shown
        return type(value).__name__


def as_json(value: Any) -> Any:
    """A value as JSON; what is neither plain data nor an array or a dataclass counts by its name.

    An object with a method `described` describes itself. The code of functions is no part of it: see
    `fpa.identity`.

    >>> as_json({"sides": (1, 2.0), "where": as_json})
    {'sides': [1, 2.0], 'where': 'fpa.values:as_json'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(part) for part in value]
    if hasattr(value, "described") and not isinstance(value, type):
        return value.described()
    if _is_array(value) and (hasattr(value, "detach") or hasattr(value, "tobytes")):
        return _array_as_json(value)
    if isinstance(value, partial):
        arguments = [*value.args, *([value.keywords] if value.keywords else [])]
        return {"name": name_of(value), "arguments": as_json(arguments)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": name_of(type(value)), **fields_as_json(value)}
    return name_of(value)


def _array_as_json(value: Any) -> Any:
    """An array or a tensor by a hash: it may be large. A single number is a number like any other."""
    kind = ""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().contiguous()
        try:
            value = tensor.numpy()
        except TypeError:  # NumPy has no bfloat16, which float32 holds without loss
            value = tensor.float().numpy()
            kind = str(tensor.dtype)
    if value.ndim == 0 and value.dtype.kind in "biuf":
        return as_json(value.item())
    digest = hashlib.sha256(f"{kind or value.dtype} {value.shape}".encode() + value.tobytes())
    return {"sha256": digest.hexdigest()[:16]}


def fields_as_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that count when it is compared, each `as_json`."""
    return {entry.name: as_json(getattr(value, entry.name)) for entry in fields(value) if entry.compare}


def shape_or_type(value: Any) -> str:
    """What an error says of a value: the shape of a tensor, the type of anything else."""
    plain = hasattr(value, "detach") and not value.is_nested
    return str(list(value.shape)) if plain else type(value).__name__


def is_fpas(value: Any) -> bool:
    """Whether a class, a function or the class of an object comes with fpa.

    >>> is_fpas(is_fpas), is_fpas(partial(print))
    (True, False)
    """
    return name_of(value).partition(":")[0].partition(".")[0] == "fpa"


def name_of(value: Any) -> str:
    """Where a class, a function or the class of an object is to be found: `module:name`."""
    if isinstance(value, partial):
        return name_of(value.func)
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}:{owner.__qualname__}"


def check_plain(what: str, tensor: "Tensor") -> "Tensor":
    """The tensor, if it holds real numbers one by one; those that PyTorch stores otherwise are refused."""
    kinds = {"on the meta device": tensor.is_meta, "nested": tensor.is_nested, "complex": tensor.is_complex()}
    kinds["sparse"] = not tensor.is_nested and str(tensor.layout) != "torch.strided"
    kinds["quantised"] = tensor.is_quantized
    kinds[str(tensor.dtype)] = tensor.is_floating_point() and tensor.dtype.itemsize < 2  # it cannot be added
    if odd := [kind for kind, true in kinds.items() if true]:
        raise InputError(f"{what} must be a plain tensor of real numbers, got one that is {odd[0]}")
    return tensor
