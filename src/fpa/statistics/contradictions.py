"""How often MIF and LIF contradict each other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpa.errors import InputError
from fpa.statistics import intervals
from fpa.statistics.intervals import Areas, Bools, Estimate, Floats, estimate, holm, spearman

if TYPE_CHECKING:
    import pandas as pd


KINDS = ("signed-signed", "unsigned-unsigned", "signed-unsigned")


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
    """In opposite order, with both p under alpha."""

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
    """For each of `KINDS` and "all": the number of pairs whose means are in opposite order."""
    correlation: dict[str, Estimate]
    """Spearman's correlation of goodness by MIF with goodness by LIF: "all", "signed", "unsigned"."""
    used: int
    """The number of images, those that every estimator uses."""
    alpha: float

    @property
    def contradictions(self) -> tuple[Pair, ...]:
        """The pairs in opposite order with both differences significant."""
        return tuple(pair for pair in self.pairs if pair.contradiction)

    def table(self) -> "pd.DataFrame":
        """A row for each of `KINDS` and "all": pairs, opposite ones (with interval), contradictions."""
        import pandas as pd

        rows = {}
        for kind, opposite in self.opposite.items():
            pairs = [pair for pair in self.pairs if kind in (pair.kind, "all")]
            rows[kind] = [len(pairs), *map(int, opposite), sum(pair.contradiction for pair in pairs)]
        columns = ["pairs", "opposite", "opposite_low", "opposite_high", "contradictions"]
        return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("kind")

    def __str__(self) -> str:
        lines = [
            f"{kind} pairs: {row.opposite} of {row.pairs} ranked in opposite order by MIF and LIF"
            f" ({row.opposite_low} to {row.opposite_high}), {row.contradictions} significantly"
            for kind, row in self.table().iterrows()
        ]
        groups = [f"{key} {c.value:.2f} ({c.low:.2f} to {c.high:.2f})" for key, c in self.correlation.items()]
        return "\n".join([*lines, f"rank correlation of MIF with LIF: {', '.join(groups)}"])


def reliability(
    fidelities: Mapping[str, Areas],
    signed: Mapping[str, bool],
    *,
    alpha: float = 0.05,
    draws: int = 1000,
    seed: int = 0,
) -> Reliability:
    """Do MIF and LIF agree on which estimators are good?

    A *contradiction* is a pair of estimators that MIF orders one way and LIF the other, both differences
    significant in a paired t-test over images, Holm-corrected over all tests (two for each pair). All
    numbers are over the images that every estimator uses. Bootstrap intervals resample images, the same
    draw for all estimators; they cover neither the choice of estimators nor the training seed.

    >>> from fpa import Fidelity
    >>> noise = np.random.default_rng(0).normal(0, 0.1, 50)
    >>> def ending_at(level):
    ...     return np.stack([np.ones(50), level + noise], axis=1)
    >>> finds_evidence = Fidelity.from_curves(ending_at(0.1), ending_at(0.5), [0, 1])
    >>> finds_background = Fidelity.from_curves(ending_at(0.5), ending_at(0.9), [0, 1])
    >>> fidelities = {"ig_sum": finds_evidence, "vg_abs": finds_background}
    >>> print(*reliability(fidelities, {"ig_sum": True, "vg_abs": False}).contradictions)
    ig_sum and vg_abs: MIF prefers ig_sum, LIF prefers vg_abs

    - `fidelities`: by the name of the estimator; the same images in the same order for all.
    - `signed`: by name, whether an estimator's scores have a sign. Names that are not in here, such as a
      random map, are no explanations and take no part. With fewer than two there are no pairs.
    - `alpha`: the level of the tests, all together.
    - `draws`, `seed`: of the bootstrap.
    """
    chosen = {name: fidelity for name, fidelity in fidelities.items() if name in signed}
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
    if len(chosen) < 2:
        return _nothing_to_compare(fidelities, alpha)
    names, kept = list(chosen), intervals.shared_images(chosen)
    # [2, M, n]: of MIF and of LIF, by estimator and image.
    areas = np.stack([(each.mif_areas[kept], each.lif_areas[kept]) for each in chosen.values()], axis=1)
    is_signed = np.array([signed[name] for name in names], dtype=bool)

    left, right = np.triu_indices(len(names), k=1)
    how_many_signed = is_signed[left].astype(int) + is_signed[right]
    kinds = np.array(["unsigned-unsigned", "signed-unsigned", "signed-signed"])[how_many_signed]
    tests = [intervals.t_test(side[i] - side[j]) for side in areas for i, j in zip(left, right, strict=True)]
    differences = np.array([test.difference for test in tests]).reshape(2, -1)
    p = holm([test.p for test in tests]).reshape(2, -1)
    opposite = _ordered_oppositely(differences)
    columns = (kinds, *differences, *p, opposite, opposite & (p.max(axis=0) < alpha))
    pairs = tuple(
        Pair(names[i], names[j], *values)
        for i, j, *values in zip(left, right, *(column.tolist() for column in columns), strict=True)
    )

    drawn = intervals.resampled_means(np.concatenate(areas), draws, seed).reshape(draws, 2, -1)
    drawn_opposite = _ordered_oppositely(drawn[..., left] - drawn[..., right])
    mif, lif = areas.mean(axis=2)
    by_kind = {kind: kinds == kind for kind in KINDS} | {"all": np.ones_like(opposite)}
    by_group = {"all": np.ones_like(is_signed), "signed": is_signed, "unsigned": ~is_signed}

    counts = {
        kind: estimate(opposite[of].sum(), drawn_opposite[:, of].sum(axis=1)) for kind, of in by_kind.items()
    }
    agreement = {
        group: estimate(spearman(-mif[of], lif[of]), spearman(-drawn[:, 0, of], drawn[:, 1, of]))
        for group, of in by_group.items()
    }
    best_first = (np.argsort(-goodness, kind="stable") for goodness in (lif - mif, -mif, lif))
    by_area, by_mif, by_lif = (tuple(names[i] for i in order) for order in best_first)
    used = int(kept.sum())
    return Reliability(by_area, by_mif, by_lif, pairs, counts, correlation=agreement, used=used, alpha=alpha)


def _nothing_to_compare(fidelities: Mapping[str, Areas], alpha: float) -> Reliability:
    names, used = tuple(fidelities), min((int(each.kept.sum()) for each in fidelities.values()), default=0)
    no_pairs = dict.fromkeys((*KINDS, "all"), Estimate(0.0, 0.0, 0.0))
    undefined = dict.fromkeys(("all", "signed", "unsigned"), Estimate(math.nan, math.nan, math.nan))
    return Reliability(names, names, names, (), no_pairs, correlation=undefined, used=used, alpha=alpha)


def ranking_agreement(
    first: Mapping[str, Areas], second: Mapping[str, Areas], *, draws: int = 1000, seed: int = 0
) -> Estimate:
    """Do two evaluations of the same images rank the estimators alike? Spearman's correlation of their A.

    The interval resamples images, the same draw for both. NaN for fewer than two estimators.

    >>> from fpa import Fidelity
    >>> x = np.linspace(0, 1, 3)
    >>> good = Fidelity.from_curves([[4, 1, 0], [2, 1, 0]], [[4, 4, 0], [2, 2, 0]], x)
    >>> poor = Fidelity.from_curves([[4, 2, 0], [2, 1, 0]], [[4, 3, 0], [2, 1, 0]], x)
    >>> ranking_agreement({"ig_sum": good, "vg_abs": poor}, {"ig_sum": poor, "vg_abs": good})
    Estimate(value=-1.0, low=-1.0, high=-1.0)
    """
    names = list(first)
    if missing := [name for name in names if name not in second]:
        raise InputError(f"the second evaluation has no estimators {missing}: both need the same")
    chosen = [evaluation[name] for evaluation in (first, second) for name in names]
    kept = intervals.shared_images({str(place): fidelity for place, fidelity in enumerate(chosen)})
    areas = np.stack([(fidelity.lif_areas - fidelity.mif_areas)[kept] for fidelity in chosen])
    drawn = np.split(intervals.resampled_means(areas, draws, seed), 2, axis=1)
    means = np.split(areas.mean(axis=1), 2)
    return estimate(spearman(*means), spearman(*drawn))


def _ordered_oppositely(differences: Floats) -> Bools:
    """[..., 2, P] -> [..., P]: MIF is good where small, LIF where large: with equal signs they disagree."""
    return np.sign(differences[..., 0, :]) * np.sign(differences[..., 1, :]) > 0
