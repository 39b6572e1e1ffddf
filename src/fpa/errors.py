"""The one exception type that means: the input was wrong, here is what to change."""

import difflib
import math
import re
import sys
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

LONGEST = 2000
"""Characters of a message."""

LARGEST_SIDE = 4096
"""Of an image, in pixels: larger ones fill the memory."""

MOST_SAMPLES = 10_000
"""Draws an image that a score makes: they are held together."""

MOST_WORKERS = 1024
"""Processes that read image files."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, and what would be accepted.

    The command line shows the message alone and exits with code 2. A message that repeats something very
    long is shortened.
    """

    def __str__(self) -> str:
        # What is repeated, a tensor or the error of a library, may have lines of its own.
        return shortened(re.sub(r"\s*\n\s*", " ", super().__str__()), LONGEST)


class TooFewImagesError(InputError):
    """More images were asked for than there are."""


class StoppedElsewhereError(InputError):
    """Another process of the job has found what is wrong, and says it."""


class Misplaced(str):
    """Why a file that is whole does not belong where it is: it may be all that is left of another result."""

    __slots__ = ()


class DamagedError(InputError):
    """Files that fpa wrote and cannot read back, or that are of something else, each with the reason.

    >>> print(DamagedError({Path("a.npz"): "it is empty"}))
    a.npz is damaged (it is empty): remove it (fpa run --repair does, in a study) and run again to recreate it
    """

    def __init__(self, reasons: Mapping[Path, object]) -> None:
        self.reasons = dict(reasons)
        misplaced = {path: why for path, why in reasons.items() if isinstance(why, Misplaced)}
        damaged = {path: why for path, why in reasons.items() if path not in misplaced}
        parts = []
        if damaged:
            it = "it" if len(damaged) == 1 else "them"
            remedy = f"remove {it} (fpa run --repair does, in a study) and run again to recreate {it}"
            parts.append(f"{_listed(damaged, 'is damaged')}: {remedy}")
        if misplaced:
            it = "it" if len(misplaced) == 1 else "them"
            # Two runs may have written here: what is removed may be all that is left of the other one.
            remedy = f"move {it} away, or use another folder (fpa run --repair removes {it})"
            parts.append(f"{_listed(misplaced, 'does not belong here')}: {remedy}")
        super().__init__("; ".join(parts))


def _listed(reasons: Mapping[Path, object], what: str) -> str:
    return "; ".join(f"{path} {what} ({reason})" for path, reason in reasons.items())


_INSIDE = ("fpa", "torch", "torchvision")
"""Packages whose lines a warning does not point at."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line of the user's own code that led to it."""
    # A fixed stack level would point into this package, which is called in many ways.
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("recipe", "cifar", ["shapes", "cifar10"]))
    unknown recipe 'cifar': did you mean 'cifar10'? (known: cifar10, shapes)
    """
    known = sorted(known)
    name = shortened(str(name))
    # Lower than difflib's own 0.6: in short names a slip of the finger changes much.
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    if not near or len(known) <= 16:
        hint += f" (known: {', '.join(known[:16])}{', ...' if len(known) > 16 else ''})"
    return InputError(f"unknown {kind} {name!r}{hint}")


def one_of(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that does not exist."""
    if name not in known:
        raise unknown(kind, name, known)


def at_least(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Refuse a setting that is smaller, or larger, than it may be; None is one that was not made.

    What becomes memory, or processes, has a largest value: a recipe may come from somebody else.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InputError(f"{name} must be a number of at least {least}, got {value!r:.80}")
    # Python shows no whole number of more than 4,300 digits.
    if value is not None and 2**63 <= abs(value) < math.inf:
        raise InputError(f"{name} must be at least {least}, and less than 2**63")
    if value is not None and not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value}")
    if value is not None and value > most:
        raise InputError(f"{name} must be at most {most:,}, got {value}")


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


def counted(count: int, what: str = "image") -> str:
    """A number of things.

    >>> counted(1), counted(2000)
    ('1 image', '2,000 images')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def percent(share: float | None, sign: str = "") -> str:
    """A share, an accuracy, in front of people: one digit after the point, no minus sign before a zero.

    >>> percent(0.934), percent(-0.0001), percent(0.051, "+"), percent(None)
    ('93.4 %', '0.0 %', '+5.1 %', 'unknown')
    """
    return "unknown" if share is None else f"{in_percent(share):{sign}.1f} %"


def in_percent(share: float) -> float:
    """A share in percent, with the one digit after the point that people see; no negative zero."""
    return round(100 * share, 1) + 0.0


def printable(text: str) -> str:
    r"""A name from somebody's file without characters that a terminal or an editor would obey.

    >>> printable("red\x1b[31m\n")
    'red\\x1b[31m '
    """
    spaced = (" " if each in "\n\t" else each for each in text)
    return "".join(repr(each)[1:-1] if unicodedata.category(each) in _OBEYED else each for each in spaced)


def without_controls(text: str) -> str:
    r"""A page without characters that a terminal or an editor would obey, but for line ends and tabs.

    >>> without_controls("red\x1b[31m\n")
    'red\\x1b[31m\n'
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0001-\U000e007f]"
)
"""The same characters as those of `_OBEYED` that can do harm, as a pattern: pages are long."""

_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that control something: escape bytes, changes of direction, halves of others."""


def first_line(error: BaseException) -> str:
    r"""The first line of an exception's message, or its type where it has none.

    >>> first_line(ValueError("no such layer\nmore")), first_line(KeyError())
    ('no such layer', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
