"""What a plan is given, checked before any work: outputs, precision, fractions, targets."""

import hashlib
from collections.abc import Sequence
from typing import get_args

from fpa.engine.arithmetic import Precision, PrecisionName
from fpa.engine.outputs import check_outputs
from fpa.errors import InputError, one_of
from fpa.evaluation.stored_plan import GIVEN

Targets = str | int | tuple[int, ...]
"""Which class of every image is explained."""


def checked_outputs(listed: list[str]) -> list[str]:
    """The outputs to follow, one or more, each once."""
    if not listed or len(set(listed)) < len(listed):
        raise InputError(f"outputs must be one or more different names, got {listed}")
    check_outputs(listed)
    return listed


def checked_precision(precision: str | Precision | None) -> Precision | None:
    """The arithmetic of a name; None leaves it to the device."""
    if not isinstance(precision, str):
        return precision
    one_of("precision", precision, ("auto", *get_args(PrecisionName)))
    return None if precision == "auto" else Precision(precision, precision)  # type: ignore[arg-type]


def check_scored(fractions: Sequence[float]) -> None:
    """Refuse fractions over which there is no area, or always the same."""
    if len(fractions) < 2 or fractions[0] != 0:
        raise InputError(f"fractions must be two or more and begin with 0, the whole image; got {fractions}")
    if not any(0 < fraction < 1 for fraction in fractions):
        same = "at 0 and 1 all maps are the same, and A is 0"
        raise InputError(f"fractions must have one between 0 and 1, since {same}; got {fractions}")


def checked_targets(targets: str | int | Sequence[int]) -> Targets:
    """The classes to explain: a word, a class by number or name, or one for every image."""
    if not isinstance(targets, str | int):
        numbers = tuple(int(each) for each in targets)
        if not numbers or min(numbers) < 0:
            raise InputError("targets must be the number of a class for every image, 0 or more each")
        return numbers
    word, _, rank = str(targets).partition(":")
    if str(targets) in ("predicted", "label", "best:1"):
        return "predicted" if rank else str(targets)
    if str(targets).isdecimal():
        return int(targets)
    if word == "best" and rank.isdecimal() and int(rank) > 1:
        return f"best:{int(rank)}"
    if isinstance(targets, int) or (word == "best" and rank):
        known = "predicted, label, a class, or best:2 for the second best of each image, and so on"
        raise InputError(f"targets must be {known}; got {targets!r}")
    return targets  # the name of a class, which the model must have


def stored_targets(targets: Targets) -> str | int:
    """The targets of a plan as they are stored: of one for each image a hash."""
    if isinstance(targets, tuple):
        return f"{GIVEN}{hashlib.sha256(repr(targets).encode()).hexdigest()[:16]}"
    return targets
