"""Fine-tuning on CUDA: the captured step, with its schedule and its teacher, is the eager one."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fpa import finetune, load_model
from fpa.data.sets import load_data
from fpa.data.splits import first_images
from fpa.training.settings import TrainingSettings
from fpa.training.trainer import predictions
from interruptions import stopped_before

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("targets", ["labels", "model"])
def test_captured_equals_eager_within_rounding(targets, monkeypatch):
    data = load_data("shapes")
    data = replace(data, train=first_images(data.train, 256))
    model = load_model("shapes-none")
    tuned = []
    for captured in (True, False):
        settings = partial(TrainingSettings, compile=captured, precision="float32")
        monkeypatch.setattr("fpa.training.tuning.TrainingSettings", settings)
        tuned.append(finetune(model, data, epochs=1, batch_size=64, targets=targets, device="cuda"))
    images = data.normalisation(data.test.images[:200])
    with torch.no_grad():
        captured, eager, before = (one(images) for one in (*tuned, model))
    change = (eager - before).abs().mean()
    assert change > 0
    assert (captured - eager).abs().mean() < 0.1 * change


def test_what_a_model_says_is_computed_in_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # PyTorch's default
    model, seen = load_model("shapes-none", "cuda"), set()
    model.register_forward_hook(lambda *_: seen.add(torch.backends.cudnn.allow_tf32))
    predictions(model, load_data("shapes"), "cuda")
    assert seen == {False}


def test_a_loader_of_ones_own():
    model = load_model("shapes-none")
    images, labels = torch.randn(64, 3, 32, 32), torch.arange(64) % 8
    tuned = finetune(model, (images, labels), epochs=1, batch_size=32, device="cuda")
    assert next(tuned.parameters()).device.type == "cpu"  # back where the original is
    assert any(not torch.equal(a, b) for a, b in zip(tuned.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("targets", ["labels", "model"])
def test_a_model_on_the_device_with_frozen_parts_stays_there(targets, captured, monkeypatch):
    monkeypatch.setattr("fpa.training.tuning.TrainingSettings", partial(TrainingSettings, compile=captured))
    data = load_data("shapes")
    data = replace(data, train=first_images(data.train, 128), evaluation=data.evaluation[:40])
    model = load_model("shapes-none").cuda().requires_grad_(False)
    model.head.requires_grad_(True)
    tuned = finetune(model, data, epochs=1, batch_size=64, targets=targets, device="cuda")
    assert next(tuned.parameters()).device.type == "cuda"
    before = dict(model.named_parameters())
    moved = {name for name, value in tuned.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    half = finetune(model.half(), (torch.randn(64, 3, 32, 32), torch.arange(64) % 8), batch_size=32)
    assert (half.head.weight.dtype, half.head.weight.device.type) == (torch.float16, "cuda")


@pytest.mark.parametrize("targets", ["labels", "model"])
def test_stopped_and_continued_it_ends_with_the_same_weights(targets, tmp_path, monkeypatch):
    data = load_data("shapes")
    data = replace(data, train=first_images(data.train, 128), evaluation=data.evaluation[:40])
    settings = partial(TrainingSettings, checkpoint_seconds=0.0)
    monkeypatch.setattr("fpa.training.tuning.TrainingSettings", settings)
    run = partial(finetune, load_model("shapes-none"), data, epochs=2, batch_size=16, targets=targets)
    whole = run(device="cuda", folder=tmp_path / "whole")
    with stopped_before(11):
        run(device="cuda", folder=tmp_path / "cut")
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    cut = run(device="cuda", folder=tmp_path / "cut").state_dict()
    assert all(torch.equal(value, cut[name]) for name, value in whole.state_dict().items())
