"""The command: help, versions, exit codes, and messages a person can act on."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fpa import __version__
from fpa.cli.helping import USUAL
from fpa.cli.main import COMMANDS, main
from fpa.cli.streams import Patient
from fpa.data import shapes
from fpa.data.sets import DATA_SETS
from fpa.engine.outputs import OUTPUTS
from fpa.explanation.raw_maps import FAMILIES
from fpa.masking import MASKINGS
from fpa.models.saved import read_card
from fpa.scores import SCORES


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_alone_it_prints_help(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert "train" in out
    assert "recipes" in out


def test_version_and_module():
    command = [sys.executable, "-m", "fpa", "--version"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"fpa {__version__}\n"
    )


def test_help_explains_every_field_of_a_recipe():
    command = [sys.executable, "-m", "fpa", "train", "cifar10", "--help-all"]
    text = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert re.search(r"--training.learning_rate X [^-]+\. \(default: 0.01\)", text)
    for option in ("--fpa.p2 X", "--data.root FOLDER"):  # what it is follows
        assert re.search(rf"{option} [A-Z][^-]+\.", text)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_help_and_version_come_without_torch(arguments):
    code = f"import sys; from fpa.cli.main import main; main({arguments}); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.endswith("False\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help-all" if command in USUAL else "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    options = [line.strip() for line in shown.splitlines() if line.startswith("  --")]
    described = " ".join(shown.split())
    for option in options:
        name = option.split()[0].rstrip(",")
        following = described[described.rindex(f" {name} ") :].removeprefix(f" {name} ")
        assert not following.startswith(("--", "(type", "(default")), name


def test_masking_with_parameters_is_a_field_of_a_recipe(capsys, tmp_path):
    blur = ["--masking.name", "blur", "--masking.sigma", "2"]
    command = ["train", "tiny", "--augment", "none", "--training.epochs", "1", "--training.milestones", "[]"]
    code, _, err = run(capsys, *command, *blur, "--device", "cpu", "--output", tmp_path)
    assert code == 0, err
    card = read_card(tmp_path / "none" / "model.safetensors")
    assert card.recipe["masking"] == {"name": "blur", "sigma": 2}


def test_a_recipe_may_come_after_its_options(capsys):
    assert "did you mean 'cifar10'" in run(capsys, "train", "--training.epochs", "3", "cifar")[2]


def test_lists_the_recipes(capsys):
    code, out, _ = run(capsys, "recipes")
    assert code == 0
    for name in ("shapes", "digits", "cifar10", "food101", "imagenet"):
        assert name in out


def test_trains_with_fields_overridden(capsys, tmp_path):
    code, out, err = run(
        capsys,
        "train",
        "tiny",
        "--augment",
        "none,fpa",
        "--training.epochs=1",
        "--device",
        "cpu",
        "--training.milestones",
        "[]",
        "--seed",
        4,
        "--output",
        tmp_path,
    )
    assert code == 0
    assert "fpa seed 4: epoch 1/1" in err
    assert [line.split()[0] for line in out.splitlines()] == ["none", "fpa"]
    card = read_card(tmp_path / "fpa" / "model.safetensors")
    assert card.recipe["training"]["epochs"] == 1
    assert card.recipe["seed"] == 4
    assert card.recipe["name"] == "tiny"
    assert not (tmp_path / "rectangle").exists()
    # The same again does nothing; other settings are refused; --overwrite starts anew.
    same = ["train", "tiny", "--augment", "fpa", "--device", "cpu", "--output", tmp_path, "--quiet"]
    code, _, err = run(capsys, *same)
    assert code == 2
    assert "seed: 4 -> 0" in err
    assert "training.epochs: 1 -> 3" in err
    code, out, err = run(capsys, *same, "--overwrite")
    assert (code, out, err) == (0, "", "")
    assert read_card(tmp_path / "fpa" / "model.safetensors").recipe["seed"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "shape"], "unknown recipe 'shape': did you mean 'shapes'?"),
        (["train", "tiny", "--training.epoch", "3"], "did you mean --training.epochs"),
        (["train", "tiny", "--epochs", "3"], "did you mean --training.epochs"),
        (["train", "tiny", "--training.epochs", "x"], "training.epochs"),
        (["train", "tiny", "--training.epochs", "0"], "training.epochs must be at least 1, got 0"),
        (["train", "tiny", "--augment", "cutout"], "unknown training 'cutout'"),
        (
            ["train", "tiny", "--model", "resnet-smal"],
            "unknown model 'resnet-smal': did you mean 'resnet-small'",
        ),
        (["train", "tiny", "--data.name", "shape"], "unknown data set 'shape': did you mean 'shapes'"),
        (["train", "tiny", "--masking", "blurr"], "unknown masking 'blurr': did you mean 'blur'"),
        (["train", "tiny", "--fpa.p", "1.5"], "p must be a probability in [0, 1], got 1.5"),
        (["train", "tiny", "--fpa.s_max", "40"], "s_max must be in 1..31"),
        (["train", "tiny", "--device", "tpu"], "device must be cpu, cuda, cuda:N or mps, got 'tpu'"),
        (["train", "cifar10", "--data.root", "nowhere", "--augment", "fpa"], "nowhere"),
        (["evaluate", "shapes-fpa", "--points", "2"], "points must be at least 3, got 2"),
        (["audit", "shapes-fpa", "--points", "2"], "points must be at least 3, got 2"),
        (["tran"], "unknown command 'tran': did you mean 'train'"),
        (["train", "tiny", "--tracker", "foo"], "unknown tracker 'foo'"),
        (["train", "tiny", "--training.gamma", "-1"], "training.gamma must be in (0, 1], got -1"),
        (["train", "tiny", "--seeds", "0,0"], "--seeds must be different whole numbers"),
        (["train", "tiny", "--seeds", "a"], "--seeds must be a list of whole numbers, got a"),
        (["run", "tiny", "--masking.sigma", "2"], "a masking must have a name"),
        (["run", "tiny", "--masking.name", "blur", "--masking.radius", "2"], "the masking blur takes sigma"),
        (["run", "tiny", "--evaluation.reference", "red"], "must be one of masked, black, got red"),
        (["train", "words.yaml"], "training.epochs must be a whole number, got many"),
        (["evaluate", "shapes-fpa", "--dat", "shapes"], "did you mean --data"),
        (["evaluate", "shapes-fpa", "--estimator", "vg_abs"], "did you mean --estimators?"),
        (
            ["evaluate", "shapes-fpa", "--estimators", "vg_abs", "ig_sum"],
            "of a list are separated by commas)",
        ),
        (["evaluate", "shapes-fpa", "--count", "eight"], "--count must be a whole number, got eight"),
        (["audit", "shapes-fpa", "--count", "-3"], "count must be at least 1, got -3"),
        (["finetune", "shapes-none", "--epochs", "0"], "fpa: epochs must be at least 1, got 0"),
        (["evaluate", "weights.pth"], "--model torchvision:NAME --weights weights.pth"),
        (["evaluate", "--model", "resnet18", "--data", "x"], "resnet18 needs weights"),
        (["evaluate", "--model", "torchvision:resnet17", "--data", "x"], "did you mean 'resnet18'"),
        (["evaluate", "--model", "shapes-fpa", "--estimators", "vg_abs,ig_sm"], "unknown estimator 'ig_sm'"),
        (["evalute", "shapes-fpa"], "unknown command 'evalute': did you mean 'evaluate'"),
        (["report", "nowhere"], "there is no folder nowhere"),
        (["evaluate", "nothing.safetensors"], "there is no model file nothing.safetensors"),
        (["run", "tiny", "--evaluation.estimators", "[ig_sun]"], "unknown estimator 'ig_sun'"),
        (["compare", "here", "there"], "there is no folder here"),
        (["compare"], "name one or more folders: fpa compare FOLDERS"),
        (["report"], "name one folder: fpa report FOLDER"),
        (
            ["finetune", "shapes-none", "--augmentation", "cell", "--s_max", "3"],
            "fpa: --s_max is a setting of fpa, not of --augmentation cell",
        ),
        (
            ["evaluate", "shapes-none", "--scores", "deletoin"],
            "unknown score 'deletoin': did you mean 'deletion'",
        ),
        (
            ["audit", "shapes-fpa", "--maskings", "math:pi"],
            "math:pi must be a masking or a function",
        ),
        (["train", "tiny", "--training.schedule", "\udce9"], "--training.schedule must be one of steps"),
        (["evaluate", "A" * 5000], "unknown model 'AAA"),
        (["finetune", "shapes-none", "--targets", "all"], "--targets must be one of auto, labels, model"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("words.yaml").write_text("training: {epochs: many}")
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("fpa: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


def test_several_seeds_go_into_folders_of_their_own(capsys, tmp_path):
    command = [
        "train",
        "tiny",
        "--augment",
        "none",
        "--seeds",
        "0,3",
        "--device",
        "cpu",
        "--output",
        tmp_path,
    ]
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()] == ["0", "3"]
    cards = [read_card(tmp_path / f"seed{seed}" / "none" / "model.safetensors") for seed in (0, 3)]
    assert [card.recipe["seed"] for card in cards] == [0, 3]


def test_debug_shows_the_traceback(capsys):
    code, _, err = run(capsys, "train", "shape", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_a_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "train", "tiny", "--output", tmp_path / "file" / "run", "--device", "cpu")
    assert code == 2
    assert "cannot write to the folder" in err


def test_importing_is_light():
    """The heavy libraries are loaded where they are used, not before."""
    code = (
        "import sys, torch, torchvision\n"
        "by_torch = set(sys.modules)\n"
        "import fpa\n"
        "fpa.FPA, fpa.Rectangle, fpa.load_model\n"
        "print(*(set(sys.modules) - by_torch))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {
        "accelerate",
        "docstring_parser",
        "matplotlib",
        "pandas",
        "sklearn",
        "scipy",
        "timm",
        "captum",
    }
    assert "fpa.training.augment" in loaded.split()
    assert not heavy & set(loaded.split())


def test_help_and_bad_input_do_not_wait_for_torch():
    modules = sorted({f"fpa.cli.{module}" for module, _ in COMMANDS.values()})
    code = (
        "import importlib, sys\n"
        f"for module in {['fpa.cli.parsing', *modules]}:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules: sys.exit(module)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupted_it_says_how_to_continue(capsys, monkeypatch, tmp_path):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    again = "fpa: stopped; run the same command again to continue\n"
    monkeypatch.setattr("fpa.study.trainings.train", interrupt)
    assert run(capsys, "train", "tiny", "--output", tmp_path)[::2] == (130, again)
    monkeypatch.setattr("fpa.auditing.auditor.measure_case", interrupt)
    command = ["audit", "shapes-none", "--device", "cpu", "--quiet", "--output", tmp_path]
    assert run(capsys, *command)[::2] == (130, again)
    kept = "fpa: stopped; run the same command again, without --overwrite, to continue\n"
    assert run(capsys, *command, "--overwrite")[::2] == (130, kept)
    monkeypatch.setattr("fpa.study.recipe.recipe_names", interrupt)
    assert run(capsys, "recipes")[::2] == (130, "fpa: stopped\n")


def python_blocks(page):
    """The source of every ```python block that is no doctest."""
    blocks = (block.split("```")[0] for block in page.read_text().split("```python\n")[1:])
    return [source for source in blocks if ">>>" not in source]


def own_model():
    """What a reader of the README has already: a classifier, and photos."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3)
    )
    return {"model": network, "photos": torch.randn(4, 3, 8, 8)}


ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_documentation_runs(page, tmp_path, monkeypatch):
    """Every ```python block of the README and the documentation, in order, each file from a clean start."""
    monkeypatch.chdir(tmp_path)
    drawn = shapes.draw_shapes  # a fifth of the images is enough to see that a page runs
    monkeypatch.setattr(shapes, "draw_shapes", lambda count, seed: drawn(count // 5, seed))
    registries = (OUTPUTS, SCORES, FAMILIES, MASKINGS, DATA_SETS)
    before = [dict(registry) for registry in registries]
    names: dict = {"__name__": "documentation"} | (own_model() if page.name == "README.md" else {})
    for source in python_blocks(page):
        exec(compile(source, page.name, "exec"), names)
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


def test_a_terminal_of_ascii_and_a_reader_that_leaves_are_no_errors(tmp_path):
    env = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    code = "from fpa.cli.main import main; import sys; sys.exit(main(['recipes']))"
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    for words in ([sys.executable, "-c", code],):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()  # as `| head` does
        assert (process.wait(), process.stderr.read()) == (0, b"")
        closed = subprocess.run(words, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1), check=False)
        assert (closed.returncode, closed.stderr) == (0, b"")


def test_what_a_terminal_cannot_show_is_shown_in_simpler_characters():
    raw = io.BytesIO()
    stream = Patient(io.TextIOWrapper(raw, encoding="ascii"))
    print("5 ± 2 … 中", file=stream, flush=True)
    assert raw.getvalue() == b"5 +- 2 ... ?\n"


def test_an_error_shows_no_escape_bytes_and_fits_a_screen(capsys):
    assert main(["run", "\x1b]0;owned\x07" + "a" * 9000]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert len(told) < 2100
