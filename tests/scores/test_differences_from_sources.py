"""Where scores differ from their sources: that they do, and that the page on scores and the score say so."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn import functional

import fpa
from blocks import block_of, images, linear, scored
from fpa.data import load_data
from fpa.masking import Blur
from fpa.perturbation import features_of
from fpa.scores import SCORES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("score", "on_the_page", "by_the_score"),
    [
        ("A", "it is 100 times logits, not percent", "100 times logits, not percent"),
        ("comprehensiveness", "leave out the 1 % bin", "1 % bin is left out"),
        ("insertion", "does not blur as RISE does", "RISE blurs with a kernel of 11 pixels"),
        ("max_sensitivity", "is of the reduced map", "map reduced"),
        ("pointing_game", "up to 15 px away", "15 px"),
        ("infidelity_scaled", "allows no negative scale", "of at least 0"),
        ("infidelity", "divided by *the mean squared fall*", "mean squared fall"),
    ],
)
def test_it_is_said(score, on_the_page, by_the_score):
    line = next(line for line in _entries() if line.startswith("- ") and f"`{score}`" in line.split(".")[0])
    assert on_the_page in line
    assert by_the_score in " ".join(type(SCORES[score]).__doc__.split())


def _entries():
    """The entries of the list on the page, each on one line."""
    text = (DOCS / "howto/scores.md").read_text()
    assert "Where they differ from their sources:" in text
    part = text.split("Where they differ from their sources:")[1].split("\n\n")[1]
    return re.sub(r"\n +", " ", part).splitlines()


def test_a_of_margins_and_log_odds_is_100_times_logits():
    """On a linear model both fall as far as the logits do, whatever they start from."""
    net, batch = linear(side=4, classes=2), images(6)
    areas = {}
    for output in ("margin", "log_odds"):
        how = {"outputs": [output], "points": 5, "progress": False, "maps_of": "logit"}
        result = fpa.evaluate(net, batch, ["vgx_sum", "vg_abs"], **how)
        curves = result.evaluation
        between = np.trapezoid(curves.lif["vgx_sum"] - curves.mif["vgx_sum"], curves.fractions)
        areas[output] = result.fidelity["vgx_sum"].area
        assert areas[output] == pytest.approx(100 * between.mean(), rel=1e-6)
    assert areas["margin"] == pytest.approx(areas["log_odds"], rel=1e-6)  # of two classes they are one


def test_comprehensiveness_does_not_see_the_1_percent_bin():
    net, batch = linear(side=10), images(3, side=10)
    shares = [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1]
    maps = {"map": torch.rand(3, 10, 10, generator=torch.Generator().manual_seed(0)).double()}
    block = block_of(net, batch, maps, fractions=shares)
    curve = block.curves["probability"].mif["map"].numpy()
    expected = (curve[:, :1] - curve[:, 2:6]).mean(1)
    np.testing.assert_allclose(scored("comprehensiveness", block)["map"], expected, rtol=1e-12)


def test_insertion_blurs_more_than_rise_and_repeats_the_border():
    image = torch.ones(1, 1, 224, 224)
    delta = np.zeros((11, 11))
    delta[5, 5] = 1
    kernel = torch.tensor(gaussian_filter(delta, 5), dtype=torch.float32)
    theirs = functional.conv2d(image, kernel[None, None], padding=5)
    assert theirs[0, 0, 0, 0] < 0.5  # zeros around the image
    assert Blur().fill(image)[0, 0, 0, 0] == pytest.approx(1)
    point = torch.zeros(1, 1, 224, 224)
    point[0, 0, 112, 112] = 1
    reach = (Blur().fill(point)[0, 0, 112] > 0).sum()
    assert int(reach) == 2 * 3 * 14 + 1  # three sigma of 14 px to either side


def test_the_pointing_game_has_no_margin():
    importance = torch.zeros(1, 20, 20)
    importance[0, 10, 10] = 1
    beside = torch.zeros(1, 20, 20, dtype=torch.bool)
    beside[0, 10, 11] = True
    block = block_of(linear(side=20), images(1, side=20), {"map": importance}, masks=beside)
    assert scored("pointing_game", block)["map"] == [0]


def test_small_images_have_the_segments_that_the_tutorial_says():
    text = (DOCS / "tutorial/own-model.md").read_text()
    low, high = map(int, re.search(r"`\"segments:30\"` gives (\d+) to (\d+) at 32 px", text).groups())
    shapes = load_data("shapes")
    counts = features_of("segments:30", shapes.normalisation(shapes.test.images[:200])).counts
    assert counts.min() >= low
    assert counts.max() <= high < 30
