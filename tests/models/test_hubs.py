"""Models and weights that others publish, by name: from a cache, a folder, or not at all."""

import sys
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import nn

import fpa
from fpa.data.normalisation import Normalisation
from fpa.errors import InputError
from fpa.models import build_model, load_model, open_model

NAMES = ["zero", "one", "two"]


class Classifier(nn.Module):
    """As an image classifier of Hugging Face: a config, and an object with `.logits`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder = nn.Conv2d(config.num_channels, 4, 3)
        self.head = nn.Linear(4, config.num_labels)

    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.head(self.encoder(pixel_values).relu().mean((2, 3))), loss=None)


class Processor:
    def __init__(self, **settings):
        self.settings = settings

    def to_dict(self):
        return self.settings


@pytest.fixture
def transformers(monkeypatch, tmp_path):
    """A stand-in for the package: one model, in the folder `mine`; nothing else can be reached."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def config(where):
        if str(where) != "mine":
            raise OSError(f"We couldn't connect to the hub to load {where}.\nCheck your connection.")
        return SimpleNamespace(num_labels=3, num_channels=3, id2label=dict(enumerate(NAMES)), image_size=8)

    stand_in = SimpleNamespace(
        trained=Classifier(config("mine")).eval(),
        missing=[],
        processor={
            "do_normalize": True,
            "image_mean": [0.5] * 3,
            "image_std": [0.25] * 3,
            "size": {"height": 8},
        },
        AutoConfig=SimpleNamespace(from_pretrained=config),
    )

    def from_pretrained(where, output_loading_info, local_files_only):
        assert output_loading_info
        assert local_files_only
        config(where)
        return stand_in.trained, {"missing_keys": set(stand_in.missing)}

    stand_in.AutoModelForImageClassification = SimpleNamespace(
        from_pretrained=from_pretrained, from_config=Classifier
    )
    stand_in.AutoImageProcessor = SimpleNamespace(
        from_pretrained=lambda where, local_files_only: Processor(**stand_in.processor)
    )
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    monkeypatch.setattr(
        "socket.create_connection", lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))
    )
    return stand_in


def test_a_folder_of_hugging_face_is_a_model_that_gives_logits(transformers):
    opened = open_model("hf:mine")
    assert (opened.name, opened.size, opened.classes) == ("mine", 8, NAMES)
    assert opened.normalisation == Normalisation((0.5,) * 3, (0.25,) * 3)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(opened.model(images), transformers.trained(images).logits)


@pytest.mark.parametrize(
    ("processor", "size"),
    [
        ({"size": {"shortest_edge": 9}, "crop_size": {"height": 7, "width": 7}, "do_center_crop": True}, 7),
        ({"size": {"shortest_edge": 9}, "do_center_crop": False}, 9),
        ({"size": 6}, 6),
        ({}, 8),  # as the config says
    ],
)
def test_the_size_of_its_images_and_whether_they_are_normalised(processor, size, transformers):
    transformers.processor = processor
    opened = open_model("hf:mine")
    assert (opened.size, opened.normalisation) == (size, None)


def test_layers_have_the_names_that_the_user_knows(transformers):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for model in (transformers.trained, open_model("hf:mine").model):
        maps = fpa.explain(model, images, ["vg_abs", "cam:gradcam@encoder"])
        assert {name: tuple(each.shape) for name, each in maps.items()} == dict.fromkeys(maps, (2, 8, 8))


def test_it_can_be_trained_tuned_saved_and_loaded(transformers, tmp_path):
    assert build_model("hf:mine", 5, (1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    model, images = open_model("hf:mine").model, torch.randn(8, 3, 8, 8)
    model.card = fpa.ModelCard("hf:mine", NAMES, (3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    how = {"epochs": 1, "batch_size": 4, "device": "cpu"}
    tuned = fpa.finetune(model, (images, torch.arange(8) % 3), output=tmp_path / "tuned", **how)
    assert torch.equal(load_model(tmp_path / "tuned" / "model.safetensors")(images), tuned(images))


def test_what_cannot_be_had_is_said_in_a_line_with_what_to_do(transformers):
    for spec, said in (
        ("hf:someone/else", r"hf:someone/else cannot be loaded here \(We couldn't connect .*save_pretrained"),
        ("hf:./nowhere", "there is no folder nowhere"),
        ("hf:", "hf: needs a name"),
        ("mine", "mine is a folder of Hugging Face: name it hf:mine"),
    ):
        with pytest.raises(InputError, match=said) as error:
            open_model(spec)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"hf:mine has its own weights: leave out other\.pt"):
        open_model("hf:mine", "other.pt")
    transformers.missing = ["classifier.weight", "classifier.bias"]
    with pytest.raises(InputError, match=r"no trained classifier: its weights lack classifier\.bias"):
        open_model("hf:mine")


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs transformers: pip install 'fpa\[hf\]'"):
        open_model("hf:microsoft/resnet-50")


@pytest.mark.parametrize("weights", ["DEFAULT", "default", "IMAGENET1K_V1"])
def test_weights_of_torchvision_by_name_from_its_cache(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = torchvision.models.squeezenet1_1(weights=None).eval()
    entry = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(model.state_dict(), cache / entry.url.rpartition("/")[2])
    opened, images = open_model("torchvision:squeezenet1_1", weights), torch.randn(1, 3, 64, 64)
    assert torch.equal(opened.model(images), model(images))
    assert (opened.size, opened.classes[0]) == (224, "tench")


def test_weights_by_name_without_a_cache_or_a_network(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    said = r"the weights DEFAULT of torchvision:squeezenet1_1 cannot be .* \(.*not known.*--weights FILE"
    with pytest.raises(InputError, match=said):
        open_model("torchvision:squeezenet1_1", "DEFAULT")
    with pytest.raises(InputError, match=r"needs weights: .*or DEFAULT, those that torchvision publishes"):
        open_model("torchvision:squeezenet1_1")
    for spec in ("resnet-small", "shapes-fpa"):
        with pytest.raises(InputError, match=f"{spec} has no published weights: DEFAULT is for torchvision"):
            open_model(spec, "DEFAULT")


def test_weights_of_timm_by_name_wait_for_no_network(monkeypatch):
    pytest.importorskip("timm")
    asked = []

    def unreachable(address, timeout):
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.setattr("fpa.models.hubs.getproxies", dict)
    monkeypatch.setenv("HF_HUB_CACHE", "nowhere")
    with pytest.raises(
        InputError, match=r"the weights DEFAULT of timm:test_vit.r160_in1k cannot be loaded here"
    ):
        open_model("timm:test_vit.r160_in1k", "DEFAULT")
    assert asked == [("huggingface.co", 443)]
