"""Other people's code by its name: `module:name`."""

import importlib
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

from fpa.errors import InputError, first_line


def load_object(spec: str, kind: str) -> Any:
    """What `module:name` stands for; the module is looked for in the current folder too.

    `kind` says what the object is for, in the error for a name that is not of this form.

    >>> load_object("math:pi", "score")
    3.141592653589793
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise InputError(f"a {kind} of your own must be named module:name, got {spec!r}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # whatever the user's own code raises
        places = "from the current folder or the environment"
        raise InputError(f"the {kind} {spec} cannot be imported {places}: {first_line(error)}") from error
    finally:
        sys.path.remove(here)


def call_object(spec: str, kind: str, *arguments: Any) -> Any:
    """What the function `module:name` returns for these arguments; what it raises becomes an InputError.

    >>> call_object("math:floor", "score", 2.5)
    2
    """
    function = load_object(spec, kind)
    if not callable(function):
        raise InputError(f"{spec} must be a function that returns a {kind}, not a {type(function).__name__}")
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{spec} failed with {reason} (--debug shows where)") from error
