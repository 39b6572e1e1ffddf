"""How two plans differ, for people."""

from collections.abc import Mapping
from typing import Any

from fpa.errors import shortened
from fpa.given import identity_differences, short_value

_SINGLE = {"masking": "the masking", "model": "the model", "judge": "the judge"}
"""How code is called that a plan has once."""

_BY_NAME = ("estimators", "scores")
"""Parts of a plan that hold several things, each by its name."""


def plan_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The fields in which two plans differ, old -> new, in one line: a change of several estimators once.

    >>> raw = [{"raw": {"name": "ig", "steps": steps}} for steps in (5, 7)]
    >>> plan_differences({"estimators": {"ig_sum": raw[0], "x": raw[0]}}, {"estimators": {"ig_sum": raw[1]}})
    'steps of ig_sum: 5 -> 7; estimators: without x'
    """
    changes: dict[str, list[str]] = {}
    old, new = ({key: each for key, each in plan.items() if key != "code"} for plan in (stored, now))
    _collect(old, new, (), changes)
    lines = []
    for change, names in (changes | _code_differences(stored, now)).items():
        some = ", ".join(names[:3])
        if len(names) > 3:
            some += f" and {len(names) - 3} more"
        lines.append(change.replace("{}", some, 1))
    return shortened("; ".join(lines))


def _collect(old: Any, new: Any, path: tuple[str, ...], changes: dict[str, list[str]]) -> None:
    """Add what differs below a place in both plans: by the change, with {} for names, whose it is."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            _collect(old.get(key), new.get(key), (*path, key), changes)
    elif old != new and path[0] in _BY_NAME and len(path) == 2:
        part, name = path
        changes.setdefault(f"{part}: {'with' if old is None else 'without'} {{}}", []).append(name)
    elif old != new and path[0] == "estimators":
        setting = ".".join(path[2:]).removeprefix("raw.")
        changes.setdefault(f"{setting} of {{}}: {short_value(old)} -> {short_value(new)}", []).append(path[1])
    elif old != new:
        changes.setdefault(f"{'.'.join(path)}: {short_value(old)} -> {short_value(new)}", []).append("")


def _code_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """What has become of the user's own code, each change with the names of those it is a change of."""
    changes: dict[str, list[str]] = {}
    before = stored.get("code", {})
    after = now.get("code", {})
    for kind in before | after:
        old = before.get(kind, {})
        new = after.get(kind, {})
        for name in old | new:
            single = kind in ("masking", "networks")
            if name in old and name in new:
                found = identity_differences(old[name], new[name])
            elif single or name in stored.get(kind, {}):
                found = [f"the code of {{}} {'is another' if name in old else 'was not stored with it'}"]
            else:  # it was not there at all, as other differences say
                found = []
            for change in found:
                changes.setdefault(change, []).append(_SINGLE[name] if single else name)
    return {change: [_together(names)] for change, names in changes.items()}


def _together(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
