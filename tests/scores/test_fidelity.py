"""The fidelity A and the reliability of the evaluation, against loops in plain Python and scipy.stats."""

import math
import statistics
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fpa
from fpa.errors import InputError
from fpa.explanation.estimator import PAPER
from fpa.notes import Kind, Note, Severity
from fpa.scores.fidelity import Fidelity, common_images
from fpa.show.words import clause
from fpa.statistics.baselines import beats
from fpa.statistics.contradictions import KINDS, Reliability
from fpa.statistics.contradictions import reliability as reliability_of
from fpa.statistics.intervals import holm, paired_test, share_kept, spearman
from fpa.statistics.rank_agreement import ranking_agreement, reordered

SIGNED = {name: estimator.signed for name, estimator in PAPER.items() if name != "random"}
TEN = ["random", *SIGNED]


def reliability(fidelities, signed=None, **settings) -> Reliability:
    return reliability_of(fidelities, SIGNED | (signed or {}), **settings)


slow = settings(max_examples=30, deadline=None)


def random_curves(seed, images=12, points=5, logit=5.0):
    """MIF and LIF curves of positive logits that start together, and uneven fractions."""
    rng = np.random.default_rng(seed)
    start = rng.uniform(0.2 * logit, logit, (images, 1))
    mif, lif = (np.hstack([start, rng.normal(0, logit, (images, points - 1))]) for _ in range(2))
    return mif, lif, np.concatenate([[0.0], np.sort(rng.uniform(0, 1, points - 1))])


def straight(mif_end, lif_end, start=1.0):
    """Straight curves from `start` to the given ends (one an image), as a Fidelity over 0..1."""
    ends = np.asarray(mif_end, dtype=float), np.asarray(lif_end, dtype=float)
    return Fidelity.from_curves(*(np.stack([np.full_like(end, start), end], 1) for end in ends), [0, 1])


def areas_by_loops(curves, fractions, divide):
    areas = []
    for curve in curves.tolist():
        area = 0.0
        for k in range(1, len(fractions)):
            area += (fractions[k] - fractions[k - 1]) * (curve[k] + curve[k - 1]) / 2
        areas.append(100 * area / (curve[0] if divide else 1))
    return areas


@slow
@given(st.integers(0, 10**6), st.integers(2, 15), st.integers(2, 6), st.sampled_from(["each", "none"]))
def test_areas_and_intervals_equal_plain_loops(seed, images, points, normalise):
    mif, lif, x = random_curves(seed, images, points)
    fidelity = Fidelity.from_curves(mif, lif, x, normalise=normalise)
    m = areas_by_loops(mif, x.tolist(), normalise == "each")
    l = areas_by_loops(lif, x.tolist(), normalise == "each")  # noqa: E741
    d = [b - a for a, b in zip(m, l, strict=True)]
    assert fidelity.mif_areas == pytest.approx(m)
    assert fidelity.lif_areas == pytest.approx(l)
    assert fidelity.area == pytest.approx(statistics.mean(d))
    assert fidelity.area_mif == pytest.approx(statistics.mean(m))
    assert fidelity.area_lif == pytest.approx(statistics.mean(l))
    times = stats.t.ppf(0.975, images - 1)  # fewer than 30
    assert fidelity.interval == pytest.approx(times * statistics.stdev(d) / math.sqrt(images))
    unpaired = times * math.sqrt((statistics.variance(m) + statistics.variance(l)) / images)
    assert fidelity.interval_unpaired == pytest.approx(unpaired)
    assert (fidelity.used, fidelity.left_out, fidelity.notes) == (images, 0, ())


@slow
@given(st.integers(0, 10**6), st.sampled_from(["each", "none"]))
def test_mean_then_divide_is_the_area_of_the_mean_curve(seed, normalise):
    mif, lif, x = random_curves(seed)
    fidelity = Fidelity.from_curves(mif, lif, x, normalise=normalise)
    mean_mif, mean_lif = mif.mean(0) / mif[:, 0].mean(), lif.mean(0) / lif[:, 0].mean()
    assert fidelity.area_mean_then_divide == pytest.approx(100 * np.trapezoid(mean_lif - mean_mif, x))


def test_mean_then_divide_and_its_interval_agree_with_each_when_all_start_alike():
    mif, lif, x = random_curves(3)
    mif[:, 0] = lif[:, 0] = 2.0
    fidelity = Fidelity.from_curves(mif, lif, x)
    assert fidelity.area_mean_then_divide == pytest.approx(fidelity.area)
    assert fidelity.interval_mean_then_divide == pytest.approx(fidelity.interval)


def test_interval_of_mean_then_divide_is_the_spread_over_repeated_samples():
    rng, estimates, intervals = np.random.default_rng(0), [], []
    for _ in range(400):
        start = rng.uniform(1, 3, 200)
        ends = start**2 * rng.uniform(0, 0.1, 200), start * rng.uniform(0.7, 1, 200)
        fidelity = Fidelity.from_curves(*(np.stack([start, end], 1) for end in ends), [0, 1])
        estimates.append(fidelity.area_mean_then_divide)
        intervals.append(fidelity.interval_mean_then_divide)
    assert np.mean(intervals) == pytest.approx(1.96 * np.std(estimates), rel=0.1)


def test_straight_curves_have_the_area_of_a_trapezium():
    x = np.linspace(0, 1, 21)
    mif, lif = np.outer([2.0, 8.0], 1 - x), np.outer([2.0, 8.0], 1 - x / 2)
    fidelity = Fidelity.from_curves(mif, lif, x)
    assert fidelity.area_mif == pytest.approx(50)
    assert fidelity.area_lif == pytest.approx(75)
    assert fidelity.area == pytest.approx(25)
    assert fidelity.interval == pytest.approx(0, abs=1e-9)


def test_every_image_and_both_orders_may_have_their_own_fractions():
    """By hand: trapezia of (1 + 0.5) / 2 and (0.5 + 0) / 2 over the steps of each image, in percent."""
    curves = [[1, 0.5, 0], [2, 1, 0]]
    steps = [[0, 0.2, 1], [0, 0.6, 1]]
    fidelity = Fidelity.from_curves(curves, curves, steps, fractions_lif=[0, 0.5, 1])
    assert fidelity.mif_areas == pytest.approx([15 + 20, 45 + 10])
    assert fidelity.lif_areas == pytest.approx([37.5 + 12.5] * 2)
    same = Fidelity.from_curves(curves, curves, steps)
    assert same.lif_areas == pytest.approx([35, 55])


def test_curves_that_end_early_cover_only_their_part():
    assert Fidelity.from_curves([[1, 1]] * 2, [[1, 1]] * 2, [0, 0.3]).area_mif == pytest.approx(30)


def test_equal_curves_have_area_zero_and_an_unpaired_interval_that_is_not():
    mif, _, x = random_curves(0, images=100)
    fidelity = Fidelity.from_curves(mif, mif, x)
    assert (fidelity.area, fidelity.interval, fidelity.bootstrap()) == (0, 0, (0, 0))
    assert fidelity.interval_unpaired > 1


def test_swapping_mif_and_lif_changes_the_sign():
    mif, lif, x = random_curves(0)
    assert Fidelity.from_curves(lif, mif, x).area == pytest.approx(-Fidelity.from_curves(mif, lif, x).area)


def test_normalised_curves_score_the_same_however_they_are_given():
    mif, lif, x = random_curves(0)
    expected = Fidelity.from_curves(mif, lif, x)
    for normalise in ("each", "none"):
        normalised = Fidelity.from_curves(mif / mif[:, :1], lif / lif[:, :1], x, normalise=normalise)
        assert normalised.area == pytest.approx(expected.area)
        assert normalised.interval == pytest.approx(expected.interval)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_any_precision_are_accepted(dtype):
    mif, lif, x = random_curves(0)
    tensors = (torch.tensor(mif, dtype=dtype, requires_grad=True), torch.tensor(lif, dtype=dtype))
    fidelity = fpa.Fidelity.from_curves(*tensors, torch.tensor(x), keep=torch.ones(12, dtype=torch.bool))
    expected = Fidelity.from_curves(*(t.detach().double().numpy() for t in tensors), x)
    assert fidelity.area == expected.area


def test_images_left_out_are_counted_named_and_keep_their_place():
    mif, lif, x = random_curves(1)
    mif[2, 3], lif[4, 1] = np.nan, np.inf
    mif[5, 0] = lif[5, 0] = -1
    mif[6, 0] = lif[6, 0] = 0
    keep = np.arange(12) > 0
    fidelity = Fidelity.from_curves(mif, lif, x, keep=keep)
    rest = [1, 3, 7, 8, 9, 10, 11]
    assert np.flatnonzero(fidelity.kept).tolist() == rest
    assert np.flatnonzero(np.isfinite(fidelity.mif_areas)).tolist() == rest
    expected = Fidelity.from_curves(mif[rest], lif[rest], x)
    assert fidelity.area == pytest.approx(expected.area)
    assert fidelity.interval == pytest.approx(expected.interval)
    assert fidelity.lif_areas[rest] == pytest.approx(expected.lif_areas)
    counts = (fidelity.used, fidelity.left_out, fidelity.non_finite, fidelity.non_positive, fidelity.excluded)
    assert counts == (7, 5, 2, 2, 1)
    assert [note.values for note in fidelity.facts] == [
        {"reason": "not finite", "count": 2, "of": 12, "images": [2, 4]},
        {"reason": "not positive", "count": 2, "of": 12, "images": [5, 6]},
        {"reason": "excluded", "count": 1, "of": 12, "images": [0]},
    ]
    assert {note.kind for note in fidelity.facts} == {Kind.LEFT_OUT}
    assert str(fidelity).endswith("7 images used, 5 left out)")


def test_without_division_no_sign_is_wrong():
    mif, lif, x = random_curves(1)
    mif[5, 0] = lif[5, 0] = -1
    fidelity = Fidelity.from_curves(mif, lif, x, normalise="none")
    assert (fidelity.used, fidelity.left_out, fidelity.non_positive, fidelity.notes) == (12, 0, 1, ())
    negative = Fidelity.from_curves(-abs(mif), -abs(lif), x, normalise="none")
    assert math.isnan(negative.area_mean_then_divide)
    assert math.isnan(negative.interval_mean_then_divide)


def test_a_quotient_that_overflows_is_left_out():
    mif, lif, x = random_curves(0)
    mif[3, 0] = lif[3, 0] = 1e-310
    fidelity = Fidelity.from_curves(mif, lif, x)
    assert (fidelity.used, fidelity.non_finite) == (11, 1)


def test_small_is_under_a_tenth_of_the_median_of_the_images_used():
    start = np.array([0.99, 1.01, 10.0, 10.0, 20.0, -5.0, -5.0])
    curves = np.stack([start, start], axis=1)
    assert Fidelity.from_curves(curves, curves, [0, 1]).small == 1


def test_a_small_unmasked_output_that_moves_the_area_is_noted():
    mif, lif, x = random_curves(0, images=200)
    mif[:, 1:], lif[:, 1:] = 0.0, 1.0
    assert Fidelity.from_curves(mif, lif, x).small == 0
    mif[7, 0] = lif[7, 0] = 0.001
    fidelity = Fidelity.from_curves(mif, lif, x)
    without = Fidelity.from_curves(mif, lif, x, keep=np.arange(200) != 7)
    assert fidelity.small == 1
    assert fidelity.shift_without_small == pytest.approx(without.area - fidelity.area)
    # It hides in its own interval, not in that of the others; an A without the ends does not move.
    assert abs(fidelity.shift_without_small) < fidelity.interval
    assert fidelity.sensitive
    assert fidelity.area_robust == pytest.approx(without.area_robust, rel=0.02)
    assert [note.kind for note in fidelity.facts] == [Kind.SMALL_OUTPUTS]
    assert fidelity.facts[0].values["robust"] == fidelity.area_robust
    mif[:10, 0] = lif[:10, 0] = 0.001
    fidelity = Fidelity.from_curves(mif, lif, x)
    assert fidelity.sensitive
    assert (fidelity.facts[0].values["small"], fidelity.facts[0].values["used"]) == (10, 200)
    assert Fidelity.from_curves(mif, lif, x, normalise="none").small == 0


def test_the_robust_area_is_that_of_the_images_in_the_middle():
    mif, lif, x = random_curves(3, images=100)
    fidelity = Fidelity.from_curves(mif, lif, x)
    middle = np.sort(fidelity.lif_areas - fidelity.mif_areas)[5:95]
    assert fidelity.area_robust == pytest.approx(middle.mean())


def test_a_single_image_has_an_area_but_no_interval():
    fidelity = Fidelity.from_curves([[2, 0]], [[2, 2]], [0, 1])
    assert fidelity.area == 50
    assert math.isnan(fidelity.interval)
    assert math.isnan(fidelity.interval_unpaired)
    assert fidelity.facts == (Note(Kind.SINGLE_IMAGE, Severity.WARNING),)
    assert fidelity.notes == tuple(map(clause, fidelity.facts))
    assert all(map(math.isnan, fidelity.bootstrap()))
    with pytest.raises(InputError, match="at least 2 images used by all, got 1"):
        paired_test(fidelity, fidelity)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mif": [1, 2, 3]}, r"mif must be \[N, 3\], one column per fraction, got \[3\]"),
        ({"lif": [[1, 2]]}, r"lif must be \[N, 3\], one column per fraction, got \[1, 2\]"),
        ({"lif": [[1, 0, 0]]}, "mif has 2 images, lif has 1: they must be the same"),
        ({"mif": np.empty((0, 3))}, "mif has no images: there is nothing to score"),
        ({"mif": [["a", "b", "c"]]}, "mif must be an array of numbers: could not convert"),
        ({"lif": [[1, 2, 3], [1]]}, "lif must be an array of numbers: setting an array element"),
        ({"lif": [[1, 0, 0], [5, 0, 0]]}, "differ for 1 of 2 images, first for image 1: 1 and 5"),
        (
            {"fractions": [0.5]},
            r"fractions must be \[K\] or \[N, K\] with at least 2 points, got \[1\]",
        ),
        (
            {"fractions": [0, 50, 100]},
            r"fractions must lie in 0\.\.1 \(of the image, not in percent\), got 50",
        ),
        ({"fractions": [0, -0.5, 1]}, r"fractions must lie in 0\.\.1 .*, got -0.5"),
        ({"fractions": [0, math.nan, 1]}, r"fractions must lie in 0\.\.1 .*, got nan"),
        ({"fractions": [0.1, 0.5, 1]}, "fractions must start at 0, the unmasked image, got 0.1"),
        ({"fractions": [0, 0.7, 0.5]}, r"fractions must ascend from 0, got \[0.0, 0.7, 0.5\]"),
        ({"fractions": [[0, 0.5, 1]] * 3}, r"2 images, but fractions \[3, 3\]: \[K\], or a row for each"),
        ({"fractions": [[0, 0.5, 1], [0, 0.7, 0.5]]}, r"ascend from 0, got \[0.0, 0.7, 0.5\]"),
        ({"fractions_lif": [0.1, 0.5, 1]}, "fractions_lif must start at 0, the unmasked image, got 0.1"),
        ({"fractions": [0, 0, 0]}, r"fractions must ascend from 0, got \[0.0, 0.0, 0.0\]"),
        ({"normalise": "mean"}, "unknown normalisation 'mean'.*known: each, none"),
        ({"keep": [1, 0]}, r"keep must be bool \[2\], got int64 \[2\]"),
        ({"keep": [True]}, r"keep must be bool \[2\], got bool \[1\]"),
        ({"keep": [False, False]}, "no image is left to score: 2 of 2 images left out for being excluded"),
        (
            {"mif": [[-1, 0, 0], [-2, 0, 0]], "lif": [[-1, 0, 0], [-2, 0, 0]]},
            r"no image is left to score: 2 of 2 images left out for an unmasked .* \(images 0, 1\)",
        ),
        ({"mif": np.full((2, 3), np.nan)}, "no image is left to score: 2 of 2 images left out for a NaN"),
    ],
)
def test_curves_that_cannot_be_scored_are_refused(changes, message):
    good = {"mif": [[1, 0, 0], [1, 0.5, 0]], "lif": [[1, 1, 0], [1, 0.5, 0]], "fractions": [0, 0.5, 1]}
    with pytest.raises(InputError, match=message):
        Fidelity.from_curves(**(good | changes))


def test_common_images_are_those_every_model_can_use():
    plain, augmented = torch.tensor([1.0, 0.0, 3.0, math.inf, 5.0]), np.array([1.0, 2.0, -3.0, 4.0, 5.0])
    assert common_images(plain, augmented).tolist() == [True, False, False, False, True]
    assert common_images(plain).tolist() == [True, False, True, False, True]
    with pytest.raises(InputError, match="at least one model"):
        common_images()
    for wrong in (np.ones(4), np.ones((5, 1))):
        with pytest.raises(InputError, match=r"must be \[N\] with the same N for every model, got \[5\], \["):
            common_images(plain, wrong)


def test_paired_interval_covers_the_true_area_19_times_in_20():
    rng, runs, covered, covered_unpaired = np.random.default_rng(0), 1000, 0, 0
    for _ in range(runs):
        shared = rng.normal(0, 0.3, 60)  # what makes an image easy helps both curves
        fidelity = straight(0.2 + shared + rng.normal(0, 0.1, 60), 0.8 + shared + rng.normal(0, 0.1, 60))
        covered += abs(fidelity.area - 30) < fidelity.interval
        covered_unpaired += abs(fidelity.area - 30) < fidelity.interval_unpaired
    assert 0.93 < covered / runs < 0.97
    assert covered_unpaired == runs


def test_bootstrap_agrees_with_the_interval_and_depends_on_the_seed_alone():
    fidelity = straight(*np.random.default_rng(0).normal([[0.2], [0.8]], 0.1, (2, 500)))
    low, high = fidelity.bootstrap(4000, seed=1)
    assert fidelity.area - low == pytest.approx(fidelity.interval, rel=0.1)
    assert high - fidelity.area == pytest.approx(fidelity.interval, rel=0.1)
    assert fidelity.bootstrap(4000, seed=1) == (low, high)
    assert fidelity.bootstrap(4000, seed=2) != (low, high)
    assert fidelity.bootstrap(4000, seed=1, level=0.5)[0] > low


def test_bootstrap_in_chunks_equals_plain_resampling():
    n, draws = 3000, 800  # more than one chunk
    fidelity = straight(*np.random.default_rng(0).normal([[0.2], [0.8]], 0.1, (2, n)))
    areas, rng = fidelity.lif_areas - fidelity.mif_areas, np.random.default_rng(7)
    means = sorted(areas[rng.integers(n, size=n)].mean() for _ in range(draws))
    assert fidelity.bootstrap(draws, seed=7) == pytest.approx((means[20], means[779]))


def test_bootstrap_refuses_what_makes_no_sense():
    fidelity = straight([0, 0.1], [1, 1])
    with pytest.raises(InputError, match="1 to 1,000,000 draws, got 0"):
        fidelity.bootstrap(0)
    with pytest.raises(InputError, match="must lie between 0 and 1, got 95"):
        fidelity.bootstrap(level=95)


@slow
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from(["area", "mif", "lif"]))
def test_paired_test_equals_scipy(seed, images, of):
    first = Fidelity.from_curves(*random_curves(seed, images))
    second = Fidelity.from_curves(*random_curves(seed + 1, images))
    areas = [
        {"area": f.lif_areas - f.mif_areas, "mif": f.mif_areas, "lif": f.lif_areas}[of]
        for f in (first, second)
    ]
    result = paired_test(first, second, of)
    expected = stats.ttest_rel(*areas)
    assert result.t == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue)
    assert result.p_larger == pytest.approx(stats.ttest_rel(*areas, alternative="greater").pvalue)
    assert result.p_smaller == pytest.approx(stats.ttest_rel(*areas, alternative="less").pvalue)
    assert result.difference - result.interval == pytest.approx(expected.confidence_interval().low)
    assert result.difference + result.interval == pytest.approx(expected.confidence_interval().high)


def test_paired_test_sees_what_intervals_that_overlap_hide():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 0.3, 100)
    poor, good = (straight(hard, hard * 2 + gain + rng.normal(0, 0.01, 100)) for gain in (0.5, 0.51))
    assert abs(good.area - poor.area) < good.interval
    result = paired_test(good, poor)
    assert result.difference == pytest.approx(good.area - poor.area)
    assert result.p_larger < 1e-6 < 0.99 < result.p_smaller


def test_differences_that_are_all_the_same_leave_no_doubt():
    low, high = straight([0.0, 0.0], [0.5, 0.25]), straight([0.0, 0.0], [0.75, 0.5])
    assert (paired_test(high, low).p, paired_test(high, low).t) == (0, math.inf)
    assert (paired_test(low, high).p_larger, paired_test(low, high).t) == (1, -math.inf)
    same = paired_test(low, low)
    assert (same.difference, same.interval, same.t, same.p, same.p_larger) == (0, 0, 0, 1, 0.5)


def test_paired_test_uses_the_images_both_have():
    mif, lif, x = random_curves(0)
    first, second = (
        Fidelity.from_curves(mif, lif, x, keep=np.arange(12) != 0),
        Fidelity.from_curves(lif, mif, x, keep=np.arange(12) != 5),
    )
    rest = [i for i in range(12) if i not in (0, 5)]
    both = (Fidelity.from_curves(mif[rest], lif[rest], x), Fidelity.from_curves(lif[rest], mif[rest], x))
    assert paired_test(first, second) == pytest.approx(paired_test(*both))
    assert paired_test(first, second).used == 10


def test_paired_test_refuses_what_cannot_be_compared():
    mif, lif, x = random_curves(0)
    fidelity = Fidelity.from_curves(mif, lif, x)
    with pytest.raises(InputError, match=r"same images in all, got .*'first': 12, 'second': 11"):
        paired_test(fidelity, Fidelity.from_curves(mif[1:], lif[1:], x))
    with pytest.raises(InputError, match=r"same normalisation in all, got .*'second': 'none'"):
        paired_test(fidelity, Fidelity.from_curves(mif, lif, x, normalise="none"))
    with pytest.raises(InputError, match="of must be one of area, mif, lif, got 'mifs'"):
        paired_test(fidelity, fidelity, "mifs")


def holm_by_loops(p):
    """Reject from the smallest on; a p-value's result is the least level at which it is still rejected."""
    adjusted, worst = [0.0] * len(p), 0.0
    for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - step) * p[i]))
        adjusted[i] = worst
    return adjusted


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_equals_plain_loops(p):
    assert holm(p) == pytest.approx(holm_by_loops(p))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=10))
@settings(deadline=None)
def test_spearman_equals_scipy_with_ties(pairs):
    x, y = zip(*pairs, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(spearman(x, y))
    else:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def random_fidelities(seed, images=40, names=TEN, spread=0.05, noise=0.1):
    """Estimators with random mean areas close enough that some differences are significant and some not."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 0.2, images)
    return {
        name: straight(*(rng.normal(0.5, spread) + shared + rng.normal(0, noise, images) for _ in range(2)))
        for name in names
    }


@slow
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_contradictions_equal_plain_loops(seed, count):
    names = list(np.random.default_rng(seed).permutation(TEN)[: count + 1])
    names = [str(name) for name in names if name != "random"]
    fidelities = random_fidelities(seed, names=names)
    result = reliability(fidelities, draws=10)

    pairs = list(combinations(names, 2))
    differences = {
        (side, pair): getattr(fidelities[pair[0]], side) - getattr(fidelities[pair[1]], side)
        for side in ("mif_areas", "lif_areas")
        for pair in pairs
    }
    p = {key: stats.ttest_1samp(values, 0).pvalue for key, values in differences.items()}
    kinds = {}
    opposite = {}
    for pair in pairs:
        number_signed = sum(name in ("ig_sum", "vgx_sum", "sgx_sum") for name in pair)
        kinds[pair] = ["unsigned-unsigned", "signed-unsigned", "signed-signed"][number_signed]
        mif, lif = differences["mif_areas", pair].mean(), differences["lif_areas", pair].mean()
        opposite[pair] = pair[int(mif > 0)] != pair[int(lif < 0)]
    found = {(pair.first, pair.second): pair for pair in result.pairs}
    assert list(found) == pairs
    for kind in KINDS:
        of = [pair for pair in pairs if kinds[pair] == kind]
        # The pairs that seem opposite and those that seem to agree, each corrected over all of the kind.
        for claim in (True, False):
            seeming = [max(p["mif_areas", pair], p["lif_areas", pair]) for pair in of]
            claimed = [each if opposite[pair] is claim else 1 for pair, each in zip(of, seeming, strict=True)]
            for pair, corrected in zip(of, holm_by_loops(claimed), strict=True):
                if opposite[pair] is claim:
                    assert found[pair].p == pytest.approx(corrected)
        for side in ("mif", "lif"):
            corrected = holm_by_loops([p[f"{side}_areas", pair] for pair in of])
            assert [getattr(found[pair], f"p_{side}") for pair in of] == pytest.approx(corrected)
        number = sum(opposite[pair] for pair in of)
        surely = sum(found[pair].p < 0.05 and opposite[pair] for pair in of)
        agree = sum(found[pair].p < 0.05 and not opposite[pair] for pair in of)
        assert result.opposite[kind] == (number, surely, len(of) - agree)
        assert surely == sum(pair.contradiction for pair in result.pairs if pair.kind == kind)
        assert agree == sum(pair.agreeing for pair in result.pairs if pair.kind == kind)
    assert result.opposite["all"].value == sum(opposite.values())


def test_rankings_and_correlations_leave_random_out():
    fidelities = random_fidelities(4)
    result, nine = reliability(fidelities), [name for name in TEN if name != "random"]
    assert list(result.by_area) == sorted(nine, key=lambda name: -fidelities[name].area)
    assert list(result.by_mif) == sorted(nine, key=lambda name: fidelities[name].area_mif)
    assert list(result.by_lif) == sorted(nine, key=lambda name: -fidelities[name].area_lif)
    groups = {
        "all": nine,
        "signed": ["ig_sum", "vgx_sum", "sgx_sum"],
        "unsigned": ["ig_abs", "vg_abs", "vgx_abs", "sg_abs", "sgx_abs", "sqsg_sum"],
    }
    for group, names in groups.items():
        by_mif, by_lif = ([getattr(fidelities[name], a) for name in names] for a in ("area_mif", "area_lif"))
        expected = stats.spearmanr([-area for area in by_mif], by_lif).statistic
        assert result.correlation[group].value == pytest.approx(expected)


def test_pairs_of_each_kind_are_counted_for_the_nine():
    result = reliability(random_fidelities(0))
    assert result.table()["pairs"].to_dict() == {
        "signed-signed": 3,
        "unsigned-unsigned": 15,
        "signed-unsigned": 18,
        "all": 36,
    }
    assert result.table().loc["all", "contradictions"] == len(result.contradictions)
    assert str(result).splitlines()[2].startswith("signed-unsigned pairs: ")
    assert " of 18 " in str(result).splitlines()[2]


def test_a_contradiction_is_found_and_one_within_the_noise_is_not():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, (4, 100))
    evidence = straight(0.1 + noise[0], 0.5 + noise[1])
    background = straight(0.3 + noise[2], 0.8 + noise[3])
    (found,) = reliability({"ig_sum": evidence, "vg_abs": background}).contradictions
    assert (found.kind, found.opposite) == ("signed-unsigned", True)
    assert found.mif == pytest.approx(evidence.area_mif - background.area_mif)
    assert found.lif == pytest.approx(evidence.area_lif - background.area_lif)
    assert str(found) == "ig_sum and vg_abs: MIF prefers ig_sum, LIF prefers vg_abs"

    loud = rng.normal(0, 5, 100)
    doubtful = straight(0.3 + noise[2], 0.8 + loud - loud.mean())
    result = reliability({"ig_sum": evidence, "vg_abs": doubtful})
    assert result.opposite["signed-unsigned"].value == 1
    assert result.contradictions == ()


def test_agreement_has_no_contradictions():
    rng = np.random.default_rng(0)
    fidelities = {
        name: straight(0.5 - 0.04 * k + rng.normal(0, 0.01, 100), 0.5 + 0.04 * k + rng.normal(0, 0.01, 100))
        for k, name in enumerate(SIGNED)
    }
    result = reliability(fidelities)
    assert result.correlation["all"] == pytest.approx((1, 1, 1))
    assert result.opposite["all"] == (0, 0, 0)
    assert result.contradictions == ()
    assert result.by_area == result.by_mif == result.by_lif == tuple(reversed(SIGNED))


def test_without_a_difference_a_contradiction_is_as_rare_as_alpha_promises():
    runs = [reliability(random_fidelities(seed, spread=0), draws=1) for seed in range(60)]
    assert sum(bool(run.contradictions) for run in runs) <= 1
    assert any(run.opposite["all"].value > 5 for run in runs)


def in_sure_order(images=120, seed=2, noise=0.05):
    """Five estimators far apart, by MIF in another order than by LIF."""
    rng = np.random.default_rng(seed)
    names = ["ig_sum", "vgx_sum", "sgx_sum", "vg_abs", "sg_abs"]
    return {
        name: straight(0.1 * place + rng.normal(0, noise, images), 0.1 * end + rng.normal(0, noise, images))
        for place, (name, end) in enumerate(zip(names, (5, 3, 0, 2, 4), strict=True))
    }


def test_bootstrap_of_the_reliability_equals_plain_resampling():
    fidelities = in_sure_order()
    result = reliability(fidelities, draws=200, seed=5)
    rng = np.random.default_rng(5)
    correlations = []
    for _ in range(200):
        images = rng.integers(120, size=120)  # one draw for all estimators
        mif = [each.mif_areas[images].mean() for each in fidelities.values()]
        lif = [each.lif_areas[images].mean() for each in fidelities.values()]
        correlations.append(stats.spearmanr([-area for area in mif], lif).statistic)
    correlations.sort()
    assert result.correlation["all"][1:] == pytest.approx((correlations[5], correlations[194]))


def test_a_rank_correlation_has_no_interval_among_ties_nor_of_few_images():
    sure = in_sure_order()
    assert all(map(math.isfinite, reliability(sure).correlation["all"]))
    few = in_sure_order(images=99)
    assert reliability(few).correlation["all"].value == reliability(sure).correlation["all"].value
    assert math.isnan(reliability(few).correlation["all"].low)
    with_a_tie = sure | {"vg_abs": sure["sg_abs"]}
    assert math.isnan(reliability(with_a_tie).correlation["all"].low)
    assert math.isfinite(reliability(with_a_tie).correlation["signed"].low)
    assert math.isnan(ranking_agreement(with_a_tie, sure).low)
    assert math.isnan(ranking_agreement(few, few).low)
    assert math.isfinite(ranking_agreement(sure, sure).low)


def test_pairs_in_another_order_are_counted_from_the_sure_ones_to_all_but_the_surely_alike():
    sure = in_sure_order()
    assert reordered(sure, sure) == (0, 0, 0)
    swapped = sure | {"ig_sum": sure["sgx_sum"], "sgx_sum": sure["ig_sum"]}
    first, second = ({name: each.area for name, each in by.items()} for by in (sure, swapped))
    pairs = list(combinations(sure, 2))
    number = sum((first[i] > first[j]) != (second[i] > second[j]) for i, j in pairs)
    assert reordered(sure, swapped) == (number, number, number)
    assert number > 0
    tied = dict.fromkeys(sure, sure["ig_sum"])
    assert reordered(sure, tied) == (0, 0, len(pairs))


def test_under_100_images_there_is_no_bootstrap_interval():
    many, few = (random_fidelities(0, images=images)["ig_sum"] for images in (100, 99))
    assert all(map(math.isfinite, many.bootstrap()))
    assert all(map(math.isnan, few.bootstrap()))
    assert math.isfinite(few.interval)
    ones = np.ones((100, 1))
    assert share_kept(ones, ones[:, 0])[0] == (1, 1, 1)
    value, low, high = share_kept(ones[1:], ones[1:, 0])[0]
    assert (value, math.isnan(low), math.isnan(high)) == (1, True, True)


def test_a_group_too_small_for_a_correlation_has_none():
    fidelities = random_fidelities(0, names=["ig_sum", "vg_abs", "sg_abs"])
    correlation = reliability(fidelities).correlation
    assert math.isnan(correlation["signed"].value)
    assert math.isnan(correlation["signed"].low)
    assert correlation["unsigned"].value in (-1, 1)


def test_reliability_is_over_the_images_all_estimators_use():
    mif, lif, x = random_curves(0)
    broken = mif.copy()
    broken[3, 2] = np.nan
    fidelities = {
        "ig_sum": Fidelity.from_curves(broken, lif, x),
        "vg_abs": Fidelity.from_curves(lif, mif, x),
    }
    result = reliability(fidelities)
    assert result.used == 11
    rest = np.arange(12) != 3
    expected = fidelities["ig_sum"].mif_areas[rest].mean() - fidelities["vg_abs"].mif_areas[rest].mean()
    assert result.pairs[0].mif == pytest.approx(expected)


def test_only_estimators_of_known_sign_are_explanations():
    fidelities = random_fidelities(0, names=["ig_sum", "mine_sum", "mine_abs"])
    result = reliability(fidelities, {"mine_sum": True, "mine_abs": False})
    assert [pair.kind for pair in result.pairs] == ["signed-signed", "signed-unsigned", "signed-unsigned"]
    assert len(reliability(fidelities, {"mine_sum": True}).pairs) == 1


def test_with_one_explanation_there_are_no_pairs():
    result = reliability(random_fidelities(0, names=["random", "ig_sum"]))
    assert result.pairs == ()
    assert result.opposite["all"].value == 0
    assert result.by_area == ("random", "ig_sum")


def test_reliability_refuses_what_makes_no_sense():
    with pytest.raises(InputError, match="alpha must lie between 0 and 1, got 5"):
        reliability(random_fidelities(0), alpha=5)
    with pytest.raises(InputError, match="1 to 1,000,000 draws, got 0"):
        reliability(random_fidelities(0), draws=0)


def test_ranking_agreement_is_spearmans_of_the_areas_with_a_bootstrap_over_images():
    first, second = in_sure_order(seed=0), in_sure_order(seed=1)
    areas = [np.array([each.lif_areas - each.mif_areas for each in by.values()]) for by in (first, second)]
    found = ranking_agreement(first, second, draws=200)
    assert found.value == pytest.approx(stats.spearmanr(*(each.mean(1) for each in areas)).statistic)
    rng = np.random.default_rng(7)
    drawn = []
    for _ in range(400):
        images = rng.integers(120, size=120)
        drawn.append(stats.spearmanr(*(each[:, images].mean(1) for each in areas)).statistic)
    np.testing.assert_allclose(found[1:], np.percentile(drawn, [2.5, 97.5]), atol=0.15)
    same = ranking_agreement(first, first, draws=20)
    assert tuple(same) == (1, 1, 1)


def test_ranking_agreement_needs_the_same_estimators():
    fidelities = random_fidelities(0, names=["ig_sum", "vg_abs"])
    with pytest.raises(InputError, match=r"no estimators \['vg_abs'\]"):
        ranking_agreement(fidelities, {"ig_sum": fidelities["ig_sum"]})


def test_share_kept_is_a_ratio_of_means_with_a_bootstrap_over_images():
    rng = np.random.default_rng(0)
    whole = rng.uniform(1, 9, 200)
    values = np.stack([whole * rng.uniform(0.4, 0.8, 200), whole], axis=1)
    found, all_of_it = share_kept(values, whole)
    assert found.value == pytest.approx(statistics.fmean(values[:, 0]) / statistics.fmean(whole))
    assert all_of_it == pytest.approx((1, 1, 1))
    residuals = values[:, 0] - found.value * whole  # the interval of a ratio of means, by the delta method
    half = 1.96 * residuals.std(ddof=1) / whole.mean() / math.sqrt(200)
    np.testing.assert_allclose(found[1:], [found.value - half, found.value + half], atol=0.2 * half)
    with pytest.raises(InputError, match=r"values must be \[N, K\] and whole \[N\], got \[200\], \[200\]"):
        share_kept(whole, whole)


def test_what_beats_a_model_free_map_and_a_twin():
    """Against SciPy's one-sided paired tests, the largest of them, corrected by hand."""
    rng = np.random.default_rng(0)

    def with_area(level):
        ends = level + rng.normal(0, 0.2, 40)
        return Fidelity.from_curves(np.ones((40, 2)), np.stack([np.ones(40), ends], 1), [0, 1])

    areas = {name: with_area(at) for name, at in zip("abcrs", (0.9, 0.55, 0.5, 0.4, 0.5), strict=True)}
    areas["a~"] = with_area(0.95)
    found = beats(areas, ["a", "b", "c"], ["r", "s"], {"a": ["a~"]})

    def p(first, second):
        sides = [each.lif_areas - each.mif_areas for each in (areas[first], areas[second])]
        return stats.ttest_rel(*sides, alternative="greater").pvalue

    largest = {name: max((p(name, rival), rival) for rival in "rs") for name in "abc"}
    ordered, before = sorted(largest, key=largest.get), 0.0
    for place, name in enumerate(ordered):
        before = min(1, max(before, (3 - place) * largest[name][0]))
        assert found.model_free[name].name == largest[name][1]
        assert found.model_free[name].p == pytest.approx(before)
    assert found.model_free["a"].beaten
    assert not found.model_free["c"].beaten
    assert found.twin == {"a": ("a~", pytest.approx(p("a", "a~")))}
    assert not found.twin["a"].beaten
