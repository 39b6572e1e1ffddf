"""Can the evaluation of explanations on this model be trusted? `audit` measures and judges by a fixed rule.

The rule (`rule.judge`) sees only what the model says to images, masked and unmasked, not how it was trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpa.auditing.evidence import Findings, gather
from fpa.auditing.lacking import lacking
from fpa.auditing.maskings import by_name, compared
from fpa.auditing.protocols import evidence_by_protocol
from fpa.auditing.rule import (
    FEWEST_IMAGES,
    MASKED,
    Evidence,
    Verdict,
    judge,
    ranking_kept,
    stops,
)
from fpa.auditing.verdict import Audit
from fpa.data.normalisation import as_normalisation
from fpa.engine import Engine
from fpa.errors import InputError, warn
from fpa.evaluation.evaluator import CarriedOut, carry_out, uncertain_labels
from fpa.evaluation.keywords import with_options
from fpa.evaluation.options import AuditOptions, PlanOptions
from fpa.evaluation.plan import Plan, followed, plan_of, settings_of
from fpa.evaluation.quick import quickened
from fpa.evaluation.recommended import recommendation
from fpa.evaluation.result import Result
from fpa.evaluation.shards import load_result
from fpa.evaluation.sharing import Share, share_of
from fpa.evaluation.subject import Case, opened, prepare
from fpa.evaluation.targets import with_signs
from fpa.explanation import Estimator, get_estimators
from fpa.masking import Constant, Masking, get_masking, masking_json
from fpa.models.hubs import Opened
from fpa.notes import Kind, Note, Plain, Severity
from fpa.perturbation import check_fractions, features_of
from fpa.showing import clause
from fpa.statistics import Reliability
from fpa.values import checked, fields_as_json

BESIDE = ("centred", "logit", "accuracy")
"""Outputs that are followed in any case."""


@with_options(AuditOptions)
@checked
@torch.inference_mode(False)
def audit(model: nn.Module | Engine | Opened, data: Any, options: AuditOptions) -> Audit:
    """Can the evaluation of explanations on this model be trusted? See docs/audit.md for the rule.

    Args:
        model: Any image classifier, or an `fpa.Engine`, as for `fpa.evaluate`.
        data: Images [N, C, H, W], (images, labels), a loader, the name of a data set, ...; see
            `fpa.image_source`. Without labels the agreement with the unmasked prediction stands in for the
            accuracy.
        options: Each is a keyword.

    >>> import fpa
    >>> model = fpa.load_model("shapes-fpa")
    >>> verdict = audit(model, "shapes", count=8, ig_steps=5, sg_samples=2, progress=False)
    >>> verdict.verdict, verdict.exit_code, verdict.because[0]
    ('cannot tell', 4, 'Too few images: 8 could be used, at least 100 are needed.')

    """
    network, options = opened(model, quickened(options))
    classes = model.classes if isinstance(model, Opened) else None
    case = prepare_audit(network, data, audit_plan(options), options, classes=classes)
    for note in uncertain_labels(case):
        warn(clause(note))
    return audit_case(case, options)


def audit_plan(options: AuditOptions) -> Plan:
    """The plan of an audit: random masking and the points of the rule are in it in any case."""
    judged, *others = _maskings(options).items()
    return plan_of(
        PlanOptions(
            estimators=_with_random(get_estimators(options.estimators, settings_of(options))),
            masking=judged[1],
            maskings=dict(others),
            protocols=options.protocols,
            fractions=_fractions(options.points, judged[1]),
            features=options.features,
            outputs=[*dict.fromkeys([*followed(options), *BESIDE])],
            targets=options.targets,
            seed=options.seed,
            precision=options.precision,
            normalisation=options.normalisation,
        )
    )


def prepare_audit(
    model: nn.Module | Engine,
    data: Any,
    plan: Plan,
    options: AuditOptions,
    *,
    classes: Sequence[str] | None = None,
    workers: int = 0,
) -> Case:
    """Make a model and its images ready for the plan of an audit; refuses what cannot be audited."""
    case = prepare(
        model,
        data,
        plan,
        options,
        normalisation=options.normalisation,
        classes=classes,
        workers=workers,
    )
    suiting = case.plan.suiting(case.source.first, case.token_grid)
    for features in dict.fromkeys([plan.features, *(each.features for each in suiting.protocols.values())]):
        _check_enough(features, case.source.first)
    signed, _ = with_signs(suiting, case.subject.engine, case.source)
    _with_random(signed.estimators)
    return replace(case, plan=signed)


def audit_case(case: Case, options: AuditOptions) -> Audit:
    """The audit of a model and images that `prepare_audit` has made ready with these options."""
    return conclude_case(case, options, measure_case(case, options).result())


def measure_case(case: Case, options: AuditOptions, share: Share | None = None) -> CarriedOut:
    """Measure a model and images that `prepare_audit` has made ready, or this process's share of them."""
    return carry_out(
        case,
        options.folder,
        overwrite=options.overwrite,
        with_scores=False,
        progress=options.progress,
        share=share or share_of(options.part, wait=options.wait, device=options.device),
    )


def conclude_case(case: Case, options: AuditOptions, result: Result) -> Audit:
    """The audit of a model and images by what was measured with these options."""
    masking = case.plan.masking
    plain = masking == Constant() or not masking.trains
    judged, *_ = _maskings(options)
    return conclude(
        result,
        judged,
        name=options.name or "",
        left_out=case.plan.protocols_left_out,
        size=case.source.first.shape[2:],
        tuned_with=None if plain else masking_json(masking),
        made_with={**fields_as_json(settings_of(options)), "device": case.subject.engine.device.type},
    )


def _maskings(options: AuditOptions) -> dict[str, Masking]:
    """The masking that is judged, then those that it is compared with, by name."""
    normalisation = as_normalisation(options.normalisation)
    scale = (normalisation.mean, normalisation.std) if normalisation else (None, None)
    return by_name(compared(options.maskings, options.masking, *scale), *scale)


@checked
def audit_result(result: Result | Path | str) -> Audit:
    """The verdict on an evaluation that was made before, from its curves alone: no image is looked at again.

    - `result`: what `fpa.evaluate` returned, or the folder of an evaluation. It must have random masking, a
      signed and an unsigned estimator, and curves with points at 10, 25 and 50 %, as 21 points have.

    What was scored is judged; if that is not the centred logit, the centred one stands beside it. Other
    protocols are compared where the evaluation has them, and the accuracy of masked images is known only
    where it was followed.
    """
    made = result if isinstance(result, Result) else load_result(result)
    lacks = lacking(made.description.plan)
    if lacks is not None:
        raise InputError(str(lacks))
    masking = made.description.plan.masking
    judged = str(masking["name"])
    trains = ":" in judged or get_masking(masking).trains
    plain = masking == masking_json(Constant()) or not trains
    return conclude(
        made,
        judged,
        name=made.name,
        size=None if made.examples is None else made.examples.images.shape[2:],
        tuned_with=None if plain else masking,
    )


def conclude(
    result: Result,
    judged: str,
    *,
    name: str,
    left_out: Sequence[Note] = (),
    size: Sequence[int] | None = None,
    tuned_with: Mapping[str, Any] | None = None,
    made_with: Mapping[str, Any] | None = None,
) -> Audit:
    """The verdict on a result.

    - `judged`: the name of the masking judged, which is that of the result.
    - `left_out`: the protocols that were left out, and why.
    - `size`: height and width of the images, where they are known.
    - `tuned_with`: the masking judged, as JSON, where `fpa.finetune` has to be told which to train with.
    - `made_with`: further facts of how the result was made.
    """
    plan = result.description.plan
    found = gather(result, judged)
    verdict, reasons = judge(found.evidence)
    unknown_masking = "" if tuned_with is None else f", masking={dict(tuned_with)!r}"
    return Audit(
        result=found.result,
        verdict=verdict,
        evidence=found.evidence,
        reasons=(*reasons, *_also(found, verdict), *left_out),
        advised=(*result.evaluation.facts, *_advice(verdict, found)),
        command=f"tuned = fpa.finetune(model, data{unknown_masking})" if verdict == "unreliable" else "",
        maskings=(judged, *(name for name in plan.protocols if name not in plan.with_own_features)),
        protocols=evidence_by_protocol(found),
        kept=found.kept,
        right=found.right,
        elsewhere=found.elsewhere,
        name=name,
        made_with=_made_with(result, size, made_with or {}),
    )


def _made_with(result: Result, size: Sequence[int] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers of a result depend on, for the page."""
    plan = result.description.plan
    arithmetic = result.description.arithmetic
    versions = result.description.versions
    return {
        **({} if size is None else {"images": f"{size[0]} x {size[1]} pixels"}),
        "features": plan.features,
        "targets": plan.targets,
        "seed": plan.seed,
        **more,
        **(plan.precision or {}),
        **({"forms": arithmetic} if arithmetic else {}),
        **{name: versions[name] for name in ("fpa", "torch") if name in versions},
    }


def _also(found: Findings, verdict: Verdict) -> list[Note]:
    """What to know besides the reasons of the rule."""
    evaluation = found.result.evaluation
    agreement = found.result.reliability
    notes: list[Note] = []
    if found.evidence.opposite is not None:
        notes += [*_in_all(agreement), *agreement.facts()]
    notes += _beside(verdict, found.evidence)
    notes += _reach(verdict, found)
    notes += found.result.noted
    notes += [
        Note(Kind.NEVER_FINITE, Severity.WARNING, {"estimator": name}) for name in evaluation.never_finite
    ]
    if not evaluation.complete:
        notes.append(Note(Kind.INCOMPLETE, Severity.WARNING))
    return notes


def _in_all(found: Reliability) -> list[Note]:
    """The one estimator that all pairs in opposite order have in common, if there is one."""
    pairs = [pair for pair in found.pairs if pair.kind == "signed-unsigned" and pair.opposite]
    if len(pairs) < 2:
        return []
    common = set.intersection(*({pair.first, pair.second} for pair in pairs))
    return [
        Note(Kind.IN_ALL_OPPOSITE, Severity.INFO, {"estimator": name, "pairs": len(pairs)}) for name in common
    ]


REMEDIES = {
    Kind.NOT_ABOVE_CHANCE: Kind.CHECK_LABELS,
    Kind.LITTLE_CHANGE: Kind.CHECK_MASKING,
    Kind.TOO_FEW_IMAGES: Kind.ENOUGH_IMAGES,
    Kind.TOO_FEW_ESTIMATORS: Kind.MORE_ESTIMATORS,
}
"""What to do about each reason to give no verdict."""


def _advice(verdict: Verdict, found: Findings) -> list[Note]:
    """What to do, and by which protocol to evaluate where there is something to evaluate."""
    stopped = list(stops(found.evidence))
    if verdict == "reliable":
        kinds = [Kind.EVALUATE]
    elif verdict == "unreliable":
        kinds = [Kind.DO_NOT_CHOOSE, Kind.FINE_TUNE]
    else:
        kinds = [REMEDIES[stop.kind] for stop in stopped] or [Kind.MORE_IMAGES]
    values: dict[Kind, dict[str, Plain]] = {Kind.ENOUGH_IMAGES: {"needed": FEWEST_IMAGES}}
    advised = [Note(kind, Severity.ADVICE, values.get(kind, {})) for kind in kinds]
    return advised if stopped else [*advised, *recommendation(found.result.description)]


def _beside(verdict: Verdict, evidence: Evidence) -> list[Note]:
    """Whether the raw logit would be judged in another way; of another output, what it is judged by."""
    beside = None if evidence.raw is None else judge(evidence.raw)[0]
    if evidence.output != "centred":
        values: dict[str, Plain] = {"output": evidence.output, "centred_verdict": beside}
        return [Note(Kind.OTHER_OUTPUT, Severity.INFO, values)]
    if beside in (None, verdict):
        return []
    values = {"verdict": beside, "offset": evidence.offset}
    return [Note(Kind.RAW_LOGIT_DIFFERS, Severity.WARNING, values)]


def _reach(verdict: Verdict, found: Findings) -> list[Note]:
    """For which protocols a good verdict does not hold."""
    plan = found.result.description.plan
    survives = {name: ranking_kept(found.evidence, name) == "good" for name in found.evidence.reordered}
    differ = [plan.protocol_names[name] for name, kept in survives.items() if not kept]
    if verdict != "reliable" or not differ:
        return []
    values: dict[str, Plain] = {"judged": plan.protocol, "others": differ}
    return [Note(Kind.OTHER_PROTOCOLS_DIFFER, Severity.WARNING, values)]


def _fractions(points: int, masking: Masking) -> list[float]:
    """The fractions of so many points, and those at which random masking is judged."""
    return sorted({*check_fractions(points, most=masking.most), *(share / 100 for share in MASKED)})


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
    count = features_of(features, images[:1]).most
    needed = 100 // MASKED[0]
    if count < needed:
        size = f"{images.shape[2]} x {images.shape[3]} pixels"
        raise InputError(
            f"an audit masks {MASKED[0]} % of the features of an image, so it needs at least {needed}; "
            f"images of {size} have {count} (features {features}): use smaller patches, or more segments"
        )
