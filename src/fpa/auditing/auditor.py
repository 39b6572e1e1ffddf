"""Can the evaluation of explanations on this model be trusted? `audit` measures and judges by a fixed rule.

The rule (`rule.judge`) sees only what the model says to images, masked and unmasked, not how it was trained.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fpa.auditing.rule import MASKED, SAME_RANKING, Evidence, Verdict, in_words, judge, stops
from fpa.auditing.verdict import Audit
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.described import described_fields
from fpa.engine import Engine
from fpa.errors import InputError, percent
from fpa.evaluation.evaluator import describe_subject, open_subject
from fpa.evaluation.explained import looked_at
from fpa.evaluation.head import offset
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.plan import make_plan
from fpa.evaluation.result import Evaluation, families, rivals, signs
from fpa.evaluation.shards import read_evaluation
from fpa.explanation import Estimator, Estimators, Label, Settings, get_estimators
from fpa.masking import Constant, Masking, get_masking
from fpa.perturbation import check_fractions, features_of
from fpa.progress import Tell
from fpa.schema import checked
from fpa.scores.fidelity import Fidelity
from fpa.statistics import Estimate, beats, ranking_agreement, reliability, share_kept
from fpa.training.settings import suggested_fpa

MASKINGS = ("constant", "mean", "blur", "uniform")
BESIDE = ("centred", "logit", "accuracy")
"""Outputs that are followed in any case."""
AUDITED = ("paper", "baselines", "twins")
"""The paper's ten, and what they must beat: no gradients, and curves under the masking judged only."""


@checked
@torch.inference_mode(False)
def audit(
    model: nn.Module | Engine,
    data: Any,
    *,
    estimators: Estimators = AUDITED,
    count: int | None = None,
    settings: Settings | None = None,
    maskings: Sequence[Any] = MASKINGS,
    points: int = 21,
    features: str | int = "pixels",
    outputs: str | Sequence[str] = ("centred",),
    targets: str | int = "predicted",
    class_index: Any = None,
    seed: int = 0,
    precision: Any = None,
    normalisation: Normalisation | None = None,
    device: torch.device | str | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    name: str = "",
    progress: bool | Tell = True,
) -> Audit:
    """Can the evaluation of explanations on this model be trusted? See docs/audit.md for the rule.

    - `data`: images [N, C, H, W], (images, labels), a loader, the name of a data set, ...; see
      `fpa.data.image_source`, which also says what `normalisation` is for. Without labels the agreement
      with the unmasked prediction stands in for the accuracy.
    - `estimators`: at least one signed and one unsigned; random masking is measured in any case. By default
      the paper's ten, the model-free maps and the blurred twins.
    - `count`: use only the first `count` images; default: all.
    - `maskings`: what removing a pixel means. The first is judged; the others, with the same maps, show
      whether the ranking of the estimators survives another masking.
    - `points`: how many points a perturbation curve has.
    - `features`: what is removed, "pixels", the side of square patches (16 for most vision transformers), or
      "segments" of each image.
    - `outputs`: what is followed, the first is judged; the rule is made for the "centred" logit.
    - `targets`, `class_index`: the class explained, and which output stands for which class of the data; see
      `fpa.evaluate`.
    - `device`: where to work; by default where the model is.
    - `folder`: where every block of images is stored as soon as it is done, so that the same call continues
      after a crash; with `overwrite` it starts afresh.
    - `name`: what is audited, for the page.

    >>> import fpa
    >>> quick = Settings(ig_steps=5, sg_samples=2)
    >>> verdict = audit(fpa.load_model("shapes-fpa"), "shapes", count=8, settings=quick, progress=False)
    >>> verdict.verdict, verdict.exit_code, verdict.because[0]
    ('cannot tell', 4, 'Too few images: 8 could be used, at least 100 are needed.')
    """
    named = _with_random(get_estimators(estimators, settings))
    known = as_normalisation(normalisation)
    scale = (known.mean, known.std) if known else (None, None)
    by_name = {name: get_masking(each, *scale) for name, each in _by_name(maskings).items()}
    judged, *others = by_name
    plan = make_plan(
        named,
        masking=by_name[judged],
        maskings={other: by_name[other] for other in others},
        fractions=sorted(
            {*check_fractions(points, most=by_name[judged].most), *(share / 100 for share in MASKED)}
        ),
        features=features,
        outputs=[*dict.fromkeys([*([outputs] if isinstance(outputs, str) else outputs), *BESIDE])],
        targets=targets,
        seed=seed,
        precision=precision,
        normalisation=normalisation,
    )
    opening: dict[str, Any] = {"normalisation": normalisation, "count": count, "device": device}
    opening["class_index"] = class_index
    engine, source = open_subject(model, data, plan, stored=folder is not None, **opening)
    _check_enough(plan.features, source.first)
    plan, _ = looked_at(plan, engine, source)
    _with_random(plan.estimators)
    with tempfile.TemporaryDirectory(prefix="fpa-") as temporary:
        place, described = Path(folder or temporary), describe_subject(engine, source, name)
        evaluate_blocks(engine, source, plan, place, about=described, overwrite=overwrite, progress=progress)
        evaluation, about = read_evaluation(place)
    evidence, figures = gather(evaluation, about, judged)
    verdict, because = judge(evidence)
    shown = {key: Label(**each["label"]).text for key, each in about["plan"]["estimators"].items()}
    signed = {key: sign for key, sign in signs(about["plan"]).items() if key not in evaluation.never_finite}
    height, width = source.first.shape[2:]
    advice, command = _advice(verdict, evidence, (height, width), plan.masking)
    if doubt := evaluation.doubt():
        advice = (f"{doubt[0].upper()}{doubt[1:]}.", *advice)
    return Audit(
        verdict=verdict,
        because=(
            *because,
            *(figures["reliability"].scope(shown) if figures else ()),
            *_beside(verdict, evidence),
            *_scope(verdict, evidence, judged),
            *(f"{shown[key]} has no finite curve and is left out." for key in evaluation.never_finite),
        ),
        evidence=evidence,
        advice=advice,
        command=command,
        maskings=(judged, *others),
        signed=signed,
        fractions=plan.fractions,
        labels={key: each["label"] for key, each in about["plan"]["estimators"].items()},
        name=name,
        made_with={
            "images": f"{height} x {width} pixels",
            "features": plan.features,
            "targets": plan.targets,
            **described_fields(settings or Settings()),
            "seed": seed,
            "device": engine.device.type,
            **about["plan"]["precision"],
            "forms": about["made_with"]["forms"],
            **{package: about["made_with"]["versions"][package] for package in ("fpa", "torch")},
        },
        **figures,
    )


def gather(evaluation: Evaluation, about: dict[str, Any], judged: str) -> tuple[Evidence, dict[str, Any]]:
    """The evidence, and the numbers of the figures; `judged` is the name of the evaluation's own masking."""
    first, *_ = about["plan"]["outputs"]
    every = {first: evaluation, **evaluation.others}
    evidence, figures = _gathered(replace(evaluation, others=every), about, judged)
    beside = "logit" if first == "centred" else "centred"
    raw, _ = _gathered(replace(every[beside], others=every), about, judged)
    shift = offset(every["logit"].unmasked, every["centred"].unmasked)
    return replace(evidence, output=first, offset=shift, raw=replace(raw, output=beside)), figures


def _gathered(evaluation: Evaluation, about: dict[str, Any], judged: str) -> tuple[Evidence, dict[str, Any]]:
    plan, under = about["plan"], {judged: evaluation, **evaluation.under}
    fractions, dead = plan["fractions"], evaluation.never_finite
    signed = {name: sign for name, sign in signs(plan).items() if name not in dead}
    is_random = {name: each["raw"].get("name") == "random" for name, each in plan["estimators"].items()}
    baseline = next(
        name for name, each in plan["estimators"].items() if is_random[name] and "blur" not in each
    )
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
    accuracy = _random(evaluation.others["accuracy"], baseline, fractions)
    right = share_kept(accuracy[labelled], np.ones(labelled.sum())) if labelled.sum() > 1 else []
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


def _advice(
    verdict: Verdict, evidence: Evidence, size: tuple[int, int], masking: Masking
) -> tuple[tuple[str, ...], str]:
    """What to do, in sentences, and what to type in Python."""
    if verdict == "reliable":
        return ("Evaluate explanations on this model with the masking that was judged here.",), ""
    if verdict == "unreliable":
        fpa = suggested_fpa(*size)
        settings = f"p={fpa.p:g}, p1_max={fpa.p1_max:g}, p2={fpa.p2:g}, s_max={fpa.s_max}"
        same = "" if masking == Constant() or not masking.trains else f", masking={masking!r}"
        return (
            "Do not choose between explanations by masking pixels of this model as it is.",
            f"Fine-tune it with FPA for a few epochs and audit it again. Settings for images of "
            f"{size[0]} x {size[1]} pixels: {settings}.",
        ), f"tuned = fpa.finetune(model, data, fpa=fpa.FPA({settings}{same}))"
    more = "Audit more images: four times as many halve the intervals."
    return tuple(stops(evidence).values()) or (more,), ""


def _beside(verdict: Verdict, evidence: Evidence) -> tuple[str, ...]:
    """Whether the raw logit would be judged in another way; of another output, what it is judged by."""
    raw = judge(evidence.raw)[0] if evidence.raw is not None else verdict
    if evidence.output != "centred":
        asked = f"What is judged here is the {in_words(evidence.output)}, as asked for"
        return (
            f"{asked}: the limits are made for the centred logit, which along the same maps gives: {raw}.",
        )
    if raw == verdict:
        return ()
    return (
        f"The raw logit, which a number added to all logits changes, would give another verdict: {raw} "
        f"(the mean of all logits is {percent(evidence.offset)} of the centred logit).",
    )


def _scope(verdict: Verdict, evidence: Evidence, judged: str) -> tuple[str, ...]:
    """For which maskings a good verdict does not hold."""
    differ = [name for name, same in evidence.agreement.items() if not same.low > SAME_RANKING]
    if verdict != "reliable" or not differ:
        return ()
    under = " and ".join(filter(None, (", ".join(differ[:-1]), differ[-1])))
    scope = f"The verdict holds for the masking {judged}"
    return (f"{scope}: under {under} the ranking of the estimators may be different.",)


def _with_random(estimators: Mapping[str, Estimator]) -> dict[str, Estimator]:
    """The estimators and a random map; once all signs are known, the error that says which are missing."""
    by_sign = {name: each.sign for name, each in estimators.items()}
    has_random = any(each.is_random for each in estimators.values())
    if "random" in estimators and not estimators["random"].is_random:
        raise InputError("the name 'random' is taken by the random baseline: rename the estimator")
    undecided = any(each.undecided for each in estimators.values())
    if not undecided and not {"signed", "unsigned"} <= set(by_sign.values()):
        named = ", ".join(name for name, each in estimators.items() if each.explains)
        raise InputError(
            "an audit needs at least one signed and one unsigned estimator (as in the set paper), got "
            f"{named or 'none besides random'}"
        )
    return {**({} if has_random else get_estimators("random")), **estimators}


def _check_enough(features: str | int, images: Tensor) -> None:
    """Refuse patches so large that the first share of `MASKED` is less than one of them."""
    count, needed = features_of(features, images[:1]).most, 100 // MASKED[0]
    if count < needed:
        size = f"{images.shape[2]} x {images.shape[3]} pixels"
        raise InputError(
            f"an audit masks {MASKED[0]} % of the features of an image, so it needs at least {needed}; "
            f"images of {size} have {count} (features {features}): use smaller patches, or more segments"
        )


def _by_name(maskings: Sequence[Any]) -> dict[str, Any]:
    """Each masking by a name of its own."""
    listed = [maskings] if isinstance(maskings, (str, Mapping)) or callable(maskings) else list(maskings)
    names = [_called(each) for each in listed]
    if not listed or len(set(names)) < len(names):
        raise InputError(f"maskings must be one or more, all different, got {', '.join(names) or 'none'}")
    return dict(zip(names, listed, strict=True))


def _called(masking: Any) -> str:
    if isinstance(masking, Mapping):
        settings = (f"{key}={value}" for key, value in masking.items() if key != "name")
        return " ".join([str(masking.get("name")), *settings])
    if isinstance(masking, str):
        return masking
    return str(getattr(masking, "__name__", type(masking).__name__)).lower()
