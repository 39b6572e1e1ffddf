"""How few pixels carry most of what a map says."""

import numpy as np
import numpy.typing as npt

from fpa.statistics.intervals import Floats


def share_carrying(scores: npt.ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """The smallest share of all pixels that carries `level` of the positive and of the negative score.

    >>> share_carrying([[9.0, 1.0], [0.0, -1.0]], 0.9)
    (0.25, 0.25)
    """
    flat = np.asarray(scores, dtype=np.float64).ravel()

    def share(sizes: Floats) -> float:
        carried = np.cumsum(np.sort(sizes)[::-1])
        if carried.size == 0:
            return 0.0
        # A sum that misses the level by rounding alone has reached it.
        return float(np.searchsorted(carried, level * carried[-1] * (1 - 1e-12)) + 1) / flat.size

    return share(flat[flat > 0]), share(-flat[flat < 0])
