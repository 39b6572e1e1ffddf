"""What an audit measures: from the curves of an evaluation to the evidence that the rule judges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.auditing.rule import MASKED, Evidence
from fpa.evaluation.head import offset
from fpa.evaluation.result import Evaluation, families, rivals, signs
from fpa.scores.fidelity import Fidelity
from fpa.statistics import Estimate, beats, ranking_agreement, reliability, share_kept


def gather(evaluation: Evaluation, about: dict[str, Any], judged: str) -> tuple[Evidence, dict[str, Any]]:
    """The evidence, and the numbers of the figures; `judged` is the name of the evaluation's own masking."""
    first, *_ = about["plan"]["outputs"]
    every = {first: evaluation, **evaluation.others}
    evidence, figures = _gathered(replace(evaluation, others=every), about, judged)
    beside = "logit" if first == "centred" else "centred"
    evidence = replace(evidence, output=first)
    if not {"logit", "centred"} <= every.keys():
        return evidence, figures
    raw, _ = _gathered(replace(every[beside], others=every), about, judged)
    shift = offset(every["logit"].unmasked, every["centred"].unmasked)
    return replace(evidence, offset=shift, raw=replace(raw, output=beside)), figures


def _gathered(evaluation: Evaluation, about: dict[str, Any], judged: str) -> tuple[Evidence, dict[str, Any]]:
    plan, under = about["plan"], {judged: evaluation, **evaluation.under}
    fractions, dead = plan["fractions"], evaluation.never_finite
    signed = {name: sign for name, sign in signs(plan).items() if name not in dead}
    baseline = random_maps(plan)[0]
    known, finite = evaluation.labels >= 0, np.isfinite(evaluation.unmasked)
    usable = finite & (evaluation.unmasked > 0)
    for part in under.values():
        for curves in (part.mif, part.lif):
            for name in curves.keys() - dead:
                usable &= np.isfinite(curves[name]).all(axis=1)
    random = {masking: _random(part, baseline, fractions) for masking, part in under.items()}
    whole = finite & np.isfinite(random[judged][:, -1])
    start = evaluation.unmasked.astype(np.float64)
    change = None
    if whole.sum() > 1:
        nothing = Estimate(0.0, 0.0, 0.0)
        taken = (start - random[judged][:, -1])[whole, None]
        change = share_kept(taken, start[whole])[0] if start[whole].mean() > 0 else nothing
    evidence = Evidence(
        images=len(evaluation.labels),
        used=int(usable.sum()),
        accuracy=evaluation.accuracy,
        labels=int(known.sum()),
        chance=evaluation.chance,
        change=change,
        most_masked=fractions[-1],
    )
    if evidence.used < 2:
        return evidence, {}

    fidelity = {
        masking: {name: part.fidelity(name, keep=usable) for name in part.mif if name not in dead}
        for masking, part in under.items()
    }
    explanations = {masking: {name: each[name] for name in signed} for masking, each in fidelity.items()}
    unmasked = start[usable]
    kept = {masking: share_kept(curves[usable], unmasked) for masking, curves in random.items()}
    labelled = usable & known if known.any() else usable
    right: list[Estimate] = []
    if labelled.sum() > 1 and "accuracy" in evaluation.others:
        accuracy = _random(evaluation.others["accuracy"], baseline, fractions)
        right = share_kept(accuracy[labelled], np.ones(labelled.sum()))
    at = {share: fractions.index(share / 100) for share in MASKED}
    agreeing = reliability(explanations[judged], signed, families=families(plan))
    pairs = [pair for pair in agreeing.pairs if pair.kind == "signed-unsigned"]
    compared = [signed[name] for name in agreeing.by_area]

    def area(each: Fidelity) -> Estimate:
        return Estimate(each.area, each.area - each.interval, each.area + each.interval)

    def rise(name: str) -> Estimate:
        early = _curves(evaluation, "lif", name, fractions)[usable, 1 : at[MASKED[0]] + 1]
        return Estimate(*(value - 1 for value in share_kept(early.mean(axis=1, keepdims=True), unmasked)[0]))

    evidence = replace(
        evidence,
        signed=sum(compared),
        unsigned=len(compared) - sum(compared),
        opposite=agreeing.opposite["signed-unsigned"],
        contradictions=sum(pair.contradiction for pair in pairs),
        correlation=agreeing.correlation["all"],
        kept={share: kept[judged][place] for share, place in at.items()},
        right={share: right[place] for share, place in {0: 0, **at}.items() if right},
        rise={name: rise(name) for name, is_signed in signed.items() if is_signed},
        kept_by_masking={masking: values[at[MASKED[0]]] for masking, values in kept.items()},
        agreement={
            masking: ranking_agreement(explanations[judged], explanations[masking])
            for masking in evaluation.under
        },
    )
    areas = {masking: {name: area(each) for name, each in by.items()} for masking, by in fidelity.items()}
    model_free, twins = rivals(plan)
    figures = {
        "kept": tuple(kept[judged]),
        "right": tuple(right),
        "areas": areas,
        "reliability": agreeing,
        "model_free": tuple(model_free),
        "beats": beats(fidelity[judged], signed, model_free, twins),
    }
    return evidence, figures


def random_maps(plan: Mapping[str, Any]) -> list[str]:
    """The random maps of a stored plan. A blurred one removes patches together: that is no random masking."""
    return [
        name
        for name, each in plan["estimators"].items()
        if each.get("raw", {}).get("name") == "random" and "blur" not in each
    ]


def _random(part: Evaluation, baseline: str, fractions: Sequence[float]) -> NDArray[Any]:
    """Curves [N, K] of random masking: MIF and LIF of a random map are two draws."""
    sides = [_curves(part, side, baseline, fractions) for side in ("mif", "lif")]
    return np.asarray(np.mean(sides, axis=0))


def _curves(part: Evaluation, side: str, name: str, fractions: Sequence[float]) -> NDArray[Any]:
    """Curves [N, K] at exactly these fractions of the pixels, interpolated: patches remove what they do."""
    curves = getattr(part, side)[name]
    shares = (getattr(part, f"shares_{side}") or {}).get(name, part.fractions)
    rows = zip(np.broadcast_to(shares, curves.shape), curves, strict=True)
    return np.stack([np.interp(fractions, x, y) for x, y in rows])
