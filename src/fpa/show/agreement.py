"""How far MIF agrees with LIF, as it prints."""

import math

from fpa.statistics.contradictions import Pair, Reliability
from fpa.statistics.intervals import Estimate


def pair_text(pair: Pair) -> str:
    """Which estimator of a pair MIF prefers, and which LIF does."""
    by_mif = _preferred(pair, -pair.mif)  # along MIF a small area is good
    by_lif = _preferred(pair, pair.lif)
    return f"{pair.first} and {pair.second}: MIF prefers {by_mif}, LIF prefers {by_lif}"


def _preferred(pair: Pair, difference: float) -> str:
    """The first estimator where it is better by this difference, the second where that is negative."""
    if difference > 0:
        return pair.first
    return pair.second if difference < 0 else "neither"


def reliability_text(found: Reliability) -> str:
    """How often MIF and LIF contradict each other, a line for each kind of pair."""
    lines = [
        f"{kind} pairs: {row.opposite} of {row.pairs} ranked in opposite order by MIF and LIF"
        f" ({row.opposite_low} to {row.opposite_high} for sure)"
        for kind, row in found.table().iterrows()
    ]
    groups = [f"{key} {_with_ends(each)}" for key, each in found.correlation.items()]
    return "\n".join([*lines, f"rank correlation of MIF with LIF: {', '.join(groups)}"])


def _with_ends(correlation: Estimate) -> str:
    """A correlation with its interval, if it has one."""
    value, low, high = correlation
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} ({low:.2f} to {high:.2f})"
