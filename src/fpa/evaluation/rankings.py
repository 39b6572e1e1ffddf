"""The scores of one model: which explanation is best, how surely, and which scores agree."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from fpa.errors import InputError, one_of
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import Pair, Reliability, area_tests
from fpa.statistics.intervals import Floats, PairedTest, half_widths, holm, spearman, t_test
from fpa.statistics.orders import ALPHA
from fpa.statistics.proportions import is_binary as _binary
from fpa.statistics.proportions import mcnemar

if TYPE_CHECKING:
    from fpa.evaluation.evaluation import Evaluation
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
    return mean_of_curves(result.evaluation, result.fidelity[estimator], side, estimator)


def mean_of_curves(
    evaluation: "Evaluation", fidelity: Fidelity, side: str, estimator: str
) -> tuple[Floats, Floats]:
    """The same of curves by any protocol, over the images that its area is over."""
    curves = np.asarray(getattr(evaluation, side)[estimator], dtype=np.float64)[fidelity.kept]
    if fidelity.normalise == "each":
        curves = curves / curves[:, :1]
    return curves.mean(axis=0), half_widths(curves.T)


def is_binary(result: "Result", score: str) -> bool:
    """Whether a score is 0 or 1 for every image, as that of the pointing game."""
    values = result.evaluation.values.get(score, {}) if score != "A" else {}
    return bool(values) and _binary(np.concatenate([values[name] for name in result.fidelity]))


def paired_test(result: "Result", first: str, second: str, score: str = "A") -> PairedTest:
    """Is a score of one estimator really larger than that of another, over the images that both have?

    Student's t of the differences; of a score that is 0 or 1 McNemar's exact test.
    """
    differences = values_of(result, first, score) - values_of(result, second, score)
    known = differences[np.isfinite(differences)]
    if known.size < 2:
        raise InputError(f"a paired comparison needs at least 2 images with both values, got {known.size}")
    return mcnemar(known) if is_binary(result, score) else t_test(known)


def higher_is_better(result: "Result", score: str) -> bool:
    """The direction of a score."""
    return score == "A" or result.description.plan.scores[score].higher_is_better


def common_values(result: "Result", score: str) -> dict[str, Floats]:
    """By estimator: its values of the images that all explanations with any value have in common, [n].

    Means over different images cannot be ranked: the images that one estimator lacks may be the hard ones.
    Baselines have those of these images that they know. Empty where the explanations share no image.
    """
    values = {name: values_of(result, name, score) for name in result.fidelity}
    known = {name: each for name, each in values.items() if np.isfinite(each).any()}
    compared = [known[name] for name in known if name in result.signed] or [*known.values()]
    shared = np.isfinite(compared).all(axis=0) if compared else np.zeros(0, dtype=bool)
    if not shared.any():
        return {}
    among = {name: each[shared] for name, each in known.items()}
    return {name: each[np.isfinite(each)] for name, each in among.items() if np.isfinite(each).any()}


def goodness(result: "Result", score: str) -> dict[str, float]:
    """The mean of a score by estimator over common images, negated where lower is better.

    Those without a value are left out.
    """
    sign = 1 if higher_is_better(result, score) else -1
    return {name: sign * float(each.mean()) for name, each in common_values(result, score).items()}


def best(result: "Result", score: str = "A") -> str:
    """The explanation with the best mean of a score over common images; empty where there are none.

    Baselines take no part, unless there is nothing else.
    """
    means = goodness(result, score)
    names = [name for name in means if name in result.signed] or [*means]
    return max(names, key=means.__getitem__, default="")


def pair_tests(result: "Result", score: str = "A") -> dict[tuple[str, str], PairedTest]:
    """A test of every pair of explanations, over common images, with p Holm-corrected over all pairs.

    A is tested as in `Result.reliability`, whose pairs have the same p. Empty for fewer than two images.
    """
    if score == "A":
        return area_tests({name: result.fidelity[name] for name in result.signed})
    among = common_values(result, score)
    names = [name for name in among if name in result.signed]
    if len(names) < 2 or among[names[0]].size < 2:
        return {}
    test = mcnemar if is_binary(result, score) else t_test
    tests = {(one, two): test(among[one] - among[two]) for one, two in combinations(names, 2)}
    corrected = holm([each.p for each in tests.values()]).tolist()
    return {pair: each._replace(p=p) for (pair, each), p in zip(tests.items(), corrected, strict=True)}


def worse_than_best(result: "Result", score: str = "A") -> dict[str, float]:
    """For every other explanation the p-value, from the tests of all pairs, that it is as good as the best.

    The correction is over all pairs, because which one is best is not known before.
    """
    champion = best(result, score)
    tests = pair_tests(result, score)
    others = {(set(pair) - {champion}).pop(): each.p for pair, each in tests.items() if champion in pair}
    return {name: others[name] for name in result.signed if name in others}


def tied(result: "Result", score: str = "A", alpha: float = ALPHA) -> list[str]:
    """The best explanation and those that cannot be ordered against it; alone, it is surely the best.

    They cannot where the difference is not significant, nor where MIF and LIF surely contradict each other.
    """
    contradictions = result.reliability.contradictions if score == "A" else ()
    return _leading(best(result, score), worse_than_best(result, score), contradictions, alpha)


def tied_by_area(areas: Mapping[str, Fidelity], reliability: Reliability, alpha: float = ALPHA) -> list[str]:
    """The same by areas A of explanations over the same images, with what MIF and LIF say of them."""
    champion = max(areas, key=lambda name: areas[name].area, default="")
    tests = area_tests(areas)
    p = {name: tests.get((champion, name)) or tests.get((name, champion)) for name in areas}
    worse = {name: test.p for name, test in p.items() if test is not None}
    return _leading(champion, worse, reliability.contradictions, alpha)


def _leading(
    champion: str, worse: Mapping[str, float], contradictions: Iterable[Pair], alpha: float
) -> list[str]:
    """The best, if there is one, and those that cannot be ordered against it, by p of being as good."""
    contradicted = {
        name
        for pair in contradictions
        if champion in (pair.first, pair.second)
        for name in (pair.first, pair.second)
    }
    level = [name for name, p in worse.items() if not p < alpha or name in contradicted]
    return [champion, *level] if champion else []


def rank_correlations(result: "Result") -> tuple[list[str], Floats]:
    """The scores, and Spearman's correlation [S, S] of the orders in which they put the explanations.

    1 where two scores put them in the same order, best to worst, whichever way each score is good; each order
    is over the images that all explanations have in common. A pair is over the explanations that have both;
    NaN where these are fewer than three, or all tie.
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
