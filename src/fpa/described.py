"""Values as JSON: equal where the values are, different where they differ, as far as that can be seen."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any


def described(value: Any) -> Any:
    """A value as JSON; what is neither plain data nor an array or a dataclass counts by its name.

    An object with a method `described` describes itself.

    >>> described({"sides": (1, 2.0), "where": described})
    {'sides': [1, 2.0], 'where': 'fpa.described:described'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [described(part) for part in value]
    if hasattr(value, "described") and not isinstance(value, type):
        return value.described()
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous().numpy()
    if hasattr(value, "tobytes"):
        digest = hashlib.sha256(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        return {"sha256": digest.hexdigest()[:16]}
    if isinstance(value, partial):
        arguments = [*value.args, *([value.keywords] if value.keywords else [])]
        return {"name": name_of(value), "arguments": described(arguments)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": name_of(type(value)), **described_fields(value)}
    return name_of(value)


def described_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that count when it is compared, each `described`."""
    return {entry.name: described(getattr(value, entry.name)) for entry in fields(value) if entry.compare}


def shape_or_type(value: Any) -> str:
    """What an error says of a value: the shape of a tensor, the type of anything else."""
    plain = hasattr(value, "detach") and not value.is_nested
    return str(list(value.shape)) if plain else type(value).__name__


def name_of(value: Any) -> str:
    """Where a class, a function or the class of an object is to be found: `module:name`."""
    if isinstance(value, partial):
        return name_of(value.func)
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}:{owner.__qualname__}"
