"""Results in memory: the scores of one model (`Result`), and of several side by side (`Results`).

Read from a folder without torch and without the model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpa import showing
from fpa.evaluation import by_protocol as protocols
from fpa.evaluation import rankings
from fpa.evaluation.description import Description
from fpa.evaluation.evaluation import Evaluation, Floats
from fpa.evaluation.examples import Examples
from fpa.evaluation.offset import LogitOffset, logit_offset
from fpa.evaluation.places import evenly
from fpa.evaluation.stored_plan import ScoreFacts
from fpa.notes import Kind, Note, Severity
from fpa.scores.fidelity import Fidelity
from fpa.statistics.baselines import Beats, beats
from fpa.statistics.contradictions import Reliability, mif_lif_agreement
from fpa.statistics.intervals import ENOUGH_IMAGES, PairedTest, above_chance, half_width
from fpa.statistics.proportions import wilson

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Summary(NamedTuple):
    """A score over images: its mean, half the width of its 95 % interval, and how many images it is over."""

    mean: float
    interval: float
    used: int
    low: float = math.nan
    """The ends of the interval; of a score that is 0 or 1 Wilson's, not symmetric about the mean."""
    high: float = math.nan


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
    description: Description
    """What evaluation.json says: the plan, the classes, versions, device, the arithmetic used."""
    examples: Examples | None = None
    """A few images with the maps of every estimator."""
    history: dict[str, list[float | None]] = field(default_factory=dict)
    """Of a model trained here, the columns of training.csv: epoch, learning_rate, loss, ..."""

    @classmethod
    def of(
        cls,
        name: str,
        evaluation: Evaluation,
        description: Description,
        *,
        keep: NDArray[np.bool_] | None = None,
        examples: Examples | None = None,
        history: dict[str, list[float | None]] | None = None,
    ) -> "Result":
        """Score an evaluation, over the images that `keep` says if it is given."""
        dead = set(evaluation.never_finite)
        if len(dead) == len(evaluation.mif):
            dead = set()  # then scoring the first of them says why
        fidelity = {key: evaluation.fidelity(key, keep=keep) for key in evaluation.mif if key not in dead}
        plan = description.plan
        return cls(
            name,
            evaluation,
            fidelity,
            mif_lif_agreement(fidelity, plan.signed, plan.families),
            description,
            examples=examples,
            history=history or {},
        )

    @classmethod
    def unscored(
        cls,
        name: str,
        evaluation: Evaluation,
        description: Description,
        *,
        examples: Examples | None = None,
    ) -> "Result":
        """An evaluation as it is, without scores: there may be no image that all could be scored over."""
        return cls(name, evaluation, {}, mif_lif_agreement({}, {}), description, examples=examples)

    def over(self, images: NDArray[np.bool_]) -> "Result":
        """The same evaluation scored over these images, bool [N]; itself where its scores are over them."""
        kept = [fidelity.kept for fidelity in self.fidelity.values()]
        if kept and all(np.array_equal(each, images) for each in kept):
            return self
        return Result.of(
            self.name,
            self.evaluation,
            self.description,
            keep=images,
            examples=self.examples,
            history=self.history,
        )

    @cached_property
    def head(self) -> LogitOffset | None:
        """How far the logits are from centred, and what that changes; None where another output is scored."""
        if self.description.plan.output != "logit":
            return None
        return logit_offset(self.evaluation, self.fidelity, self.reliability, self.signed)

    @property
    def about(self) -> dict[str, Any]:
        """What evaluation.json says, as JSON."""
        return self.description.to_json()

    @property
    def plan(self) -> dict[str, Any]:
        """All that determines the numbers, as JSON."""
        return self.description.plan.to_json()

    @property
    def accuracy(self) -> float | None:
        """Share of correctly classified images among those with a label; None if there are none."""
        return self.evaluation.accuracy

    @property
    def signed(self) -> dict[str, bool]:
        """For every explanation scored whether it is signed; baselines such as random are not in here."""
        signed = self.description.plan.signed
        return {name: sign for name, sign in signed.items() if name in self.fidelity}

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return list(self.description.subject.classes)

    @property
    def augmentation(self) -> str:
        """What the model was trained with, in the words of its card; empty where that is not known."""
        return self.description.subject.augmentation or ""

    @property
    def scores(self) -> dict[str, dict[str, Summary]]:
        """By score and estimator: mean and interval over the images that A is over."""

        def summary(fidelity: Fidelity, values: Floats, *, binary: bool) -> Summary:
            kept = np.asarray(values[fidelity.kept & np.isfinite(values)], dtype=np.float64)
            mean = float(kept.mean()) if kept.size else float("nan")
            if binary and kept.size:
                low, high = wilson(mean, kept.size)
                return Summary(mean, (high - low) / 2, kept.size, low, high)
            half = half_width(kept)
            return Summary(mean, half, kept.size, mean - half, mean + half)

        found = {}
        for score, values in self.evaluation.values.items():
            binary = rankings.is_binary(self, score)
            found[score] = {
                name: summary(each, values[name], binary=binary) for name, each in self.fidelity.items()
            }
        return found

    def asked_for(self, score: str) -> NDArray[np.bool_]:
        """The images, bool [N], that a score is computed for, whether they have a value or not."""
        asked = self.description.plan.scores[score].images
        count = len(self.evaluation.indices)
        if asked is None or asked >= count:
            return np.ones(count, dtype=bool)
        values = np.stack([*self.evaluation.values[score].values()])
        valued = np.asarray(np.isfinite(values).any(axis=0), dtype=np.bool_)
        # Of data whose length was not known these are the first; of an unfinished evaluation, or of one
        # that was cut, the places are not known any more.
        for places in (evenly(asked, count), evenly(asked, None)):
            chosen = np.isin(np.arange(count), [*places])
            if not (valued & ~chosen).any():
                return chosen
        return valued

    def comparable(self, score: str) -> dict[str, Summary]:
        """A score by estimator as models are compared by it: over its unit, where it has one.

        That is the mean over the mean unit of the same images, so that images whose unit is next to 0 do not
        count more than others; the interval is that of the ratio.
        """
        unit = self.evaluation.units.get(score)
        if unit is None:
            return self.scores[score]
        found = {}
        for name, summary in self.scores[score].items():
            values = rankings.values_of(self, name, score)
            used = np.isfinite(values)
            scale = float(unit[used].mean()) if used.any() else float("nan")
            ratio = summary.mean / scale
            # The delta method, as for the mean that is divided afterwards.
            half = half_width(values[used] - ratio * unit[used]) / scale
            found[name] = Summary(ratio, half, summary.used)
        return found

    def paired_test(self, first: str, second: str, score: str = "A") -> PairedTest:
        """Is a score of one estimator really larger than that of another, image by image?"""
        return rankings.paired_test(self, first, second, score)

    def score_correlations(self) -> "pd.DataFrame":
        """How far the scores agree: the rank correlation of the orders they put the explanations in."""
        import pandas as pd

        names, matrix = rankings.rank_correlations(self)
        return pd.DataFrame(matrix, names, names)

    @cached_property
    def by_protocol(self) -> dict[str, protocols.ByProtocol]:
        """What every protocol says of the same maps, the plan's own first: A, and opposite pairs."""
        return protocols.by_protocol(self)

    @cached_property
    def beats(self) -> "Beats":
        """Whether each explanation has a larger A than every model-free map, and than its blurred twins."""
        plan = self.description.plan
        return beats(self.fidelity, self.signed, plan.model_free, plan.twins)

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
        return self.description.subject.noted

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
    def score_titles(self) -> dict[str, ScoreFacts]:
        """The scores besides A that every model has, each with its title, direction and source."""
        shared = set.intersection(*(set(model.evaluation.values) for model in self.models.values()))
        facts = self.first.description.plan.scores
        return {name: facts[name] for name in facts if name in shared and name != "A"}

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
        order = ("baseline", "signed", "unsigned", "twin")
        facts = self.first.description.plan.estimators
        every = [model.fidelity for model in self.models.values()]
        scored = [name for name in self.first.fidelity if all(name in each for each in every)]
        return sorted(scored, key=lambda name: order.index(facts[name].sign))
