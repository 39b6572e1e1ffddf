"""One grammar of model names, for recipes and commands."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fpa import InputError, load_model
from fpa.models import ModelCard, build_model, open_model, parse_model_name, read_card, save_model

MODULE = """
from pathlib import Path
from torch import nn

def small(classes=4, channels=3):
    Path("ran").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(4 * channels, classes))

def load(request):
    Path("ran").touch()

def fixed():
    return nn.Flatten()

ready = nn.Flatten()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "our_models.py").write_text(MODULE)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("resnet-small", "own", "resnet-small"),
        ("resnet18-cifar", "own", "resnet18-cifar"),
        ("resnet50", "torchvision", "resnet50"),
        ("torchvision:resnet50", "torchvision", "resnet50"),
        ("timm:vit_tiny_patch16_224", "timm", "vit_tiny_patch16_224"),
        ("our_models:small", "function", "small"),
        ("package.models:Net.build", "function", "Net.build"),
        ("shapes-fpa", "file", "shapes-fpa"),
        ("runs/model.safetensors", "file", "runs/model.safetensors"),
        ("odd:name.safetensors", "file", "odd:name.safetensors"),
    ],
)
def test_what_a_name_stands_for(spec, kind, name, here):
    if kind == "timm":
        pytest.importorskip("timm")
    (here / "odd:name.safetensors").touch()
    parsed = parse_model_name(spec)
    assert (parsed.kind, parsed.name, parsed.spec) == (kind, name, spec)


def test_a_folder_does_not_hide_an_architecture(here):
    (here / "resnet50").mkdir()
    assert parse_model_name("resnet50").kind == "torchvision"


@pytest.mark.parametrize("use", [lambda spec: build_model(spec, 2, (3, 32, 32)), open_model])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("torchvision:resnet5", "unknown torchvision model 'resnet5': did you mean 'resnet50'"),
        ("resnet5", "unknown model 'resnet5': did you mean 'resnet50'"),
        ("resnet-smal", "unknown model 'resnet-smal': did you mean 'resnet-small'"),
        ("qqqq", r"unknown model 'qqqq' \(known: .*module:function.*resnet-small.*torchvision:NAME\)"),
    ],
)
def test_recipes_and_commands_refuse_the_same_names(use, spec, said):
    with pytest.raises(InputError, match=said):
        use(spec)


def test_a_name_of_timm_alone_is_not_enough():
    pytest.importorskip("timm")
    for use in (open_model, lambda spec: build_model(spec, 2, (3, 32, 32))):
        with pytest.raises(InputError, match="did you mean timm:vit_tiny_patch16_224"):
            use("vit_tiny_patch16_224")


@pytest.mark.parametrize("spec", ["resnet-small", "resnet18", "torchvision:resnet18"])
def test_an_architecture_alone_is_no_trained_model(spec):
    with pytest.raises(InputError, match=f"{spec} needs weights"):
        open_model(spec)


def test_our_own_architecture_with_weights_from_a_file(tmp_path):
    model = build_model("resnet-small", 5, (1, 32, 32), seed=3).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    opened = open_model("resnet-small", tmp_path / "weights.pth")
    images = torch.randn(2, 1, 32, 32)
    assert torch.equal(opened.model(images), model(images))
    assert (opened.normalisation, opened.classes) == (None, None)


def test_a_function_is_an_architecture(here):
    one, two = (build_model("our_models:small", 7, (1, 2, 2), seed=2) for _ in range(2))
    assert one(torch.zeros(3, 1, 2, 2)).shape == (3, 7)
    assert torch.equal(one[1].weight, two[1].weight)
    with pytest.raises(
        InputError, match=r"our_models:fixed failed with TypeError: .*0 positional arguments but 2"
    ):
        build_model("our_models:fixed", 7, (1, 2, 2))
    assert open_model("our_models:ready").name == "ready"


def function_file(here):
    model = build_model("our_models:small", 2, (3, 2, 2)).eval()
    card = ModelCard("our_models:small", ["a", "b"], (3, 2, 2), (0.5,) * 3, (0.5,) * 3, "flips")
    save_model(model, card, here / "model.safetensors")
    (here / "ran").unlink()
    return model


def test_a_file_does_not_run_the_function_that_it_names(here):
    model = function_file(here)
    for use in (load_model, open_model):
        with pytest.raises(InputError, match=r"not run just because a file says so: .*architecture='our_mod"):
            use("model.safetensors")
    assert not (here / "ran").exists()
    loaded = load_model("model.safetensors", architecture="our_models:small")
    images = torch.randn(2, 3, 2, 2)
    assert torch.equal(loaded(images), model(images))
    assert loaded.card.augmentation == "flips"  # anyone's own word stays as it is


def forged(path, **changes):
    card = {"format": 1, **dataclasses.asdict(read_card("shapes-fpa")), **changes}
    with torch.no_grad():
        save_file(load_model("shapes-fpa").state_dict(), path, {"fpa": json.dumps(card)})
    return path


def test_a_file_does_not_run_the_data_set_that_it_names(here):
    path = forged(here / "forged.safetensors", recipe={"data": {"name": "our_models:load"}})
    assert open_model(str(path)).data is None
    assert open_model(str(forged(path, recipe={"data": {"name": "digits"}}))).data == "digits"
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": 7},
        {"architecture": None},
        {"classes": 8},
        {"classes": [1, 2]},
        {"input_shape": [3, 32]},
        {"input_shape": ["3", 32, 32]},
        {"mean": [0.5]},
        {"mean": [0.5, 0.5, "0.5"]},
        {"augmentation": ["fpa"]},
        {"accuracy": "high"},
        {"recipe": []},
        {"surprise": 1},
        {"architecture": "runs/other.safetensors"},
    ],
    ids=str,
)
def test_a_forged_card_is_refused(changes, tmp_path):
    path = forged(tmp_path / "forged.safetensors", **changes)
    with pytest.raises(InputError):
        load_model(path)


def test_a_forged_recipe_names_no_data(tmp_path):
    for recipe in ({"data": []}, {"data": {"name": 3}}, {}):
        assert open_model(str(forged(tmp_path / "forged.safetensors", recipe=recipe))).data is None


def test_the_file_is_as_the_shipped_one(tmp_path):
    path = forged(tmp_path / "same.safetensors")
    assert read_card(path) == read_card("shapes-fpa")
    assert load_file(path).keys() == load_model("shapes-fpa").state_dict().keys()


def test_the_resnet50_for_64_px_keeps_its_first_stage_at_32_by_32():
    model = build_model("resnet50-64px", 101, (3, 64, 64))
    sizes = []
    model.layer1.register_forward_hook(lambda module, inputs, output: sizes.append(list(output.shape)))
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 101)
    assert sizes == [[1, 256, 32, 32]]


def test_the_resnet20_is_that_of_he_et_al():
    model = build_model("resnet20-cifar", 10, (3, 32, 32))
    assert len([module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]) == 19 + 2
    assert 268_000 < sum(values.numel() for values in model.parameters()) < 275_000
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
