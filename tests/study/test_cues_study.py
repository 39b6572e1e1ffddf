"""The default study, very small: what it leaves, and what it says of the truth, against loops."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from fpa import InputError
from fpa.evaluation.judged_scenes import judged_scenes
from fpa.evaluation.result import Results
from fpa.progress import as_text
from fpa.running import run_study, show_again
from fpa.show import truths
from fpa.show.tables import markdown, terminal
from fpa.study.recipe import load_recipe

SMALLER = {
    "data.size": 16,
    "data.train_images": 64,
    "data.evaluation_images": 32,
    "training.epochs": 1,
    "training.warmup_epochs": 0,
    "evaluation.estimators": ["random", "ig_sum", "vg_abs", "sgx_sum", "true:flat", "true:noise-1"],
    "evaluation.ig_steps": 2,
    "evaluation.sg_samples": 2,
    "evaluation.points": 5,
    "evaluation.examples": 4,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cues") / "study"
    return folder, run_study(load_recipe("cues-small", SMALLER), folder, device="cpu")


def test_the_recipe_is_the_default_study():
    recipe = load_recipe("cues-small")
    assert recipe.augmentations == ["none", "rectangle", "fpa"]
    assert recipe.data.evaluation_images == 100
    ladder = [name for name in recipe.evaluation.estimators if name.startswith("true:")]
    assert ladder == ["true:flat", "true:noise-0.5", "true:noise-1", "true:noise-2"]
    assert list(recipe.evaluation.protocols) == ["1/8+blur"]


def test_the_tree_it_leaves(study):
    folder, _ = study
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    figures = {name for name in files if name.startswith("figures/")}
    inner = ["evaluation.json", "examples.npz", "model.safetensors", "training.csv"]
    inner += ["blocks/block-000000.parquet", "blocks/scores-000000.parquet"]
    models = {f"{name}/{file}" for name in ("none", "rectangle", "fpa") for file in inner}
    top = {"manifest.json", "recipe.yaml", "report.html", "table.csv", "table.md", "table.tex"}
    left = files - figures - {name for name in files if name.endswith(".fpa-lock")}
    assert left == models | top
    assert {f"figures/fidelity.{kind}" for kind in ("png", "pdf")} <= figures


def error_by_loops(model, curves):
    """How often A prefers the worse map, image by image and pair by pair."""
    evaluation = model.evaluation
    by_image = []
    pairs = 0
    for image, noise in enumerate(evaluation.image_facts["centred_noise"]):
        wrong = []
        for one, two in combinations(evaluation.mif, 2):
            first, second = (evaluation.values["truth"][name][image] for name in (one, two))
            if not abs(first - second) > noise:
                continue
            areas = [
                np.trapezoid(
                    (curves.lif[name][image] - curves.mif[name][image]).astype(float), curves.fractions
                )
                for name in (one, two)
            ]
            tie = areas[0] == areas[1]
            wrong.append(0.5 if tie else float((areas[0] > areas[1]) != (first > second)))
        pairs += len(wrong)
        if wrong:
            by_image.append(np.mean(wrong))
    half = 1.96 * np.std(by_image, ddof=1) / np.sqrt(len(by_image))
    return np.mean(by_image), half, pairs


def test_the_errors_shown_are_those_of_loops(study):
    folder, results = study
    table = pd.read_csv(folder / "table.csv").drop_duplicates("model").set_index("model")
    text = " ".join(markdown(results).split())
    assert as_text(terminal(results)).count(truths.HEADING) == 1
    for name, model in results.models.items():
        for protocol, curves in (
            ("pixels", model.evaluation),
            ("1/8+blur", model.evaluation.under["1/8+blur"]),
        ):
            error, half, pairs = error_by_loops(model, curves)
            assert table.loc[name, f"error_by_{protocol}"] == pytest.approx(error, rel=1e-4)
            assert table.loc[name, f"error_interval_by_{protocol}"] == pytest.approx(half, rel=1e-4)
            assert table.loc[name, "pairs_judged"] == pairs
            assert f"{100 * error:.1f} ± {100 * half:.1f} %" in text
    wrong = [
        int((each.evaluation.labels != each.evaluation.targets).sum()) for each in results.models.values()
    ]
    assert f"| images classified wrongly | {' | '.join(map(str, wrong))} |" in text


def test_all_judged_scenes_have_a_truth(study):
    _, results = study
    for found in truths.found_errors(results).values():
        assert (found.images, found.few_cues, found.missing) == (32, 0, 0)


def test_the_sentences_follow_from_the_errors(study):
    _, results = study
    found = truths.found_errors(results)
    first, *_ = truths.outcome(results)
    errors = [each.errors["pixels"]["A"].value for each in found.values()]
    names = ("no augmentation", "Rectangle", "FPA")
    shown = re.findall(r"([\d.]+) ± [\d.]+ %[^(]*\(([\w ]+)\)", first)
    assert shown == [(f"{100 * error:.1f}", name) for error, name in zip(errors, names, strict=True)]
    change = found["none"].errors["pixels"]["A"].value - found["fpa"].errors["pixels"]["A"].value
    assert f"{100 * abs(change):.1f} ±" in truths.outcome(results)[2]
    assert ("lower" if change > 0 else "higher") in truths.outcome(results)[2]


def test_a_model_at_chance_is_named(study):
    _, results = study
    model = results.models["none"]
    labels = (model.evaluation.targets + 1) % 3
    weak = replace(model, evaluation=replace(model.evaluation, labels=labels))
    changed = replace(results, models={**results.models, "none": weak})
    assert changed.not_above_chance[0] == "none"
    (line, *_) = truths.doubts(changed)
    assert line.startswith("No augmentation")
    assert "no better than chance" in line


def test_maps_of_the_truth_are_no_rivals(study):
    _, results = study
    assert results.first.description.plan.model_free == ["random"]
    assert "made from the truth" in as_text(terminal(results))


class TestPictures:
    def test_examples_hold_the_true_effects(self, study):
        """Summed over its cues, the map of the truth has the effects that are stored."""
        _, results = study
        for model in results.models.values():
            examples = model.examples
            truth = examples.maps["true:flat"]
            for row, effects in enumerate(examples.effects):
                for cue, effect in enumerate(effects):
                    region = examples.regions[row] == (cue if cue < 6 else -1)
                    assert truth[row][region].sum() == pytest.approx(effect, abs=1e-4)

    def test_the_pair_is_told_right(self, study):
        _, results = study
        scenes = judged_scenes(results.models)
        assert 1 <= len(scenes) <= 2
        for number, by_model in scenes.items():
            for name, scene in by_model.items():
                model = results.models[name]
                (row,) = np.flatnonzero(model.evaluation.indices == number)
                truth = model.evaluation.values["truth"]
                noise = model.evaluation.image_facts["centred_noise"][row]
                assert truth[scene.truer][row] - truth[scene.worse][row] > noise
                for protocol, curves in (
                    ("pixels", model.evaluation),
                    ("1/8+blur", model.evaluation.under["1/8+blur"]),
                ):
                    mif = {key: curves.mif[key][row] for key in (scene.truer, scene.worse)}
                    x = curves.fractions
                    lower = min(mif, key=lambda key: np.trapezoid(mif[key].astype(float), x))
                    assert scene.preferred[protocol]["MIF"] == lower

    def test_the_report_shows_them_again_without_the_models(self, study, tmp_path):
        folder, results = study
        copy = shutil.copytree(folder, tmp_path / "copy")
        before = (copy / "report.html").read_text(encoding="utf-8")
        for name in results.models:
            (copy / name / "model.safetensors").unlink()
        show_again(copy, copy)
        page = (copy / "report.html").read_text(encoding="utf-8")
        section = page[page.index('id="truth"') :]
        section = section[: section.index("</section>")]
        assert section == before[before.index('id="truth"') :][: len(section)]
        scenes = judged_scenes({name: results.models[name] for name in ("none", "fpa")})
        assert section.count('<article class="scene"') == len(scenes)
        text = unescape(section).replace("−", "-")
        for by_model in scenes.values():
            for scene in by_model.values():
                for value in scene.truths.values():
                    assert f"truth <b>{value:.2f}</b>" in text.replace("-0.00", "0.00")

    def test_examples_of_before_have_none(self, study):
        _, results = study
        models = {
            name: replace(model, examples=replace(model.examples, regions=None, effects=None))
            for name, model in results.models.items()
        }
        assert judged_scenes(models) == {}
        assert isinstance(replace(results, models=models), Results)


class TestBadInput:
    def test_more_images_than_scenes_with_a_truth(self, tmp_path):
        recipe = load_recipe("cues-small", {**SMALLER, "data.evaluation_images": 900})
        with pytest.raises(InputError, match=r"in 1\.\.\d+, the test scenes of cues-small with 3 to 4 cues"):
            run_study(recipe, tmp_path / "s", device="cpu")
        assert not (tmp_path / "s").exists()

    def test_maps_of_the_truth_need_a_world(self, tmp_path):
        recipe = load_recipe("tiny", {"evaluation.estimators": ["ig_sum", "vg_abs", "true:flat"]})
        with pytest.raises(InputError, match="true:flat needs images that can be made again: shapes is no"):
            run_study(recipe, tmp_path / "s", device="cpu")

    def test_effects_that_do_not_fit_the_regions_are_damaged(self, study, tmp_path):
        folder, results = study
        examples = results.models["none"].examples
        arrays = replace(examples, effects=examples.effects[:, :1]).to_arrays()
        np.savez(tmp_path / "examples.npz", **arrays)
        with pytest.raises(InputError, match="effects has another shape"):
            type(examples).read(tmp_path / "examples.npz")
        assert json.loads((folder / "none" / "evaluation.json").read_text())["plan"]["protocols"]
