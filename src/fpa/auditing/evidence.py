"""What an audit measures: from the curves of a result to the evidence that the rule judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.auditing.rule import MASKED, Evidence
from fpa.errors import InputError
from fpa.evaluation.by_protocol import areas_over
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.offset import mean_offset
from fpa.evaluation.result import Result
from fpa.scores.fidelity import Fidelity, small_outputs
from fpa.statistics import Estimate, ranking_agreement, reordered, share_kept
from fpa.statistics.intervals import Bools
from fpa.statistics.proportions import wilson

Curves = NDArray[Any]


@dataclass(frozen=True)
class Findings:
    """What was measured of one output of a model."""

    result: Result
    """Scored over the images that can be used; without scores where these are too few."""
    evidence: Evidence
    kept: tuple[Estimate, ...] = ()
    """The share of the output kept along random masking, a value a fraction."""
    right: tuple[Estimate, ...] = ()
    """The accuracy (or agreement) along random masking."""
    elsewhere: dict[str, dict[str, Fidelity]] = field(default_factory=dict)
    """A by estimator under each further masking or protocol."""


def gather(result: Result, judged: str) -> Findings:
    """Measure the output that was scored, and beside it the raw logit; `judged` names the masking."""
    evaluation = result.evaluation
    output = result.description.plan.output
    followed = {output: evaluation, **evaluation.others}
    accuracy = followed.get("accuracy")
    found = measured(result, judged, accuracy)
    evidence = replace(found.evidence, output=output)
    if {"logit", "centred"} <= followed.keys():
        beside = "logit" if output == "centred" else "centred"
        other = Result.unscored(result.name, followed[beside], result.description)
        raw = replace(measured(other, judged, accuracy).evidence, output=beside)
        shift = mean_offset(followed["logit"].unmasked, followed["centred"].unmasked)
        evidence = replace(evidence, offset=shift, raw=raw)
    return replace(found, evidence=evidence)


def measured(
    result: Result,
    judged: str,
    accuracy: Evaluation | None = None,
    *,
    fractions: Sequence[float] | None = None,
) -> Findings:
    """Measure one output, beside it under all other protocols.

    `accuracy` has the curves of that, if it was followed; `fractions` are those of the plan unless the
    masking must stop earlier.
    """
    evaluation = result.evaluation
    fractions = fractions or result.description.plan.fractions
    baseline = result.description.plan.random
    if baseline is None:
        raise InputError("an audit compares with random masking: its plan needs the estimator random")
    random = random_curves(evaluation, baseline, fractions)
    usable = usable_images(evaluation)
    known = evaluation.labels >= 0
    evidence = Evidence(
        images=len(evaluation.labels),
        used=int(usable.sum()),
        small=int((measurable_images(evaluation) & ~usable).sum()),
        accuracy=evaluation.accuracy,
        labels=int(known.sum()),
        chance=evaluation.chance,
        change=_taken_away(evaluation, random),
        most_masked=fractions[-1],
    )
    if evidence.used < 2:  # no interval has a meaning
        return Findings(result, evidence)

    scored = result.over(usable)
    unmasked = evaluation.unmasked.astype(np.float64)
    kept = share_kept(random[usable], unmasked[usable])
    right: list[Estimate] = []
    # Where no label is known, the share of images predicted as before stands in for the accuracy.
    labelled = usable & known if known.any() else usable
    if labelled.sum() > 1 and accuracy is not None:
        curves = random_curves(accuracy, baseline, fractions)
        # Wilson's: resampling images that are nearly all right, or all wrong, gives too narrow an interval.
        shares = curves[labelled].mean(axis=0).tolist()
        right = [Estimate(share, *wilson(share, int(labelled.sum()))) for share in shares]
    at = {share: fractions.index(share / 100) for share in MASKED}
    # What is not finite by another protocol is left out of that comparison alone.
    shared = {name: usable & usable_images(part) for name, part in evaluation.under.items()}
    compared = {name: evaluation.under[name] for name, images in shared.items() if images.sum() > 1}
    elsewhere = {name: areas_over(part, shared[name]) for name, part in compared.items()}
    kept_by_masking = {judged: kept[at[MASKED[0]]]}
    for name, part in compared.items():
        masked = random_curves(part, baseline, [MASKED[0] / 100])[shared[name]]
        (kept_by_masking[name],) = share_kept(masked, unmasked[shared[name]])
    evidence = replace(
        _with_agreement(evidence, scored, elsewhere),
        kept={share: kept[place] for share, place in at.items()},
        right={share: right[place] for share, place in {0: 0, **at}.items() if right},
        rise=_rises(scored, usable, at[MASKED[0]]),
        kept_by_masking=kept_by_masking,
    )
    return Findings(scored, evidence, tuple(kept), tuple(right), elsewhere)


def usable_images(evaluation: Evaluation) -> Bools:
    """The images, bool [N], that the verdict is about: measurable, and not with an output next to 0.

    One image in a thousand with an area of nine times the others' makes a verdict at the limit wrong more
    often than promised: samples without it are sure of another mean (docs/results/verdict.md).
    """
    measurable = measurable_images(evaluation)
    return measurable & ~small_outputs(evaluation.unmasked, measurable) if evaluation.divided else measurable


def measurable_images(evaluation: Evaluation) -> Bools:
    """The images, bool [N], with a positive unmasked output and finite curves.

    An estimator without any finite curve is left out itself, and takes no image with it, unless there is no
    other.
    """
    usable: Bools = np.isfinite(evaluation.unmasked) & (evaluation.unmasked > 0)
    never_finite = set(evaluation.never_finite)
    if never_finite == evaluation.mif.keys():
        never_finite = set()
    for side in (evaluation.mif, evaluation.lif):
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
    """The evidence with how far MIF agrees with LIF, and the ranking with that by other protocols."""
    agreement = result.reliability
    signed = result.description.plan.signed
    explanations = [name for name in signed if name in result.fidelity]
    # Where too little is left to compare, the names are those of all estimators, near-duplicates included.
    compared = [name for name in agreement.by_area if name in signed and name not in agreement.duplicates]
    are_signed = [signed[name] for name in compared]
    return replace(
        evidence,
        signed=sum(are_signed),
        unsigned=len(are_signed) - sum(are_signed),
        opposite=agreement.opposite["signed-unsigned"],
        contradictions=agreement.counts("signed-unsigned").significant,
        correlation=agreement.correlation["all"],
        agreement={
            protocol: ranking_agreement(_common(result, theirs, explanations), theirs)
            for protocol, theirs in elsewhere.items()
        },
        reordered={
            protocol: reordered(_common(result, theirs, compared), theirs)
            for protocol, theirs in elsewhere.items()
        },
    )


def _common(result: Result, theirs: Mapping[str, Fidelity], names: Sequence[str]) -> dict[str, Fidelity]:
    """The areas of a result, of those estimators that have some elsewhere too."""
    return {name: result.fidelity[name] for name in names if name in theirs}


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
