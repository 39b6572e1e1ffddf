"""What a stored evaluation lacks for an audit; read without torch."""

from typing import NamedTuple

from fpa.auditing.rule import MASKED
from fpa.evaluation.stored_plan import StoredPlan


class Lacking(NamedTuple):
    """What an evaluation lacks for an audit."""

    estimators: tuple[str, ...]
    """Those that it has, where a random, a signed or an unsigned one is missing."""
    points: tuple[int, ...]
    """The shares of the features, in percent, that its curves have no point at."""

    def __str__(self) -> str:
        if self.estimators:
            needed = "random, a signed and an unsigned estimator (as in the set paper)"
            return f"an audit needs {needed}: the evaluation has {', '.join(self.estimators)}"
        shares = ", ".join(map(str, self.points))
        return f"an audit needs points at {shares} % of the features: evaluate with 21 points"


def lacking(plan: StoredPlan) -> Lacking | None:
    """What an evaluation of this plan lacks for an audit; None: nothing."""
    suffice = plan.random is not None and {True, False} <= set(plan.signed.values())
    points = tuple(share for share in MASKED if share / 100 not in plan.fractions)
    if suffice and not points:
        return None
    return Lacking(estimators=() if suffice else tuple(plan.estimators), points=points)
