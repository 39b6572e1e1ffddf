"""How often MIF and LIF agree although they have nothing to do with each other."""

import numpy as np

from fpa.statistics.intervals import Floats


def opposite_by_chance(
    signed: int, unsigned: int, *, group_effect: float = 0.0, draws: int = 100_000
) -> Floats:
    """How often at most 0, 1, ... signed-unsigned pairs are in opposite order if two rankings are unrelated.

    Goodness by MIF and goodness by LIF are drawn separately, with a fixed seed: a normal number for every
    estimator, and one that all signed ones share. `group_effect` is the standard deviation of the latter, the
    difference of the groups, in those within a group; with 0 all orders of the estimators are equally likely.
    Groups far apart make one coin of many pairs: with a large effect each ranking puts one whole group first,
    and in half of all cases it is the same.

    >>> opposite_by_chance(3, 6)[[3, 4]].round(3).tolist()
    [0.024, 0.055]
    >>> [opposite_by_chance(3, 6, group_effect=effect)[3].round(2).item() for effect in (1, 2, 4, 10)]
    [0.07, 0.17, 0.3, 0.41]
    """
    rng = np.random.default_rng(0)
    goodness = rng.random((2, draws, signed + unsigned))
    if group_effect:
        goodness = rng.normal(size=goodness.shape)
        goodness[..., :signed] += rng.normal(0, group_effect, (2, draws, 1))
    above = goodness[:, :, :signed, None] > goodness[:, :, None, signed:]
    counts = (above[0] != above[1]).sum(axis=(1, 2))
    return np.asarray(np.bincount(counts, minlength=signed * unsigned + 1).cumsum() / draws)
