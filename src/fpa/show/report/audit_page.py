"""The page of an audit: verdict, evidence and three figures in one HTML file that loads nothing."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from fpa.auditing import rule
from fpa.auditing.verdict import Audit
from fpa.show import answers, protocols
from fpa.show.audits import Row, rows
from fpa.show.names import estimator_name
from fpa.show.rendering import rendered, write_page
from fpa.show.words.reader import as_sentence
from fpa.show.words.verdicts import MEANINGS

if TYPE_CHECKING:
    from markupsafe import Markup

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
    page = rendered(
        "audit.html.jinja",
        audit=audit,
        best=answers.of_audit(audit),
        rule=rule,
        meaning=as_sentence(MEANINGS[audit.verdict]),
        figures=figures,
        groups=_groups(audit),
        names=_names(audit),
        protocols=list(protocols.rows(audit)),
        consistent=protocols.consistent(audit),
    )
    return write_page(path, page)


def audit_fragment(audit: Audit) -> str:
    """The verdict with its evidence as HTML for a notebook, in the notebook's own style."""
    return rendered(
        "audit-notebook.html.jinja",
        audit=audit,
        best=answers.of_audit(audit),
        groups=_groups(audit),
        names=_names(audit),
        protocols=list(protocols.rows(audit)),
        consistent=protocols.consistent(audit),
    )


def _groups(audit: Audit) -> dict[str, list[Row]]:
    """The lines of the evidence by their heading."""
    return {title: list(of_group) for title, of_group in groupby(rows(audit), lambda row: row.group)}


def _names(audit: Audit) -> "dict[str, Markup]":
    """The explanations as a table shows them."""
    from markupsafe import Markup

    return {key: Markup(estimator_name(key, "html", label=audit.labels.get(key))) for key in audit.signed}
