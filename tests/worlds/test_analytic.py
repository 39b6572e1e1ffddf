"""The network whose effects follow from its weights, against settings tried one by one."""

import pytest
import torch

from fpa.data.normalisation import minus_one_to_one
from fpa.worlds import Cues
from fpa.worlds.analytic import PixelNetwork, exact_effects
from fpa.worlds.effects import part_effects, true_effects

normalised = minus_one_to_one(3)


@pytest.fixture(scope="module")
def network():
    return PixelNetwork().double()


@pytest.fixture(scope="module")
def scenes():
    return Cues().test_scenes(range(12))


def centred(network, targets):
    def run(scene, rows):
        with torch.no_grad():
            logits = network(normalised(rows(0, len(scene))).double())
        return (logits.gather(1, targets[scene][:, None])[:, 0] - logits.mean(1))[:, None]

    return run


def test_closed_form_and_settings_agree(network, scenes):
    targets = network(normalised(scenes.render()).double()).argmax(1)
    exact = exact_effects(network, scenes, targets, normalised, redraws=4)
    tried = true_effects(scenes, centred(network, targets), redraws=4)
    assert torch.allclose(exact.by_player(scenes), tried.shapley[..., 0], rtol=0, atol=1e-9)
    parts = part_effects(scenes, centred(network, targets))[..., 0]
    assert torch.allclose(exact.by_part(scenes), parts, rtol=0, atol=1e-9)
    assert tried.shapley[..., 0].abs().max() > 1
    # cues are opaque to different degrees, so cue and background interact, but no two cues do
    assert 0 < tried.interaction.nanmean() < 0.5


def test_the_network_knows_something_of_the_classes(network):
    scenes = Cues().test_scenes(range(600))
    right = network(normalised(scenes.render()).double()).argmax(1) == scenes.labels
    assert right.double().mean() > 0.38  # chance is a third


def test_logits_are_sums_over_pixels(network):
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    expected = torch.zeros(2, 3).double()
    for row in range(2):
        for pixel in images[row].flatten(1).T:
            for colour in range(3):
                others = (pixel.sum() - pixel[colour]) / 2
                expected[row, colour] += max(float(pixel[colour] - others) - 0.5, 0)
    assert torch.allclose(network(images), expected)
