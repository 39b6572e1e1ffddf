"""How often each protocol prefers the worse of two maps of an image, where the truth of maps is known.

Every protocol of a result is asked three times: by A, by MIF alone and by LIF alone. Its score of a map is
the area of one image, not divided by the unmasked output: within an image that changes no preference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.result import Result
from fpa.explanation.facts import EstimatorFacts
from fpa.statistics.intervals import Floats
from fpa.statistics.preferences import Preferences, preference_errors

SIDES = ("A", "MIF", "LIF")
"""What a protocol may be asked for: the area between the curves, or one of the two curves alone."""


@dataclass(frozen=True, eq=False)
class JudgedMaps:
    """The maps of a result with their truths, and what every protocol says of them."""

    names: tuple[str, ...]
    """[M]: the estimators."""
    ladders: tuple[frozenset[str], ...]
    """[M]: the ladders that each map is on, `LADDER/SPREAD`; an estimator is on none."""
    signed: tuple[bool, ...]
    """[M]: whether a map can have negative values."""
    truths: Floats
    """[N, M]."""
    noise: Floats
    """[N]: how far the truth of a map of this image may be off."""
    scores: dict[str, Floats]
    """[N, M] by `asked(protocol, side)`: the larger the better."""

    def errors(self, pairs: npt.ArrayLike | None = None) -> Preferences:
        """How often each protocol prefers the worse of two maps; of these pairs, or of all."""
        return preference_errors(self.truths, self.scores, self.noise, pairs)


def asked(protocol: str, side: str) -> str:
    """The name of what a protocol says by A, or by one curve alone.

    >>> asked("1/8+blur", "MIF")
    '1/8+blur by MIF'
    """
    return f"{protocol} by {side}"


def judged_maps(result: Result, truth: str = "truth") -> JudgedMaps:
    """The maps of a result that has this truth among its scores."""
    evaluation = result.evaluation
    plan = result.description.plan
    if truth not in evaluation.values:
        raise InputError(f"the evaluation has no score {truth}: evaluate images of a world with it")
    # By the names that people see, which differ; one may be stored under the name of the plan's own.
    by_protocol = {plan.protocol: evaluation}
    for key, name in plan.protocol_names.items():
        by_protocol[name] = evaluation.under[key]
    names = [name for name in plan.estimators if all(name in part.mif for part in by_protocol.values())]
    scores: dict[str, Floats] = {}
    for protocol, part in by_protocol.items():
        for side, values in _areas(part, names).items():
            scores[asked(protocol, side)] = values
    facts = [plan.estimators[name] for name in names]
    return JudgedMaps(
        names=tuple(names),
        ladders=_ladders(facts),
        signed=tuple(_signed(each) for each in facts),
        truths=np.stack([evaluation.values[truth][name] for name in names], 1),
        noise=_noise(evaluation, truth),
        scores=scores,
    )


def _noise(evaluation: Evaluation, truth: str) -> Floats:
    """[N]: how far this truth of a map may be off, by the redrawn backgrounds of its effects."""
    if truth == "truth_parts":  # whose effects have none
        return np.zeros(len(evaluation.indices))
    fact = "log_odds_noise" if truth == "truth_log_odds" else "centred_noise"
    return evaluation.image_facts[fact].astype(np.float64)


def _areas(part: Evaluation, names: Sequence[str]) -> dict[str, Floats]:
    """What a protocol says of the maps, [N, M] by side."""
    mif = np.stack([_area(part.mif[name], _shares(part, "mif", name)) for name in names], 1)
    lif = np.stack([_area(part.lif[name], _shares(part, "lif", name)) for name in names], 1)
    return {"A": lif - mif, "MIF": -mif, "LIF": lif}


def _area(curves: npt.NDArray[Any], shares: npt.NDArray[Any]) -> Floats:
    return np.asarray(100 * np.trapezoid(curves.astype(np.float64), shares))


def _shares(part: Evaluation, side: str, name: str) -> npt.NDArray[Any]:
    own = part.shares_mif if side == "mif" else part.shares_lif
    return part.fractions if own is None else own[name]


def _ladders(maps: Sequence[EstimatorFacts]) -> tuple[frozenset[str], ...]:
    """The ladders that each map is on; an undamaged truth is on all those of its spread."""
    of_truth = [each.raw if each.raw is not None and each.kind == "true" else None for each in maps]
    own = [
        None if raw is None or raw["ladder"] is None else f"{raw['ladder']}/{raw['spread']}"
        for raw in of_truth
    ]
    every = {ladder for ladder in own if ladder is not None}
    found = []
    for raw, ladder in zip(of_truth, own, strict=True):
        if raw is not None and ladder is None:
            found.append(frozenset(each for each in every if each.endswith(f"/{raw['spread']}")))
        else:
            found.append(frozenset() if ladder is None else frozenset({ladder}))
    return tuple(found)


def _signed(facts: EstimatorFacts) -> bool:
    if facts.raw is not None and facts.kind == "true":
        return bool(facts.raw["signed"])
    return facts.sign == "signed"
