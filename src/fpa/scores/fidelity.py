"""The fidelity A of importance estimators, its interval, and how far the evaluation can be relied on.

A perturbation curve is the output for one class while ever more pixels are masked, most important first
(MIF) or least important first (LIF). A is the area between the two, in percent (`Fidelity`). Whether MIF
and LIF agree on which estimators are good is the reliability of the evaluation itself (`reliability`).
`A` is called SRG or ABPC elsewhere, MIF and LIF are also known as MoRF and LeRF.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError, counted, unknown
from fpa.notes import Kind, Note, Severity
from fpa.showing import clause
from fpa.statistics import intervals
from fpa.statistics.intervals import Areas, Arrayish, Bools, Floats, Integers, Normalise, floats, half_width
from fpa.statistics.skewness import outwards, shift_of_limits


@dataclass(frozen=True, eq=False, kw_only=True)
class Fidelity(Areas):
    r"""The fidelity of one estimator on one model; made by `Fidelity.from_curves`.

    With $m_i, l_i$ the areas under the MIF and the LIF curve of image $i$ in percent, $d_i = l_i - m_i$,
    over the $n$ images used, and sd and var with $n - 1$:

    - `area` $A = \operatorname{mean}(d_i)$, `area_mif` $= \operatorname{mean}(m_i)$, `area_lif` likewise;
    - `interval` $= 1.96 \operatorname{sd}(d_i) / \sqrt n$: half the width of the 95 % interval of A;
    - `interval_unpaired` $= 1.96 \sqrt{(\operatorname{var} m_i + \operatorname{var} l_i) / n}$, that of
      the published tables, which ignores that both curves come from the same image;
    - `area_mean_then_divide` $A' = \operatorname{mean}(b_i) / \bar u$ with $b_i$ the area without division
      and $u_i$ the unmasked output; its interval: $1.96 \operatorname{sd}(b_i - A' u_i) / (\bar u \sqrt n)$.

    Under 30 images Student's t stands in for 1.96, from 100 on a larger number where values are much skewed
    (`statistics.skewness`); intervals are NaN when a single image is used.
    `area_robust` is the mean of $d_i$ without the lowest and the highest 5 % of the images. The arrays hold
    all N images in the order given, so that estimators can be compared image by image.
    """

    area: float
    interval: float
    area_robust: float
    interval_unpaired: float
    area_mif: float
    area_lif: float
    area_mean_then_divide: float
    """NaN if the mean unmasked output is not positive, like its interval."""
    interval_mean_then_divide: float
    used: int
    left_out: int
    """Images left out for any reason; an image can have several."""
    non_finite: int
    """Images with a NaN or infinite value in a curve, or after the division; always left out."""
    non_positive: int
    """Images with a finite unmasked output of 0 or less; left out by normalise="each"."""
    excluded: int
    """Images left out because `keep` says so."""
    small: int
    """Used images with an unmasked output under a tenth of the median; 0 with normalise="none"."""
    shift_without_small: float
    """How much A moves when these are left out too."""
    interval_without_small: float
    """Half the width of the interval of A without them: they hide in their own."""
    left_out_facts: tuple[Note, ...]
    """For each reason to leave images out, the number and the first of them."""

    @classmethod
    def from_curves(
        cls,
        mif: Arrayish,
        lif: Arrayish,
        fractions: Arrayish,
        *,
        fractions_lif: "Arrayish | None" = None,
        normalise: Normalise = "each",
        keep: "Arrayish | None" = None,
        indices: "Arrayish | None" = None,
    ) -> "Fidelity":
        """Score curves, computed here or elsewhere; NumPy arrays, PyTorch tensors or lists.

        Images with NaN or infinite values are left out and counted; `notes` names them.

        >>> fidelity = Fidelity.from_curves([[4, 1, 0], [2, 1, 0]], [[4, 4, 0], [2, 1.5, 0]], [0, 0.5, 1])
        >>> fidelity.mif_areas, fidelity.lif_areas
        (array([37.5, 50. ]), array([75. , 62.5]))
        >>> print(fidelity)
        A = 25.00 ± 158.83 (MIF 43.75, LIF 68.75; 2 images used, 0 left out)

        - `mif` [N, K]: output for the explained class along MIF masking; the first column is unmasked.
        - `lif` [N, K]: the same along LIF masking; the first column is that of `mif`.
        - `fractions` [K]: part of the image masked at each point, ascending from 0, at most 1. The
          trapezoid rule takes them as they are, so curves that end early have a smaller area. [N, K] where
          each image has its own, as with patches or segments of different sizes.
        - `fractions_lif` [K] or [N, K]: those of `lif`, where they are not the same as those of `mif`.
        - `normalise`: "each" divides an image's curves by its own unmasked output (logits); images where
          that is not positive are left out. "none" takes the curves as they are (probabilities, margins).
          Curves that are normalised already start at 1 and score the same either way.
        - `keep` bool [N]: False for images to leave out; `common_images` finds those that every model
          of a study can use.
        - `indices` [N]: the numbers of the images in their data set; comparisons refuse other images then.
        """
        if not isinstance(normalise, str) or normalise not in ("each", "none"):
            raise unknown("normalisation", normalise, ["each", "none"])
        curves = _checked_curves(mif, lif, fractions, fractions if fractions_lif is None else fractions_lif)
        n = len(curves.mif)
        unmasked = curves.mif[:, 0]
        wanted = _checked_keep(keep, n)
        finite: Bools = np.logical_and.reduce(np.isfinite(np.hstack([curves.mif, curves.lif])), axis=1)

        non_positive = finite & (unmasked <= 0)
        wrong_sign = non_positive if normalise == "each" else np.zeros(n, dtype=bool)
        # What is left out is divided by 1: its sign, or a division by 0, must not spoil the counts below.
        scale = np.where(wrong_sign | (normalise == "none"), 1.0, unmasked)
        with np.errstate(all="ignore"):  # what is not finite is found on the next line
            mif_areas = np.asarray(100 * np.trapezoid(curves.mif / scale[:, None], curves.fractions_mif))
            lif_areas = np.asarray(100 * np.trapezoid(curves.lif / scale[:, None], curves.fractions_lif))
        finite &= np.isfinite(lif_areas - mif_areas)
        kept = finite & wanted & ~wrong_sign
        # NaN and not dropped: the arrays keep all N images, so that estimators pair up image by image.
        mif_areas[~kept] = np.nan
        lif_areas[~kept] = np.nan
        reasons = {"not finite": ~finite, "not positive": wrong_sign, "excluded": ~wanted}
        left_out = [_left_out(images, reason) for reason, images in reasons.items() if images.any()]
        if not kept.any():
            remedy = ": follow the output log_odds or probability, which needs no positive start"
            none_left = f"no image is left to score: {'; '.join(map(clause, left_out))}"
            raise InputError(none_left + (remedy if wrong_sign.any() else ""))
        _check_same_start(unmasked, curves.lif[:, 0], finite)

        for array in (mif_areas, lif_areas, kept):
            array.setflags(write=False)
        summary: _Summary = _summary(mif_areas[kept], lif_areas[kept], unmasked[kept], scale[kept], normalise)
        return cls(
            **summary,
            used=int(kept.sum()),
            left_out=n - int(kept.sum()),
            non_finite=int((~finite).sum()),
            non_positive=int(non_positive.sum()),
            excluded=int((~wanted).sum()),
            normalise=normalise,
            left_out_facts=tuple(left_out),
            mif_areas=mif_areas,
            lif_areas=lif_areas,
            kept=kept,
            indices=None if indices is None else _checked_indices(indices, n),
        )

    @property
    def sensitive(self) -> bool:
        """Whether A moves by more than the interval of the others when the `small` images are left out."""
        return abs(self.shift_without_small) > self.interval_without_small + 1e-9  # more than rounding

    @property
    def left_out_because(self) -> tuple[str, ...]:
        """The same as `left_out_facts`, in words."""
        return tuple(map(clause, self.left_out_facts))

    @property
    def facts(self) -> tuple[Note, ...]:
        """What a reader of A should know; empty when there is nothing to say."""
        notes = [*self.left_out_facts]
        if self.used == 1:
            notes.append(Note(Kind.SINGLE_IMAGE, Severity.WARNING))
        if self.sensitive:
            values = {
                "small": self.small,
                "used": self.used,
                "shift": self.shift_without_small,
                "interval": self.interval_without_small,
                "robust": self.area_robust,
            }
            notes.append(Note(Kind.SMALL_OUTPUTS, Severity.WARNING, values))
        return tuple(notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """The same as `facts`, in words."""
        return tuple(map(clause, self.facts))

    def bootstrap(self, draws: int = 1000, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
        """Percentile interval (low, high) of A from resampling the images used; a seed gives one answer.

        NaN under 100 images, where it would be too narrow; `interval` holds for fewer, too. Areas that are
        much skewed lengthen both sides of it as they lengthen `interval`: resampling does not see them.

        >>> curves = np.linspace(np.full(100, 3.0), np.zeros(100), 5, axis=1)
        >>> Fidelity.from_curves(curves, curves, np.linspace(0, 1, 5)).bootstrap()
        (0.0, 0.0)
        """
        areas = (self.lif_areas - self.mif_areas)[self.kept]
        intervals.check_draws(draws, seed)
        intervals.check_level(level)
        if areas.size < intervals.FEWEST_RESAMPLED:
            return math.nan, math.nan
        means = intervals.resampled_means(areas[None], draws, seed)[:, 0]
        low, high = intervals.percentile_ends(means, level)
        shift = shift_of_limits(areas)
        quantile = intervals.normal_quantile(level)
        if not shift or not quantile:  # a level next to 0 has no length
            return low, high
        longer = float(outwards(quantile, shift)) / quantile
        return self.area - longer * (self.area - low), self.area + longer * (high - self.area)

    def __str__(self) -> str:
        half = f" ± {self.interval:.2f}" if math.isfinite(self.interval) else ""
        return (
            f"A = {self.area:.2f}{half} (MIF {self.area_mif:.2f}, LIF {self.area_lif:.2f};"
            f" {counted(self.used)} used, {self.left_out} left out)"
        )


def common_images(*unmasked: Arrayish) -> Bools:
    """The images, bool [N], whose unmasked output [N] is finite and positive for every model given.

    As `keep` of `Fidelity.from_curves` it leaves out the same images for all models of a study.

    >>> common_images([4.0, 1.0, -1.0], [3.0, float("nan"), 2.0])
    array([ True, False, False])
    """
    if not unmasked:
        raise InputError("common_images needs the unmasked outputs of at least one model")
    outputs = [floats("the unmasked output", values) for values in unmasked]
    if {values.shape for values in outputs} != {outputs[0].shape[:1]}:
        shapes = ", ".join(str(list(values.shape)) for values in outputs)
        raise InputError(f"the unmasked outputs must be [N] with the same N for every model, got {shapes}")
    usable: Bools = np.all([np.isfinite(values) & (values > 0) for values in outputs], axis=0)
    return usable


def small_outputs(unmasked: npt.NDArray[np.floating[Any]], among: Bools) -> Bools:
    """The images, bool [N], whose unmasked output [N] is under a tenth of the median of those `among`.

    A curve divided by nearly nothing swings by itself, and a few of them can carry a mean.

    >>> small_outputs(np.array([5.0, 0.4, 6.0, -1.0]), np.array([True, True, True, False]))
    array([False,  True, False,  True])
    """
    if not among.any():
        return np.zeros(len(unmasked), dtype=bool)
    return np.asarray(unmasked < 0.1 * np.median(unmasked[among]))


class _Summary(TypedDict):
    """The fields of `Fidelity` that are statistics of the images used."""

    area: float
    interval: float
    area_robust: float
    interval_unpaired: float
    area_mif: float
    area_lif: float
    area_mean_then_divide: float
    interval_mean_then_divide: float
    small: int
    shift_without_small: float
    interval_without_small: float


def _summary(mif: Floats, lif: Floats, unmasked: Floats, scale: Floats, normalise: Normalise) -> _Summary:
    """The statistics of areas [n] in percent that were divided by `scale` [n]."""
    # d_i of the formulas: both curves of an image share its difficulty, which drops out of the difference.
    difference = lif - mif
    mean = float(difference.mean())
    small = small_outputs(unmasked, np.ones(len(unmasked), dtype=bool)) & (normalise == "each")
    # A' divides once, by the mean: `scale` takes the division of each image back.
    mean_unmasked = float(unmasked.mean()) if unmasked.mean() > 0 else math.nan
    ratio_mif = float((scale * mif).mean()) / mean_unmasked
    ratio_lif = float((scale * lif).mean()) / mean_unmasked
    ratio = ratio_lif - ratio_mif
    # The delta method: to first order the ratio of two means varies as the mean of b_i - A' u_i over u.
    residuals = scale * difference - ratio * unmasked
    return {
        "area": mean,
        "interval": half_width(difference),
        "area_robust": intervals.trimmed_mean(difference),
        "interval_unpaired": math.hypot(half_width(mif), half_width(lif)),
        "area_mif": float(mif.mean()),
        "area_lif": float(lif.mean()),
        "area_mean_then_divide": ratio,
        "interval_mean_then_divide": half_width(residuals) / mean_unmasked,
        "small": int(small.sum()),
        "shift_without_small": float(difference[~small].mean() - difference.mean()),
        "interval_without_small": half_width(difference[~small]),
    }


class _Curves(NamedTuple):
    """Curves [N, K] and their fractions [K] or [N, K], of which everything fits together."""

    mif: Floats
    lif: Floats
    fractions_mif: Floats
    fractions_lif: Floats


def _checked_curves(mif: Any, lif: Any, fractions: Any, fractions_lif: Any) -> _Curves:
    x_mif = _fractions("fractions", fractions)
    x_lif = _fractions("fractions_lif", fractions_lif)
    curves = _Curves(
        mif=_curves("mif", mif, x_mif.shape[-1]),
        lif=_curves("lif", lif, x_lif.shape[-1]),
        fractions_mif=x_mif,
        fractions_lif=x_lif,
    )
    n = len(curves.mif)
    if len(curves.lif) != n:
        raise InputError(f"mif has {n} images, lif has {len(curves.lif)}: they must be the same")
    if wrong := [list(each.shape) for each in (x_mif, x_lif) if each.ndim == 2 and len(each) != n]:
        raise InputError(f"there are {n} images, but fractions {wrong[0]}: [K], or a row for each image")
    return curves


def _checked_keep(keep: "Arrayish | None", count: int) -> Bools:
    """Which images are wanted, bool [N]."""
    wanted = np.ones(count, dtype=bool) if keep is None else intervals.to_numpy("keep", keep)
    if wanted.dtype != np.bool_ or wanted.shape != (count,):
        raise InputError(f"keep must be bool [{count}], got {wanted.dtype} {list(wanted.shape)}")
    return wanted


def _checked_indices(indices: Arrayish, count: int) -> Integers:
    """The numbers of the images, int64 [N]."""
    numbers = intervals.to_numpy("indices", indices)
    if numbers.dtype.kind not in "iu" or numbers.shape != (count,):
        raise InputError(
            f"indices must be whole numbers [{count}], got {numbers.dtype} {list(numbers.shape)}"
        )
    return np.asarray(numbers, dtype=np.int64)


def _curves(name: str, values: Any, points: int) -> Floats:
    curves = floats(name, values)
    if curves.ndim != 2 or curves.shape[1] != points:
        raise InputError(f"{name} must be [N, {points}], one column per fraction, got {list(curves.shape)}")
    if len(curves) == 0:
        raise InputError(f"{name} has no images: there is nothing to score")
    return curves


def _fractions(name: str, values: Any) -> Floats:
    fractions = floats(name, values)
    outside = ~((fractions >= 0) & (fractions <= 1 + 1e-6))  # a sum of steps may round to more than 1
    if fractions.ndim not in (1, 2) or fractions.shape[-1] < 2:
        raise InputError(f"{name} must be [K] or [N, K] with at least 2 points, got {list(fractions.shape)}")
    if (wrong := fractions[outside]).size:
        raise InputError(f"{name} must lie in 0..1 (of the image, not in percent), got {wrong[0]:g}")
    rows = np.atleast_2d(fractions)
    if (late := rows[rows[:, 0] != 0]).size:
        raise InputError(f"{name} must start at 0, the unmasked image, got {late[0, 0]:g}")
    if (falling := rows[(np.diff(rows) < 0).any(axis=1) | (rows[:, -1] == 0)]).size:
        raise InputError(f"{name} must ascend from 0, got {falling[0].tolist()}")
    return fractions


def _check_same_start(mif: Floats, lif: Floats, finite: Bools) -> None:
    """The unmasked output is one number; low precision may compute it twice with a little difference."""
    # A share of the image's own output, or of the median where that is next to 0.
    allowed = 0.01 * np.maximum(np.abs(mif), np.median(np.abs(mif[finite])))
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(finite & (np.abs(mif - lif) > allowed))
    if wrong.size:
        first = f"first for image {wrong[0]}: {mif[wrong[0]]:g} and {lif[wrong[0]]:g}"
        rule = "the first column of mif and of lif must be the same unmasked output"
        raise InputError(f"{rule}; they differ for {wrong.size} of {mif.size} images, {first}")


def _left_out(images: Bools, reason: str) -> Note:
    """The number of images and the first of them."""
    indices = np.flatnonzero(images)
    values = {"reason": reason, "count": indices.size, "of": images.size, "images": indices[:5].tolist()}
    return Note(Kind.LEFT_OUT, Severity.WARNING, values)
