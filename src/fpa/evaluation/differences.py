"""How two plans differ, for people."""

from collections.abc import Mapping
from typing import Any

from fpa.errors import shortened


def plan_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The fields in which two plans differ, old -> new, in one line: a change of several estimators once.

    >>> raw = [{"raw": {"name": "ig", "steps": steps}} for steps in (5, 7)]
    >>> plan_differences({"estimators": {"ig_sum": raw[0], "x": raw[0]}}, {"estimators": {"ig_sum": raw[1]}})
    'steps of ig_sum: 5 -> 7; estimators: without x'
    """
    changes: dict[str, list[str]] = {}

    def short(value: Any) -> str:
        if isinstance(value, list) and len(value) > 4:
            return f"{len(value)} values"
        return "none" if value is None else shortened(str(value), 40)

    def compare(old: Any, new: Any, *path: str) -> None:
        if isinstance(old, dict) and isinstance(new, dict):
            for key in old | new:
                compare(old.get(key), new.get(key), *path, key)
        elif old != new and path[0] in ("estimators", "scores") and len(path) == 2:
            changes.setdefault(f"{path[0]}: {'with' if old is None else 'without'} {{}}", []).append(path[1])
        elif old != new:
            several, inner = path[0] == "estimators", path[2:] if path[0] == "estimators" else path
            what = ".".join(inner).removeprefix("raw.") + (" of {}" if several else "")
            change = f"{what}: {short(old)} -> {short(new)}"
            changes.setdefault(change, []).append(path[1] if several else "")

    compare(stored, now)
    lines = []
    for change, names in changes.items():
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(change.replace("{}", some, 1))
    return shortened("; ".join(lines))
