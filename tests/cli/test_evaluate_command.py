"""`fpa evaluate`: one way for models of every kind, into one kind of folder."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fpa
from fpa.cli.main import main
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_evaluation_data
from fpa.explanation import Settings
from fpa.masking import Blur
from fpa.models.architectures import build_model
from fpa.models.saved import save_model
from fpa.notes import Kind, Note
from fpa.show import summary
from fpa.show.words import Reader, clause
from miniatures import write_class_folder

HALF = Normalisation((0.5,) * 3, (0.5,) * 3)
SMALL = ("--estimators", "ig_sum,vg_abs", "--points", "3", "--ig_steps", "2", "--device", "cpu")
PHOTOS = ("--size", "16", "--mean", "0.5,0.5,0.5", "--std", "[0.5,0.5,0.5]", "--data", "folder:photos")
QUICK = (*SMALL, *PHOTOS, "--workers", "0")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_class_folder(tmp_path / "photos", ["cat", "dog"], 3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def model(classes=2):\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),\n"
        "                         nn.Flatten(), nn.Linear(4, classes), nn.Softplus())\n"
        "def ten():\n"
        "    return model(10)\n"
    )
    return tmp_path


def run(capsys, *arguments):
    code = main(["evaluate", *map(str, arguments)])
    return code, *capsys.readouterr()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def areas(folder):
    return {name: each.area for name, each in fpa.load_result(folder).fidelity.items()}


@pytest.mark.filterwarnings("ignore:labels unknown")
def test_photos_have_the_size_of_the_models_own_images(here, capsys):
    """A shipped model takes 32 px: from Python as in the command, for an evaluation and for an audit."""
    model = fpa.load_model("shapes-none")
    photos = ("--data", "folder:photos", "--workers", "0")
    code, _, err = run(capsys, "shapes-none", *photos, *SMALL, "--output", "own")
    assert code == 0, err
    how = {"settings": Settings(ig_steps=2), "points": 3, "examples": 2, "progress": False}
    result = fpa.evaluate(model, "folder:photos", ["ig_sum", "vg_abs"], **how)
    assert result.examples.images.shape[2:] == (32, 32)
    assert {name: each.area for name, each in result.fidelity.items()} == areas("own")
    quick = {"maskings": ["constant"], "points": 3, "progress": False}
    audit = fpa.audit(model, "folder:photos", ["vgx_sum", "vg_abs"], **quick)
    assert audit.made_with["images"] == "32 x 32 pixels"


def test_a_model_and_photos_of_ones_own(here, capsys):
    code, out, err = run(capsys, "--model", "mine:model", "--output", "own", *QUICK)
    assert code == 0, err
    assert "IG_sum" in out
    assert "report: own/report.html" in out
    sys.path.insert(0, str(here))
    try:
        import mine
    finally:
        sys.path.remove(str(here))
    expected = fpa.evaluate(
        mine.model(),
        load_evaluation_data("folder:photos", size=16),
        ["ig_sum", "vg_abs"],
        normalisation=HALF,
        points=3,
        settings=Settings(ig_steps=2),
        progress=False,
    )
    assert areas("own") == {name: each.area for name, each in expected.fidelity.items()}


def test_python_takes_the_images_and_the_normalisation_that_the_command_takes(here, capsys):
    write_class_folder(here / "many", ["ant", "bee", "cat", "dog"], 8)
    photos = ("--size", "224", "--mean", "0.4,0.4,0.4", "--std", "0.2,0.2,0.2", "--data", "folder:many")
    code, _, err = run(capsys, "mine:ten", *SMALL, *photos, "--workers", "0", "--count", "6", "--output", "a")
    assert code == 0, err
    chosen = fpa.load_result("a").evaluation.indices.tolist()
    sys.path.insert(0, str(here))
    try:
        import mine
    finally:
        sys.path.remove(str(here))
    scale = Normalisation((0.4,) * 3, (0.2,) * 3)
    how = {"points": 3, "settings": Settings(ig_steps=2), "count": 6, "progress": False}
    with pytest.warns(UserWarning, match="labels unknown"):
        by_name = fpa.evaluate(mine.ten(), "folder:many", ["ig_sum", "vg_abs"], normalisation=scale, **how)
    assert by_name.evaluation.indices.tolist() == chosen
    assert areas("a") == {name: each.area for name, each in by_name.fidelity.items()}
    files = ImageFolder(here / "many", transform=v2.Compose([v2.Resize((32, 32)), v2.PILToTensor()]))
    with pytest.warns(UserWarning, match="labels unknown"):
        brought = fpa.evaluate(mine.ten(), files, ["vg_abs"], normalisation=scale, **how)
    assert brought.evaluation.indices.tolist() == chosen


@pytest.mark.parametrize("call", [fpa.evaluate, fpa.audit, fpa.finetune])
def test_python_asks_for_a_normalisation_that_nobody_says(here, call):
    write_class_folder(here / "files" / "train", ["cat", "dog"], 3)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(
        fpa.InputError, match=r"pass normalisation=fpa.Normalisation\(mean, std\), for pixels"
    ):
        call(model, "folder:files")


def test_photos_by_name_are_normalised_as_the_model_says(here):
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)).eval()
    scale = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    how = {"points": 3, "progress": False, "examples": 0}
    expected = fpa.evaluate(model, "folder:photos", ["vg_abs", "vgx_sum"], normalisation=scale, **how)
    other = fpa.evaluate(model, "folder:photos", ["vg_abs", "vgx_sum"], normalisation=HALF, **how)
    assert not np.allclose(other.evaluation.unmasked, expected.evaluation.unmasked)
    model.card = fpa.ModelCard("mine", ["cat", "dog"], (3, 224, 224), scale.mean, scale.std)
    for data in ("folder:photos", load_evaluation_data("folder:photos")):
        found = fpa.evaluate(model, data, ["vg_abs", "vgx_sum"], **how)
        np.testing.assert_array_equal(found.evaluation.unmasked, expected.evaluation.unmasked)


def test_every_kind_of_model_leaves_the_same_files_and_numbers(here, capsys):
    model = fpa.load_model("shapes-fpa")
    save_model(model, model.card, here / "saved.safetensors")
    torch.save(model.state_dict(), here / "weights.pth")
    (here / "bare.py").write_text(
        "from fpa.models import build_model\n"
        "def small(): return build_model('resnet-small', 8, (3, 32, 32))\n"
    )
    kinds = {
        "shipped": ["shapes-fpa"],
        "named": ["--model", "shapes-fpa"],
        "saved": ["saved.safetensors"],
        "function": ["bare:small", "--weights", "weights.pth", "--data", "shapes", *PHOTOS[2:6]],
    }
    for kind, words in kinds.items():
        code, _, err = run(capsys, *words, *SMALL, "--count", "4", "--quiet", "--output", kind)
        assert (code, err) == (0, ""), kind
        expected = [name for name in files("shipped") if "fpa-examples" not in name]
        assert [name for name in files(kind) if "fpa-examples" not in name] == expected  # of its training
        assert areas(kind) == areas("shipped")
    left = {"evaluation.json", "table.csv", "table.md", "table.tex", "report.html", "examples.npz"}
    assert left <= set(files("shipped"))
    assert {"blocks/block-000000.parquet", "blocks/scores-000000.parquet"} <= set(files("shipped"))
    assert {"figures/fidelity.png", "figures/fidelity.pdf"} <= set(files("shipped"))
    about = json.loads((here / "shipped" / "evaluation.json").read_text())
    assert about["command"].startswith("fpa evaluate shapes-fpa --estimators ig_sum,vg_abs --points 3")
    assert about["augmentation"] == "fpa"


def test_torchvision_with_options_of_all_kinds(here, capsys):
    from torchvision.models import squeezenet1_1

    torch.manual_seed(0)
    model = squeezenet1_1(num_classes=2)
    torch.save(model.state_dict(), "weights.pth")
    own = [
        "torchvision:squeezenet1_1",
        "--weights",
        "weights.pth",
        "--data",
        "folder:photos",
        "--workers",
        "0",
    ]
    how = ["--size", "32", "--masking.name", "blur", "--masking.sigma", "4", "--features", "8", "--seed", "3"]
    more = [
        "--outputs",
        "probability,margin",
        "--precision",
        "float32",
        "--batch_size",
        "5",
        "--examples",
        "2",
    ]
    code, _, err = run(capsys, *own, *how, *more, *SMALL, "--count", "4", "--quiet", "--output", "squeezed")
    assert (code, err) == (0, "")
    result = fpa.load_result("squeezed")
    plan = result.about["plan"]
    assert plan["masking"] == {"name": "blur", "sigma": 4.0}
    assert (plan["features"], plan["seed"], plan["outputs"]) == (8, 3, ["probability", "margin"])
    assert plan["fractions"] == [0.0, 0.5, 1.0]
    assert len(result.evaluation.indices) == 4
    assert len(result.examples.indices) == 2
    expected = fpa.evaluate(
        model.eval(),
        load_evaluation_data("folder:photos", size=32, evaluation_images=4),
        ["ig_sum", "vg_abs"],
        masking=Blur(4),
        points=3,
        features=8,
        outputs=["probability", "margin"],
        settings=Settings(ig_steps=2),
        normalisation=Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        seed=3,
        progress=False,
    )
    for name, area in areas("squeezed").items():
        assert area == pytest.approx(expected.fidelity[name].area, abs=1e-3)


def test_a_single_image_has_areas_without_intervals(here, capsys):
    code, out, err = run(capsys, "shapes-fpa", *SMALL, "--count", "1", "--output", "one")
    assert code == 0, err
    assert "1 image used, 0 left out." in out
    assert summary.too_few(1) in " ".join(out.split())
    page = Path("one/report.html").read_text(encoding="utf-8")
    for text in (out, err, str(fpa.load_result("one").fidelity["ig_sum"]), page):
        assert "± nan" not in text
        assert "± –" not in text
        assert not re.search(r"(?<![\d.,])1 images(?!/s)", text)  # a speed may end in 1


def test_the_masking_of_the_training_is_the_default(here, capsys):
    model = fpa.load_model("shapes-fpa")
    recipe = {**model.card.recipe, "masking": {"name": "blur", "sigma": 3}}
    save_model(model, replace(model.card, recipe=recipe), here / "blurred.safetensors")
    for words, sigma in (([], 3.0), (["--masking.name", "blur"], None)):
        output = f"blur-{sigma}"
        command = ["blurred.safetensors", *words, *SMALL, "--count", "2", "--quiet", "--output", output]
        assert run(capsys, *command)[0] == 0
        assert fpa.load_result(output).about["plan"]["masking"] == {"name": "blur", "sigma": sigma}


def test_it_continues_refuses_and_overwrites(here, capsys):
    command = ["shapes-fpa", *SMALL, "--count", "4", "--quiet", "--output", "kept"]
    assert run(capsys, *command)[0] == 0
    block = here / "kept" / "blocks" / "block-000000.parquet"
    written = block.stat().st_mtime_ns
    assert run(capsys, *command)[0] == 0
    assert block.stat().st_mtime_ns == written
    code, _, err = run(capsys, *command, "--masking", "mean")
    assert code == 2
    assert "holds an evaluation with other masking" in err
    (here / "kept" / "notes.txt").write_text("mine")
    assert run(capsys, *command, "--masking", "mean", "--overwrite")[0] == 0
    assert fpa.load_result("kept").about["plan"]["masking"]["name"] == "mean"
    assert (here / "kept" / "notes.txt").read_text() == "mine"
    # Nothing is deleted where there is no evaluation, or where the new one could not start.
    (here / "letters").mkdir()
    (here / "letters" / "letter.txt").write_text("dear")
    code, _, err = run(capsys, *command[:-1], "letters", "--overwrite")
    assert code == 2
    assert "letters is not empty and holds no evaluation: nothing was deleted" in err
    (here / "study").mkdir()
    (here / "study" / "table.csv").write_text("of a study")
    assert (
        "study holds tables, figures or a report of something else" in run(capsys, *command[:-1], "study")[2]
    )
    assert run(capsys, *command, "--features", "64", "--overwrite")[0] == 2
    assert block.exists()
    assert (here / "kept" / "table.csv").exists()


def test_killed_it_continues_with_the_blocks_that_are_there(here, capsys):
    command = ["evaluate", "shapes-fpa", *SMALL, "--count", "96", "--quiet", "--output", "killed"]
    process = subprocess.Popen([sys.executable, "-m", "fpa", *command])
    first = here / "killed" / "blocks" / "block-000000.parquet"
    while not first.exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    written = first.stat().st_mtime_ns
    assert main(command) == 0
    assert first.stat().st_mtime_ns == written
    assert len(fpa.load_result("killed").evaluation.indices) == 96


def test_report_and_compare_take_evaluations(here, capsys):
    for name in ("shapes-fpa", "shapes-none"):
        assert run(capsys, name, *SMALL, "--count", "4", "--quiet", "--output", name)[0] == 0
    table = (here / "shapes-fpa" / "table.csv").read_bytes()
    assert main(["report", "shapes-fpa", "--output", "again"]) == 0
    assert "report: again/report.html" in capsys.readouterr().out
    assert (here / "again" / "table.csv").read_bytes() == table
    assert main(["compare", "shapes-fpa", "shapes-none", "--output", "both"]) == 0
    assert "IG_sum" in capsys.readouterr().out
    assert "comparison.csv" in files("both")


def test_labels_that_fit_no_output_are_unknown(here, capsys):
    code, _, err = run(capsys, "mine:ten", "--output", "ten", *QUICK)
    assert code == 0, err
    assert "10 outputs" in err
    assert fpa.load_result("ten").accuracy is None
    code, _, err = run(capsys, "mine:ten", "--output", "five", "--class_index", "[5,0]", *QUICK)
    assert "10 outputs" not in err
    assert set(fpa.load_result("five").evaluation.labels) == {0, 5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "folder:photos"], "name one model"),
        (["shapes-fpa", "--model", "shapes-fpa"], "name one model"),
        (["mine:model"], "say which images"),
        (["mine:model", "--data", "folder:photos"], "give --mean and --std"),
        (["mine:model", "--mean", "[0.5]"], "give both --mean and --std"),
        (["mine:model", *QUICK, "--std", "[0,1,1]"], "a positive std for every channel"),
        (["mine:model", *QUICK, "--mean", "half"], "--mean must be a list of numbers, got half"),
        (["mine:model", *QUICK, "--points", "0"], "points"),
        (["mine:model", *QUICK, "--masking", "blurr"], "did you mean 'blur'"),
        (["mine:model", *QUICK, "--masking.name", "blur", "--masking.radius", "2"], "blur takes sigma"),
        (["mine:model", *QUICK, "--outputs", "logits"], "unknown output 'logits'"),
        (["mine:model", *QUICK, "--scores", "B"], "unknown score 'B'"),
        (["mine:model", *QUICK, "--precision", "float8"], "--precision must be one of auto, float32, tf32"),
        (["mine:model", *QUICK, "--batch_size", "0"], "batch_size must be at least 1, got 0"),
        (["mine:none", *QUICK], "cannot be imported"),
        (["torchvision:resnet18", *QUICK], "needs weights"),
        (["mine:model", *QUICK, "--data", "folder:nowhere"], "there is no folder nowhere"),
        (["mine:model", *QUICK, "--data", "folder:empty"], "there are no images in empty: expected some"),
        (["mine:model", *QUICK, "--size", "-1"], "--size must be at least 1, got -1"),
        (["mine:model", *QUICK, "--size", "0"], "--size must be at least 1, got 0"),
        (["mine:model", *QUICK, "--size", "200000"], "--size must be at most 4,096, got 200000"),
        (
            ["shapes-fpa", *SMALL, "--size", "64"],
            "--size is for data sets of files: the images of shapes are",
        ),
        (["mine:model", *QUICK, "--device", "tpu"], "device must be cpu, cuda, cuda:N or mps, got 'tpu'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(here, capsys, arguments, message):
    code, out, err = run(capsys, *arguments, "--output", "nothing")
    assert code == 2, out
    assert message in err
    assert err.count("\n") == 1
    assert not (here / "nothing").exists()


COLOURS = """
import torch
from PIL import Image

GREYS = torch.linspace(0, 1, 12)


class Greys(torch.nn.Module):
    def __init__(self, order):
        super().__init__()
        self.greys = torch.nn.Parameter(GREYS[order])
        self.gain = 400

    def forward(self, images):
        grey = (images * 0.25 + 0.3).mean((1, 2, 3))
        return 5 - self.gain * (grey[:, None] - self.greys).square()


def by_number():
    return Greys(list(range(12)))


def by_text():
    return Greys([int(name) for name in sorted(map(str, range(12)))])


def mixed():
    return Greys([11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
"""


@pytest.mark.parametrize(
    ("model", "accuracy", "in_order"),
    [("by_number", "100.0 %", False), ("by_text", "100.0 %", True), ("mixed", "0.0 %", None)],
)
def test_folders_named_by_numbers(model, accuracy, in_order, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"greys_{model}.py").write_text(COLOURS)
    for number in range(12):
        (tmp_path / "photos" / str(number)).mkdir(parents=True)
        grey = round(255 * number / 11)
        for copy in range(3):
            image = Image.new("RGB", (16, 16), (grey, grey, grey))
            image.save(tmp_path / "photos" / str(number) / f"{copy}.png")
    command = [
        "evaluate",
        f"greys_{model}:{model}",
        "--data",
        "folder:photos",
        "--size",
        "16",
        "--device",
        "cpu",
    ]
    command += ["--mean", "0.3,0.3,0.3", "--std", "0.25,0.25,0.25", "--ig_steps", "2", "--sg_samples", "1"]
    command += ["--points", "3", "--workers", "0", "--estimators", "[vg_abs,vgx_sum]"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert accuracy in shown.out
    said = " ".join((shown.out + shown.err).split())
    (folder,) = (tmp_path / "runs").iterdir()
    doubts = fpa.load_result(folder).facts
    if in_order is None:
        (doubt,) = doubts
        assert doubt.kind is Kind.DOUBTFUL_CLASSES
        main(["audit", *command[1:], "--output", "audit"])
        pages = [(folder / "report.html").read_text(), Path("audit/audit.html").read_text()]
        for text in (said, *pages):
            assert clause(doubt)[1:] in text
    else:
        # 0 and 1 are the only folders whose place among the sorted names is their number: 6 images.
        tried = {"in_order": in_order, "right": 36, "otherwise": 6}
        assert clause(Note(Kind.NUMBERS_OR_ORDER, values=tried), Reader(at_shell=True)) in said
        assert doubts == ()


def test_the_maps_of_one_model_judged_by_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "evaluate",
        "shapes-none",
        "--count",
        "12",
        "--ig_steps",
        "2",
        "--points",
        "3",
        "--device",
        "cpu",
    ]
    assert main([*command, "--estimators", "[ig_sum,vg_abs]", "--judge", "shapes-fpa"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "evaluate-shapes-none-by-shapes-fpa-estimators-ig_sum+vg_abs-ig_steps2-points3-12"
    (line,) = summary.judges(fpa.load_result(folder).results)
    for shown in (out, (folder / "report.html").read_text()):
        assert line in shown
    assert json.loads((folder / "evaluation.json").read_text())["judge"] == "shapes-fpa"
    other = fpa.load_model("shapes-fpa")
    save_model(other, replace(other.card, mean=(0.4,) * 3), tmp_path / "other.safetensors")
    assert main([*command, "--judge", "other.safetensors"]) == 2
    assert "other.safetensors cannot judge shapes-none: its normalisation is" in capsys.readouterr().err
    assert main([*command, "--judge", "nothing"]) == 2
    classes = other.card.classes
    for names, told in [
        ([*classes[:-1], "blob"], f"its class {len(classes) - 1} is 'blob', not {classes[-1]!r}"),
        ([*classes, "blob"], f"it has {len(classes) + 1} classes, not {len(classes)}"),
    ]:
        card = replace(other.card, classes=names)
        model = build_model(card.architecture, len(names), card.input_shape)
        save_model(model, card, tmp_path / "other.safetensors")
        assert main([*command, "--judge", "other.safetensors"]) == 2
        assert told in capsys.readouterr().err
    numbered = replace(other.card, classes=list(map(str, range(len(classes)))))  # came without names
    save_model(other, numbered, tmp_path / "other.safetensors")
    few = [*command, "--estimators", "vg_abs", "--judge", "other.safetensors"]
    assert main(few) == 0
    for judge in ("torchvision:resnet18", "weights.pth"):
        assert main([*command, "--judge", judge]) == 2
        assert (
            "a judge must be a .safetensors file that fpa has written, a shipped model"
            in capsys.readouterr().err
        )


def test_the_masking_is_by_default_the_one_that_the_judge_knows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    judge = fpa.load_model("shapes-fpa")
    recipe = {**judge.card.recipe, "masking": {"name": "blur", "sigma": 2.0}}
    save_model(judge, replace(judge.card, recipe=recipe), tmp_path / "judge.safetensors")
    command = [
        "evaluate",
        "shapes-none",
        "--count",
        "4",
        "--points",
        "3",
        "--device",
        "cpu",
        "--output",
        "out",
    ]
    assert main([*command, "--estimators", "[vg_abs,vgx_sum]", "--judge", "judge.safetensors"]) == 0
    assert json.loads(Path("out/evaluation.json").read_text())["plan"]["masking"]["name"] == "blur"


def test_a_folder_is_named_by_the_settings_and_refuses_others_that_share_its_name(here, capsys):
    several = ",".join(f"maps:maps/of-a-method-with-a-long-name-{number}.npy" for number in range(3))
    (here / "maps").mkdir()
    for number in range(4):
        maps = torch.rand(6, 16, 16, generator=torch.Generator().manual_seed(number)).numpy()
        np.save(here / "maps" / f"of-a-method-with-a-long-name-{number}.npy", maps)
    command = ["mine:model", "--points", "3", "--device", "cpu", *PHOTOS, "--workers", "0", "--quiet"]
    assert run(capsys, *command, "--estimators", several)[0] == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name == (
        "evaluate-model-photos-"
        "estimators-mapsmapsofamethodwithalongname0.npy+mapsmapsofamethodwithalongname1.n"
    )
    code, _, err = run(capsys, *command, "--estimators", several.replace("name-2", "name-3"))
    assert code == 2
    assert f"{folder} holds an evaluation with other estimators" in err
    assert "--output" in err


def test_the_parts_of_a_masking_with_or_without_its_name_apart(here, capsys):
    shared = ["shapes-fpa", *SMALL, "--count", "2", "--quiet"]
    for number, words in enumerate((
        ["--masking", "blur", "--masking.sigma=1e0"],
        ["--masking.sigma", "1", "--masking.name", "blur"],
        ["--masking", "{name: blur, sigma: 1}"],
    )):  # fmt: skip
        code, _, err = run(capsys, *words, *shared, "--output", f"blurred{number}")
        assert (code, err) == (0, "")
        assert fpa.load_result(f"blurred{number}").about["plan"]["masking"] == {"name": "blur", "sigma": 1.0}
