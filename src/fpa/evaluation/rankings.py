"""The scores of one model: which explanation is best, how surely, and which scores agree."""

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from fpa.errors import InputError, one_of
from fpa.statistics.intervals import Floats, PairedTest, critical, holm, spearman, t_test

if TYPE_CHECKING:
    from fpa.evaluation.result import Result


def values_of(result: "Result", estimator: str, score: str = "A") -> Floats:
    """The value of every image, [N]; NaN where A leaves the image out, or the score has none."""
    one_of("estimator", estimator, result.fidelity)
    fidelity = result.fidelity[estimator]
    # A is computed from the curves, over the images that all models of a study keep.
    if score == "A":
        return np.asarray(fidelity.lif_areas - fidelity.mif_areas)
    one_of("score", score, ["A", *result.evaluation.values])
    values = result.evaluation.values[score][estimator]
    return np.where(fidelity.kept & np.isfinite(values), values, np.nan)


def mean_curve(result: "Result", side: str, estimator: str) -> tuple[Floats, Floats]:
    """The mean "mif" or "lif" curve over the images used and half its 95 % interval, [K] each.

    A single image has no interval: NaN.
    """
    fidelity = result.fidelity[estimator]
    curves = np.asarray(getattr(result.evaluation, side)[estimator], dtype=np.float64)[fidelity.kept]
    if fidelity.normalise == "each":
        curves = curves / curves[:, :1]
    deviation = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.full(curves.shape[1], np.nan)
    return curves.mean(axis=0), critical(len(curves)) * deviation / math.sqrt(len(curves))


def paired_test(result: "Result", first: str, second: str, score: str = "A") -> PairedTest:
    """Is a score of one estimator really larger than that of another, over the images that both have?"""
    differences = values_of(result, first, score) - values_of(result, second, score)
    known = differences[np.isfinite(differences)]
    if known.size < 2:
        raise InputError(f"a paired comparison needs at least 2 images with both values, got {known.size}")
    return t_test(known)


def higher_is_better(result: "Result", score: str) -> bool:
    """The direction of a score."""
    return score == "A" or result.description.plan.scores[score].higher_is_better


def goodness(result: "Result", score: str) -> dict[str, float]:
    """The mean of a score by estimator, negated where lower is better; those without a value are left out."""
    sign = 1 if higher_is_better(result, score) else -1
    values = {name: values_of(result, name, score) for name in result.fidelity}
    known = {name: each[np.isfinite(each)] for name, each in values.items()}
    return {name: sign * float(each.mean()) for name, each in known.items() if each.size}


def best(result: "Result", score: str = "A") -> str:
    """The explanation with the best mean of a score; baselines take no part, unless there is nothing else."""
    return _best(result, goodness(result, score))


def _best(result: "Result", means: dict[str, float]) -> str:
    """The same by means that are known."""
    names = [name for name in means if name in result.signed] or [*means]
    return max(names, key=means.__getitem__, default="")


def worse_than_best(result: "Result", score: str = "A") -> dict[str, float]:
    """For every other explanation the p-value, Holm-corrected over them, that it is as good as the best one.

    Two-sided paired t-tests over images; those without two images in common with the best are left out.
    """
    return _against_best(result, score)[1]


def _against_best(result: "Result", score: str) -> tuple[str, dict[str, float]]:
    """The best explanation, and for every other one the p-value that it is as good."""
    means = goodness(result, score)
    champion = _best(result, means)
    p_values: dict[str, float] = {}
    for name in means:
        if name != champion and name in result.signed:
            with suppress(InputError):  # fewer than two images in common
                p_values[name] = paired_test(result, champion, name, score).p
    corrected = holm(list(p_values.values())).tolist()
    return champion, dict(zip(p_values, corrected, strict=True))


def tied(result: "Result", score: str = "A", alpha: float = 0.05) -> list[str]:
    """The best explanation and those that are not significantly worse; alone, it is surely the best."""
    champion, worse = _against_best(result, score)
    return [champion, *(name for name, p in worse.items() if not p < alpha)]


def rank_correlations(result: "Result") -> tuple[list[str], Floats]:
    """The scores, and Spearman's correlation [S, S] of the orders in which they put the explanations.

    1 where two scores put them in the same order, best to worst, whichever way each score is good. A pair is
    over the explanations that have both; NaN where these are fewer than three, or all tie.
    """
    names = ["A", *(name for name in result.evaluation.values if name != "A")]
    means = [goodness(result, name) for name in names]
    matrix = np.full((len(names), len(names)), np.nan)
    for row, first in enumerate(means):
        for column, second in enumerate(means):
            both = [name for name in first if name in second and name in result.signed]
            if len(both) > 2:
                ours = [first[name] for name in both]
                theirs = [second[name] for name in both]
                matrix[row, column] = spearman(ours, theirs)
    return names, matrix
