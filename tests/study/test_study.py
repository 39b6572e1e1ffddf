"""A whole study: what it leaves, what it skips, what survives a kill."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fpa import InputError
from fpa.cli.main import main
from fpa.evaluation.shards import load_result
from fpa.files import folder_lock, read_json
from fpa.models.saved import load_model, model_path, read_card, save_model, shipped_models
from fpa.progress import Display
from fpa.running import run_study, show_again
from fpa.scores.fidelity import Fidelity
from fpa.show import write_comparison
from fpa.study.folder import FIGURES, StudyFolder
from fpa.study.read import read_results, read_study
from fpa.study.recipe import load_recipe
from fpa.study.run import repeat_command
from miniatures import write_image_folder
from studies import described

MODEL = [
    "blocks/block-000000.parquet",
    "blocks/block-000001.parquet",
    "blocks/scores-000000.parquet",
    "blocks/scores-000001.parquet",
    "evaluation.json",
    "examples.npz",
]
MODEL += ["model.safetensors", "training.csv"]
TOP = ["manifest.json", "recipe.yaml", "report.html", "table.csv", "table.md", "table.tex"]

RUN_TINY = [sys.executable, "-m", "fpa", "run", "tiny", "--device", "cpu"]


@pytest.fixture
def finished(tiny_study):
    return tiny_study


def claim(folder, **how):
    """Look at a folder as a run does before it begins."""
    display = Display(quiet=True)
    StudyFolder(folder).claim(load_recipe("tiny"), display, **{"overwrite": False, "repair": False} | how)


def copied(folder, place):
    return Path(shutil.copytree(folder, place))


def files(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".fpa-lock"
    )


def test_the_tree_it_leaves(finished):
    folder, _ = finished
    found = files(folder)
    figures = [name for name in found if name.startswith("figures/")]
    models = [f"{name}/{file}" for name in ("fpa", "none", "rectangle") for file in MODEL]
    assert sorted(set(found) - set(figures)) == sorted(models + TOP)
    stems = [
        "curves-signed", "curves-unsigned", "definition-of-area", "fidelity", "fpa-examples",
        "lif-over-scores", "ranks", "sign-fluctuation",
    ]  # fmt: skip
    assert figures == sorted(f"figures/{stem}.{kind}" for stem in stems for kind in ("pdf", "png"))
    # What --overwrite removes; one of them is there only with further scores.
    assert set(FIGURES) == {*stems, "score-agreement"}


def test_the_manifest_tells_how_it_was_made(finished):
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert set(manifest) == {
        "format", "versions", "device", "threads", "seeds", "blocks", "timings", "compilation", "files",
        "checksum", "histories",
    }  # fmt: skip
    assert manifest["blocks"] == dict.fromkeys(("none", "rectangle", "fpa"), 32)
    assert {"fpa", "torch", "numpy", "python"} <= set(manifest["versions"])
    expected = {"train", "evaluate none", "evaluate rectangle", "evaluate fpa", "tables", "figures", "report"}
    assert set(manifest["timings"]) == expected


def test_the_areas_are_those_of_the_stored_curves(finished):
    folder, study = finished
    again = read_study(folder)
    for name, model in again.models.items():
        curves = model.evaluation
        assert len(curves.indices) == 40
        for estimator, score in model.fidelity.items():
            assert score.area == study.models[name].fidelity[estimator].area
            plain = Fidelity.from_curves(curves.mif[estimator], curves.lif[estimator], curves.fractions)
            if not any(one.left_out for other in again.models.values() for one in other.fidelity.values()):
                assert plain.area == score.area


def test_the_examples_are_images_of_the_evaluation_with_the_maps_of_the_curves(finished):
    _, study = finished
    for model in study.models.values():
        examples = model.examples
        assert examples.images.shape == (4, 3, 32, 32)
        assert examples.foreground.shape == (4, 32, 32)
        assert set(examples.indices) <= set(model.evaluation.indices)
        place = {index: row for row, index in enumerate(model.evaluation.indices)}
        rows = [place[index] for index in examples.indices]
        assert np.array_equal(examples.targets, model.evaluation.targets[rows])
        for name, ranks in examples.ranks.items():
            order = ranks.reshape(4, -1)
            assert np.array_equal(np.sort(order, 1), np.tile(np.arange(1024), (4, 1)))
            scores = np.take_along_axis(examples.maps[name].reshape(4, -1), order.argsort(1), 1)
            assert (np.diff(scores, axis=1) >= 0).all()
        assert (examples.fill == 128).all()  # 0 in [-1, 1] as a byte


def test_running_twice_changes_nothing(finished, tmp_path):
    folder = copied(finished[0], tmp_path / "copy")
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }
    run_study(load_recipe("tiny"), folder, device="cpu")
    after = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }
    assert before == after


def test_a_report_made_again_is_kept_by_the_next_run(finished, tmp_path):
    folder = copied(finished[0], tmp_path / "copy")
    show_again(folder, folder)
    before = (folder / "report.html").stat().st_mtime_ns
    run_study(load_recipe("tiny"), folder, device="cpu")
    assert (folder / "report.html").stat().st_mtime_ns == before


def test_killed_at_random_moments_it_makes_the_same_tables(finished, tmp_path):
    command = [*RUN_TINY, "--quiet", "--output", tmp_path / "s"]
    chance = random.Random(1)
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([str(part) for part in command])
        seen = len(files(tmp_path / "s")) if (tmp_path / "s").exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:  # until it has left something new
            if (tmp_path / "s").exists() and len(files(tmp_path / "s")) > seen + 3:
                time.sleep(chance.random())
                break
            time.sleep(0.01)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 2
    run_study(load_recipe("tiny"), tmp_path / "s", device="cpu")
    assert files(tmp_path / "s") == files(finished[0])
    for name in ("table.csv", "table.md", "table.tex"):
        assert (tmp_path / "s" / name).read_bytes() == (finished[0] / name).read_bytes()


class TestBadInput:
    def test_a_changed_recipe_shows_the_difference(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        with pytest.raises(InputError, match=r"another recipe \(evaluation.points: 6 -> 11\).*--overwrite"):
            run_study(load_recipe("tiny", {"evaluation.points": 11}), folder, device="cpu")

    def test_damaged_files_are_named_and_repaired_on_request(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        shard, model = folder / "none/blocks/block-000001.parquet", folder / "fpa/model.safetensors"
        shard.write_bytes(shard.read_bytes()[:200])
        with pytest.raises(InputError, match=r"block-000001.parquet is damaged.*--repair"):
            run_study(load_recipe("tiny"), folder, device="cpu")
        model.write_bytes(model.read_bytes()[:-50])
        flipped = folder / "none/model.safetensors"
        flipped.write_bytes(
            flipped.read_bytes()[:-400] + bytes(255 - one for one in flipped.read_bytes()[-400:])
        )
        with pytest.raises(InputError) as error:
            run_study(load_recipe("tiny"), folder, device="cpu")
        damaged = re.findall(r"(\S+) is damaged", str(error.value))
        named = dict.fromkeys(Path(each).parts[-2:] for each in damaged)
        assert list(named) == [path.parts[-2:] for path in (flipped, shard, model)]
        assert "checksum" in str(error.value)
        assert "--repair" in str(error.value)
        assert files(folder) == files(finished[0])
        run_study(load_recipe("tiny"), folder, device="cpu", repair=True)
        assert (folder / "table.csv").read_bytes() == (finished[0] / "table.csv").read_bytes()

    @pytest.mark.parametrize(
        ("file", "reason"),
        [
            ("model.safetensors", "it is the model of the training fpa"),
            ("evaluation.json", "it is the evaluation of fpa"),
            ("examples.npz", "it is of another evaluation or another model"),
            ("blocks/block-000001.parquet", "it is a block of another evaluation or another model"),
        ],
    )
    def test_a_file_of_another_training_is_named_and_replaced_on_request(
        self, finished, tmp_path, file, reason
    ):
        folder = copied(finished[0], tmp_path / "copy")
        shutil.copy(folder / "fpa" / file, folder / "none" / file)
        for read in (read_study, claim):
            with pytest.raises(InputError, match=rf"none/{file} does not belong here \({reason}\).*--repair"):
                read(folder)
        claim(folder, repair=True)
        assert files(folder) == [name for name in files(finished[0]) if name != f"none/{file}"]

    def test_results_are_read_only_if_recipe_models_and_curves_belong_together(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        recipe = (folder / "recipe.yaml").read_text()
        (folder / "recipe.yaml").write_text(recipe.replace("\nseed: 0", "\nseed: 1"))
        with pytest.raises(
            InputError, match=r"none/model.safetensors was made with other .*\(seed: 0 -> 1\)"
        ):
            read_study(folder)
        for name in ("none", "rectangle", "fpa"):
            (folder / name / "model.safetensors").rename(tmp_path / f"{name}.safetensors")
        with pytest.raises(InputError, match=r"none/evaluation.json was made with other .*\(seed: 0 -> 1\)"):
            read_study(folder)
        (folder / "recipe.yaml").write_text(recipe)
        read_study(folder)  # the models themselves are not needed
        model, card = load_model(tmp_path / "none.safetensors"), read_card(tmp_path / "none.safetensors")
        with torch.no_grad():
            model.head.weight.mul_(-0.5)
        save_model(model, card, folder / "none/model.safetensors")
        with pytest.raises(InputError, match="none holds curves of other weights than those of its model"):
            read_study(folder)

    @pytest.mark.parametrize(
        "content", [b"", b"epoch,loss\n1,none\n", b"\xff\xfe\n", b"loss\n1\n", b"epoch,loss\n1,0.5\n"]
    )
    def test_a_damaged_history_is_named_and_not_lost(self, finished, tmp_path, content):
        folder = copied(finished[0], tmp_path / "copy")
        history = folder / "none/training.csv"
        before = history.read_bytes()
        history.write_bytes(content)
        with pytest.warns(UserWarning, match=r"none/training.csv is damaged.*read from manifest.json"):
            study = read_study(folder)
        assert study.models["none"].history == finished[1].models["none"].history
        assert study.models["none"].history["epoch"] == [1, 2, 3]
        assert history.read_bytes() == content  # who only reads changes nothing
        claim(folder)
        assert history.read_bytes() == before
        assert (folder / "none/training.csv.damaged").read_bytes() == content

    def test_a_lost_history_is_written_again(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        (folder / "none/training.csv").unlink()
        assert read_study(folder).models["none"].history == finished[1].models["none"].history
        claim(folder)
        assert files(folder) == files(finished[0])
        assert (folder / "none/training.csv").read_bytes() == (finished[0] / "none/training.csv").read_bytes()

    def test_of_a_study_that_keeps_no_histories_a_damaged_one_is_left_out(self, finished, tmp_path):
        """Such as those that earlier versions have made."""
        folder = copied(finished[0], tmp_path / "copy")
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["histories"], manifest["checksum"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "none/training.csv").write_text("loss\n1\n")
        with pytest.warns(UserWarning, match=r"none/training.csv is damaged.*left out"):
            study = read_study(folder)
        assert study.models["none"].history == {}
        assert study.models["fpa"].history["epoch"] == [1, 2, 3]

    @pytest.mark.parametrize(
        "part", [{"files": []}, {"histories": {"none/training.csv": 1}}, {"timings": "x"}]
    )
    def test_a_manifest_of_other_types_is_named(self, finished, tmp_path, part):
        folder = copied(finished[0], tmp_path / "copy")
        manifest = json.loads((folder / "manifest.json").read_text()) | part
        del manifest["checksum"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InputError, match=r"manifest.json is damaged \(.* must be a mapping"):
            read_study(folder)

    def test_an_overwriting_that_was_interrupted_can_be_repeated(self, finished, tmp_path, monkeypatch):
        folder = copied(finished[0], tmp_path / "copy")
        calls, usual = iter(range(100)), Path.unlink

        def stops(self, missing_ok=False):
            if next(calls) == 4:
                raise KeyboardInterrupt
            usual(self, missing_ok)

        monkeypatch.setattr(Path, "unlink", stops)
        with pytest.raises(KeyboardInterrupt):
            StudyFolder(folder).clear()
        monkeypatch.undo()
        StudyFolder(folder).clear()
        assert files(folder) == []

    def test_files_of_something_else_among_the_curves(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        shard, described = folder / "none/blocks/block-000001.parquet", folder / "fpa/evaluation.json"
        pq.write_table(pa.table({"x": [1]}), shard)
        described.write_text(json.dumps({"format": 2, "model": "x"}))
        for read in (
            lambda: read_study(folder),
            lambda: run_study(load_recipe("tiny"), folder, device="cpu"),
        ):
            with pytest.raises(InputError, match=r"none/blocks/block-000001.parquet is damaged.*--repair"):
                read()
        with pytest.raises(
            InputError, match=r"evaluation.json is damaged \(plan must be a mapping.*--repair"
        ):
            run_study(load_recipe("tiny"), folder, device="cpu")
        run_study(load_recipe("tiny"), folder, device="cpu", repair=True)
        assert (folder / "table.csv").read_bytes() == (finished[0] / "table.csv").read_bytes()

    @pytest.mark.parametrize("content", ["", "- a\n", "{", "colour: red\n"])
    def test_a_recipe_that_cannot_be_read(self, finished, tmp_path, content):
        folder = copied(finished[0], tmp_path / "copy")
        (folder / "recipe.yaml").write_text(content)
        for read in (
            lambda: read_study(folder),
            lambda: run_study(load_recipe("tiny"), folder, device="cpu"),
        ):
            with pytest.raises(InputError, match=r"restore .*recipe.yaml, or .*--overwrite"):
                read()

    def test_damaged_descriptions_are_named_and_repaired(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        for name in ("manifest.json", "none/evaluation.json"):
            (folder / name).write_text("{")
            with pytest.raises(InputError, match=rf"{name} is damaged.*--repair"):
                run_study(load_recipe("tiny"), folder, device="cpu")
            run_study(load_recipe("tiny"), folder, device="cpu", repair=True)
        assert (folder / "table.csv").read_bytes() == (finished[0] / "table.csv").read_bytes()

    def test_what_is_missing_of_tables_and_figures_is_made_again(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        (folder / "table.md").unlink()
        (folder / "report.html").write_text("")
        figure = folder / "figures" / "ranks.png"
        figure.write_bytes(figure.read_bytes()[:-1] + b"\0")  # of the same size
        run_study(load_recipe("tiny"), folder, device="cpu")
        assert files(folder) == files(finished[0])
        assert (folder / "report.html").stat().st_size > 10000
        Image.open(figure).verify()

    def test_a_manifest_that_says_less(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        stored = read_json(folder / "manifest.json")
        for name in ("files", "compilation", "blocks"):
            del stored[name]
        (folder / "manifest.json").write_text(json.dumps(stored))
        (folder / "none/examples.npz").unlink()
        run_study(load_recipe("tiny"), folder, device="cpu")
        again = json.loads((folder / "manifest.json").read_text())
        assert set(again["files"]) == {"train", "tables", "figures", "report"}
        assert again["blocks"] == {"none": 32}

    def test_the_manifest_notes_what_else_took_part(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        stored = read_json(folder / "manifest.json")
        here = {name: stored[name] for name in ("versions", "device", "threads")}
        stored["device"] = "abacus"
        (folder / "manifest.json").write_text(json.dumps(stored))
        for name in ("none", "fpa"):
            (folder / name / "examples.npz").unlink()
        run_study(load_recipe("tiny"), folder, device="cpu")
        again = json.loads((folder / "manifest.json").read_text())
        assert again["device"] == "abacus"
        assert again["also"] == [here]

    def test_curves_of_another_model_are_made_again(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        path = folder / "none" / "model.safetensors"
        model, card = load_model(path), read_card(path)
        with torch.no_grad():
            model.head.weight.mul_(-0.5)
        save_model(model, card, path)
        before = (folder / "table.csv").read_text()
        run_study(load_recipe("tiny"), folder, device="cpu")
        assert (folder / "table.csv").read_text() != before

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"data.name": "folder:/nowhere"}, "/nowhere"),
            ({"evaluation.estimators": ["ig_sun"]}, "unknown estimator 'ig_sun'"),
            ({"evaluation.estimators": ["random", "vg_abs"]}, "at least two explanations"),
            ({"data.evaluation_images": 1}, "must be at least 2"),
            ({"model": "alexnet"}, "cannot take images"),
        ],
    )
    def test_nothing_is_lost_or_claimed_before_the_input_is_known_to_be_good(
        self, finished, tmp_path, fields, message
    ):
        recipe = load_recipe("tiny", fields)
        with pytest.raises(InputError, match=message):
            run_study(recipe, tmp_path / "new", device="cpu")
        assert not (tmp_path / "new").exists()
        copied(finished[0], tmp_path / "copy")
        (tmp_path / "copy" / ".my.own.file").write_text("kept")
        with pytest.raises(InputError, match=message):
            run_study(recipe, tmp_path / "copy", device="cpu", overwrite=True)
        assert files(tmp_path / "copy") == sorted([".my.own.file", *files(finished[0])])

    def test_another_format(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "old")
        (folder / "manifest.json").write_text(json.dumps({"format": 0}))
        (folder / "recipe.yaml").write_text("name: tiny\nan_older_field: 3\n")
        with pytest.raises(InputError, match=r"another version of fpa"):
            read_study(folder)
        with pytest.raises(InputError, match=r"another version of fpa"):
            run_study(load_recipe("tiny"), folder, device="cpu")

    def test_overwriting_a_folder_that_is_no_study(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(InputError, match="holds no study: nothing was removed"):
            run_study(load_recipe("tiny"), tmp_path, device="cpu", overwrite=True)
        assert (tmp_path / "thesis.txt").exists()

    @pytest.mark.parametrize(
        "own",
        [
            "table.csv",
            "report.html",
            "manifest.json",
            "figures/ranks.png",
            "none/training.csv",
            "fpa/evaluation.json",
        ],
    )
    def test_files_of_no_study_are_never_overwritten(self, tmp_path, own):
        (tmp_path / own).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / own).write_text("mine")
        for options in ({}, {"repair": True}, {"overwrite": True}):
            with pytest.raises(InputError, match="holds no study"):
                run_study(load_recipe("tiny"), tmp_path, device="cpu", **options)
        assert files(tmp_path) == [own]
        assert (tmp_path / own).read_text() == "mine"

    def test_repairing_touches_no_study_of_another_recipe(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        (folder / "none/model.safetensors").write_bytes(b"broken")
        with pytest.raises(InputError, match="another recipe"):
            run_study(load_recipe("tiny", {"seed": 5}), folder, device="cpu", repair=True)
        assert files(folder) == files(finished[0])

    def test_repairing_removes_no_model_of_a_folder_without_a_recipe(self, tmp_path):
        (tmp_path / "none").mkdir()
        (tmp_path / "none/model.safetensors").write_text("mine")
        with pytest.raises(InputError, match=r"none/model.safetensors is damaged"):
            run_study(load_recipe("tiny"), tmp_path, device="cpu", repair=True)
        assert files(tmp_path) == ["none/model.safetensors"]

    def test_overwriting_removes_what_a_study_writes_and_nothing_else(self, finished, tmp_path):
        folder = copied(finished[0], tmp_path / "copy")
        own = ["figures/mine.png", "fpa/blocks/notes.txt", "none/my.safetensors"]
        for name in own:
            (folder / name).write_text("mine")
        StudyFolder(folder).clear()
        assert files(folder) == own
        assert not (folder / "rectangle").exists()

    @pytest.mark.parametrize("part", ["none", "figures", "fpa/blocks"])
    def test_overwriting_removes_nothing_where_a_part_is_a_link(self, finished, tmp_path, part):
        folder = copied(finished[0], tmp_path / "copy")
        (folder / part).rename(tmp_path / "elsewhere")
        (folder / part).symlink_to(tmp_path / "elsewhere")
        before = files(folder), files(tmp_path / "elsewhere")
        with pytest.raises(InputError, match=rf"{part} is a link to another folder: nothing was removed"):
            StudyFolder(folder).clear()
        assert (files(folder), files(tmp_path / "elsewhere")) == before

    def test_a_report_does_not_replace_that_of_another_study(self, finished, tmp_path):
        other = copied(finished[0], tmp_path / "other")
        with pytest.raises(InputError, match="holds another study"):
            show_again(finished[0], other)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "report.html").write_text("mine")
        with pytest.raises(InputError, match=r"would be overwritten: report.html"):
            show_again(finished[0], tmp_path / "mine")
        assert (tmp_path / "mine" / "report.html").read_text() == "mine"
        show_again(finished[0], tmp_path / "mine", overwrite=True)
        assert (tmp_path / "mine" / "report.html").read_text() != "mine"
        with pytest.raises(InputError, match="holds another study"):
            show_again(finished[0], other, overwrite=True)

    def test_no_study(self, tmp_path):
        with pytest.raises(InputError, match="holds no study"):
            read_study(tmp_path)


def evaluate(model, output, *more):
    command = [
        "evaluate",
        model,
        "--ig_steps",
        10,
        "--sg_samples",
        3,
        "--points",
        6,
        "--device",
        "cpu",
        "--quiet",
    ]
    return main([str(word) for word in [*command, "--output", output, *more]])


def test_one_saved_model_is_evaluated_alone(finished, tmp_path, capsys):
    """The same folder, files and curves as in the study; another model is not mixed in."""
    folder, study = finished
    model, chosen = folder / "fpa" / "model.safetensors", study.recipe["evaluation"]
    how = ["--ig_steps", chosen["ig_steps"], "--sg_samples", chosen["sg_samples"], "--count", 40]
    assert evaluate(model, tmp_path / "one", *how, "--points", chosen["points"]) == 0
    alone, whole = load_result(tmp_path / "one").evaluation, study.models["fpa"].evaluation
    assert alone.indices.tolist() == whole.indices.tolist()
    for name, curve in alone.mif.items():
        assert np.array_equal(curve, whole.mif[name])
    assert {"table.csv", "table.md", "table.tex", "report.html", "figures/ranks.png"} <= set(
        files(tmp_path / "one")
    )
    other = folder / "none" / "model.safetensors"
    assert evaluate(other, tmp_path / "one", *how, "--points", chosen["points"]) == 2
    assert "holds an evaluation of another model" in capsys.readouterr().err
    results = read_results(tmp_path / "one")
    assert results.recipe is None
    write_comparison([study, results], tmp_path / "both")
    assert "overview-signed.png" in files(tmp_path / "both")


def test_a_damaged_model_is_refused_before_anything_is_written(finished, tmp_path, capsys):
    model = tmp_path / "my model (1).safetensors"
    content = (finished[0] / "fpa" / "model.safetensors").read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert evaluate(model, tmp_path / "out", "--count", 4) == 2
    assert "my model (1).safetensors is damaged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    model.write_bytes(content)
    assert evaluate(model, tmp_path / "out", "--count", 4) == 0


def test_overwriting_an_evaluation_leaves_everything_else(finished, tmp_path, capsys):
    folder = copied(finished[0], tmp_path / "copy")
    assert evaluate(folder / "fpa/model.safetensors", folder, "--count", 4, "--overwrite") == 2
    assert "study" in capsys.readouterr().err
    assert files(folder) == files(finished[0])
    part = folder / "fpa"
    assert evaluate(part / "model.safetensors", part, "--count", 4, "--overwrite") == 2
    assert "holds a study, or a part of one" in capsys.readouterr().err
    assert files(folder) == files(finished[0])
    assert evaluate(part / "model.safetensors", tmp_path / "alone", "--count", 4) == 0
    (tmp_path / "alone/mine.txt").write_text("mine")
    assert evaluate(part / "model.safetensors", tmp_path / "alone", "--count", 5, "--overwrite") == 0
    assert (tmp_path / "alone/mine.txt").read_text() == "mine"


def test_classes_of_other_names_are_assumed_to_have_the_models_order(tmp_path, capsys):
    folder = write_image_folder(tmp_path / "eight", tuple("abcdefgh"), train=1, val=1)
    command = ["evaluate", "shapes-fpa", "--data", f"folder:{folder}", "--ig_steps", "2", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    assert "order" in capsys.readouterr().err
    folder = write_image_folder(tmp_path / "two", ("cat", "dog"), train=1, val=1)
    command[3] = f"folder:{folder}"
    assert main([*command, "--output", str(tmp_path / "other")]) == 0
    assert "no accuracy" in capsys.readouterr().err


def test_a_study_goes_on_with_trained_models(finished, tmp_path):
    for name in ("none", "rectangle", "fpa"):
        (tmp_path / name).mkdir()
        for file in ("model.safetensors", "training.csv"):
            shutil.copy(finished[0] / name / file, tmp_path / name / file)
    run_study(load_recipe("tiny"), tmp_path, device="cpu")
    assert "train" not in json.loads((tmp_path / "manifest.json").read_text())["timings"]
    assert (tmp_path / "table.csv").read_bytes() == (finished[0] / "table.csv").read_bytes()


def test_commands(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = str(finished[0])
    copied(folder, "copy")
    assert main(["run", "tiny", "--output", "copy", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "Signed-unsigned pairs" in out
    assert "report.html" in out
    assert main(["report", folder, "--output", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "report.html").exists()
    assert Path("again/table.csv").read_bytes() == Path(folder, "table.csv").read_bytes()
    pages = (Path(place, "report.html").read_text(encoding="utf-8") for place in ("again", folder))
    again, before = (re.sub(r"<svg class=.figure.*?</svg>", "", page, flags=re.DOTALL) for page in pages)
    assert again == before
    command = [
        "evaluate",
        "shapes-fpa",
        "--count",
        "6",
        "--ig_steps",
        "2",
        "--device",
        "cpu",
        "--output",
        "one",
    ]
    assert main(command) == 0
    assert "SG'_sum" in capsys.readouterr().out
    assert main(["compare", folder, "one", "--output", "both"]) == 0
    assert files(Path("both")) == [
        "comparison.csv", "overview-signed.pdf", "overview-signed.png", "overview-unsigned.pdf",
        "overview-unsigned.png",
    ]  # fmt: skip
    compared = pd.read_csv("both/comparison.csv")
    for place, results in ((folder, finished[1]), ("one", read_results("one"))):
        for model in results.models.values():
            rows = compared[compared.area.round(3) == round(model.fidelity["ig_sum"].area, 3)]
            assert "ig_sum" in set(rows.estimator), place
    assert main(["evaluate", "shapes-fap"]) == 2
    assert "did you mean 'shapes-fpa'" in capsys.readouterr().err
    assert main(["report", "nowhere"]) == 2


def test_the_report_says_how_to_repeat_the_study_into_another_folder(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied(finished[0], "my study")
    show_again(Path("my study"), Path("my study"))
    html = unescape(Path("my study/report.html").read_text(encoding="utf-8"))
    command = "fpa run 'my study/recipe.yaml' --output 'my study-again'"
    assert f">{command}</pre>" in html
    monkeypatch.chdir("my study")
    assert repeat_command(Path()) == shlex.join(
        ["fpa", "run", f"{tmp_path}/my study/recipe.yaml", "--output", f"{tmp_path}/my study-again"]
    )


def test_studies_without_signed_estimators_are_compared(finished, tmp_path):
    study, output = finished[1], tmp_path / "both"

    def without_signs(model):
        estimators = {
            name: {
                **each,
                "sign": each["sign"].replace("signed", "unsigned").replace("ununsigned", "unsigned"),
            }
            for name, each in model.plan["estimators"].items()
        }
        return described(model, plan={**model.plan, "estimators": estimators})

    unsigned = replace(study, models={name: without_signs(model) for name, model in study.models.items()})
    write_comparison([study, unsigned], output)
    assert "overview-signed.png" in files(output)
    write_comparison([unsigned], output)
    assert files(output) == ["comparison.csv", "overview-unsigned.pdf", "overview-unsigned.png"]


def test_the_shipped_models_are_the_recipes():
    least = {"shapes": {"none": 0.97, "rectangle": 0.94, "fpa": 0.94}}
    least["cifar10-small"] = {"none": 0.90, "rectangle": 0.89, "fpa": 0.88}
    expected = {f"{name}-{training}" for name, accuracies in least.items() for training in accuracies}
    assert {*shipped_models()} == expected
    for name in shipped_models():
        card, recipe = load_model(name).card, load_recipe(name.rpartition("-")[0]).to_dict()
        assert card.recipe["training"] == recipe["training"]
        assert card.recipe.get("fpa", recipe["fpa"]) == recipe["fpa"]
        assert ("fpa" in card.recipe) or card.augmentation != "fpa"
        assert name == f"{recipe['name']}-{card.augmentation}"
        assert card.accuracy >= least[recipe["name"]][card.augmentation]
        assert model_path(name).stat().st_size < 1_000_000


def test_variants_are_trained_evaluated_and_shown_under_their_names(tmp_path):
    """Any number of them: other settings, another seed; beside the paper's, with looks of their own."""
    variants = {
        "strong": {"augmentation": "fpa", "fpa": {"p1_max": 0.5}},
        "again": {"augmentation": "none", "seed": 1},
    }
    changes = {
        "augmentations": ["none"],
        "variants": variants,
        "evaluation.estimators": ["vg_abs", "vgx_sum"],
    }
    results = run_study(load_recipe("tiny", changes), tmp_path, device="cpu")
    assert list(results.models) == ["none", "strong", "again"]
    assert {name: model.augmentation for name, model in results.models.items()} == {
        "none": "none", "strong": "fpa", "again": "none",
    }  # fmt: skip
    assert results.models["strong"].about["training"]["p1_max"] == 0.5
    assert read_card(tmp_path / "strong/model.safetensors").variant == "strong"
    table = pd.read_csv(tmp_path / "table.csv")
    assert set(table["model"]) == set(results.models)
    weights = [load_model(tmp_path / name / "model.safetensors").head.weight for name in results.models]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    StudyFolder(tmp_path).clear()
    assert files(tmp_path) == []


def test_a_second_run_says_who_is_at_work_and_touches_nothing(finished, tmp_path):
    folder = copied(finished[0], tmp_path / "copy")
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    command = [*RUN_TINY, "--overwrite", "--output", str(folder)]
    with folder_lock(folder):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert f"is in use by process {os.getpid()} on " in second.stderr
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


@pytest.mark.parametrize("part", ["", "none"])
def test_a_study_and_a_run_into_one_of_its_parts_keep_each_other_out(finished, tmp_path, part):
    folder = copied(finished[0], tmp_path / "copy")
    held = threading.Event()
    done = threading.Event()

    def hold():
        with folder_lock(folder / part):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with pytest.raises(InputError, match="is in use by another run in this process"):
            run_study(load_recipe("tiny"), folder, device="cpu", overwrite=True)
    finally:
        done.set()
        thread.join()
    assert files(folder) == files(finished[0])
