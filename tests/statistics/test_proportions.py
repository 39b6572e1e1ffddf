"""Scores that are 0 or 1: the paired test and its interval, for all numbers of hits."""

import numpy as np
import pytest
from scipy import stats

from fpa.statistics.proportions import mcnemar


def compared(wins, losses, images):
    return mcnemar(np.repeat([1.0, -1.0, 0.0], [wins, losses, images - wins - losses]))


@pytest.mark.parametrize("images", [2, 3, 6, 12, 25])
def test_0_lies_outside_of_the_interval_exactly_where_p_is_under_5_percent(images):
    for wins in range(images + 1):
        for losses in range(images + 1 - wins):
            found = compared(wins, losses, images)
            decided = wins + losses
            expected = stats.binomtest(wins, decided).pvalue if decided else 1.0
            assert found.p == pytest.approx(expected)
            assert (abs(found.difference) > found.interval) == (found.p < 0.05), (wins, losses)


@pytest.mark.parametrize(("more", "less"), [(0.1, 0.1), (0.3, 0.1), (0.5, 0.02), (0.02, 0.0)])
def test_the_interval_contains_the_true_difference(more, less):
    """By the probabilities of all outcomes of 40 images."""
    images = 40
    contained = 0.0
    for wins in range(images + 1):
        for losses in range(images + 1 - wins):
            rest = images - wins - losses
            probability = stats.multinomial.pmf([wins, losses, rest], images, [more, less, 1 - more - less])
            if probability > 1e-9:
                found = compared(wins, losses, images)
                contained += probability * (abs(found.difference - (more - less)) <= found.interval)
    assert contained > 0.93
