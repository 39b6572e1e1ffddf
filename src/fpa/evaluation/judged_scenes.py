"""A few scenes of a study to be looked at: their true effects, maps, and which of two maps is preferred."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpa.evaluation.examples import Examples
from fpa.evaluation.result import Result
from fpa.evaluation.truths import SIDES, TRUTH, JudgedMaps, asked, judged_maps, truth_errors

_SHOWN = ("ig_sum", "sgx_sum", "vg_abs")
"""Explanations that are shown where there are such; of others the first ones."""


@dataclass(frozen=True, eq=False)
class JudgedScene:
    """A scene with what is true of it for one model, and what the evaluations of this model say."""

    image: NDArray[np.uint8]
    """[C, H, W]."""
    regions: NDArray[np.int16]
    """[H, W]: the cue that each pixel belongs to, -1 for the background's."""
    effects: NDArray[np.float64]
    """[cues + 1], the background's last; 0 for a cue that is not there."""
    label: int
    target: int
    """The class predicted, or else explained."""
    maps: Mapping[str, NDArray[np.float32]]
    """[H, W] by estimator."""
    truths: Mapping[str, float]
    """By estimator, those of `maps`."""
    truer: str
    """Of two of the maps the truer one."""
    worse: str
    preferred: Mapping[str, Mapping[str, str | None]]
    """By protocol and side: which of the two the evaluation prefers; None for neither."""
    errors: Mapping[str, float]
    """By protocol: the share of all pairs of maps of this scene in which A prefers the worse one."""


def judged_scenes(models: Mapping[str, Result], count: int = 2) -> dict[int, dict[str, JudgedScene]]:
    """By number of the image and model: the example scenes whose true effects are known best by all models.

    Shown are some of the maps, and of them one pair whose truths differ by more than the noise for every
    model, of two explanations if there is such: the one that most evaluations get wrong, and of several the
    one with the larger difference. Empty where examples were stored without effects.
    """
    known = {name: _Known.of(model) for name, model in models.items()}
    of_all = {name: each for name, each in known.items() if each is not None}
    if len(of_all) < len(models) or not of_all:
        return {}
    first = next(iter(of_all.values()))
    maps = _shown_maps(first)
    found = {}
    for number in first.rows:
        if all(each.usable(number, maps) for each in of_all.values()):
            found[number] = max(each.noise(number) for each in of_all.values())
    scenes: dict[int, dict[str, JudgedScene]] = {}
    for number in sorted(found, key=lambda each: found[each]):
        pair = _pair([*of_all.values()], number, maps)
        if pair is not None and len(scenes) < count:
            scenes[number] = {name: each.scene(number, maps, pair) for name, each in of_all.items()}
    return scenes


@dataclass(frozen=True, eq=False)
class _Known:
    """The examples of a model, with the truths and scores of their maps."""

    result: Result
    examples: Examples
    judged: JudgedMaps
    rows: Mapping[int, tuple[int, int]]
    """By number of the image: its row among the examples, and in the evaluation."""

    @classmethod
    def of(cls, result: Result) -> "_Known | None":
        examples = result.examples
        if examples is None or examples.regions is None or examples.effects is None:
            return None
        if TRUTH not in result.evaluation.values:
            return None
        places = {int(number): row for row, number in enumerate(result.evaluation.indices)}
        numbers = [int(number) for number in examples.indices]
        rows = {number: (row, places[number]) for row, number in enumerate(numbers) if number in places}
        return cls(result, examples, judged_maps(result), rows)

    def noise(self, number: int) -> float:
        return float(self.judged.noise[self.rows[number][1]])

    def truth(self, number: int, name: str) -> float:
        return float(self.judged.truths[self.rows[number][1], self.judged.names.index(name)])

    def usable(self, number: int, maps: Sequence[str]) -> bool:
        """Whether all of these maps of a scene have a truth."""
        if number not in self.rows:
            return False
        return all(np.isfinite(self.truth(number, name)) for name in maps)

    def gap(self, number: int, pair: tuple[str, str]) -> float:
        """By how much the first map of a pair is truer."""
        return self.truth(number, pair[0]) - self.truth(number, pair[1])

    def score_gap(self, number: int, pair: tuple[str, str], question: str) -> float:
        """By how much an evaluation prefers the first map of a pair."""
        row = self.judged.scores[question][self.rows[number][1]]
        first, second = (float(row[self.judged.names.index(name)]) for name in pair)
        return first - second

    @property
    def protocols(self) -> dict[str, str]:
        """As people see them, by the names that they have in the plan."""
        plan = self.result.description.plan
        return {plan.protocol: plan.protocol} | plan.protocol_names

    def wrong(self, number: int, pair: tuple[str, str]) -> int:
        """By how many protocols A prefers the worse map of a pair."""
        gap = self.gap(number, pair)
        scores = [self.score_gap(number, pair, asked(protocol, "A")) for protocol in self.protocols]
        return sum(np.sign(score) == -np.sign(gap) for score in scores)

    def scene(self, number: int, maps: Sequence[str], pair: tuple[str, str]) -> JudgedScene:
        examples = self.examples
        assert examples.regions is not None
        assert examples.effects is not None
        row, place = self.rows[number]
        truer, worse = pair if self.gap(number, pair) > 0 else pair[::-1]
        preferred: dict[str, dict[str, str | None]] = {}
        for protocol, shown in self.protocols.items():
            gaps = {side: self.score_gap(number, (truer, worse), asked(protocol, side)) for side in SIDES}
            preferred[shown] = {
                side: None if gap == 0 or np.isnan(gap) else (truer if gap > 0 else worse)
                for side, gap in gaps.items()
            }
        errors = truth_errors(self.result)
        assert errors is not None
        return JudgedScene(
            image=examples.images[row],
            regions=examples.regions[row],
            effects=examples.effects[row],
            label=int(examples.labels[row]),
            target=int(examples.targets[row]),
            maps={name: examples.maps[name][row] for name in maps},
            truths={name: self.truth(number, name) for name in maps},
            truer=truer,
            worse=worse,
            preferred=preferred,
            errors={shown: float(sides["A"][place]) for shown, sides in errors.by_image.items()},
        )


def _shown_maps(known: _Known) -> list[str]:
    """Three explanations, the truth and a damaged one, as far as there are such."""
    facts: Mapping[str, Any] = known.result.description.plan.estimators
    there = [name for name in known.judged.names if name in known.examples.maps]
    explaining = [name for name in there if facts[name].explains]
    named = [name for name in _SHOWN if name in explaining]
    explanations = [*named, *(name for name in explaining if name not in named)][:3]
    of_truth = [name for name in there if facts[name].knows_truth]
    whole = [name for name in of_truth if facts[name].raw["ladder"] is None]
    damaged = [name for name in of_truth if name not in whole]
    # Of several sizes of damage the middle one: the smallest is hardly seen.
    return [*explanations, *whole[:1], *damaged[len(damaged) // 2 :][:1]]


def _pair(known: Sequence[_Known], number: int, maps: Sequence[str]) -> tuple[str, str] | None:
    """The two of these maps that are shown side by side; None where no two differ in truth."""
    facts = known[0].result.description.plan.estimators

    def clear(pair: tuple[str, str]) -> bool:
        return all(abs(each.gap(number, pair)) > each.noise(number) for each in known)

    def interest(pair: tuple[str, str]) -> tuple[bool, int, float]:
        # Which of two explanations is better is what people ask; maps of the truth are there to compare.
        explained = all(facts[name].explains for name in pair)
        wrong = sum(each.wrong(number, pair) for each in known)
        return explained, wrong, min(abs(each.gap(number, pair)) for each in known)

    pairs = [pair for pair in combinations(maps, 2) if clear(pair)]
    return max(pairs, key=interest) if pairs else None
