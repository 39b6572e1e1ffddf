"""What an audit found: the verdict with its evidence, as it prints, saves and shows itself."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from fpa.auditing import rule
from fpa.auditing.rule import MASKED, SAME_RANKING, Criterion, Evidence, Verdict, criteria
from fpa.errors import percent
from fpa.files import writable_folder, write_text
from fpa.progress import as_text
from fpa.statistics import Beats, Estimate, Reliability
from fpa.statistics.contradictions import CONSISTENT, UNORDERED

_COLOURS = {"reliable": "green", "unreliable": "red", "cannot tell": "yellow"}
_STATES = {"good": "green", "bad": "red", "unclear": "yellow"}


class Row(NamedTuple):
    """A line of the evidence, in words."""

    group: str
    what: str
    value: str
    interval: str
    limit: str = ""
    state: str = ""
    """What it means: good, bad, unclear; for supporting evidence its own word."""


@dataclass(frozen=True, eq=False)
class Audit:
    """What `fpa.audit` found. `print` shows it, `report` writes it as a page, `save` as JSON."""

    verdict: Verdict
    because: tuple[str, ...]
    """The sentences that say why."""
    evidence: Evidence
    advice: tuple[str, ...]
    """What to do about it, in sentences."""
    command: str
    """What the advice says to type; empty where there is nothing to type."""
    maskings: tuple[str, ...]
    """The masking judged, then the others."""
    signed: dict[str, bool]
    """Whether an estimator is signed."""
    fractions: tuple[float, ...]
    """Of the pixels masked, along the curves."""
    kept: tuple[Estimate, ...] = ()
    """The share of the logit kept along random masking, a value a fraction."""
    right: tuple[Estimate, ...] = ()
    """The accuracy (or agreement) along random masking."""
    areas: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """A by masking and estimator, in percent."""
    reliability: Reliability | None = None
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By estimator: the parts of the name that people see, as in the plan."""
    model_free: tuple[str, ...] = ()
    """The maps that know no model."""
    beats: Beats = field(default_factory=lambda: Beats({}, {}))
    """Whether each explanation beats every model-free map, and its own blurred twin."""
    name: str = ""
    """What was audited, in words."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Numbers of the estimators, seed, device, precision and versions."""
    repeat: str = ""
    """What was typed to make it; empty where it was made in Python."""

    @property
    def exit_code(self) -> int:
        """0 reliable, 3 unreliable, 4 cannot tell."""
        return rule.EXIT_CODES[self.verdict]

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        return f"{self.verdict.capitalize()}: {rule.MEANINGS[self.verdict]}"

    @property
    def rivals(self) -> list[str]:
        """Which explanations beat model-free maps and their own twins, in sentences."""
        from fpa.show.names import estimator_name
        from fpa.show.rivals import sentences

        names = {key: estimator_name(key, label=label) for key, label in self.labels.items()}
        return sentences(self.beats, self.model_free, names)

    @property
    def rows(self) -> list[Row]:
        """The evidence as lines of a table."""
        return list(_rows(self))

    def report(self, path: Path | str) -> Path:
        """Write the verdict and its evidence as one HTML file that loads nothing."""
        from fpa.show.report.audit_page import write_audit

        return write_audit(self, path)

    def save(self, path: Path | str) -> Path:
        """Write everything as JSON; what is not a number is null."""
        target = Path(path)
        writable_folder(target.parent)
        return write_text(target, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as in audit.json."""

        def own(names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names.split()}

        other = self.evidence.raw is not None and self.evidence.raw.output == "centred"
        beside = "centred_logit" if other else "raw_logit"
        limits = ("FEWEST_IMAGES", "ERROR_RATE", "LEAST_KEPT", "LEAST_CHANGE", "SAME_RANKING")
        values = {
            "format": 2,
            **own("name verdict exit_code headline because advice command repeat"),
            "thresholds": {name.lower(): getattr(rule, name) for name in limits},
            "evidence": _evidence(self.evidence),
            f"verdict_of_{beside}": None if self.evidence.raw is None else rule.judge(self.evidence.raw)[0],
            **own("maskings fractions kept right areas signed model_free beats made_with"),
            "pairs": [] if self.reliability is None else [asdict(pair) for pair in self.reliability.pairs],
        }
        return {name: _plain(value) for name, value in values.items()}

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        from fpa.show.report.audit_page import audit_fragment

        return audit_fragment(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from fpa.show.names import estimator_name

        yield Text(self.headline, style=f"bold {_COLOURS[self.verdict]}")
        for sentence in self.because:
            if not sentence.startswith((UNORDERED, CONSISTENT)):  # the page has these
                yield Padding.indent(Text(sentence), 2)
        if rows := self.rows:
            numbers = (Column(name, justify="right", no_wrap=True) for name in ("found", "95 % interval"))
            first, limit = f"evidence, {self.evidence.used:,} images", Column("limit", no_wrap=True)
            table = Table(first, *numbers, limit, "", box=None, padding=(0, 2, 0, 0), pad_edge=False)
            for group, of_group in groupby(rows, lambda row: row.group):
                table.add_row(Text(group, style="italic"))
                for row in of_group:
                    state = Text(row.state, style=_STATES.get(row.state, ""))
                    what = estimator_name(row.what, label=self.labels.get(row.what))
                    table.add_row(Text(f"  {what}"), row.value, row.interval, row.limit, state)
            yield Text()
            yield table
        yield Text("\n" + "\n".join(self.rivals[: sum(map(bool, self.beats))]))
        yield Text()
        yield Text("What to do", style="bold")
        for sentence in self.advice:
            yield Padding.indent(Text(sentence), 2)
        if self.command:
            yield Padding.indent(Text(self.command, style="bold"), 4)


def _rows(audit: Audit) -> Iterator[Row]:
    evidence, judged = audit.evidence, criteria(audit.evidence)
    if not judged:
        return
    yield from _judged(f"The rule: {rule.in_words(evidence.output)}", evidence)
    beside = f"Beside it: {rule.in_words(evidence.raw.output) if evidence.raw else 'raw logit'}"
    if evidence.raw is not None and criteria(evidence.raw):
        yield from _judged(beside, evidence.raw)
        yield Row(beside, "its verdict", rule.judge(evidence.raw)[0], "")
    if evidence.raw is not None:
        yield Row(beside, "offset of the head", percent(evidence.offset), "")
    yield Row("MIF against LIF", "opposite, significantly", f"{evidence.contradictions}", "")
    if evidence.correlation is not None:
        yield Row("MIF against LIF", "rank correlation, all", *_correlation(evidence.correlation))
    what = "same class" if evidence.accuracy is None else "accuracy"
    kept = f"{rule.in_short(evidence.output)} kept"
    shares = {f"{kept}, {share} % masked": evidence.kept[share] for share in MASKED[1:]}
    for name in audit.maskings[1:]:
        shares[f"{kept}, {MASKED[0]} % {name}"] = evidence.kept_by_masking[name]
    shares |= {f"{what}, {share} % masked": right for share, right in evidence.right.items()}
    for name, share in shares.items():
        yield Row("Random masking", name, *_shares(share))
    for name, rise in evidence.rise.items():
        word = "rises" if rise.low > 0 else "falls" if rise.high < 0 else "unclear"
        yield Row(f"LIF over the first {MASKED[0]} %", name, *_shares(rise, "+"), state=word)
    for name, agreement in evidence.agreement.items():
        side = Criterion(agreement, SAME_RANKING, "above").side
        word = {"above": "survives", "below": "differs", "across": "unclear"}[side]
        numbers = *_correlation(agreement), f"over {SAME_RANKING:g}"
        yield Row("Ranking, other maskings", name, *numbers, word)


def _judged(group: str, evidence: Evidence) -> Iterator[Row]:
    judged = criteria(evidence)
    (value, low, high), limit = judged["opposite"].estimate, judged["opposite"].limit
    found, interval = f"{value:.0f} of {evidence.pairs}", f"{low:.0f} to {high:.0f}"
    few, state = limit < 0, judged["opposite"].state
    allowed = ("too few", "unclear") if few else (f"at most {limit - 0.5:.0f}", state)
    yield Row(group, "pairs in opposite order", found, interval, *allowed)
    numbers = *_shares(judged["kept"].estimate), f"over {percent(judged['kept'].limit)}"
    kept = f"{rule.in_short(evidence.output)} kept, {MASKED[0]} % masked"
    yield Row(group, kept, *numbers, judged["kept"].state)
    if evidence.change is not None:
        taken = Criterion(evidence.change, rule.LEAST_CHANGE, "above")
        numbers = *_shares(evidence.change), f"over {percent(taken.limit)}"
        yield Row(group, "taken by masking all", *numbers, taken.state)


def _evidence(evidence: Evidence) -> dict[str, Any]:
    beside = None if evidence.raw is None else _evidence(evidence.raw)
    return {**vars(evidence), "pairs": evidence.pairs, "raw": beside}


def _correlation(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.value:.2f}", f"{estimate.low:.2f} to {estimate.high:.2f}"


def _shares(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    low, high = (percent(end, sign).removesuffix(" %") for end in estimate[1:])
    return percent(estimate.value, sign), f"{low} to {high} %"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(number) for name, number in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
