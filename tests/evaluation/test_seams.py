"""What is added from outside the package takes part in an evaluation like what comes with it."""

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.data import register
from fpa.data.sets import DATA_SETS
from fpa.engine.outputs import OUTPUTS, output
from speckle import Speckle

QUICK = {"settings": fpa.Settings(ig_steps=3, sg_samples=2), "points": 5, "examples": 2, "progress": False}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()


def images(count=6, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_a_masking_that_depends_on_the_whole_mask_and_on_the_image(net, tmp_path):
    names, how = ["vg_abs", "ig_sum"], {"outputs": "probability", **QUICK}
    whole = fpa.evaluate(net, images(), names, masking=Speckle(2.0), folder=tmp_path, **how)
    assert whole.plan["masking"]["strength"] == 2.0
    # A few of the images, with their own numbers, and in batches of another size: the same.
    for engine in (fpa.Engine(net, batch_size=3), net):
        for index in (0, 4):
            chosen = slice(index, index + 2)
            part = [(images()[chosen], torch.zeros(2).long(), torch.arange(6)[chosen])]
            two = fpa.evaluate(engine, part, names, masking=Speckle(2.0), **how).evaluation
            for name in names:
                expected = whole.evaluation.mif[name][chosen]
                np.testing.assert_allclose(two.mif[name], expected, rtol=1e-4, atol=1e-5)
    other = fpa.evaluate(net, images(), names, masking=Speckle(2.0), seed=1, **how)
    assert not np.allclose(other.evaluation.mif["vg_abs"], whole.evaluation.mif["vg_abs"])
    with pytest.raises(fpa.InputError, match=r"other masking \(masking.strength: 2.0 -> 1.0\)"):
        fpa.evaluate(net, images(), names, masking=Speckle(), folder=tmp_path, **how)


def test_an_output_is_one_function(net):
    @output()
    def spread(logits, targets, labels):
        return logits.std(1)

    try:
        result = fpa.evaluate(net, images(), ["vg_abs", "ig_sum"], outputs=["spread", "logit"], **QUICK)
        with torch.no_grad():
            expected = net(images()).std(1)
        np.testing.assert_allclose(result.evaluation.unmasked, expected, rtol=1e-5)
        # It is not divided by its start, the logit beside it is.
        assert result.fidelity["vg_abs"].normalise == "none"
        assert result.evaluation.others["logit"].fidelity("vg_abs").normalise == "each"
        assert result.plan["outputs"] == ["spread", "logit"]
    finally:
        OUTPUTS.pop("spread")


def test_maps_and_curves_are_of_the_output_that_is_scored(net):
    def area(**how):
        return fpa.evaluate(net, images(), ["vgx_sum"], **how, **QUICK).fidelity["vgx_sum"].area

    wanted = {"outputs": ["centred", "logit"]}
    maps = fpa.explain(net, images(), "vgx_sum", output="centred")
    curves = fpa.perturbation_curves(net, images(), maps, points=QUICK["points"], outputs=["centred"])
    own = curves.others["centred"]
    expected = fpa.Fidelity.from_curves(own.mif["vgx_sum"], own.lif["vgx_sum"], own.fractions).area
    assert area(**wanted) == pytest.approx(expected, rel=1e-5)
    assert area(**wanted, maps_of="logit") != pytest.approx(expected, rel=1e-3)
    plan = fpa.make_plan("vg_abs", outputs="accuracy")
    assert (plan.outputs, plan.maps_of) == (("accuracy",), "logit")
    assert fpa.make_plan("vg_abs").outputs == ("logit", "centred")


def test_a_data_set_by_its_own_name(net):
    def load(request):
        pixels = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
        labels = torch.arange(8) % 4
        return (pixels, labels), (pixels, labels)

    register("dots", load)
    try:
        result = fpa.evaluate(net, "dots", ["vg_abs", "ig_sum"], count=5, **QUICK)
        assert result.evaluation.labels.tolist() == [number % 4 for number in result.evaluation.indices]
        assert result.about["data"] == "dots"
    finally:
        DATA_SETS.pop("dots")


def test_standardised_images_of_another_set_are_told_apart(net, tmp_path):
    """Every image has mean 0 and spread 1; only what it shows differs."""

    def standardised(seed):
        some = images(seed=seed)
        return (some - some.mean((1, 2, 3), keepdim=True)) / some.std((1, 2, 3), keepdim=True)

    fpa.evaluate(net, standardised(0), ["vg_abs", "ig_sum"], folder=tmp_path, **QUICK)
    with pytest.raises(fpa.InputError, match="holds an evaluation of other images"):
        fpa.evaluate(net, standardised(1), ["vg_abs", "ig_sum"], folder=tmp_path, **QUICK)


def test_a_stream_is_read_again_and_checked_when_it_is_resumed(net, tmp_path):
    def stream(seed=0):
        yield from images(seed=seed).split(2)

    names = ["vg_abs", "ig_sum"]
    whole = fpa.evaluate(net, stream(), names, folder=tmp_path, **QUICK)
    (tmp_path / "blocks/block-000000.parquet").unlink()
    again = fpa.evaluate(net, stream(), names, folder=tmp_path, **QUICK)
    assert np.array_equal(again.evaluation.mif["vg_abs"], whole.evaluation.mif["vg_abs"])
    with pytest.raises(fpa.InputError, match="of other images"):
        fpa.evaluate(net, stream(seed=1), names, folder=tmp_path, **QUICK)


def test_the_arithmetic_used_is_stored(net):
    forms = fpa.evaluate(net, images(), ["vg_abs", "ig_sum"], **QUICK).about["made_with"]["forms"]
    assert forms["gradients"].startswith("float32")
    assert forms["forwards"].startswith("float32")
