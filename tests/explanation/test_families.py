"""Families of estimators from outside the package, by name; sharing of passes; names, labels, JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from torch import nn

import fpa
from fpa import functional
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import (
    FAMILIES,
    PAPER,
    Estimator,
    GradientMap,
    IntegratedGradients,
    RawMap,
    Settings,
    SmoothGrad,
    Task,
    get_estimators,
    maps_of,
    passes,
    raw_maps_of,
    register,
)
from fpa.masking import Constant

FEW = Settings(ig_steps=4, sg_samples=3)


def some_images(count=3, size=8, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


@pytest.fixture
def families(monkeypatch):
    for name in list(FAMILIES):
        monkeypatch.setitem(FAMILIES, name, FAMILIES[name])
    yield FAMILIES
    for name in ("vargrad", "brightness", "halfway"):
        FAMILIES.pop(name, None)


class CountingEngine(Engine):
    def __init__(self, model):
        super().__init__(model)
        self.rows = []

    def gradients(self, works):
        self.rows.append(sum(work.count for work in works))
        super().gradients(works)


def test_a_family_of_ones_own_shares_the_passes_of_another(net, families):
    """The mean fourth power of SmoothGrad's gradients: from its noisy copies, without a pass of its own."""

    @register
    @dataclass(frozen=True)
    class FourthPower(SmoothGrad):
        family = "vargrad"
        label = "VarGrad"
        nonnegative = True

        def each(self, gradients):
            return gradients**4

    images, engine = some_images(), CountingEngine(net)
    names = ["vargrad_sum", "vargradx_sum", "sg_sum", "sqsg_sum"]
    maps = fpa.explain(engine, images, names, settings=FEW)
    assert engine.rows == [3 * 3]
    assert passes(names, FEW) == 3

    class Squared(nn.Module):
        """Its gradients are the noisy copies themselves."""

        def forward(self, x):
            return x.square().sum((1, 2, 3))[:, None] / 2

    noise, spread = SmoothGrad(3, 0.15).prepare(
        Task(Engine(Squared()), images, torch.zeros(3, dtype=torch.int64), [0, 1, 2], 0, Constant())
    )
    copies = images[:, None] + spread[:, None] * noise.view(3, 3, 3, 8, 8)
    found = fpa.explain(Squared(), images, names, settings=FEW)
    torch.testing.assert_close(found["vargrad_sum"], (copies**4).mean(1).sum(1))
    torch.testing.assert_close(found["sqsg_sum"], (copies**2).mean(1).sum(1))
    named = get_estimators(names)
    assert [estimator.sign for estimator in named.values()] == ["unsigned", "signed", "signed", "unsigned"]
    assert named["vargradx_sum"].label("vargradx_sum").text == "VarGrad'_sum"
    assert maps.keys() == found.keys()


def test_a_family_of_gradients_at_points_of_its_own(net, families):
    """Twice the gradient at half the image."""

    @register
    @dataclass(frozen=True)
    class Halfway(GradientMap):
        factor: float = 2.0
        family = "halfway"
        gradients = 2

        def prepare(self, task):
            return task.images / 2

        def rows(self, task, prepared, at, image):
            return prepared.index_select(0, image)

        def finish(self, total, prepared):
            return total

    images, engine = some_images(), CountingEngine(net)
    maps = fpa.explain(engine, images, ["halfway_sum", "vg_sum"], targets=1)
    assert engine.rows == [3 * (2 + 1)]
    expected = 2 * functional.vanilla_gradient(net, images / 2, 1).sum(1)
    torch.testing.assert_close(maps["halfway_sum"], expected, rtol=1e-4, atol=1e-6)


def test_a_plain_family_with_settings_and_an_argument(net, families):
    @register
    @dataclass(frozen=True)
    class Brightness(RawMap):
        """One channel times a power."""

        power: float = 1
        family = "brightness"

        @classmethod
        def from_argument(cls, argument):
            return cls(float(argument)), None

        def raw_map(self, name, task):
            return task.images**self.power

    images = some_images()
    maps = fpa.explain(net, images, ["brightness_sum", "brightnessx_abs", "brightness:2"])
    torch.testing.assert_close(maps["brightness_sum"], images.sum(1))
    torch.testing.assert_close(maps["brightnessx_abs"], (images**2).sum(1))
    torch.testing.assert_close(maps["brightness:2"], (images**2).sum(1))
    estimator = get_estimators("brightness:2")["brightness:2"]
    assert estimator.described()["raw"] == {"name": "brightness", "power": 2.0}


def test_a_family_must_have_a_name():
    with pytest.raises(InputError, match="Nameless must give its name"):
        register(type("Nameless", (RawMap,), {}))


def test_raw_maps_are_what_the_reduction_gets(net):
    images = some_images()
    named = get_estimators(["vg_abs", "vgx_sum", "random", "captum:Saliency_abs"], FEW)
    task = Task(Engine(net), images, torch.tensor([0, 3, 1]), [0, 1, 2], 0, Constant())
    raws, maps = raw_maps_of(task, named), maps_of(task, named)
    assert list(raws) == list(maps) == list(named)
    torch.testing.assert_close(raws["vgx_sum"], raws["vg_abs"] * images)
    torch.testing.assert_close(raws["captum:Saliency_abs"], raws["vg_abs"])
    assert raws["random"].shape == (3, 1, 8, 8)
    for name, raw in raws.items():
        assert torch.equal(named[name].reduce(raw), maps[name])


def test_settings_of_ones_own_stay_and_others_come_from_the_settings(net):
    named = get_estimators(
        {"short": Estimator(IntegratedGradients(steps=2)), "long": "ig_sum", "sg": Estimator(SmoothGrad(9))},
        FEW,
    )
    assert (named["short"].raw.steps, named["long"].raw.steps) == (2, 4)
    assert named["sg"].raw == SmoothGrad(9, 0.15)
    assert passes(named) == 2 + 4 + 9
    maps = fpa.explain(net, some_images(), named)
    alone = fpa.explain(net, some_images(), "ig_sum", settings=Settings(ig_steps=2))["ig_sum"]
    torch.testing.assert_close(maps["short"], alone)


def brightness(model, images, targets):
    return images.mean(1)


def test_sets_names_and_functions_can_be_mixed():
    listed = get_estimators(["paper", "captum:DeepLift", brightness])
    assert list(listed) == [*PAPER, "captum:DeepLift", "brightness"]
    mapped = get_estimators({"mine": brightness, "all": "paper", "again": "ig_sum"})
    assert list(mapped) == ["mine", *PAPER, "again"]
    for twice in (["paper", "ig_sum"], {"ig_sum": brightness, "all": "paper"}):
        with pytest.raises(InputError, match="named twice: ig_sum"):
            get_estimators(twice)
    with pytest.raises(InputError, match="an estimator in a list must have a name, this function has none"):
        get_estimators([lambda model, images, targets: images])


def test_a_baseline_is_one_whatever_it_is_called():
    named = get_estimators({"noise": "random", "other": Estimator("random", "abs", kind="signed")})
    assert [estimator.sign for estimator in named.values()] == ["baseline", "baseline"]
    with pytest.raises(InputError, match="unknown estimator 'random_abs'"):
        get_estimators("random_abs")


@pytest.mark.parametrize(
    ("estimators", "texts"),
    [
        (["vgx_sum", "sqsg_sum", "random"], ["VG'_sum", "SQ-SG_sum", "Random"]),
        (["captum:DeepLift", "captum:LayerGradCam_abs@layer4"], ["DeepLift", "LayerGradCam@layer4_abs"]),
        ({"mine": "vgx_sum", "vgx_sum": PAPER["vgx_sum"], "f": brightness}, ["mine", "VG'_sum", "f"]),
        ({"vgx_sum": brightness}, ["vgx_sum"]),
    ],
)
def test_labels_survive_json(estimators, texts):
    labels = [estimator.label(name) for name, estimator in get_estimators(estimators).items()]
    assert [label.text for label in labels] == texts
    stored: Any = json.loads(json.dumps([asdict(label) for label in labels]))
    assert [type(label)(**parts) for label, parts in zip(labels, stored, strict=True)] == labels


@pytest.mark.parametrize("reference", ["masked", "black", 0.5, (0.1, 0.2, 0.3), Constant(0.5)])
def test_descriptions_differ_where_the_maps_would(reference):
    base = get_estimators("paper", Settings(ig_steps=9))
    other = get_estimators("paper", Settings(ig_steps=9, sigma=0.1, reference=reference))
    different = {name for name in PAPER if base[name].described() != other[name].described()}
    smooth = {"sg_abs", "sgx_sum", "sgx_abs", "sqsg_sum"}
    assert different == smooth | (set() if reference == "masked" else {"ig_sum", "ig_abs"})
    for estimator in other.values():
        assert json.loads(json.dumps(estimator.described())) == estimator.described()


def test_what_needs_no_settings_is_not_made_again():
    """Maps keep the file they have read, and what was found out about it."""
    estimator = Estimator(torch.ones(2, 4, 4))
    assert get_estimators({"mine": estimator}, FEW)["mine"].raw is estimator.raw
