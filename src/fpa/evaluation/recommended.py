"""The protocol that prefers the worse of two maps least often, where the truth of maps is known.

The figures are those of docs/results/truth.md: in the world `cues`, where evidence adds up, the share of all
pairs of maps of an image of which the area A prefers the worse one, as a mean over five seeds.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fpa.evaluation.description import Description
from fpa.evaluation.stored_plan import StoredPlan
from fpa.notes import Kind, Note, Plain, Severity


class Errors(NamedTuple):
    """How often a protocol prefers the worse of two maps, by who judges them; 0.5 is a coin."""

    untouched: float
    """The model that is explained, trained without masking."""
    twin: float
    """Its twin that was fine-tuned with FPA."""
    trained: float
    """The model that is explained, trained with FPA."""


ERRORS: Mapping[str, Errors] = MappingProxyType(
    {
        "pixels": Errors(0.250, 0.220, 0.221),
        "pixels+blur": Errors(0.208, 0.202, 0.200),
        "1/8": Errors(0.196, 0.183, 0.181),
        "1/8+blur": Errors(0.176, 0.176, 0.172),
        "1/4": Errors(0.189, 0.185, 0.184),
        "1/4+blur": Errors(0.181, 0.183, 0.179),
        "segments:60": Errors(0.210, 0.192, 0.192),
        "segments:60+blur": Errors(0.180, 0.178, 0.176),
    }
)
"""By protocol. tests/test_documented_results.py holds them against the stored files."""

RECOMMENDED = "1/8+blur"
"""The protocol with the least error, whoever judges: patches of an eighth of the side, blurred."""


def recommendation(description: Description) -> list[Note]:
    """What to put the same maps to instead, with the errors of both; nothing where that is what was done."""
    plan = description.plan
    if plan.protocol == RECOMMENDED:
        return []
    # Both are given: whether a model knows masked pixels is for its outputs to show, not for its card.
    with_fpa = "twin" if description.subject.judge else "trained"
    values: dict[str, Plain] = {
        "protocol": RECOMMENDED,
        "errors": _pair(ERRORS[RECOMMENDED], with_fpa),
        "features": plan.features,
        "masking": str(plan.masking["name"]),
        "own_errors": _pair(_own_errors(plan), with_fpa),
        "shown": RECOMMENDED in plan.protocol_names.values(),
    }
    return [Note(Kind.RECOMMENDED_PROTOCOL, Severity.INFO, values)]


def _own_errors(plan: StoredPlan) -> Errors | None:
    """Those of the plan's own protocol, where it was measured."""
    # With another masking integrated gradients start elsewhere: these maps were not measured.
    usual = dict(plan.masking) == {"name": "constant", "value": 0.0}
    return ERRORS.get(plan.protocol) if usual else None


def _pair(errors: Errors | None, with_fpa: str) -> list[float] | None:
    """Without and with FPA."""
    return None if errors is None else [errors.untouched, getattr(errors, with_fpa)]
