"""What an audit measured of every image, small enough to keep: any later rule can judge it again.

    areas.parquet     a row an image; a column for its label, its prediction, and for each output that was
                      followed OUTPUT.unmasked, OUTPUT.masked.10 (the output with 10 % of the pixels masked
                      at random) and OUTPUT.ESTIMATOR.mif and .lif, the areas under its curves in percent

The curves of an audit, from which all of this is made, take twenty times the space.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fpa.auditing.evidence import measurable_images, random_curves
from fpa.auditing.rule import MASKED, Evidence
from fpa.evaluation.evaluation import Evaluation, Floats, Integers
from fpa.evaluation.result import Result
from fpa.evaluation.stored_plan import StoredPlan
from fpa.files import open_table, writable_folder, write_table
from fpa.scores.fidelity import small_outputs
from fpa.statistics import Estimate, reliability, share_kept
from fpa.statistics.intervals import Areas, Bools

FILE = "areas.parquet"
FORMAT = 1

_STEPS = 1024
"""Areas are stored in steps of a 1024th of a percent: the low bytes are then zeros, which take no space."""


@dataclass(frozen=True, eq=False)
class OutputAreas:
    """One output of a model, image by image."""

    unmasked: Floats
    """[N]: the output for the unmasked image."""
    masked: dict[int, Floats]
    """[N] by percent of the pixels masked at random: the output then; the largest percent is everything."""
    areas: dict[str, Areas]
    """By estimator: the areas under the MIF and the LIF curve; empty where too few images could be used."""

    @property
    def measured(self) -> Bools:
        """[N]: the images that have areas."""
        none = np.zeros(len(self.unmasked), dtype=bool)
        return next((each.kept for each in self.areas.values()), none)

    @property
    def usable(self) -> Bools:
        """[N]: those of them that the rule judges, as `evidence.usable_images`."""
        divided = any(each.normalise == "each" for each in self.areas.values())
        return self.measured & ~small_outputs(self.unmasked, self.measured) if divided else self.measured


@dataclass(frozen=True, eq=False)
class ImageAreas:
    """What was measured of every image of an audit."""

    name: str
    """What was audited."""
    images: Integers
    """[N]: the numbers of the images in their data set."""
    labels: Integers
    """[N]: their true classes, -1 where unknown."""
    predicted: Integers
    """[N]: the classes predicted."""
    outputs: dict[str, OutputAreas]
    """By name; the one that was judged first."""
    signed: dict[str, bool]
    """By explanation, whether it is signed; random and other model-free maps are not in here."""
    families: dict[str, str | None]
    """By estimator: what it is apart from its settings; None where only its areas can tell."""

    def evidence(self, output: str | None = None) -> Evidence:
        """What the rule judges, of the output that was judged or of another; `rule.judge` takes it."""
        name = output or next(iter(self.outputs))
        found = self.outputs[name]
        usable = found.usable
        everything = max(found.masked)
        # It knows what accuracy and chance are; there are no curves to give it.
        known = Evaluation(
            fractions=np.zeros(1),
            indices=self.images,
            labels=self.labels,
            targets=self.predicted,
            unmasked=found.unmasked,
            mif={},
            lif={},
        )
        judged = {each: replace(areas, kept=areas.kept & usable) for each, areas in found.areas.items()}
        agreement = reliability(judged, self.signed, families=self.families)
        explanations = [each for each in agreement.by_area if each in self.signed]
        compared = [self.signed[each] for each in explanations if each not in agreement.duplicates]
        enough = bool(usable.sum() > 1)
        return Evidence(
            images=len(self.images),
            used=int(usable.sum()),
            small=int((found.measured & ~usable).sum()),
            accuracy=known.accuracy,
            labels=int((self.labels >= 0).sum()),
            chance=known.chance,
            change=_share(found.unmasked - found.masked[everything], found.unmasked),
            most_masked=everything / 100,
            signed=sum(compared),
            unsigned=len(compared) - sum(compared),
            opposite=agreement.opposite["signed-unsigned"] if enough else None,
            contradictions=agreement.counts("signed-unsigned").significant,
            correlation=agreement.correlation["all"] if enough else None,
            kept={
                share: share_kept(found.masked[share][usable, None], found.unmasked[usable])[0]
                for share in MASKED
                if enough
            },
            output=name,
        )


def _share(part: Floats, whole: Floats) -> Estimate | None:
    """The mean of a part as a share of that of the whole, over the images where both are finite."""
    finite = np.isfinite(part) & np.isfinite(whole)
    if finite.sum() < 2:
        return None
    if not whole[finite].mean() > 0:
        return Estimate(0.0, 0.0, 0.0)
    return share_kept(part[finite, None], whole[finite])[0]


def image_areas(result: Result, *, name: str = "") -> ImageAreas:
    """The values of every image of a result that can be audited, for the logits that were followed."""
    evaluation = result.evaluation
    plan = result.description.plan
    followed = {plan.output: evaluation}
    followed |= {key: evaluation.others[key] for key in ("centred", "logit") if key in evaluation.others}
    explained = evaluation.targets if evaluation.predicted is None else evaluation.predicted
    return ImageAreas(
        name=name,
        images=evaluation.indices,
        labels=evaluation.labels,
        predicted=explained,
        outputs={output: _of_output(part, plan) for output, part in followed.items()},
        signed=plan.signed,
        families={
            estimator: None if family is None else json.dumps(family, default=str)
            for estimator, family in plan.families.items()
        },
    )


def _of_output(part: Evaluation, plan: StoredPlan) -> OutputAreas:
    """One output, reduced from curves to values."""
    assert plan.random is not None  # an audit has random masking
    curves = random_curves(part, plan.random, plan.fractions)
    points = {share: plan.fractions.index(share / 100) for share in MASKED}
    points[round(100 * plan.fractions[-1])] = -1
    # Those with an output next to 0 too, which the rule does not judge: a later one may.
    measurable = measurable_images(part)
    scored = {} if measurable.sum() < 2 else set(part.mif) - set(part.never_finite)
    return OutputAreas(
        unmasked=part.unmasked.astype(np.float64),
        masked={share: curves[:, place] for share, place in points.items()},
        areas={each: part.fidelity(each, keep=measurable) for each in part.mif if each in scored},
    )


def write_areas(path: Path | str, result: Result, *, name: str = "") -> Path:
    """Leave the values of every image of a result in a file."""
    import pyarrow as pa

    target = Path(path)
    writable_folder(target.parent)
    found = image_areas(result, name=name)
    columns: dict[str, Any] = {
        "image": found.images.astype(np.int32),
        "label": found.labels.astype(np.int32),
        "predicted": found.predicted.astype(np.int32),
    }
    whole = list(columns)
    for output, values in found.outputs.items():
        columns[f"{output}.unmasked"] = values.unmasked.astype(np.float32)
        for share, masked in values.masked.items():
            columns[f"{output}.masked.{share}"] = masked.astype(np.float32)
        for estimator, areas in values.areas.items():
            columns[f"{output}.{estimator}.mif"] = _rounded(areas.mif_areas)
            columns[f"{output}.{estimator}.lif"] = _rounded(areas.lif_areas)
    notes = {
        "format": FORMAT,
        "name": name,
        "outputs": {
            output: {
                "masked": list(values.masked),
                "estimators": list(values.areas),
                "normalise": next((each.normalise for each in values.areas.values()), "each"),
            }
            for output, values in found.outputs.items()
        },
        "signed": found.signed,
        "families": found.families,
    }
    split = [column for column in columns if column not in whole]
    write_table(target, pa.table(columns), notes, result.description.origin.key, (), split=split)
    return target


def read_areas(path: Path | str) -> ImageAreas:
    """What `write_areas` wrote."""
    stored = open_table(Path(path))
    table = stored.read()
    notes = stored.notes
    columns = {column: table[column].to_numpy() for column in table.column_names}
    return ImageAreas(
        name=notes["name"],
        images=columns["image"].astype(np.int64),
        labels=columns["label"].astype(np.int64),
        predicted=columns["predicted"].astype(np.int64),
        outputs={output: _read_output(columns, output, about) for output, about in notes["outputs"].items()},
        signed=notes["signed"],
        families=notes["families"],
    )


def _read_output(columns: Mapping[str, Floats], output: str, about: Mapping[str, Any]) -> OutputAreas:
    values = {column: numbers.astype(np.float64) for column, numbers in columns.items()}
    normalise: Literal["each", "none"] = about["normalise"]
    areas = {}
    for estimator in about["estimators"]:
        mif = values[f"{output}.{estimator}.mif"]
        lif = values[f"{output}.{estimator}.lif"]
        kept = np.isfinite(mif) & np.isfinite(lif)
        areas[estimator] = Areas(normalise=normalise, mif_areas=mif, lif_areas=lif, kept=kept)
    return OutputAreas(
        unmasked=values[f"{output}.unmasked"],
        masked={share: values[f"{output}.masked.{share}"] for share in about["masked"]},
        areas=areas,
    )


def _rounded(areas: Floats) -> Floats:
    return (np.round(areas * _STEPS) / _STEPS).astype(np.float32)
