"""Results in memory: the curves and scores of one model (`Result`), and of several side by side (`Results`).

Read from a folder without torch and without the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError
from fpa.files import read_arrays
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import Reliability, reliability
from fpa.statistics.intervals import above_chance, standard_error

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
    def accuracy(self) -> float | None:
        """Share of correctly classified images among those with a label; None if there are none."""
        known = self.labels >= 0
        return float((self.labels == self.targets)[known].mean()) if known.any() else None

    def doubt(self, classes: int) -> str | None:
        """What to think of an accuracy that is near chance although the model is sure of its predictions."""
        known, accuracy = self.labels >= 0, self.accuracy
        if accuracy is None or self.confidence is None or known.sum() < 30:
            return None
        sure = float(np.nanmean(self.confidence[known]))
        near = accuracy < sure / 5 or not above_chance(accuracy, int(known.sum()), classes)
        if not sure >= 0.5 or not near:
            return None
        return (
            f"the accuracy is only {100 * accuracy:.1f} %, but the model is sure of its predictions "
            f"({100 * sure:.0f} % on average): classes are probably assigned wrongly (see class_index)"
        )


@dataclass(frozen=True)
class Examples:
    """A few evaluation images with the maps of every estimator, for figures and the explorer."""

    images: NDArray[np.uint8]
    """[M, C, H, W], as the data set has them."""
    indices: NDArray[np.int64]
    """[M]: their numbers in the data set; the same number stands in `Evaluation.indices`."""
    labels: NDArray[np.int64]
    """[M]: true classes."""
    targets: NDArray[np.int64]
    """[M]: classes the model predicts, and explained."""
    maps: dict[str, NDArray[np.float32]]
    """[M, H, W] for every estimator."""
    ranks: dict[str, NDArray[np.int32]]
    """[M, H, W] for every estimator: the place of each pixel's feature in the LIF order, 0 is removed first
    and the pixels of a feature share their place; MIF is the reverse."""
    fill: NDArray[np.uint8]
    """[M, C, H, W]: the fully masked images, as bytes: what a removed pixel looks like."""
    foreground: NDArray[np.bool_] | None = None
    """[M, H, W]: the pixels of the true shape, where known."""
    key: str = ""
    """Of the evaluation that they were stored with: its plan and the model's weights."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, value in vars(self).items():
            if isinstance(value, dict):
                arrays |= {f"{kind.removesuffix('s')}.{name}": values for name, values in value.items()}
            elif isinstance(value, np.ndarray):
                arrays[kind] = value
        return arrays

    @classmethod
    def read(cls, path: Path) -> "Examples | None":
        """The examples in a file that `to_arrays` filled; None if it is not there."""
        if not path.exists():
            return None
        parts: dict[str, Any] = {"maps": {}, "ranks": {}}
        try:
            for key, values in read_arrays(path).items():
                kind, _, name = key.partition(".")
                (parts[f"{kind}s"] if name else parts)[name or kind] = values
            found = cls(**parts | {"key": str(parts.get("key", ""))})
            if wrong := found._misshapen():
                raise InputError(f"{wrong} has another shape or type than its images say")
            return found
        except (InputError, KeyError, TypeError) as error:  # TypeError: parts that are missing, or unknown
            raise DamagedError({path: error}) from error

    def _misshapen(self) -> str | None:
        """The name of a part that does not fit the images, if there is one."""
        images, sides = self.images, (len(self.images), *self.images.shape[2:])
        plain: dict[str, Any] = {"images": (images, images.shape if images.ndim == 4 else None, "u")}
        plain |= {name: (getattr(self, name), sides[:1], "i") for name in ("indices", "labels", "targets")}
        plain |= {"fill": (self.fill, images.shape, "u")}
        plain |= {f"map.{name}": (values, sides, "f") for name, values in self.maps.items()}
        plain |= {f"rank.{name}": (values, sides, "i") for name, values in self.ranks.items()}
        if self.foreground is not None:
            plain["foreground"] = (self.foreground, sides, "b")
        fits = ((name, x.shape == shape and x.dtype.kind == kind) for name, (x, shape, kind) in plain.items())
        return next((name for name, right in fits if not right), None)


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
        fidelity = {key: evaluation.fidelity(key, keep=keep) for key in evaluation.mif}
        signed = signs(about["plan"])
        agreement = reliability({key: fidelity[key] for key in signed}, signed)
        return cls(name, evaluation, fidelity, agreement, about, examples=examples, history=history or {})

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
        """For every explanation whether it is signed; baselines such as a random map are not in here."""
        return signs(self.plan)

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
            return Summary(mean, 1.96 * standard_error(kept), kept.size)

        return {
            score: {name: summary(self.fidelity[name], each) for name, each in values.items()}
            for score, values in self.evaluation.values.items()
        }

    @property
    def results(self) -> "Results":
        """The same as a set of one, which the functions of `fpa.show` take."""
        return Results(self.name, {self.name: self}, about=self.about)

    def table(self) -> "pd.DataFrame":
        """One row per estimator, best first in its group: A with its interval, both areas, images used."""
        from fpa.show.tables import results_table

        rows = results_table(self.results).set_index("estimator")
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
        from fpa.show.figures import perturbation_curves

        return perturbation_curves(self.results, signed)

    def report(self, path: str | Path, command: str | None = None) -> Path:
        """Write one HTML file with the verdict, the table, the curves and an explorer of single images."""
        from fpa.show.report import write_report

        return write_report(self.results, path, command)

    def save(self, folder: str | Path) -> Path:
        """Write everything to a folder, which `fpa.load_result`, `fpa report` and `fpa compare` read."""
        from fpa.evaluation.shards import write_result

        return write_result(self, Path(folder))

    def __str__(self) -> str:
        from fpa.progress import as_text
        from fpa.show.tables import terminal

        return as_text(terminal(self.results))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fpa.show.tables import notebook

        return notebook(self)


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
        """For every explanation whether it is signed; baselines are not in here."""
        return self.first.signed

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

        Under 30 images with a label nothing is said: that is too few to tell.
        """
        return [
            name
            for name, model in self.models.items()
            if (known := int((model.evaluation.labels >= 0).sum())) >= 30
            and not above_chance(model.accuracy or 0.0, known, len(self.classes))
        ]

    @property
    def estimators(self) -> list[str]:
        """All names, baselines first, then the signed, then the unsigned."""
        signed = self.signed
        return sorted(self.first.fidelity, key=lambda name: (name in signed, not signed.get(name, True)))


def signs(plan: Mapping[str, Any]) -> dict[str, bool]:
    """For every explanation of a plan whether it is signed; baselines are neither."""
    return {
        name: estimator["sign"] == "signed"
        for name, estimator in plan["estimators"].items()
        if estimator["sign"] != "baseline"
    }
