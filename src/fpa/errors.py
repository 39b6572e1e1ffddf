"""The one exception type that means: the input was wrong, here is what to change."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, and what would be accepted.

    The command line shows the message alone and exits with code 2.
    """


class DamagedError(InputError):
    """Files that fpa wrote and cannot read back, each with the reason.

    >>> print(DamagedError({Path("a.npz"): "it is empty"}))
    a.npz is damaged (it is empty): remove it (in a study fpa run --repair does) and run again to make it anew
    """

    def __init__(self, reasons: Mapping[Path, object]) -> None:
        self.reasons = dict(reasons)
        said = "; ".join(f"{path} is damaged ({reason})" for path, reason in reasons.items())
        it = "it" if len(reasons) == 1 else "them"
        super().__init__(
            f"{said}: remove {it} (in a study fpa run --repair does) and run again to make {it} anew"
        )


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("recipe", "cifar", ["shapes", "cifar10"]))
    unknown recipe 'cifar': did you mean 'cifar10'? (known: cifar10, shapes)
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    if near and len(known) > 16:
        return InputError(f"unknown {kind} {name!r}{hint}")
    more = ", ..." if len(known) > 16 else ""
    return InputError(f"unknown {kind} {name!r}{hint} (known: {', '.join(known[:16])}{more})")
