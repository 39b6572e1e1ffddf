"""Means that a few far values carry: intervals and tests that are as cautious as that demands."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fpa.auditing.areas import read_areas
from fpa.scores.fidelity import Fidelity
from fpa.statistics.intervals import half_width, half_widths, t_test
from fpa.statistics.orders import orders
from fpa.statistics.skewness import inwards, outwards, shift_of_limits, skewness

AREAS = Path(__file__).parents[2] / "docs/results/areas"


def far_values(count, seed=0):
    """Values of which a few are far larger than the others."""
    return np.exp(1.5 * np.random.default_rng(seed).normal(size=count)) - 2


@pytest.mark.parametrize("count", [3, 20, 400])
def test_skewness_equals_scipys(count):
    values = np.random.default_rng(count).exponential(size=(4, count))
    np.testing.assert_allclose(skewness(values), stats.skew(values, axis=-1, bias=False), rtol=1e-9)
    np.testing.assert_allclose(skewness(1e150 * values), skewness(values), rtol=1e-9)
    assert skewness(np.full(count, 7.0)) == 0


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.3])
def test_the_t_that_counts_is_the_limit_that_was_moved(shift):
    for quantile in (0.0, 1.96, 3.5, 40.0):
        assert inwards(outwards(quantile, np.array(shift)), np.array(shift)) == pytest.approx(quantile)
    assert np.isinf(inwards(np.array(np.inf), np.array(shift)))


def test_values_that_are_not_much_skewed_have_the_interval_and_the_test_of_students_t():
    rng = np.random.default_rng(0)
    for values in (rng.normal(0.1, 1, 100), rng.exponential(size=2000), far_values(99)):
        expected = stats.ttest_1samp(values, 0)
        found = t_test(values)
        assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue))
        quantile = 1.96
        assert half_width(values) == pytest.approx(quantile * values.std(ddof=1) / np.sqrt(values.size))


@pytest.mark.parametrize("seed", range(8))
def test_a_test_of_skewed_differences_and_its_interval_say_the_same(seed):
    values = far_values(150, seed)
    middle = np.linspace(-1, 4, 41)
    found = [t_test(values - each) for each in middle]
    assert [abs(each.difference) > each.interval for each in found] == [each.p < 0.05 for each in found]
    for each, by_student in zip(found, (stats.ttest_1samp(values, each) for each in middle), strict=True):
        assert each.t == pytest.approx(by_student.statistic)
        assert each.p > by_student.pvalue
        assert each.p == pytest.approx(2 * min(each.p_larger, each.p_smaller))


def test_pairs_are_tested_alike_one_by_one_and_all_at_once():
    rng = np.random.default_rng(3)
    areas = rng.normal(size=(2, 3, 120))
    areas[:, 0] += far_values(240).reshape(2, 120)
    left, right = np.array([0, 0, 1]), np.array([1, 2, 2])
    found = orders(areas, left, right)
    for place, (one, two) in enumerate(zip(left, right, strict=True)):
        expected = [t_test(side[one] - side[two]).p for side in areas]
        assert (found.p_mif[place], found.p_lif[place]) == pytest.approx(expected)
    assert shift_of_limits(areas[0, 0] - areas[0, 1]) > 0


@pytest.mark.parametrize(
    ("model", "estimator"),
    [
        ("shapes-none-tuned-model", "sgx_sum"),
        ("shapes-none-tuned-model", "vgx_sum"),
        ("shapes-fpa", "sgx_sum"),
    ],
)
def test_the_most_skewed_areas_that_are_stored_have_intervals_that_hold(model, estimator):
    """Measured images, drawn with replacement: how often does the interval contain A of all of them?"""
    found = read_areas(AREAS / f"{model}.parquet").outputs["centred"]
    areas = found.areas[estimator]
    gaps = (areas.lif_areas - areas.mif_areas)[found.measured]
    samples = gaps[np.random.default_rng(0).integers(gaps.size, size=(6000, 100))]
    missed = np.abs(samples.mean(axis=1) - gaps.mean())
    plain = 1.96 * samples.std(axis=1, ddof=1) / 10
    assert (missed <= plain).mean() < 0.93
    assert (missed <= half_widths(samples)).mean() > 0.926  # 93 % within the error of 6,000 samples


def test_a_bootstrap_of_skewed_areas_is_lengthened_as_their_interval_is():
    areas = far_values(200)
    lines = np.stack([np.ones(200), 2 * areas / 100 - 1], axis=1)
    fidelity = Fidelity.from_curves(
        np.stack([np.ones(200), -np.ones(200)], axis=1), lines, [0, 1], normalise="none"
    )
    longer = fidelity.interval / (1.96 * areas.std(ddof=1) / np.sqrt(200))
    rng = np.random.default_rng(7)
    means = sorted(areas[rng.integers(200, size=200)].mean() for _ in range(1000))
    low, high = (fidelity.area + longer * (end - fidelity.area) for end in (means[25], means[-26]))
    assert longer > 1.1
    assert fidelity.bootstrap(1000, seed=7) == pytest.approx((low, high), rel=0.02)


def test_a_level_next_to_0_has_an_interval_too():
    areas = far_values(200)
    lines = np.stack([np.ones(200), areas], axis=1)
    fidelity = Fidelity.from_curves(np.ones((200, 2)), lines, [0, 1], normalise="none")
    low, high = fidelity.bootstrap(100, level=1e-17)
    assert low <= high


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_bootstrap_of_another_level_is_lengthened_as_the_limits_of_that_level_move(level):
    areas = far_values(200)
    whole = np.ones(200)
    lines = np.stack([whole, 2 * areas / 100 - 1], axis=1)
    fidelity = Fidelity.from_curves(np.stack([whole, -whole], axis=1), lines, [0, 1], normalise="none")
    quantile = stats.norm.ppf((1 + level) / 2)
    skewed = stats.skew(areas, bias=False)
    longer = 1 + skewed * (2 * quantile**2 + 1) / (6 * np.sqrt(200)) / quantile
    rng = np.random.default_rng(7)
    means = np.sort([areas[rng.integers(200, size=200)].mean() for _ in range(1000)])
    beyond = round((1 - level) / 2 * 1000)
    ends = [fidelity.area + longer * (end - fidelity.area) for end in (means[beyond], means[-1 - beyond])]
    assert fidelity.bootstrap(1000, level=level, seed=7) == pytest.approx(ends, rel=0.02)
