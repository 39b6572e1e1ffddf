"""Do contradictions, the audit's verdict or the logit kept say which evaluations err?

From the tables of research/truth_tables.py; `truth_page.py` shows what is found here. An *evaluation* is a
row (a model and its judge) and a protocol; its error is that of A over all pairs of maps of an image.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from fpa.statistics.intervals import t_test

VERDICTS = ("reliable", "cannot tell", "unreliable")
PREDICTORS = {
    "opposite": "opposite pairs",
    "surely": "surely opposite",
    "at most": "at most opposite",
    "lost": "logit lost",
    "rank of verdict": "verdict",
}
"""Columns, all such that more should mean more errors."""
WITHIN = {
    "all evaluations": ["rule", "seed"],
    "protocols of one model": ["rule", "seed", "row"],
    "models by one protocol": ["rule", "seed", "protocol"],
}


def counted(errors: pd.DataFrame, sides: list[str]) -> pd.DataFrame:
    """The errors that the plan is about: over all pairs of maps of an image, by the truth with background."""
    return errors[
        (errors["truth"] == "truth")
        & (errors["pairs"] == "all")
        & (errors["over"] == "image")
        & errors["side"].isin(sides)
    ]


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """The part of a table that is of cells with all rows: rows are then means over the same seeds."""
    rows = table.groupby(["rule", "seed"])["row"].transform("nunique")
    return table[rows == table["row"].nunique()]


def evaluations(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every evaluation with its error and what an audit says of it."""
    chosen = counted(tables["errors"], ["A"])
    keys = ["rule", "seed", "row", "protocol"]
    joined = tables["contradictions"].merge(chosen[[*keys, "error"]], on=keys, validate="one_to_one")
    joined["lost"] = 1 - joined["kept"]
    joined["rank of verdict"] = joined["verdict"].map(VERDICTS.index)
    return joined


def correlations(found: pd.DataFrame) -> Iterator[tuple[str, str, dict[str, float]]]:
    """For each rule and each way to group evaluations: Spearman of every predictor with the error.

    The mean over groups in which both vary; NaN where there is none.
    """
    for rule in found["rule"].unique():
        for name, keys in WITHIN.items():
            groups = [group for _, group in found[found["rule"] == rule].groupby(keys)]
            yield rule, name, {each: _mean_correlation(groups, each) for each in PREDICTORS}


def _mean_correlation(groups: list[pd.DataFrame], predictor: str) -> float:
    varied = [group for group in groups if group[predictor].nunique() > 1 and group["error"].nunique() > 1]
    ranks = [stats.spearmanr(group[predictor], group["error"]).statistic for group in varied]
    return float(np.mean(ranks)) if ranks else float("nan")


def errors_by_verdict(found: pd.DataFrame) -> dict[str, tuple[float, int]]:
    """The mean error of evaluations with each verdict, and their number."""
    groups = {verdict: found[found["verdict"] == verdict]["error"] for verdict in VERDICTS}
    return {verdict: (float(group.mean()), len(group)) for verdict, group in groups.items()}


def gain_of_reliable(found: pd.DataFrame) -> tuple[float, float, int]:
    """By how much *reliable* evaluations err less than the others.

    The mean over seeds that have both, half the width of its 95 % t interval, and their number.
    """
    reliable = found["verdict"] == "reliable"
    others = found[~reliable].groupby("seed")["error"].mean()
    gains = (others - found[reliable].groupby("seed")["error"].mean()).dropna()
    if len(gains) < 2:
        return float(gains.mean()), float("nan"), len(gains)
    test = t_test(gains.to_numpy())
    return test.difference, test.interval, len(gains)


def choices(found: pd.DataFrame) -> dict[str, float]:
    """The mean error over seeds of the protocol that a person would take; of equals, any."""
    errors = found.pivot_table(index="seed", columns="protocol", values="error", sort=False)

    def by(column: str) -> float:
        table = found.pivot_table(index="seed", columns="protocol", values=column, sort=False)
        taken = table.eq(table.min(axis=1), axis=0)
        return float(errors.where(taken).mean(axis=1).mean())

    return {
        "pixels": float(errors["pixels"].mean()),
        "any": float(errors.mean(axis=1).mean()),
        "fewest opposite": by("at most"),
        "most kept": by("lost"),
        "lowest": float(errors.min(axis=1).mean()),
    }
