"""Before long work: how long it will take, from a few of its first passes."""

import time
from pathlib import Path

from fpa.engine.estimate import LIMIT, Estimate
from fpa.evaluation.estimate import estimate_case
from fpa.evaluation.subject import Case
from fpa.explanation.raw_maps import GradientMap
from fpa.notes import Kind, Note, Severity
from fpa.progress import Tell
from fpa.showing import clause

WORTH = 60.0
"""Seconds of work below which nobody has to be told."""

_AT_ONCE = {"cuda": 50}
"""By kind of device: about how many passes take as long together as one alone."""


def announce(case: Case, folder: Path | str | None, tell: Tell, *, examples: int = 0) -> Estimate | None:
    """Say how long the work takes, if that is long; None where it was not found out."""
    if tell.display.quiet or not _is_own(case):
        return None
    rough = _rough_seconds(case)
    if rough < WORTH:
        return None
    # A twentieth of the work at most.
    estimate = estimate_case(case, folder, examples=examples, seconds=min(LIMIT, rough / 20))
    if estimate.seconds > WORTH / 2:
        tell.line(clause(long_work(estimate, offers_quick=case.quick is False)))
    return estimate


def long_work(estimate: Estimate, *, offers_quick: bool) -> Note:
    """How long the work takes, and a shorter way where there is one and it is wanted."""
    return Note(
        Kind.LONG_WORK,
        Severity.INFO,
        {
            "seconds": estimate.seconds,
            "longer": estimate.longer,
            "offers_quick": offers_quick and estimate.is_long,
        },
    )


def _rough_seconds(case: Case) -> float:
    """An upper bound, from one image alone; 0 where the number of images is not known."""
    if case.source.count is None:
        return 0.0
    engine = case.subject.engine
    one = case.source.first[:1]
    began = time.monotonic()
    engine.predict(one).sum().item()  # the number is waited for
    seconds = time.monotonic() - began
    # A gradient takes about as long as three forward passes.
    passes = case.source.count * (case.plan.passes + 2 * case.plan.gradients)
    return passes * seconds / _AT_ONCE.get(engine.device.type, 1)


def _is_own(case: Case) -> bool:
    """Whether all that would be rehearsed is fpa's own: others' code may be slow, or count its calls."""
    raws = [each.raw for each in case.plan.estimators.values()]
    return not case.plan.code and all(isinstance(raw, GradientMap) or raw.baseline for raw in raws)
