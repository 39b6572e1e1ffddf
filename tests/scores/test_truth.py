"""Truth as a score: of the model explained, for the class explained, against passes of one's own."""

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa import InputError
from fpa.worlds import Cues
from fpa.worlds.effects import part_effects, true_effects
from fpa.worlds.truth import truth, truth_of_parts
from small_world import small_cues, untrained
from striped import Bars

SCORES = ["truth", "truth_cues", "truth_unsigned", "truth_log_odds", "truth_parts"]


@pytest.fixture(scope="module")
def model():
    return untrained()


@pytest.fixture(scope="module")
def data():
    return small_cues(40)


def test_values_are_those_of_passes_of_ones_own(model, data):
    result = fpa.evaluate(
        model,
        data,
        ["vg_sum", "ig_sum", "vg_abs"],
        scores=SCORES,
        ig_steps=4,
        points=3,
        examples=0,
        progress=False,
    )
    scenes = data.world.test_scenes(range(40))
    images = data.normalisation(scenes.render())
    with torch.no_grad():
        targets = model(images).argmax(1)

    def run(scene, rows):
        with torch.no_grad():
            logits = model(data.normalisation(rows(0, len(scene)))).double()
        own = logits.gather(1, targets[scene][:, None])[:, 0]
        probability = logits.softmax(1).gather(1, targets[scene][:, None])[:, 0]
        return torch.stack([own - logits.mean(1), (probability / (1 - probability)).log()], 1)

    effects, odds = true_effects(scenes, run).shapley.unbind(2)
    parts = part_effects(scenes, run)[..., 0]
    for name in ("vg_sum", "ig_sum", "vg_abs"):
        maps = fpa.explain(model, images, [name], settings=fpa.Settings(ig_steps=4))[name]
        wanted = {
            "truth": truth(maps, scenes, effects),
            "truth_cues": truth(maps, scenes, effects, background=False),
            "truth_unsigned": truth(maps, scenes, effects, signed=False),
            "truth_log_odds": truth(maps, scenes, odds),
            "truth_parts": truth_of_parts(maps, scenes, parts),
        }
        for score, values in wanted.items():
            found = np.asarray(result.evaluation.values[score][name])
            assert np.allclose(found, values.numpy(), atol=2e-4, equal_nan=True), score
    few = (scenes.cues.sum(1) < 3).numpy()
    assert np.array_equal(np.isnan(result.evaluation.values["truth"]["ig_sum"]), few)


def test_data_that_are_no_world_are_refused_before_any_work(model):
    with pytest.raises(InputError, match="truth needs images that can be made again with cues left out"):
        fpa.evaluate(model, torch.rand(4, 3, 16, 16) * 2 - 1, ["vg_abs"], scores=["truth"], progress=False)


def test_a_world_that_has_changed_is_refused(model, data):
    class Other(Cues):
        def test_scenes(self, numbers, device="cpu"):
            return super().test_scenes([number + 1 for number in numbers], device)

    changed = fpa.data.ImageData(**{**vars(data), "world": Other(size=16)})
    with pytest.raises(InputError, match="the world Other does not make image 0 again as it is"):
        fpa.evaluate(model, changed, ["vg_abs"], scores=["truth"], points=3, examples=0, progress=False)


def test_truth_is_known_in_a_world_of_ones_own():
    """The logit is the sum over the left bar: the map that is 1 there and 0 elsewhere is true of the cues."""

    class Left(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, images):
            left = self.weight * images[:, :, 2:6, 1:5].sum((1, 2, 3))
            return torch.stack([-left, left], 1)

    data = Bars()(fpa.data.DataRequest("bars"))
    result = fpa.evaluate(
        Left(), data, ["ig_sum"], scores=["truth_parts"], points=3, examples=0, progress=False
    )
    found = result.evaluation.values["truth_parts"]["ig_sum"]
    scenes = data.world.test_scenes(range(20))
    bright = (scenes.cues[:, 0] & ~scenes.cues[:, 1]).numpy()
    assert np.allclose(found[bright], 1)


def test_an_absent_background_is_as_many_as_the_world_says(model):
    world = Cues(size=16, train_images=4, test_images=12, redraws=2)
    few = world(fpa.data.DataRequest("few"))
    result = fpa.evaluate(model, few, ["vg_sum"], scores=["truth"], points=3, examples=0, progress=False)
    scenes = world.test_scenes(range(12))
    images = few.normalisation(scenes.render())
    with torch.no_grad():
        targets = model(images).argmax(1)

    def run(scene, rows):
        with torch.no_grad():
            logits = model(few.normalisation(rows(0, len(scene)))).double()
        return (logits.gather(1, targets[scene][:, None])[:, 0] - logits.mean(1))[:, None]

    effects = true_effects(scenes, run, redraws=2).shapley[..., 0]
    maps = fpa.explain(model, images, ["vg_sum"])["vg_sum"]
    wanted = truth(maps, scenes, effects)
    assert np.allclose(result.evaluation.values["truth"]["vg_sum"], wanted, atol=1e-4, equal_nan=True)
