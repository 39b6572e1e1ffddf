"""Intervals, paired tests, and how often two rankings contradict each other: numpy and scipy, no torch.

Everything is over images: resampled together, compared pair by pair.
"""

from fpa.statistics.baselines import Beats, Rival, beats
from fpa.statistics.contradictions import Counts, Pair, Reliability, reliability
from fpa.statistics.intervals import Estimate, PairedTest, holm, paired_test, share_kept, spearman
from fpa.statistics.rank_agreement import ranking_agreement, reordered

__all__ = [
    "Beats", "Counts", "Estimate", "Pair", "PairedTest", "Reliability", "Rival", "beats", "holm",
    "paired_test", "ranking_agreement", "reliability", "reordered", "share_kept", "spearman",
]  # fmt: skip
