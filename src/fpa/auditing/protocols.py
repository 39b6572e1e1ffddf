"""What the rule would say by every protocol that the same maps were put to, the one judged first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fpa.auditing.evidence import Findings, measured
from fpa.auditing.rule import Evidence, State, Verdict, judge, ranking_kept
from fpa.evaluation.by_protocol import Opposite, forwards_of
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.result import Result
from fpa.statistics import Estimate


@dataclass(frozen=True)
class ProtocolEvidence:
    """The evidence by one protocol: how consistent it is on this model, which is less than being right."""

    features: str | int
    """What is removed together."""
    masking: Mapping[str, Any]
    """What removing it means: a name and its settings."""
    evidence: Evidence
    """As an audit by this protocol alone would find it, of the same maps."""
    forwards: int
    """Forward passes along the curves of one map of one image."""
    cost: float
    """The same as a multiple of those of the protocol judged."""
    agreement: Estimate | None = None
    """Spearman's correlation of A with that by the protocol judged; None for this one itself."""
    ranking: State | None = None
    """Whether the ranking by A surely is the one by the protocol judged; None where it is not compared."""

    @property
    def verdict(self) -> Verdict:
        """What the rule would say by this protocol."""
        return judge(self.evidence)[0]

    @property
    def opposite(self) -> Opposite:
        """How many pairs are in opposite order; of no pairs where too few images could be used."""
        evidence = self.evidence
        masking = str(self.masking["name"])
        if evidence.opposite is None:
            return Opposite(self.features, masking, 0, 0, pairs=0)
        _, low, high = evidence.opposite
        return Opposite(self.features, masking, int(low), int(high), evidence.pairs)


def evidence_by_protocol(found: Findings) -> dict[str, ProtocolEvidence]:
    """By the names that people see, the protocol judged first."""
    plan = found.result.description.plan
    evaluation = found.result.evaluation
    own = forwards_of(evaluation, plan.features)
    by_name = {
        plan.protocol: ProtocolEvidence(
            features=plan.features,
            masking=plan.masking,
            # What stands beside it is in the audit already.
            evidence=replace(found.evidence, raw=None),
            forwards=own,
            cost=1.0,
        )
    }
    judged = found.evidence
    for key, name in plan.protocol_names.items():
        protocol = plan.protocols[key]
        part = evaluation.under[key]
        forwards = forwards_of(part, protocol.features)
        by_name[name] = ProtocolEvidence(
            features=protocol.features,
            masking=protocol.masking,
            evidence=_alone(found, name, part),
            forwards=forwards,
            cost=forwards / own,
            agreement=judged.agreement.get(key),
            ranking=ranking_kept(judged, key) if key in judged.reordered else None,
        )
    return by_name


def _alone(found: Findings, name: str, part: Evaluation) -> Evidence:
    """The evidence of a further protocol."""
    result = Result.unscored(name, part, found.result.description)
    fractions = _fractions(found.result.description.plan.fractions, part)
    return replace(measured(result, name, fractions=fractions).evidence, output=found.evidence.output)


def _fractions(planned: Sequence[float], part: Evaluation) -> tuple[float, ...]:
    """The fractions of the plan up to where the curves of a protocol end."""
    # A masking that must leave something stops earlier; of few patches, a little before or after it should.
    last = len(part.fractions) - 1
    return (*planned[:last], min(planned[last], float(part.fractions[-1])))
