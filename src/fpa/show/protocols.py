"""What further protocols say of the same maps: a small table for evaluations, and one for audits."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fpa.auditing.rule import MASKED
from fpa.errors import in_percent, percent
from fpa.evaluation.by_protocol import Opposite, consistency
from fpa.evaluation.recommended import recommendation
from fpa.evaluation.result import Result, Results
from fpa.show import summary, words
from fpa.show.cells import Cell, Column, Sheet
from fpa.show.words.protocols import in_opposite_order
from fpa.statistics import Estimate

if TYPE_CHECKING:
    from fpa.auditing.verdict import Audit

HEADING = "A by protocol (what is removed together, and how)"
COUNTED = "opposite pairs"
"""Signed-unsigned pairs in opposite order by MIF and LIF."""


def sheets(results: Results) -> list[Sheet]:
    """The table of one model: A of every estimator by every protocol; nothing where there is one protocol."""
    if not _has_protocols(results):
        return []
    tested = results.first.by_protocol
    ranked = set.union(*(set(each.fidelity) for each in list(tested.values())[1:]))
    columns = []
    for name, each in tested.items():
        areas = {key: fidelity for key, fidelity in each.fidelity.items() if key in ranked}
        cells = {
            key: Cell(*summary.with_interval(fidelity.area, fidelity.interval, digits=1))
            for key, fidelity in areas.items()
        }
        columns.append(Column(name, cells, {COUNTED: _opposite(each.opposite)}))
    return [Sheet(HEADING, columns)]


def sentences(results: Results) -> list[str]:
    """Which protocol contradicts itself least, in a sentence."""
    if not _has_protocols(results):
        return []
    own, *others = (each.opposite for each in results.first.by_protocol.values())
    return words.sentences(consistency(own, others))


def recommended(results: Results) -> list[str]:
    """Which protocol errs least where the truth is known, for an evaluation by another one."""
    if len(results.models) > 1:  # a study compares trainings by the protocol of its recipe
        return []
    description = results.first.description
    reader = words.Reader(at_shell=description.subject.command is not None)
    return words.sentences(recommendation(description), reader)


def _has_protocols(results: Results) -> bool:
    return len(results.models) == 1 and len(results.first.by_protocol) > 1


def columns(model: Result, estimator: str) -> dict[str, Any]:
    """What table.csv has of an estimator by further protocols."""
    found: dict[str, Any] = {}
    for name, each in list(model.by_protocol.items())[1:]:
        fidelity = each.fidelity.get(estimator)
        counts = each.reliability.counts("signed-unsigned")
        found[f"area_by_{name}"] = None if fidelity is None else fidelity.area
        found[f"interval_by_{name}"] = None if fidelity is None else fidelity.interval
        found[f"signed_unsigned_pairs_by_{name}"] = counts.pairs
        found[f"ordered_oppositely_by_{name}"] = counts.opposite
        found[f"contradictions_by_{name}"] = counts.significant
    return found


class Row(NamedTuple):
    """A protocol in the table of an audit, in words."""

    name: str
    opposite: str
    """Pairs in opposite order: from those that surely are to all but those that surely agree."""
    kept: str
    kept_interval: str
    verdict: str
    ranking: str
    """How far the order by A is that by the protocol judged."""
    cost: str
    judged: bool


def rows(audit: "Audit") -> Iterator[Row]:
    """The lines of the table of an audit, the protocol judged first; none where there is no other."""
    if len(audit.protocols) < 2 or not audit.measured:
        return
    for place, (name, found) in enumerate(audit.protocols.items()):
        evidence = found.evidence
        kept = evidence.kept.get(MASKED[0])
        yield Row(
            name,
            opposite=_opposite(found.opposite),
            kept="–" if kept is None else percent(kept.value),
            kept_interval="" if kept is None else _ends(kept),
            verdict=found.verdict,
            ranking=_ranking(found.agreement, found.ranking),
            cost=f"{found.cost:.1f}",
            judged=place == 0,
        )


def consistent(audit: "Audit") -> list[str]:
    """Which protocol of an audit contradicts itself least, in a sentence."""
    if not audit.measured:
        return []
    own, *others = (each.opposite for each in audit.protocols.values())
    return words.sentences(consistency(own, others))


def _opposite(found: Opposite) -> str:
    return f"{in_opposite_order(found.low, found.high)} of {found.pairs}" if found.pairs else "–"


def _ranking(agreement: Estimate | None, state: str | None) -> str:
    if agreement is None or state is None:
        return ""
    word = {"good": "survives", "bad": "differs", "unclear": "unclear"}[state]
    return word if math.isnan(agreement.value) else f"{agreement.value:.2f} {word}"


def _ends(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return ""
    low, high = map(in_percent, estimate[1:])
    return f"{low:.1f} to {high:.1f} %"
