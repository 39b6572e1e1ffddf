"""The explanations that describe a model best, and by which protocol that is said."""

from collections.abc import Mapping
from dataclasses import dataclass

from fpa.evaluation.by_protocol import ByProtocol
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.rankings import tied, tied_by_area
from fpa.evaluation.recommended import RECOMMENDED
from fpa.evaluation.result import Result
from fpa.scores.fidelity import Fidelity


@dataclass(frozen=True, eq=False)
class Leading:
    """The best explanation of a model, and what that rests on."""

    names: list[str]
    """The best, and those that cannot be told apart from it; empty where nothing was explained."""
    areas: Mapping[str, Fidelity]
    """A of all explanations by the protocol that decides."""
    curves: Evaluation
    """The curves by that protocol."""
    protocol: ByProtocol | None = None
    """The protocol that decides, where it is not the plan's own."""


def leading(result: Result) -> Leading:
    """By the protocol that errs least if it was asked for, else by the plan's own."""
    found = result.by_protocol.get(RECOMMENDED)
    plan = result.description.plan
    if found is None or plan.protocol == RECOMMENDED:
        return Leading(tied(result), result.fidelity, result.evaluation)
    areas = {name: found.fidelity[name] for name in result.signed if name in found.fidelity}
    curves = next(
        result.evaluation.under[key] for key, name in plan.protocol_names.items() if name == RECOMMENDED
    )
    return Leading(tied_by_area(areas, found.reliability), areas, curves, found)
