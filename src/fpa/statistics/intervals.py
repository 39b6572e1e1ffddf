"""Bootstrap intervals and rank correlations."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


Floats = npt.NDArray[np.float64]


Bools = npt.NDArray[np.bool_]


Arrayish: TypeAlias = "npt.ArrayLike | Tensor"


class Estimate(NamedTuple):
    """A number with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def share_kept(values: Arrayish, whole: Arrayish, *, draws: int = 1000, seed: int = 0) -> list[Estimate]:
    """The mean over images of each column of `values` [N, K] as a share of the mean of `whole` [N].

    A ratio of means, so that images with a `whole` next to 0 do not count more than others. The interval
    resamples images, the same draw for all.

    >>> share_kept([[2.0, 1.0], [4.0, 2.0]], [2.0, 4.0])
    [Estimate(value=1.0, low=1.0, high=1.0), Estimate(value=0.5, low=0.5, high=0.5)]
    """
    parts, total = floats("values", values), floats("whole", whole)
    if parts.ndim != 2 or total.shape != parts.shape[:1]:
        raise InputError(f"values must be [N, K] and whole [N], got {list(parts.shape)}, {list(total.shape)}")
    means = resampled_means(np.concatenate([total[None], parts.T]), draws, seed)
    drawn = means[:, 1:] / means[:, :1]
    return [*map(estimate, parts.mean(axis=0) / total.mean(), drawn.T)]


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """Spearman's rank correlation along the last axis, [..., M] -> [...]; tied values share their mean rank.

    NaN where it is undefined: fewer than two values, or all of one side tied.

    >>> spearman([[1, 2, 3], [1, 1, 1]], [[5, 6, 9], [3, 2, 1]])
    array([ 1., nan])
    """
    ranks_x, ranks_y = (_centred_ranks(np.asarray(values, dtype=np.float64)) for values in (x, y))
    with np.errstate(invalid="ignore"):
        return np.asarray((ranks_x * ranks_y).sum(-1) / np.sqrt((ranks_x**2).sum(-1) * (ranks_y**2).sum(-1)))


def _centred_ranks(values: Floats) -> Floats:
    """How many values are smaller minus how many are larger: twice the rank, shifted to mean 0."""
    return np.asarray(np.sign(values[..., :, None] - values[..., None, :]).sum(-1))


def standard_error(values: Floats) -> float:
    """The standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan


def resampled_means(values: Floats, draws: int, seed: int) -> Floats:
    """Means [draws, M] of the rows of `values` [M, n] over n columns drawn with replacement."""
    n = values.shape[1]
    if n < 2:
        raise InputError(f"a bootstrap needs at least 2 images, got {n}")
    if draws < 1:
        raise InputError(f"a bootstrap needs at least 1 draw, got {draws}")
    rng, means = np.random.default_rng(seed), np.empty((draws, len(values)))
    at_once = max(1, 2**21 // n)  # bounds the memory: about 50 MB, whatever n and draws
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        columns = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        times_drawn = np.bincount(columns.ravel(), minlength=rows * n).reshape(rows, n)
        means[start : start + rows] = times_drawn.astype(np.float64) @ values.T / n
    return means


def percentile_ends(drawn: Floats, level: float) -> tuple[float, float]:
    """The ends of the middle `level` of the numbers drawn; NaN if one of them is undefined."""
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")
    ordered = np.sort(drawn)
    beyond = math.floor((1 - level) / 2 * len(ordered) + 1e-9)  # 0.025 is a little more than 2.5 % in binary
    if np.isnan(ordered[-1]):
        return math.nan, math.nan
    return float(ordered[beyond]), float(ordered[-1 - beyond])


def estimate(value: SupportsFloat, drawn: Floats) -> Estimate:
    """A number and the interval of those drawn for it."""
    return Estimate(float(value), *percentile_ends(drawn, 0.95))


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of anything array-like, PyTorch tensors of any device and precision included."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)


def floats(name: str, values: Any) -> Floats:
    """An array of floats of anything array-like, or the error that names it."""
    try:
        return np.asarray(to_numpy(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None


def above_chance(accuracy: float, images: int, classes: int) -> bool:
    """Whether an accuracy over so many images is above guessing by two standard errors.

    >>> above_chance(0.6, 100, 2), above_chance(0.61, 100, 2)
    (False, True)
    """
    chance = 1 / classes
    return accuracy > chance + 2 * math.sqrt(chance * (1 - chance) / max(images, 1))
