"""An audit in a terminal, and the lines of its evidence, which its page has too."""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from fpa.auditing.rule import (
    LEAST_CHANGE,
    MASKED,
    Criterion,
    Evidence,
    criteria,
    judge,
    most_opposite,
    stops,
)
from fpa.auditing.verdict import Audit
from fpa.errors import in_percent, percent, printable
from fpa.notes import Kind
from fpa.show import answers, protocols, rivals, words
from fpa.show.names import estimator_name
from fpa.show.words.reader import output_name, short_output_name
from fpa.statistics import Estimate

_COLOURS = {"reliable": "green", "unreliable": "red", "cannot tell": "yellow"}
_STATES = {"good": "green", "bad": "red", "unclear": "yellow"}
_ON_PAGE_ONLY = (Kind.CONSISTENT, Kind.CONTRADICTIONS, Kind.TIES)
"""Lists of pairs: a terminal has no room for them."""


class Row(NamedTuple):
    """A line of the evidence, in words."""

    group: str
    what: str
    value: str
    interval: str
    limit: str = ""
    state: str = ""
    """What it means: good, bad, unclear; for supporting evidence its own word."""


def estimator_names(audit: Audit) -> dict[str, str]:
    """The estimators of an audit as people see them."""
    return {key: estimator_name(key, label=label) for key, label in audit.labels.items()}


def rivals_beaten(audit: Audit) -> list[str]:
    """Which explanations beat model-free maps and their own twins, in sentences."""
    return rivals.sentences(audit.beats, audit.model_free, estimator_names(audit))


def terminal(audit: Audit) -> Iterator[RenderableType]:
    """An audit in a terminal of 80 columns, with rich."""
    names = estimator_names(audit)
    yield Text(audit.headline, style=f"bold {_COLOURS[audit.verdict]}")
    if best := answers.of_audit(audit):
        yield Text(printable(best), style="bold")
    reasons = [note for note in audit.reasons if note.kind not in _ON_PAGE_ONLY]
    for sentence in words.sentences(reasons, words.Reader(names)):
        yield Padding.indent(Text(sentence), 2)
    if lines := list(rows(audit)):
        yield Text()
        yield _table(lines, names, audit.evidence.used)
    yield from _by_protocol(audit)
    beaten = rivals.outcomes(audit.beats, audit.model_free, names)  # the page says how it was tested
    yield Text("\n" + "\n".join(beaten))
    yield Text()
    yield Text("What to do", style="bold")
    for sentence in audit.advice:
        yield Padding.indent(Text(sentence), 2)
    if audit.command:
        yield Padding.indent(Text(audit.command, style="bold"), 4)


def _by_protocol(audit: Audit) -> Iterator[RenderableType]:
    """What the rule would say by every protocol, and which contradicts itself least."""
    lines = list(protocols.rows(audit))
    if not lines:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("the same maps by")
    for title in ("opposite order", "verdict", "kept", "ranking", "passes"):
        right = title not in ("verdict", "ranking")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for row in lines:
        cells = [
            Text(f"{row.name}, judged" if row.judged else row.name),
            Text(row.opposite),
            Text(row.verdict, style=_COLOURS[row.verdict]),
            Text(row.kept),
            Text(row.ranking),
            Text(row.cost),
        ]
        table.add_row(*cells)
    yield Text()
    yield table
    yield from map(Text, protocols.consistent(audit))


def _table(lines: list[Row], names: dict[str, str], used: int) -> Table:
    """The lines of the evidence, by group."""
    table = Table(
        f"evidence, {used:,} images",
        Column("found", justify="right", no_wrap=True),
        Column("95 % interval", justify="right", no_wrap=True),
        Column("limit", no_wrap=True),
        "",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for group, of_group in groupby(lines, lambda row: row.group):
        table.add_row(Text(group, style="italic"))
        for row in of_group:
            state = Text(row.state, style=_STATES.get(row.state, ""))
            what = names.get(row.what, row.what)
            table.add_row(Text(f"  {what}"), row.value, row.interval, row.limit, state)
    return table


def rows(audit: Audit) -> Iterator[Row]:
    """The lines of the evidence; none where too few images could be used."""
    evidence = audit.evidence
    if not criteria(evidence):
        return
    yield from _judged(f"The rule: {output_name(evidence.output)}", evidence)
    yield from _beside(evidence)
    yield Row("MIF against LIF", "surely in opposite order", f"{evidence.contradictions}", "")
    if evidence.correlation is not None:
        yield Row("MIF against LIF", "rank correlation, all", *_correlation(evidence.correlation))
    yield from _random_masking(evidence)
    for name, rise in evidence.rise.items():
        word = "unclear"
        if rise.low > 0:
            word = "rises"
        elif rise.high < 0:
            word = "falls"
        yield Row(f"LIF over the first {MASKED[0]} %", name, *_shares(rise, "+"), state=word)


def _judged(group: str, evidence: Evidence) -> Iterator[Row]:
    """What the rule looks at."""
    judged = criteria(evidence)
    opposite = judged["opposite"]
    value, low, high = opposite.estimate
    few = any(note.kind is Kind.TOO_FEW_ESTIMATORS for note in stops(evidence))
    yield Row(
        group,
        "pairs in opposite order",
        f"{value:.0f} of {evidence.pairs}",
        f"{low:.0f} to {high:.0f}",
        limit="too few" if few else f"at most {most_opposite(evidence.pairs)}",
        state="unclear" if few else opposite.state,
    )
    kept = judged["kept"]
    yield Row(
        group,
        f"{short_output_name(evidence.output)} kept, {MASKED[0]} % masked",
        *_shares(kept.estimate),
        limit=f"over {percent(kept.limit)}",
        state=kept.state,
    )
    if evidence.change is not None:
        taken = Criterion(evidence.change, LEAST_CHANGE, "above")
        yield Row(
            group,
            "taken by masking all",
            *_shares(evidence.change),
            limit=f"over {percent(taken.limit)}",
            state=taken.state,
        )


def _beside(evidence: Evidence) -> Iterator[Row]:
    """The same of the output that stands beside the one judged."""
    other = evidence.raw
    if other is None:
        return
    group = f"Beside it: {output_name(other.output)}"
    if criteria(other):
        yield from _judged(group, other)
        yield Row(group, "its verdict", judge(other)[0], "")
    yield Row(group, "offset of the head", percent(evidence.offset), "")


def _random_masking(evidence: Evidence) -> Iterator[Row]:
    """What random masking leaves of the output and of the accuracy."""
    kept = f"{short_output_name(evidence.output)} kept"
    shares = {f"{kept}, {share} % masked": evidence.kept[share] for share in MASKED[1:]}
    right = "same class" if evidence.accuracy is None else "accuracy"
    shares |= {f"{right}, {share} % masked": found for share, found in evidence.right.items()}
    for name, found in shares.items():
        yield Row("Random masking", name, *_shares(found))


def _correlation(estimate: Estimate) -> tuple[str, str]:
    """The value and the interval, which it does not have among ties."""
    known = math.isfinite(estimate.low)
    return f"{estimate.value:.2f}", f"{estimate.low:.2f} to {estimate.high:.2f}" if known else "–"


def _shares(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    """The value and the interval, which too few images do not have."""
    if math.isnan(estimate.low):
        return percent(estimate.value, sign), "–"
    low, high = map(in_percent, estimate[1:])
    return percent(estimate.value, sign), f"{low:{sign}.1f} to {high:{sign}.1f} %"
