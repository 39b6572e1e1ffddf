"""What a number added to all logits does to an evaluation, and what is said about it."""

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.show.tables import notes, results_table

QUICK = {"settings": fpa.Settings(ig_steps=4, sg_samples=2), "points": 5, "progress": False, "examples": 0}
NAMES = ["random", "ig_sum", "vgx_sum", "vg_abs"]


class Shifted(nn.Module):
    """A small net to whose logits a constant and a multiple of the image's mean are added."""

    def __init__(self, constant=0.0, times_mean=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4, bias=False)
        )
        self.constant, self.times_mean = constant, times_mean

    def forward(self, images):
        shift = self.constant + self.times_mean * images.mean((1, 2, 3))
        return 10 * self.net(images) + shift[:, None]


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def evaluated(images, *shift, **how):
    return fpa.evaluate(Shifted(*shift), images, NAMES, **QUICK, **how)


@pytest.mark.parametrize("output", ["centred", "margin", "log_odds", "probability"])
def test_no_shift_changes_the_outputs_that_depend_on_the_softmax_alone(images, output):
    plain, other = (evaluated(images, *shift, outputs=output) for shift in ((), (20.0, 92.0)))
    for name in NAMES:
        assert other.fidelity[name].area == pytest.approx(plain.fidelity[name].area, rel=1e-3, abs=1e-2)
        assert other.fidelity[name].used == len(images)
    assert other.reliability.opposite == plain.reliability.opposite
    assert plain.head is None


def test_the_offset_of_a_head_is_measured_shown_and_warned_of(images):
    plain, shifted = evaluated(images), evaluated(images, 50.0)
    with torch.no_grad():
        logits = Shifted(50.0)(images)
    mean = logits.mean(1)
    expected = float(mean.mean() / (logits.amax(1) - mean).mean())
    assert shifted.head.offset == pytest.approx(expected, rel=1e-4)
    assert abs(plain.head.offset) < 0.5
    assert f"the centred logit): {100 * expected:.1f} %." in " ".join(notes(shifted.results))
    assert set(results_table(shifted.results).head_offset) == {shifted.head.offset}
    # The centred logit of both is the same number, so its A is, and that of the logit is not.
    for name in ("ig_sum", "vgx_sum", "vg_abs"):
        assert shifted.head.areas[name][1] == pytest.approx(plain.head.areas[name][1], rel=1e-3)
    assert "ig_sum" in shifted.head.moved
    assert "use --outputs centred" in " ".join(str(shifted).split())
    centred = evaluated(images, 50.0, outputs="centred")
    assert "--outputs centred" not in str(centred)


def test_a_centred_head_gives_no_warning(images):
    class Centred(Shifted):
        def forward(self, images):
            logits = super().forward(images)
            return logits - logits.mean(1, keepdim=True)

    result = fpa.evaluate(Centred(), images, NAMES, **QUICK)
    assert result.head.offset == pytest.approx(0, abs=1e-6)
    assert result.head.moved == ()
    assert result.head.warning == ""
    np.testing.assert_allclose(*zip(*result.head.areas.values(), strict=True), rtol=1e-5, atol=1e-4)
