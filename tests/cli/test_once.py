"""Before the work of a command begins: data are made once, and the model is tried a few times."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader, Dataset

import fpa
from fpa.cli.main import main
from fpa.data.sets import DATA_SETS, register
from fpa.data.splits import ArraySplit, array_data
from fpa.models.architectures import SmallResNet

IMAGES = 20
"""More than the 16 that a trial has at most: the first pass over so many is the first of the work itself."""

WHERE = ["--data", "counted", "--workers", "0"]
QUICK = ["--estimators", "ig_sum,vg_abs", "--ig_steps", "2"]
RECIPE = """
name: tiny
model: resnet-small
augmentations: [none, fpa]
data: {name: counted, workers: 0}
training: {epochs: 1, batch_size: 20}
evaluation: {estimators: [ig_sum, vg_abs], points: 3, ig_steps: 2, sg_samples: 2, examples: 1}
"""


@pytest.fixture
def loads():
    """The names that the data set `counted` was asked for by, each time."""
    asked = []

    def load(request):
        asked.append(request.name)
        pixels = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
        split = ArraySplit(pixels, torch.arange(IMAGES) % 8)
        return array_data(request, split, split, fpa.load_model("shapes-none").card.classes)

    register("counted", load)
    yield asked
    DATA_SETS.pop("counted")


class BegunError(BaseException):
    """The work itself begins, and the test has seen enough."""


@pytest.fixture
def trials():
    """How many images each pass through a network has, up to the first pass over all images."""
    seen = []

    def look(network, arguments):
        if isinstance(network, SmallResNet):
            if len(arguments[0]) == IMAGES:
                raise BegunError
            seen.append(len(arguments[0]))

    hook = register_module_forward_pre_hook(look)
    yield seen
    hook.remove()


@pytest.mark.parametrize(
    ("command", "most"),
    [
        # as it is; a pair of images, twice, and one of them alone; the memory of a row; its head;
        # logits and gradients of two fixed images, each alone, by which the folder knows the model
        (["evaluate", "shapes-none", *WHERE, *QUICK, "--points", "3"], 10),
        (["audit", "shapes-none", *WHERE, *QUICK], 10),
        # what the file will say of it; as it is; in the faster order of memory
        (["finetune", "shapes-none", *WHERE, "--epochs", "1", "--batch_size", "20"], 3),
        # before the folder is touched, and by the trainer
        (["run", "tiny.yaml"], 2),
    ],
)
def test_a_command_makes_its_data_once_and_tries_the_model_a_few_times(
    command, most, loads, trials, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    with pytest.raises(BegunError):
        main([*command, "--device", "cpu", "--quiet", "--output", "out"])
    assert loads == ["counted"]
    assert 0 < len(trials) <= most


class Counted(Dataset):
    """Images that count how often each is read."""

    def __init__(self):
        self.reads = Counter()
        self.images = torch.randn(IMAGES, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, place):
        self.reads[place] += 1
        return self.images[place], place % 4


@pytest.mark.parametrize("call", [fpa.evaluate, fpa.audit])
def test_images_of_a_loader_are_read_once_but_for_the_first_batch(call):
    data = Counted()
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    call(network, DataLoader(data, batch_size=6), ["vgx_sum", "vg_abs"], progress=False)
    assert {data.reads[place] for place in range(6, len(data))} == {1}
    assert max(data.reads.values()) <= 3
