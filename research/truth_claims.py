"""What the errors of evaluations say of each claim: supported, refuted or open.

    python research/truth_claims.py --tables docs/results/truth

Reads the tables of research/truth_tables.py and writes `claims.csv`: of the confirming seeds, without those
where a model that a claim is about is not above chance by two standard errors. A claim is that the error
falls from one way of judging maps to another. Its reduction is taken seed by seed; it is *supported* if the
95 % t interval over seeds lies wholly above 2 points, *refuted* if wholly below, else *open*. One that is not
read alike with `truth` and with `truth_cues` (and, where two models with truths of their own are compared,
with narrow bins) is open, and so is one of which not all seeds were measured. The two primary claims are
those of truth.yaml, Holm-corrected.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fpa.statistics.intervals import above_chance
from fpa.statistics.preferences import LIMIT, Reading, Reduction, error_reduction, primary_reductions
from truth import Experiment
from truth_tables import path_of

Tables = dict[str, pd.DataFrame]

TRUTHS = ("truth", "truth_cues")


@dataclass(frozen=True)
class Way:
    """Who is explained and judges, and by which protocol."""

    row: str
    protocol: str
    side: str = "A"

    def __str__(self) -> str:
        curve = "" if self.side == "A" else f", {self.side} alone"
        return f"{self.row}, {self.protocol}{curve}"


@dataclass(frozen=True)
class Claim:
    """That the error falls from one way to another; the same maps and pairs in both."""

    about: str
    rule: str
    before: Way
    after: Way
    pairs: str = "all"
    over: str = "image"
    truth: str | None = None
    """The only truth that it is about; None: both of `TRUTHS` must agree."""

    def errors(self, tables: Tables, way: Way, truth: str) -> pd.DataFrame:
        """And the pairs counted, by seed."""
        table = tables["errors"]
        chosen = table[
            (table["rule"] == self.rule)
            & table["seed"].isin(self.seeds(tables))
            & (table["row"] == way.row)
            & (table["protocol"] == way.protocol)
            & (table["side"] == way.side)
            & (table["truth"] == truth)
            & (table["pairs"] == self.pairs)
            & (table["over"] == self.over)
        ]
        return chosen.set_index("seed").sort_index()[["error", "counted"]]

    def seeds(self, tables: Tables) -> set[int]:
        """Those in which all that the claim is about was measured, of models that have learned something."""
        table = tables["contradictions"]
        chosen = table[(table["rule"] == self.rule) & table["row"].isin([self.before.row, self.after.row])]
        both = [set(chosen[chosen["row"] == way.row]["seed"]) for way in (self.before, self.after)]
        return both[0] & both[1] - set(chosen[at_chance(chosen)]["seed"])

    def measured(self, tables: Tables) -> list[tuple[pd.Series, pd.Series]]:
        """The errors before and after that are shown, by seed, and those that must be read like them."""
        # Only the truth with the background is counted for some kinds of pairs.
        both = self.truth is None and self.pairs == "all" and self.over == "image"
        found = []
        for truth in TRUTHS if both else (self.truth or "truth",):
            before = self.errors(tables, self.before, truth)
            after = self.errors(tables, self.after, truth)
            if not before["counted"].equals(after["counted"]):
                raise SystemExit(f"{self.about}: {self.before} and {self.after} have other pairs")
            found.append((before["error"], after["error"]))
        return found


@dataclass(frozen=True)
class Matched(Claim):
    """That it falls from one model to another, each with a truth of its own, on equally easy pairs."""

    def measured(self, tables: Tables) -> list[tuple[pd.Series, pd.Series]]:
        table = tables["comparisons"]
        found = []
        for truth in TRUTHS:
            for width in (0.1, 0.025):
                chosen = table[
                    (table["rule"] == self.rule)
                    & table["seed"].isin(self.seeds(tables))
                    & (table["comparison"] == f"{self.before.row}, {self.after.row}")
                    & (table["protocol"] == self.before.protocol)
                    & (table["side"] == self.before.side)
                    & (table["truth"] == truth)
                    & (table["pairs"] == f"ladders, matched, bins of {width}")
                ].sort_values("seed")
                found.append((chosen["first"], chosen["second"]))
        return found


def at_chance(rows: pd.DataFrame) -> pd.Series:
    """Which of the rows of `contradictions.csv` are of models that are not above chance."""
    return rows.apply(
        lambda row: not above_chance(row["right"] / row["images"], row["images"], row["chance"]), axis=1
    )


def claims(experiment: Experiment) -> Iterator[Claim]:
    """All of them, the primary ones first."""
    settings = experiment.settings
    primary = settings["primary"]
    first = primary["judge"]
    yield Claim(
        "primary: the twin judges better than the original",
        first["rule"],
        Way("none", first["protocol"]),
        Way("judge", first["protocol"]),
    )
    second = primary["fpa"]
    yield Matched(
        "primary: a model trained with FPA is judged better than one without",
        second["rule"],
        Way("none", second["protocol"]),
        Way("fpa", second["protocol"]),
    )
    best = settings["best_untouched"]
    for rule in settings["rules"]:
        for protocol in settings["protocols"]:
            judge = Way("judge", protocol)
            own = Way("none", protocol)
            yield Claim("the twin as a judge", rule, own, judge)
            for other in ("rectangle", "fpa", "fpa-squares", "twin"):
                yield Matched(f"{other} at equal protocol", rule, own, Way(other, protocol))
            if protocol != "pixels":
                for row in ("none", "judge"):
                    words = "itself" if row == "none" else "the twin"
                    about = f"larger or blurred pieces against pixels, judged by {words}"
                    yield Claim(about, rule, Way(row, "pixels"), Way(row, protocol))
        for protocol in ("pixels", "1/8", best):
            about = "the twin against the best untouched protocol"
            yield Claim(about, rule, Way("none", best), Way("judge", protocol))
        for protocol in ("pixels", "1/8", best):
            own = Way("none", protocol)
            judge = Way("judge", protocol)
            yield Claim("the twin as a judge, without signed-unsigned pairs", rule, own, judge, "same sign")
            yield Claim("the twin as a judge, explanations alone", rule, own, judge, "explanations")
            yield Claim("the twin as a judge, over the data set", rule, own, judge, over="data set")
            yield Claim("the twin as a judge, inside of cues", rule, own, judge, truth="truth_parts")
            alone = Way("none", protocol, "MIF")
            yield Claim("A against MIF alone, judged by itself", rule, alone, own)
        for row in ("none", "judge"):
            at_pixels = Way(row, "pixels")
            at_best = Way(row, best)
            about = f"the best untouched protocol against pixels, {row}"
            yield Claim(f"{about}, explanations alone", rule, at_pixels, at_best, "explanations")
            yield Claim(f"{about}, without signed-unsigned pairs", rule, at_pixels, at_best, "same sign")
            yield Claim(f"{about}, over the data set", rule, at_pixels, at_best, over="data set")
            yield Claim(f"{about}, inside of cues", rule, at_pixels, at_best, truth="truth_parts")


def reduction(before: pd.Series, after: pd.Series) -> Reduction:
    """Open, without an interval, where a seed has no pairs or only one seed is left."""
    if len(before) < 2 or not np.isfinite([before, after]).all():
        mean = float(np.mean(before) - np.mean(after)) if len(before) else float("nan")
        return Reduction(mean, float("nan"), 1.0, Reading.OPEN, len(before), LIMIT)
    return error_reduction(before, after)


def read_alike(reductions: list[Reduction]) -> Reading:
    """The reading that all share, else open."""
    readings = {each.reading for each in reductions}
    return readings.pop() if len(readings) == 1 else Reading.OPEN


def judged(experiment: Experiment, tables: Tables) -> Iterator[dict[str, Any]]:
    """A row a claim."""
    every = [(claim, claim.measured(tables)) for claim in claims(experiment)]
    both = {str(number): reduction(*measured[0]) for number, (_, measured) in enumerate(every[:2])}
    corrected = primary_reductions(both)
    planned = len(experiment.settings["confirming"])
    for number, (claim, measured) in enumerate(every):
        reductions = [reduction(before, after) for before, after in measured]
        shown = corrected.get(str(number), reductions[0])
        yield {
            "claim": claim.about,
            "rule": claim.rule,
            "before": str(claim.before),
            "after": str(claim.after),
            "pairs": "ladders, matched" if isinstance(claim, Matched) else claim.pairs,
            "over": claim.over,
            "error before": round(100 * measured[0][0].mean(), 2),
            "error after": round(100 * measured[0][1].mean(), 2),
            "reduction": round(100 * shown.mean, 2),
            "half-width": round(100 * shown.half_width, 2),
            "p": f"{shown.p:.2g}",
            "reading": str(read_alike([shown, *reductions[1:]]) if shown.seeds == planned else Reading.OPEN),
            "by truth alone": str(shown.reading),
            "others": ", ".join(
                f"{100 * each.mean:.2f} ± {100 * each.half_width:.2f}" for each in reductions[1:]
            ),
            "seeds": shown.seeds,
        }


def read_tables(folder: Path, seeds: list[int]) -> Tables:
    """Those of truth_tables.py, of these seeds."""
    tables = {
        name: pd.read_csv(folder / path_of(name)) for name in ("errors", "comparisons", "contradictions")
    }
    return {name: table[table["seed"].isin(seeds)] for name, table in tables.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("docs/results/truth"))
    parser.add_argument("--seeds", nargs="*", type=int, help="default: the confirming ones")
    options = parser.parse_args()
    experiment = Experiment.read()
    tables = read_tables(options.tables, options.seeds or experiment.settings["confirming"])
    rows = pd.DataFrame(judged(experiment, tables))
    rows.to_csv(options.tables / "claims.csv", index=False)
    print(rows[["claim", "rule", "before", "after", "reduction", "half-width", "reading"]].to_string())


if __name__ == "__main__":
    main()
