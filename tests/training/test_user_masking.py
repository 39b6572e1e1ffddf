"""Edit a masking of one's own and train again: what was trained with the old one is not continued."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import fpa
from fpa.cli.main import main
from fpa.data.sets import DATA_SETS, register
from fpa.study.folder import StudyFolder
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from own_modules import edit, forget

MASKING = '''
from my_tools import shade
from fpa.masking import Masking


class Grey(Masking):
    """Removed pixels become grey."""

    def __init__(self, value=0.5):
        self.value = value
        self.calls = 0

    def __call__(self, images, mask, noise=None):
        self.calls += 1
        return images.masked_fill(mask[:, None], shade(self.value))
'''
TOOLS = """
def shade(value):
    return value
"""
RECIPE = """
name: tiny
model: resnet-small
augmentations: [none, fpa]
masking: my_masking:Grey
data: {name: little, workers: 0}
training: {epochs: 1, batch_size: 8}
"""
EDITS = {
    "the masking": ("my_masking", "shade(self.value)", "-shade(self.value)"),
    "a function that it calls": ("my_tools", "return value", "return -value"),
}
TRAIN = ["train", "tiny.yaml", "--output", "out", "--device", "cpu", "--quiet"]
FINETUNE = [
    "finetune", "shapes-none", "--data", "little", "--masking", "my_masking:Grey", "--epochs", "1",
    "--batch_size", "8", "--audit_images", "0", "--workers", "0", "--output", "out", "--device", "cpu",
    "--quiet",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a masking of one's own, a recipe that uses it, and sixteen images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one size and second look alike
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_masking.py").write_text(MASKING)
    Path("my_tools.py").write_text(TOOLS)
    Path("tiny.yaml").write_text(RECIPE)
    pixels = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    register("little", lambda request: ((pixels, torch.arange(16) % 8),) * 2)
    yield tmp_path
    forget(("my_masking", "my_tools"))
    DATA_SETS.pop("little")


def stored_code(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["fpa"])["recipe"].get("code")


@pytest.mark.parametrize("edited", EDITS)
@pytest.mark.parametrize("command", [TRAIN, FINETUNE], ids=["train", "finetune"])
def test_a_training_is_not_continued_with_an_edited_masking(command, edited, here, capsys):
    assert main(command) == 0
    written = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.safetensors")}
    edit("my_masking", "Removed pixels", "All removed pixels")  # a docstring is no code
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in written} == written
    edit(*EDITS[edited])
    capsys.readouterr()
    assert main(command) == 2
    assert "(the code of the masking has changed): choose another --output" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


def test_from_python_too_and_calls_do_not_make_another_masking(here):
    import my_masking

    model = fpa.load_model("shapes-none")
    how = {"epochs": 1, "batch_size": 8, "workers": 0, "device": "cpu", "output": "out"}
    grey = my_masking.Grey()
    first = fpa.finetune(model, "little", fpa={"masking": grey}, **how)
    assert grey.calls > 0
    again = fpa.finetune(model, "little", fpa={"masking": grey}, **how)
    weights = again.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in first.state_dict().items())
    edit(*EDITS["the masking"])
    edited = importlib.import_module("my_masking").Grey()
    with pytest.raises(fpa.InputError, match="the code of the masking has changed"):
        fpa.finetune(model, "little", fpa={"masking": edited}, **how)
    recipe = load_recipe("tiny.yaml")
    train(recipe, "study", device="cpu")
    edit(*EDITS["a function that it calls"])
    with pytest.raises(fpa.InputError, match=r"fpa/model.safetensors was trained with other settings"):
        train(recipe, "study", device="cpu")
    # Nothing is masked in the other training: its weights do not depend on the masking.
    train(recipe, "study", variants=["none"], device="cpu")
    assert stored_code("study/none/model.safetensors") is None
    assert stored_code("study/fpa/model.safetensors")["masking"]["name"] == "my_masking:Grey"
    # A study checks its files against the recipe, which does not know the code.
    assert StudyFolder(Path("study"), ["none", "fpa"]).foreign(recipe) == {}
