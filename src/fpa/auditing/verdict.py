"""What an audit found: the verdict on a result, with the evidence that it rests on."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpa import showing
from fpa.auditing import rule
from fpa.auditing.areas import write_areas
from fpa.auditing.protocols import ProtocolEvidence
from fpa.auditing.rule import Evidence, Verdict
from fpa.evaluation.result import Result
from fpa.explanation.facts import Label
from fpa.files import writable_folder, write_text
from fpa.notes import Note
from fpa.progress import as_text
from fpa.scores.fidelity import Fidelity
from fpa.statistics import Beats, Estimate, Reliability

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from fpa.show.audits import Row

_LIMITS = (
    "FEWEST_IMAGES",
    "ERROR_RATE",
    "OPPOSITE_SHARE",
    "BY_CHANCE",
    "LEAST_KEPT",
    "LEAST_CHANGE",
)

FORMAT = 3
"""Of audit.json. Its rule, by format: 1 judged the raw logit, 2 the centred one, both the interval of the
opposite pairs from resampling images; 3 judges that from the tests of the pairs."""


@dataclass(frozen=True, eq=False)
class Audit:
    """What `fpa.audit` found. `print` shows it, `report` writes it as a page, `save` as JSON."""

    result: Result
    """The evaluation that was judged, scored over the images that can be used."""
    verdict: Verdict
    evidence: Evidence
    reasons: tuple[Note, ...]
    """Why, and what else to know, as facts; `because` has the sentences."""
    advised: tuple[Note, ...]
    """What to do about it, as facts; `advice` has the sentences."""
    maskings: tuple[str, ...]
    """The masking judged, then the others that remove the same features."""
    protocols: dict[str, ProtocolEvidence] = field(default_factory=dict)
    """What the rule would say by every protocol that the same maps were put to, the one judged first."""
    command: str = ""
    """What the advice says to type; empty where there is nothing to type."""
    kept: tuple[Estimate, ...] = ()
    """The share of the logit kept along random masking, a value a fraction."""
    right: tuple[Estimate, ...] = ()
    """The accuracy (or agreement) along random masking."""
    elsewhere: dict[str, dict[str, Fidelity]] = field(default_factory=dict)
    """By further masking or protocol and estimator: the area A."""
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
        return showing.audit_headline(self)

    @property
    def because(self) -> tuple[str, ...]:
        """The sentences that say why."""
        return showing.audit_sentences(self, self.reasons)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about it, in sentences."""
        return showing.audit_sentences(self, self.advised)

    @property
    def rivals(self) -> list[str]:
        """Which explanations beat model-free maps and their own twins, in sentences."""
        return showing.audit_rivals(self)

    @property
    def rows(self) -> "list[Row]":
        """The evidence as lines of a table."""
        return showing.audit_rows(self)

    @property
    def measured(self) -> bool:
        """Whether there were images enough to compare estimators."""
        return self.evidence.opposite is not None

    @property
    def fractions(self) -> tuple[float, ...]:
        """Of the pixels masked, along the curves."""
        return self.result.description.plan.fractions

    @property
    def labels(self) -> dict[str, Label]:
        """By estimator: the name that people see."""
        return {name: each.label for name, each in self.result.description.plan.estimators.items()}

    @cached_property
    def signed(self) -> dict[str, bool]:
        """Whether an estimator is signed; those without a finite curve are not in here."""
        never_finite = self.result.evaluation.never_finite
        signed = self.result.description.plan.signed
        return {name: sign for name, sign in signed.items() if name not in never_finite}

    @cached_property
    def reliability(self) -> Reliability | None:
        """How far MIF agrees with LIF; None where there were too few images."""
        if not self.measured:
            return None
        found = self.result.reliability
        if found.pairs:
            return found
        # Without a pair it lists all estimators; an audit is about explanations.
        names = tuple(name for name in found.by_area if name in self.signed)
        return replace(found, by_area=names, by_mif=names, by_lif=names)

    @cached_property
    def areas(self) -> dict[str, dict[str, Estimate]]:
        """A by masking or protocol and estimator, in percent."""
        if not self.measured:
            return {}
        every = {self.maskings[0]: self.result.fidelity, **self.elsewhere}
        return {
            masking: {name: _area(fidelity) for name, fidelity in by_estimator.items()}
            for masking, by_estimator in every.items()
        }

    @property
    def model_free(self) -> tuple[str, ...]:
        """The maps that know no model."""
        return tuple(self.result.description.plan.model_free) if self.measured else ()

    @property
    def beats(self) -> Beats:
        """Whether each explanation beats every model-free map, and its own blurred twin."""
        return self.result.beats if self.measured else Beats({}, {})

    def report(self, path: Path | str) -> Path:
        """Write the verdict and its evidence as one HTML file that loads nothing."""
        return showing.audit_page(self, path)

    def save(self, path: Path | str) -> Path:
        """Write everything as JSON; what is not a number is null."""
        target = Path(path)
        writable_folder(target.parent)
        return write_text(target, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def save_areas(self, path: Path | str) -> Path:
        """Write what was measured of every image, small enough to keep: `fpa.auditing.areas` reads it."""
        return write_areas(path, self.result, name=self.name)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as in audit.json."""
        beside = self.evidence.raw
        which = "raw_logit" if beside is None or beside.output == "logit" else "centred_logit"
        values = {
            "format": FORMAT,
            "name": self.name,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "headline": self.headline,
            "because": self.because,
            "advice": self.advice,
            "command": self.command,
            "repeat": self.repeat,
            "thresholds": {name.lower(): getattr(rule, name) for name in _LIMITS},
            "evidence": _evidence(self.evidence),
            f"verdict_of_{which}": None if beside is None else rule.judge(beside)[0],
            "maskings": self.maskings,
            "protocols": {name: _by_protocol(each) for name, each in self.protocols.items()},
            "fractions": self.fractions,
            "kept": self.kept,
            "right": self.right,
            "areas": self.areas,
            "signed": self.signed,
            "model_free": self.model_free,
            "beats": self.beats,
            "made_with": self.made_with,
            "pairs": [] if self.reliability is None else [asdict(pair) for pair in self.reliability.pairs],
        }
        return {name: _plain(value) for name, value in values.items()}

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return showing.audit_html(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterable[RenderableType]":
        return showing.audit_parts(self)


def _area(fidelity: Fidelity) -> Estimate:
    return Estimate(
        fidelity.area,
        fidelity.area - fidelity.interval,
        fidelity.area + fidelity.interval,
    )


def _evidence(evidence: Evidence) -> dict[str, Any]:
    beside = None if evidence.raw is None else _evidence(evidence.raw)
    return {**vars(evidence), "pairs": evidence.pairs, "raw": beside}


def _by_protocol(found: ProtocolEvidence) -> dict[str, Any]:
    evidence = found.evidence
    return {
        "features": found.features,
        "masking": found.masking,
        "verdict": found.verdict,
        "used": evidence.used,
        "pairs": evidence.pairs,
        "opposite": evidence.opposite,
        "contradictions": evidence.contradictions,
        "kept": evidence.kept,
        "change": evidence.change,
        "ranking": found.ranking,
        "agreement": found.agreement,
        "forwards": found.forwards,
        "cost": found.cost,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(number) for name, number in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
