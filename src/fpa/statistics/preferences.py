"""How often an evaluation prefers the worse of two maps, where the truth of both is known: its *error*.

Maps are columns, images rows. NaN is no value, of a truth or of a score: pairs with it are left out and
counted. Higher scores must be better, so turn the sign of those for which lower is.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError
from fpa.statistics.intervals import Arrayish, Bools, Floats, Integers, floats, holm, t_test

BIN = 0.1
"""Width of the bins of gaps in truth within which two models are compared."""
LIMIT = 0.02
"""By how much the error must fall for a claim to be supported: 2 points."""
ALPHA = 0.05


def all_pairs(count: int) -> Integers:
    """Every two of so many maps, [P, 2].

    >>> all_pairs(3).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    return np.array(list(combinations(range(count), 2)), dtype=np.int64).reshape(-1, 2)


def ladder_pairs(ladders: Sequence[Collection[str]]) -> Integers:
    """The pairs of which both maps are on one ladder, [P, 2], given those that each map is on.

    An estimator is on none, the undamaged truth on all.

    >>> ladder_pairs([{"blur", "noise"}, {"blur"}, {"noise"}, {"noise"}, set()]).tolist()
    [[0, 1], [0, 2], [0, 3], [2, 3]]
    """
    on = [frozenset(each) for each in ladders]
    pairs = all_pairs(len(on))
    return pairs[[bool(on[first] & on[second]) for first, second in pairs]]


def same_sign_pairs(pairs: npt.ArrayLike, signed: Sequence[bool]) -> Integers:
    """Those of the pairs of which both maps are signed, or both unsigned.

    >>> same_sign_pairs(all_pairs(3), [True, False, True]).tolist()
    [[0, 2]]
    """
    chosen = _pairs(pairs, len(signed))
    kinds = np.asarray(signed, dtype=bool)
    alike: Bools = kinds[chosen[:, 0]] == kinds[chosen[:, 1]]
    return chosen[alike]


@dataclass(frozen=True, eq=False)
class Preferences:
    """The errors of evaluations, all on the same pairs of maps."""

    errors: dict[str, float]
    """Of each evaluation, from 0 to 1: the mean of `by_image`; NaN without any pair."""
    by_image: dict[str, Floats]
    """[N]: the share of an image's pairs in which the worse map is preferred; a tie in the score counts half.
    NaN for an image without pairs. Over the data set there is one row: see `data_set_errors`."""
    pairs: int
    """That count."""
    close: int
    """Left out, as their truths differ by no more than the noise."""
    missing: int
    """Left out, as a truth or the score of some evaluation has no value."""


def preference_errors(
    truths: Arrayish, scores: Mapping[str, Arrayish], noise: Arrayish, pairs: npt.ArrayLike | None = None
) -> Preferences:
    """How often each evaluation prefers the worse of two maps of one image.

    Given the truths [N, M] of maps, what each evaluation gives them, [N, M], and the noise of the truth by
    image, [N]. Every image that has pairs counts the same. A pair counts only where all evaluations have
    scores: they are compared on the same pairs.

    >>> found = preference_errors([[0.9, 0.5, 0.1]], {"A": [[7, 7, 8]]}, [0.05])
    >>> round(found.errors["A"], 3), found.pairs  # wrong about two pairs, undecided about one
    (0.833, 3)
    """
    judged = _judged(truths, scores, noise)
    known = next(iter(judged.values()))
    chosen = _pairs(pairs, known.maps)
    gaps = known.gaps(chosen)
    valued = _all_valued(judged, chosen)
    counted = valued & (np.abs(gaps) > known.noise[:, None])
    by_image = {name: _means(_wrong(gaps, each.score_gaps(chosen)), counted) for name, each in judged.items()}
    return Preferences(
        errors={name: _mean(values) for name, values in by_image.items()},
        by_image=by_image,
        pairs=int(counted.sum()),
        close=int((valued & ~counted).sum()),
        missing=int((~valued).sum()),
    )


def data_set_errors(
    truths: Arrayish, scores: Mapping[str, Arrayish], noise: Arrayish, pairs: npt.ArrayLike | None = None
) -> Preferences:
    """The same over the data set: whose mean truth is lower, and whose mean score?

    Means are over the images in which both maps have a truth and a score of every evaluation. The noise of a
    mean is that of independent errors: the root of the sum of squares, divided by the number of images.
    """
    judged = _judged(truths, scores, noise)
    known = next(iter(judged.values()))
    chosen = _pairs(pairs, known.maps)
    valued = _all_valued(judged, chosen)
    images = valued.sum(axis=0)
    with_images = images > 0
    gaps = _means(known.gaps(chosen).T, valued.T)
    squares = np.where(valued, known.noise[:, None] ** 2, 0).sum(axis=0)
    mean_noise = np.sqrt(squares) / np.maximum(images, 1)
    counted = with_images & (np.abs(gaps) > mean_noise)
    by_image = {}
    for name, each in judged.items():
        preferred = _means(each.score_gaps(chosen).T, valued.T)
        by_image[name] = _means(_wrong(gaps, preferred)[None], counted[None])
    return Preferences(
        errors={name: _mean(values) for name, values in by_image.items()},
        by_image=by_image,
        pairs=int(counted.sum()),
        close=int((with_images & ~counted).sum()),
        missing=int((~with_images).sum()),
    )


class Judged:
    """What is known of the maps of a model, and what an evaluation says of them."""

    def __init__(self, truths: Arrayish, scores: Arrayish, noise: Arrayish) -> None:
        """Truths and scores [N, M], noise [N]: the largest gap in truth that may be chance."""
        self.truths = floats("truths", truths)
        self.scores = floats("scores", scores)
        self.noise = floats("noise", noise)
        shape = self.truths.shape
        if self.truths.ndim != 2 or self.scores.shape != shape or self.noise.shape != shape[:1]:
            shapes = [list(each.shape) for each in (self.truths, self.scores, self.noise)]
            raise InputError("truths and scores must be [N, M] and noise [N], got {}, {}, {}".format(*shapes))
        self.maps = shape[1]

    def gaps(self, pairs: Integers) -> Floats:
        """By how much the first map of each pair is truer, [N, P]."""
        with np.errstate(invalid="ignore"):
            return self.truths[:, pairs[:, 0]] - self.truths[:, pairs[:, 1]]

    def score_gaps(self, pairs: Integers) -> Floats:
        """By how much the first map of each pair has the higher score, [N, P]."""
        with np.errstate(invalid="ignore"):
            return self.scores[:, pairs[:, 0]] - self.scores[:, pairs[:, 1]]

    def valued(self, pairs: Integers) -> Bools:
        """Whether both maps have a truth and a score, and the image a noise, [N, P]."""
        has = self.has_values()
        return has[:, pairs[:, 0]] & has[:, pairs[:, 1]]

    def has_values(self) -> Bools:
        """Whether a map has a truth and a score, and the image a noise, [N, M]."""
        has: Bools = np.isfinite(self.truths) & np.isfinite(self.scores) & np.isfinite(self.noise)[:, None]
        return has

    def wrong(self, pairs: Integers) -> Floats:
        """1 where the worse map is preferred, 1/2 where scores tie, else 0, [N, P]."""
        return _wrong(self.gaps(pairs), self.score_gaps(pairs))


def _judged(truths: Arrayish, scores: Mapping[str, Arrayish], noise: Arrayish) -> dict[str, Judged]:
    if not scores:
        raise InputError("scores must have at least one evaluation, got none")
    return {name: Judged(truths, values, noise) for name, values in scores.items()}


def _all_valued(judged: Mapping[str, Judged], pairs: Integers) -> Bools:
    """Whether both maps of a pair have values in every evaluation, [N, P]."""
    has: Bools = np.logical_and.reduce([each.has_values() for each in judged.values()])
    valued: Bools = has[:, pairs[:, 0]] & has[:, pairs[:, 1]]
    return valued


@dataclass(frozen=True, eq=False)
class Matched:
    """The errors of one evaluation on two models, on pairs of maps that are equally far apart in both."""

    first: float
    """Error on the first model, from 0 to 1: the mean over bins. NaN if no pair is left."""
    second: float
    bins: Floats
    """[B] the lower ends of the bins that have pairs."""
    by_bin: Floats
    """[2, B] the errors on the first and the second model."""
    gaps: Floats
    """[2, B] the mean gaps in truth of either model: where they differ inside of a bin, it is too wide to
    make the pairs equally easy."""
    counts: Integers
    """[B] the numbers of pairs."""
    missing: int
    """Pairs dropped as a truth or a score has no value in one of the models."""
    close: int
    """Pairs dropped as the gap in truth is within the larger noise in one of the models."""
    unlike: int
    """Pairs dropped as the gaps are of different bins, or of different signs."""
    thin: int
    """Pairs dropped as their bin has too few."""

    @property
    def reduction(self) -> float:
        """By how much the error is lower on the second model."""
        return self.first - self.second


def matched_errors(
    first: Judged, second: Judged, pairs: npt.ArrayLike, *, width: float = BIN, fewest: int = 1
) -> Matched:
    """Compare two models whose maps have truths of their own, on pairs that are equally easy in both.

    Image n and map m must be the same scene and the same rung of a ladder in both. A pair is kept if its gap
    in truth exceeds the larger of the two noises in both models, with the same map the truer one, and falls
    into the same bin of this width. The error is the mean over bins with `fewest` pairs or more: else the
    model whose ladders are steeper would be judged by easier pairs.
    """
    if first.truths.shape != second.truths.shape:
        shapes = f"{list(first.truths.shape)} and {list(second.truths.shape)}"
        raise InputError(f"two models are compared on the same images and maps, got {shapes}")
    if not (width > 0 and fewest >= 1):
        raise InputError(f"width must be above 0 and fewest at least 1, got {width} and {fewest}")
    chosen = _pairs(pairs, first.maps)
    gaps = np.stack([first.gaps(chosen), second.gaps(chosen)])
    valued = first.valued(chosen) & second.valued(chosen)
    larger_noise = np.fmax(first.noise, second.noise)[:, None]
    clear = valued & (np.abs(gaps) > larger_noise).all(axis=0)
    bins = _bins(gaps, width)
    alike = clear & (bins[0] == bins[1]) & (np.sign(gaps[0]) == np.sign(gaps[1]))
    # One bin for both signs: which of two maps comes first in a pair says nothing.
    numbers, place, counts = np.unique(bins[0][alike], return_inverse=True, return_counts=True)
    enough = counts >= fewest

    def by_bin(values: Sequence[Floats] | Floats) -> Floats:
        """Means of what the two models have, [2, B]."""
        sums = [np.bincount(place, weights=each[alike], minlength=len(counts)) for each in values]
        return np.asarray((np.stack(sums) / counts)[:, enough])

    errors = by_bin([first.wrong(chosen), second.wrong(chosen)])
    return Matched(
        first=_mean(errors[0]),
        second=_mean(errors[1]),
        bins=numbers[enough] * width,
        by_bin=errors,
        gaps=by_bin(np.abs(gaps)),
        counts=counts[enough],
        missing=int((~valued).sum()),
        close=int((valued & ~clear).sum()),
        unlike=int((clear & ~alike).sum()),
        thin=int(counts[~enough].sum()),
    )


class Reading(StrEnum):
    """What the interval of a reduction says of a claim."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    OPEN = "open"


class Reduction(NamedTuple):
    """By how much the error falls, over paired seeds."""

    mean: float
    half_width: float
    """Of the 95 % t interval."""
    p: float
    """Two-sided: how likely a mean at least so far from the limit is if the limit is the truth."""
    reading: Reading
    seeds: int
    limit: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half_width


def error_reduction(before: Arrayish, after: Arrayish, *, limit: float = LIMIT) -> Reduction:
    """Does the error fall by more than `limit`, given both errors of each seed, [S]?

    Supported if the t interval of the mean lies wholly above the limit, refuted if wholly below it.

    >>> found = error_reduction([0.26, 0.25, 0.27, 0.26, 0.25], [0.21, 0.20, 0.21, 0.22, 0.20])
    >>> print(f"{found.mean:.3f} ± {found.half_width:.3f}: {found.reading}")
    0.050 ± 0.009: supported
    """
    first = floats("before", before)
    second = floats("after", after)
    if first.ndim != 1 or first.shape != second.shape or len(first) < 2:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise InputError(f"a reduction needs two errors of each of 2 seeds or more, got {shapes}")
    without = np.flatnonzero(~(np.isfinite(first) & np.isfinite(second)))
    if without.size:
        raise InputError(
            f"a reduction needs the errors of all seeds, but that at place {without[0]} has none"
        )
    # Against the limit, not against 0: its p below 5 % is the same as the interval lying on one side of it.
    test = t_test(first - second - limit)
    return Reduction(
        mean=test.difference + limit,
        half_width=test.interval,
        p=test.p,
        reading=_reading(test.difference, test.p),
        seeds=test.used,
        limit=limit,
    )


def primary_reductions(reductions: Mapping[str, Reduction]) -> dict[str, Reduction]:
    """The same with p corrected (Holm) over all of them, and read by it; intervals stay as they are."""
    corrected = holm([each.p for each in reductions.values()]).tolist() if reductions else []
    return {
        name: each._replace(p=p, reading=_reading(each.mean - each.limit, p))
        for (name, each), p in zip(reductions.items(), corrected, strict=True)
    }


def _reading(above: float, p: float) -> Reading:
    if not p < ALPHA:
        return Reading.OPEN
    return Reading.SUPPORTED if above > 0 else Reading.REFUTED


def _wrong(gaps: Floats, score_gaps: Floats) -> Floats:
    """1 where the signs differ, 1/2 where the score has none; what has no value is left to the caller."""
    return np.asarray(np.where(score_gaps == 0, 0.5, np.sign(gaps) != np.sign(score_gaps)), dtype=np.float64)


def _bins(gaps: Floats, width: float) -> Integers:
    """The number of each gap's bin; a gap of 0.3 belongs to that from 0.3 on, though 0.3 / 0.1 < 3."""
    sizes = np.where(np.isfinite(gaps), np.abs(gaps), 0)
    return np.floor(sizes / width + 1e-9).astype(np.int64)


def _means(values: Floats, counted: Bools) -> Floats:
    """The mean of every row over what counts; NaN where nothing does."""
    sums = np.where(counted, values, 0).sum(axis=1)
    counts = counted.sum(axis=1)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def _mean(values: Floats) -> float:
    """The mean of what is there; NaN where nothing is."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else math.nan


def _pairs(pairs: npt.ArrayLike | None, count: int) -> Integers:
    if pairs is None:
        return all_pairs(count)
    chosen = floats("pairs", pairs).astype(np.int64).reshape(-1, 2)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < count):
        raise InputError(f"pairs must be of maps 0 to {count - 1}, got {chosen.min()} and {chosen.max()}")
    return chosen
