"""How far two rankings of estimators agree: Spearman's correlation, and when it has an interval."""

from collections.abc import Mapping

import numpy as np

from fpa.errors import InputError
from fpa.statistics.intervals import (
    FEWEST_RESAMPLED,
    Areas,
    Bools,
    Estimate,
    Floats,
    check_draws,
    estimate,
    holm,
    resampled_means,
    shared_images,
    spearman,
    without_interval,
)
from fpa.statistics.orders import ALPHA, Orders, orders


def rank_correlations(
    is_signed: Bools, areas: Floats, found: Orders, *, alpha: float, draws: int, seed: int
) -> dict[str, Estimate]:
    """Spearman's correlation of goodness by MIF with goodness by LIF: "all", "signed", "unsigned".

    `areas` [2, M, n] are those under MIF and LIF, `found` the tests of all pairs of the M estimators.
    """
    check_draws(draws, seed)
    left, right = np.triu_indices(len(is_signed), k=1)
    groups = {"all": np.ones_like(is_signed), "signed": is_signed, "unsigned": ~is_signed}
    mif, lif = areas.mean(axis=2)
    values = {}
    for group, of in groups.items():
        value = spearman(-mif[of], lif[of])
        within = of[left] & of[right]
        if areas.shape[2] < FEWEST_RESAMPLED or not _ordered(found.p_mif[within], found.p_lif[within], alpha):
            values[group] = without_interval(value)
            continue
        # The same draws of images for all estimators: what they have in common cancels in every difference.
        drawn = resampled_means(np.concatenate(areas[:, of]), draws, seed).reshape(draws, 2, -1)
        values[group] = estimate(value, spearman(-drawn[:, 0], drawn[:, 1]))
    return values


def _ordered(first: Floats, second: Floats, alpha: float) -> bool:
    """Whether every pair is surely ordered by both rankings, by their p-values [P], not corrected.

    Among ties the ranks of a resampled set are shuffled: its correlation is too near to 0, and the interval
    misses full agreement, even where only half of the pairs are ties (docs/results/verdict.md).
    """
    return bool(first.size and max(holm(first).max(), holm(second).max()) < alpha)


def ranking_agreement(
    first: Mapping[str, Areas], second: Mapping[str, Areas], *, draws: int = 1000, seed: int = 0
) -> Estimate:
    """Do two evaluations of the same images rank the estimators alike? Spearman's correlation of their A.

    The interval resamples images, the same draw for both. There is none (NaN) under 100 images, and among
    ties: where a pair is not surely ordered by both. NaN for fewer than two estimators.

    >>> from fpa import Fidelity
    >>> x = np.linspace(0, 1, 3)
    >>> good = Fidelity.from_curves([[4, 1, 0], [2, 1, 0]], [[4, 4, 0], [2, 2, 0]], x)
    >>> poor = Fidelity.from_curves([[4, 2, 0], [2, 1, 0]], [[4, 3, 0], [2, 1, 0]], x)
    >>> ranking_agreement({"ig_sum": good, "vg_abs": poor}, {"ig_sum": poor, "vg_abs": good})
    Estimate(value=-1.0, low=nan, high=nan)
    """
    areas = _areas(first, second)
    value = spearman(*areas.mean(axis=2))
    found = orders(areas, *np.triu_indices(len(first), k=1))
    if areas.shape[2] < FEWEST_RESAMPLED or not _ordered(found.p_mif, found.p_lif, ALPHA):
        return without_interval(value)
    drawn = resampled_means(np.concatenate(areas), draws, seed)
    return estimate(value, spearman(*np.split(drawn, 2, axis=1)))


def reordered(first: Mapping[str, Areas], second: Mapping[str, Areas]) -> Estimate:
    """How many pairs of estimators two evaluations of the same images order oppositely by A.

    The interval goes from those that surely are to all but those that surely are in the same order, by paired
    tests over images, Holm-corrected; unlike that of a correlation it holds among ties.

    >>> from fpa import Fidelity
    >>> noise = np.random.default_rng(0).normal(0, 0.1, 50)
    >>> def with_area(level):
    ...     return Fidelity.from_curves(np.ones((50, 2)), np.stack([np.ones(50), level + noise], 1), [0, 1])
    >>> a, b, c = map(with_area, (0.1, 0.5, 0.9))
    >>> reordered({"ig_sum": a, "vg_abs": b, "sg_abs": c}, {"ig_sum": b, "vg_abs": a, "sg_abs": c})
    Estimate(value=1.0, low=1.0, high=1.0)
    """
    areas = _areas(first, second)
    # `Orders` takes small for good on its first side.
    found = orders(areas * [[[-1.0]], [[1.0]]], *np.triu_indices(len(first), k=1))
    low, high = found.bounds()
    return Estimate(float(found.opposite.sum()), float(low), float(high))


def _areas(first: Mapping[str, Areas], second: Mapping[str, Areas]) -> Floats:
    """A [2, M, n] of both evaluations, by estimator and image, over the images that all use."""
    if missing := [name for name in first if name not in second]:
        raise InputError(f"the second evaluation has no estimators {missing}: both need the same")
    chosen = [evaluation[name] for evaluation in (first, second) for name in first]
    kept = shared_images({str(place): fidelity for place, fidelity in enumerate(chosen)})
    areas = np.stack([(fidelity.lif_areas - fidelity.mif_areas)[kept] for fidelity in chosen])
    return areas.reshape(2, len(first), -1)
