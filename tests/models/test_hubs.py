"""Models and weights that others publish, by name: from a cache, a folder, or not at all."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

import fpa
from fpa.data.normalisation import Normalisation
from fpa.errors import InputError
from fpa.models import build_model, load_model, open_model
from fpa.models.hubs import image_side_of, normalisation_of

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


def test_a_model_that_was_opened_says_how_its_images_are_normalised(transformers):
    known = Normalisation((0.5,) * 3, (0.25,) * 3)
    for model in (open_model("hf:mine").model, nn.DataParallel(open_model("hf:mine").model)):
        assert normalisation_of(model) == known
        assert normalisation_of(fpa.Engine(open_model("hf:mine").model).model) == known
    given = Normalisation((0.1,) * 3, (0.2,) * 3)
    assert normalisation_of(open_model("hf:mine", normalisation=given).model) == given
    assert normalisation_of(load_model("shapes-fpa")) == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert normalisation_of(open_model("shapes-fpa", normalisation=given).model) == given


def test_a_model_of_timm_says_how_its_images_are_normalised():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3)  # in -1..1, not as is usual
    config = timm.data.resolve_model_data_config(model)
    assert normalisation_of(model) == Normalisation(config["mean"], config["std"])
    assert image_side_of(timm.create_model("test_vit.r160_in1k")) == 160


class Processor:
    def __init__(self, **settings):
        self.settings = settings

    def to_dict(self):
        return self.settings


@pytest.fixture
def transformers(monkeypatch, tmp_path):
    """A stand-in for the package: a model in the folder `mine`, and what is `cached` or in the `hub`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def config(where, local_files_only=False):
        places = ["mine", *stand_in.cached, *([] if local_files_only else stand_in.hub)]
        if str(where) not in places:
            raise OSError(f"We couldn't connect to the hub to load {where}.\nCheck your connection.")
        return SimpleNamespace(num_labels=3, num_channels=3, id2label=dict(enumerate(NAMES)), image_size=8)

    stand_in = SimpleNamespace(
        cached=[],
        hub=[],
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
        config(where, local_files_only)
        return stand_in.trained, {"missing_keys": set(stand_in.missing)}

    stand_in.trained = Classifier(config("mine")).eval()
    stand_in.AutoModelForImageClassification = SimpleNamespace(
        from_pretrained=from_pretrained, from_config=Classifier
    )
    stand_in.AutoImageProcessor = SimpleNamespace(
        from_pretrained=lambda where, local_files_only: Processor(**stand_in.processor)
    )
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    return stand_in


class Hub(BaseHTTPRequestHandler):
    """Answers as Hugging Face's hub does when it is asked about a file: its repositories are those listed."""

    def do_HEAD(self):
        self.server.asked.append(self.path)
        name = self.path.removeprefix("/").partition("/resolve/")[0]
        if name in self.server.repositories:
            self.send_response(200)
            self.send_header("ETag", '"0"')
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub of this machine, with nothing in the cache; `down()`: nothing answers any more."""
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    server.repositories = []
    place = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, place)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def down():
        server.shutdown()
        thread.join()
        server.server_close()

    server.down = down
    yield server
    if thread.is_alive():
        down()


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
    assert image_side_of(opened.model) == size
    assert image_side_of(transformers.trained) == 8


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
    tuned = fpa.finetune(model, (images, torch.arange(8) % 3), folder=tmp_path / "tuned", **how)
    assert torch.equal(load_model(tmp_path / "tuned" / "model.safetensors")(images), tuned(images))


def test_what_is_not_in_the_cache_is_fetched_once(transformers, hub):
    transformers.hub = hub.repositories = ["someone/else"]
    assert open_model("hf:someone/else").classes == NAMES
    assert set(hub.asked) == {"/someone/else/resolve/main/config.json"}
    del hub.asked[:]
    transformers.cached = ["someone/else"]
    assert open_model("hf:someone/else").classes == NAMES
    assert not hub.asked
    with pytest.raises(InputError, match=r"hf:no/such cannot be loaded here \(RepositoryNotFoundError: 404"):
        open_model("hf:no/such")


def test_what_cannot_be_had_is_said_in_a_line_with_what_to_do(transformers, hub):
    hub.down()
    for spec, said in (
        ("hf:someone/else", r"hf:someone/else cannot be loaded here \(ConnectError: .*save_pretrained"),
        ("hf:./nowhere", "there is no folder nowhere"),
        ("hf:", "hf: needs a name"),
        ("mine", "mine is a folder of Hugging Face: name it hf:mine"),
    ):
        with pytest.raises(InputError, match=said) as error:
            open_model(spec)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"hf:mine has its own weights: leave out other\.pt"):
        open_model("hf:mine", "other.pt")
    with pytest.raises(InputError, match=r"hf:someone/else cannot be loaded here \(ConnectError"):
        build_model("hf:someone/else", 3, (3, 8, 8))
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


def test_weights_of_timm_by_name_ask_once_where_nothing_answers(hub):
    """The hub's package alone would ask again and again, for a minute."""
    pytest.importorskip("timm")
    said = r"the weights DEFAULT of timm:test_vit.r160_in1k cannot be loaded here \({}.*--weights FILE"
    with pytest.raises(InputError, match=said.format("RepositoryNotFoundError: 404")):
        open_model("timm:test_vit.r160_in1k", "DEFAULT")
    assert hub.asked == ["/timm/test_vit.r160_in1k/resolve/main/config.json"]
    hub.down()
    with pytest.raises(InputError, match=said.format("ConnectError")):
        open_model("timm:test_vit.r160_in1k", "DEFAULT")


def test_weights_of_timm_in_the_cache_need_no_network(hub, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_vit.r160_in1k").eval()
    repository = tmp_path / "cache" / "models--timm--test_vit.r160_in1k"
    (repository / "snapshots" / "0").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0")
    save_file(model.state_dict(), repository / "snapshots" / "0" / "model.safetensors")
    opened, images = open_model("timm:test_vit.r160_in1k", "DEFAULT"), torch.randn(1, 3, 160, 160)
    assert torch.equal(opened.model(images), model(images))
    assert not hub.asked
