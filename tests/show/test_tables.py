"""The tables say what was measured, in every form."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fpa.show.tables import (
    comparison,
    comparison_table,
    headline,
    latex,
    markdown,
    opposite_pairs,
    results_table,
    terminal,
)
from fpa.study.read import published
from fpa.study.recipe import load_recipe
from studies import made_up_study


@pytest.fixture(scope="module")
def study():
    return made_up_study()


def test_the_csv_has_every_number(study):
    rows = list(csv.DictReader(io.StringIO(results_table(study).to_csv(index=False))))
    assert len(rows) == 3 * 10
    for row in rows:
        score = study.models[row["augmentation"]].fidelity[row["estimator"]]
        assert float(row["area"]) == pytest.approx(score.area)
        assert float(row["interval"]) == pytest.approx(score.interval)
        assert float(row["interval_unpaired"]) == pytest.approx(score.interval_unpaired)
        assert float(row["area_mean_then_divide"]) == pytest.approx(score.area_mean_then_divide)
        assert float(row["area_lif"]) - float(row["area_mif"]) == pytest.approx(score.area)
        assert int(row["images_used"]) == 40
    kinds = {row["estimator"]: row["kind"] for row in rows}
    assert [name for name, kind in kinds.items() if kind == "signed"] == ["ig_sum", "vgx_sum", "sgx_sum"]
    assert kinds["random"] == "baseline"
    assert kinds["sqsg_sum"] == "unsigned"


def test_the_best_of_each_augmentation_is_bold(study):
    bold = [cell.strip() for line in markdown(study).splitlines() for cell in line.split("|") if "**" in cell]
    best = [max(model.fidelity.values(), key=lambda score: score.area) for model in study.models.values()]
    cells = [cell for cell in bold if "±" in cell]
    assert sorted(cells) == sorted(f"**{score.area:.1f} ± {score.interval:.1f}**" for score in best)
    assert latex(study).count("\\mathbf{") == 3


def test_the_headline_counts_contradictions(study):
    text = headline(study)
    for name, shown in (("none", "None"), ("fpa", "FPA")):
        pairs = [p for p in study.models[name].reliability.pairs if p.kind == "signed-unsigned"]
        opposite = sum(pair.opposite for pair in pairs)
        significant = sum(pair.contradiction for pair in pairs)
        assert f"{shown} {opposite} of 18 ({significant})" in text
    assert text in markdown(study)


def test_latex_has_as_many_cells_in_every_line(study):
    lines = [line for line in latex(study).splitlines() if "&" in line]
    assert {line.count("&") for line in lines} == {3}
    assert "MIF against LIF" in latex(study)
    assert "fully masked image" in latex(study)
    assert "VG$'$\\textsubscript{sum}" in latex(study)


def test_notes_of_latex_stand_below_the_table_where_they_wrap(study):
    table, notes = latex(study).split("\\end{tabular}")
    assert "half-width" not in table
    assert "half-width" in notes
    assert "\\linewidth" in notes
    assert "\\usepackage{booktabs}" in table.splitlines()[0]


def test_it_fits_a_terminal_of_80_columns(study):
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(terminal(study))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "SQ-SG_sum" in text
    assert text.index("signed") < text.index("unsigned")


def test_published_numbers_stand_beside_ours(study):
    papers = published(load_recipe("cifar10"))
    assert papers["fpa"]["sgx_sum"] == (80.5, 0.6)
    assert papers["none"]["vg_abs"] == (5.6, 0.6)
    assert published(load_recipe("shapes")) == {}
    beside = replace(study, published=papers)
    ours = study.models["fpa"].fidelity["sgx_sum"].area
    assert f"80.5 ({ours - 80.5:+.1f})" in markdown(beside)
    table = results_table(beside).set_index(["augmentation", "estimator"])
    assert table.loc[("fpa", "sgx_sum"), "difference"] == pytest.approx(ours - 80.5)
    difference = f"{ours - 80.5:+.1f}"
    assert f"$80.5\\ ({difference})$" in latex(beside)  # in mathematics: a minus, not a hyphen
    assert {line.count("&") for line in latex(beside).splitlines() if "&" in line} == {5}


def test_studies_side_by_side(study):
    other = replace(study, recipe=load_recipe("shapes", {"seed": 1}))
    table = comparison_table([study, other])
    assert list(table["study"].unique()) == ["shapes seed 0", "shapes seed 1"]
    assert len(table) == 60


def test_studies_of_one_name_and_seed_are_told_apart_by_their_folders(study):
    studies = [replace(study, folder=Path("runs") / name) for name in ("a", "b")]
    titles = list(comparison_table([*studies, replace(study, name="other")])["study"].unique())
    assert titles == ["shapes seed 0 (runs/a)", "shapes seed 0 (runs/b)", "other"]


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_comparison_fits_80_columns_with_all_its_words(study, count):
    studies = [replace(study, folder=Path("a-folder/with-a-rather-long-name") / str(n)) for n in range(count)]
    console = Console(width=80, file=io.StringIO(), record=True, force_terminal=True)
    console.print(comparison(studies))
    styled = console.export_text(clear=False, styles=True)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    pairs, opposite, significant = opposite_pairs(study)["fpa"]
    assert f"FPA {opposite} of {pairs} ({significant})" in " ".join(" ".join(lines).split())
    rows = [line.split() for line in lines]
    assert [row[0] for row in rows if row and row[0] in ("None", "Rectangle", "FPA")][-3:] == [
        "None", "Rectangle", "FPA",
    ]  # fmt: skip
    best = max(study.models["fpa"].fidelity.values(), key=lambda score: score.area)
    shown = f"{best.area:.1f} ± {best.interval:.1f}" if count <= 4 else f"{best.area:.1f}"
    assert len(re.findall(rf"\x1b\[1m *{re.escape(shown)}", styled)) == count


def test_a_comparison_groups_by_sign_and_says_where_there_is_nothing_to_count(study):
    unsigned = replace(study, name="plain", signed=dict.fromkeys(study.signed, False))
    models = {
        name: replace(m, reliability=replace(m.reliability, pairs=())) for name, m in study.models.items()
    }
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(comparison([replace(unsigned, models=models)]))
    text = console.export_text()
    assert "plain: no such pairs" in text
    assert "\nunsigned" in text
    assert "\nsigned" not in text


def test_the_footnote_follows_the_recipe(study):
    black = replace(study, recipe=load_recipe("shapes", {"evaluation.reference": "black"}))
    assert "start from black" in markdown(black)
    assert "fully masked image" in markdown(study)


def test_published_numbers_are_left_out_when_the_recipe_is_not_the_papers():
    assert published(load_recipe("cifar10", {"training.epochs": 50})) == {}
    assert published(load_recipe("cifar10", {"seed": 3})) != {}


def test_a_zero_has_no_sign(study):
    models = dict(study.models)
    score = replace(models["fpa"].fidelity["random"], area=-0.04)
    models["fpa"] = replace(models["fpa"], fidelity={**models["fpa"].fidelity, "random": score})
    assert "-0.0" not in markdown(replace(study, models=models))
