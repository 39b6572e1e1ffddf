"""The stored results of the CIFAR-10 studies still show what the documentation says."""

import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from fpa.fidelity import Estimate
from fpa.trust import Evidence, judge

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "cifar10"


@pytest.fixture(scope="module")
def checked():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import cifar10_conclusions
    finally:
        sys.path.pop(0)
    return cifar10_conclusions


def test_every_conclusion_holds_for_every_seed(checked):
    seeds = sorted(RESULTS.glob("seed-*"))
    assert len(seeds) >= 2
    for folder in seeds:
        found = checked.conclusions(checked.read_results(folder))
        assert len(found) == 18
        assert [one.statement for one in found if not one.holds] == []


def test_a_conclusion_that_does_not_hold_is_found(checked):
    results = checked.read_results(RESULTS / "seed-0")
    results.scores["fpa"], results.scores["none"] = results.scores["none"], results.scores["fpa"]
    failed = [one.statement for one in checked.conclusions(results) if not one.holds]
    assert "FPA raises A of IG_sum at least 3-fold" in failed
    assert "with FPA every signed estimator beats every unsigned one" in failed


def test_the_areas_of_the_images_give_the_table(checked):
    results = checked.read_results(RESULTS / "seed-1")
    for row in results.table.to_dict("records"):
        score = results.scores[row["augmentation"]][row["estimator"]]
        assert score.area == pytest.approx(row["area"], abs=1e-3)
        assert score.interval == pytest.approx(row["interval"], abs=1e-3)


def test_the_page_shows_the_stored_results(checked, tmp_path, monkeypatch, capsys):
    shutil.copytree(RESULTS, tmp_path / "cifar10")
    page = RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    emptied = re.sub(r"(-->\n)\n\|.*?(\n<!-- end)", r"\1\2", page, flags=re.DOTALL)
    assert emptied.count("\n|") == 0
    (tmp_path / "cifar10.md").write_text(emptied, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["cifar10_conclusions.py", str(tmp_path / "cifar10")])
    assert checked.main() == 0
    assert (tmp_path / "cifar10.md").read_text(encoding="utf-8") == page


def test_the_page_of_audits_shows_the_stored_ones_by_the_rule_of_now(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from audit_table import row

    page = (ROOT / "docs" / "results" / "audit.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "docs" / "results" / "audit").glob("*.json"))
    assert len(files) == 10
    for path in files:
        assert "| " + " | ".join(row(path)) + " |" in page
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = stored["evidence"]
        evidence = Evidence(
            **{name: found[name] for name in ("images", "used", "classes", "accuracy", "labels")},
            **{name: found[name] for name in ("logit_change", "logit_spread", "pairs", "contradictions")},
            opposite=Estimate(**found["opposite"]),
            kept={int(share): Estimate(**kept) for share, kept in found["kept"].items()},
        )
        assert judge(evidence)[0] == stored["verdict"]
        augmentation = path.stem.partition("-")[2]
        if path.stem.startswith("seed"):
            assert (stored["verdict"] == "reliable") is (augmentation == "fpa")


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_the_page_of_fine_tuning_shows_the_stored_tables(name, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from finetuning import write_tables

    folder = ROOT / "docs" / "results"
    write_tables(pd.read_csv(folder / "finetuning" / f"{name}.csv"), tmp_path)
    assert (tmp_path / "table.md").read_text() in (folder / "finetuning.md").read_text(encoding="utf-8")


def test_the_page_of_speed_and_the_readme_show_the_stored_timings():
    stored = json.loads((RESULTS / "timings.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "performance.md").read_text(encoding="utf-8")
    shown = [
        [float(cell.replace(",", "")) for cell in re.findall(r"[\d,]*\d\.?\d*", line.partition("|")[2])]
        for line in page[: page.index("### Where")].splitlines()
        if line.startswith("| ") and re.search(r"\d", line)
    ]
    timed = [row for row in stored["rows"] if row["stage"] != "tables"]
    assert len(shown) == len(timed)
    for numbers, row in zip(shown, timed, strict=True):
        share = row.get("share of the floor")
        expected = [row["seconds"], row.get("of which compiling"), row.get("floor")]
        expected += [None if share is None else 100 * share, row.get("others"), row.get("times as long")]
        assert numbers == pytest.approx([value for value in expected if value], rel=0.02, abs=0.06)
    whole = stored["rows"][-1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{whole['seconds']:.0f} s (" in readme
    assert f"{whole['times as long']:.1f} times as long" in readme
    warm = stored["rows"][2]
    assert f"{warm['seconds']:.0f} s, {warm['share of the floor']:.0%}".replace("%", " %") in readme
    assert f"{warm['times as long']:.0f} times as long" in readme
    steps = stored["training"]
    assert f"{steps['captured_three'] / 3:.2f} ms a model and step" in readme
    assert f"eager: {steps['eager_one']:.1f} ms" in readme
