"""The tables say what was measured, in every form."""

import csv
import io
import re
from dataclasses import replace
from html import unescape
from itertools import combinations, groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from fpa.errors import printable
from fpa.evaluation.rankings import best, worse_than_best
from fpa.evaluation.result import Results
from fpa.explanation import Label
from fpa.notes import Kind, Note, Severity
from fpa.show import STAGES, rivals, scope, show_all, summary, tables, words, write_comparison
from fpa.show.names import estimator_name, estimator_names, model_name
from fpa.show.summary import opposite_pairs
from fpa.show.tables import (
    column_of,
    comparison,
    comparison_table,
    headline,
    latex,
    markdown,
    notebook,
    results_table,
    terminal,
)
from fpa.statistics.intervals import holm, paired_test
from studies import made_up_evaluation, made_up_study, with_plan, with_rivals, with_score, with_signs


def printed(thing):
    """What a terminal of 80 columns shows."""
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(terminal(thing) if isinstance(thing, Results) else thing)
    return console.export_text()


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


def without_contradictions(study):
    """The study as if MIF and LIF agreed on every pair."""
    models = {
        name: replace(
            model,
            reliability=replace(
                model.reliability,
                pairs=tuple(replace(pair, contradiction=False) for pair in model.reliability.pairs),
            ),
        )
        for name, model in study.models.items()
    }
    return replace(study, models=models)


def test_the_best_is_not_bold_where_it_cannot_be_ordered_against_another(study):
    """Its A is surely the largest, but on two of its pairs MIF and LIF contradict each other."""
    for name, model in study.models.items():
        champion = best(model)
        assert all(p < 0.05 for p in worse_than_best(model).values())
        against = {
            other
            for pair in model.reliability.contradictions
            if champion in (pair.first, pair.second)
            for other in (pair.first, pair.second)
        }
        assert len(against) == 3
        cells = column_of(study, name).cells
        assert {key for key, cell in cells.items() if cell.tied} == against
        assert not any(cell.best for cell in cells.values())


def test_the_best_of_each_augmentation_is_bold(study):
    study = without_contradictions(study)
    bold = [cell.strip() for line in markdown(study).splitlines() for cell in line.split("|") if "**" in cell]
    best = [max(model.fidelity.values(), key=lambda score: score.area) for model in study.models.values()]
    cells = [cell for cell in bold if "±" in cell]
    assert sorted(cells) == sorted(f"**{score.area:.1f} ± {score.interval:.1f}**" for score in best)
    assert latex(study).count("\\mathbf{") == 3


def test_what_is_not_significantly_best_is_tied_and_not_bold():
    few = made_up_study(images=2)
    text = markdown(few)
    assert not any("**" in cell and "±" in cell for line in text.splitlines() for cell in line.split("|"))
    for name, model in few.models.items():
        ties = {best(model), *(one for one, p in worse_than_best(model).items() if p >= 0.05)}
        cells = column_of(few, name).cells
        assert len(ties) > 1
        assert {one for one, cell in cells.items() if cell.tied} == ties
        assert f"| {cells[best(model)].text} = |" in text
    assert "^{=}" in latex(few)


@pytest.mark.parametrize(("images", "seen"), [(40, "!"), (3, "=")])
def test_the_matrix_holds_the_paired_tests(images, seen):
    study = made_up_study(images=images)
    model = study.models["fpa"]
    rows, names = scope.matrix(study, "fpa"), model.reliability.by_area
    pairs = list(combinations(names, 2))
    tests = [paired_test(model.fidelity[b], model.fidelity[a]) for a, b in pairs]
    unsure = {pair for pair, p in zip(pairs, holm([test.p for test in tests]), strict=True) if p >= 0.05}
    against = {frozenset((pair.first, pair.second)) for pair in model.reliability.contradictions}
    assert {"!": against, "=": unsure}[seen]
    for (a, b), test in zip(pairs, tests, strict=True):
        mark = "!" if frozenset((a, b)) in against else "=" if (a, b) in unsure else ""
        assert rows[names.index(b)][1][names.index(a)] == f"{test.difference:+.1f}{mark}"
    assert f"| 2 {rows[1][0]} | {rows[1][1][0]} |" in markdown(study)


def test_a_terminal_shows_the_matrix_and_which_comparisons_hold():
    one = made_up_evaluation()
    shown = printed(terminal(one))
    assert max(map(len, shown.splitlines())) <= 80
    said = " ".join(shown.split())
    assert scope.TITLE in said
    assert scope.MARKS in said
    facts = {note.kind: note for note in one.first.reliability.facts(most=6)}
    mixed = one.first.reliability.counts("signed-unsigned")
    assert (mixed.pairs, mixed.opposite, mixed.significant) == (18, 11, 11)
    assert {Kind.NOT_CONSISTENT, Kind.CONTRADICTIONS} <= set(facts)
    reader = words.Reader(estimator_names(one))
    assert words.sentence(facts[Kind.NOT_CONSISTENT], reader) in said
    unordered = words.sentence(facts[Kind.CONTRADICTIONS], reader)
    assert unordered not in said  # the matrix shows them; table.md names them
    assert unordered in markdown(one)


def test_a_terminal_has_few_notes_where_files_have_all(study):
    many = study
    for number in range(5):
        many = with_score(many, f"score{number}")
    notes = printed(many).split("SQ-SG_sum", 1)[1].partition("\n\n")[0]  # the answer stands apart
    below = notes.splitlines()[1:]
    assert len(below) <= 14
    assert any(line.startswith("5 further scores") for line in below)
    assert f"score4 is {many.score_titles['score4'].title}" in markdown(many)


def test_heads_that_are_not_centred_share_a_line_in_a_terminal(study):
    values = {"offset": 0.24, "estimator": "ig_sum", "areas": (1.0, 2.0), "opposite": (3.0, 4.0)}
    note = Note(Kind.OFFSET_MATTERS, Severity.WARNING, values)
    off = replace(study, models={name: replace(model) for name, model in study.models.items()})
    for model in off.models.values():
        vars(model)["head"] = SimpleNamespace(facts=(note,), offset=0.24)
    said = " ".join(printed(off).split())
    (line,) = summary.doubts(off, brief=True)
    assert line.startswith("none, rectangle, fpa: ")
    assert f"note: {line}" in said
    assert words.clause(note) not in said
    assert words.clause(note) in unescape(notebook(off.models["fpa"]))


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
    assert "Opposite order" in latex(study)
    assert all(line in latex(study) for line in summary.references(study))
    assert "VG$'$\\textsubscript{sum}" in latex(study)


def test_notes_of_latex_stand_below_the_table_where_they_wrap(study):
    table, notes = latex(study).split("\\end{tabular}")
    assert "half-width" not in table
    assert "half-width" in notes
    assert "\\linewidth" in notes
    assert "\\usepackage{booktabs}" in table.splitlines()[0]


def test_it_fits_a_terminal_of_80_columns(study):
    text = printed(study)
    assert max(map(len, text.splitlines())) <= 80
    assert "SQ-SG_sum" in text
    assert text.index("\nsigned") < text.index("\nunsigned")


def test_published_numbers_stand_beside_ours(study):
    papers = {"fpa": {"sgx_sum": (80.5, 0.6)}, "none": {"vg_abs": (5.6, 0.6)}}
    beside = replace(study, published=papers)
    ours = study.models["fpa"].fidelity["sgx_sum"].area
    difference = f"{ours - 80.5:+.1f}"
    assert f"80.5 ({difference})" in markdown(beside)
    table = results_table(beside).set_index(["model", "estimator"])
    assert table.loc[("fpa", "sgx_sum"), "difference"] == pytest.approx(ours - 80.5)
    assert f"$80.5\\ ({difference})$" in latex(beside)  # in mathematics: a minus, not a hyphen
    assert {line.count("&") for line in latex(beside).splitlines() if "&" in line} == {5}


def test_studies_side_by_side(study):
    table = comparison_table([study, with_plan(study, seed=1)])
    assert list(table["study"].unique()) == ["shapes seed 0", "shapes seed 1"]
    assert len(table) == 60


def test_studies_of_one_name_and_seed_are_told_apart_by_their_folders(study):
    studies = [replace(study, folder=Path("runs") / name) for name in ("a", "b")]
    titles = list(comparison_table([*studies, replace(study, name="other")])["study"].unique())
    assert titles == ["shapes seed 0 (runs/a)", "shapes seed 0 (runs/b)", "other"]


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_comparison_fits_80_columns_with_all_its_words(study, count):
    study = without_contradictions(study)
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
    unsigned = replace(with_signs(study, "unsigned"), name="plain")
    models = {
        name: replace(m, reliability=replace(m.reliability, pairs=())) for name, m in unsigned.models.items()
    }
    text = printed(comparison([replace(unsigned, models=models)]))
    assert "plain: no such pairs" in text
    assert "\nunsigned" in text
    assert "\nsigned" not in text


def test_the_footnote_follows_the_plan(study):
    estimators = study.first.plan["estimators"]
    raw = {"name": "ig", "steps": 200, "reference": "black"}
    black = {name: each | ({"raw": raw} if "raw" in each else {}) for name, each in estimators.items()}
    by_name = with_plan(study, estimators=black)
    (start,) = summary.references(by_name)
    raw = raw | {"reference": {"name": "fpa.masking:Constant", "value": -1.0}}  # how a plan stores it
    filled = {name: each | ({"raw": raw} if "raw" in each else {}) for name, each in estimators.items()}
    other = with_plan(study, estimators=filled)
    (constant,) = summary.references(other)
    recipe = study.recipe | {"evaluation": {"reference": "black"}}
    assert summary.references(replace(other, recipe=recipe)) == [start]
    (masked,) = summary.references(study)
    for results, line in ((by_name, start), (other, constant), (study, masked)):
        assert [each in markdown(results) for each in (start, constant, masked)].count(True) == 1
        assert line in markdown(results)
    none = {name: {key: each[key] for key in ("sign", "label")} for name, each in estimators.items()}
    assert summary.references(with_plan(study, estimators=none)) == []


def test_a_zero_has_no_sign(study):
    models = dict(study.models)
    score = replace(models["fpa"].fidelity["random"], area=-0.04)
    models["fpa"] = replace(models["fpa"], fidelity={**models["fpa"].fidelity, "random": score})
    assert "-0.0" not in markdown(replace(study, models=models))


class TestScores:
    """A further score is shown everywhere, without a line about it in the package."""

    @pytest.fixture
    def scored(self, study):
        return with_score(study, "depth", higher_is_better=False)

    def test_in_the_csv(self, scored):
        rows = results_table(scored).set_index(["model", "estimator"])
        for name, model in scored.models.items():
            for estimator, values in model.evaluation.values["depth"].items():
                half = 1.96 * values.std(ddof=1) / 40**0.5
                row = rows.loc[(name, estimator)]
                assert row["score_depth"] == pytest.approx(values.mean())
                assert row["score_depth_interval"] == pytest.approx(half)

    @pytest.mark.parametrize("form", [markdown, latex, lambda results: printed(results)])
    def test_in_every_table_beside_the_models(self, scored, form):
        text = form(scored)
        assert f"depth ({summary.direction(scored.score_titles['depth'])})" in text
        full = "depth is how deep it goes (lower is better; Doe 2030)." in " ".join(text.split())
        assert full == (form in (markdown, latex))  # a terminal says less
        mean = scored.models["fpa"].evaluation.values["depth"]["sqsg_sum"].mean()
        assert f"{mean:.5f}" in text

    def test_the_best_is_the_lowest_where_lower_is_better(self, scored):
        below = markdown(scored).split("## depth")[1]
        bold = [line for line in below.splitlines() if "**" in line]
        assert [line.split("|")[1].strip() for line in bold] == ["IG_sum"]  # random takes no part

    def test_as_a_column_of_a_single_model(self):
        one = with_score(made_up_evaluation())
        header = next(line for line in markdown(one).splitlines() if line.startswith("| estimator"))
        assert header == "| estimator | A | depth |"
        assert "estimator" in printed(one)
        assert {"score_depth", "score_depth_interval"} <= set(one.first.table().columns)
        assert "<th>depth</th>" in notebook(one.first)
        assert {line.count("&") for line in latex(one).splitlines() if "&" in line} == {2}

    def test_in_a_comparison_where_some_lack_it(self, scored, study):
        text = printed(comparison([scored, replace(study, name="other")]))
        assert text.count("depth") == 1
        assert text.endswith("Other scores, in comparison.csv: depth.\n")
        assert len(re.findall("IG_sum", text)) == 3  # A, once for each training
        assert {"score_depth"} <= set(comparison_table([scored, study]).columns)


class TestEvaluations:
    """A model that was trained elsewhere is shown like a study."""

    def test_its_own_word_for_the_augmentation_is_shown(self):
        own = made_up_evaluation(augmentation="mixup & more")
        for text in (markdown(own), printed(own)):
            assert re.search(r"trained with \W*mixup & more", text)
            assert "None" not in text
        assert "mixup \\& more" in latex(own)
        assert set(results_table(own)["augmentation"]) == {"mixup & more"}
        assert "trained with" not in printed(made_up_evaluation())

    def test_variants_say_what_they_were_trained_with(self, study):
        fpa = study.models["fpa"]
        strong = replace(fpa, name="strong")
        text = printed(replace(study, models={"none": study.models["none"], "strong": strong}))
        assert re.search(r"estimator +None +strong", text)
        assert re.search(r"trained with +None +FPA", text)

    def test_models_evaluated_alone_are_compared_side_by_side(self):
        several = [made_up_evaluation("first"), made_up_evaluation("second")]
        text = printed(comparison(several))
        assert re.search(r"accuracy +95.0 % +95.0 %", text)
        assert len(re.findall("IG_sum", text)) == 1

    def test_a_model_stands_beside_the_variant_trained_alike(self, study):
        text = printed(comparison([study, made_up_evaluation(augmentation="fpa")]))
        block = text.split("\nFPA")[1]
        assert re.search(r"accuracy +95.0 % +95.0 %", block)

    def test_a_notebook_shows_names_as_text(self):
        odd = made_up_evaluation("a <b>net</b>")
        html = notebook(odd.first)
        assert "a &lt;b&gt;net" in html
        assert "SQ-SG<sub>sum</sub>" in html
        assert f"{odd.first.fidelity['ig_sum'].area:.1f} ±" in html

    def test_says_when_patches_were_removed(self):
        patches = made_up_evaluation(features=8)
        (line,) = summary.removed(patches)
        assert "8 x 8" in line
        assert line in " ".join(printed(patches).split())
        assert summary.removed(made_up_evaluation()) == []


def test_everything_is_written_or_only_some(tmp_path):
    results = made_up_evaluation()
    written = show_all(results, tmp_path, "fpa do it")
    assert tuple(written) == STAGES
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(path for paths in written.values() for path in paths)
    assert {path.name for path in files} >= {"table.csv", "table.md", "table.tex", "report.html", "ranks.pdf"}
    assert next(csv.DictReader((tmp_path / "table.csv").open()))["estimator"] == "random"
    assert list(show_all(results, tmp_path / "some", only=["tables"])) == ["tables"]
    assert len(list((tmp_path / "some").iterdir())) == 3


def test_a_comparison_removes_overviews_that_do_not_apply(study, tmp_path):
    written = write_comparison([study, made_up_evaluation()], tmp_path)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    assert "overview-signed.png" in {path.name for path in written}
    write_comparison([with_signs(study, "unsigned")], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "comparison.csv", "overview-unsigned.pdf", "overview-unsigned.png",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("style", "shown"),
    [("text", "My_Net'_abs"), ("html", "My_Net′<sub>abs</sub>"), ("latex", r"My\_Net$'$\textsubscript{abs}")],
)
def test_an_estimator_is_called_by_the_parts_of_its_label(style, shown):
    assert estimator_name("x", style, label=Label("x", "My_Net", True, "abs")) == shown
    assert estimator_name("plain") == "plain"
    assert estimator_name("a_long_name", "mathtext", most=6) == "a_lon…"


@pytest.fixture(scope="module")
def challenged():
    return with_rivals(made_up_study(variants=("none", "fpa")))


class TestRivals:
    """Whether explanations beat maps that know no model, and their own maps blurred."""

    @pytest.mark.parametrize("form", [markdown, latex, lambda results: notebook(results.first)])
    def test_in_every_table(self, challenged, form):
        shown = " ".join(unescape(form(challenged)).replace("\\_", "_").split())
        found = challenged.first.beats.model_free
        beaten = sum(rival.beaten for rival in found.values())
        assert 0 < beaten < 9
        assert (found["sg_abs"].name, found["sg_abs"].beaten) == ("centre", False)
        assert not challenged.first.beats.twin["ig_sum"].beaten
        free = challenged.first.description.plan.model_free
        lines = rivals.sentences(challenged.first.beats, free, estimator_names(challenged))
        assert len(lines) == 3
        assert all(line in shown for line in lines)

    def test_in_the_csv(self, challenged):
        rows = results_table(challenged).set_index(["model", "estimator"])
        for name, model in challenged.models.items():
            assert rows.loc[(name, "sg_abs"), "p_model_free"] == model.beats.model_free["sg_abs"].p
            assert rows.loc[(name, "ig_sum"), "p_twin"] == model.beats.twin["ig_sum"].p
            assert rows.loc[(name, ["centre", "ig_sum~"]), "p_model_free"].isna().all()
        assert rows.loc[("none", "ig_sum~"), "kind"] == "twin"

    def test_they_stand_apart_and_are_never_the_best(self, challenged):
        groups = summary.groups(challenged)
        assert (groups["Baseline"], groups["Blurred twin"]) == (["random", "centre"], ["ig_sum~"])
        assert challenged.estimators == [name for names in groups.values() for name in names]
        bold = [line for line in markdown(challenged).splitlines() if "| **" in line]
        assert not any("Centre" in line or "blurred" in line for line in bold)

    def test_in_a_comparison_and_the_report(self, challenged, tmp_path):
        shown = " ".join(printed(comparison([challenged])).split())
        assert all(line in shown for line in rivals.brief(challenged))
        page = challenged.first.report(tmp_path / "report.html").read_text(encoding="utf-8")
        lines = rivals.beaten(challenged.first.results)
        assert len(lines) > 2
        assert all(line in unescape(page) for line in lines)

    def test_a_terminal_counts_them(self, challenged):
        shown = " ".join(printed(challenged).split())
        _, free, twins = rivals.brief(challenged)
        for name, model in challenged.models.items():
            beaten = sum(rival.beaten for rival in model.beats.model_free.values())
            assert f"{model_name(name)} {beaten} of 9" in free
            assert f"{model_name(name)} 0 of 1" in twins
        assert free in shown
        assert twins in shown

    def test_random_alone_is_called_a_weak_rival(self, study):
        shown = " ".join(markdown(study).split())
        assert all(rival.beaten for rival in study.first.beats.model_free.values())
        free = study.first.description.plan.model_free
        *_, weak = rivals.rules(study.first.beats, free)
        assert shown.count(weak) == 1
        assert weak not in rivals.rules(study.first.beats, [*free, "centre"])


HOSTILE = "=cmd|'/c'!A1\\input{x} <img src=x>|\x1b]0;owned\x07\n$q %"


@pytest.fixture(scope="module")
def hostile():
    study = made_up_evaluation(name=HOSTILE)
    estimators = study.first.plan["estimators"]
    label = {"name": HOSTILE, "prime": False, "reduction": "abs"}
    changed = with_plan(study, estimators=estimators | {"ig_sum": estimators["ig_sum"] | {"label": label}})
    return with_score(changed, title=HOSTILE, source=HOSTILE)


def test_names_are_text_in_latex_and_nothing_else(hostile):
    text = tables.latex(hostile)
    assert "\\input" not in text
    assert "\\textbackslash{}input" in text
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)\$q|(?<!\\)%(?! For)", text)


def test_names_stay_in_their_cell_in_markdown_without_html(hostile):
    text = tables.markdown(hostile)
    assert "<" not in text
    groups = groupby(text.splitlines(), lambda line: line.startswith("|"))
    by_table = [list(rows) for is_table, rows in groups if is_table]
    assert len(by_table) == 1 + len(hostile.models)  # that of A, and the paired tests of every model
    for rows in by_table:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_no_cell_of_a_csv_file_is_a_formula(hostile):
    text = tables.csv_text(tables.results_table(hostile))
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert f"'{printable(HOSTILE)}" in cells
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)
    assert not any(cell.startswith("-") and not cell[1:2].isdigit() for cell in cells)


def test_no_escape_byte_of_a_name_reaches_the_terminal(hostile):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    console.print(tables.terminal(hostile), tables.comparison([hostile, hostile]))
    assert "\x1b]0" not in console.file.getvalue()
    assert "\\x1b]0" in console.file.getvalue()
