"""Scores set against each other: the best, how surely, which agree, and how people see it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import fpa
from fpa.evaluation.rankings import best, rank_correlations, worse_than_best
from fpa.progress import as_text
from fpa.show import figures
from fpa.show.report import write_report
from fpa.show.tables import markdown, results_table, terminal
from fpa.statistics import holm
from studies import described, made_up_study, with_score


@pytest.fixture(scope="module")
def results():
    """A made-up study with two scores that put the estimators in the same order, each good its own way."""
    study = with_score(made_up_study(), "depth")
    return with_score(study, "shallow", higher_is_better=False)


def test_a_paired_test_is_over_the_images_that_have_both_values(results):
    model = results.models["fpa"]
    names = list(model.signed)[:2]
    values = {name: each.copy() for name, each in model.evaluation.values["depth"].items()}
    values[names[0]][[1, 4]] = np.nan
    holes = replace(model.evaluation, values=model.evaluation.values | {"depth": values})
    model = replace(model, evaluation=holes)
    known = np.isfinite(values[names[0]]) & model.fidelity[names[0]].kept & model.fidelity[names[1]].kept
    test = model.paired_test(*names, score="depth")
    expected = stats.ttest_rel(values[names[0]][known], values[names[1]][known])
    assert (test.p, test.used) == (pytest.approx(expected.pvalue), known.sum())
    assert model.paired_test(*names).p == pytest.approx(
        fpa.paired_test(model.fidelity[names[0]], model.fidelity[names[1]]).p
    )
    with pytest.raises(fpa.InputError, match="unknown score 'dept': did you mean 'depth'"):
        model.paired_test(*names, score="dept")


def test_the_best_is_compared_with_every_other_explanation(results):
    model = results.models["fpa"]
    deep = best(model, "depth")
    assert deep == [*model.evaluation.mif][-1]  # the mean grows with the place
    others = [name for name in model.signed if name != deep]
    plain = [model.paired_test(deep, name, "depth").p for name in others]
    found = worse_than_best(model, "depth")
    assert [found[name] for name in others] == pytest.approx(holm(plain).tolist())
    table = results_table(results).query("model == 'fpa'").set_index("estimator")
    assert table["score_depth_p"][others[0]] == pytest.approx(found[others[0]])
    assert np.isnan(table["score_depth_p"][deep])


def test_scores_agree_whichever_way_each_is_good(results):
    model = results.models["none"]
    names, matrix = rank_correlations(model)
    assert names == ["A", "depth", "shallow"]
    assert matrix[0, 0] == 1
    assert matrix[1, 2] == matrix[2, 1] == -1  # the same order, but one is good high and the other low
    explanations = [*model.signed]
    area = [model.fidelity[name].area for name in explanations]
    depth = [model.scores["depth"][name].mean for name in explanations]
    assert matrix[0, 1] == pytest.approx(stats.spearmanr(area, depth).statistic)
    assert model.score_correlations().loc["depth", "shallow"] == -1


def without(results, score, names, images=()):
    """The results without a score of some estimators, and of some images of the others."""
    models = {}
    for key, model in results.models.items():
        values = {name: each.copy() for name, each in model.evaluation.values[score].items()}
        for name, each in values.items():
            each[slice(None) if name in names else list(images)] = np.nan
        models[key] = replace(
            described(model, scores_left_out={"idsds": "needs something else"}),
            evaluation=replace(model.evaluation, values=model.evaluation.values | {score: values}),
        )
    return replace(results, models=models)


def test_what_has_no_value_is_shown_so_and_counted(results, tmp_path):
    gappy = without(results, "depth", ["vg_abs"], images=[0, 2])
    text = markdown(gappy)
    row = next(line for line in text[text.index("## depth") :].splitlines() if line.startswith("| VG_abs"))
    assert set(row.replace("| VG_abs", "").split()) == {"|", "–"}
    assert "depth has no value for VG_abs." in text
    assert "depth has no value for up to 2 images, which it leaves out." in text
    assert "The score idsds needs something else." in text
    html = write_report(gappy, tmp_path / "report.html").read_text()
    assert "depth has no value for VG_abs" in html
    assert "How far the scores agree" in html
    assert "−1.00" in html
    assert "is surely better than" in html


def test_the_heat_map_has_a_panel_per_model_and_a_number_per_pair(results):
    figure = figures.score_agreement(results)
    panels = [axis for axis in figure.axes if axis.images and axis.texts]
    assert len(panels) == len(results.models)
    for panel, model in zip(panels, results.models.values(), strict=True):
        names, matrix = rank_correlations(model)
        assert [label.get_text() for label in panel.get_xticklabels()] == names
        np.testing.assert_allclose(panel.images[0].get_array(), matrix)
        assert [text.get_text() for text in panel.texts] == [f"{value:.1f}" for value in matrix.ravel()]


def test_many_scores_fit_into_a_terminal_of_80_columns(results):
    for name in ("first", "second", "third"):
        results = with_score(results, name)
    model = results.models["fpa"]
    lines = str(replace(model, name="alone")).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("estimator") for line in lines) == 2


def test_many_scores_of_several_models_leave_a_in_the_terminal_and_the_rest_to_the_report(results):
    for name in ("first", "second"):
        results = with_score(results, name)
    text = as_text(terminal(results))
    assert [line.split()[0] for line in text.splitlines() if "±" in line].count("IG_sum") == 1
    assert "4 further scores: see the report and table.md." in " ".join(text.split())
    assert "## second (higher is better)" in markdown(results)
