"""Fills docs/results/truth.md at its marks, from the tables of truth_tables.py and truth_claims.py.

    python research/truth_page.py

Draws the figure, too. `pets.csv` of `truth_pets_tables.py` and `more.csv` of `truth_more.py` become tables of
their own where they are there.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from cifar10_conclusions import estimator_name, filled
from truth import Experiment
from truth_claims import Tables, at_chance
from truth_figure import draw
from truth_predictors import (
    PREDICTORS,
    VERDICTS,
    choices,
    correlations,
    counted,
    errors_by_verdict,
    evaluations,
    gain_of_reliable,
    whole,
)
from truth_tables import TABLES, path_of

JUDGED = {
    "none": "none",
    "rectangle": "rectangle",
    "fpa": "FPA",
    "fpa-squares": "FPA, squares up to 8 px",
    "twin": "twin",
    "judge": "none, judged by its twin",
}
ALL_SEEDS = 5
MODELS = ("none", "rectangle", "fpa", "fpa-squares", "twin")


def table(titles: list[str], rows: list[list[str]], numbers: int = 1) -> list[str]:
    """Markdown; the columns from `numbers` on are right-aligned."""
    rule = ["---" if place < numbers else "---:" for place in range(len(titles))]
    lines = [" | ".join(titles), "|".join(rule), *(" | ".join(row) for row in rows)]
    return [f"|{line}|" if place == 1 else f"| {line} |" for place, line in enumerate(lines)]


def percent(value: float, digits: int = 1) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.{digits}f}"


def reading(claim: pd.Series) -> str:
    """Bold if it is supported, italic if it is refuted, with a question mark if it is open; and the seeds."""
    number = f"{claim['reduction']:.1f} ± {claim['half-width']:.1f}".removesuffix(" ± nan").replace("-", "−")
    told = {"supported": f"**{number}**", "refuted": f"*{number}*", "open": f"{number} ?"}[claim["reading"]]
    return told if claim["seeds"] == ALL_SEEDS else f"{told} [{claim['seeds']}]"


def primary(claims: pd.DataFrame) -> list[str]:
    """The two claims by which the experiment stands or falls."""
    rows = []
    for name, claim in zip(("(a)", "(b)"), claims[:2].to_dict("records"), strict=True):
        low = claim["reduction"] - claim["half-width"]
        high = claim["reduction"] + claim["half-width"]
        rows.append(
            [
                f"{name} {claim['claim'].removeprefix('primary: ')}",
                f"{claim['error before']:.1f}",
                f"{claim['error after']:.1f}",
                f"{claim['reduction']:.1f} ± {claim['half-width']:.1f} ({low:.1f} to {high:.1f})",
                f"{claim['p']:.2g}",
                claim["others"].replace("-", "−"),
                f"**{claim['reading']}**",
            ]
        )
    titles = ["claim", "error before, %", "after, %", "reduction, points", "p", "checked", "reading"]
    return table(titles, rows)


def error_table(errors: pd.DataFrame, side: str) -> list[str]:
    """Of all rows and protocols, the mean over the seeds that have all rows."""
    chosen = whole(counted(errors, side.split("/")))
    means = chosen.groupby(["rule", "row", "protocol", "side"], sort=False)["error"].mean()
    protocols = list(chosen["protocol"].unique())
    rows = []
    for rule in chosen["rule"].unique():
        of_rule = chosen[chosen["rule"] == rule]
        seeds = of_rule["seed"].nunique()
        for row in of_rule["row"].unique():
            cells = [
                " / ".join(
                    percent(means.get((rule, row, each, part), float("nan"))) for part in side.split("/")
                )
                for each in protocols
            ]
            rows.append([rule, str(seeds), JUDGED[row], *cells])
    return table(["rule", "seeds", "model", *(f"`{each}`" for each in protocols)], rows, 3)


def explanations(maps: pd.DataFrame, best: str) -> list[str]:
    """How true each explanation is of two models, and what A says, where evidence adds up."""
    means = maps[maps["rule"] == "additive"].groupby(["row", "map"], sort=False).mean(numeric_only=True)
    columns = [("none", "truth", 2), ("none", "A, pixels", 0), ("none", f"A, {best}", 0)]
    columns += [("judge", "A, pixels", 0), ("fpa", "truth", 2), ("fpa", "A, pixels", 0)]
    rows = []
    for name in means.loc["none"].sort_values("truth", ascending=False).index:
        cells = [f"{means.loc[(row, name), column]:.{digits}f}" for row, column, digits in columns]
        rows.append([shown_name(name), *(cell.replace("-", "−") for cell in cells)])
    return table(["explanation", *(f"{JUDGED[row]}: {column}" for row, column, _ in columns)], rows)


def shown_name(name: str) -> str:
    return estimator_name(name) if name.endswith(("_sum", "_abs")) else name.removeprefix("cam:")


def by_rule(claims: pd.DataFrame, about: Mapping[str, str], first: str) -> list[str]:
    """A row for each before and after of these claims, a column for each rule."""
    rules = list(claims["rule"].unique())
    rows = []
    for name, words in about.items():
        chosen = claims[claims["claim"] == name]
        for (before, after), group in chosen.groupby(["before", "after"], sort=False):
            cells = {claim["rule"]: reading(claim) for _, claim in group.iterrows()}
            rows.append([f"{words}{before} → {after}", *(cells[rule] for rule in rules)])
    return table([first, *rules], rows)


def by_protocol(claims: pd.DataFrame, about: Mapping[str, str]) -> list[str]:
    """A row for each rule and protocol, a column for each of these claims."""
    rows = []
    for rule in claims["rule"].unique():
        of_rule = claims[claims["rule"] == rule]
        protocols = of_rule["after"].map(lambda way: way.split(", ")[1])
        for protocol in protocols[of_rule["claim"].isin(about)].unique():
            cells = []
            for name in about:
                found = of_rule[(of_rule["claim"] == name) & (protocols == protocol)]
                cells.append(reading(found.iloc[0]) if len(found) else "–")
            rows.append([rule, f"`{protocol}`", *cells])
    return table(["rule", "protocol", *about.values()], rows, 2)


def secondary(claims: pd.DataFrame) -> dict[str, list[str]]:
    """All other claims, in groups."""
    other = claims[2:]
    equal = {"the twin as a judge": "judged by the twin"}
    equal |= {f"{row} at equal protocol": JUDGED[row] for row in ("twin", "fpa", "fpa-squares", "rectangle")}
    pieces = {
        f"larger or blurred pieces against pixels, judged by {who}": f"judged by {who}"
        for who in ("itself", "the twin")
    }
    kinds = {
        "without signed-unsigned pairs": "without signed-unsigned pairs",
        "explanations alone": "explanations alone",
        "over the data set": "over the data set",
        "inside of cues": "inside of cues",
    }
    checks = {f"the twin as a judge, {kind}": f"{words}: " for kind, words in kinds.items()}
    at_best = {
        f"the best untouched protocol against pixels, {row}, {kind}": f"{words}: "
        for row in ("none", "judge")
        for kind, words in kinds.items()
    }
    return {
        "equal": by_protocol(other, equal),
        "pieces": by_protocol(other, pieces),
        "untouched": by_rule(other, {"the twin against the best untouched protocol": ""}, "before → after"),
        "checks": by_rule(other, checks, "pairs: before → after"),
        "checks of pieces": by_rule(other, at_best, "pairs: before → after"),
        "mif": by_rule(other, {"A against MIF alone, judged by itself": ""}, "before → after"),
    }


def predictors(tables: Tables, phases: Mapping[str, list[int]]) -> dict[str, list[str]]:
    """What says which evaluations err."""
    every = evaluations(tables)
    parts = {name: every[every["seed"].isin(seeds)] for name, seeds in phases.items()}
    of_phase = [list(correlations(part)) for part in parts.values()]
    ranks = []
    for cells in zip(*of_phase, strict=True):
        rule = cells[0][0]
        told = [" / ".join(signed(each[2][name]) for each in cells) for name in PREDICTORS]
        ranks.append([rule, cells[0][1], *told])
    verdicts = []
    chosen = []
    for name, part in parts.items():
        for rule in part["rule"].unique():
            group = part[part["rule"] == rule]
            means = errors_by_verdict(group)
            gain, half, seeds = gain_of_reliable(group)
            difference = f"{signed(100 * gain, 1)} ± {100 * half:.1f} [{seeds}]".replace(" ± nan", "")
            told = [f"{percent(mean)} ({count})" for mean, count in (means[each] for each in VERDICTS)]
            verdicts.append([rule, name, *told, difference])
            found = choices(group[group["row"] == "none"])
            chosen.append([rule, name, *(percent(value) for value in found.values())])
    return {
        "predictors": table(["rule", "compared", *PREDICTORS.values()], ranks, 2),
        "verdicts": table(["rule", "seeds", *VERDICTS, "fewer errors where *reliable*"], verdicts, 2),
        "choices": table(
            [
                "rule",
                "seeds",
                "`pixels`",
                "any",
                "fewest opposite pairs",
                "most logit kept",
                "lowest possible",
            ],
            chosen,
            2,
        ),
    }


def by_seed(errors: pd.DataFrame, best: str, phases: Mapping[str, list[int]]) -> list[str]:
    """By how much the error fell in every seed that was measured, explored ones too."""
    compared = [(("none", "pixels"), ("judge", "pixels")), (("none", "pixels"), ("none", best))]
    compared += [(("none", best), ("judge", best)), (("none", best), ("judge", "pixels"))]
    rows = []
    for before, after in compared:
        for rule in errors["rule"].unique():
            of_rule = counted(errors, ["A"])
            chosen = (
                of_rule[of_rule["rule"] == rule].set_index(["row", "protocol", "seed"])["error"].sort_index()
            )
            falls = 100 * (chosen[before] - chosen[after])
            cells = [
                ", ".join("–" if pd.isna(falls.get(seed)) else signed(falls[seed], 1) for seed in seeds)
                for seeds in phases.values()
            ]
            rows.append([f"{', '.join(before)} → {', '.join(after)}", rule, *cells])
    titles = [f"{name}: {', '.join(str(seed) for seed in seeds)}" for name, seeds in phases.items()]
    return table(["before → after", "rule", *titles], rows, 2)


def signed(value: float, digits: int = 2) -> str:
    return "–" if pd.isna(value) else f"{value:+.{digits}f}".replace("-", "−")


def leftovers(tables: Tables) -> dict[str, list[str]]:
    """What was counted and left out, over all confirming seeds."""
    contradictions = tables["contradictions"].drop_duplicates(["rule", "seed", "row"])
    rows = []
    for rule in contradictions["rule"].unique():
        cells = []
        for row in MODELS:
            chosen = contradictions[(contradictions["rule"] == rule) & (contradictions["row"] == row)]
            images = chosen["images"].sum()
            cells.append(f"{images - chosen['right'].sum()} of {images}")
        rows.append([rule, *cells])
    failed = contradictions[at_chance(contradictions)]
    named = [f"{row['rule']}, seed {row['seed']}, {JUDGED[row['row']]}" for _, row in failed.iterrows()]
    wrong = table(["rule", *(JUDGED[row] for row in MODELS)], rows)
    wrong += ["", f"Models not above chance by two standard errors: {'; '.join(named) or 'none of them'}."]
    return {"wrong": wrong, "left out": _left_out(tables)}


def _left_out(tables: Tables) -> list[str]:
    errors = tables["errors"]
    whole = errors[(errors["side"] == "A") & (errors["protocol"] == "pixels") & (errors["over"] == "image")]
    rows = []
    for truth, pairs in (
        ("truth", "all"),
        ("truth_cues", "all"),
        ("truth_parts", "all"),
        ("truth", "explanations"),
    ):
        found = whole[(whole["truth"] == truth) & (whole["pairs"] == pairs) & whole["row"].isin(MODELS)]
        counts = [int(found[name].sum()) for name in ("counted", "close", "missing")]
        rows.append([f"{pairs} pairs, `{truth}`, five models", *(f"{each:,}" for each in counts), "", ""])
    table_of = tables["comparisons"]
    for width in ("0.1", "0.025"):
        found = table_of[
            (table_of["comparison"] == "none, fpa")
            & (table_of["protocol"] == "pixels")
            & (table_of["side"] == "A")
            & (table_of["truth"] == "truth")
            & table_of["pairs"].str.endswith(f" {width}")
        ]
        counts = [int(found[name].sum()) for name in ("counted", "close", "missing", "unlike", "thin")]
        rows.append([f"none and FPA matched, bins of {width}", *(f"{each:,}" for each in counts)])
    return table(
        ["pairs", "counted", "within the noise", "without a value", "unlike gaps", "thin bins"], rows
    )


def extras(folder: Path) -> dict[str, list[str]]:
    """What other scripts made, where it is there."""
    found = {"pets": ["Not measured yet."], "more": ["Not measured yet."]}
    if (folder / "pets.csv").exists():
        found["pets"] = pets(pd.read_csv(folder / "pets.csv"))
    if (folder / "more.csv").exists():
        found["more"] = more(pd.read_csv(folder / "more.csv"))
    return found


def pets(errors: pd.DataFrame) -> list[str]:
    """The errors of A on photos, seed by seed."""
    chosen = counted(errors, ["A"])
    protocols = list(chosen["protocol"].unique())
    rows = []
    for row in chosen["row"].unique():
        cells = []
        for protocol in protocols:
            seeds = chosen[(chosen["row"] == row) & (chosen["protocol"] == protocol)].sort_values("seed")
            cells.append(", ".join(percent(error) for error in seeds["error"]))
        rows.append([JUDGED[row], *cells])
    return table(["model", *(f"`{each}`" for each in protocols)], rows)


def more(errors: pd.DataFrame) -> list[str]:
    """The errors of other protocols and scores, each with that of A by pixels on the same pairs."""
    found = errors[
        (errors["truth"] == "truth") & (errors["pairs"] == "all") & errors["side"].isin(["A", "value"])
    ]
    models = list(found["row"].unique())
    rows = []
    for (kind, name), group in found.groupby(["kind", "name"], sort=False):
        by_row = group.set_index("row")
        cells = [
            f"{percent(by_row['error'][row])} ({percent(by_row['A by pixels'][row])})"
            if row in by_row.index
            else "–"
            for row in models
        ]
        shown = f"A, `{name}`" if kind == "protocol" else f"`{name}`"
        rows.append([shown, *cells, f"{group['maps'].max():.0f}"])
    lines = table(["evaluation", *(JUDGED.get(row, row) for row in models), "maps"], rows)
    left_out = errors[errors["counted"] == 0].drop_duplicates("name")
    told = [f"`{row['name']}` ({row['note']})" for _, row in left_out.iterrows()]
    return [*lines, "", f"Left out: {', '.join(told)}."] if told else lines


def sections(folder: Path, experiment: Experiment) -> dict[str, list[str]]:
    """Every table of the page by its mark."""
    settings = experiment.settings
    every = {name: pd.read_csv(folder / path_of(name)) for name in TABLES}
    phases = {"exploring": settings["exploring"], "confirming": settings["confirming"]}
    tables = {name: each[each["seed"].isin(settings["confirming"])] for name, each in every.items()}
    claims = pd.read_csv(folder / "claims.csv")
    return {
        "primary": primary(claims),
        "errors": error_table(tables["errors"], "A"),
        "explanations": explanations(tables["maps"], settings["best_untouched"]),
        "sides": error_table(tables["errors"], "MIF/LIF"),
        **secondary(claims),
        **predictors(every, phases),
        "by seed": by_seed(every["errors"], settings["best_untouched"], phases),
        **leftovers(tables),
        **extras(folder),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("docs/results/truth"))
    options = parser.parse_args()
    experiment = Experiment.read()
    page = options.tables.with_suffix(".md")
    text = filled(page.read_text(encoding="utf-8"), sections(options.tables, experiment))
    page.write_text(text, encoding="utf-8")
    errors = pd.read_csv(options.tables / path_of("errors"))
    draw(errors[errors["seed"].isin(experiment.settings["confirming"])], options.tables / "errors.png")


if __name__ == "__main__":
    main()
