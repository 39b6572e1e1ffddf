"""How two recipes differ."""

from typing import Any

NO_MATTER = (
    "data.root", "data.workers", "training.compile", "training.test_every", "training.checkpoint_seconds",
)  # fmt: skip
"""Recipe fields that do not change a result."""


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """One line a field that differs between two recipes; fields that change no result are passed over.

    >>> differences({"a": {"b": 1}}, {"a": {"b": 2}})
    ['a.b: 2 -> 1']
    """
    return [f"{path}: {other} -> {mine}" for path, (mine, other) in differing(ours, theirs).items()]


def differing(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """By the path of a field that differs: ours and theirs; fields that change no result are passed over.

    >>> differing({"a": {"b": 1}}, {"a": {"b": 2}})
    {'a.b': (1, 2)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for key in ours | theirs:
        mine = ours.get(key)
        other = theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            found |= differing(mine, other, f"{prefix}{key}.")
        elif mine != other and f"{prefix}{key}" not in NO_MATTER:
            found[f"{prefix}{key}"] = (mine, other)
    return found
