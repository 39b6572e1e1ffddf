"""Trained models by name, with weights from files."""

import os
import pickle

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from fpa.data.normalisation import Normalisation
from fpa.errors import InputError
from fpa.models.saved import load_model, open_model

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(scope="module")
def squeezenet():
    """A small model of torchvision with 7 classes instead of 1000."""
    torch.manual_seed(0)
    return torchvision.models.squeezenet1_1(weights=None, num_classes=7).eval()


FORMS = {
    "a state dict": lambda state: state,
    "a checkpoint": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "a model entry": lambda state: {"model": state, "epoch": 3},
    "DataParallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "compiled": lambda state: {"state_dict": {f"_orig_mod.{name}": value for name, value in state.items()}},
    "Lightning": lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}},
    "half precision": lambda state: {name: value.half() for name, value in state.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_found_in_the_usual_files_and_tell_the_number_of_classes(form, squeezenet, tmp_path):
    torch.save(FORMS[form](squeezenet.state_dict()), tmp_path / "weights.pth")
    opened = open_model("torchvision:squeezenet1_1", tmp_path / "weights.pth")
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    tolerance = 1e-2 if form == "half precision" else 1e-6
    assert torch.allclose(opened.model(images), squeezenet(images), atol=tolerance)
    assert (opened.normalisation, opened.size, opened.classes) == (IMAGENET, 224, None)


def test_safetensors_and_the_names_of_imagenet(tmp_path):
    model = torchvision.models.squeezenet1_1(weights=None)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    opened = open_model("torchvision:squeezenet1_1", tmp_path / "weights.safetensors")
    assert opened.classes[0] == "tench"
    assert len(opened.classes) == 1000


def test_a_timm_model_knows_its_own_normalisation_and_size(tmp_path):
    timm = pytest.importorskip("timm")
    name = "test_vit.r160_in1k"
    model = timm.create_model(name, num_classes=5).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    opened = open_model(f"timm:{name}", tmp_path / "weights.pth")
    config = timm.data.resolve_model_data_config(model)
    assert opened.normalisation == Normalisation(config["mean"], config["std"])
    assert opened.size == config["input_size"][-1] == 160
    images = torch.randn(1, 3, 160, 160)
    assert torch.allclose(opened.model(images), model(images), atol=1e-5)
    other = Normalisation((0.0,) * 3, (1.0,) * 3)
    given = open_model(f"timm:{name}", tmp_path / "weights.pth", normalisation=other)
    assert given.normalisation == other


def test_a_saved_model_of_fpa():
    opened = open_model("shapes-fpa")
    card = load_model("shapes-fpa").card
    assert (opened.classes, opened.data, opened.size) == (card.classes, "shapes", 32)


def test_a_function_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def small(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))\n"
        "def text(): return 'model'\n"
        "def lost(): return open('weights/missing.pth')\n"
    )
    (tmp_path / "broken_models.py").write_text("def small() return 3\n")
    assert open_model("my_models:small").model(torch.zeros(1, 3, 2, 2)).shape == (1, 4)
    weights = {"1.weight": torch.ones(4, 12), "1.bias": torch.zeros(4)}
    torch.save(weights, "weights.pt")
    loaded = open_model("my_models:small", "weights.pt")
    assert loaded.model(torch.ones(1, 3, 2, 2)).tolist() == [[12.0] * 4]
    for spec, said in (
        ("my_models:text", "must return a torch.nn.Module, it returned str"),
        ("my_models:large", "cannot be imported"),
        (
            "my_models:lost",
            r"my_models:lost failed with FileNotFoundError: .*missing.pth.*--debug shows where",
        ),
        ("broken_models:small", "broken_models:small cannot be imported .*broken_models.py, line 1"),
        ("no_models:small", "cannot be imported from the current folder or the environment"),
    ):
        with pytest.raises(InputError, match=said):
            open_model(spec)


class Malicious:
    """Unpickled carelessly, it creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def pickled(content, path):
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("write", [pickled, torch.save])
def test_a_file_that_would_execute_code_is_refused_and_does_not(write, tmp_path):
    trace = tmp_path / "executed"
    write({"state_dict": {"weight": torch.zeros(2)}, "extra": Malicious(trace)}, tmp_path / "weights.pth")
    with pytest.raises(InputError, match=r"was not loaded: it holds more than tensors.*could execute code"):
        open_model("torchvision:squeezenet1_1", tmp_path / "weights.pth")
    assert not trace.exists()
    if write is pickled:  # the file is a real attack: careless reading does execute it
        pickle.loads((tmp_path / "weights.pth").read_bytes())
        assert trace.exists()


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: without(state, "features.0.bias"), "missing: features.0.bias"),
        (lambda state: state | {"head.bias": torch.zeros(3)}, "unexpected: head.bias"),
        (
            lambda state: state | {"features.0.weight": torch.zeros(64, 1, 3, 3)},
            r"of another shape: features.0.weight \[64, 1, 3, 3\] instead of \[64, 3, 3, 3\]",
        ),
        (lambda state: {"epoch": 3}, r"holds no state dict: its entries \(epoch\)"),
        (lambda state: [1, 2], "holds no state dict: it holds list"),
    ],
)
def test_weights_of_something_else_are_named(change, said, squeezenet, tmp_path):
    torch.save(change(squeezenet.state_dict()), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=said):
        open_model("torchvision:squeezenet1_1", tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("spec", "weights", "said"),
    [
        ("torchvision:squeezenet1_1", None, "needs weights"),
        ("torchvision:squeezenet9", "w.pth", "unknown torchvision model 'squeezenet9': did you mean"),
        ("torchvision:squeezenet1_1", "none.pth", "there is no weights file none.pth"),
        ("torchvision:squeezenet1_1", "none.safetensors", "there is no model file none.safetensors"),
        (
            "torchvision:squeezenet1_1",
            "garbage.pth",
            "garbage.pth is not a weights file: it begins with b'.x00g",
        ),
        ("torchvision:squeezenet1_1", "empty.pth", "empty.pth is not a weights file: it is empty"),
        ("torchvision:squeezenet1_1", "lfs.pth", "lfs.pth is not a weights file: it is a Git LFS pointer"),
        ("torchvision:squeezenet1_1", "page.pth", "page.pth is not a weights file: it is a web page"),
        ("torchvision:squeezenet1_1", "lfs.safetensors", "is not a model file: it is a Git LFS pointer"),
        ("torchvision:squeezenet1_1", "half.pth", "half.pth cannot be read as a weights file: "),
        ("shapes-fpa", "w.pth", "saved model with its own weights"),
        ("shapes-fpaa", None, "unknown model 'shapes-fpaa': did you mean 'shapes-fpa'"),
        ("none.safetensors", None, "there is no model file none.safetensors"),
    ],
)
def test_one_sentence_says_what_is_wrong(spec, weights, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.pth").write_bytes(b"\x00garbage")
    (tmp_path / "empty.pth").touch()
    for name in ("lfs.pth", "lfs.safetensors"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n")
    (tmp_path / "page.pth").write_text("\n<!DOCTYPE html><html>404 not found</html>")
    torch.save(nn.Linear(2, 2).state_dict(), "w.pth")
    (tmp_path / "half.pth").write_bytes((tmp_path / "w.pth").read_bytes()[:300])
    with pytest.raises(InputError, match=said):
        open_model(spec, weights)


def test_old_checkpoints_without_counters_of_batches(tmp_path):
    model = torchvision.models.mnasnet0_5(weights=None, num_classes=3)
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "weights.pth")
    opened = open_model("torchvision:mnasnet0_5", tmp_path / "weights.pth")
    assert torch.equal(opened.model.classifier[1].weight, model.classifier[1].weight)


def test_names_that_timm_takes_without_listing_them():
    with pytest.raises(InputError, match="needs weights"):
        open_model("timm:vit_tiny_patch16_224_in21k")
    with pytest.raises(InputError, match=r"unknown torchvision model 'resnet18\.x'"):
        open_model("torchvision:resnet18.x")
