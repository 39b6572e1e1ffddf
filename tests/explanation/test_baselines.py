"""Maps that know no model, and blurred twins, against plain loops; their names and their place in a plan."""

import math

import pytest
import torch
from torch import nn

import fpa
from fpa.errors import InputError
from fpa.evaluation.stored_plan import StoredPlan
from fpa.explanation import Estimator, Settings, get_estimators, passes
from fpa.masking import Blur

FEW = Settings(ig_steps=2, sg_samples=2)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5)
    ).eval()


def some(count=2, height=7, width=10):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


def test_model_free_maps_equal_plain_loops(net):
    images = some()
    maps = fpa.explain(net, images, ["centre", "edges", "input"], masking={"name": "constant", "value": 0.5})
    for n, image in enumerate(images.double()):

        def at(channel, y, x, image=image):
            return float(image[channel, min(max(y, 0), 6), min(max(x, 0), 9)])

        for y in range(7):
            for x in range(10):
                across, down = (x + 0.5) / 10 - 0.5, (y + 0.5) / 7 - 0.5
                assert maps["centre"][n, y, x] == pytest.approx(
                    math.exp(-8 * (across**2 + down**2)), rel=1e-5
                )
                change = 0.0
                for c in range(3):
                    weights = {-1: 1, 0: 2, 1: 1}
                    gx = sum(w * (at(c, y + d, x + 1) - at(c, y + d, x - 1)) for d, w in weights.items()) / 4
                    gy = sum(w * (at(c, y + 1, x + d) - at(c, y - 1, x + d)) for d, w in weights.items()) / 4
                    change += gx**2 + gy**2
                assert maps["edges"][n, y, x] == pytest.approx(math.sqrt(change), rel=1e-4, abs=1e-5)
                far = math.sqrt(sum((at(c, y, x) - 0.5) ** 2 for c in range(3)))
                assert maps["input"][n, y, x] == pytest.approx(far, rel=1e-5)


def test_a_twin_is_the_map_blurred(net):
    """As the masking blur does it, which the tests of maskings hold against plain loops."""
    images = some(3, 16, 24)
    names = ["sg_abs", "vgx_sum", "sg_abs~", "vgx_sum~2.5", "sg_abs~2"]
    maps = fpa.explain(net, images, names, settings=FEW)
    for twin, of, sigma in (
        ("sg_abs~", "sg_abs", 1),
        ("vgx_sum~2.5", "vgx_sum", 2.5),
        ("sg_abs~2", "sg_abs", 2),
    ):
        expected = Blur(sigma).fill(maps[of][:, None].double())[:, 0]
        torch.testing.assert_close(maps[twin].double(), expected, rtol=1e-5, atol=1e-6)
    alone = fpa.explain(net, images[1:2], ["sg_abs~2"], settings=FEW, indices=[1])
    assert torch.equal(alone["sg_abs~2"], maps["sg_abs~2"][1:2])
    assert passes(names, FEW) == passes(["sg_abs", "vgx_sum"], FEW)
    flat = fpa.explain(
        net, images, {"flat": lambda model, x, t: x.new_full((len(x), 16, 24), 0.1), "t": "twins"}
    )
    assert flat["flat~"].unique().tolist() == flat["flat"].unique().tolist()


def brightness(model, images, targets):
    return images.mean(1)


def test_names():
    every = get_estimators(["paper", "baselines", brightness, "twins"])
    assert [name for name, each in every.items() if each.sign == "baseline"] == [
        "random",
        "centre",
        "edges",
        "input",
    ]
    twins = [name for name, each in every.items() if each.sign == "twin"]
    assert twins == [f"{name}~" for name, each in every.items() if each.explains]
    assert "brightness~" in twins
    assert "random~" not in twins
    assert every["ig_sum~"].raw is every["ig_sum"].raw or every["ig_sum~"].raw == every["ig_sum"].raw
    assert {each.blur for each in get_estimators(["vg_abs", "twins~3"]).values()} == {None, 3.0}
    assert get_estimators({"mine": "sg_abs~2"})["mine"].sign == "twin"
    assert get_estimators(["centre~2"])["centre~2"].sign == "baseline"
    assert (
        get_estimators("captum:LayerGradCam@layer4~4")["captum:LayerGradCam@layer4~4"].raw.layer == "layer4"
    )
    shown = {name: each.label(name).text for name, each in get_estimators(["vgx_sum~", "centre"]).items()}
    assert shown == {"vgx_sum~": "blurred VG'_sum", "centre": "Centre"}
    plain = Estimator("vg", "abs").described()
    assert Estimator("vg", "abs").twin(2).described() == plain | {"blur": 2}
    for bad, message in (
        ("sg_abs~0", "a number of pixels above 0, got 0"),
        ("sg_abs~2~3", "a blurred twin has no twin"),
        ("sg_abs~wide", "unknown estimator 'sg_abs~wide'"),
        ("twins", "no estimators were given"),
        ("centre_abs", "unknown estimator 'centre_abs'"),
    ):
        with pytest.raises(InputError, match=message):
            get_estimators(bad)


def test_in_an_evaluation(net):
    """Neither ranked nor counted; found as rivals under any name; not perturbed under further maskings."""
    named = {"noise": "random", "middle": "centre", "mine": "vg_abs", "other": "ig_sum", "soft": "vg_abs~2"}
    result = fpa.evaluate(net, some(12), named, settings=FEW, points=3, progress=False)
    assert set(result.reliability.by_area) == {"mine", "other"} == set(result.signed)
    assert [pair.kind for pair in result.reliability.pairs] == ["signed-unsigned"]
    assert result.description.plan.model_free == ["noise", "middle"]
    assert result.description.plan.twins == {"mine": ["soft"]}
    assert set(result.beats.model_free) == {"mine", "other"}
    assert set(result.beats.twin) == {"mine"}
    assert result.beats.twin["mine"].name == "soft"
    plan = fpa.make_plan(named, maskings={"mean": "mean"}, points=3, settings=FEW)
    assert plan.varied == ["noise", "mine", "other"]
    assert plan.passes == 3 + 2 * (5 + 3)


def first_and_second():
    """Two functions that nothing but their code tells apart."""
    return (lambda model, images, targets: images.mean(1)), (lambda model, images, targets: -images.amax(1))


class Attribution:
    """As Captum's objects are: what it does is not in its class."""

    def __init__(self, sign):
        self.sign = sign

    def attribute(self, images, target):
        return self.sign * images


def twins_in(result):
    return result.description.plan.twins


@pytest.mark.parametrize("pair", [first_and_second(), (Attribution(1), Attribution(-1))])
def test_an_explanation_is_compared_with_its_own_twin_alone(net, tmp_path, pair):
    named = {"one": pair[0], "two": pair[1], "t": "twins"}
    result = fpa.evaluate(net, some(12), named, points=3, progress=False, folder=tmp_path)
    expected = {"one": ["one~"], "two": ["two~"]}
    assert twins_in(result) == expected == twins_in(fpa.load_result(tmp_path))
    assert {name: rival.name for name, rival in result.beats.twin.items()} == {"one": "one~", "two": "two~"}
    audit = fpa.audit(
        net, some(12), {**named, "vg": "vg_abs"}, maskings=["constant"], points=3, progress=False
    )
    assert {name: audit.beats.twin[name].name for name in expected} == {"one": "one~", "two": "two~"}
    by_hand = {"one": pair[0], "two": pair[1], "soft": Estimator(pair[1]).twin(2)}
    assert twins_in(fpa.evaluate(net, some(4), by_hand, points=3, progress=False)) == {"two": ["soft"]}
    renamed = get_estimators(named)
    swapped = {"two": renamed["one"], "one": renamed["two"], "soft": renamed["one~"]}
    assert get_estimators(swapped)["soft"].twin_of == "two"


def test_plans_that_describe_every_map_are_stored_as_before(net):
    """Named estimators, even twice, and a single function: nothing is added that old evaluations lack."""
    engine = fpa.Engine(net)
    for named in (
        ["paper", "baselines", "twins"],
        {"one": "vg_abs", "two": "vg_abs", "t": "twins"},
        [brightness, "vg_abs", "twins"],
    ):
        plan = fpa.make_plan(named).to_json(engine)
        stored = plan["estimators"]
        keys = {"raw", "reduction", "times_input", "sign", "label"}
        assert {frozenset(each) for each in stored.values()} <= {frozenset(keys), frozenset(keys | {"blur"})}
    twins = StoredPlan.from_json(plan).twins
    assert twins == {"brightness": ["brightness~"], "vg_abs": ["vg_abs~"]}
