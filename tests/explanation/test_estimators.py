"""Estimators against Captum, closed forms and plain loops."""

import math
from pathlib import Path

import pytest
import torch
import torchvision
from captum import attr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import PAPER, Estimator, Settings, explain, get_estimators, passes
from fpa.masking import Blur, Constant, Uniform, black, fully_masked
from fpa.seeds import Stream, by_image

FEW = Settings(ig_steps=6, sg_samples=4)
RAW = {name: Estimator(name) for name in ("vg", "ig", "sg", "sqsg")}


def some_images(count=3, size=12, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 4 * 4, 5)).eval()


def linear(weight):
    """Logits = weight [classes, C, H, W] . image."""
    layer = nn.Linear(weight[0].numel(), len(weight), bias=False)
    layer.weight.data = weight.flatten(1)
    return nn.Sequential(nn.Flatten(), layer)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_ten_estimators_cost_216_gradients_an_image():
    assert len(PAPER) == 10
    assert passes("paper") == 216
    assert passes(["ig_sum", "ig_abs"]) == 200
    assert passes(["sg_abs", "sgx_sum", "sqsg_sum"]) == 15
    assert passes(["random"]) == 0


def test_the_engine_runs_no_more_rows_than_that(net):
    rows = []

    class Counting(Engine):
        def gradients(self, works):
            rows.append(sum(work.count for work in works))
            super().gradients(works)

    explain(Counting(net), some_images(2), settings=FEW)
    assert rows == [2 * (6 + 4 + 1)]


def test_signs():
    assert [name for name, estimator in PAPER.items() if estimator.signed] == ["ig_sum", "vgx_sum", "sgx_sum"]


def test_vanilla_gradient_is_captums_saliency(net):
    images, targets = some_images(), torch.tensor([0, 3, 1])
    saliency = attr.Saliency(net).attribute(images, target=targets, abs=False)
    maps = explain(net, images, ["vg_sum", "vg_abs", "vgx_sum", "vgx_abs"], targets=targets)
    close(maps["vg_sum"], saliency.sum(1))
    close(maps["vg_abs"], saliency.abs().sum(1))
    close(maps["vgx_sum"], (saliency * images).sum(1))
    close(maps["vgx_abs"], (saliency * images).abs().sum(1))


@pytest.mark.parametrize("reference", ["masked", 0.5, (0.1, -0.2, 0.3), "image"])
def test_integrated_gradients_are_captums(net, reference):
    images, targets = some_images(), torch.tensor([0, 3, 1])
    base = (
        {"masked": 0.0, "image": some_images(seed=9)}.get(reference, reference)
        if isinstance(reference, str)
        else reference
    )
    given_reference = base if reference == "image" else reference
    baselines = torch.as_tensor(base, dtype=torch.float32)
    baselines = (baselines[:, None, None] if baselines.ndim == 1 else baselines).expand_as(images)
    expected = attr.IntegratedGradients(net).attribute(
        images, baselines.contiguous(), target=targets, n_steps=20, method="riemann_right"
    )
    choice = Settings(ig_steps=20, reference=given_reference)
    maps = explain(net, images, ["ig_sum", "ig_abs"], targets=targets, settings=choice)
    close(maps["ig_sum"], expected.float().sum(1))
    close(maps["ig_abs"], expected.float().abs().sum(1))


@pytest.mark.parametrize("squared", [False, True])
def test_smoothgrad_is_captums_noise_tunnel_on_the_same_noise(net, squared, monkeypatch):
    images, targets, samples = some_images(), torch.tensor([0, 3, 1]), 4
    noise = by_image((samples, *images.shape[1:]), 5, [0, 1, 2], Stream.SMOOTH)
    spread = 0.15 * torch.stack([image.max() - image.min() for image in images])
    # Captum draws with torch.normal for every copy of every image, an image's copies one after the other.
    monkeypatch.setattr(torch, "normal", lambda *_: (noise * spread[:, None, None, None, None]).flatten(0, 1))
    expected = attr.NoiseTunnel(attr.Saliency(net)).attribute(
        images,
        nt_samples=samples,
        nt_type="smoothgrad_sq" if squared else "smoothgrad",
        target=targets,
        abs=False,
    )
    name = "sqsg_sum" if squared else "sg_sum"
    close(explain(net, images, name, targets=targets, seed=5, settings=FEW)[name], expected.sum(1))


def test_linear_model_closed_forms():
    """A linear model's gradient is its weight everywhere, so every estimator is known."""
    weight, images = some_images(4, 5, seed=1), some_images(3, 5)
    targets = torch.tensor([2, 0, 3])
    maps = explain(linear(weight), images, targets=targets, settings=FEW)
    own = weight[targets]
    close(maps["vg_abs"], own.abs().sum(1))
    close(maps["sg_abs"], own.abs().sum(1))
    close(maps["sqsg_sum"], own.square().sum(1))
    for name in ("ig", "vgx", "sgx"):
        close(maps[f"{name}_sum"], (own * images).sum(1))
        close(maps[f"{name}_abs"], (own * images).abs().sum(1))


def test_quadratic_model_shows_the_right_riemann_sum():
    """f(x) = sum x^2 / 2 from 0: IG = x^2 (1 + 1/m) / 2 for the right sum, exactly."""

    class Quadratic(nn.Module):
        def forward(self, x):
            return x.square().sum((1, 2, 3), keepdim=True)[:, :, 0, 0] / 2

    images = some_images(2, 4)
    found = explain(Quadratic(), images, "ig_sum", settings=Settings(ig_steps=10))["ig_sum"]
    close(found, images.square().sum(1) * (1 + 1 / 10) / 2)


def test_smoothgrad_noise_has_the_asked_spread():
    """f(x) = sum x^2 / 2 has gradient x: SQ-SG - VG^2 is the variance of the noise."""

    class Quadratic(nn.Module):
        def forward(self, x):
            return x.square().sum((1, 2, 3), keepdim=True)[:, :, 0, 0] / 2

    images = torch.zeros(1, 1, 20, 20)
    images[0, 0, 0, :2] = torch.tensor([-1.0, 3.0])
    choice = Settings(sg_samples=60, sigma=0.1)
    square = explain(Quadratic(), images, "sqsg_sum", settings=choice)["sqsg_sum"]
    assert square[0, 1:].mean().sqrt().item() == pytest.approx(0.1 * 4, rel=0.02)


@pytest.mark.parametrize("masking", [Constant(), Blur(), Uniform()])
def test_completeness_on_a_real_network(masking):
    """The scores add up to the difference of the logits at the two ends of the curve."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).double().eval()
    images = some_images(2, 32).double()
    noise = (
        torch.cat([masking.noise(images[i : i + 1], _generator(i)) for i in range(2)])
        if isinstance(masking, Uniform)
        else None
    )
    maps = explain(model, images, "ig_sum", targets=3, masking=masking, settings=Settings(ig_steps=200))
    with torch.no_grad():
        difference = (model(images) - model(fully_masked(masking, images, noise)))[:, 3]
    # The right sum of m steps is off by (g(1) - g(0)) / 2m plus the kinks of the ReLUs.
    torch.testing.assert_close(maps["ig_sum"].sum((1, 2)), difference, rtol=0.05, atol=0.02)


def _generator(index):
    from fpa.seeds import generator

    return generator("cpu", 0, index, Stream.MASKING)


@settings(max_examples=10, deadline=None)
@given(batch=st.integers(1, 9), order=st.permutations(range(5)))
def test_maps_depend_neither_on_batch_nor_on_order(net, batch, order):
    images, choice = some_images(5), FEW
    whole = explain(Engine(net, batch_size=64), images, settings=choice, seed=3)
    order = list(order)
    other = explain(Engine(net, batch_size=batch), images[order], settings=choice, seed=3, indices=order)
    assert torch.equal(other["random"], whole["random"][order])
    for name in PAPER:
        close(other[name], whole[name][order])


def test_alone_or_in_company_the_noise_of_an_image_is_the_same(net):
    images = some_images(4)
    together = explain(net, images, ["sg_abs", "random"], settings=FEW, indices=[10, 11, 12, 13])
    alone = explain(net, images[2:3], ["sg_abs", "random"], settings=FEW, indices=[12])
    assert torch.equal(alone["random"][0], together["random"][2])
    close(alone["sg_abs"][0], together["sg_abs"][2])
    other_seed = explain(net, images[2:3], ["sg_abs", "random"], settings=FEW, indices=[12], seed=1)
    assert not torch.equal(alone["random"], other_seed["random"])
    assert not torch.allclose(alone["sg_abs"], other_seed["sg_abs"])


def test_random_is_uniform(net):
    values = explain(net, some_images(40), "random")["random"]
    assert values.min() >= 0
    assert values.max() < 1
    assert values.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / values.numel()))


def test_custom_callables_and_captum_objects(net):
    images, targets = some_images(), torch.tensor([0, 3, 1])

    def gradient(model, rows, classes):
        rows.requires_grad_()
        return torch.autograd.grad(model(rows).gather(1, classes[:, None]).sum(), rows)[0]

    maps = explain(
        net,
        images,
        {
            "mine": gradient,
            "mine_abs": Estimator(gradient, "abs", times_input=True),
            "captum": attr.InputXGradient(net),
            "tunnel": attr.NoiseTunnel(attr.Saliency(net)),
            "flat": lambda model, rows, classes: rows.mean(1),
            "vgx_sum": "vgx_sum",
            "vgx_abs": "vgx_abs",
            "vg_sum": "vg_sum",
        },
        targets=targets,
    )
    close(maps["mine"], maps["vg_sum"])
    close(maps["mine_abs"], maps["vgx_abs"])
    close(maps["captum"], maps["vgx_sum"])
    close(maps["flat"], images.mean(1))
    assert maps["tunnel"].shape == (3, 12, 12)


def test_black_reference():
    images = some_images(2, 5).clamp(-1, 1)
    model = linear(some_images(4, 5, seed=1))
    expected = explain(model, images, "ig_sum", settings=Settings(ig_steps=5, reference=-1.0))
    for reference in ("black", black((0.5,) * 3, (0.5,) * 3)):
        found = explain(model, images, "ig_sum", settings=Settings(ig_steps=5, reference=reference))
        close(found["ig_sum"], expected["ig_sum"])


def test_black_needs_the_scale_it_means(net):
    with pytest.raises(InputError, match=r'"black" means -1 and needs images scaled to \[-1, 1\]'):
        explain(net, some_images(), "ig_sum", settings=Settings(reference="black"))


def test_maps_that_are_not_finite_are_named(net):
    images = some_images()
    images[1, 0, 0, 0] = float("nan")
    with pytest.warns(UserWarning, match=r"estimator vg_abs: 1 map \(image 8\) is not finite"):
        explain(net, images, "vg_abs", indices=[7, 8, 9])


@pytest.mark.filterwarnings("ignore:estimator")
def test_a_broken_image_breaks_no_other(net):
    images = some_images()
    clean = explain(net, images, settings=FEW)
    images[1, 0, 0, 0] = float("nan")
    broken = explain(net, images, settings=FEW)
    for name in PAPER:
        close(broken[name][[0, 2]], clean[name][[0, 2]])
        assert name == "random" or broken[name][1].isnan().any()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("ig_su", "unknown estimator 'ig_su': did you mean 'ig_sum'"),
        ("IntegratedGradients", r"did you mean 'ig_sum' or 'ig_abs'\?"),
        ("input x gradient", r"did you mean 'vgx_sum' or 'vgx_abs'\?"),
        ("smoothgrad", r"did you mean 'sg_abs'\?"),
        ("igx_sum", "unknown estimator 'igx_sum'"),
        ([], "no estimators"),
        (["vg_abs", "vg_abs"], "named twice: vg_abs"),
        ({"a": 3}, "a callable .* or a Captum attribution object, got int"),
    ],
)
def test_bad_names(names, message):
    with pytest.raises(InputError, match=message):
        get_estimators(names)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ig_steps": 0}, "ig_steps must be a whole number of at least 1, got 0"),
        ({"sg_samples": 1.5}, "sg_samples must be a whole number of at least 1, got 1.5"),
        ({"sigma": -1}, "sigma must be a finite number"),
        ({"reference": "white"}, "unknown reference 'white'"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(InputError, match=message):
        Settings(**bad)


def test_bad_shapes(net):
    with pytest.raises(InputError, match=r"reference \[2, 1, 1\] does not fit images \[3, 3, 12, 12\]"):
        explain(net, some_images(), "ig_sum", settings=Settings(reference=(0.0, 1.0)))
    with pytest.raises(
        InputError, match=r"estimator mine must return a tensor \[3, 3, 12, 12\] .*, got \[3, 12\]"
    ):
        explain(net, some_images(), {"mine": lambda model, rows, classes: rows[:, 0, 0]})
    with pytest.raises(InputError, match="3 images but 2 indices"):
        explain(net, some_images(), indices=[1, 2])
    with pytest.raises(InputError, match="unknown reduction 'max'"):
        Estimator("vg", "max")


def test_a_module_of_ones_own_may_be_called_almost_like_a_family(net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mymaps.py").write_text("def first(model, images, targets):\n    return images.sum(1)\n")
    images = some_images(2)
    assert torch.equal(explain(net, images, ["mymaps:first"])["mymaps:first"], images.sum(1))
    with pytest.raises(InputError, match="unknown estimator"):
        explain(net, images, ["captun:Saliency"])
