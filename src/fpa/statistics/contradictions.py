"""How often MIF and LIF contradict each other."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpa import showing
from fpa.errors import InputError
from fpa.notes import Kind, Note, Plain, Severity
from fpa.statistics import intervals
from fpa.statistics.duplicates import near_duplicates
from fpa.statistics.intervals import Areas, Bools, Estimate, Floats, PairedTest, holm
from fpa.statistics.orders import ALPHA, Orders, orders
from fpa.statistics.rank_agreement import rank_correlations
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
    """Two-sided p of `mif` in a paired t-test over images, Holm-corrected over the pairs of its kind."""
    p_lif: float
    """The same for `lif`."""
    opposite: bool
    """Ordered one way by the mean area under MIF and the other way by that under LIF."""
    contradiction: bool
    """Surely opposite: in opposite order, with `p` under alpha."""
    area: float = math.nan
    """A of the first minus that of the second, in percent."""
    interval: float = math.nan
    """Half the width of its 95 % interval, paired over images."""
    p_area: float = math.nan
    """Two-sided p of `area` in a paired t-test, Holm-corrected over all pairs of explanations."""
    order: str = "tie"
    """How the evaluation orders them: "contradiction" where they are surely opposite, "tie" where A does not
    differ significantly, else "first" or "second", the better one."""
    p: float = math.nan
    """That MIF and LIF do not order them as they seem to, alike or oppositely: the larger p of the two tests,
    Holm-corrected over the pairs of the kind."""
    agreeing: bool = False
    """Surely agreeing: in the same order, with `p` under alpha."""

    def __str__(self) -> str:
        return showing.pair_text(self)


class Counts(NamedTuple):
    """How many pairs of a kind there are."""

    pairs: int
    opposite: int
    """Those that MIF and LIF rank in opposite order."""
    significant: int
    """Of these, those that are surely in opposite order."""


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
    """For each of `KINDS` and "all": the number of pairs whose means are in opposite order; its 95 % interval
    goes from those that surely are to all but those that surely agree, by the tests of the pairs."""
    correlation: dict[str, Estimate]
    """Spearman's correlation of goodness by MIF with goodness by LIF: "all", "signed", "unsigned". Without an
    interval (NaN) under 100 images, and among ties: where a pair is not surely ordered by both."""
    used: int
    """The number of images, those that every estimator uses."""
    alpha: float
    duplicates: dict[str, str] = field(default_factory=dict)
    """Estimators that take no part because they say the same as another, and which one that is."""

    @property
    def contradictions(self) -> tuple[Pair, ...]:
        """The pairs that are surely in opposite order."""
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
        """Where MIF and LIF surely contradict each other, which pairs cannot be ordered, what is there twice.

        At most `most` pairs are named for each reason.
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
    alpha: float = ALPHA,
    draws: int = 1000,
    seed: int = 0,
) -> Reliability:
    """Do MIF and LIF agree on which estimators are good?

    One test for every pair of estimators: it is *surely opposite* if MIF orders it one way and LIF the other,
    *surely agreeing* if both order it alike, each significant in a paired t-test over images. p is the larger
    of the two, Holm-corrected over the pairs of the kind, for the pairs that seem opposite and for those that
    seem to agree (`statistics.orders`). Surely opposite pairs are *contradictions*. All numbers are over the
    images that every estimator uses. They cover neither the choice of estimators nor the training seed.

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
    - `draws`, `seed`: of the bootstrap, which gives the intervals of rank correlations.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
    if fidelities and not fidelities.keys() & signed.keys():
        some = ", ".join(list(fidelities)[:3])
        raise InputError(f"signed names none of the estimators ({some}): say for each whether it is signed")
    return mif_lif_agreement(fidelities, signed, families, alpha=alpha, draws=draws, seed=seed)


def mif_lif_agreement(
    fidelities: Mapping[str, Areas],
    signed: Mapping[str, bool],
    families: Mapping[str, Hashable] | None = None,
    *,
    alpha: float = 0.05,
    draws: int = 1000,
    seed: int = 0,
) -> Reliability:
    """As `reliability`; where no explanation is among the estimators, there is nothing to compare."""
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
    left, right = np.triu_indices(len(names), k=1)
    found = orders(areas, left, right)
    kinds = np.array([_kind(is_signed[i], is_signed[j]) for i, j in zip(left, right, strict=True)])
    mif, lif = areas.mean(axis=2)

    def best_first(goodness: Floats) -> tuple[str, ...]:
        return tuple(names[place] for place in np.argsort(-goodness, kind="stable"))

    return Reliability(
        by_area=best_first(lif - mif),
        by_mif=best_first(-mif),
        by_lif=best_first(lif),
        pairs=_compared(names, kinds, found, area_tests(explanations), alpha),
        opposite=_counted(kinds, found, alpha),
        correlation=rank_correlations(is_signed, areas, found, alpha=alpha, draws=draws, seed=seed),
        used=int(kept.sum()),
        alpha=alpha,
        duplicates=duplicates,
    )


def area_tests(explanations: Mapping[str, Areas]) -> dict[tuple[str, str], PairedTest]:
    """Is A of the first larger? For every pair, with p Holm-corrected over all of them.

    These tests say which estimator a table prints in bold, which it marks as equal, and which pairs cannot be
    ordered: near-duplicates are in them too. Empty where fewer than two images are used by all.
    """
    if len(explanations) < 2:
        return {}
    kept: Bools = np.logical_and.reduce([each.kept for each in explanations.values()])
    if kept.sum() < 2:
        return {}
    gaps = {name: (each.lif_areas - each.mif_areas)[kept] for name, each in explanations.items()}
    tests = {(one, two): intervals.t_test(gaps[one] - gaps[two]) for one, two in combinations(gaps, 2)}
    corrected = holm([test.p for test in tests.values()]).tolist()
    return {pair: test._replace(p=p) for (pair, test), p in zip(tests.items(), corrected, strict=True)}


def _compared(
    names: list[str],
    kinds: npt.NDArray[np.str_],
    found: Orders,
    by_area: Mapping[tuple[str, str], PairedTest],
    alpha: float,
) -> tuple[Pair, ...]:
    """Every pair of estimators, with the tests of its kind."""
    p_mif, p_lif, p = (np.ones(len(kinds)) for _ in range(3))
    for kind in KINDS:
        of = kinds == kind
        p_mif[of] = holm(found.p_mif[of])
        p_lif[of] = holm(found.p_lif[of])
        p[of] = found.of(of).p
    sure = p < alpha
    pairs = []
    for place, (first, second) in enumerate(combinations(names, 2)):
        contradiction = bool(sure[place] and found.opposite[place])
        area = by_area.get((first, second), PairedTest.unknown())
        order = "tie"
        if contradiction:
            order = "contradiction"
        elif area.p < alpha:
            order = "first" if area.difference > 0 else "second"
        pairs.append(
            Pair(
                first=first,
                second=second,
                kind=str(kinds[place]),
                mif=float(found.mif[place]),
                lif=float(found.lif[place]),
                p_mif=float(p_mif[place]),
                p_lif=float(p_lif[place]),
                opposite=bool(found.opposite[place]),
                contradiction=contradiction,
                area=area.difference,
                interval=area.interval,
                p_area=area.p,
                order=order,
                p=float(p[place]),
                agreeing=bool(sure[place] and found.agreeing[place]),
            )
        )
    return tuple(pairs)


def _kind(first_signed: bool, second_signed: bool) -> str:
    """The kind of a pair, one of `KINDS`."""
    if first_signed != second_signed:
        return "signed-unsigned"
    return "signed-signed" if first_signed else "unsigned-unsigned"


def _counted(kinds: npt.NDArray[np.str_], found: Orders, alpha: float) -> dict[str, Estimate]:
    """By kind of pair: how many are in opposite order, and how many at least and at most, by their tests."""
    by_kind = {kind: kinds == kind for kind in KINDS} | {"all": np.ones(len(kinds), dtype=bool)}
    counts = {}
    for kind, of in by_kind.items():
        low, high = found.of(of).bounds(alpha)
        counts[kind] = Estimate(float(found.opposite[of].sum()), float(low), float(high))
    return counts


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
