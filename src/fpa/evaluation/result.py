"""Results in memory: the curves and scores of one model (`Result`), and of several side by side (`Results`).

Read from a folder without torch and without the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpa import showing
from fpa.evaluation import scored
from fpa.evaluation.examples import Examples
from fpa.evaluation.head import Head, head_of
from fpa.notes import Kind, Note, Severity
from fpa.scores.fidelity import Fidelity
from fpa.statistics.baselines import Beats, beats
from fpa.statistics.contradictions import Reliability, reliability
from fpa.statistics.intervals import ENOUGH_IMAGES, PairedTest, above_chance, half_width, surprisingly_low

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """What was measured of every image; NaN marks what was left out because it was not finite."""

    fractions: Floats
    """[K]: the share of pixels removed at each point."""
    indices: Integers
    """[N]: the numbers of the images in their data set."""
    labels: Integers
    """[N]: their true classes, -1 where unknown."""
    targets: Integers
    """[N]: the classes explained."""
    unmasked: Floats
    """[N]: the value of the unmasked image."""
    mif: dict[str, Floats]
    """Most important first, [N, K] for every estimator."""
    lif: dict[str, Floats]
    """Least important first, [N, K] for every estimator."""
    predicted: Integers | None = None
    """[N]: the classes predicted, where others are explained."""
    confidence: Floats | None = None
    """[N]: the probability of the class predicted."""
    shares_mif: dict[str, Floats] | None = None
    """Exact share of pixels removed, [N, K], where features differ in size."""
    shares_lif: dict[str, Floats] | None = None
    values: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """By score and estimator: the value of every image, [N]."""
    importance: dict[str, Floats] = field(default_factory=dict)
    """For every estimator the mean over images of the image's importance scores sorted in LIF order, at
    evenly spaced places from the first pixel removed to the last, [P] with P at most 201."""
    others: dict[str, "Evaluation"] = field(default_factory=dict)
    """The same curves for the other outputs: "probability", "margin", "accuracy", ..."""
    under: dict[str, "Evaluation"] = field(default_factory=dict)
    """The same maps perturbed under further maskings."""
    divided: bool = True
    """Whether an image's curve is divided by its own start, as logits are."""
    problems: list[str] = field(default_factory=list)
    """What was left out, in words."""
    complete: bool = True
    """Whether the run came to its end."""

    def fidelity(self, estimator: str, *, keep: NDArray[np.bool_] | None = None) -> Fidelity:
        """The area A of an estimator, each image over the shares of its own pixels that were removed."""
        return Fidelity.from_curves(
            self.mif[estimator],
            self.lif[estimator],
            self.shares_mif[estimator] if self.shares_mif else self.fractions,
            fractions_lif=self.shares_lif[estimator] if self.shares_lif else None,
            normalise="each" if self.divided else "none",
            keep=keep,
        )

    @property
    def never_finite(self) -> list[str]:
        """The estimators that have no finite curve for any image, though others have: they are not scored."""
        curves = {name: np.hstack([self.mif[name], self.lif[name]]) for name in self.mif}
        return [name for name, each in curves.items() if not np.isfinite(each).all(axis=1).any()]

    @property
    def accuracy(self) -> float | None:
        """Share of correctly classified images among those with a label; None if there are none."""
        known = self.labels >= 0
        predicted = self.targets if self.predicted is None else self.predicted
        return float((self.labels == predicted)[known].mean()) if known.any() else None

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing, the share of the commonest label; None where no two classes occur."""
        _, counts = np.unique(self.labels[self.labels >= 0], return_counts=True)
        return float(counts.max() / counts.sum()) if len(counts) > 1 else None

    @property
    def facts(self) -> tuple[Note, ...]:
        """What to doubt: an accuracy near chance although the model is confident of its predictions."""
        known = self.labels >= 0
        accuracy = self.accuracy
        if accuracy is None or self.confidence is None or not np.isfinite(self.confidence[known]).any():
            return ()
        confidence = float(np.nanmean(self.confidence[known]))
        low = surprisingly_low(accuracy, int(known.sum()), sure=confidence, chance=self.chance or 0.0)
        if not confidence >= 0.5 or not low:
            return ()
        values = {"accuracy": accuracy, "confidence": confidence}
        return (Note(Kind.DOUBTFUL_CLASSES, Severity.WARNING, values),)

    def doubt(self) -> str | None:
        """The same in words; None where there is nothing to doubt."""
        return next(map(showing.clause, self.facts), None)


class Summary(NamedTuple):
    """A score over images: its mean, half the width of its 95 % interval, and how many images it is over."""

    mean: float
    interval: float
    used: int


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """How well each estimator explains one model, from `fpa.evaluate` or read from a folder.

    It prints as a table in a terminal and in a notebook.
    """

    name: str
    """The model, or the variant of a study."""
    evaluation: Evaluation
    """The curves and scores of every image."""
    fidelity: dict[str, Fidelity]
    """For every estimator the area A, with its interval."""
    reliability: Reliability
    """How often MIF and LIF contradict each other; without pairs if there are no two explanations."""
    about: dict[str, Any]
    """evaluation.json: the plan, the classes, versions, device, the arithmetic used, timings."""
    examples: Examples | None = None
    """A few images with the maps of every estimator."""
    history: dict[str, list[float | None]] = field(default_factory=dict)
    """Of a model trained here, the columns of training.csv: epoch, learning_rate, loss, ..."""

    @classmethod
    def of(
        cls,
        name: str,
        evaluation: Evaluation,
        about: dict[str, Any],
        *,
        keep: NDArray[np.bool_] | None = None,
        examples: Examples | None = None,
        history: dict[str, list[float | None]] | None = None,
    ) -> "Result":
        """Score an evaluation, over the images that `keep` says if it is given."""
        dead = set(evaluation.never_finite)
        if len(dead) == len(evaluation.mif):
            dead = set()  # the error says why
        fidelity = {key: evaluation.fidelity(key, keep=keep) for key in evaluation.mif if key not in dead}
        agreement = reliability(fidelity, signs(about["plan"]), families=families(about["plan"]))
        return cls(name, evaluation, fidelity, agreement, about, examples=examples, history=history or {})

    @classmethod
    def unscored(
        cls,
        name: str,
        evaluation: Evaluation,
        about: dict[str, Any],
        *,
        examples: Examples | None = None,
    ) -> "Result":
        """An evaluation as it is, without scores: there may be no image that all could be scored over."""
        return cls(name, evaluation, {}, reliability({}, {}), about, examples=examples)

    def over(self, images: NDArray[np.bool_]) -> "Result":
        """The same evaluation scored over these images, bool [N]; itself where its scores are over them."""
        kept = [fidelity.kept for fidelity in self.fidelity.values()]
        if kept and all(np.array_equal(each, images) for each in kept):
            return self
        return Result.of(
            self.name,
            self.evaluation,
            self.about,
            keep=images,
            examples=self.examples,
            history=self.history,
        )

    @cached_property
    def head(self) -> Head | None:
        """How far the logits are from centred, and what that changes; None where another output is scored."""
        if self.plan["outputs"][0] != "logit":
            return None
        return head_of(self.evaluation, self.fidelity, self.reliability, self.signed)

    @property
    def plan(self) -> dict[str, Any]:
        """All that determines the numbers, as JSON."""
        return self.about["plan"]  # type: ignore[no-any-return]

    @property
    def accuracy(self) -> float | None:
        """Share of correctly classified images among those with a label; None if there are none."""
        return self.evaluation.accuracy

    @property
    def signed(self) -> dict[str, bool]:
        """For every explanation scored whether it is signed; baselines such as random are not in here."""
        return {name: sign for name, sign in signs(self.plan).items() if name in self.fidelity}

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self.about["classes"]  # type: ignore[no-any-return]

    @property
    def augmentation(self) -> str:
        """What the model was trained with, in the words of its card; empty where that is not known."""
        return str(self.about.get("augmentation", ""))

    @property
    def scores(self) -> dict[str, dict[str, Summary]]:
        """By score and estimator: mean and interval over the images that A is over."""

        def summary(fidelity: Fidelity, values: Floats) -> Summary:
            kept = np.asarray(values[fidelity.kept & np.isfinite(values)], dtype=np.float64)
            mean = float(kept.mean()) if kept.size else float("nan")
            return Summary(mean, half_width(kept), kept.size)

        return {
            score: {name: summary(each, values[name]) for name, each in self.fidelity.items()}
            for score, values in self.evaluation.values.items()
        }

    def paired_test(self, first: str, second: str, score: str = "A") -> PairedTest:
        """Is a score of one estimator really larger than that of another, image by image?"""
        return scored.paired_test(self, first, second, score)

    def score_correlations(self) -> "pd.DataFrame":
        """How far the scores agree: the rank correlation of the orders they put the explanations in."""
        import pandas as pd

        names, matrix = scored.rank_correlations(self)
        return pd.DataFrame(matrix, names, names)

    @cached_property
    def beats(self) -> "Beats":
        """Whether each explanation has a larger A than every model-free map, and than its blurred twins."""
        return beats(self.fidelity, self.signed, *rivals(self.plan))

    @property
    def facts(self) -> tuple[Note, ...]:
        """What to doubt about the model, and which of its estimators could not be scored."""
        never_finite = [name for name in self.evaluation.never_finite if name not in self.fidelity]
        return (
            *self.evaluation.facts,
            *(self.head.facts if self.head else ()),
            *(Note(Kind.NEVER_FINITE, Severity.WARNING, {"estimator": name}) for name in never_finite),
        )

    @property
    def noted(self) -> tuple[Note, ...]:
        """What was said about the model before it was evaluated, as evaluation.json has it."""
        return tuple(map(Note.from_json, self.about.get("note_facts", self.about.get("notes", ()))))

    @property
    def results(self) -> "Results":
        """The same as a set of one, which the functions of `fpa.show` take."""
        return Results(self.name, {self.name: self}, about=self.about)

    def table(self) -> "pd.DataFrame":
        """One row per estimator, best first in its group: A with its interval, both areas, images used."""
        rows = showing.result_table(self).set_index("estimator")
        first = ["kind", "area", "interval", "area_mif", "area_lif", "images_used", "images_left_out"]
        rows = rows[[*first, *(column for column in rows if column.startswith("score_"))]]
        return rows.sort_values(["kind", "area"], ascending=[True, False])

    def to_pandas(self) -> "pd.DataFrame":
        """One row per image and estimator: areas in percent (NaN where it was left out), and every score."""
        import pandas as pd

        evaluation = self.evaluation
        frames = [
            {
                "estimator": estimator,
                "image": evaluation.indices,
                "label": evaluation.labels,
                "explained_class": evaluation.targets,
                "unmasked": evaluation.unmasked,
                "area_mif": fidelity.mif_areas,
                "area_lif": fidelity.lif_areas,
                "area": fidelity.lif_areas - fidelity.mif_areas,
                **{f"score_{name}": by[estimator] for name, by in evaluation.values.items() if name != "A"},
            }
            for estimator, fidelity in self.fidelity.items()
        ]
        return pd.concat(map(pd.DataFrame, frames), ignore_index=True)

    def plot(self, signed: bool | None = None) -> "Figure":
        """The mean perturbation curves, MIF above LIF, of all, the signed or the unsigned estimators."""
        return showing.result_figure(self, signed)

    def report(self, path: str | Path, command: str | None = None) -> Path:
        """Write one HTML file with the verdict, the table, the curves and an explorer of single images."""
        return showing.result_page(self, path, command)

    def save(self, folder: str | Path) -> Path:
        """Write everything to a folder, which `fpa.load_result`, `fpa report` and `fpa compare` read."""
        from fpa.evaluation.shards import write_result

        return write_result(self, Path(folder))

    def __str__(self) -> str:
        return showing.result_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return showing.result_html(self)


@dataclass(frozen=True)
class Results:
    """Results side by side: the models of a study, or a single one."""

    name: str
    models: dict[str, Result]
    """By name (the variant of a study), in the order they are shown."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Versions, device, seeds, timings of every stage."""
    published: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """For the paper's data sets: variant -> estimator -> (published A, half-width of its interval)."""
    recipe: Mapping[str, Any] | None = None
    """The recipe of a study; None where the models were trained elsewhere."""
    folder: Path | None = None
    """Where they were read from."""

    @property
    def first(self) -> Result:
        """The first model: estimators, classes and plan are the same for all."""
        return next(iter(self.models.values()))

    @property
    def signed(self) -> dict[str, bool]:
        """For every explanation that all models have scored whether it is signed; no baselines."""
        signed = self.first.signed
        return {name: signed[name] for name in signed if all(name in m.signed for m in self.models.values())}

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self.first.classes

    @property
    def score_titles(self) -> dict[str, dict[str, Any]]:
        """The scores besides A that every model has, each with its title, direction and source."""
        shared = set.intersection(*(set(model.evaluation.values) for model in self.models.values()))
        described: dict[str, Any] = self.first.plan["scores"]
        return {name: described[name] for name in described if name in shared and name != "A"}

    @property
    def images_used(self) -> int:
        """Images that every estimator's A of every model is over at least."""
        return min(each.used for model in self.models.values() for each in model.fidelity.values())

    @property
    def not_above_chance(self) -> list[str]:
        """The models whose accuracy is not above guessing by two standard errors: nothing to explain.

        Under 30 images with a label, and where all are of one class, nothing is said: that is too little.
        """
        return [
            name
            for name, model in self.models.items()
            if (known := int((model.evaluation.labels >= 0).sum())) >= ENOUGH_IMAGES
            and (chance := model.evaluation.chance) is not None
            and not above_chance(model.accuracy or 0.0, known, chance)
        ]

    @property
    def estimators(self) -> list[str]:
        """All names that every model has scored: baselines, the signed, the unsigned, blurred twins."""
        order, plan = ("baseline", "signed", "unsigned", "twin"), self.first.plan["estimators"]
        every = [model.fidelity for model in self.models.values()]
        scored = [name for name in self.first.fidelity if all(name in each for each in every)]
        return sorted(scored, key=lambda name: order.index(plan[name]["sign"]))


def signs(plan: Mapping[str, Any]) -> dict[str, bool]:
    """For every explanation of a plan whether it is signed; baselines are neither."""
    kinds = {name: estimator["sign"] for name, estimator in plan["estimators"].items()}
    return {name: kind == "signed" for name, kind in kinds.items() if kind in ("signed", "unsigned")}


def families(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What every estimator of a plan is apart from its settings; None where only its areas can tell."""
    found: dict[str, Any] = {}
    for name, each in plan["estimators"].items():
        kind = each["raw"]["name"] if "raw" in each else name
        told = kind in ("ig", "vg", "sg", "sqsg") or "raw" not in each
        found[name] = (kind, each.get("reduction"), each.get("times_input")) if told else None
    return found


def rivals(plan: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """The model-free maps of a plan, and by explanation the blurred twins of its map."""
    estimators = plan["estimators"]

    def map_of(name: str) -> list[Any]:
        return [estimators[name].get(part) for part in ("raw", "reduction", "times_input")]

    def fits(twin: str, name: str) -> bool:
        # Two functions may be described alike: then it is stored whose twin it is.
        return estimators[twin].get("twin_of", name) == name and map_of(twin) == map_of(name)

    free = [name for name, each in estimators.items() if each["sign"] == "baseline"]
    twins = [name for name, each in estimators.items() if each["sign"] == "twin"]
    own = {name: [twin for twin in twins if fits(twin, name)] for name in signs(plan)}
    return free, {name: found for name, found in own.items() if found}
