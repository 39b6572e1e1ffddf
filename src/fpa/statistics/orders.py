"""In which order MIF and LIF put two estimators, and how surely: one test for every pair.

A pair is *surely agreeing* or *surely opposite* only if its order is significant by MIF and by LIF. The test
is that of an intersection and union: p = max(p of MIF, p of LIF) needs no correction for the two, because a
false claim about the pair is a false claim about the one of them that is tied.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fpa.statistics.intervals import Bools, Floats, holm
from fpa.statistics.skewness import inwards, shift_of_limits

ALPHA = 0.05
"""The level of all tests of a family together."""

FEWEST_RANKED = 5
"""Fewer ranks show nothing: of four, chance alone gives the same order or its reverse in 2 of 4! cases."""


class Orders(NamedTuple):
    """Of every pair of estimators: the differences of the mean areas, first minus second, and how sure."""

    mif: Floats
    """[..., P] under MIF, which is good where it is small."""
    lif: Floats
    """[..., P] under LIF, which is good where it is large."""
    p_mif: Floats
    """[..., P] two-sided, of a paired t-test over images, as `intervals.t_test`; not corrected."""
    p_lif: Floats

    @property
    def opposite(self) -> Bools:
        """MIF prefers one, LIF the other: the signs of the differences are equal."""
        return np.asarray(np.sign(self.mif) * np.sign(self.lif) > 0)

    @property
    def agreeing(self) -> Bools:
        """Both prefer the same one."""
        return np.asarray(np.sign(self.mif) * np.sign(self.lif) < 0)

    @property
    def p(self) -> Floats:
        """[..., P] that the pair is not in the order it seems to be in, Holm-corrected over the P pairs.

        Agreement and opposition are two families of claims, each corrected over all pairs. In a given
        population a verdict can be wrong in one of the two ways only, so its error is that of one family,
        whatever the pairs have to do with each other (`docs/audit.md`). A pair without an order has 1.
        """
        seeming = np.maximum(self.p_mif, self.p_lif)
        corrected = [
            np.where(claimed, holm(np.where(claimed, seeming, 1.0)), 1.0)
            for claimed in (self.opposite, self.agreeing)
        ]
        return np.asarray(np.minimum(*corrected))

    def bounds(self, alpha: float = ALPHA) -> tuple[Floats, Floats]:
        """[...] The least and the most pairs in opposite order, O and P - G, at the level of all tests."""
        sure = self.p < alpha
        surely_opposite = (sure & self.opposite).sum(axis=-1)
        surely_agreeing = (sure & self.agreeing).sum(axis=-1)
        return surely_opposite, self.mif.shape[-1] - surely_agreeing

    def of(self, pairs: Bools) -> "Orders":
        """Those of some pairs, bool [P], alone."""
        return Orders(*(values[..., pairs] for values in self))


def orders(areas: Floats, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]) -> Orders:
    """Test the pairs (left[k], right[k]) on areas [..., 2, M, n]: of MIF and LIF, by estimator and image.

    >>> rng = np.random.default_rng(0)
    >>> means = np.array([[[1.0], [2.0], [2.0]], [[1.0], [2.0], [0.0]]])
    >>> found = orders(means + rng.normal(0, 0.1, (2, 3, 100)), np.array([0, 0]), np.array([1, 2]))
    >>> found.opposite.tolist(), found.agreeing.tolist(), [int(end) for end in found.bounds(0.05)]
    ([True, False], [False, True], [1, 1])
    """
    shape = (*areas.shape[:-2], len(left))
    means = np.empty(shape)
    p = np.empty(shape)
    # One estimator with all its partners at a time: all pairs at once would need P times the memory.
    for first in np.unique(left):
        at = np.flatnonzero(left == first)
        differences = areas[..., first : first + 1, :] - areas[..., right[at], :]
        means[..., at], p[..., at] = _paired_t(differences)
    return Orders(means[..., 0, :], means[..., 1, :], p[..., 0, :], p[..., 1, :])


def _paired_t(differences: Floats) -> tuple[Floats, Floats]:
    """The means of differences [..., n], and the two-sided p of Student's t that each is 0."""
    from scipy.special import stdtr

    count = differences.shape[-1]
    means = differences.mean(axis=-1)
    errors = differences.std(axis=-1, ddof=1) / np.sqrt(count)
    # Differences that are all the same leave no doubt, or no difference.
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(errors > 0, np.abs(means) / errors, np.where(means == 0, 0.0, np.inf))
    return means, np.minimum(1.0, 2 * stdtr(count - 1, -inwards(t, shift_of_limits(differences))))
