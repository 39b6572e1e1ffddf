"""The fidelity A of importance estimators, its interval, and how far the evaluation can be relied on.

A perturbation curve is the output for one class while ever more pixels are masked, most important first
(MIF) or least important first (LIF). A is the area between the two, in percent (`Fidelity`). Whether MIF
and LIF agree on which estimators are good is the reliability of the evaluation itself (`reliability`).
`A` is called SRG or ABPC elsewhere, MIF and LIF are also known as MoRF and LeRF.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Arrayish: TypeAlias = "npt.ArrayLike | Tensor"
Normalise = Literal["each", "none"]

SIGNED: dict[str, bool] = {
    "ig_sum": True,
    "vgx_sum": True,
    "sgx_sum": True,
    "ig_abs": False,
    "vg_abs": False,
    "vgx_abs": False,
    "sg_abs": False,
    "sgx_abs": False,
    "sqsg_sum": False,
}
"""Whether the scores of an estimator have a sign (evidence and counter-evidence); `random` is neither."""

KINDS = ("signed-signed", "unsigned-unsigned", "signed-unsigned")


@dataclass(frozen=True, eq=False)
class Fidelity:
    r"""The fidelity of one estimator on one model; made by `Fidelity.from_curves`.

    With $m_i, l_i$ the areas under the MIF and the LIF curve of image $i$ in percent, $d_i = l_i - m_i$,
    over the $n$ images used, and sd and var with $n - 1$:

    - `area` $A = \operatorname{mean}(d_i)$, `area_mif` $= \operatorname{mean}(m_i)$, `area_lif` likewise;
    - `interval` $= 1.96 \operatorname{sd}(d_i) / \sqrt n$: half the width of the 95 % interval of A;
    - `interval_unpaired` $= 1.96 \sqrt{(\operatorname{var} m_i + \operatorname{var} l_i) / n}$, that of
      the published tables, which ignores that both curves come from the same image;
    - `area_mean_then_divide` $A' = \operatorname{mean}(b_i) / \bar u$ with $b_i$ the area without division
      and $u_i$ the unmasked output; its interval: $1.96 \operatorname{sd}(b_i - A' u_i) / (\bar u \sqrt n)$.

    Intervals are NaN when a single image is used. The arrays hold all N images in the order given, so that
    estimators can be compared image by image.
    """

    area: float
    interval: float
    interval_unpaired: float
    area_mif: float
    area_lif: float
    area_mean_then_divide: float
    """NaN if the mean unmasked output is not positive, like the three below."""
    interval_mean_then_divide: float
    area_mif_mean_then_divide: float
    area_lif_mean_then_divide: float
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
    normalise: Normalise
    left_out_because: tuple[str, ...]
    """For each reason to leave images out, a phrase with the number and the first of them."""
    mif_areas: Floats = field(repr=False)
    """[N] area under each image's MIF curve in percent; NaN where the image is left out."""
    lif_areas: Floats = field(repr=False)
    """[N] the same under the LIF curve."""
    kept: Bools = field(repr=False)
    """[N] True for the images used."""

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
    ) -> "Fidelity":
        """Score curves, computed here or elsewhere; NumPy arrays, PyTorch tensors or lists.

        Images with NaN or infinite values are left out and counted; `notes` names them.

        >>> fidelity = Fidelity.from_curves([[4, 1, 0], [2, 1, 0]], [[4, 4, 0], [2, 1.5, 0]], [0, 0.5, 1])
        >>> fidelity.mif_areas, fidelity.lif_areas
        (array([37.5, 50. ]), array([75. , 62.5]))
        >>> print(fidelity)
        A = 25.00 ± 24.50 (MIF 43.75, LIF 68.75; 2 images used, 0 left out)

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
        """
        if normalise not in ("each", "none"):
            raise unknown("normalisation", normalise, ["each", "none"])
        x_mif = _fractions("fractions", fractions)
        x_lif = x_mif if fractions_lif is None else _fractions("fractions_lif", fractions_lif)
        x = x_mif, x_lif
        curves = _curves("mif", mif, x_mif.shape[-1]), _curves("lif", lif, x_lif.shape[-1])
        n, unmasked = len(curves[0]), curves[0][:, 0]
        if len(curves[1]) != n:
            raise InputError(f"mif has {n} images, lif has {len(curves[1])}: they must be the same")
        if wrong := [list(each.shape) for each in x if each.ndim == 2 and len(each) != n]:
            raise InputError(f"there are {n} images, but fractions {wrong[0]}: [K], or a row for each image")
        wanted = np.ones(n, dtype=bool) if keep is None else _numpy(keep)
        if wanted.dtype != np.bool_ or wanted.shape != (n,):
            raise InputError(f"keep must be bool [{n}], got {wanted.dtype} {list(wanted.shape)}")
        finite: Bools = np.logical_and.reduce(np.isfinite(np.hstack(curves)), axis=1)
        _check_same_start(unmasked, curves[1][:, 0], finite)

        non_positive = finite & (unmasked <= 0)
        wrong_sign = non_positive if normalise == "each" else np.zeros(n, dtype=bool)
        scale = np.where(wrong_sign | (normalise == "none"), 1.0, unmasked)
        with np.errstate(all="ignore"):  # what is not finite is found on the next line
            mif_areas, lif_areas = (
                100 * _integral(each / scale[:, None], at) for each, at in zip(curves, x, strict=True)
            )
        finite &= np.isfinite(lif_areas - mif_areas)
        kept = finite & wanted & ~wrong_sign
        mif_areas[~kept] = lif_areas[~kept] = np.nan
        reasons = {
            "a NaN or infinite value in a curve": ~finite,
            "an unmasked output that is not positive": wrong_sign,
            "being excluded by `keep`": ~wanted,
        }
        because = [
            f"{images.sum()} of {n} images left out for {reason} ({_named(images)})"
            for reason, images in reasons.items()
            if images.any()
        ]
        if not kept.any():
            raise InputError(f"no image is left to score: {'; '.join(because)}")

        for array in (mif_areas, lif_areas, kept):
            array.setflags(write=False)

        m, l, u = mif_areas[kept], lif_areas[kept], unmasked[kept]  # noqa: E741
        small = (u < 0.1 * np.median(u)) & (normalise == "each")
        mean = float(u.mean()) if u.mean() > 0 else math.nan
        ratio_mif, ratio_lif = (float((scale[kept] * areas).mean()) / mean for areas in (m, l))
        residuals = scale[kept] * (l - m) - (ratio_lif - ratio_mif) * u
        return cls(
            area=float((l - m).mean()),
            interval=1.96 * _standard_error(l - m),
            interval_unpaired=1.96 * math.hypot(_standard_error(m), _standard_error(l)),
            area_mif=float(m.mean()),
            area_lif=float(l.mean()),
            area_mean_then_divide=ratio_lif - ratio_mif,
            interval_mean_then_divide=1.96 * _standard_error(residuals) / mean,
            area_mif_mean_then_divide=ratio_mif,
            area_lif_mean_then_divide=ratio_lif,
            used=m.size,
            left_out=n - m.size,
            non_finite=int((~finite).sum()),
            non_positive=int(non_positive.sum()),
            excluded=int((~wanted).sum()),
            small=int(small.sum()),
            shift_without_small=float((l - m)[~small].mean() - (l - m).mean()),
            normalise=normalise,
            left_out_because=tuple(because),
            mif_areas=mif_areas,
            lif_areas=lif_areas,
            kept=kept,
        )

    @property
    def sensitive(self) -> bool:
        """Whether A moves by more than its interval when the `small` images are left out too."""
        return abs(self.shift_without_small) > self.interval + 1e-9  # more than rounding

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of A should know, in sentences; empty when there is nothing to say."""
        notes = [*self.left_out_because]
        if self.used == 1:
            notes.append("a single image is used: there is no interval")
        if self.sensitive:
            notes.append(
                f"{self.small} of {self.used} images have an unmasked output under a tenth of the median;"
                f" without them A moves by {self.shift_without_small:+.2f}, more than its interval"
                f" of ±{self.interval:.2f}"
            )
        return tuple(notes)

    def bootstrap(self, draws: int = 1000, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
        """Percentile interval (low, high) of A from resampling the images used; a seed gives one answer.

        >>> curves = np.linspace([3.0, 1.0], [0.0, 0.0], 5, axis=1)
        >>> Fidelity.from_curves(curves, curves, np.linspace(0, 1, 5)).bootstrap()
        (0.0, 0.0)
        """
        areas = (self.lif_areas - self.mif_areas)[self.kept]
        return _percentiles(_resampled_means(areas[None], draws, seed)[:, 0], level)

    def __str__(self) -> str:
        return (
            f"A = {self.area:.2f} ± {self.interval:.2f} (MIF {self.area_mif:.2f}, LIF {self.area_lif:.2f};"
            f" {self.used} images used, {self.left_out} left out)"
        )


def common_images(*unmasked: Arrayish) -> Bools:
    """The images, bool [N], whose unmasked output [N] is finite and positive for every model given.

    As `keep` of `Fidelity.from_curves` it leaves out the same images for all models of a study.

    >>> common_images([4.0, 1.0, -1.0], [3.0, float("nan"), 2.0])
    array([ True, False, False])
    """
    if not unmasked:
        raise InputError("common_images needs the unmasked outputs of at least one model")
    outputs = [_floats("the unmasked output", values) for values in unmasked]
    if {values.shape for values in outputs} != {outputs[0].shape[:1]}:
        shapes = ", ".join(str(list(values.shape)) for values in outputs)
        raise InputError(f"the unmasked outputs must be [N] with the same N for every model, got {shapes}")
    usable: Bools = np.all([np.isfinite(values) & (values > 0) for values in outputs], axis=0)
    return usable


class PairedTest(NamedTuple):
    """A paired t-test over images; every number is about the first estimator minus the second."""

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


def paired_test(first: Fidelity, second: Fidelity, of: Literal["area", "mif", "lif"] = "area") -> PairedTest:
    r"""Is A (or the area under MIF or LIF alone) of `first` really larger than that of `second`?

    With $e_i$ the difference of the two areas of image $i$, over the $n$ images both use:
    $t = \bar e \sqrt n / \operatorname{sd}(e_i)$, compared with Student's t of $n - 1$ degrees of freedom.
    The images must be the same in both, in the same order.

    >>> x = np.linspace(0, 1, 3)
    >>> good = Fidelity.from_curves([[4, 1, 0], [2, 1, 0], [1, 0, 0]], [[4, 4, 0], [2, 2, 0], [1, 1, 0]], x)
    >>> poor = Fidelity.from_curves([[4, 2, 0], [2, 1, 0], [1, 0, 0]], [[4, 3, 0], [2, 1, 0], [1, 0, 0]], x)
    >>> result = paired_test(good, poor)
    >>> print(f"{result.difference:.1f} ± {result.interval:.1f}, p = {result.p:.3f}")
    33.3 ± 35.9, p = 0.057
    """
    if of not in ("area", "mif", "lif"):
        raise unknown("area to test", of, ["area", "mif", "lif"])
    kept = _shared_images({"first": first, "second": second})
    mif = first.mif_areas[kept] - second.mif_areas[kept]
    lif = first.lif_areas[kept] - second.lif_areas[kept]
    return _t_test({"area": lif - mif, "mif": mif, "lif": lif}[of])


class Estimate(NamedTuple):
    """A number with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """Two estimators, compared by the area under MIF (small is good) and under LIF (large is good)."""

    first: str
    second: str
    kind: str
    """One of `KINDS`."""
    mif: float
    """Area under MIF of the first minus that of the second, in percent."""
    lif: float
    """Area under LIF of the first minus that of the second, in percent."""
    p_mif: float
    """Two-sided p of `mif` in a paired t-test over images, Holm-corrected over all tests of all pairs."""
    p_lif: float
    """The same for `lif`."""
    opposite: bool
    """Ordered one way by the mean area under MIF and the other way by that under LIF."""
    contradiction: bool
    """Ordered oppositely, and both p under alpha."""

    def __str__(self) -> str:
        by_mif = self.first if self.mif < 0 else self.second if self.mif > 0 else "neither"
        by_lif = self.first if self.lif > 0 else self.second if self.lif < 0 else "neither"
        return f"{self.first} and {self.second}: MIF prefers {by_mif}, LIF prefers {by_lif}"


@dataclass(frozen=True)
class Reliability:
    """How far the evaluation of one model by MIF agrees with that by LIF, from `reliability`."""

    by_area: tuple[str, ...]
    """Names, best first: the largest A."""
    by_mif: tuple[str, ...]
    """Names, best first: the smallest area under MIF."""
    by_lif: tuple[str, ...]
    """Names, best first: the largest area under LIF."""
    pairs: tuple[Pair, ...]
    """Every pair of estimators."""
    opposite: dict[str, Estimate]
    """For each of `KINDS` and "all": the number of pairs ordered oppositely by the means."""
    correlation: dict[str, Estimate]
    """Spearman's correlation of goodness by MIF with goodness by LIF: "all", "signed", "unsigned"."""
    used: int
    """The number of images, those that every estimator uses."""
    alpha: float

    @property
    def contradictions(self) -> tuple[Pair, ...]:
        """The pairs ordered oppositely with both differences significant."""
        return tuple(pair for pair in self.pairs if pair.contradiction)

    def table(self) -> "pd.DataFrame":
        """A row for each of `KINDS` and "all": pairs, ordered oppositely (with interval), contradictions."""
        import pandas as pd

        rows = {}
        for kind, opposite in self.opposite.items():
            pairs = [pair for pair in self.pairs if kind in (pair.kind, "all")]
            rows[kind] = {
                "pairs": len(pairs),
                "opposite": int(opposite.value),
                "opposite_low": int(opposite.low),
                "opposite_high": int(opposite.high),
                "contradictions": sum(pair.contradiction for pair in pairs),
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")

    def __str__(self) -> str:
        lines = [
            f"{kind} pairs: {row.opposite} of {row.pairs} ordered oppositely by MIF and by LIF"
            f" ({row.opposite_low} to {row.opposite_high}), {row.contradictions} significantly"
            for kind, row in self.table().iterrows()
        ]
        correlations = (
            f"{group} {c.value:.2f} ({c.low:.2f} to {c.high:.2f})" for group, c in self.correlation.items()
        )
        return "\n".join([*lines, f"rank correlation of MIF with LIF: {', '.join(correlations)}"])


def reliability(
    fidelities: Mapping[str, Fidelity],
    signed: Mapping[str, bool] | None = None,
    *,
    leave_out: str | Collection[str] = ("random",),
    alpha: float = 0.05,
    draws: int = 1000,
    seed: int = 0,
) -> Reliability:
    """Do MIF and LIF agree on which estimators are good?

    A *contradiction* is a pair of estimators that MIF orders one way and LIF the other, both differences
    significant in a paired t-test over images, Holm-corrected over all tests (two for each pair). All
    numbers are over the images that every estimator uses. Bootstrap intervals resample images, the same
    draw for all estimators; they cover neither the choice of estimators nor the training seed.

    >>> noise = np.random.default_rng(0).normal(0, 0.1, 50)
    >>> def ending_at(level):
    ...     return np.stack([np.ones(50), level + noise], axis=1)
    >>> finds_evidence = Fidelity.from_curves(ending_at(0.1), ending_at(0.5), [0, 1])
    >>> finds_background = Fidelity.from_curves(ending_at(0.5), ending_at(0.9), [0, 1])
    >>> print(*reliability({"ig_sum": finds_evidence, "vg_abs": finds_background}).contradictions)
    ig_sum and vg_abs: MIF prefers ig_sum, LIF prefers vg_abs

    - `fidelities`: by the name of the estimator; the same images in the same order for all.
    - `signed`: by name, whether an estimator's scores have a sign; needed for names not in `SIGNED`.
    - `leave_out`: names that are no explanations and take no part.
    - `alpha`: the level of the tests, all together.
    - `draws`, `seed`: of the bootstrap.
    """
    leave_out = [leave_out] if isinstance(leave_out, str) else list(leave_out)
    chosen = {name: fidelity for name, fidelity in fidelities.items() if name not in leave_out}
    if len(chosen) < 2:
        raise InputError(f"at least two estimators besides {leave_out} are needed, got {list(chosen)}")
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
    known = SIGNED | dict(signed or {})
    if missing := [name for name in chosen if name not in known]:
        example = dict.fromkeys(missing, False)
        raise InputError(f"say whether these estimators are signed: {missing}, for example signed={example}")
    names, kept = list(chosen), _shared_images(chosen)
    mif = np.stack([fidelity.mif_areas[kept] for fidelity in chosen.values()])
    lif = np.stack([fidelity.lif_areas[kept] for fidelity in chosen.values()])
    is_signed = np.array([known[name] for name in names], dtype=bool)

    left, right = np.triu_indices(len(names), k=1)
    how_many_signed = is_signed[left].astype(int) + is_signed[right]
    kinds = np.array(["unsigned-unsigned", "signed-unsigned", "signed-signed"])[how_many_signed]
    tests = [_t_test(areas[i] - areas[j]) for areas in (mif, lif) for i, j in zip(left, right, strict=True)]
    difference_mif, difference_lif = np.array([test.difference for test in tests]).reshape(2, -1)
    p_mif, p_lif = holm([test.p for test in tests]).reshape(2, -1)
    opposite = _ordered_oppositely(difference_mif, difference_lif)
    contradiction = opposite & (np.maximum(p_mif, p_lif) < alpha)
    columns = (kinds, difference_mif, difference_lif, p_mif, p_lif, opposite, contradiction)
    pairs = [
        Pair(names[i], names[j], *values)
        for i, j, *values in zip(left, right, *(column.tolist() for column in columns), strict=True)
    ]

    drawn_mif, drawn_lif = np.split(_resampled_means(np.concatenate([mif, lif]), draws, seed), 2, axis=1)
    drawn_opposite = _ordered_oppositely(
        drawn_mif[:, left] - drawn_mif[:, right], drawn_lif[:, left] - drawn_lif[:, right]
    )
    mean_mif, mean_lif = mif.mean(axis=1), lif.mean(axis=1)
    kind_masks = {kind: kinds == kind for kind in KINDS} | {"all": np.ones_like(opposite)}
    group_masks = {"all": np.ones_like(is_signed), "signed": is_signed, "unsigned": ~is_signed}

    def estimate(value: Any, drawn: Floats) -> Estimate:
        return Estimate(float(value), *_percentiles(drawn, 0.95))

    def ranked(goodness: Floats) -> tuple[str, ...]:
        return tuple(names[i] for i in np.argsort(-goodness, kind="stable"))

    return Reliability(
        by_area=ranked(mean_lif - mean_mif),
        by_mif=ranked(-mean_mif),
        by_lif=ranked(mean_lif),
        pairs=tuple(pairs),
        opposite={
            kind: estimate(opposite[of].sum(), drawn_opposite[:, of].sum(axis=1))
            for kind, of in kind_masks.items()
        },
        correlation={
            group: estimate(
                spearman(-mean_mif[of], mean_lif[of]), spearman(-drawn_mif[:, of], drawn_lif[:, of])
            )
            for group, of in group_masks.items()
        },
        used=int(kept.sum()),
        alpha=alpha,
    )


def ranking_agreement(
    first: Mapping[str, Fidelity],
    second: Mapping[str, Fidelity],
    *,
    leave_out: Collection[str] = ("random",),
    draws: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Do two evaluations of the same images rank the estimators alike? Spearman's correlation of their A.

    The interval resamples images, the same draw for both. NaN for fewer than two estimators.

    >>> x = np.linspace(0, 1, 3)
    >>> good = Fidelity.from_curves([[4, 1, 0], [2, 1, 0]], [[4, 4, 0], [2, 2, 0]], x)
    >>> poor = Fidelity.from_curves([[4, 2, 0], [2, 1, 0]], [[4, 3, 0], [2, 1, 0]], x)
    >>> ranking_agreement({"ig_sum": good, "vg_abs": poor}, {"ig_sum": poor, "vg_abs": good})
    Estimate(value=-1.0, low=-1.0, high=-1.0)
    """
    names = [name for name in first if name not in leave_out]
    if missing := [name for name in names if name not in second]:
        raise InputError(f"the second evaluation has no estimators {missing}: both need the same")
    chosen = [evaluation[name] for evaluation in (first, second) for name in names]
    kept = _shared_images({str(place): fidelity for place, fidelity in enumerate(chosen)})
    areas = np.stack([(fidelity.lif_areas - fidelity.mif_areas)[kept] for fidelity in chosen])
    drawn = np.split(_resampled_means(areas, draws, seed), 2, axis=1)
    means = np.split(areas.mean(axis=1), 2)
    return Estimate(float(spearman(*means)), *_percentiles(spearman(*drawn), 0.95))


def share_kept(values: Arrayish, whole: Arrayish, *, draws: int = 1000, seed: int = 0) -> list[Estimate]:
    """The mean over images of each column of `values` [N, K] as a share of the mean of `whole` [N].

    A ratio of means, so that images with a `whole` next to 0 do not count more than others. The interval
    resamples images, the same draw for all.

    >>> share_kept([[2.0, 1.0], [4.0, 2.0]], [2.0, 4.0])
    [Estimate(value=1.0, low=1.0, high=1.0), Estimate(value=0.5, low=0.5, high=0.5)]
    """
    parts, total = _floats("values", values), _floats("whole", whole)
    if parts.ndim != 2 or total.shape != parts.shape[:1]:
        raise InputError(f"values must be [N, K] and whole [N], got {list(parts.shape)}, {list(total.shape)}")
    means = _resampled_means(np.concatenate([total[None], parts.T]), draws, seed)
    drawn = means[:, 1:] / means[:, :1]
    found = parts.mean(axis=0) / total.mean()
    return [
        Estimate(float(value), *_percentiles(column, 0.95))
        for value, column in zip(found, drawn.T, strict=True)
    ]


def table(fidelities: Mapping[str, Fidelity]) -> "pd.DataFrame":
    """One row an estimator: A, intervals, both areas, mean-then-divide beside them, and the counts.

    >>> half = Fidelity.from_curves([[2, 0], [1, 0]], [[2, 2], [1, 1]], [0, 1])
    >>> table({"ig_sum": half}).loc["ig_sum", ["area", "area_mif", "area_lif"]].tolist()
    [50.0, 50.0, 100.0]
    """
    import pandas as pd

    numbers = [column.name for column in fields(Fidelity) if column.type in (float, int)]
    rows = [[getattr(fidelity, number) for number in numbers] for fidelity in fidelities.values()]
    return pd.DataFrame(rows, index=pd.Index(list(fidelities), name="estimator"), columns=numbers)


def holm(p: npt.ArrayLike) -> Floats:
    r"""Holm's correction of p-values: reject where the result is under the level of all tests together.

    With $p_{(1)} \le \dots \le p_{(m)}$: $\tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1) p_{(j)})$.

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)))
    return adjusted


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


def _ordered_oppositely(difference_mif: Floats, difference_lif: Floats) -> Bools:
    """A small area under MIF is good and a large one under LIF: with the same sign they disagree."""
    return np.sign(difference_mif) * np.sign(difference_lif) > 0


def _integral(curves: Floats, fractions: Floats) -> Floats:
    return np.asarray(np.trapezoid(curves, fractions, axis=1))


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan


def _t_test(differences: Floats) -> PairedTest:
    from scipy.special import stdtr, stdtrit

    mean, error, freedom = float(differences.mean()), _standard_error(differences), differences.size - 1
    # Differences that are all the same leave no doubt, or no difference.
    t = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    below = float(stdtr(freedom, t))
    above = float(stdtr(freedom, -t))
    half_width = float(stdtrit(freedom, 0.975)) * error
    return PairedTest(mean, half_width, t, min(1.0, 2 * min(below, above)), above, below, differences.size)


def _shared_images(fidelities: Mapping[str, Fidelity]) -> Bools:
    """The images, bool [N], that all of them use, after a check that they can be compared at all."""
    sizes = {name: len(fidelity.kept) for name, fidelity in fidelities.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"a paired comparison needs the same images in all, got numbers of images {sizes}")
    if len({fidelity.normalise for fidelity in fidelities.values()}) > 1:
        settings = {name: fidelity.normalise for name, fidelity in fidelities.items()}
        raise InputError(f"a paired comparison needs the same normalisation in all, got {settings}")
    kept: Bools = np.all([fidelity.kept for fidelity in fidelities.values()], axis=0)
    if kept.sum() < 2:
        raise InputError(f"a paired comparison needs at least 2 images used by all, got {kept.sum()}")
    return kept


def _resampled_means(values: Floats, draws: int, seed: int) -> Floats:
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


def _percentiles(drawn: Floats, level: float) -> tuple[float, float]:
    """The ends of the middle `level` of the numbers drawn; NaN if one of them is undefined."""
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")
    ordered = np.sort(drawn)
    beyond = math.floor((1 - level) / 2 * len(ordered) + 1e-9)  # 0.025 is a little more than 2.5 % in binary
    if np.isnan(ordered[-1]):
        return math.nan, math.nan
    return float(ordered[beyond]), float(ordered[-1 - beyond])


def _numpy(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of anything array-like, PyTorch tensors of any device and precision included."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)


def _floats(name: str, values: Any) -> Floats:
    try:
        return np.asarray(_numpy(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None


def _curves(name: str, values: Any, points: int) -> Floats:
    curves = _floats(name, values)
    if curves.ndim != 2 or curves.shape[1] != points:
        raise InputError(
            f"{name} must be [N, {points}], a column for each fraction, got shape {list(curves.shape)}"
        )
    if len(curves) == 0:
        raise InputError(f"{name} has no images: there is nothing to score")
    return curves


def _fractions(name: str, values: Any) -> Floats:
    fractions = _floats(name, values)
    outside = ~((fractions >= 0) & (fractions <= 1 + 1e-6))  # a sum of steps may round to more than 1
    if fractions.ndim not in (1, 2) or fractions.shape[-1] < 2:
        raise InputError(
            f"{name} must be [K] or [N, K] with at least 2 points, got shape {list(fractions.shape)}"
        )
    if outside.any():
        wrong = fractions[outside][0]
        raise InputError(f"{name} must lie in 0..1 (of the image, not in percent), got {wrong:g}")
    rows = np.atleast_2d(fractions)
    if (late := rows[rows[:, 0] != 0]).size:
        raise InputError(f"{name} must start at 0, the unmasked image, got {late[0, 0]:g}")
    if (falling := rows[(np.diff(rows) < 0).any(axis=1) | (rows[:, -1] == 0)]).size:
        raise InputError(f"{name} must ascend from 0, got {falling[0].tolist()}")
    return fractions


def _check_same_start(mif: Floats, lif: Floats, finite: Bools) -> None:
    """The unmasked output is one number; low precision may compute it twice with a little difference."""
    if not finite.any():
        return
    allowed = 0.01 * np.maximum(np.abs(mif), np.median(np.abs(mif[finite])))
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(finite & (np.abs(mif - lif) > allowed))
    if wrong.size:
        i = wrong[0]
        raise InputError(
            "the first column of mif and of lif must be the same unmasked output; they differ for"
            f" {wrong.size} of {mif.size} images, first for image {i}: {mif[i]:g} and {lif[i]:g}"
        )


def _named(images: Bools) -> str:
    indices = np.flatnonzero(images)
    shown = ", ".join(map(str, indices[:5]))
    return f"image{'s' if indices.size > 1 else ''} {shown}{', ...' if indices.size > 5 else ''}"
