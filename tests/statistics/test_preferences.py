"""Errors against truth, each against a loop that follows the definition word by word."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from fpa import InputError
from fpa.statistics.preferences import (
    Judged,
    Reading,
    Reduction,
    all_pairs,
    data_set_errors,
    error_reduction,
    ladder_pairs,
    matched_errors,
    preference_errors,
    primary_reductions,
    same_sign_pairs,
)

IMAGES = 40
MAPS = 6


def drawn(seed):
    """Truths, scores that follow them a little and tie often, and noise; some of each have no value."""
    generator = np.random.default_rng(seed)
    truths = generator.uniform(-1, 1, (IMAGES, MAPS))
    scores = np.round(3 * truths + generator.normal(size=(IMAGES, MAPS)))
    noise = generator.uniform(0, 0.2, IMAGES)
    truths[generator.uniform(size=truths.shape) < 0.05] = np.nan
    scores[generator.uniform(size=truths.shape) < 0.05] = np.nan
    noise[3] = np.nan
    truths[7] = np.nan
    return truths, scores, noise


def preference(gap, score_gap):
    """1 if the worse one is preferred, 1/2 if neither is."""
    if score_gap == 0:
        return 0.5
    return float((gap > 0) != (score_gap > 0))


def test_error_of_images_is_that_of_a_loop_over_pairs():
    truths, first, noise = drawn(0)
    second = drawn(1)[1]
    found = preference_errors(truths, {"first": first, "second": second}, noise)
    counts = {"pairs": 0, "close": 0, "missing": 0}
    by_image = {"first": [], "second": []}
    for row in range(IMAGES):
        shares = {"first": [], "second": []}
        for a, b in combinations(range(MAPS), 2):
            used = [table[row, place] for table in (truths, first, second) for place in (a, b)]
            if any(math.isnan(value) for value in (*used, noise[row])):
                counts["missing"] += 1
            elif abs(truths[row, a] - truths[row, b]) <= noise[row]:
                counts["close"] += 1
            else:
                counts["pairs"] += 1
                for name, scores in (("first", first), ("second", second)):
                    gap = truths[row, a] - truths[row, b]
                    shares[name].append(preference(gap, scores[row, a] - scores[row, b]))
        for name, values in shares.items():
            by_image[name].append(np.mean(values) if values else math.nan)
    assert min(counts.values()) > 20
    assert counts == {"pairs": found.pairs, "close": found.close, "missing": found.missing}
    for name, values in by_image.items():
        assert found.by_image[name].tolist() == pytest.approx(values, nan_ok=True)
        assert np.isnan(values).sum() >= 2
        assert found.errors[name] == pytest.approx(np.nanmean(values))
    assert found.errors["first"] < found.errors["second"]  # the second knows nothing of these truths


def test_error_of_the_data_set_is_that_of_a_loop_over_pairs_of_means():
    truths, scores, noise = drawn(2)
    truths += np.linspace(0, 0.05, MAPS)
    found = data_set_errors(truths, {"A": scores}, noise)
    wrong = []
    close = 0
    for a, b in combinations(range(MAPS), 2):
        rows = [
            row
            for row in range(IMAGES)
            if np.isfinite([truths[row, a], truths[row, b], scores[row, a], scores[row, b], noise[row]]).all()
        ]
        gap = truths[rows, a].mean() - truths[rows, b].mean()
        if abs(gap) <= math.sqrt((noise[rows] ** 2).sum()) / len(rows):
            close += 1
        else:
            wrong.append(preference(gap, scores[rows, a].mean() - scores[rows, b].mean()))
    assert found.close == close > 0
    assert found.pairs == len(wrong)
    assert found.errors["A"] == pytest.approx(np.mean(wrong))
    assert found.by_image["A"].tolist() == pytest.approx([found.errors["A"]])


def test_a_map_without_any_value_has_no_pairs():
    truths = np.array([[0.1, 0.9, np.nan], [0.2, 0.8, np.nan]])
    for errors in (preference_errors, data_set_errors):
        found = errors(truths, {"A": [[1, 2, 3], [1, 2, 3]]}, [0.1, 0.1])
        assert found.errors["A"] == 0
        nothing = errors(truths, {"A": np.full((2, 3), np.inf)}, [0.1, 0.1])
        assert math.isnan(nothing.errors["A"])
        assert nothing.pairs == nothing.close == 0


def test_pairs_are_restricted():
    truths, scores, noise = drawn(4)
    ladders = [{"noise", "blur"}, {"noise"}, {"blur"}, {"blur"}, set(), set()]
    signed = [True, True, True, False, False, True]
    by_hand = {
        "ladders": [pair for pair in combinations(range(MAPS), 2) if ladders[pair[0]] & ladders[pair[1]]],
        "signs": [pair for pair in combinations(range(MAPS), 2) if signed[pair[0]] == signed[pair[1]]],
    }
    found = {"ladders": ladder_pairs(ladders), "signs": same_sign_pairs(all_pairs(MAPS), signed)}
    for name, pairs in by_hand.items():
        assert [tuple(pair) for pair in found[name].tolist()] == pairs
        wrong = preference_errors(truths, {"A": scores}, noise, found[name]).by_image["A"]
        for row in range(IMAGES):
            shares = [
                preference(truths[row, a] - truths[row, b], scores[row, a] - scores[row, b])
                for a, b in pairs
                if np.isfinite([*truths[row, [a, b]], *scores[row, [a, b]], noise[row]]).all()
                and abs(truths[row, a] - truths[row, b]) > noise[row]
            ]
            assert wrong[row] == pytest.approx(np.mean(shares) if shares else math.nan, nan_ok=True)


@pytest.mark.parametrize("fewest", [1, 5])
def test_matched_errors_are_those_of_a_loop_over_bins(fewest):
    truths, scores, noise = drawn(5)
    generator = np.random.default_rng(6)
    twin_truths = truths + generator.normal(size=truths.shape) * 0.05
    twin_truths[:4] *= -1  # the other map is the truer one
    twin_scores = np.round(6 * twin_truths + generator.normal(size=truths.shape))
    twin_noise = noise[::-1].copy()
    pairs = [(0, 1), (0, 2), (1, 2), (3, 5), (4, 3)]
    first = Judged(truths, scores, noise)
    second = Judged(twin_truths, twin_scores, twin_noise)
    found = matched_errors(first, second, pairs, fewest=fewest)
    bins = {}
    dropped = {"missing": 0, "close": 0, "unlike": 0}
    for row in range(IMAGES):
        for a, b in pairs:
            gaps = [table[row, a] - table[row, b] for table in (truths, twin_truths)]
            score_gaps = [table[row, a] - table[row, b] for table in (scores, twin_scores)]
            larger = max(noise[row], twin_noise[row])
            if any(map(math.isnan, (*gaps, *score_gaps, noise[row], twin_noise[row]))):
                dropped["missing"] += 1
            elif min(abs(gap) for gap in gaps) <= larger:
                dropped["close"] += 1
            elif int(abs(gaps[0]) * 10) != int(abs(gaps[1]) * 10) or gaps[0] * gaps[1] < 0:
                dropped["unlike"] += 1
            else:
                wrong = [preference(*each) for each in zip(gaps, score_gaps, strict=True)]
                bins.setdefault(int(abs(gaps[0]) * 10), []).append(wrong)
    full = {number: np.mean(bins[number], axis=0) for number in sorted(bins) if len(bins[number]) >= fewest}
    assert len(full) > 2
    assert (found.gaps // 0.1 == found.bins // 0.099).all()
    assert min(dropped.values()) > 10
    assert dropped == {"missing": found.missing, "close": found.close, "unlike": found.unlike}
    assert found.thin == sum(len(each) for each in bins.values() if len(each) < fewest)
    assert found.bins.tolist() == pytest.approx([number / 10 for number in full])
    assert found.counts.tolist() == [len(bins[number]) for number in full]
    assert found.by_bin.T.tolist() == [pytest.approx(list(each)) for each in full.values()]
    assert [found.first, found.second] == pytest.approx(list(np.mean(list(full.values()), axis=0)))
    assert found.reduction == pytest.approx(found.first - found.second)


def test_gaps_at_the_border_of_a_bin_belong_to_the_upper_one():
    truths = [[0.3, 0.0]]
    found = matched_errors(Judged(truths, truths, [0.0]), Judged([[0.35, 0.0]], truths, [0.0]), [[0, 1]])
    assert found.bins.tolist() == pytest.approx([0.3])
    assert (found.first, found.second) == (0, 0)


def test_two_models_do_not_differ_by_the_steepness_of_their_ladders():
    """An evaluation that errs alike on both models must not seem better on that with the steeper ladders."""
    generator = np.random.default_rng(0)
    images = 60_000

    def model(steepness):
        truths = steepness * generator.uniform(0, 1, (images, 3))
        return Judged(truths, truths + 0.3 * generator.normal(size=truths.shape), np.full(images, 0.01))

    flat = model(0.7)
    steep = model(1.0)
    unmatched = [
        preference_errors(each.truths, {"A": each.scores}, each.noise).errors["A"] for each in (flat, steep)
    ]
    matched = matched_errors(flat, steep, all_pairs(3), fewest=400)
    assert unmatched[0] - unmatched[1] > 0.05
    assert abs(matched.reduction) < 0.02
    assert np.abs(matched.gaps[0] - matched.gaps[1]).max() < 0.01


def test_gaps_show_where_bins_are_too_wide():
    """Every gap is larger by a quarter in one model: what falls into the same bin, differs inside of it."""
    truths = np.random.default_rng(0).uniform(0, 0.8, (2000, 3))
    noise = np.zeros(2000)
    found = matched_errors(Judged(truths, truths, noise), Judged(1.25 * truths, truths, noise), all_pairs(3))
    assert found.gaps[1] == pytest.approx(1.25 * found.gaps[0])


def test_reductions_are_read_by_their_t_interval():
    generator = np.random.default_rng(0)
    seen = set()
    for mean in (-0.03, 0.0, 0.02, 0.03, 0.06):
        for _ in range(20):
            before = generator.uniform(0.2, 0.4, 5)
            after = before - mean - generator.normal(size=5) * 0.01
            found = error_reduction(before, after)
            low, high = stats.t.interval(
                0.95, 4, loc=np.mean(before - after), scale=stats.sem(before - after)
            )
            assert (found.low, found.high) == pytest.approx((low, high))
            expected = Reading.OPEN
            if low > 0.02:
                expected = Reading.SUPPORTED
            if high < 0.02:
                expected = Reading.REFUTED
            assert found.reading == expected
            assert found.p == pytest.approx(stats.ttest_1samp(before - after, 0.02).pvalue)
            seen.add(expected)
    assert seen == set(Reading)


def test_primary_claims_are_corrected_over_each_other():
    def claim(mean, p):
        return Reduction(mean=mean, half_width=0.01, p=p, reading=Reading.OPEN, seeds=5, limit=0.02)

    found = primary_reductions({"a": claim(0.05, 0.03), "b": claim(0.06, 0.04)})
    assert [each.p for each in found.values()] == pytest.approx([0.06, 0.06])
    assert [each.reading for each in found.values()] == ["open", "open"]
    found = primary_reductions({"a": claim(0.05, 0.02), "b": claim(0.01, 0.04), "c": claim(0.01, 0.001)})
    assert [each.p for each in found.values()] == pytest.approx([0.04, 0.04, 0.003])
    assert [each.reading for each in found.values()] == ["supported", "refuted", "refuted"]
    assert primary_reductions({}) == {}


def test_seeds_that_all_agree_leave_no_doubt():
    assert error_reduction([0.5, 0.5], [0.25, 0.25]).reading == Reading.SUPPORTED
    assert error_reduction([0.5, 0.5], [0.5, 0.5]).reading == Reading.REFUTED


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: preference_errors([[1, 2]], {}, [0]), "at least one evaluation"),
        (lambda: preference_errors([[1, 2]], {"A": [[1, 2, 3]]}, [0]), r"got \[1, 2\], \[1, 3\], \[1\]"),
        (lambda: data_set_errors([[1, 2]], {"A": [[1, 2]]}, [0, 1]), r"noise \[N\]"),
        (lambda: preference_errors([[1, 2]], {"A": [[1, 2]]}, [0], [[0, 2]]), "maps 0 to 1, got 0 and 2"),
        (
            lambda: matched_errors(Judged([[1, 2]], [[1, 2]], [0]), Judged([[1]], [[1]], [0]), [[0, 1]]),
            "the same images and maps",
        ),
        (lambda: error_reduction([0.1], [0.2]), "2 seeds or more"),
        (lambda: error_reduction([0.1, 0.2], [0.2, math.nan]), "place 1 has none"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
