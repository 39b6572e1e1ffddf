import base64
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from browsers import open_page
from fpa.evaluation.rankings import best, tied
from fpa.evaluation.result import Result
from fpa.notes import Kind, Note
from fpa.scores.fidelity import Fidelity, common_images
from fpa.show import figures, rivals, scope, summary, words
from fpa.show.names import estimator_looks, model_looks
from fpa.show.report import Meaning, explorer, finding, verdict, write_report
from fpa.statistics.contradictions import reliability
from fpa.statistics.intervals import Estimate
from studies import SIGNED, described, made_up_evaluation, made_up_study, with_plan, with_score

ODD = "a <b>bold</b> & odd name"


@pytest.fixture(scope="module")
def study():
    return made_up_study()


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    return write_report(study, tmp_path_factory.mktemp("report") / "report.html", "fpa run shapes")


def html_of(study, folder, **arguments):
    return write_report(study, folder / "report.html", **arguments).read_text(encoding="utf-8")


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def changed(study, name, **changes):
    """The study with one model changed."""
    return replace(study, models=study.models | {name: replace(study.models[name], **changes)})


def with_counts(study, **counts):
    """The study with its models' numbers of oppositely ordered pairs, each (value, low, high), made up."""
    for name, count in counts.items():
        now = study.models[name].reliability
        opposite = now.opposite | {"signed-unsigned": Estimate(*map(float, count))}
        study = changed(study, name, reliability=replace(now, opposite=opposite))
    return study


class TestVerdict:
    @pytest.mark.parametrize(
        ("none", "fpa", "meaning", "still_mostly"),
        [
            ((17, 16, 18), (0, 0, 1), Meaning.LESS_OFTEN, False),
            ((18, 18, 18), (11, 10, 12), Meaning.LESS_OFTEN, True),
            ((6, 4, 8), (2, 1, 5), Meaning.PERHAPS_LESS_OFTEN, False),
            ((6, 4, 8), (6, 5, 7), Meaning.AS_OFTEN, False),
            ((0, 0, 1), (0, 0, 0), Meaning.NEVER, False),
            ((2, 1, 3), (3, 2, 4), Meaning.PERHAPS_MORE_OFTEN, False),
            ((2, 1, 3), (9, 8, 9), Meaning.MORE_OFTEN, False),
            ((10, 9, 11), (12, 12, 13), Meaning.MORE_OFTEN, False),
        ],
    )
    def test_follows_from_the_counts(self, study, none, fpa, meaning, still_mostly):
        found = finding(with_counts(study, none=none, fpa=fpa, rectangle=(1, 1, 1)))
        assert (found.kind, found.pairs) == ("signed-unsigned", 18)
        assert list(found.opposite.items()) == [("none", none), ("fpa", fpa)]
        assert (found.meaning, found.still_mostly) == (meaning, still_mostly)

    @pytest.mark.parametrize(
        ("variants", "counts", "compared", "meaning"),
        [
            (("fpa",), {"fpa": (3, 2, 4)}, ["fpa"], Meaning.NO_OTHER_MODEL),
            (("none", "rectangle"), {"none": (5, 4, 6)}, ["none", "rectangle"], Meaning.NO_FPA),
            (
                ("rectangle", "fpa"),
                {"rectangle": (9, 8, 10), "fpa": (1, 0, 2)},
                ["rectangle", "fpa"],
                Meaning.LESS_OFTEN,
            ),
        ],
    )
    def test_depends_on_which_models_there_are(self, variants, counts, compared, meaning):
        found = finding(with_counts(made_up_study(variants=variants), **counts))
        assert list(found.opposite) == compared
        assert {name: found.opposite[name] for name in counts} == counts
        assert found.meaning is meaning

    def test_counts_all_pairs_where_all_estimators_are_of_a_kind(self, study):
        models = {
            name: replace(
                model,
                reliability=reliability(
                    {e: model.fidelity[e] for e in ("vg_abs", "sg_abs", "ig_abs")}, SIGNED, draws=20
                ),
            )
            for name, model in study.models.items()
        }
        found = finding(replace(study, models=models))
        assert (found.kind, found.pairs) == ("all", 3)

    def test_compares_variants_by_what_they_were_trained_with(self, study):
        models = {"plain": study.models["none"], "strong": study.models["fpa"]}
        counts = {"plain": (9, 8, 10), "strong": (1, 0, 2)}
        found = finding(with_counts(replace(study, models=models), **counts))
        assert (found.opposite, found.meaning) == (counts, Meaning.LESS_OFTEN)

    @pytest.mark.parametrize(
        ("images", "count", "meaning"),
        [
            (120, (3, 2, 4), Meaning.CONTRADICTS),
            (120, (0, 0, 0), Meaning.AGREES),
            (40, (0, 0, 0), Meaning.TOO_FEW_IMAGES),
        ],
    )
    def test_of_a_model_trained_elsewhere(self, images, count, meaning):
        found = finding(with_counts(made_up_evaluation(images=images), net=count))
        assert (found.opposite, found.meaning) == ({"net": count}, meaning)

    def test_says_when_there_is_nothing_to_explain(self, study):
        evaluation = study.models["none"].evaluation
        guessed = np.where(np.arange(40) < 10, evaluation.labels, evaluation.labels + 1)
        weak = changed(study, "none", evaluation=replace(evaluation, targets=guessed))
        assert weak.not_above_chance == ["none"]  # four classes, 40 images
        assert finding(weak).meaning is Meaning.NOTHING_TO_EXPLAIN
        assert finding(study).meaning is not Meaning.NOTHING_TO_EXPLAIN


class TestFile:
    @pytest.mark.drawn
    def test_is_the_same_for_the_same_study(self, page, tmp_path):
        again = write_report(made_up_study(), tmp_path / "new" / "again.html", "fpa run shapes")
        assert again.read_bytes() == page.read_bytes()

    def test_refers_to_nothing_outside(self, page):
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"https?:|src=(?!\"data:)|@import|url\((?!#)|import\(|fetch\(", html)
        # Figures refer to their own marks.
        assert all(target.startswith("#") for target in re.findall(r'xlink:href="([^"]*)"', html))
        assert set(re.findall(r' href="([^"]*)"', html)) == {
            "data:,", "#result", "#explorer", "#consistency", "#areas", "#estimators-explained", "#pairs",
            "#curves", "#training", "#made",
        }  # fmt: skip

    @pytest.mark.drawn
    def test_is_small_with_24_images_of_cifar_size(self, tmp_path):
        html = html_of(made_up_study(examples=24, size=32), tmp_path)
        assert len(data_of(html)["explorer"]["examples"]) == 24
        assert len(html) < 3_000_000

    def test_says_neither_right_nor_wrong_of_images_without_labels(self, study, tmp_path):
        def labelled(labels):
            def of(model):
                return replace(model, examples=replace(model.examples, labels=np.array(labels)))

            models = {name: of(model) for name, model in study.models.items()}
            return html_of(replace(study, models=models), tmp_path)

        said = study.first.examples.targets.tolist()
        html = labelled([-1, said[1], (said[2] + 1) % 4, -1])
        found = data_of(html)["explorer"]
        assert [example["label"] is None for example in found["examples"]] == [True, False, False, True]
        assert found["models"][0]["right"] == [None, True, False, None]
        assert "unknown" not in re.search(r'<label class="thumb".*?</label>', html)[0]

    def test_classes_of_one_name_are_told_apart(self, study, tmp_path):
        names = ["crane", "crane", "disc", "ring"]
        model = study.models["fpa"]
        examples = replace(model.examples, labels=np.array([0, 0, 2, 3]), targets=np.array([0, 1, 2, 2]))
        named = described(replace(model, examples=examples), classes=names)
        alone = replace(study, models={"fpa": named})
        assert data_of(html_of(alone, tmp_path))["explorer"]["models"][0]["right"] == [
            True,
            False,
            True,
            False,
        ]

    def test_leaves_out_examples_that_would_make_it_large(self, study, tmp_path, monkeypatch):
        monkeypatch.setattr(explorer, "BUDGET", 30_000)
        html = html_of(study, tmp_path)
        assert [example["index"] for example in data_of(html)["explorer"]["examples"]] == [0, 1]
        assert data_of(html)["explorer"]["left_out"] == 2
        assert re.search(r'id="examples-left-out">2 ', html)

    @pytest.mark.drawn
    def test_shows_text_from_data_as_text(self, study, tmp_path):
        nasty = "</script><script>alert(1)</script>\u2028<!--"
        model = renamed(study.models["fpa"], nasty)
        model = described(model, classes=[nasty] * 4, augmentation=nasty)
        study = with_score(
            replace(
                study,
                name=nasty,
                about={"versions": {nasty: nasty}, "timings": {nasty: nasty}},
                models={nasty: replace(model, name=nasty), "fpa": model},
            ),
            nasty,
            title=nasty,
            source=nasty,
        )
        html = html_of(study, tmp_path, command=nasty)
        assert "alert(1)" in html
        assert "<script>alert" not in html
        assert html.count("<script") == html.count("</script>") == 2
        assert data_of(html)["explorer"]["examples"][0]["label"] == nasty

    def test_tells_how_it_was_made(self, study, page, tmp_path):
        html = unescape(page.read_text(encoding="utf-8"))
        assert "fpa run shapes" in html
        assert "model: resnet-small\nseed: 0\ndata:\n  name: shapes\n" in html
        assert '<th scope="row">arithmetic · forwards</th><td>float32, folded, compiled</td>' in html
        assert '<th scope="row">torch</th><td>2.11</td>' in html
        assert '<th scope="row">none · train</th><td>31.0 s</td>' in html
        assert "fpa run recipe.yaml" in html_of(study, tmp_path)

    def test_defines_its_words_before_the_verdict(self, study, page):
        html = page.read_text(encoding="utf-8")
        before, _, after = html.partition('<p class="finding">')
        for word in ("estimator", "Signed", "unsigned", "MIF", "LIF", "opposite order", "FPA"):
            assert f"<b>{word}</b>" in before
        assert unescape(after[: after.index("</p>")]).replace("\u00a0", " ") == verdict(study)

    def test_explains_every_estimator_it_names(self, study, page, tmp_path):
        rows = re.search(r'<table class="explained">.*?<tbody>(.*?)</tbody>', page.read_text(), re.S)[1]
        found = [
            [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S)]
            for row in rows.split("</tr>")[:-1]
        ]
        by_name = {name: cells for name, *cells in found}
        assert len(found) == len(by_name) == len(study.estimators)
        assert by_name["VG′abs"] == ["Vanilla gradient", "unsigned", "Σc |x · ∇f(x)|"]
        assert by_name["SGabs"][2] == "Σc |meank=1…n ∇f(x + εk)|"
        assert by_name["IGsum"][1:] == [
            "signed",
            "Σc (x − r) · meank=1…n ∇f(r + (x − r) k/n)steps 200, reference masked",
        ]
        odd = {
            "<i>mine</i>": {"sign": "signed", "raw": {"name": "my:<b>", "x": 1}},
            "cut": {"sign": "signed", "raw": {"name": "captum", "method": "Deep<b>"}, "reduction": "abs"},
            "cam": {"sign": "unsigned", "raw": {"name": "cam", "method": "layercam", "layer": "<b>"}},
            "file": {"sign": "unsigned", "raw": {"name": "maps", "sha256": "0"}, "blur": 2},
        }
        plan = study.first.plan["estimators"]
        renamed = dict(zip([*plan][:4], odd.values(), strict=True))
        html = html_of(with_plan(study, estimators=plan | renamed), tmp_path)
        rows = re.search(r'<table class="explained">(.*?)</table>', html, re.S)[1]
        assert "<b>" not in rows
        for text in ("Captum’s Deep&lt;b&gt;|", "layer &lt;b&gt;", "Gaussian blur of", "computed by random"):
            assert text in rows

    def test_a_family_has_one_colour(self, study):
        looks = estimator_looks(study)
        families = {name: re.sub("x?_.*", "", name) for name in looks}
        pairs = {(families[name], look.colour) for name, look in looks.items()}
        assert len(pairs) == len(set(families.values())) == len({look.colour for look in looks.values()})
        assert len({look.css for look in looks.values()}) == len(looks)  # dashes tell apart the rest
        signed = {look.css.split()[1] for name, look in looks.items() if SIGNED.get(name)}
        assert signed == {"d0"}
        few = {name: study.first.plan["estimators"][name] for name in ("random", "sg_abs")}
        alone = made_up_study(estimators=study.first.plan["estimators"] | few)
        assert estimator_looks(alone)["sg_abs"] == looks["sg_abs"]

    @pytest.mark.drawn
    def test_says_the_same_when_it_is_made_again(self, study, page, tmp_path):
        later = dict(study.about, files={"figures": ["figures/ranks.png"]}, format=1)
        later["timings"] = later["timings"] | {"tables": 9.0, "figures": 9.0, "report": 9.0}
        again = html_of(replace(study, about=later), tmp_path, command="fpa run shapes")
        assert again == page.read_text(encoding="utf-8")

    def test_lines_look_as_in_the_figures(self, study, page):
        """Colours and dashes mean the same in both: those of augmentations, of MIF and of LIF."""
        html = page.read_text(encoding="utf-8")
        dashes = {"-": "d0", (0, (3.5, 1.6)): "d1", (0, (5, 1.5, 1, 1.5)): "d3"}
        colours = {"#000000": "c0", "#E69F00": "c1", "#0072B2": "c2"}
        for name, shown in (("none", "None"), ("rectangle", "Rectangle"), ("fpa", "FPA")):
            look = model_looks([name])[name]
            line = f"{colours[look.colour]} {dashes[look.dashes]}"
            assert look.css == line
            assert re.search(rf'<th scope="col"><svg class="swatch {line}".*?</svg>{shown}</th>', html)
        drawn = figures.definition_of_area([0, 1], mif=[1, 0], lif=[1, 1]).axes[0].get_lines()
        for side, dash in (("mif", "d1"), ("lif", "d0")):
            (curve,) = [each for each in drawn if each.get_label() == side.upper()]
            assert f"--{side}: {curve.get_color().lower()};" in html
            assert (curve.get_linestyle() != "-") == (dash == "d1")
            assert f'line("{side}", "{side} {dash}"' in html

    def test_needs_neither_examples_nor_histories_nor_a_manifest(self, study, tmp_path):
        models = {name: replace(model, examples=None, history={}) for name, model in study.models.items()}
        html = html_of(replace(study, models=models, about={}), tmp_path)
        assert not data_of(html)["explorer"]
        assert 'id="explorer-controls"' not in html
        assert "<svg" not in re.search(r'id="training".*?</section>', html, re.S)[0]

    def test_of_a_single_model_says_what_it_is_and_what_it_was_made_with(self, tmp_path):
        own = made_up_evaluation("my net", augmentation="mixup", features=8)
        html = html_of(own, tmp_path)
        kicker = re.search(r'<p class="kicker">(.*?)</p>', html)[1]
        assert all(fact in kicker for fact in ("my net on photos", "mixup", "40 images"))
        assert '<th scope="row">trained with</th><td>mixup</td>' in html
        for what, value in {
            "arithmetic · forwards": "float32, folded",
            "masking": "constant (value 0.0)",
            "features": "8",
            "ig": "steps 200, reference masked",
            "points": "21",
            "torch": "2.11",
        }.items():
            assert f'<th scope="row">{what}</th><td>{value}</td>' in html
        assert "Call <code>fpa.evaluate</code>" in html
        assert "Recipe" not in html
        assert 'href="#training"' not in html

    def test_names_the_arithmetic_of_every_model_where_it_differs(self, study, tmp_path):
        other = described(study.models["fpa"], made_with={"forms": {"forwards": "bfloat16"}})
        html = html_of(replace(study, models=study.models | {"fpa": other}), tmp_path)
        assert '<th scope="row">arithmetic · FPA · forwards</th><td>bfloat16</td>' in html
        assert '<th scope="row">arithmetic · None · forwards</th><td>float32, folded, compiled</td>' in html


def renamed(model, name):
    """The model with IG_sum called something else."""

    def renamed_keys(values):
        return {name if key == "ig_sum" else key: value for key, value in values.items()}

    evaluation, examples = model.evaluation, model.examples
    plan = model.plan | {"estimators": renamed_keys(model.plan["estimators"])}
    plan["estimators"][name] = {"sign": "signed"}
    return Result.of(
        model.name,
        replace(evaluation, mif=renamed_keys(evaluation.mif), lif=renamed_keys(evaluation.lif)),
        described(model, plan=plan).description,
        examples=replace(examples, maps=renamed_keys(examples.maps), ranks=renamed_keys(examples.ranks)),
    )


class TestTable:
    @staticmethod
    def cells(html):
        """(estimator, augmentation) -> the text of a cell, and whether it is the best."""
        found = {}
        for estimator, row in re.findall(r'<tr data-estimator="(.*?)">(.*?)</tr>', html, re.S):
            for name, bold, cell in re.findall(
                r'<td data-model="(.*?)"( class="best")?>(.*?)</td>', row, re.S
            ):
                text = " ".join(re.sub(r"<.*?>", "", cell).replace("−", "-").split())
                found[estimator, name] = text, bool(bold)
        return found

    def test_has_the_numbers_of_the_study(self, study, page):
        cells = self.cells(page.read_text(encoding="utf-8"))
        assert len(cells) == 30
        for name, model in study.models.items():
            for estimator, fidelity in model.fidelity.items():
                shown = [float(x) for x in re.findall(r"-?\d+\.\d", cells[estimator, name][0])]
                expected = [fidelity.area, fidelity.interval]
                expected += [fidelity.area_mean_then_divide, fidelity.interval_mean_then_divide]
                expected.append(fidelity.area_robust)
                np.testing.assert_allclose(shown, expected, atol=0.0501)
            # On two of its pairs the best is surely in opposite order by MIF and by LIF: not bold, but equal.
            assert not any(cells[estimator, name][1] for estimator in model.fidelity)
            equal = {estimator for estimator in model.fidelity if cells[estimator, name][0].count(" =")}
            assert equal == set(tied(model))
            assert model.reliability.by_area[0] in equal

    def test_marks_ties_and_shows_the_paired_tests(self, tmp_path):
        few = made_up_study(images=2)
        html = html_of(few, tmp_path)
        cells = self.cells(html)
        for name, model in few.models.items():
            tied = {estimator for estimator in model.fidelity if cells[estimator, name][0].count(" =")}
            assert best(model) in tied
            assert len(tied) > 1
            assert not any(cells[estimator, name][1] for estimator in model.fidelity)
        (first, *_) = re.findall(r'<table class="pairs matrix">(.*?)</table>', html, re.S)
        shown = [re.findall(r"<td>(.*?)</td>", row) for row in first.split("<tr>")[2:]]
        assert [[cell.replace("−", "-") for cell in row] for row in shown] == [
            cells for _, cells in scope.matrix(few, "none")
        ]
        ties = [line for name in few.models for line in scope.of_model(few, name, [Kind.TIES])]
        assert len(ties) == 3
        assert all(line in unescape(html) for line in ties)

    def test_groups_random_signed_and_unsigned(self, study, page):
        html = page.read_text(encoding="utf-8")
        assert re.findall(r'scope="rowgroup".*?>(.*?)<', html) == ["Baseline", "Signed", "Unsigned"]
        assert re.findall(r'data-estimator="(.*?)"', html) == study.estimators

    @pytest.mark.parametrize("results", [made_up_study(), made_up_evaluation()], ids=["study", "evaluation"])
    def test_shows_further_scores_with_title_direction_and_source(self, results, tmp_path):
        scored = with_score(results, "depth", higher_is_better=False)
        html = html_of(scored, tmp_path)
        shown = re.search(r'<details class="score".*?</details>', html, re.S)[0]
        about = scored.score_titles["depth"]
        for fact in (about.title, about.source, summary.direction(about)):
            assert fact in shown
        rows = re.findall(r'<tr data-score="depth">(.*?)</tr>', html, re.S)
        assert len(rows) == len(results.estimators)
        best = [re.search(r'"row">(.*?)</th>', row)[1] for row in rows if 'class="best"' in row]
        assert best == ["IG<sub>sum</sub>"]

    def test_lists_the_pairs_that_the_cards_count(self, study, page):
        html = page.read_text(encoding="utf-8")
        listed = re.search(r'id="pairs">(.*?)</details>', html, re.S)[1]
        rows = re.findall(r'<tr data-kind="(.*?)">(.*?)</tr>', listed, re.S)
        for column, (name, model) in enumerate(study.models.items()):
            states = [
                re.findall(r"<td(?: class=.*?)?>(.*?)</td>", row)[column]
                for kind, row in rows
                if kind == "signed-unsigned"
            ]
            opposite = [state for state in states if state != "same order"]
            assert len(opposite) == model.reliability.opposite["signed-unsigned"].value > 0
            count = summary.opposite_pairs(study)[name]
            assert opposite.count("surely opposite") == count.significant
            header = re.search(r">signed–unsigned</th>(.*?)</tr>", listed)[1]
            assert re.findall(r"<td>(.*?)</td>", header)[column] == summary.of_pairs(count)

    def test_names_the_best_map_that_knows_no_model(self, study, page, tmp_path):
        assert rivals.best_model_free(study) == []  # there is only random
        plan = study.first.plan["estimators"]
        two = with_plan(study, estimators=plan | {"vg_abs": plan["vg_abs"] | {"sign": "baseline"}})
        (line,) = rivals.best_model_free(two)
        areas = [float(area) for area in re.findall(r"VG_abs \(\w+, A = (.*?)\)", line)]
        expected = [model.fidelity["vg_abs"].area for model in two.models.values()]
        assert areas == pytest.approx(expected, abs=0.0501)
        assert line in html_of(two, tmp_path)

    def test_headlines_the_contradictions(self, study, page):
        html = page.read_text(encoding="utf-8")
        numbers = re.findall(r'<td class="big">(\d+)</td>', html)
        assert "in opposite order, of 18</th>" in html
        assert [int(n) for n in numbers] == [
            model.reliability.opposite["signed-unsigned"].value for model in study.models.values()
        ]
        significant = re.findall(r'<td class="surely">(\d+)</td>', html)
        assert [int(n) for n in significant] == [
            sum(pair.kind == "signed-unsigned" for pair in model.reliability.contradictions)
            for model in study.models.values()
        ]

    def test_compares_with_the_published_numbers(self, study, tmp_path):
        study = replace(study, published={"fpa": {"ig_sum": (50.0, 0.7)}})
        cells = self.cells(html_of(study, tmp_path))
        difference = study.models["fpa"].fidelity["ig_sum"].area - 50
        assert cells["ig_sum", "fpa"][0].endswith(f"paper 50.0 ± 0.7 ({difference:+.1f})")
        assert "paper" not in cells["ig_sum", "none"][0]

    def test_says_how_many_images_are_left_out_and_why(self, study, tmp_path):
        evaluation = study.models["none"].evaluation
        unmasked, mif, lif = evaluation.unmasked.copy(), dict(evaluation.mif), dict(evaluation.lif)
        unmasked[3] = -1
        no_map = {"what": "map", "estimator": "", "count": 1, "images": [7]}
        for curves in (mif, lif):
            for name in curves:
                curves[name] = curves[name].copy()
                curves[name][3, 0] = -1
        keep = common_images(unmasked)
        fidelity = {
            name: Fidelity.from_curves(mif[name], lif[name], evaluation.fractions, keep=keep) for name in mif
        }
        evaluation = replace(
            evaluation,
            unmasked=unmasked,
            mif=mif,
            lif=lif,
            left_out=[Note(Kind.NOT_FINITE, values=no_map)],
        )
        html = html_of(changed(study, "none", evaluation=evaluation, fidelity=fidelity), tmp_path)
        assert "<td>39<small>1 left out</small></td>" in html
        not_positive = {"reason": "not positive", "count": 1, "of": 40, "images": [3]}
        for note in (Note(Kind.LEFT_OUT, values=not_positive), *evaluation.left_out):
            assert f"<li>None: {words.clause(note)}.</li>" in html

    def test_has_the_footnote_on_ig_where_it_is_true(self, study, page, tmp_path):
        (note,) = summary.references(study)
        assert note in page.read_text(encoding="utf-8")
        raw = {"name": "ig", "steps": 200, "reference": "black"}
        estimators = study.first.plan["estimators"]
        black = {name: each | ({"raw": raw} if "raw" in each else {}) for name, each in estimators.items()}
        assert note not in html_of(with_plan(study, estimators=black), tmp_path)


@pytest.mark.drawn
def test_its_size_does_not_grow_with_images_and_classes(tmp_path, monkeypatch):
    classes = [f"class number {place}, of a thousand" for place in range(1000)]
    monkeypatch.setattr("studies.CLASSES", classes)
    small, large = (html_of(made_up_study(images=count, variants=("fpa",)), tmp_path) for count in (40, 1000))
    assert abs(len(large) - len(small)) < 5_000
    photos = write_report(made_up_study(size=224, examples=24, variants=("fpa",)), tmp_path / "photos.html")
    assert photos.stat().st_size < 1.1 * explorer.BUDGET
    shown = data_of(photos.read_text(encoding="utf-8"))["explorer"]
    assert len(shown["examples"]) + shown["left_out"] == 24
    assert len(shown["examples"]) >= 8


@pytest.mark.drawn
def test_curves_and_histories_are_drawn_by_the_figures(study, page):
    html = page.read_text(encoding="utf-8")
    for signed in (True, False):
        drawn = figures.inline_svg(
            figures.perturbation_curves(study, signed), "Mean curves along which pixels are removed"
        )
        assert drawn in html
    curves = figures.training_history(study)
    (title,) = re.findall(r'id="training".*?<svg[^>]*aria-label="(.*?)"', html, re.S)
    assert figures.inline_svg(curves, title) in html


class TestData:
    @pytest.mark.parametrize("shape", [(16, 16), (8, 8), (33, 31)])
    def test_positions_of_the_slider_remove_the_same_pixels_as_the_ranks(self, shape):
        pixels, steps = shape[0] * shape[1], explorer.STEPS
        ranks = np.random.default_rng(0).permutation(pixels).reshape(shape)
        places = explorer.positions(ranks)
        for position in range(steps + 1):
            k = round(position / steps * pixels)
            assert ((places < position) == (ranks < k)).all()
            wrong = (places >= steps - position) != (ranks >= pixels - k)
            assert wrong.sum() <= (position * pixels % steps == steps / 2)

    @pytest.mark.parametrize("side", [4, 5, 16])
    def test_patches_are_removed_whole_and_as_many_as_the_curves_removed(self, side):
        study = made_up_study(size=16, features=side)
        patches = (-(-16 // side)) ** 2
        for ranks in study.models["fpa"].examples.ranks["ig_sum"]:
            places = explorer.positions(ranks)
            for position in range(explorer.STEPS + 1):
                k = round(position / explorer.STEPS * patches)
                assert ((places < position) == (ranks < k)).all()
                gone = {int(rank) for rank in ranks[places >= explorer.STEPS - position]}
                halves = position * patches % explorer.STEPS == explorer.STEPS / 2
                assert abs(len(gone) - k) <= halves
                assert gone == set(range(patches - len(gone), patches))

    def test_a_value_that_is_not_finite_is_missing(self, study, tmp_path):
        evaluation = study.models["fpa"].evaluation
        mif = evaluation.mif | {"ig_sum": evaluation.mif["ig_sum"].copy()}
        mif["ig_sum"][0, 5] = np.nan
        broken = changed(study, "fpa", evaluation=replace(evaluation, mif=mif))
        kept = np.arange(40) > 0
        fidelity = Fidelity.from_curves(
            mif["ig_sum"], evaluation.lif["ig_sum"], evaluation.fractions, keep=kept
        )
        broken = changed(broken, "fpa", fidelity=study.models["fpa"].fidelity | {"ig_sum": fidelity})
        shown = data_of(html_of(broken, tmp_path))
        e = study.estimators.index("ig_sum")
        assert shown["explorer"]["models"][2]["curves"][e]["mif"][0][5] is None

    def test_a_heat_map_follows_the_scores(self, study, page):
        found = data_of(page.read_text(encoding="utf-8"))["explorer"]
        packed = found["models"][2]["maps"][study.estimators.index("ig_sum")]
        places = np.frombuffer(base64.b64decode(packed["positions"]), np.uint8).reshape(4, 16, 16)
        heat = np.frombuffer(base64.b64decode(packed["heat"]), np.int8).reshape(4, -1)
        for image, scores in enumerate(study.models["fpa"].examples.maps["ig_sum"]):
            shown = heat[image][places[image]] / 127 * packed["limits"][image]
            limit = np.quantile(np.abs(scores), 0.99)
            np.testing.assert_allclose(shown, np.clip(scores, -limit, limit), atol=0.08 * limit)


@pytest.mark.drawn
class TestInABrowser:
    @pytest.fixture
    def opened(self, browser, page):
        """The report, freshly opened; afterwards there must be nothing in the console."""
        open_page(browser, page)
        yield browser
        assert [entry["message"] for entry in browser.get_log("browser")] == []

    @staticmethod
    def select(browser, selector):
        return browser.find_element("css selector", selector)

    @staticmethod
    def click(browser, selector):
        browser.execute_script("document.querySelector(arguments[0]).click()", selector)

    @staticmethod
    def choose(browser, name, value):
        """An option of one of the explorer's lists."""
        browser.execute_script(
            "const list = document.querySelector(`[name=${arguments[0]}]`);"
            "list.value = arguments[1]; list.dispatchEvent(new Event('change', {bubbles: true}))",
            name,
            str(value),
        )

    @staticmethod
    def slide(browser, position):
        browser.execute_script(
            "const slider = document.querySelector('[name=position]');"
            "slider.value = arguments[0]; slider.dispatchEvent(new Event('input', {bubbles: true}))",
            position,
        )

    @staticmethod
    def pixels(browser, canvas):
        """A canvas as [H, W, 3]."""
        values = browser.execute_script(
            "const canvas = document.getElementById(arguments[0]), size = [canvas.width, canvas.height];"
            "const copy = new OffscreenCanvas(...size).getContext('2d', {willReadFrequently: true});"
            "copy.drawImage(canvas, 0, 0); return [...copy.getImageData(0, 0, ...size).data]",
            canvas,
        )
        return np.array(values).reshape(16, 16, 4)[..., :3]

    @staticmethod
    def marker(browser, side):
        return browser.execute_script(
            "const dot = document.querySelector(`#example-board [data-dot=${arguments[0]}]`);"
            "return [Number(dot.getAttribute('cx')), Number(dot.getAttribute('cy'))]",
            side,
        )

    def test_nothing_leaves_the_page(self, browser, page):
        open_page(browser, page)  # the browser's own first page is gone then
        browser.get_log("performance")
        open_page(browser, page)
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        requested = {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }
        assert {url for url in requested if not url.startswith("data:")} == {page.as_uri()}
        assert (
            browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []
        )
        assert browser.get_log("browser") == []

    def test_the_text_beside_an_image_follows_its_label(self, browser, study, tmp_path):
        model = study.models["fpa"]
        labels = np.where([True, False, False, False], -1, model.examples.targets)
        labels[2] = (labels[2] + 1) % 4
        examples = replace(model.examples, labels=labels)
        alone = replace(study, models={"fpa": replace(model, examples=examples)})
        open_page(browser, write_report(alone, tmp_path / "report.html"))
        texts = []
        for image in range(3):
            self.click(browser, f"[name=image][value='{image}']")
            texts.append(self.select(browser, "#about").text)
        names = [study.classes[number] for number in model.examples.targets]
        quoted = [re.findall("“(.*?)”", text) for text in texts]
        assert quoted == [[names[0]], [names[1], names[1]], [study.classes[labels[2]], names[2]]]
        assert ["wrongly" in text for text in texts] == [False, False, True]

    @pytest.mark.parametrize("position", [0, 37, 100, 200])
    @pytest.mark.parametrize("order", ["mif", "lif"])
    def test_the_slider_removes_the_right_pixels(self, opened, study, order, position):
        examples = study.models["fpa"].examples
        e, image, k = study.estimators.index("vg_abs"), 2, round(position / 200 * 256)
        self.choose(opened, "map", e)
        self.click(opened, f"[name=image][value='{image}']")
        self.click(opened, f"[name=order][value={order}]")
        self.slide(opened, position)
        ranks = examples.ranks["vg_abs"][image]
        removed = ranks >= 256 - k if order == "mif" else ranks < k
        there = study.models["none"].examples.images[image]  # the picture is the first model's
        expected = np.where(removed, 128, there).transpose(1, 2, 0)
        assert (self.pixels(opened, "masked") == expected).all()
        assert f"{position / 2:.1f} %" in self.select(opened, "#removed").text

    @pytest.mark.parametrize("order", ["mif", "lif"])
    def test_the_slider_removes_patches_where_the_curves_did(self, browser, tmp_path, order):
        own = made_up_evaluation(features=8)  # four patches
        examples = own.first.examples
        open_page(browser, write_report(own, tmp_path / "report.html"))
        self.choose(browser, "map", own.estimators.index("ig_sum"))
        self.click(browser, f"[name=order][value={order}]")
        for position, removed in ((0, 0), (50, 1), (60, 1), (100, 2), (200, 4)):
            self.slide(browser, position)
            ranks = examples.ranks["ig_sum"][0]
            gone = ranks >= 4 - removed if order == "mif" else ranks < removed
            expected = np.where(gone, 128, examples.images[0]).transpose(1, 2, 0)
            assert (self.pixels(browser, "masked") == expected).all()
            assert f"{25 * removed:.1f} %" in self.select(browser, "#removed").text
            caption = self.select(browser, "#example-board caption").text
            assert f" {25 * removed:.1f} % " in caption
            assert "patches" in caption
        assert browser.get_log("browser") == []

    def test_removed_pixels_show_what_the_masking_leaves_there(self, browser, study, tmp_path):
        examples = study.models["fpa"].examples
        blurred = replace(examples, fill=255 - examples.images)
        models = {name: replace(model, examples=blurred) for name, model in study.models.items()}
        open_page(browser, write_report(replace(study, models=models), tmp_path / "report.html"))
        self.slide(browser, 200)
        self.click(browser, "[name=image][value='3']")
        assert (self.pixels(browser, "masked") == blurred.fill[3].transpose(1, 2, 0)).all()

    def test_the_markers_move_along_both_curves(self, opened, study):
        evaluation = study.models["fpa"].evaluation
        self.choose(opened, "map", study.estimators.index("ig_sum"))
        before = {side: self.marker(opened, side) for side in ("mif", "lif")}
        self.slide(opened, 105)  # half way between two points of the curves
        for side, curves in (("mif", evaluation.mif), ("lif", evaluation.lif)):
            after = self.marker(opened, side)
            assert after[0] > before[side][0]
            assert after[1] != before[side][1]
            shown = self.select(opened, f"#example-board [data-row={side}] td").text
            expected = curves["ig_sum"][0, 10:12].mean()
            assert float(shown.replace("−", "-")) == pytest.approx(expected, abs=0.006)

    def test_the_slider_obeys_the_arrow_keys(self, opened):
        slider = self.select(opened, "[name=position]")
        before, masked = self.marker(opened, "mif"), self.pixels(opened, "masked")
        slider.send_keys("\ue014" * 4)  # arrow right
        assert slider.get_attribute("value") == "44"
        assert slider.get_attribute("aria-valuetext").startswith("22.0 %")
        assert self.marker(opened, "mif")[0] > before[0]
        assert (self.pixels(opened, "masked") != masked).any()

    @pytest.mark.parametrize("what", ["image", "map", "shown-model"])
    def test_another_choice_shows_something_else(self, opened, what):
        def shown():
            curve = self.select(opened, "#example-board path[data-line=mif]").get_attribute("d")
            return curve, self.pixels(opened, "heat").tolist(), self.pixels(opened, "picture").tolist()

        before = shown()
        if what == "image":
            self.click(opened, "[name=image][value='1']")
        else:
            self.choose(opened, what, 0)
        after = shown()
        assert before[0] != after[0]
        assert before[1] != after[1]
        assert (before[2] != after[2]) == (what == "image")

    def test_odd_class_names_are_text(self, browser, study, tmp_path):
        examples = study.models["fpa"].examples
        odd = replace(examples, labels=np.full(4, 3), targets=np.full(4, 3))
        models = {name: replace(model, examples=odd) for name, model in study.models.items()}
        page = write_report(replace(study, models=models), tmp_path / "report.html")
        open_page(browser, page)
        assert re.findall("“(.*?)”", self.select(browser, "#about").text) == [ODD, ODD]
        assert not browser.find_elements("css selector", "#explorer b")
        assert self.select(browser, "[name=image]").get_attribute("aria-label") == f"Image 0: {ODD}"

    @pytest.mark.parametrize("width", [320, 390])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_fits_a_phone(self, opened, page, scheme, width):
        open_page(opened, page, width, scheme)
        opened.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        sizes = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert sizes == [width, width]
        background = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")

    def test_every_control_has_a_name_and_a_visible_focus(self, opened):
        unnamed = opened.execute_script(
            "const named = (each) => each.ariaLabel || each.getAttribute('aria-labelledby')"
            " || each.labels?.length || each.textContent.trim();"
            "const controls = document.querySelectorAll('input, select, button, [tabindex], canvas[role]');"
            "return [...controls].filter((each) => !named(each)).map((each) => each.outerHTML)"
        )
        assert unnamed == []
        body = self.select(opened, "body")
        seen = set()
        for _ in range(35):
            body.send_keys("\t")
            style = opened.execute_script(
                "const at = document.activeElement, box = at.closest('.chip, .thumb') || at;"
                "return [at.name || at.id || at.tagName, getComputedStyle(box).outlineStyle]"
            )
            seen.add(style[0])
            assert style[0] == "BODY" or style[1] != "none", style
        assert {"image", "map", "shown-model", "order", "position"} <= seen

    def test_pictures_can_be_enlarged_by_keyboard(self, opened):
        frame = self.select(opened, ".pictures figure:nth-child(2) .frame")
        frame.send_keys("\n")
        large = self.select(opened, "#large")
        assert large.get_attribute("open") is not None
        assert "Importance" in self.select(opened, "#large-title").text
        shown = self.select(opened, "#large canvas")
        assert shown.size["width"] > 2 * frame.size["width"]
        active = opened.switch_to.active_element
        active.send_keys("\ue014")  # arrow right
        masked = self.select(opened, "#masked").get_attribute("aria-label")
        assert self.select(opened, "#large-title").text == masked
        assert (self.pixels(opened, "large-picture") == self.pixels(opened, "masked")).all()
        active.send_keys("\ue00c")  # escape
        assert large.get_attribute("open") is None

    def test_links_open_what_they_lead_to(self, opened):
        place = self.select(opened, "#pairs")
        assert not place.is_displayed()
        self.click(opened, "[href='#pairs']")
        assert place.is_displayed()

    def test_long_names_fit_a_phone(self, browser, study, tmp_path):
        name = "a_method_with_a_very_long_name_of_one_word:layer4.block2.conv3"
        models = {key: renamed(model, name) for key, model in study.models.items()}
        open_page(browser, write_report(replace(study, models=models), tmp_path / "report.html"), 360)
        browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360

    def test_the_chart_of_an_image_obeys_the_arrow_keys(self, opened):
        chart = self.select(opened, "#example-board svg[role=slider]")
        place = float(chart.get_attribute("aria-valuenow"))
        chart.send_keys("\ue014")  # arrow right
        assert float(chart.get_attribute("aria-valuenow")) == place + 1
        assert self.select(opened, "[name=position]").get_attribute("value") == str(
            round(200 * (place + 1) / 20)
        )

    @pytest.mark.parametrize("width", [1280, 390])
    def test_figures_are_readable_and_never_wider_than_what_scrolls(self, browser, page, width):
        open_page(browser, page, width)
        for figure in browser.find_elements("css selector", "svg.figure"):
            sizes = browser.execute_script(
                "const texts = [...arguments[0].querySelectorAll('text')];"
                "const text = texts.map((each) => each.getBoundingClientRect());"
                "return [Math.max(...text.map((box) => box.height)), arguments[0].parentElement.clientWidth]",
                figure,
            )
            assert sizes[0] >= 10
            assert sizes[1] <= width

    def test_figures_take_the_colours_of_the_page(self, browser, page):
        found = []
        for scheme in ("light", "dark"):
            open_page(browser, page, 1280, scheme)
            found.append(
                browser.execute_script(
                    "return getComputedStyle(document.querySelector('svg.figure text')).fill"
                )
            )
        assert found == ["rgb(26, 26, 26)", "rgb(237, 237, 234)"]

    def test_works_without_examples_and_with_one_model(self, browser, tmp_path):
        study = made_up_study(variants=("fpa",))
        open_page(browser, write_report(changed(study, "fpa", examples=None), tmp_path / "report.html"))
        assert browser.find_elements("css selector", "#curves svg.figure")
        assert browser.get_log("browser") == []
