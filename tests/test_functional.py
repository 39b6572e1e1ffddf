"""The pure functions are the steps of which `explain` and the curves are made."""

import pytest
import torch
from torch import nn

import fpa
from fpa import functional
from fpa.engine import Engine
from fpa.explanation import Settings
from fpa.masking import Blur, Uniform

FEW = Settings(ig_steps=5, sg_samples=3, sigma=0.2)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


@pytest.fixture
def images():
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("masking", [None, "blur", Uniform()])
def test_reduced_raw_maps_are_the_maps_of_explain(net, images, masking):
    place = {"seed": 4, "indices": [8, 2, 5]}
    maps = fpa.explain(net, images, [*["vg_abs", "vgx_sum", "ig_sum", "sgx_abs", "sqsg_sum"]], settings=FEW,
                       masking=masking, **place)  # fmt: skip
    gradient = functional.vanilla_gradient(Engine(net), images)
    smooth = functional.smooth_grad(net, images, samples=3, sigma=0.2, **place)
    square = functional.squared_smooth_grad(net, images, samples=3, sigma=0.2, **place)
    path = functional.integrated_gradients(net, images, steps=5, masking=masking, **place)
    for name, found in {
        "vg_abs": functional.reduce(gradient, "abs"),
        "vgx_sum": functional.reduce(gradient, times=images),
        "ig_sum": functional.reduce(path),
        "sgx_abs": functional.reduce(smooth, "abs", times=images),
        "sqsg_sum": functional.reduce(square),
    }.items():
        torch.testing.assert_close(found, maps[name], rtol=1e-4, atol=1e-6)


def test_a_curve_is_the_logits_of_images_without_the_lowest_ranks(net, images):
    scores = images[:, 0].round()
    curves = functional.perturbation_curves(net, images, scores, points=5, masking=Blur(2), seed=3)
    places = functional.ranks(scores, seed=3)
    for column, removed in enumerate((0, 16, 32, 48, 64)):
        with torch.no_grad():
            logits = net(functional.remove(images, places < removed, {"name": "blur", "sigma": 2}))
        expected = logits.gather(1, curves.targets[:, None])[:, 0]
        torch.testing.assert_close(curves.lif["map"][:, column], expected, rtol=1e-4, atol=1e-5)


def test_the_images_are_not_changed(net, images):
    before = images.clone()
    functional.remove(images, torch.ones(3, 8, 8, dtype=torch.bool))
    functional.integrated_gradients(net, images, steps=2)
    assert torch.equal(images, before)
    with pytest.raises(fpa.InputError, match=r"the mask must be bool \[3, 8, 8\]"):
        functional.remove(images, torch.ones(3, 8, 8))
