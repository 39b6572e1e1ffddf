"""The page of an audit: verdict, evidence and three figures in one HTML file that loads nothing."""

from itertools import groupby
from pathlib import Path
from typing import Any

from fpa.auditing import rule
from fpa.auditing.verdict import Audit
from fpa.show.names import estimator_name
from fpa.show.rendering import rendered, write_page

_MARKS = ("circle", "square", "diamond", "triangle")
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
    """The audit, its evidence by group, and its estimators as the table shows them and, cut, the figures."""
    from markupsafe import Markup

    labels = audit.labels
    names, short = (
        {key: Markup(estimator_name(key, "html", label=labels.get(key), most=most)) for key in audit.signed}
        for most in (None, 14)
    )
    groups = {title: list(rows) for title, rows in groupby(audit.rows, lambda row: row.group)}
    return {"audit": audit, "groups": groups, "names": names, "short": short}
