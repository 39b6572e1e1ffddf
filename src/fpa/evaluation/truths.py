"""How often each protocol prefers the worse of two maps of an image, where the truth of maps is known.

Every protocol of a result is asked three times: by A, by MIF alone and by LIF alone. Its score of a map is
the area of one image, not divided by the unmasked output: within an image that changes no preference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.result import Result
from fpa.explanation.facts import EstimatorFacts
from fpa.notes import Kind, Note, Severity
from fpa.statistics.intervals import Bools, Floats, half_width
from fpa.statistics.preferences import Preferences, preference_errors

TRUTH = "truth"
"""The score that errors are counted by."""

FEWEST_CUES = 3
"""Of a scene whose maps have a truth, as `fpa.worlds.truth` has it; here without torch."""

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


def judged_maps(result: Result, truth: str = TRUTH) -> JudgedMaps:
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


class Error(NamedTuple):
    """A share of pairs, or a difference of two, from 0 to 1."""

    value: float
    """NaN without any pair."""
    interval: float
    """Half of the 95 % interval over images; NaN with fewer than two."""


@dataclass(frozen=True, eq=False)
class TruthErrors:
    """How often the protocols of a result prefer the worse of two maps, and what could not be asked."""

    errors: dict[str, dict[str, Error]]
    """By protocol, as people see it, and side, one of `SIDES`."""
    by_image: dict[str, dict[str, Floats]]
    """[N] likewise: the shares of each image's pairs; NaN for an image without any."""
    pairs: int
    """That count, of all images."""
    close: int
    """Pairs left out, as their truths differ by no more than the noise."""
    missing: int
    """Pairs left out, as a map has no truth or no curve."""
    images: int
    """That were evaluated."""
    wrong: int
    """Images that the model gets wrong; they count like the others."""
    few_cues: int
    """Images without truth, as they have fewer than three cues."""
    ignored: int
    """Images with cues enough that the model does not react to: all effects are 0."""
    not_finite: Mapping[str, int]
    """By estimator: of how many of the other images the map or its curve is not finite."""
    zero: Mapping[str, int]
    """By estimator: for how many of the other images the map is 0 wherever an effect is."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The maps without truth, with the estimators they are of."""
        facts = {"not finite": self.not_finite, "zero": self.zero}
        return tuple(
            Note(Kind.MAPS_WITHOUT_TRUTH, Severity.WARNING, {"why": why, "of": dict(counts)})
            for why, counts in facts.items()
            if counts
        )


def truth_errors(result: Result, truth: str = TRUTH) -> TruthErrors | None:
    """How often each protocol of a result prefers the worse map; None where no truth is known."""
    evaluation = result.evaluation
    if truth not in evaluation.values:
        return None
    plan = result.description.plan
    maps = judged_maps(result, truth)
    found = maps.errors()
    shown = [plan.protocol, *plan.protocol_names.values()]
    by_image = {name: {side: found.by_image[asked(name, side)] for side in SIDES} for name in shown}
    errors = {name: {side: _error(each[side]) for side in SIDES} for name, each in by_image.items()}
    predicted = evaluation.targets if evaluation.predicted is None else evaluation.predicted
    few = evaluation.image_facts["cues"] < FEWEST_CUES
    curves = np.logical_and.reduce([np.isfinite(each) for each in maps.scores.values()])
    unknown = ~np.isfinite(maps.truths)
    ignored = ~few & unknown.all(axis=1) & curves.any(axis=1)
    others = ~(few | ignored)[:, None]
    return TruthErrors(
        errors=errors,
        by_image=by_image,
        pairs=found.pairs,
        close=found.close,
        missing=found.missing,
        images=len(few),
        wrong=int(((evaluation.labels >= 0) & (evaluation.labels != predicted)).sum()),
        few_cues=int(few.sum()),
        ignored=int(ignored.sum()),
        not_finite=_counts(maps.names, others & ~curves),
        zero=_counts(maps.names, others & curves & unknown),
    )


def error_change(before: TruthErrors, after: TruthErrors, protocol: str, side: str = "A") -> Error:
    """By how much the error of a protocol is lower for a second model, over the images that both share.

    The images are the same, so differences are taken image by image; the maps and their truths are each
    model's own, so that one of them may have had the easier pairs.
    """
    first = before.by_image[protocol][side]
    second = after.by_image[protocol][side]
    if first.shape != second.shape:
        raise InputError(f"two models are compared on the same images, got {len(first)} and {len(second)}")
    return _error(first - second)


def _error(values: Floats) -> Error:
    known = values[np.isfinite(values)]
    return Error(float(known.mean()) if known.size else float("nan"), half_width(known))


def _counts(names: Sequence[str], found: Bools) -> dict[str, int]:
    """By name, the images of which it is so; without those of which there is none."""
    return {name: int(count) for name, count in zip(names, found.sum(axis=0), strict=True) if count}


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
    of_truth = [each.raw if each.knows_truth else None for each in maps]
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
    if facts.raw is not None and facts.knows_truth:
        return bool(facts.raw["signed"])
    return facts.sign == "signed"
