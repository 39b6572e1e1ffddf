"""Which images of the data are taken where not all are; known without torch, to read results."""

import numpy as np


def evenly(count: int, total: int | None) -> set[int]:
    """So many places, evenly over the data; the first ones where it is not known how many there are.

    >>> sorted(evenly(3, 11)), sorted(evenly(3, None)), sorted(evenly(3, 2))
    ([0, 5, 10], [0, 1, 2], [0, 1])
    """
    total = count if total is None else total
    places = np.linspace(0, max(total - 1, 0), min(count, total)).round().astype(int)
    return set(places.tolist())
