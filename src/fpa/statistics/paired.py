"""Paired tests over images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fpa.errors import InputError, unknown
from fpa.statistics.intervals import Bools, Floats, standard_error

Normalise = Literal["each", "none"]


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
    if of not in ("area", "mif", "lif"):
        raise unknown("area to test", of, ["area", "mif", "lif"])
    kept = shared_images({"first": first, "second": second})
    mif = first.mif_areas[kept] - second.mif_areas[kept]
    lif = first.lif_areas[kept] - second.lif_areas[kept]
    return t_test({"area": lif - mif, "mif": mif, "lif": lif}[of])


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


def t_test(differences: Floats) -> PairedTest:
    """Is the mean of these differences 0?"""
    from scipy.special import stdtr, stdtrit

    mean, error, freedom = float(differences.mean()), standard_error(differences), differences.size - 1
    # Differences that are all the same leave no doubt, or no difference.
    t = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    below, above = float(stdtr(freedom, t)), float(stdtr(freedom, -t))
    interval, p = float(stdtrit(freedom, 0.975)) * error, min(1.0, 2 * min(below, above))
    return PairedTest(mean, interval, t, p, p_larger=above, p_smaller=below, used=differences.size)


def shared_images(fidelities: Mapping[str, Areas]) -> Bools:
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
