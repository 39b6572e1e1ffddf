"""Scores that are 0 or 1: their intervals and their paired tests."""

import math

import numpy as np

from fpa.statistics.intervals import Floats, PairedTest


def is_binary(values: Floats) -> bool:
    """Whether all values that are known are 0 or 1, and there are some."""
    known = values[np.isfinite(values)]
    return bool(known.size and np.isin(known, (0.0, 1.0)).all())


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` images; also for values between 0 and 1, a little wide.

    The interval mean +- 1.96 standard errors has no width where all values are equal, which three images
    easily are.

    >>> [round(end, 3) for end in wilson(1.0, 3)], [round(end, 3) for end in wilson(0.5, 100)]
    ([0.438, 1.0], [0.404, 0.596])
    """
    if count == 0:
        return math.nan, math.nan
    square = 1.96**2 / count
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar(differences: Floats) -> PairedTest:
    """McNemar's exact test of paired scores that are 0 or 1, by their differences [n], each -1, 0 or 1.

    Only images on which the two differ count, and if neither is better, each is as likely to win as to lose:
    a binomial distribution. The interval contains that of Bonett and Price (2012), which adds one image to
    either side, so that it has a width even where one of the two always wins.

    >>> test = mcnemar(np.array([1.0, 1.0, 1.0]))
    >>> test.difference, test.p, round(test.interval, 2)
    (1.0, 0.25, 1.1)
    """
    from scipy.special import bdtr

    images = differences.size
    wins = int((differences > 0).sum())
    losses = int((differences < 0).sum())
    decided = wins + losses
    at_most = float(bdtr(wins, decided, 0.5))
    at_least = float(bdtr(losses, decided, 0.5))
    p = min(1.0, 2 * min(at_most, at_least))
    difference = (wins - losses) / images
    more = (wins + 1) / (images + 2)
    less = (losses + 1) / (images + 2)
    # Theirs lies about the difference with the images added, which is nearer to 0.
    half = 1.96 * math.sqrt((more + less - (more - less) ** 2) / (images + 2))
    half += abs(difference - (more - less))
    return PairedTest(
        difference=difference,
        # The test is exact and more cautious: what it does not exclude, the interval must not either.
        interval=half if p < 0.05 else max(half, abs(difference)),
        t=(wins - losses) / math.sqrt(decided) if decided else 0.0,
        p=p,
        p_larger=at_least,
        p_smaller=at_most,
        used=images,
    )
