"""Estimators that say the same as another: counting one thing twice would say nothing new."""

import math
from collections.abc import Hashable, Mapping

import numpy as np

from fpa.statistics.intervals import Areas

SAME = 0.2
"""Two estimators are nearly the same where their areas differ by less than this share of their spread over
images, root mean square, under MIF and under LIF. The nearest of the paper's nine on CIFAR-10 have 0.23."""

ONE_MAP = SAME / 4
"""The same for two families that are known to differ: only if both are one map on this model, but for
rounding. A few images with small logits widen the spread: the nearest of a model of Food-101 have 0.09,
though their maps differ."""


def near_duplicates(fidelities: Mapping[str, Areas], families: Mapping[str, Hashable]) -> dict[str, str]:
    """The estimators that say the same as one before them, each with the name of that one.

    They do if both are the same but for their settings, or else by their areas: two families can be one map,
    as integrated gradients and gradient times input are in a ReLU network without biases.
    """
    found: dict[str, str] = {}
    for place, name in enumerate(fidelities):
        for other in list(fidelities)[:place]:
            if other not in found and _same(name, other, fidelities, families):
                found[name] = other
                break
    return found


def _same(name: str, other: str, fidelities: Mapping[str, Areas], families: Mapping[str, Hashable]) -> bool:
    ours = families.get(name)
    theirs = families.get(other)
    known = ours is not None and theirs is not None
    if known and ours == theirs:
        return True
    return _apart(fidelities[name], fidelities[other]) <= (ONE_MAP if known else SAME)


def _apart(first: Areas, second: Areas) -> float:
    """By how much the areas differ, as a share of their spread, under MIF or LIF, whichever is more."""
    kept = first.kept & second.kept
    if kept.sum() < 2:
        return math.inf
    shares = []
    for side in ("mif_areas", "lif_areas"):
        ours = getattr(first, side)[kept]
        theirs = getattr(second, side)[kept]
        apart = float(np.mean((ours - theirs) ** 2))
        spread = float(ours.var() + theirs.var()) / 2
        # Areas without any spread are the same where they are equal.
        shares.append(math.sqrt(apart / spread) if spread > 0 else math.inf if apart else 0.0)
    return max(shares)
