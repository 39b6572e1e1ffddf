"""The one exception type that means: the input was wrong, here is what to change."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, and what would be accepted.

    The command line shows the message alone and exits with code 2.
    """


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
