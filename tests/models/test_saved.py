"""Models by name, and files that describe themselves."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fpa import InputError, load_model
from fpa.models.architectures import build_model, unknown_model
from fpa.models.saved import ModelCard, model_path, read_card, save_model
from miniatures import write_image_folder

CARD = ModelCard("resnet-small", ["a", "b", "c"], (1, 32, 32), (0.5,), (0.25,), "fpa", 0.9, {"seed": 3})


def saved(tmp_path, card=CARD):
    model = build_model(card.architecture, len(card.classes), card.input_shape, seed=5)
    model(torch.randn(4, *card.input_shape))  # moves the statistics of batch normalisation
    save_model(model, card, tmp_path / "model.safetensors")
    return model.eval(), tmp_path / "model.safetensors"


def test_a_saved_model_needs_nothing_else(tmp_path):
    model, path = saved(tmp_path)
    loaded = load_model(path)
    assert loaded.card == CARD == read_card(path)
    assert not loaded.training
    images = torch.randn(3, 1, 32, 32)
    assert torch.equal(loaded(images), model(images))


def test_a_folder_leads_to_the_model_in_it(tmp_path):
    saved(tmp_path)
    with pytest.raises(InputError, match="is a folder: name the model in it, "):
        load_model(tmp_path)


def test_a_file_of_half_the_size(tmp_path):
    model, path = saved(tmp_path)
    save_model(model, CARD, tmp_path / "half.safetensors", half=True)
    stored = load_file(tmp_path / "half.safetensors")
    assert {value.dtype for value in stored.values() if value.ndim > 1} == {torch.float16}
    assert torch.equal(stored["stem.1.running_var"], model.state_dict()["stem.1.running_var"])
    assert (tmp_path / "half.safetensors").stat().st_size < 0.6 * path.stat().st_size
    loaded = load_model(tmp_path / "half.safetensors")
    assert loaded.head.weight.dtype == torch.float32
    images = torch.randn(3, 1, 32, 32)
    torch.testing.assert_close(loaded(images), model(images), rtol=0.01, atol=0.01)


class TestRelease:
    @pytest.fixture
    def release(self, monkeypatch, tmp_path):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
        import release

        def run(*arguments):
            monkeypatch.setattr(
                "sys.argv", ["release", *map(str, arguments), "--output", str(tmp_path / "out")]
            )
            return release.main()

        return run

    def test_a_model_with_its_card(self, release, tmp_path, capsys):
        study = tmp_path / "mine"
        for name in ("none", "fpa"):
            (study / name).mkdir(parents=True)
            shutil.copy(model_path(f"shapes-{name}"), study / name / "model.safetensors")
        assert release(study, "--count", "2") == 0
        (file,) = (tmp_path / "out").glob("*.safetensors")
        assert file.name == "mine-fpa.safetensors"
        card = read_card("shapes-fpa")
        del card.recipe["data"]["root"]
        assert load_model(file).card == card
        card = file.with_suffix(".md").read_text()
        for word in ("data: shapes", "Apache-2.0", "accuracy: 98.", "audit: Cannot tell", "p1_max: 0.25"):
            assert word in card
        assert "mine-fpa.safetensors" in capsys.readouterr().out

    def test_the_card_of_a_model_of_photos_names_no_folder_of_this_machine(
        self, release, tmp_path, monkeypatch
    ):
        photos = write_image_folder(tmp_path / "secret" / "pets", val=4)
        card = ModelCard("resnet-small", ["cat", "dog"], (3, 32, 32), (0.5,) * 3, (0.25,) * 3, "fpa")
        card.recipe["data"] = {"name": f"folder:{photos}", "root": str(tmp_path / "secret"), "size": 32}
        (tmp_path / "tuned").mkdir()
        _, file = saved(tmp_path / "tuned", card)
        assert release(file) == 2  # whose photos are they?
        monkeypatch.chdir(photos.parent)
        for named in ([], ["--data", "folder:pets"]):  # from anywhere, or beside it
            assert release(file, "--licence", "ours", "--count", "2", *named) == 0
            assert read_card(tmp_path / "out" / "tuned.safetensors").recipe["data"]["name"] == "folder:pets"
            told = (tmp_path / "out" / "tuned.md").read_text()
            assert "secret" not in told
            assert "data: folder:pets\n" in told
            assert "--data folder:pets\n" in told

    def test_a_model_that_was_fine_tuned_on_photos_without_labels(self, release, tmp_path):
        photos = write_image_folder(tmp_path / "pets", val=4) / "val" / "cat"
        card = ModelCard("resnet-small", ["cat", "dog"], (3, 32, 32), (0.5,) * 3, (0.25,) * 3, "fpa")
        card.recipe["data"] = {"name": f"folder:{photos}", "size": 32}
        (tmp_path / "tuned").mkdir()
        _, file = saved(tmp_path / "tuned", card)
        assert release(file, "--licence", "ours", "--count", "2") == 0
        assert "accuracy: not known" in (tmp_path / "out" / "tuned.md").read_text()

    def test_what_cannot_be_released(self, release, tmp_path, capsys):
        model = load_model("shapes-fpa")
        with torch.no_grad():
            model.head.weight.mul_(1e6)  # too large for float16
        save_model(model, model.card, tmp_path / "large.safetensors")
        assert release(tmp_path / "large.safetensors") == 2
        assert "large: in float16" in capsys.readouterr().err
        assert list((tmp_path / "out").iterdir()) == []
        assert release(tmp_path) == 2
        assert "holds no model trained with FPA to release" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18-cifar", (3, 32, 32)),
        ("mobilenet_v2", (3, 64, 64)),
        ("torchvision:resnet50", (3, 64, 64)),
        ("timm:vit_tiny_patch16_224", (3, 224, 224)),
    ],
)
def test_architectures_survive_saving(tmp_path, name, shape):
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    card = ModelCard(name, ["a", "b"], shape, (0.5,) * 3, (0.5,) * 3)
    model = build_model(name, 2, shape, seed=1).eval()
    save_model(model, card, tmp_path / "m.safetensors")
    images = torch.randn(2, *shape)
    assert torch.equal(load_model(tmp_path / "m.safetensors")(images), model(images))
    assert model(images).shape == (2, 2)


def test_the_cifar_stem_keeps_the_image_large():
    model = build_model("resnet18-cifar", 10, (3, 32, 32))
    conv = model.conv1
    assert (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (1, 1), (1, 1))
    sizes = []
    model.layer1.register_forward_hook(lambda _m, _i, output: sizes.append(output.shape[-1]))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [32]
    assert sum(p.numel() for p in model.parameters()) == 11_173_962


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_model("resnet-small", 4, (3, 32, 32), seed=2)
    torch.manual_seed(9)
    two, other = (build_model("resnet-small", 4, (3, 32, 32), seed=seed) for seed in (2, 3))
    assert torch.equal(one.head.weight, two.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    torch.manual_seed(1)
    assert torch.equal(before, torch.get_rng_state())


class Attack:
    def __reduce__(self):
        return exec, ("raise SystemExit('the pickle ran')",)


class TestBadInput:
    def test_unknown_names_suggest_near_ones(self):
        with pytest.raises(InputError, match=r"unknown model 'resnet5': did you mean .*resnet50"):
            build_model("resnet5", 2, (3, 32, 32))

    def test_channels_that_torchvision_does_not_take(self):
        with pytest.raises(InputError, match="takes images of 3 channels, these have 1"):
            build_model("resnet50", 2, (1, 32, 32))

    def test_no_file(self, tmp_path):
        with pytest.raises(InputError, match=r"there is no model file .*nothing.safetensors"):
            load_model(tmp_path / "nothing.safetensors")

    @pytest.mark.parametrize("content", [b"", b"not a model", pickle.dumps(Attack())])
    def test_a_file_that_is_no_safetensors_and_never_a_pickle(self, tmp_path, content):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"is not a (complete safetensors file|model file: it is empty)"):
            load_model(tmp_path / "bad.safetensors")

    def test_a_truncated_file(self, tmp_path):
        _, path = saved(tmp_path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(InputError, match="is not a complete safetensors file"):
            load_model(path)

    def test_damaged_weights(self, tmp_path):
        _, path = saved(tmp_path)
        content = bytearray(path.read_bytes())
        content[-200] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"model.safetensors is damaged: .* checksum"):
            load_model(path)

    def test_a_damaged_card(self, tmp_path):
        _, path = saved(tmp_path)
        path.write_bytes(path.read_bytes().replace(b"resnet-small", b"resnet-smell"))
        with pytest.raises(InputError, match=r"model.safetensors is damaged: .* checksum"):
            load_model(path)
        save_file({"x": torch.ones(1)}, path, {"fpa": '{"format": 1}'})
        with pytest.raises(InputError, match="its description of itself cannot be read"):
            read_card(path)

    def test_a_file_without_a_checksum_is_taken_as_it_is(self, tmp_path):
        model, path = saved(tmp_path)
        save_file(load_file(path), path, {"fpa": json.dumps({"format": 1, **vars(CARD)})})
        assert torch.equal(load_model(path).head.weight, model.head.weight)

    def test_weights_that_do_not_say_what_they_are(self, tmp_path):
        save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
        with pytest.raises(InputError, match="was not written by fpa"):
            load_model(tmp_path / "x.safetensors")

    def test_weights_of_another_architecture(self, tmp_path):
        _, path = saved(tmp_path)
        metadata = {"format": 1, **vars(CARD), "architecture": "resnet18-cifar"}
        save_file(load_file(path), path, {"fpa": json.dumps(metadata)})
        with pytest.raises(InputError, match="does not hold weights of the architecture 'resnet18-cifar'"):
            load_model(path)

    def test_another_version_of_the_format(self, tmp_path):
        save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors", {"fpa": json.dumps({"format": 99})})
        with pytest.raises(InputError, match="another version of fpa"):
            load_model(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("torchvision:resnet18", "fpa.open_model('torchvision:resnet18', 'DEFAULT')"),
        ("resnet18", "fpa.open_model('torchvision:resnet18', 'DEFAULT')"),
        ("hf:microsoft/resnet-18", "fpa.open_model('hf:microsoft/resnet-18')"),
        ("mine:network", "fpa.open_model('mine:network')"),
        ("resnet-small", "fpa.open_model('resnet-small', FILE)"),
    ],
)
def test_a_name_that_is_no_file_is_answered_with_what_opens_it(name, remedy):
    with pytest.raises(InputError) as refused:
        load_model(name)
    assert str(refused.value).endswith(f"and {name} is none: open it with {remedy}")


def test_an_unknown_name_is_never_answered_with_itself():
    for name in ("nowhere:resnet18", "resnet18"):
        assert "mean 'resnet18'" not in str(unknown_model(name))
