"""Check each conclusion of the paper over the stored results of studies.

    python research/cifar10_conclusions.py [docs/results/cifar10]
    python research/cifar10_conclusions.py docs/results/food101

Prints every conclusion for every seed and puts all tables into the page beside the folder (cifar10.md, at
its marks). The accuracies asked for are those of CIFAR-10. Exit code 1 if a conclusion does not hold for a
seed. The claims are only stated: each with a paired test over images, Holm-corrected where it has several
parts, whatever comes out.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from cifar10_results import published_areas
from fpa.explanation import PAPER
from fpa.scores.fidelity import Fidelity
from fpa.show.names import model_name
from fpa.statistics.contradictions import Reliability, reliability
from fpa.statistics.intervals import holm, paired_test, spearman

SIGNED = [name for name, estimator in PAPER.items() if estimator.signed and name != "random"]
UNSIGNED = [name for name, estimator in PAPER.items() if not estimator.signed and name != "random"]
KINDS = {name: name in SIGNED for name in (*SIGNED, *UNSIGNED)}
LEAST_ACCURACY = {"cifar10": {"none": 0.923, "rectangle": 0.924, "fpa": 0.920}}
LEAST_RATIO = {"ig_sum": 3.0, "vgx_sum": 3.0, "sgx_sum": 1.6}


def estimator_name(name: str) -> str:
    """One of the paper's estimators as people see it."""
    return PAPER[name].label(name).text


@dataclass
class Results:
    """The stored results of one seed."""

    seed: int
    data: str
    table: pd.DataFrame
    curves: pd.DataFrame
    scores: dict[str, dict[str, Fidelity]]
    """By augmentation and estimator, made again from the areas of the images."""
    reliability: dict[str, Reliability]

    def area(self, augmentation: str, estimator: str) -> float:
        return self.scores[augmentation][estimator].area

    def curve(self, augmentation: str, estimator: str, order: str) -> pd.DataFrame:
        curves = self.curves
        rows = (curves.augmentation == augmentation) & (curves.estimator == estimator)
        return curves[rows & (curves.order == order)].sort_values("fraction")

    def published(self, augmentation: str) -> dict[str, float]:
        return published_areas(self.data)[augmentation]


@dataclass
class Finding:
    """A statement about one seed, whether it holds, and what was seen."""

    statement: str
    holds: bool
    seen: str


def read_results(folder: Path) -> Results:
    """The results of one seed, from the files that cifar10_results.py wrote."""
    areas = pd.read_parquet(folder / "areas.parquet")

    def score(augmentation: str, estimator: str) -> Fidelity:
        """A straight line from 1 has the same area as the curve it stands for."""
        lines = [
            np.stack([np.ones(len(areas)), 2 * areas[f"{augmentation}.{estimator}.{order}"] / 100 - 1], 1)
            for order in ("mif", "lif")
        ]
        return Fidelity.from_curves(*lines, [0, 1], normalise="none")

    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    scores = {name: {one: score(name, one) for one in PAPER} for name in recipe["augmentations"]}
    seed = json.loads((folder / "manifest.json").read_text())["seeds"]["seed"]
    return Results(
        seed=seed,
        data=recipe["data"]["name"],
        table=pd.read_csv(folder / "table.csv"),
        curves=pd.read_csv(folder / "curves.csv"),
        scores=scores,
        reliability={name: reliability(scores[name], KINDS) for name in scores},
    )


def conclusions(results: Results) -> list[Finding]:
    """What the paper concludes and the stored results must show."""
    return [
        *accuracies(results),
        *order_with_fpa(results),
        *rises_of_a(results),
        *signed_lif_curves(results),
        random_area(results),
        *published_ranking(results),
        *contradictions(results),
    ]


def accuracies(results: Results) -> Iterator[Finding]:
    """Is every model about as good as the paper's?"""
    table = results.table
    for name, least in LEAST_ACCURACY.get(results.data, {}).items():
        accuracy = float(table[table.augmentation == name].accuracy.iloc[0])
        statement = f"accuracy, {model_name(name)}: at least {100 * least:.1f} %"
        yield Finding(statement, accuracy >= least, f"{100 * accuracy:.2f} %")


def order_with_fpa(results: Results) -> Iterator[Finding]:
    """Which estimators lead and which are last on the model trained with FPA?"""
    areas = {name: results.area("fpa", name) for name in PAPER}
    lowest = min(SIGNED, key=areas.__getitem__)
    highest = max(UNSIGNED, key=areas.__getitem__)
    yield Finding(
        "with FPA every signed estimator beats every unsigned one",
        areas[lowest] > areas[highest],
        f"lowest signed {_a(lowest, areas)}, highest unsigned {_a(highest, areas)}",
    )
    leaders = sorted(PAPER, key=areas.__getitem__)[-2:]
    yield Finding(
        "SG'_sum and IG_sum lead with FPA",
        set(leaders) == {"sgx_sum", "ig_sum"},
        ", ".join(_a(name, areas) for name in reversed(leaders)),
    )
    worst = min(UNSIGNED, key=areas.__getitem__)
    yield Finding("VG_abs is the worst unsigned one with FPA", worst == "vg_abs", _a(worst, areas))


def rises_of_a(results: Results) -> Iterator[Finding]:
    """By how much does FPA raise the A of signed estimators?"""
    for name, least in LEAST_RATIO.items():
        ratio = results.area("fpa", name) / results.area("none", name)
        statement = f"FPA raises A of {estimator_name(name)} at least {least:g}-fold"
        yield Finding(statement, ratio >= least, f"{ratio:.2f}-fold")


def signed_lif_curves(results: Results) -> Iterator[Finding]:
    """Does the logit rise when the pixels that speak against the class are masked first?"""
    for name in results.scores:
        first = {one: results.curve(name, one, "lif").iloc[1] for one in SIGNED}
        if name == "fpa":
            statement = "LIF curves of signed estimators rise above 1 first with FPA"
            holds = all(row["mean"] - row.interval > 1 for row in first.values())
        else:
            statement = f"LIF curves of signed estimators fall at once, {model_name(name)}"
            holds = all(row["mean"] + row.interval < 1 for row in first.values())
        seen = ", ".join(f"{estimator_name(one)} {row['mean']:.3f}" for one, row in first.items())
        yield Finding(statement, holds, f"at 5 %: {seen}")


def random_area(results: Results) -> Finding:
    """Is a random order worth nothing?"""
    areas = {name: results.area(name, "random") for name in results.scores}
    return Finding(
        "A of random is within 0.5 of 0",
        max(map(abs, areas.values())) < 0.5,
        ", ".join(f"{model_name(name)} {area:+.2f}" for name, area in areas.items()),
    )


def published_ranking(results: Results) -> Iterator[Finding]:
    """Do the estimators come in the published order?"""
    for name in ("none", "fpa"):
        published = results.published(name)
        ours = [results.area(name, one) for one in PAPER]
        correlation = float(spearman(ours, [published[one] for one in PAPER]))
        statement = f"rank correlation with the published A at least 0.9, {model_name(name)}"
        yield Finding(statement, correlation >= 0.9, f"{correlation:.3f}")


def contradictions(results: Results) -> Iterator[Finding]:
    """Do MIF and LIF contradict each other without FPA, and hardly ever with it?"""
    for name in results.scores:
        pairs = [pair for pair in results.reliability[name].pairs if pair.kind == "signed-unsigned"]
        count = sum(pair.contradiction for pair in pairs)
        holds = count <= 2 if name == "fpa" else count >= 12
        limit = "at most 2" if name == "fpa" else "at least 12"
        statement = f"signed-unsigned contradictions, {model_name(name)}: {limit} of 18"
        yield Finding(statement, holds, f"{count} of {len(pairs)}")


def claims(results: Results) -> list[Finding]:
    """Further claims of the paper, stated plainly with a paired test."""
    found = []
    for name in results.scores:
        scores = results.scores[name]
        rivals = [one for one in UNSIGNED if one != "sqsg_sum"]
        tests = {one: paired_test(scores["sqsg_sum"], scores[one]) for one in rivals}
        found.append(_all_of(f"SQ-SG is the best unsigned estimator, {model_name(name)}", tests))
    tests = {
        one: paired_test(results.scores["fpa"][one], results.scores["none"][one], of="mif") for one in PAPER
    }
    found.append(_all_of("MIF curves fall more slowly with FPA", tests))
    for name in results.scores:
        scores = results.scores[name]
        tests = {one: paired_test(scores[one], scores["random"]) for one in PAPER if one != "random"}
        found.append(_all_of(f"every estimator beats random, {model_name(name)}", tests))
    for name in results.scores:
        # An image's normalised curve minus its own start, 1, at every point; the images are many.
        points = pd.concat(
            [results.curve(name, one, "lif").iloc[1:-1].assign(estimator=one) for one in UNSIGNED]
        )
        z = (points["mean"] - 1) / (points.interval / 1.96)
        points["p"] = holm([math.erfc(abs(value) / math.sqrt(2)) for value in z])
        rising = (points["mean"] > 1) & (points.p < 0.05)
        top = points.loc[points["mean"].idxmax()]
        seen = f"{rising.sum()} of {len(points)} points above 1; "
        place = f"{estimator_name(top.estimator)} at {100 * top.fraction:.0f} %"
        seen += f"highest {top['mean']:.3f} ({place}, {_p(top.p)})"
        statement = f"unsigned LIF curves do not rise, {model_name(name)}"
        found.append(Finding(statement, not rising.any(), seen))
    return found


def _all_of(statement: str, tests: dict) -> Finding:
    """Whether every difference is positive, Holm-corrected."""
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    fails = [one for one, test in tests.items() if not (test.difference > 0 and adjusted[one] < 0.05)]
    shown = fails or [min(tests, key=lambda one: tests[one].difference)]
    seen = f"{len(tests) - len(fails)} of {len(tests)}; {'not' if fails else 'smallest difference'}: "
    seen += ", ".join(
        f"{estimator_name(one)} {tests[one].difference:+.2f} ({_p(adjusted[one])})" for one in shown
    )
    return Finding(statement, not fails, seen)


def _a(name: str, areas: dict[str, float]) -> str:
    return f"{estimator_name(name)} {areas[name]:.1f}"


def _p(value: float) -> str:
    return "p < 1e-99" if value < 1e-99 else f"p = {value:.1g}"


def markdown(title: str, findings: dict[int, list[Finding]]) -> list[str]:
    """A row a statement, a column a seed."""
    seeds = list(findings)
    lines = [f"| {title} | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    lines.append("|---" * (len(seeds) + 1) + "|")
    by_seed = {seed: {one.statement: one for one in found} for seed, found in findings.items()}
    for statement in next(iter(by_seed.values())):
        row = [found.get(statement) for found in by_seed.values()]
        cells = [one and f"{'holds' if one.holds else '**does not hold**'}: {one.seen}" for one in row]
        lines.append(f"| {statement} | " + " | ".join(cell or "not run" for cell in cells) + " |")
    return lines


def spread_table(folder: Path) -> list[str]:
    """A of every seed beside its spread, the interval over images and the published A."""
    table = pd.read_csv(folder / "spread.csv")
    seeds = [name for name in table.columns if name.startswith("seed_")]
    head = ["augmentation", "estimator", *(name.replace("_", " ") for name in seeds), "spread over seeds"]
    head += ["± over images", "mean-then-divide", "published", "difference"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for row in table.to_dict("records"):
        cells = [model_name(row["augmentation"]), estimator_name(row["estimator"])]
        shown = [*seeds, "spread_over_seeds", "interval_over_images", "mean_then_divide"]
        cells += [f"{round(row[name], 1) + 0.0:.1f}".replace("nan", "") for name in shown]  # no "-0.0"
        published = row["published"]
        cells += (
            ["", ""]
            if np.isnan(published)
            else [f"{published:.1f}", f"{round(row['difference'], 1) + 0.0:+.1f}"]
        )
        if row["to_explain"]:
            cells[-1] = f"**{cells[-1]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def variations_table(folder: Path, augmentation: str, published: dict[str, float]) -> list[str]:
    """A of every variation, a column a variation; then the same with the mean before the division."""
    found = pd.read_csv(folder / "variations.csv")
    found = found[found.augmentation == augmentation]
    names = list(dict.fromkeys(found.variation))
    lines = ["| estimator | published | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(names)]
    for column, added in (("area", ""), ("mean_then_divide", ", mean-then-divide")):
        values = found.pivot(index="estimator", columns="variation", values=column)
        for estimator in PAPER:
            if estimator == "random":
                continue
            cells = [f"{values.loc[estimator, name]:.1f}".replace("nan", "") for name in names]
            title = f"{estimator_name(estimator)}{added}"
            lines.append(f"| {title} | {published[estimator]:.1f} | " + " | ".join(cells) + " |")
    each = found.groupby("variation")
    accuracy = [f"{100 * each.accuracy.first()[name]:.1f}" for name in names]
    contradictions = [f"{each.contradictions.first()[name]:.0f}".replace("nan", "") for name in names]
    lines.append("| accuracy on these images, % | | " + " | ".join(accuracy) + " |")
    lines.append("| signed-unsigned contradictions of 18 | | " + " | ".join(contradictions) + " |")
    return lines


def filled(page: str, tables: dict[str, list[str]]) -> str:
    """The page with every table between its marks."""
    for name, lines in tables.items():
        mark = re.compile(rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text = "\n".join(["", *lines, ""])
        page, count = mark.subn(lambda found, text=text: found[1] + text + found[2], page)
        if count != 1:
            raise SystemExit(f"the page has {count} places for the table {name!r}, expected 1")
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results/cifar10"))
    chosen = parser.parse_args()
    studies = [read_results(path) for path in sorted(chosen.folder.glob("seed-*"))]
    if not studies:
        print(f"{chosen.folder} holds no results", file=sys.stderr)
        return 2
    held = {results.seed: conclusions(results) for results in studies}
    stated = {results.seed: claims(results) for results in studies}
    tables = {"conclusions": markdown("conclusion", held), "claims": markdown("claim", stated)}
    for lines in tables.values():
        print("\n".join([*lines, ""]))
    page = chosen.folder.with_suffix(".md")
    if page.exists():
        tables["spread"] = spread_table(chosen.folder)
        for name in ("none", "fpa") if (chosen.folder / "variations.csv").exists() else ():
            table = variations_table(chosen.folder, name, studies[0].published(name))
            tables[f"variations {name}"] = table
        page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    failed = [(seed, one) for seed, findings in held.items() for one in findings if not one.holds]
    for seed, one in failed:
        print(f"does not hold for seed {seed}: {one.statement} ({one.seen})", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
