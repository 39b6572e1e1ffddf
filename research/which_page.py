"""Fills docs/which.md at its marks, from the stored tables of truth_tables.py and truth_claims.py.

    python research/which_page.py

Run it again when these tables have changed.
"""

import argparse
from pathlib import Path

import pandas as pd

from cifar10_conclusions import filled
from fpa.evaluation.recommended import RECOMMENDED
from truth import Experiment
from truth_page import percent, reading, table
from truth_predictors import counted
from truth_tables import path_of

PEOPLE = {
    "none": "cannot change the model",
    "judge": "can fine-tune a twin that judges its maps",
    "fpa": "train it with FPA from the start",
}
PROTOCOLS = ("pixels", "pixels+blur", "1/8", "1/8+blur", "1/4+blur", "segments:60+blur")
SIDES = {"A": "A, from both", "MIF": "MIF alone", "LIF": "LIF alone"}
RULES = {
    "additive": "evidence adds up",
    "redundant": "each of two cues is enough",
    "joint": "it takes two cues together",
}
INSTEAD = "larger or blurred pieces against pixels, judged by itself"
JUDGED = "the twin as a judge"


def by_person(means: pd.Series) -> list[str]:
    """The errors of A for those who can change their model and those who cannot; the least is bold."""
    rows = []
    for row, who in PEOPLE.items():
        found = {protocol: means[row, protocol, "A"] for protocol in PROTOCOLS}
        least = min(percent(error) for error in found.values())
        cells = [percent(error) for error in found.values()]
        rows.append([who, *(f"**{cell}**" if cell == least else cell for cell in cells)])
    return table(["you", *(f"`{each}`" for each in PROTOCOLS)], rows)


def by_curve(means: pd.Series) -> list[str]:
    """The errors of one curve beside those of both, of a model that nobody changed."""
    shown = ("pixels", RECOMMENDED)
    rows = [[title, *(percent(means["none", each, side]) for each in shown)] for side, title in SIDES.items()]
    return table(["judged by", *(f"`{each}`" for each in shown)], rows)


def by_rule(claims: pd.DataFrame) -> list[str]:
    """By how much the error falls with blurred patches and with a twin, wherever it was measured."""
    rows = []
    for rule, meaning in RULES.items():
        found = claims[claims["rule"] == rule]
        falls = [
            _fall(found, INSTEAD, f"none, {RECOMMENDED}"),
            _fall(found, JUDGED, "judge, pixels"),
            _fall(found, JUDGED, f"judge, {RECOMMENDED}"),
        ]
        rows.append([meaning, *falls])
    patches = f"`{RECOMMENDED}` in place of `pixels`"
    return table(["where", patches, "a twin judges, `pixels`", f"a twin judges, `{RECOMMENDED}`"], rows)


def _fall(claims: pd.DataFrame, about: str, after: str) -> str:
    # The first primary claim is the one about the twin by pixels where evidence adds up.
    known = claims["claim"].isin([about, "primary: the twin judges better than the original"])
    return reading(claims[known & (claims["after"] == after)].iloc[0])


def sections(folder: Path) -> dict[str, list[str]]:
    """Every table of the page by its mark."""
    errors = pd.read_csv(folder / path_of("errors"))
    errors = errors[errors["seed"].isin(Experiment.read().settings["confirming"])]
    added = counted(errors, list(SIDES)).query("rule == 'additive'")
    means = added.groupby(["row", "protocol", "side"])["error"].mean()
    claims = pd.read_csv(folder / "claims.csv")
    return {"you": by_person(means), "curves": by_curve(means), "rules": by_rule(claims)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("docs/results/truth"))
    parser.add_argument("--page", type=Path, default=Path("docs/which.md"))
    options = parser.parse_args()
    text = filled(options.page.read_text(encoding="utf-8"), sections(options.tables))
    options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
