"""The page of an audit: verdict, evidence and three figures in one HTML file that loads nothing."""

from itertools import groupby
from pathlib import Path
from typing import Any

from fpa.auditing import rule
from fpa.auditing.verdict import Audit
from fpa.show.names import estimator_name
from fpa.show.rendering import rendered, write_page

_DESCRIBED = {
    "decay": "Logit and accuracy under random masking",
    "slopes": "The rank of every estimator by MIF and by LIF",
    "areas": "A of every estimator under every masking",
}
"""What a screen reader says of each figure."""


def write_audit(audit: Audit, path: str | Path) -> Path:
    """Write the page of an audit to `path`, in one piece; the same audit gives the same bytes."""
    from markupsafe import Markup

    from fpa.show.figures.audits import audit_figures
    from fpa.show.figures.style import inline_svg

    drawn = audit_figures(audit)
    figures = {name: Markup(inline_svg(figure, _DESCRIBED[name])) for name, figure in drawn.items()}
    return write_page(path, "audit.html.jinja", rule=rule, figures=figures, **_shared(audit))


def audit_fragment(audit: Audit) -> str:
    """The verdict with its evidence as HTML for a notebook, in the notebook's own style."""
    return rendered("audit-notebook.html.jinja", **_shared(audit))


def _shared(audit: Audit) -> dict[str, Any]:
    """The audit, its evidence by group, and its estimators as the table shows them."""
    from markupsafe import Markup

    names = {key: Markup(estimator_name(key, "html", label=audit.labels.get(key))) for key in audit.signed}
    groups = {title: list(rows) for title, rows in groupby(audit.rows, lambda row: row.group)}
    return {"audit": audit, "groups": groups, "names": names}
