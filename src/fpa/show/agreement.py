"""How far MIF agrees with LIF, as it prints."""

from fpa.statistics.contradictions import Pair, Reliability


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
        f" ({row.opposite_low} to {row.opposite_high}), {row.contradictions} significantly"
        for kind, row in found.table().iterrows()
    ]
    groups = [f"{key} {c.value:.2f} ({c.low:.2f} to {c.high:.2f})" for key, c in found.correlation.items()]
    return "\n".join([*lines, f"rank correlation of MIF with LIF: {', '.join(groups)}"])
