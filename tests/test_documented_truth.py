"""The page of truth by intervention shows what its scripts make of the stored tables."""

import math
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from fpa.evaluation.recommended import ERRORS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "truth"
CONFIRMING = [10, 11, 12, 13, 14]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))


@pytest.fixture(scope="module")
def errors():
    return pd.read_csv(RESULTS / "errors.csv.gz")


@pytest.fixture(scope="module")
def stored_claims():
    return pd.read_csv(RESULTS / "claims.csv")


def t_interval(values):
    """The mean and half the width of its 95 % interval."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1)
    return mean, stats.t.ppf(0.975, len(values) - 1) * math.sqrt(variance / len(values))


def falls(errors, rule, before, after, **which):
    """By how many points the error falls from one row and protocol to another, seed by seed."""
    wanted = {"rule": rule, "truth": "truth", "pairs": "all", "over": "image", "side": "A"} | which
    rows = errors.to_dict("records")

    def error(seed, row, protocol):
        keys = wanted | {"seed": seed, "row": row, "protocol": protocol}
        (found,) = (each for each in rows if all(each[name] == value for name, value in keys.items()))
        return found["error"]

    return [100 * (error(seed, *before) - error(seed, *after)) for seed in CONFIRMING]


@pytest.mark.parametrize(
    ("about", "rule", "before", "after"),
    [
        ("primary: the twin judges better than the original", "additive", "none, pixels", "judge, pixels"),
        ("the twin as a judge", "additive", "none, 1/8+blur", "judge, 1/8+blur"),
        (
            "larger or blurred pieces against pixels, judged by itself",
            "redundant",
            "none, pixels",
            "none, 1/4",
        ),
    ],
)
def test_a_claim_is_the_plain_t_interval_over_the_confirming_seeds(
    errors, stored_claims, about, rule, before, after
):
    chosen = stored_claims[
        (stored_claims["claim"] == about)
        & (stored_claims["rule"] == rule)
        & (stored_claims["before"] == before)
        & (stored_claims["after"] == after)
    ]
    (claim,) = chosen.to_dict("records")
    mean, half = t_interval(falls(errors, rule, before.split(", "), after.split(", ")))
    assert claim["reduction"] == pytest.approx(mean, abs=0.006)
    assert claim["half-width"] == pytest.approx(half, abs=0.006)
    alone = "supported" if mean - half > 2 else "refuted" if mean + half < 2 else "open"
    if not about.startswith("primary"):  # whose p are corrected
        assert claim["by truth alone"] == alone
    assert claim["reading"] in (alone, "open")


def test_the_second_primary_claim_is_that_of_the_matched_pairs(stored_claims):
    table = pd.read_csv(RESULTS / "comparisons.csv.gz").to_dict("records")
    wanted = {
        "rule": "additive",
        "comparison": "none, fpa",
        "protocol": "pixels",
        "side": "A",
        "truth": "truth",
        "pairs": "ladders, matched, bins of 0.1",
    }
    rows = [row for row in table if all(row[name] == value for name, value in wanted.items())]
    values = [100 * (row["first"] - row["second"]) for row in rows if row["seed"] in CONFIRMING]
    assert len(values) == 5
    mean, half = t_interval(values)
    claim = stored_claims.iloc[1]
    assert (claim["reduction"], claim["half-width"]) == pytest.approx((mean, half), abs=0.006)


def test_the_stored_claims_are_those_of_the_stored_tables(stored_claims, tmp_path):
    from truth import Experiment
    from truth_claims import judged, read_tables

    again = pd.DataFrame(judged(Experiment.read(), read_tables(RESULTS, CONFIRMING)))
    again.to_csv(tmp_path / "claims.csv", index=False)
    assert (tmp_path / "claims.csv").read_bytes() == (RESULTS / "claims.csv").read_bytes()


def test_a_claim_of_fewer_seeds_than_were_planned_is_open(stored_claims):
    fewer = stored_claims[stored_claims["seeds"] < len(CONFIRMING)]
    assert set(fewer["reading"]) <= {"open"}
    assert list(stored_claims["seeds"][:2]) == [5, 5]


def test_a_seed_with_a_model_at_chance_has_no_result():
    from truth import Experiment
    from truth_claims import claims, read_tables

    tables = read_tables(RESULTS, CONFIRMING)
    first, second = list(claims(Experiment.read()))[:2]
    assert [len(before) for before, _ in first.measured(tables)] == [5, 5]
    table = tables["contradictions"].copy()
    table.loc[(table["seed"] == 11) & (table["rule"] == "additive") & (table["row"] == "fpa"), "right"] = 0
    tables["contradictions"] = table
    assert {len(before) for before, _ in first.measured(tables)} == {5}  # it is not about that model
    assert {len(before) for before, _ in second.measured(tables)} == {4}


def test_the_page_shows_the_stored_tables(tmp_path, monkeypatch):
    import truth_page

    shutil.copytree(RESULTS, tmp_path / "truth")
    page = RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    emptied = re.sub(r"(<!-- table: [^\n]*-->\n).*?(\n<!-- end)", r"\1\2", page, flags=re.DOTALL)
    assert emptied.count("\n| additive") == 0
    (tmp_path / "truth.md").write_text(emptied, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["truth_page.py", "--tables", str(tmp_path / "truth")])
    truth_page.main()
    assert (tmp_path / "truth.md").read_text(encoding="utf-8") == page


def test_the_stored_tables_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 3_000_000


EVALUATIONS = pd.DataFrame(
    [
        (0, "none", "pixels", "unreliable", 9, 0.30),
        (0, "none", "1/8", "reliable", 2, 0.20),
        (0, "fpa", "pixels", "reliable", 0, 0.25),
        (0, "fpa", "1/8", "cannot tell", 5, 0.15),
        (1, "none", "pixels", "unreliable", 8, 0.32),
        (1, "none", "1/8", "reliable", 1, 0.20),
        (1, "fpa", "pixels", "reliable", 1, 0.22),
        (1, "fpa", "1/8", "reliable", 4, 0.18),
    ],
    columns=["seed", "row", "protocol", "verdict", "at most", "error"],
).assign(rule="additive")
OTHERS = {"opposite": 0, "surely": 0, "lost": [0.1, 0.2] * 4, "rank of verdict": 0}


def test_reliable_is_held_against_unreliable_seed_by_seed():
    from truth_predictors import errors_by_verdict, gain_of_reliable

    assert errors_by_verdict(EVALUATIONS)["cannot tell"] == (pytest.approx(0.15), 1)
    mean, half, seeds = gain_of_reliable(EVALUATIONS)
    assert (mean, half) == pytest.approx(t_interval([0.225 - 0.225, 0.32 - 0.20]))
    assert seeds == 2
    assert gain_of_reliable(EVALUATIONS[EVALUATIONS["verdict"] == "reliable"])[2] == 0


def test_predictors_are_correlated_within_their_groups():
    from truth_predictors import correlations

    found = {name: ranks for _, name, ranks in correlations(EVALUATIONS.assign(**OTHERS))}
    # In both seeds: opposite pairs 9, 2, 0, 5 and 8, 1, 1, 4, of errors in the order 4, 2, 3, 1.
    both = [stats.spearmanr([9, 2, 0, 5], [4, 2, 3, 1])[0], stats.spearmanr([8, 1, 1, 4], [4, 2, 3, 1])[0]]
    assert found["all evaluations"]["at most"] == pytest.approx(sum(both) / 2)
    assert found["protocols of one model"]["at most"] == pytest.approx((1 - 1 + 1 - 1) / 4)
    assert found["models by one protocol"]["at most"] == pytest.approx((1 - 1 + 1 - 1) / 4)
    assert found["protocols of one model"]["lost"] == pytest.approx(-1)
    assert math.isnan(found["all evaluations"]["surely"])  # does not vary


def test_a_protocol_is_chosen_by_what_an_audit_shows_not_by_the_truth():
    from truth_predictors import choices

    found = choices(EVALUATIONS[EVALUATIONS["row"] == "fpa"].assign(lost=[0.1, 0.2, 0.2, 0.2]))
    assert found["fewest opposite"] == pytest.approx((0.25 + 0.22) / 2)
    assert found["most kept"] == pytest.approx((0.25 + (0.22 + 0.18) / 2) / 2)  # of equals, any
    assert found["lowest"] == pytest.approx((0.15 + 0.18) / 2)
    assert found["any"] == pytest.approx((0.20 + 0.20) / 2)


def test_the_errors_that_come_with_the_recommended_protocol_are_those_of_the_stored_tables(errors):
    shown = errors[
        (errors["rule"] == "additive")
        & errors["seed"].isin(CONFIRMING)
        & (errors["truth"] == "truth")
        & (errors["pairs"] == "all")
        & (errors["over"] == "image")
        & (errors["side"] == "A")
    ]
    means = shown.groupby(["protocol", "row"])["error"].mean()
    rows = {"untouched": "none", "twin": "judge", "trained": "fpa"}
    assert set(ERRORS) == set(shown["protocol"])
    for protocol, known in ERRORS.items():
        for name, row in rows.items():
            assert getattr(known, name) == pytest.approx(means[protocol, row], abs=0.0006), (protocol, row)
