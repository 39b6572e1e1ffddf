"""How often MIF and LIF contradict each other."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpa import showing
from fpa.errors import InputError
from fpa.notes import Kind, Note, Plain, Severity
from fpa.statistics import intervals
from fpa.statistics.intervals import Areas, Bools, Estimate, Floats, estimate, holm, spearman
from fpa.values import checked

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
    area: float = math.nan
    """A of the first minus that of the second, in percent."""
    interval: float = math.nan
    """Half the width of its 95 % interval, paired over images."""
    p_area: float = math.nan
    """Two-sided p of `area` in a paired t-test, Holm-corrected over all pairs."""
    order: str = "tie"
    """How the evaluation orders them: "contradiction" where MIF and LIF do not agree, "tie" where A does not
    differ significantly, else "first" or "second", the better one."""

    def __str__(self) -> str:
        return showing.pair_text(self)


class Counts(NamedTuple):
    """How many pairs of a kind there are."""

    pairs: int
    opposite: int
    """Those that MIF and LIF rank in opposite order."""
    significant: int
    """Of these, those where both differences are significant."""


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
    duplicates: dict[str, str] = field(default_factory=dict)
    """Estimators that take no part because they say the same as another, and which one that is."""

    @property
    def contradictions(self) -> tuple[Pair, ...]:
        """The pairs in opposite order with both differences significant."""
        return tuple(pair for pair in self.pairs if pair.contradiction)

    def counts(self, kind: str = "signed-unsigned") -> Counts:
        """How many pairs of a kind, or of "all", are in opposite order."""
        pairs = [pair for pair in self.pairs if kind in (pair.kind, "all")]
        opposite = sum(pair.opposite for pair in pairs)
        return Counts(len(pairs), opposite, sum(pair.contradiction for pair in pairs))

    def comparisons(self) -> "pd.DataFrame":
        """A row for every pair: is A of the first larger, by how much, do MIF and LIF agree?"""
        import pandas as pd

        return pd.DataFrame([asdict(pair) for pair in self.pairs])

    def matrix(self) -> "pd.DataFrame":
        """A of the row minus A of the column, best first; `marks` says which differences mean something."""
        return self._square("area", lambda value, swapped: -value if swapped else value, math.nan)

    def marks(self) -> "pd.DataFrame":
        """For every cell of `matrix`: "=" a tie, "!" MIF and LIF contradict each other, else nothing."""
        return self._square("order", lambda order, _: {"tie": "=", "contradiction": "!"}.get(order, ""), "")

    def _square(self, column: str, cell: Callable[[Any, bool], Any], diagonal: Any) -> "pd.DataFrame":
        import pandas as pd

        square = pd.DataFrame(diagonal, index=self.by_area, columns=self.by_area)
        for pair in self.pairs:
            for row, other in ((pair.first, pair.second), (pair.second, pair.first)):
                square.loc[row, other] = cell(getattr(pair, column), row != pair.first)
        return square

    def facts(self, most: int = 6) -> tuple[Note, ...]:
        """Which kinds of comparison are consistent, which pairs cannot be ordered, what is there twice.

        A kind is consistent if MIF and LIF contradict each other significantly on none of its pairs. At most
        `most` pairs are named for each reason.
        """
        consistent: dict[str, Plain] = {}
        inconsistent: dict[str, Plain] = {}
        for kind in KINDS:
            counts = self.counts(kind)
            if counts.pairs:
                (inconsistent if counts.significant else consistent)[kind] = counts
        notes = []
        if consistent:
            notes.append(Note(Kind.CONSISTENT, Severity.INFO, {"images": self.used, "kinds": consistent}))
        if inconsistent:
            notes.append(Note(Kind.NOT_CONSISTENT, Severity.WARNING, {"kinds": inconsistent}))
        for order, reason in (("contradiction", Kind.CONTRADICTIONS), ("tie", Kind.TIES)):
            unordered = [(pair.first, pair.second) for pair in self.pairs if pair.order == order]
            if unordered:
                more = max(len(unordered) - most, 0)
                notes.append(Note(reason, Severity.INFO, {"pairs": unordered[:most], "more": more}))
        if self.duplicates:
            notes.append(Note(Kind.NEAR_DUPLICATES, Severity.INFO, {"of": self.duplicates}))
        return tuple(notes)

    def scope(self, names: Mapping[str, str] | None = None, most: int = 6) -> list[str]:
        """The same in sentences; `names` are those that people see."""
        return showing.sentences(self.facts(most), names or {})

    def table(self) -> "pd.DataFrame":
        """A row for each of `KINDS` and "all": pairs, opposite ones (with interval), contradictions."""
        import pandas as pd

        rows = {}
        for kind, opposite in self.opposite.items():
            counts = self.counts(kind)
            rows[kind] = [counts.pairs, *map(int, opposite), counts.significant]
        columns = ["pairs", "opposite", "opposite_low", "opposite_high", "contradictions"]
        return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("kind")

    def __str__(self) -> str:
        return showing.reliability_text(self)


@checked
def reliability(
    fidelities: Mapping[str, Areas],
    signed: Mapping[str, bool],
    *,
    families: Mapping[str, Hashable] | None = None,
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
      random map, are no explanations and take no part. With fewer than two, or fewer than two images that all
      use, there are no pairs.
    - `families`: by name, what an estimator is apart from its settings, None where that is not known. Of
      several with the same, or whose areas are nearly the same, only the first takes part: counting one
      thing twice would say nothing new. Without it all take part.
    - `alpha`: the level of the tests, all together.
    - `draws`, `seed`: of the bootstrap.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
    explanations = {name: fidelity for name, fidelity in fidelities.items() if name in signed}
    duplicates = {} if families is None else near_duplicates(explanations, families)
    chosen = {name: fidelity for name, fidelity in explanations.items() if name not in duplicates}
    if len(chosen) < 2 or np.logical_and.reduce([each.kept for each in chosen.values()]).sum() < 2:
        return _nothing_to_compare(fidelities, alpha, duplicates)
    names = list(chosen)
    kept = intervals.shared_images(chosen)
    # [2, M, n]: of MIF and of LIF, by estimator and image.
    areas = np.stack([(each.mif_areas[kept], each.lif_areas[kept]) for each in chosen.values()], axis=1)
    is_signed = np.array([signed[name] for name in names], dtype=bool)
    pairs = _compared(names, is_signed, areas, alpha)
    # The same draws of images for all estimators: what they have in common cancels in every difference.
    drawn = intervals.resampled_means(np.concatenate(areas), draws, seed).reshape(draws, 2, -1)
    mif, lif = areas.mean(axis=2)

    def best_first(goodness: Floats) -> tuple[str, ...]:
        return tuple(names[place] for place in np.argsort(-goodness, kind="stable"))

    return Reliability(
        by_area=best_first(lif - mif),
        by_mif=best_first(-mif),
        by_lif=best_first(lif),
        pairs=pairs,
        opposite=_counted(pairs, drawn),
        correlation={
            group: estimate(spearman(-mif[of], lif[of]), spearman(-drawn[:, 0, of], drawn[:, 1, of]))
            for group, of in _groups(is_signed).items()
        },
        used=int(kept.sum()),
        alpha=alpha,
        duplicates=duplicates,
    )


def _compared(names: list[str], is_signed: Bools, areas: Floats, alpha: float) -> tuple[Pair, ...]:
    """Every pair of estimators, tested on the areas [2, M, n] under MIF and LIF."""
    left, right = np.triu_indices(len(names), k=1)
    places = list(zip(left.tolist(), right.tolist(), strict=True))
    tests = [intervals.t_test(side[i] - side[j]) for side in areas for i, j in places]
    differences = np.array([test.difference for test in tests]).reshape(2, -1)
    # Two tests a pair: an order by MIF and one by LIF, and both must hold in a contradiction.
    p = holm([test.p for test in tests]).reshape(2, -1)
    opposite = _ordered_oppositely(differences)
    gaps = areas[1] - areas[0]
    by_area = [intervals.t_test(gaps[i] - gaps[j]) for i, j in places]
    p_area = holm([test.p for test in by_area])
    pairs = []
    for place, (i, j) in enumerate(places):
        contradiction = bool(opposite[place] and p[:, place].max() < alpha)
        order = "tie"
        if contradiction:
            order = "contradiction"
        elif p_area[place] < alpha:
            order = "first" if by_area[place].difference > 0 else "second"
        pairs.append(
            Pair(
                first=names[i],
                second=names[j],
                kind=_kind(is_signed[i], is_signed[j]),
                mif=float(differences[0, place]),
                lif=float(differences[1, place]),
                p_mif=float(p[0, place]),
                p_lif=float(p[1, place]),
                opposite=bool(opposite[place]),
                contradiction=contradiction,
                area=by_area[place].difference,
                interval=by_area[place].interval,
                p_area=float(p_area[place]),
                order=order,
            )
        )
    return tuple(pairs)


def _kind(first_signed: bool, second_signed: bool) -> str:
    """The kind of a pair, one of `KINDS`."""
    if first_signed != second_signed:
        return "signed-unsigned"
    return "signed-signed" if first_signed else "unsigned-unsigned"


def _counted(pairs: Sequence[Pair], drawn: Floats) -> dict[str, Estimate]:
    """By kind of pair: how many are in opposite order, by the means and by those drawn, [draws, 2, M]."""
    left, right = np.triu_indices(drawn.shape[2], k=1)  # the order of the pairs
    drawn_opposite = _ordered_oppositely(drawn[..., left] - drawn[..., right])
    opposite = np.array([pair.opposite for pair in pairs])
    kinds = np.array([pair.kind for pair in pairs])
    by_kind = {kind: kinds == kind for kind in KINDS} | {"all": np.ones_like(opposite)}
    return {kind: estimate(opposite[of].sum(), drawn_opposite[:, of].sum(1)) for kind, of in by_kind.items()}


def _groups(is_signed: Bools) -> dict[str, Bools]:
    """The estimators, bool [M], whose rankings are correlated."""
    return {"all": np.ones_like(is_signed), "signed": is_signed, "unsigned": ~is_signed}


SAME = 0.2
"""Two estimators are nearly the same where their areas differ by less than this share of their spread over
images, root mean square, under MIF and under LIF. The nearest of the paper's nine on CIFAR-10 have 0.37."""


def near_duplicates(fidelities: Mapping[str, Areas], families: Mapping[str, Hashable]) -> dict[str, str]:
    """The estimators that say the same as one before them, each with the name of that one.

    They do if both are the same but for their settings, or where that is not known, by their areas.
    """
    found: dict[str, str] = {}
    for place, name in enumerate(fidelities):
        for other in list(fidelities)[:place]:
            ours = families.get(name)
            theirs = families.get(other)
            same = ours == theirs if ours and theirs else _same_areas(fidelities[name], fidelities[other])
            if other not in found and same:
                found[name] = other
                break
    return found


def _same_areas(first: Areas, second: Areas) -> bool:
    kept = first.kept & second.kept
    for side in ("mif_areas", "lif_areas"):
        ours = getattr(first, side)[kept]
        theirs = getattr(second, side)[kept]
        if kept.sum() < 2 or np.mean((ours - theirs) ** 2) > SAME**2 * (ours.var() + theirs.var()) / 2:
            return False
    return True


def opposite_by_chance(signed: int, unsigned: int, draws: int = 100_000) -> Floats:
    """How often at most 0, 1, ... signed-unsigned pairs are in opposite order if two rankings are unrelated.

    Both are drawn uniformly from all orders, with a fixed seed.

    >>> opposite_by_chance(3, 6)[[3, 4]].round(3).tolist()
    [0.024, 0.055]
    """
    drawn = np.random.default_rng(0).random((2, draws, signed + unsigned))
    above = drawn[:, :, :signed, None] > drawn[:, :, None, signed:]
    counts = (above[0] != above[1]).sum(axis=(1, 2))
    return np.asarray(np.bincount(counts, minlength=signed * unsigned + 1).cumsum() / draws)


def _nothing_to_compare(
    fidelities: Mapping[str, Areas], alpha: float, duplicates: dict[str, str]
) -> Reliability:
    names = tuple(fidelities)
    return Reliability(
        by_area=names,
        by_mif=names,
        by_lif=names,
        pairs=(),
        opposite=dict.fromkeys((*KINDS, "all"), Estimate(0.0, 0.0, 0.0)),
        correlation=dict.fromkeys(("all", "signed", "unsigned"), Estimate(math.nan, math.nan, math.nan)),
        used=min((int(each.kept.sum()) for each in fidelities.values()), default=0),
        alpha=alpha,
        duplicates=duplicates,
    )


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
