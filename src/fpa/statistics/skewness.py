"""Means of values of which a few lie far from the others: how much surer Student's t is than it may be.

Samples without the far values seem to know the mean well and miss it, always on the same side. By Edgeworth's
expansion (Johnson 1978, Hall 1983) the limits of t for n values of skewness g lie g (2 q^2 + 1) / (6 sqrt n)
beside Student's q, one further out, the other further in. Here both move outwards, and only where that is
much: a sample shows less skewness than its population has, so that a limit moved inwards would be too near.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEWEST_VALUES = 100
"""Fewer values say too little about their skewness."""

MUCH = 0.1
"""Skewness counts from so many times sqrt n on, which moves the limits of 95 % by 7 % or more. Normal values
do not reach it: that of 100 of them has a standard deviation of 0.24."""


def skewness(values: Floats) -> Floats:
    """The skewness of samples [..., n], n at least 3, with the usual correction for n; 0 without a spread.

    >>> skewness(np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 4.0], [2.0, 2.0, 2.0]])).round(3).tolist()
    [0.0, 1.732, 0.0]
    """
    count = values.shape[-1]
    far = values - values.mean(axis=-1, keepdims=True)
    deviation = far.std(axis=-1, ddof=1, keepdims=True)
    # Divided before the cube is taken, which very large values would not survive.
    shares = np.divide(far, deviation, out=np.zeros_like(far), where=deviation > 0)
    return np.asarray((shares * shares * shares).sum(axis=-1) * count / ((count - 1) * (count - 2)))


def shift_of_limits(values: Floats) -> Floats:
    """|g| / (6 sqrt n) of samples [..., n] that are much skewed, 0 of others: what `outwards` takes.

    >>> even, uneven = np.arange(100.0), np.arange(100.0) ** 6
    >>> shift_of_limits(np.stack([even, uneven])).round(4).tolist()
    [0.0, 0.0322]
    """
    count = values.shape[-1]
    if count < FEWEST_VALUES:
        return np.zeros(values.shape[:-1])
    size = np.abs(skewness(values))
    return np.where(size > MUCH * np.sqrt(count), size / (6 * np.sqrt(count)), 0.0)


def outwards(quantile: float, shift: Floats) -> Floats:
    """A limit of Student's t, at least 0, moved outwards.

    >>> outwards(2.0, np.array([0.0, 0.1])).tolist()
    [2.0, 2.9]
    """
    return np.asarray(quantile + shift * (2 * quantile**2 + 1))


def inwards(t: Floats, shift: Floats) -> Floats:
    """The t, at least 0, whose p-value holds: the limit that `outwards` moves to the t seen.

    >>> inwards(np.array([2.0, 2.9, 0.05]), np.array([0.0, 0.1, 0.1])).round(9).tolist()
    [2.0, 2.0, 0.0]
    """
    above = np.maximum(t - shift, 0.0)
    # The quadratic formula, divided so that it also holds without a shift.
    with np.errstate(invalid="ignore"):
        moved = 2 * above / (1 + np.sqrt(1 + 8 * shift * above))
    return np.asarray(np.where(np.isinf(t), t, moved))
