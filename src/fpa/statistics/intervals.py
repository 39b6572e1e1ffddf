"""Bootstrap intervals, paired tests over images, and rank correlations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError, at_least, first_line
from fpa.statistics.skewness import inwards, outwards, shift_of_limits
from fpa.values import checked

if TYPE_CHECKING:
    from torch import Tensor


Floats = npt.NDArray[np.float64]


Bools = npt.NDArray[np.bool_]


Integers = npt.NDArray[np.int64]


Arrayish: TypeAlias = "npt.ArrayLike | Tensor"


Normalise = Literal["each", "none"]


MOST_DRAWS = 1_000_000
"""Of a bootstrap."""


FEWEST_RESAMPLED = 100
"""Fewer images have no bootstrap interval: it would contain the truth in less than 93 % of cases."""


class Estimate(NamedTuple):
    """A number with the ends of its 95 % interval; NaN where it has none."""

    value: float
    low: float
    high: float


def share_kept(values: Arrayish, whole: Arrayish, *, draws: int = 1000, seed: int = 0) -> list[Estimate]:
    """The mean over images of each column of `values` [N, K] as a share of the mean of `whole` [N].

    A ratio of means, so that images with a `whole` next to 0 do not count more than others. The interval
    resamples images, the same draw for all; under 100 images there is none (NaN).

    >>> share_kept([[2.0, 1.0], [4.0, 2.0]] * 50, [2.0, 4.0] * 50)
    [Estimate(value=1.0, low=1.0, high=1.0), Estimate(value=0.5, low=0.5, high=0.5)]
    """
    parts = floats("values", values)
    total = floats("whole", whole)
    if parts.ndim != 2 or total.shape != parts.shape[:1]:
        raise InputError(f"values must be [N, K] and whole [N], got {list(parts.shape)}, {list(total.shape)}")
    check_draws(draws, seed)
    if len(total) < FEWEST_RESAMPLED:
        return [*map(without_interval, parts.mean(axis=0) / total.mean())]
    means = resampled_means(np.concatenate([total[None], parts.T]), draws, seed)
    drawn = means[:, 1:] / means[:, :1]
    return [*map(estimate, parts.mean(axis=0) / total.mean(), drawn.T)]


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """Spearman's rank correlation along the last axis, [..., M] -> [...]; tied values share their mean rank.

    NaN where it is undefined: fewer than two values, or all of one side tied.

    >>> spearman([[1, 2, 3], [1, 1, 1]], [[5, 6, 9], [3, 2, 1]])
    array([ 1., nan])
    """
    ranks_x = _centred_ranks(np.asarray(x, dtype=np.float64))
    ranks_y = _centred_ranks(np.asarray(y, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        return np.asarray((ranks_x * ranks_y).sum(-1) / np.sqrt((ranks_x**2).sum(-1) * (ranks_y**2).sum(-1)))


def _centred_ranks(values: Floats) -> Floats:
    """How many values are smaller minus how many are larger: twice the rank, shifted to mean 0."""
    return np.asarray(np.sign(values[..., :, None] - values[..., None, :]).sum(-1))


def standard_error(values: Floats) -> float:
    """The standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan


def critical(count: int) -> float:
    """How many standard errors half a 95 % interval has: 1.96, under 30 values those of Student's t.

    >>> critical(30), round(critical(29), 3), round(critical(5), 3)
    (1.96, 2.048, 2.776)
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975)) if 1 < count < 30 else 1.96


def normal_quantile(level: float) -> float:
    """How many standard errors half an interval of this level has, for many values.

    >>> round(normal_quantile(0.95), 2), round(normal_quantile(0.99), 2)
    (1.96, 2.58)
    """
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def half_width(values: Floats) -> float:
    """Half the width of the 95 % interval of a mean; NaN for a single value."""
    return float(half_widths(values))


def half_widths(values: Floats) -> Floats:
    """The same of samples [..., n].

    It is `critical(n)` standard errors, and more from 100 values on that are much skewed: of 1.96, so many
    would contain the mean of their population in as few as 90 % of cases (docs/fidelity.md).

    >>> few_far = np.repeat([0.0, 10.0], [98, 2])
    >>> round(half_width(few_far) / standard_error(few_far), 2), half_width(few_far[1:2])
    (2.97, nan)
    """
    count = values.shape[-1]
    if count < 2:
        return np.full(values.shape[:-1], math.nan)
    errors = values.std(axis=-1, ddof=1) / math.sqrt(count)
    return np.asarray(outwards(critical(count), shift_of_limits(values)) * errors)


def trimmed_mean(values: Floats, share: float = 0.05) -> float:
    """The mean without the lowest and the highest `share` of the values, at least one of each from 3 on.

    >>> trimmed_mean(np.array([1.0, 2.0, 3.0, 1000.0])), trimmed_mean(np.array([1.0, 3.0]))
    (2.5, 2.0)
    """
    cut = min(math.ceil(share * values.size), (values.size - 1) // 2)
    return float(np.sort(values)[cut : values.size - cut].mean())


def resampled_means(values: Floats, draws: int, seed: int) -> Floats:
    """Means [draws, M] of the rows of `values` [M, n] over n columns drawn with replacement."""
    n = values.shape[1]
    if n < 2:
        raise InputError(f"a bootstrap needs at least 2 images, got {n}")
    check_draws(draws, seed)
    rng = np.random.default_rng(seed)
    means = np.empty((draws, len(values)))
    at_once = max(1, 2**21 // n)  # bounds the memory: about 50 MB, whatever n and draws
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        # How often each image is drawn, times the values, costs one product instead of `rows` sums.
        columns = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        times_drawn = np.bincount(columns.ravel(), minlength=rows * n).reshape(rows, n)
        means[start : start + rows] = times_drawn.astype(np.float64) @ values.T / n
    return means


def check_draws(draws: int, seed: int) -> None:
    """Refuse what no bootstrap can be made with."""
    if not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"a bootstrap needs 1 to {MOST_DRAWS:,} draws, got {draws}")
    at_least("seed", seed, 0)


def check_level(level: float) -> None:
    """Refuse what is no level of an interval."""
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")


def percentile_ends(drawn: Floats, level: float) -> tuple[float, float]:
    """The ends of the middle `level` of the numbers drawn; NaN if one of them is undefined."""
    check_level(level)
    ordered = np.sort(drawn)
    # 0.025 is a little more than 2.5 % in binary; never beyond the middle.
    beyond = min(math.floor((1 - level) / 2 * len(ordered) + 1e-9), (len(ordered) - 1) // 2)
    if np.isnan(ordered[-1]):
        return math.nan, math.nan
    return float(ordered[beyond]), float(ordered[-1 - beyond])


def estimate(value: SupportsFloat, drawn: Floats) -> Estimate:
    """A number and the interval of those drawn for it."""
    return Estimate(float(value), *percentile_ends(drawn, 0.95))


def without_interval(value: SupportsFloat) -> Estimate:
    """A number of too few images, or among ties."""
    return Estimate(float(value), math.nan, math.nan)


def to_numpy(name: str, values: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """A NumPy array of anything array-like, PyTorch tensors of any device and precision included."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values
        if np.iscomplexobj(values):
            raise TypeError("they are complex")
        return np.asarray(values, dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} must be an array of numbers: {first_line(error)}") from None


def floats(name: str, values: Any) -> Floats:
    """An array of floats of anything array-like, or the error that names it."""
    return to_numpy(name, values, np.float64)


def above_chance(accuracy: float, images: int, chance: float) -> bool:
    """Whether an accuracy over so many images is above that of guessing by two standard errors.

    >>> above_chance(0.6, 100, 0.5), above_chance(0.61, 100, 0.5)
    (False, True)
    """
    return accuracy > chance + 2 * math.sqrt(chance * (1 - chance) / max(images, 1))


ENOUGH_IMAGES = 30
"""From so many on, an accuracy can be compared with that of guessing."""

IMPROBABLE = 0.001


def surprisingly_low(accuracy: float, images: int, *, confidence: float, chance: float) -> bool:
    """Whether an accuracy is far too low for the mean `confidence`, from 0 to 1, of a model's predictions.

    It is if it is under a fifth of that, or not above `chance`. Few images tell nothing about chance, but a
    model that is right with probability `confidence` would hardly ever be right so seldom: that is the lower
    tail of a binomial distribution, and where single images have other probabilities of the same mean, a tail
    so far below it is smaller still (Hoeffding).

    >>> [surprisingly_low(0.0, images, confidence=0.9, chance=0.5) for images in (2, 6, 63)]
    [False, True, True]
    """
    far_below = accuracy < confidence / 5
    if images >= ENOUGH_IMAGES:
        return far_below or not above_chance(accuracy, images, chance)
    wrong = max(0.0, 1 - confidence)
    ways = ((math.comb(images, right), right) for right in range(round(accuracy * images) + 1))
    tail = math.fsum(number * confidence**right * wrong ** (images - right) for number, right in ways)
    return far_below and tail < IMPROBABLE


@dataclass(frozen=True, eq=False, kw_only=True)
class Areas:
    """The areas under an estimator's curves, image by image: what is compared."""

    normalise: Normalise
    """Whether each image's curves were divided by its own unmasked output."""
    mif_areas: Floats = field(repr=False)
    """[N] area under each image's MIF curve in percent; NaN where the image is left out."""
    lif_areas: Floats = field(repr=False)
    """[N] the same under the LIF curve."""
    kept: Bools = field(repr=False)
    """[N] True for the images used."""
    indices: Integers | None = field(default=None, repr=False)
    """[N] the numbers of the images in their data set, where they are known."""


class PairedTest(NamedTuple):
    """A paired t-test over images; every number is about the first estimator minus the second.

    From 100 images on whose differences are much skewed, interval and p-values are those of a smaller t
    (`statistics.skewness`), as intervals of A are longer there.
    """

    difference: float
    """Mean of the differences, in percent."""
    interval: float
    """Half the width of its 95 % interval; 0 lies outside exactly when p < 0.05."""
    t: float
    p: float
    """Two-sided: how likely a difference at least this large is if there is none."""
    p_larger: float
    """One-sided: small when the first is larger."""
    p_smaller: float
    """One-sided: small when the first is smaller."""
    used: int
    """The number of images, those that both use."""

    @classmethod
    def unknown(cls) -> "PairedTest":
        """What fewer than two images leave."""
        return cls(math.nan, math.nan, math.nan, p=math.nan, p_larger=math.nan, p_smaller=math.nan, used=0)


@checked
def paired_test(first: Areas, second: Areas, of: Literal["area", "mif", "lif"] = "area") -> PairedTest:
    r"""Is A (or the area under MIF or LIF alone) of `first` really larger than that of `second`?

    With $e_i$ the difference of the two areas of image $i$, over the $n$ images both use:
    $t = \bar e \sqrt n / \operatorname{sd}(e_i)$, compared with Student's t of $n - 1$ degrees of freedom.
    The images must be the same in both, in the same order.

    >>> from fpa import Fidelity
    >>> x = np.linspace(0, 1, 3)
    >>> good = Fidelity.from_curves([[4, 1, 0], [2, 1, 0], [1, 0, 0]], [[4, 4, 0], [2, 2, 0], [1, 1, 0]], x)
    >>> poor = Fidelity.from_curves([[4, 2, 0], [2, 1, 0], [1, 0, 0]], [[4, 3, 0], [2, 1, 0], [1, 0, 0]], x)
    >>> result = paired_test(good, poor)
    >>> print(f"{result.difference:.1f} ± {result.interval:.1f}, p = {result.p:.3f}")
    33.3 ± 35.9, p = 0.057
    """
    kept = shared_images({"first": first, "second": second})
    mif = first.mif_areas[kept] - second.mif_areas[kept]
    lif = first.lif_areas[kept] - second.lif_areas[kept]
    return t_test({"area": lif - mif, "mif": mif, "lif": lif}[of])


def holm(p: npt.ArrayLike) -> Floats:
    r"""Holm's correction of p-values [..., m]: reject where the result is under the level of all m together.

    With $p_{(1)} \le \dots \le p_{(m)}$: $\tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1) p_{(j)})$.

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, axis=-1)
    scaled = np.take_along_axis(values, order, axis=-1) * np.arange(values.shape[-1], 0, -1)
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.minimum(1, np.maximum.accumulate(scaled, axis=-1)), axis=-1)
    return adjusted


def t_test(differences: Floats) -> PairedTest:
    """Is the mean of these differences 0?"""
    from scipy.special import stdtr, stdtrit

    mean = float(differences.mean())
    error = standard_error(differences)
    freedom = differences.size - 1
    # Differences that are all the same leave no doubt, or no difference.
    t = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    shift = shift_of_limits(differences)
    sure = math.copysign(float(inwards(np.abs(t), shift)), t)
    below = float(stdtr(freedom, sure))
    above = float(stdtr(freedom, -sure))
    return PairedTest(
        difference=mean,
        interval=float(outwards(stdtrit(freedom, 0.975), shift)) * error,
        t=t,
        p=min(1.0, 2 * min(below, above)),
        p_larger=above,
        p_smaller=below,
        used=differences.size,
    )


def shared_images(fidelities: Mapping[str, Areas]) -> Bools:
    """The images, bool [N], that all of them use, after a check that they can be compared at all."""
    sizes = {name: len(fidelity.kept) for name, fidelity in fidelities.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"a paired comparison needs the same images in all, got numbers of images {sizes}")
    numbered = {name: each.indices for name, each in fidelities.items() if each.indices is not None}
    first = next(iter(numbered), "")
    for name, indices in numbered.items():
        differ = np.flatnonzero(indices != numbered[first])
        if differ.size:
            these = f"image {numbered[first][differ[0]]} in {first}, but {indices[differ[0]]} in {name}"
            raise InputError(f"a paired comparison needs the same images in all, got {these}")
    settings = {name: fidelity.normalise for name, fidelity in fidelities.items()}
    if len(set(settings.values())) > 1:
        raise InputError(f"a paired comparison needs the same normalisation in all, got {settings}")
    kept: Bools = np.all([fidelity.kept for fidelity in fidelities.values()], axis=0)
    if kept.sum() < 2:
        raise InputError(f"a paired comparison needs at least 2 images used by all, got {kept.sum()}")
    return kept
