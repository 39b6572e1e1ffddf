"""What a training takes, before it starts: a few steps are run on copies, all others are counted."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import fpa
from fpa.engine import devices
from fpa.models.architectures import SmallResNet
from fpa.study.trainings import load_recipe_data, recipe_jobs
from fpa.training import estimate as estimating
from fpa.training.trainer import train_jobs


class Net(nn.Sequential):
    """A network of its own type, so that its passes can be told from those of its layers."""


@pytest.fixture
def passed():
    """How many images went through a network so far."""
    seen = Counter()

    def look(module, arguments):
        if isinstance(module, Net | SmallResNet):
            seen["rows"] += len(arguments[0])

    hook = register_module_forward_pre_hook(look)
    yield seen
    hook.remove()


@pytest.fixture
def clock(monkeypatch, passed):
    """A clock that goes on by a second for every image that goes through a network, and never else."""

    class Clock:
        @staticmethod
        def monotonic():
            return float(passed["rows"])

    monkeypatch.setattr(devices, "time", Clock)
    monkeypatch.setattr(estimating, "time", Clock)


def network():
    torch.manual_seed(0)
    return Net(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))


@pytest.mark.parametrize(("targets", "passes_a_step"), [("labels", 1), ("model", 2)])
def test_a_fine_tuning_takes_all_its_steps_and_the_teacher_as_many_passes(clock, targets, passes_a_step):
    data = (torch.randn(40, 3, 8, 8), torch.arange(40) % 4)
    found = fpa.estimate(fpa.finetune, network(), data, targets=targets, epochs=7, batch_size=8)
    assert found.stages[0].passes == {"steps": 35}
    assert found.seconds == 35 * 8 * passes_a_step


def test_a_recipe_takes_the_steps_and_the_tests_of_all_its_models(clock, passed, tmp_path):
    changes = {
        "data.train_images": 96,
        "data.evaluation_images": 50,
        "training.batch_size": 32,
        "training.epochs": 4,
        "training.test_every": 2,
        "augmentations": ["none", "fpa"],
    }
    recipe = fpa.load_recipe("shapes", changes)
    data = load_recipe_data(recipe)
    jobs = recipe_jobs(recipe, tmp_path, data)
    found = estimating.estimate_training(jobs, data, device="cpu")
    assert found.seconds == 2 * 4 * 3 * 32
    assert found.once == 2 * 2 * 50
    assert not [*tmp_path.iterdir()]
    # The training itself passes as many; it tries the model with one image for each job besides.
    before = passed["rows"]
    train_jobs(jobs, data, device="cpu")
    tried = passed["rows"] - before - found.seconds - found.once
    assert 0 <= tried <= 4
    left = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert found.disk == pytest.approx(left, rel=0.1)


def test_an_estimate_leaves_the_model_as_it_was():
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = (torch.randn(16, 3, 8, 8), torch.arange(16) % 4)
    state = torch.get_rng_state()
    fpa.estimate(fpa.finetune, net, data, epochs=1, batch_size=8)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_single_step_is_enough(clock):
    data = (torch.randn(8, 3, 8, 8), torch.arange(8) % 4)
    found = fpa.estimate(fpa.finetune, network(), data, targets="labels", epochs=1, batch_size=8)
    assert found.seconds == 8
