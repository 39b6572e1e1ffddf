"""The one way from above to `show`, for objects that print, plot and report themselves.

`show` is imported inside these functions only, so that whatever computes loads without it; no other module
above `show` imports it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fpa.notes import Note

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from fpa.auditing.verdict import Audit
    from fpa.engine.estimate import Estimate
    from fpa.evaluation.result import Result
    from fpa.show.audits import Row
    from fpa.statistics.contradictions import Pair, Reliability


def clause(note: Note) -> str:
    """A note in words, to stand in a warning or an error."""
    from fpa.show import words

    return words.clause(note)


def sentences(notes: Iterable[Note], names: Mapping[str, str], *, at_shell: bool = False) -> list[str]:
    """Notes as sentences, for Python or for a shell; `names` are those of estimators that people see."""
    from fpa.show import words

    return words.sentences(notes, words.Reader(names, at_shell))


def result_text(result: "Result") -> str:
    """A result as it prints."""
    from fpa.progress import as_text
    from fpa.show.tables import terminal

    return as_text(terminal(result.results))


def result_html(result: "Result") -> str:
    """A result in a notebook."""
    from fpa.show.tables import notebook

    return notebook(result)


def result_table(result: "Result") -> "pd.DataFrame":
    """A row for each estimator of a result."""
    from fpa.show.tables import results_table

    return results_table(result.results)


def result_figure(result: "Result", signed: bool | None) -> "Figure":
    """The mean curves of a result."""
    from fpa.show.figures import perturbation_curves

    return perturbation_curves(result.results, signed)


def result_page(result: "Result", path: str | Path, command: str | None) -> Path:
    """Write the report of a result."""
    from fpa.show.report import write_report

    return write_report(result.results, path, command)


def estimate_text(estimate: "Estimate") -> str:
    """What work takes, as it prints."""
    from fpa.show.estimates import estimate_text

    return estimate_text(estimate)


def pair_text(pair: "Pair") -> str:
    """Which estimator of a pair MIF prefers, and which LIF does."""
    from fpa.show.agreement import pair_text

    return pair_text(pair)


def reliability_text(found: "Reliability") -> str:
    """How often MIF and LIF contradict each other, by kind of pair."""
    from fpa.show.agreement import reliability_text

    return reliability_text(found)


def audit_headline(audit: "Audit") -> str:
    """The verdict of an audit in a sentence."""
    from fpa.show.words.verdicts import headline

    return headline(audit.verdict)


def audit_sentences(audit: "Audit", notes: Iterable[Note]) -> tuple[str, ...]:
    """Notes of an audit as sentences."""
    from fpa.show import audits

    return tuple(sentences(notes, audits.estimator_names(audit), at_shell=bool(audit.repeat)))


def audit_rivals(audit: "Audit") -> list[str]:
    """Which explanations beat model-free maps and their own twins, in sentences."""
    from fpa.show import audits

    return audits.rivals_beaten(audit)


def audit_rows(audit: "Audit") -> "list[Row]":
    """The evidence of an audit as lines of a table."""
    from fpa.show import audits

    return list(audits.rows(audit))


def audit_parts(audit: "Audit") -> "Iterable[RenderableType]":
    """An audit as rich prints it."""
    from fpa.show import audits

    return audits.terminal(audit)


def audit_html(audit: "Audit") -> str:
    """An audit in a notebook."""
    from fpa.show.report.audit_page import audit_fragment

    return audit_fragment(audit)


def audit_page(audit: "Audit", path: str | Path) -> Path:
    """Write the page of an audit."""
    from fpa.show.report.audit_page import write_audit

    return write_audit(audit, path)
