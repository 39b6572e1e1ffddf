"""How two recipes differ."""

from typing import Any

from fpa.given import identity_differences

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


STARTED_FROM = "started_from"
"""The entry of a description that is the fingerprint of the weights that a training starts from."""


def as_in_recipe(description: dict[str, Any]) -> dict[str, Any]:
    """What a recipe alone says of a training: without the user's code and what a file holds."""
    return {key: value for key, value in description.items() if key not in ("code", STARTED_FROM)}


def training_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """As `differences`, of two descriptions of trainings, with those of the user's own code in words.

    >>> theirs = {"epochs": 1, "code": {"masking": {"name": "mine:Grey", "code": "1f"}}}
    >>> training_differences(theirs | {"code": {"masking": {"name": "mine:Grey", "code": "2e"}}}, theirs)
    ['the code of the masking has changed']
    """
    lines = differences(as_in_recipe(ours), as_in_recipe(theirs))
    if not lines and ours.get(STARTED_FROM) != theirs.get(STARTED_FROM):
        lines.append(f"{ours.get('weights')} holds other weights than it did")
    now = ours.get("code", {}).get("masking")
    before = theirs.get("code", {}).get("masking")
    if now is not None and before is not None:
        code = [line.replace("{}", "the masking", 1) for line in identity_differences(before, now)]
        return lines + code
    # Another masking is told by its name; one whose code is missing was trained by an earlier version.
    if now != before and not lines:
        lines.append("the code of the masking was not stored with it")
    return lines
