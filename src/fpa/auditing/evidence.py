"""The evidence of an audit, from the curves of an evaluation: numpy alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.auditing.rule import MASKED, Evidence
from fpa.evaluation.result import Evaluation
from fpa.statistics.contradictions import ranking_agreement, reliability
from fpa.statistics.intervals import Estimate, share_kept


def gather(
    evaluation: Evaluation,
    fractions: Sequence[float],
    *,
    judged: str,
    baseline: str,
    signed: dict[str, bool],
    classes: int,
) -> tuple[Evidence, dict[str, Any]]:
    """The evidence, and the numbers of the figures.

    `judged` is what the evaluation's own masking is called, `baseline` the estimator that is a random map.
    """
    under = {judged: evaluation, **evaluation.under}
    known, finite = evaluation.labels >= 0, np.isfinite(evaluation.unmasked)
    everything = evaluation.mif[baseline][:, -1]
    change = (evaluation.unmasked - everything)[finite & np.isfinite(everything)]
    spread = evaluation.unmasked[finite]
    evidence = Evidence(
        images=len(evaluation.labels),
        used=0,
        classes=classes,
        accuracy=evaluation.accuracy,
        labels=int(known.sum()),
        logit_change=float(change.mean()) if change.size else math.nan,
        logit_spread=float(spread.std(ddof=1)) if spread.size > 1 else math.nan,
    )
    usable = finite & (evaluation.unmasked > 0)
    for part in under.values():
        for curves in (*part.mif.values(), *part.lif.values()):
            usable &= np.isfinite(curves).all(axis=1)
    if usable.sum() < 2:
        return replace(evidence, used=int(usable.sum())), {}

    fidelity = {
        masking: {name: part.fidelity(name, keep=usable) for name in part.mif}
        for masking, part in under.items()
    }
    explanations = {masking: {name: each[name] for name in signed} for masking, each in fidelity.items()}
    unmasked = evaluation.unmasked[usable].astype(np.float64)
    kept = {masking: share_kept(_random(part, baseline)[usable], unmasked) for masking, part in under.items()}
    labelled = usable & known if known.any() else usable
    accuracy = _random(evaluation.others["accuracy"], baseline)
    right = share_kept(accuracy[labelled], np.ones(labelled.sum())) if labelled.sum() > 1 else []
    at = {percent: fractions.index(percent / 100) for percent in MASKED}
    early = [place for place, fraction in enumerate(fractions) if 0 < fraction <= MASKED[0] / 100]
    agreeing = reliability(explanations[judged], signed)
    pairs = [pair for pair in agreeing.pairs if pair.kind == "signed-unsigned"]

    def rise(name: str) -> Estimate:
        start = evaluation.lif[name][usable][:, early].mean(axis=1, keepdims=True)
        return Estimate(*(value - 1 for value in share_kept(start, unmasked)[0]))

    evidence = replace(
        evidence,
        used=int(usable.sum()),
        pairs=len(pairs),
        opposite=agreeing.opposite["signed-unsigned"],
        contradictions=sum(pair.contradiction for pair in pairs),
        correlation=agreeing.correlation["all"],
        kept={percent: kept[judged][place] for percent, place in at.items()},
        right={percent: right[place] for percent, place in {0: 0, **at}.items() if right},
        rise={name: rise(name) for name, is_signed in signed.items() if is_signed},
        kept_by_masking={masking: values[at[MASKED[0]]] for masking, values in kept.items()},
        agreement={
            masking: ranking_agreement(explanations[judged], explanations[masking])
            for masking in evaluation.under
        },
    )
    areas = {
        masking: {
            name: Estimate(each.area, each.area - each.interval, each.area + each.interval)
            for name, each in by_name.items()
        }
        for masking, by_name in fidelity.items()
    }
    figures = {"kept": tuple(kept[judged]), "right": tuple(right), "areas": areas, "reliability": agreeing}
    return evidence, figures


def _random(part: Evaluation, baseline: str) -> NDArray[Any]:
    """Curves [N, K] of random masking: MIF and LIF of a random map are two draws."""
    return (part.mif[baseline] + part.lif[baseline]) / 2
