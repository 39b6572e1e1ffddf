"""Scores set against each other: the best, how surely, which agree, and how people see it."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import fpa
from fpa.evaluation.rankings import best, goodness, rank_correlations, ranked_maps, tied, worse_than_best
from fpa.progress import as_text
from fpa.show import figures, summary
from fpa.show.names import estimator_names
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


def test_the_best_is_compared_with_every_other_explanation_by_the_tests_of_all_pairs(results):
    model = results.models["fpa"]
    deep = best(model, "depth")
    assert deep == [*model.evaluation.mif][-1]  # the mean grows with the place
    others = [name for name in model.signed if name != deep]
    pairs = list(combinations(model.signed, 2))
    corrected = dict(zip(pairs, holm([model.paired_test(*pair, "depth").p for pair in pairs]), strict=True))
    found = worse_than_best(model, "depth")
    assert [found[name] for name in others] == pytest.approx(
        [next(p for pair, p in corrected.items() if {name, deep} == set(pair)) for name in others]
    )
    table = results_table(results).query("model == 'fpa'").set_index("estimator")
    assert table["score_depth_p"][others[0]] == pytest.approx(found[others[0]])
    assert np.isnan(table["score_depth_p"][deep])


def scored(results, score, values):
    """The first model with these values [N] of a score by explanation."""
    model = results.first
    both = model.evaluation.values | {score: model.evaluation.values[score] | values}
    return replace(model, evaluation=replace(model.evaluation, values=both))


def test_of_equally_good_explanations_none_is_called_worse_more_often_than_promised(results):
    """The best of nine is chosen by the data: against it alone one in eight tables would call one worse."""
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(100):
        same = {name: rng.normal(size=40) for name in results.first.signed}
        called += min(worse_than_best(scored(results, "depth", same), "depth").values()) < 0.05
    assert called <= 9  # 5 expected at most


def test_marks_of_a_table_and_of_the_matrix_come_from_the_same_tests(results):
    for model in results.models.values():
        agreement = model.reliability
        champion = best(model)
        orders = {
            (set(pair.unordered) - {champion}).pop(): pair.order
            for pair in map(Named, agreement.pairs)
            if champion in pair.unordered
        }
        cannot_be_ordered = {name for name, order in orders.items() if order in ("tie", "contradiction")}
        assert set(tied(model)) == {champion} | cannot_be_ordered
        p_area = {
            (set(pair.unordered) - {champion}).pop(): pair.p_area
            for pair in map(Named, agreement.pairs)
            if champion in pair.unordered
        }
        assert worse_than_best(model) == pytest.approx(p_area)


class Named:
    """A pair, whichever is first."""

    def __init__(self, pair):
        self.unordered = (pair.first, pair.second)
        self.order = pair.order
        self.p_area = pair.p_area


def test_three_hits_against_none_prove_nothing(results):
    first, second, *rest = results.first.signed
    nothing = np.full(40, np.nan)
    hits, misses = nothing.copy(), nothing.copy()
    hits[:3], misses[:3] = 1, 0
    values = {first: hits, second: misses} | dict.fromkeys(rest, misses) | {"random": misses}
    model = scored(results, "depth", values)
    test = model.paired_test(first, second, "depth")
    assert (test.difference, test.used) == (1, 3)
    assert test.p == stats.binomtest(3, 3).pvalue == 0.25
    assert test.interval > 0.5
    assert set(tied(model, "depth")) == set(model.signed)  # nor does a table print it in bold
    summary = model.scores["depth"][first]
    interval = stats.binomtest(3, 3).proportion_ci(method="wilson")
    assert (summary.mean, summary.used) == (1, 3)
    assert (summary.low, summary.high) == pytest.approx((interval.low, interval.high), abs=1e-3)
    assert f"1.00 ({interval.low:.2f} to 1.00)" in markdown(model.results)


@pytest.mark.parametrize("seed", range(3))
def test_hits_and_misses_are_compared_by_mcnemars_test(results, seed):
    rng = np.random.default_rng(seed)
    values = {
        name: (rng.random(40) < 0.3 + 0.06 * k).astype(float) for k, name in enumerate(results.first.fidelity)
    }
    model = scored(results, "depth", values)
    first, *_, second = model.signed
    won = int((values[first] > values[second]).sum())
    lost = int((values[first] < values[second]).sum())
    assert model.paired_test(first, second, "depth").p == pytest.approx(
        stats.binomtest(won, won + lost).pvalue
    )


def test_means_are_ranked_over_the_images_that_all_have(results):
    """The second is better on every image, but has no value on those that are easy for both."""
    first, second, *rest = results.first.signed
    easy = np.arange(40) >= 10
    ours = np.where(easy, 9.0, 1.0)
    theirs = np.where(easy, np.nan, 2.0)
    model = scored(results, "depth", {first: ours, second: theirs} | dict.fromkeys(rest, ours * 0))
    assert model.scores["depth"][first].mean > model.scores["depth"][second].mean
    assert goodness(model, "depth")[first] == 1
    assert best(model, "depth") == second
    names, matrix = rank_correlations(model)
    by_area = goodness(model, "A")
    by_depth = goodness(model, "depth")
    both = [[by[name] for name in model.signed] for by in (by_area, by_depth)]
    assert matrix[0, names.index("depth")] == pytest.approx(stats.spearmanr(*both).statistic)


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


def test_correlations_say_over_how_many_explanations_they_are(results):
    lacking = without(results, "depth", [*results.first.signed][3:]).first
    counts = ranked_maps(lacking)
    names, _ = rank_correlations(lacking)
    depth = names.index("depth")
    every = len(lacking.signed)
    assert [counts[0, 0], counts[0, depth], counts[depth, 0], counts[depth, depth]] == [every, 3, 3, 3]


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
    for model in gappy.models.values():
        lacking = {name: 40 - each.used for name, each in model.scores["depth"].items()}
        assert lacking == {name: 40 if name == "vg_abs" else 2 for name in lacking}
    html = write_report(gappy, tmp_path / "report.html").read_text()
    lines = summary.without_value(gappy, estimator_names(gappy))
    assert len(lines) == 3  # no value of VG_abs, of two images, and a score that is missing
    for line in lines:
        assert line in text
        assert line in html
    assert 'id="agreement"' in html
    assert "−1.00" in html
    for model in gappy.models.values():
        worse = worse_than_best(model, "depth")
        assert f" {sum(p < 0.05 for p in worse.values())} of {len(worse)} others" in html


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
    assert "4 further scores" in " ".join(text.split())
    assert f"## second ({summary.direction(results.score_titles['second'])})" in markdown(results)
