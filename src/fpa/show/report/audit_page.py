"""The page of an audit: verdict, evidence and three figures in one HTML file that loads nothing."""

from itertools import groupby
from pathlib import Path
from typing import Any

from fpa.auditing import rule
from fpa.auditing.verdict import Audit
from fpa.errors import printable
from fpa.show.names import estimator_name
from fpa.show.rendering import rendered, write_page

_MARKS = ("circle", "square", "diamond", "triangle")
_WIDTH = 14
"""Characters that a figure has room for beside its lines."""
_COLOURS = ("c2", "c1", "c3", "c4", "c5", "c6")


def write_audit(audit: Audit, path: str | Path) -> Path:
    """Write the page of an audit to `path`, in one piece; the same audit gives the same bytes."""
    from matplotlib.ticker import MaxNLocator

    names = audit.reliability.by_area if audit.reliability else []
    ends = [end for areas in audit.areas.values() for name in names for end in areas[name][1:]]
    low, high = min([0.0, *ends]), max([1.0, *ends])
    ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    looks = [(_COLOURS[place % 6], _MARKS[place % 4]) for place in range(len(audit.maskings))]
    scale = {"low": low, "high": high, "ticks": [tick for tick in ticks if low <= tick <= high]}
    return write_page(path, "audit.html.jinja", rule=rule, looks=looks, scale=scale, **_shared(audit))


def audit_fragment(audit: Audit) -> str:
    """The verdict with its evidence as HTML for a notebook, in the notebook's own style."""
    return rendered("audit-notebook.html.jinja", **_shared(audit))


def _shared(audit: Audit) -> dict[str, Any]:
    """The audit, its evidence by group, and its estimators as the table shows them and, in lines, figures."""
    from markupsafe import Markup

    names = {key: Markup(estimator_name(key, "html", label=audit.labels.get(key))) for key in audit.signed}
    short = {key: _lines(key, audit.labels.get(key)) for key in audit.signed}
    groups = {title: list(rows) for title, rows in groupby(audit.rows, lambda row: row.group)}
    return {"audit": audit, "groups": groups, "names": names, "short": short}


def _lines(key: str, label: dict[str, Any] | None) -> list[Any]:
    """The name of an estimator for a figure, a long one on two lines and then cut."""
    from markupsafe import Markup, escape

    parts = dict(label or {"name": key})
    name = printable(str(parts["name"]))
    cut = 0 if len(name) <= _WIDTH else name.rfind(" ", 0, _WIDTH) + 1 or _WIDTH
    parts["name"] = name[cut:]
    last = Markup(estimator_name(key, "html", label=parts, most=_WIDTH))
    return [escape(name[:cut].rstrip()), last] if cut else [last]
