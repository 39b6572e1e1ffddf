"""What an audit measures: from the curves of a result to the evidence that the rule judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.auditing.rule import MASKED, Evidence
from fpa.errors import InputError
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.offset import mean_offset
from fpa.evaluation.result import Result
from fpa.scores.fidelity import Fidelity
from fpa.statistics import Estimate, ranking_agreement, reordered, share_kept
from fpa.statistics.intervals import Bools
from fpa.statistics.proportions import wilson

Curves = NDArray[Any]


@dataclass(frozen=True)
class Findings:
    """What was measured of one output of a model."""

    result: Result
    """Scored over the images that can be used under every masking; without scores where these are too few."""
    evidence: Evidence
    kept: tuple[Estimate, ...] = ()
    """The share of the output kept along random masking, a value a fraction."""
    right: tuple[Estimate, ...] = ()
    """The accuracy (or agreement) along random masking."""
    elsewhere: dict[str, dict[str, Fidelity]] = field(default_factory=dict)
    """A by estimator under each further masking."""


def gather(result: Result, judged: str) -> Findings:
    """Measure the output that was scored, and beside it the raw logit; `judged` names the masking."""
    evaluation = result.evaluation
    output = result.description.plan.output
    followed = {output: evaluation, **evaluation.others}
    accuracy = followed.get("accuracy")
    found = _measured(result, judged, accuracy)
    evidence = replace(found.evidence, output=output)
    if {"logit", "centred"} <= followed.keys():
        beside = "logit" if output == "centred" else "centred"
        other = Result.unscored(result.name, followed[beside], result.description)
        raw = replace(_measured(other, judged, accuracy).evidence, output=beside)
        shift = mean_offset(followed["logit"].unmasked, followed["centred"].unmasked)
        evidence = replace(evidence, offset=shift, raw=raw)
    return replace(found, evidence=evidence)


def _measured(result: Result, judged: str, accuracy: Evaluation | None) -> Findings:
    """Measure one output under all maskings; `accuracy` has the curves of that, if it was followed."""
    evaluation = result.evaluation
    fractions = result.description.plan.fractions
    baseline = result.description.plan.random
    if baseline is None:
        raise InputError("an audit compares with random masking: its plan needs the estimator random")
    under = {judged: evaluation, **evaluation.under}
    random = {masking: random_curves(part, baseline, fractions) for masking, part in under.items()}
    usable = usable_images(evaluation)
    known = evaluation.labels >= 0
    evidence = Evidence(
        images=len(evaluation.labels),
        used=int(usable.sum()),
        accuracy=evaluation.accuracy,
        labels=int(known.sum()),
        chance=evaluation.chance,
        change=_taken_away(evaluation, random[judged]),
        most_masked=fractions[-1],
    )
    if evidence.used < 2:  # no interval has a meaning
        return Findings(result, evidence)

    scored = result.over(usable)
    unmasked = evaluation.unmasked.astype(np.float64)[usable]
    kept = {masking: share_kept(curves[usable], unmasked) for masking, curves in random.items()}
    right: list[Estimate] = []
    # Where no label is known, the share of images predicted as before stands in for the accuracy.
    labelled = usable & known if known.any() else usable
    if labelled.sum() > 1 and accuracy is not None:
        curves = random_curves(accuracy, baseline, fractions)
        # Wilson's: resampling images that are nearly all right, or all wrong, gives too narrow an interval.
        shares = curves[labelled].mean(axis=0).tolist()
        right = [Estimate(share, *wilson(share, int(labelled.sum()))) for share in shares]
    elsewhere = {
        masking: {
            name: part.fidelity(name, keep=usable) for name in part.mif if name not in evaluation.never_finite
        }
        for masking, part in evaluation.under.items()
    }
    at = {share: fractions.index(share / 100) for share in MASKED}
    evidence = replace(
        _with_agreement(evidence, scored, elsewhere),
        kept={share: kept[judged][place] for share, place in at.items()},
        right={share: right[place] for share, place in {0: 0, **at}.items() if right},
        rise=_rises(scored, usable, at[MASKED[0]]),
        kept_by_masking={masking: values[at[MASKED[0]]] for masking, values in kept.items()},
    )
    return Findings(scored, evidence, tuple(kept[judged]), tuple(right), elsewhere)


def usable_images(evaluation: Evaluation) -> Bools:
    """The images, bool [N], with a positive unmasked output and finite curves under every masking.

    An estimator without any finite curve is left out itself, and takes no image with it.
    """
    usable: Bools = np.isfinite(evaluation.unmasked) & (evaluation.unmasked > 0)
    never_finite = evaluation.never_finite
    for part in (evaluation, *evaluation.under.values()):
        for side in (part.mif, part.lif):
            for name in side.keys() - never_finite:
                usable &= np.isfinite(side[name]).all(axis=1)
    return usable


def _taken_away(evaluation: Evaluation, random: Curves) -> Estimate | None:
    """What masking everything takes away, as a share of the unmasked output; None under two images."""
    unmasked = evaluation.unmasked.astype(np.float64)
    whole = np.isfinite(evaluation.unmasked) & np.isfinite(random[:, -1])
    if whole.sum() < 2:
        return None
    if not unmasked[whole].mean() > 0:  # a share of nothing: there is nothing to take away
        return Estimate(0.0, 0.0, 0.0)
    taken = (unmasked - random[:, -1])[whole, None]
    return share_kept(taken, unmasked[whole])[0]


def _with_agreement(
    evidence: Evidence, result: Result, elsewhere: Mapping[str, Mapping[str, Fidelity]]
) -> Evidence:
    """The evidence with how far MIF agrees with LIF, and the ranking with that under other maskings."""
    agreement = result.reliability
    signed = result.description.plan.signed
    explanations = [name for name in signed if name in result.fidelity]
    # Where too little is left to compare, the names are those of all estimators, near-duplicates included.
    compared = [name for name in agreement.by_area if name in signed and name not in agreement.duplicates]
    are_signed = [signed[name] for name in compared]
    ours = {name: result.fidelity[name] for name in explanations}
    return replace(
        evidence,
        signed=sum(are_signed),
        unsigned=len(are_signed) - sum(are_signed),
        opposite=agreement.opposite["signed-unsigned"],
        contradictions=agreement.counts("signed-unsigned").significant,
        correlation=agreement.correlation["all"],
        agreement={
            masking: ranking_agreement(ours, {name: theirs[name] for name in explanations})
            for masking, theirs in elsewhere.items()
        },
        reordered={
            masking: reordered({name: ours[name] for name in compared}, theirs)
            for masking, theirs in elsewhere.items()
        },
    )


def _rises(result: Result, usable: Bools, last: int) -> dict[str, Estimate]:
    """By signed estimator: LIF over the points up to `last`, over the unmasked output, minus 1."""
    evaluation = result.evaluation
    unmasked = evaluation.unmasked.astype(np.float64)[usable]
    rises = {}
    for name, is_signed in result.signed.items():
        if is_signed:
            lif = _curves(evaluation, "lif", name, result.description.plan.fractions)
            early = lif[usable, 1 : last + 1].mean(axis=1, keepdims=True)
            value, low, high = share_kept(early, unmasked)[0]
            rises[name] = Estimate(value - 1, low - 1, high - 1)
    return rises


def random_curves(part: Evaluation, baseline: str, fractions: Sequence[float]) -> Curves:
    """Curves [N, K] of random masking: MIF and LIF of a random map are two draws."""
    sides = [_curves(part, side, baseline, fractions) for side in ("mif", "lif")]
    return np.asarray(np.mean(sides, axis=0))


def _curves(part: Evaluation, side: str, name: str, fractions: Sequence[float]) -> Curves:
    """Curves [N, K] at exactly these fractions of the pixels, interpolated: patches remove what they do."""
    curves = getattr(part, side)[name]
    shares = (getattr(part, f"shares_{side}") or {}).get(name, part.fractions)
    rows = zip(np.broadcast_to(shares, curves.shape), curves, strict=True)
    return np.stack([np.interp(fractions, x, y) for x, y in rows])
