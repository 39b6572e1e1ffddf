"""Further protocols: the same maps put to the test in other ways, each as if it were the only one."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa import InputError
from fpa.auditing.rule import MASKED
from fpa.masking import Blur, Constant
from fpa.notes import Kind
from fpa.perturbation.protocols import FEWEST_FEATURES, USUAL, Protocol, get_protocols

# Integrated gradients start at 0, whatever is removed: by default they would follow the masking.
SETTINGS = fpa.Settings(ig_steps=3, sg_samples=2, reference=0.0)
HOW = {"settings": SETTINGS, "points": 5, "examples": 0, "progress": False}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 5)).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1)) - 1


@pytest.mark.parametrize(
    ("protocol", "alone"),
    [
        ("1/4", {"features": 4}),
        ("5", {"features": 5}),  # patches at the border are smaller
        ("pixels+mean", {"masking": "mean"}),
        ("1/4+road", {"features": 4, "masking": "road"}),
        ("segments:20+blur", {"features": "segments:20", "masking": "blur"}),
    ],
)
def test_curves_are_those_of_an_evaluation_by_this_protocol_alone(net, images, tmp_path, protocol, alone):
    """Whatever the plan's own features are: pixels, of one size, or segments, with shares of their own."""
    names = ["ig_sum", "vg_abs"]
    wanted = fpa.evaluate(net, images, names, **alone, **HOW).evaluation
    for features in ("pixels", "segments:30"):
        folder = tmp_path / features
        fpa.evaluate(net, images, names, features=features, protocols=[protocol], folder=folder, **HOW)
        found = fpa.load_result(folder).evaluation.under[protocol]
        for name in names:
            np.testing.assert_array_equal(found.mif[name], wanted.mif[name])
            np.testing.assert_array_equal(found.lif[name], wanted.lif[name])
            assert found.fidelity(name).area == wanted.fidelity(name).area


def test_a_saved_result_keeps_its_protocols(net, images, tmp_path):
    result = fpa.evaluate(net, images, ["vg_abs"], protocols=["1/4", "segments:40"], **HOW)
    again = fpa.load_result(result.save(tmp_path / "saved"))
    for name, part in result.evaluation.under.items():
        assert again.evaluation.under[name].fidelity("vg_abs").area == part.fidelity("vg_abs").area
    assert again.description.plan.to_json() == result.description.plan.to_json()


def test_other_protocols_are_another_plan(net, images, tmp_path):
    fpa.evaluate(net, images, ["vg_abs"], protocols=["1/4"], folder=tmp_path, **HOW)
    with pytest.raises(InputError):
        fpa.evaluate(net, images, ["vg_abs"], protocols=["1/2"], folder=tmp_path, **HOW)


def test_a_share_of_the_side_is_rounded_to_pixels(net, images):
    """A third of 16 pixels is 5; of a wide image the shorter side counts."""
    maps = torch.randn(6, 16, 16)
    thirds = fpa.perturbation_curves(net, images, maps, features="1/3", points=4)
    fives = fpa.perturbation_curves(net, images, maps, features=5, points=4)
    assert thirds.mif["map"].equal(fives.mif["map"])
    wide = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    images = torch.randn(1, 3, 8, 24)
    halves = fpa.perturbation_curves(wide, images, torch.randn(1, 8, 24), features="1/2", points=7)
    assert halves.fractions.tolist() == pytest.approx([k / 12 for k in (0, 2, 4, 6, 8, 10, 12)])


def test_names_and_objects():
    assert get_protocols("1/8,pixels+blur", Constant()) == {
        "1/8": Protocol("1/8", Constant()),
        "pixels+blur": Protocol("pixels", Blur()),
    }
    own = {"coarse": Protocol("segments", Blur(2)), "fine": 4}
    found = {"coarse": Protocol("segments:100", Blur(2)), "fine": Protocol(4, Constant())}
    assert get_protocols(own, Constant()) == found


@pytest.mark.parametrize(
    ("protocols", "problem"),
    [
        (["1/1"], "1/2 at most, got '1/1'"),
        (["1/x"], "as in 1/8"),
        (["1/32"], "1/32 of 16 pixels would be smaller than a pixel"),
        (["1/8+blurr"], "unknown masking 'blurr': did you mean 'blur'"),
        (["patches"], "the protocol 'patches': features must be"),
        (["1/8", "1/8"], "the protocol 1/8 is there twice"),
        ([4, "4"], "the protocol 4 is there twice"),
        ("1/8,1/08", "1/8 and 1/08 are the same protocol"),
        ("1/4,1/4+constant", r"1/4 and 1/4\+constant are the same protocol"),
        ("segments,segments:100", "segments and segments:100 are the same protocol"),
        ({"one": "1/4", "two": Protocol("1/4", Constant())}, "one and two are the same protocol"),
        ("²", "the protocol '²': features must be"),
        ("9" * 5000, "the protocol .999"),
        ([3.5], "got 3.5"),
        ({"mine": 3.5}, "got 3.5"),
        (["17"], r"patch size must be in 1..16 pixels, got 17"),
        (["1/2+road"], "left"),
    ],
)
def test_bad_protocols_are_refused(net, images, protocols, problem):
    with pytest.raises(InputError, match=problem):
        fpa.evaluate(net, images, ["vg_abs"], protocols=protocols, **HOW)


def test_a_name_for_two_things_is_refused(net, images):
    with pytest.raises(InputError, match="mean is the name of a masking and of a protocol"):
        fpa.evaluate(net, images, "vg_abs", maskings={"mean": "mean"}, protocols={"mean": "1/4+mean"}, **HOW)


class TestUsual:
    """The word `usual` stands for a list: what cannot be had of it is left out, not refused."""

    def test_stands_for_the_list_after_what_was_named(self):
        plan = fpa.make_plan(["vg_abs"], protocols=["1/16", "usual", "1/4"])
        assert list(plan.protocols) == ["1/16", "1/4", "1/8", "segments:50", "1/8+blur"]
        assert plan.optional_protocols == {"1/8", "segments:50", "1/8+blur"}
        assert set(USUAL) - set(plan.protocols) == {"pixels"}  # the plan's own

    def test_nothing_is_run_twice(self):
        """Neither the plan's own, nor a masking beside it, nor what is the same under this masking."""
        plan = fpa.make_plan(["vg_abs"], masking="blur", features="1/8", protocols="usual,1/8+blur")
        assert list(plan.protocols) == ["pixels", "1/4", "segments:50"]
        plan = fpa.make_plan(["vg_abs"], maskings={"soft": "blur"}, protocols="pixels+blur, pixels, 1/4")
        assert {name: each.masking for name, each in plan.protocols.items()} == {
            "soft": Blur(),
            "1/4": Constant(),
        }

    def test_without_the_package_segments_are_left_out_or_refused_if_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
        plan = fpa.make_plan(["vg_abs"], protocols="usual")
        assert list(plan.protocols) == ["1/8", "1/4", "1/8+blur"]
        (note,) = plan.protocols_left_out
        assert (note.kind, note.values["protocol"]) == (Kind.PROTOCOL_LEFT_OUT, "segments:50")
        for named in ("segments:50", "usual,segments:20", {"mine": "segments"}):
            with pytest.raises(InputError, match="segments need scikit-image"):
                fpa.make_plan(["vg_abs"], protocols=named)

    def test_sizes_that_make_no_sense_for_the_images_are_left_out_and_told(self, monkeypatch):
        """Of 8 pixels an eighth is one pixel; a third leaves nine patches, of which 10 % is none."""
        monkeypatch.setattr("fpa.perturbation.protocols.USUAL", ("1/8", "1/3", "1/4", "1/16"))
        images = torch.zeros(2, 3, 8, 8)
        plan = fpa.make_plan(["vg_abs"], protocols="usual").suiting(images)
        assert list(plan.protocols) == ["1/4"]
        found = {note.values["protocol"]: note.values for note in plan.protocols_left_out}
        assert {name: values["why"] for name, values in found.items()} == {
            "1/8": "single pixels",
            "1/3": "few features",
            "1/16": "single pixels",
        }
        assert (found["1/3"]["features"], found["1/3"]["needed"]) == (9, FEWEST_FEATURES)
        assert plan.suiting(images) is plan
        named = fpa.make_plan(["vg_abs"], protocols=["1/3", "1/8"]).suiting(images)
        assert list(named.protocols) == ["1/3", "1/8"]

    def test_ten_percent_of_the_fewest_features_is_one(self):
        assert FEWEST_FEATURES * MASKED[0] == 100

    def test_is_told_before_the_work_begins(self, net, images, monkeypatch, capsys):
        monkeypatch.setattr("fpa.perturbation.protocols.USUAL", ("1/2", "1/4"))
        told = HOW | {"progress": True}
        result = fpa.evaluate(net, images, ["vg_abs"], protocols="usual", **told)
        assert list(result.evaluation.under) == ["1/4"]
        assert "left out: the protocol 1/2 makes 4 pieces" in capsys.readouterr().err
