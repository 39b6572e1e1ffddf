"""What the rule of an audit sees."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.auditing.rule import MASKED, Evidence
from fpa.data.loaders import ImageBatches
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.evaluation.loop import blocks_of, predicted
from fpa.explanation import Estimator, Settings, Task, get_estimators, maps_of, passes
from fpa.masking import Masking
from fpa.perturbation.curves import curves_of
from fpa.progress import Tell, telling
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import ranking_agreement, reliability
from fpa.statistics.intervals import Estimate, share_kept

if TYPE_CHECKING:
    pass


class _Curves(NamedTuple):
    """What the model said of every image; the curves by masking and estimator, [N, K] each."""

    labels: NDArray[Any]
    targets: NDArray[Any]
    unmasked: NDArray[Any]
    mif: dict[str, dict[str, NDArray[Any]]]
    lif: dict[str, dict[str, NDArray[Any]]]
    shares: dict[str, dict[str, NDArray[Any]]]
    """By "mif" and "lif", and estimator, where patches differ in size: the share of the pixels masked."""
    right: NDArray[Any]
    """[N, K]: whether the class is still the right one under random masking, mean of two draws."""
    fractions: NDArray[Any]
    classes: int
    size: tuple[int, int]


def _measure(
    engine: Engine,
    batches: ImageBatches,
    estimators: Mapping[str, Estimator],
    settings: Settings,
    maskings: Mapping[str, Masking],
    fractions: Sequence[float],
    features: str | int,
    seed: int,
    count: int | None,
    progress: bool | Tell,
) -> _Curves:
    """Every image is explained once, under the first masking, and perturbed under each."""
    judged = next(iter(maskings))
    total = count if batches.dataset is None else min(len(batches.dataset), count or len(batches.dataset))
    inner = sum(0 < fraction < 1 for fraction in fractions)
    per_image = passes(estimators, settings) + 2 * inner * len(estimators) * len(maskings)
    engine.expected_rows = max(engine.expected_rows, (total or 0) * per_image)
    blocks: list[dict[tuple[str, ...], Tensor]] = []
    with telling(total, progress) as tell:
        for images, labels, indices in blocks_of(_first(batches, count), None, engine, settings):
            images = engine.images(images)
            logits, targets, truth = predicted(engine, images, labels)
            task = Task(engine, images, targets, indices, seed, maskings[judged])
            maps = maps_of(task, get_estimators(estimators, settings))
            block: dict[tuple[str, ...], Tensor] = {("labels",): labels, ("targets",): targets}
            for name, masking in maskings.items():
                by_output = curves_of(
                    replace(task, masking=masking), maps, fractions, logits=logits, labels=truth,
                    features=features, outputs=("logit", "accuracy") if name == judged else ("logit",),
                )  # fmt: skip
                curves = by_output["logit"]
                for estimator in maps:
                    block["mif", name, estimator] = curves.mif[estimator]
                    block["lif", name, estimator] = curves.lif[estimator]
                if name == judged:
                    accuracy = by_output["accuracy"]
                    block["unmasked",] = curves.unmasked
                    block["right",] = (accuracy.mif["random"] + accuracy.lif["random"]) / 2
                    for side, exact in (("mif", curves.shares_mif), ("lif", curves.shares_lif)):
                        block |= {("share", side, one): values for one, values in (exact or {}).items()}
            blocks.append({key: values.cpu() for key, values in block.items()})
            tell.advance(len(indices))
    if not blocks:
        raise InputError("there are no images: the data are empty")
    joined = {key: torch.cat([block[key] for block in blocks]).numpy() for key in blocks[0]}

    def by_masking(side: str) -> dict[str, dict[str, NDArray[Any]]]:
        return {name: {one: joined[side, name, one] for one in estimators} for name in maskings}

    return _Curves(
        joined["labels",],
        joined["targets",],
        joined["unmasked",],
        by_masking("mif"),
        by_masking("lif"),
        {
            side: {one: joined["share", side, one] for one in estimators if ("share", side, one) in joined}
            for side in ("mif", "lif")
        },
        joined["right",],
        curves.fractions.numpy(),
        logits.shape[1],
        (images.shape[2], images.shape[3]),
    )


def _evidence(
    curves: _Curves, signed: Mapping[str, bool], fractions: Sequence[float]
) -> tuple[Evidence, dict[str, Any]]:
    """The evidence, and the numbers of the figures."""
    judged, *others = curves.mif
    known = curves.labels >= 0
    finite = np.isfinite(curves.unmasked)
    everything = curves.mif[judged]["random"][:, -1]
    change = (curves.unmasked - everything)[finite & np.isfinite(everything)]
    spread = curves.unmasked[finite]
    evidence = Evidence(
        images=len(curves.labels),
        used=0,
        classes=curves.classes,
        accuracy=float((curves.labels == curves.targets)[known].mean()) if known.any() else None,
        labels=int(known.sum()),
        logit_change=float(change.mean()) if change.size else math.nan,
        logit_spread=float(spread.std(ddof=1)) if spread.size > 1 else math.nan,
    )
    usable = finite & (curves.unmasked > 0)
    for side in (curves.mif, curves.lif):
        for one in side.values():
            usable &= np.all([np.isfinite(values).all(axis=1) for values in one.values()], axis=0)
    if usable.sum() < 2:
        return replace(evidence, used=int(usable.sum())), {}

    fidelity = {
        name: {
            one: Fidelity.from_curves(
                curves.mif[name][one],
                curves.lif[name][one],
                curves.shares["mif"].get(one, curves.fractions),
                fractions_lif=curves.shares["lif"].get(one, curves.fractions),
                keep=usable,
            )
            for one in curves.mif[name]
        }
        for name in curves.mif
    }
    unmasked = curves.unmasked[usable].astype(np.float64)

    def random(name: str) -> list[Estimate]:
        """The share of the logit kept along random masking: MIF and LIF of a random map are two draws."""
        return share_kept((curves.mif[name]["random"] + curves.lif[name]["random"])[usable] / 2, unmasked)

    kept = {name: random(name) for name in curves.mif}
    labelled = usable & known if known.any() else usable
    right = share_kept(curves.right[labelled], np.ones(labelled.sum())) if labelled.sum() > 1 else []
    at = {percent: fractions.index(percent / 100) for percent in MASKED}
    early = [place for place, fraction in enumerate(fractions) if 0 < fraction <= MASKED[0] / 100]
    reliable = reliability(fidelity[judged], signed)
    pairs = [pair for pair in reliable.pairs if pair.kind == "signed-unsigned"]

    def rise(name: str) -> Estimate:
        start = curves.lif[judged][name][usable][:, early].mean(axis=1, keepdims=True)
        return Estimate(*(value - 1 for value in share_kept(start, unmasked)[0]))

    evidence = replace(
        evidence,
        used=int(usable.sum()),
        pairs=len(pairs),
        opposite=reliable.opposite["signed-unsigned"],
        contradictions=sum(pair.contradiction for pair in pairs),
        correlation=reliable.correlation["all"],
        kept={percent: kept[judged][place] for percent, place in at.items()},
        right={percent: right[place] for percent, place in {0: 0, **at}.items() if right},
        rise={name: rise(name) for name, is_signed in signed.items() if is_signed},
        kept_by_masking={name: values[at[MASKED[0]]] for name, values in kept.items()},
        agreement={name: ranking_agreement(fidelity[judged], fidelity[name]) for name in others},
    )
    areas = {
        name: {
            one: Estimate(score.area, score.area - score.interval, score.area + score.interval)
            for one, score in scores.items()
        }
        for name, scores in fidelity.items()
    }
    figures = {"kept": tuple(kept[judged]), "right": tuple(right), "areas": areas, "reliability": reliable}
    return evidence, figures


def _first(batches: ImageBatches, count: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches of the first `count` images."""
    left: float = math.inf if count is None else count
    for images, labels, indices in batches:
        few = int(min(left, len(images)))
        yield images[:few], labels[:few], indices[:few]
        left -= few
        if left <= 0:
            return
