"""JSON and arrays as fpa stores them: guarded by a checksum, damage named with its file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpa.errors import DamagedError, InputError, first_line
from fpa.files.atomic import replacing, write_text
from fpa.files.checksums import values_checksum
from fpa.files.foreign import refuse_bomb

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHECKSUM = "checksum"
"""The field of a JSON file that guards the others."""


def write_json(path: Path, values: Mapping[str, Any], *, keep_first: bool = False) -> Path:
    """Write a mapping with its checksum, in one piece; its path again. With `keep_first` one there stays."""
    guarded = {**values, CHECKSUM: values_checksum(values)}
    return write_text(path, json.dumps(guarded, indent=2) + "\n", keep_first=keep_first)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file written by fpa, or an error that names it; where it carries a checksum, that is checked."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no mapping")
        if CHECKSUM not in values and _ends_with_a_checksum(values):
            raise ValueError(f"its last entry is a checksum, but is not called {CHECKSUM}")
        if values.pop(CHECKSUM, None) not in (None, values_checksum(values)):
            raise ValueError("its content does not match its checksum")
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError({path: first_line(error)}) from error
    return values


def _ends_with_a_checksum(values: Mapping[str, Any]) -> bool:
    """Whether the checksum, which is always written last, is there by another name.

    Files of the first versions carry none and are read as they are: damage to its name must not make a
    guarded file one of those.
    """
    name, value = next(reversed(list(values.items())), ("", None))
    return name != "model" and isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None


def write_arrays(path: Path, arrays: Mapping[str, "NDArray[Any]"]) -> None:
    """Write arrays to one .npz file, whole or not at all."""
    import numpy as np

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_arrays(path: Path) -> dict[str, "NDArray[Any]"]:
    """The arrays of a .npz file; nothing in it can execute code."""
    import numpy as np

    try:
        refuse_bomb(path)
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except InputError:
        raise
    except Exception as error:  # damaged archives raise exceptions of many types
        raise InputError(f"{path} cannot be read as arrays, it is damaged or missing: {error}") from error
