"""The stored results of the CIFAR-10 studies still show what the documentation says."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fpa.auditing.areas import read_areas
from fpa.auditing.rule import Evidence, judge
from fpa.statistics.intervals import Estimate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "cifar10"


@pytest.fixture(scope="module")
def checked():
    sys.path.insert(0, str(ROOT / "research"))
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


TITLES = {"none": "None", "rectangle": "Rectangle", "fpa": "FPA"}


@pytest.mark.parametrize("table", sorted(RESULTS.parent.glob("*/seed-*/table.md")), ids=str)
def test_marks_of_stored_tables_are_those_of_the_tests_of_all_pairs(checked, table):
    """Bold is alone above all others; "=" marks the best and what cannot be ordered against it."""
    rows = [line.strip("| ").split(" | ") for line in table.read_text().splitlines() if line[:1] == "|"]
    titles = rows[0]
    cells = {row[0]: dict(zip(titles, row, strict=False)) for row in reversed(rows)}
    for training, found in checked.read_results(table.parent).reliability.items():
        best = found.by_area[0]
        pairs = [pair for pair in found.pairs if best in (pair.first, pair.second)]
        unordered = {pair.first for pair in pairs if pair.order in ("tie", "contradiction")}
        unordered |= {pair.second for pair in pairs if pair.order in ("tie", "contradiction")}
        marked = dict.fromkeys(unordered, "=") or {best: "*"}
        for estimator in found.by_area:
            last = cells[checked.estimator_name(estimator)][TITLES[training]].strip()[-1]
            assert last == marked.get(estimator, last)
            assert (last in "=*") == (estimator in marked)


def test_the_page_shows_the_stored_results(checked, tmp_path, monkeypatch, capsys):
    shutil.copytree(RESULTS, tmp_path / "cifar10")
    page = RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    emptied = re.sub(r"(-->\n)\n\|.*?(\n<!-- end)", r"\1\2", page, flags=re.DOTALL)
    assert emptied.count("\n|") == 0
    (tmp_path / "cifar10.md").write_text(emptied, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["cifar10_conclusions.py", str(tmp_path / "cifar10")])
    assert checked.main() == 0
    assert (tmp_path / "cifar10.md").read_text(encoding="utf-8") == page


def test_food101_shows_what_its_page_says(checked, tmp_path, monkeypatch, capsys):
    shutil.copytree(RESULTS.parent / "food101", tmp_path / "food101")
    page = (RESULTS.parent / "food101.md").read_text(encoding="utf-8")
    (tmp_path / "food101.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["cifar10_conclusions.py", str(tmp_path / "food101")])
    assert checked.main() == 1  # three limits of CIFAR-10 are not reached at 64 px
    assert (tmp_path / "food101.md").read_text(encoding="utf-8") == page
    results = checked.read_results(tmp_path / "food101" / "seed-0")
    pairs = {name: found.pairs for name, found in results.reliability.items()}
    counts = {
        name: sum(pair.contradiction for pair in found if pair.kind == "signed-unsigned")
        for name, found in pairs.items()
    }
    assert counts == {"none": 14, "rectangle": 18, "fpa": 0}


def test_the_page_of_audits_shows_the_stored_ones_by_the_rule_of_now(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    from audit_table import row

    page = (ROOT / "docs" / "results" / "audit.md").read_text(encoding="utf-8")
    folder = ROOT / "docs" / "results" / "audit"
    before = sorted((folder / "before").glob("*.json"))
    assert len(before) == 10
    for path in (*before, *folder.glob("*.json")):
        old = path in before
        assert "| " + " | ".join(row(path, None if old else folder / "before")) + " |" in page
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = stored["evidence"]
        evidence = Evidence(
            **{name: found[name] for name in ("images", "used", "accuracy", "labels", "contradictions")},
            chance=0.1 if old else found["chance"],
            change=None if old else Estimate(**found["change"]),
            signed=3,
            unsigned=6,
            opposite=Estimate(**found["opposite"]),
            kept={int(share): Estimate(**kept) for share, kept in found["kept"].items()},
        )
        assert judge(evidence)[0] == stored["verdict"]
        augmentation = path.stem.partition("-")[2]
        if path.stem.startswith("seed"):
            assert (stored["verdict"] == "reliable") is (augmentation == "fpa")


@pytest.mark.parametrize(
    "stored",
    [
        "finetuning/cifar10",
        "imagenet/mobilenet_v2",
        "imagenet/efficientnet-lite0",
        "imagenet/efficientnet-lite2",
    ],
)
def test_the_pages_of_fine_tuning_show_the_stored_tables(stored, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    from finetuning import write_tables

    folder = ROOT / "docs" / "results"
    write_tables(pd.read_csv(folder / f"{stored}.csv"), tmp_path)
    page = (folder / stored).parent.with_suffix(".md").read_text(encoding="utf-8")
    table = (tmp_path / "table.md").read_text()
    if stored.startswith("imagenet/"):
        then, now = _verdict_rows(Path(stored).name, table)
        table = table.replace(then, f"{then.replace('| audit |', '| audit, rule of then |')}\n{now}")
    assert table in page


def _verdict_rows(network, table):
    """The row of verdicts in a table of fine-tuning, and that of the same audits by the rule of now."""
    from audit_table import judged_again

    (then,) = (line for line in table.splitlines() if line.startswith("| audit |"))
    cells = []
    for place in ("untouched", *(f"epochs-{epochs}" for epochs in (1, 2, 5, 10, 60))):
        path = ROOT / "docs" / "results" / "imagenet" / "audits" / f"{network}-{place}.json"
        stored = json.loads(path.read_text(encoding="utf-8"))
        again, sure = judged_again(stored)
        cells.append(f"{again} ({sure})" if again == stored["verdict"] else f"**{again}** ({sure})")
    return then, f"| audit now (pairs, for sure) | {' | '.join(cells)} |"


def test_the_page_of_audits_shows_the_stored_audits_of_imagenet_networks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    from audit_table import judged_again

    folder = ROOT / "docs" / "results"
    page = (folder / "audit.md").read_text(encoding="utf-8")
    paths = list((folder / "imagenet" / "audits").glob("*.json"))
    assert len(paths) == 18
    for path in paths:
        stored = json.loads(path.read_text(encoding="utf-8"))
        opposite = stored["evidence"]["opposite"]
        kept = stored["evidence"]["kept"]["10"]["value"]
        pairs = f"{opposite['value']:.0f} of 18 | {opposite['low']:.0f} to {opposite['high']:.0f}"
        again, sure = judged_again(stored)
        row = f"| {path.stem} | {stored['verdict']} | {pairs} | {100 * kept:.0f} | {again} | {sure} |"
        assert row in page
        interval = f"{opposite['low']:.0f} to {opposite['high']:.0f}"
        moved = f"| {path.stem} | {stored['verdict']} | {interval} | {again} | {sure} |"
        assert (moved in page) is (again != stored["verdict"])


def test_the_defaults_of_now_stand_beside_the_earlier_ones_as_they_are_stored():
    folder = ROOT / "docs" / "results"
    page = (folder / "imagenet.md").read_text(encoding="utf-8")
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    titles = {
        "mobilenet_v2": "MobileNetV2",
        "efficientnet-lite0": "EfficientNet-Lite0",
        "efficientnet-lite2": "EfficientNet-Lite2",
    }
    for name, title in titles.items():
        table = pd.read_csv(folder / "imagenet" / f"{name}.csv")
        assert len(table) == 6  # untouched, and after 1, 2, 5, 10 and 60 epochs
        for row in table.iloc[1:].to_dict("records"):
            change = f"{row['accuracy change']:+.1f}"
            today = f"{change}, {row['contradictions']} ({row['significant']}), {row['audit']}"
            assert lines[f"{title}, {row['model']}"].strip("| ").split(" | ")[-1] == today


def test_the_page_of_the_experiments_names_every_script_and_pages_that_exist():
    folder = ROOT / "research"
    page = (folder / "README.md").read_text(encoding="utf-8")
    for script in folder.glob("*.py"):
        assert f"`{script.name}`" in page
    for script in re.findall(r"python (research/\S+)", page):
        assert (ROOT / script).exists()
    for target in re.findall(r"\]\((.*?)\)", page):
        assert (folder / target).exists()


def test_the_page_of_speed_and_the_readme_show_the_stored_timings():
    stored = json.loads((RESULTS / "timings.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "performance.md").read_text(encoding="utf-8")
    lines = [line.replace("**", "").split("|")[2:-1] for line in page.splitlines() if line.startswith("| ")]
    rows = {row["stage"]: row for row in stored["rows"]}
    rows["figures"]["seconds"] += rows.pop("tables")["seconds"]
    for row, cells in zip(rows.values(), lines[1:], strict=False):
        expected = [f"{row['seconds']:.1f}"]
        expected += [f"{row[name]:.1f}" if row.get(name) else "" for name in ("of which compiling", "floor")]
        expected.append(f"{100 * row['share of the floor']:.0f} %" if row.get("floor") else "")
        expected.append(f"{row['others']:,.0f}" if row.get("others") else "")
        expected.append(f"{row['times as long']:.1f}" if row.get("others") else "")
        assert [cell.strip() for cell in cells] == expected
    gap, first = stored["gap"], 1 + len(rows) + 1
    for name, cells in zip(("gradients", "forwards"), lines[first:], strict=False):
        assert cells[0].strip() == f"{gap[name]['seconds']:.2f}"
        assert cells[1].split(",")[0].strip() == f"{gap[name]['floor']:.2f}"
    assert lines[first + 2][0].strip() == f"{gap['rest']:.2f}"
    assert lines[first + 3][0].strip() == f"{gap['seconds']:.2f}"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    whole, warm, steps = rows["all"], rows["evaluate rectangle"], stored["training"]
    assert f"{whole['seconds']:.0f} s (eager" in readme
    assert f"{whole['times as long']:.1f} times as long" in readme
    share = f"{100 * warm['share of the floor']:.0f} % of the floor"
    assert (
        f"{warm['seconds']:.0f} s, {share} (Captum and Quantus: {warm['times as long']:.0f} times" in readme
    )
    step = f"{steps['captured_three'] / 3:.2f} ms per model and step"
    assert f"{step} (eager: {steps['eager_one']:.1f} ms" in readme
    accuracy = pd.read_csv(RESULTS / "timed" / "table.csv").groupby("augmentation").accuracy.first() * 100
    assert "{none:.1f}, {rectangle:.1f} and {fpa:.1f} %".format(**accuracy) in page


def test_the_page_shows_the_verdicts_on_the_stored_areas(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "research")
    import verdicts

    stored = ROOT / "docs" / "results" / "areas"
    verdicts.main(["--judge", "--output", str(stored)])
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + len(list(stored.glob("*.parquet")))
    assert table in (ROOT / "docs" / "results" / "audit.md").read_text(encoding="utf-8")


def test_the_page_of_fine_tuning_shows_the_verdicts_on_the_stored_areas():
    """The tables of small networks and of labels: a verdict, and how many pairs are surely opposite."""
    page = (ROOT / "docs" / "results" / "finetuning.md").read_text(encoding="utf-8")
    small = page.split("### Small networks")[1].split("### Labels")[0]
    shown = [line.split("|")[4].strip() for line in small.splitlines() if line.count("|") == 8][2:]
    tuned = ("-tuned-model", "-tuned-labels")
    models = ["cifar10-small-none", "cifar10-small-none-tuned-model"]
    models += [f"{name}{way}" for name in ("shapes-none", "digits-none") for way in ("", *tuned)]
    labels = page.split("by the rule of now (in brackets")[1].split("Two changed")[0]
    rows = [line.strip("| ").split(" | ") for line in labels.splitlines() if line.startswith(("| 5", "| 10"))]
    models += [f"cifar10-tuned-{row[0]}-epochs-{rate}" for row in rows for rate in ("0.003", "0.01", "0.03")]
    shown += [cell for row in rows for cell in row[1:]]
    expected = []
    for model in models:
        evidence = read_areas(ROOT / "docs" / "results" / "areas" / f"{model}.parquet").evidence()
        _, low, high = evidence.opposite
        expected.append(f"{judge(evidence)[0]} ({low:.0f} to {high:.0f})")
    assert [cell.replace("*", "") for cell in shown] == expected


def test_caution_about_skewed_differences_changes_no_verdict_on_the_stored_areas(monkeypatch):
    """Stored p-values of models that are gone are Student's: the page may show them beside those of now."""
    stored = sorted((ROOT / "docs" / "results" / "areas").glob("*.parquet"))
    cautious = [read_areas(path).evidence().opposite for path in stored]
    monkeypatch.setattr("fpa.statistics.orders.shift_of_limits", lambda values: np.zeros(values.shape[:-1]))
    assert [read_areas(path).evidence().opposite for path in stored] == cautious


def test_the_page_of_the_audit_says_how_far_the_groups_lie_apart():
    """The difference of the mean areas of signed and unsigned estimators, in standard deviations within."""
    apart = {}
    for model in ("shapes-none", "cifar10-seed0-none", "cifar10-seed1-none", "cifar10-small-none"):
        found = read_areas(ROOT / "docs" / "results" / "areas" / f"{model}.parquet")
        judged = found.outputs["centred"]
        groups = [[name for name in found.signed if found.signed[name] == kind] for kind in (True, False)]
        for side in ("mif", "lif"):
            means = [
                [getattr(judged.areas[name], f"{side}_areas")[judged.usable].mean() for name in group]
                for group in groups
            ]
            within = sum(np.var(group) * len(group) for group in means) / (sum(map(len, means)) - 2)
            apart[model, side] = abs(np.mean(means[0]) - np.mean(means[1])) / within**0.5
    shapes = [f"{apart.pop(('shapes-none', side)):.1f} by {side.upper()}" for side in ("mif", "lif")]
    cifar = []
    for side in ("mif", "lif"):
        values = [value for (_, other), value in apart.items() if other == side]
        cifar.append(f"{min(values):.1f} to {max(values):.1f}")
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert f"`shapes-none` has {' and '.join(shapes)}" in page
    assert f"those of CIFAR-10 without augmentation {' and '.join(cifar)}." in page
