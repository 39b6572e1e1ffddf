"""The scores that only read the curves, against plain loops on a linear model."""

import numpy as np
import pytest
import torch

import fpa
from blocks import block_of, images, linear, scored
from fpa.notes import Kind, Note
from fpa.scores import get_scores
from fpa.show.words import clause

FRACTIONS = [step / 20 for step in range(21)]


@pytest.fixture(scope="module")
def net():
    return linear(side=10)


@pytest.fixture(scope="module")
def batch(net):
    """Images whose explained logit is positive: the others have no share of it."""
    many = images(8, side=10)
    return many[net(many).amax(1) > 0][:4]


def plain_curves(net, image, importance):
    """Logit and probability of the class predicted, MIF and LIF, removing pixel after pixel in a loop."""
    target = int(net(image[None]).argmax())
    order = sorted(range(100), key=lambda pixel: -float(importance.flatten()[pixel]))
    curves = {}
    for side, pixels in (("mif", order), ("lif", order[::-1])):
        rows = []
        for fraction in FRACTIONS:
            masked = image.clone().flatten()
            masked[pixels[: round(fraction * 100)]] = 0
            rows.append(net(masked.view(1, 1, 10, 10))[0].detach().numpy())
        rows = np.stack(rows)
        probability = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
        curves[side] = rows[:, target], probability[:, target]
    return curves


REFERENCES = {
    "A": lambda c: 100 * np.trapezoid(c["lif"][0] - c["mif"][0], FRACTIONS) / c["mif"][0][0],
    "pixel_flipping": lambda c: 100 * np.trapezoid(c["mif"][0], FRACTIONS) / c["mif"][0][0],
    "aopc": lambda c: 100 * np.mean(c["mif"][0][0] - c["mif"][0]) / c["mif"][0][0],
    "aopc_lerf": lambda c: 100 * np.mean(c["lif"][0][0] - c["lif"][0]) / c["lif"][0][0],
    "deletion": lambda c: np.trapezoid(c["mif"][1], FRACTIONS),
    "comprehensiveness": lambda c: np.mean([c["mif"][1][0] - c["mif"][1][k] for k in (1, 2, 4, 10)]),
    "sufficiency": lambda c: np.mean([c["lif"][1][0] - c["lif"][1][k] for k in (19, 18, 16, 10)]),
}


@pytest.mark.parametrize("score", REFERENCES)
def test_it_equals_a_plain_loop(net, batch, score):
    importance = torch.rand(len(batch), 10, 10, generator=torch.Generator().manual_seed(2)).double()
    values = scored(score, block_of(net, batch, {"map": importance}, fractions=FRACTIONS))["map"]
    expected = [REFERENCES[score](plain_curves(net, *pair)) for pair in zip(batch, importance, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("score", REFERENCES)
def test_it_depends_on_the_ranks_alone_and_on_no_other_image(net, batch, score):
    importance = torch.randn(len(batch), 10, 10, generator=torch.Generator().manual_seed(3)).double()
    maps = {"map": importance, "transformed": importance.exp() * 3, "negated": -importance}
    block = block_of(net, batch, maps, fractions=FRACTIONS)
    values = scored(score, block)
    np.testing.assert_allclose(values["transformed"], values["map"], rtol=1e-12)
    order = [2, 0, 3, 1]
    permuted = block_of(net, batch[order], {"map": importance[order]}, fractions=FRACTIONS)
    np.testing.assert_allclose(scored(score, permuted)["map"], np.array(values["map"])[order], rtol=1e-12)
    # The negated map exchanges MIF and LIF: one score becomes the other, and A its own negative.
    other = {"aopc": "aopc_lerf", "aopc_lerf": "aopc"}.get(score, "A")
    if other != "A" or score == "A":
        sign = -1 if score == "A" else 1
        np.testing.assert_allclose(values["negated"], sign * np.array(scored(other, block)["map"]), rtol=1e-9)


def test_an_image_without_a_positive_logit_has_no_share_of_it(net):
    batch = images(1, side=10)
    target = int(net(batch).argmin())
    block = block_of(net, batch, {"map": batch[:, 0]}, targets=target, fractions=FRACTIONS)
    assert np.isnan(scored("aopc", block)["map"]).all()
    assert np.isfinite(scored("deletion", block)["map"]).all()


def test_names_that_are_used_elsewhere_stand_for_the_same():
    assert [score.name for score in get_scores(["srg", "abpc", "aopc_morf", "aopc_lerf"])] == [
        "A", "aopc", "aopc_lerf"
    ]  # fmt: skip


def test_scores_that_were_named_are_refused_and_those_of_all_left_out_with_the_reason(net, batch, capsys):
    def evaluated(**how):
        chosen = {"points": 5, "examples": 0, "progress": False, **how}
        return fpa.evaluate(net.float(), batch.float() - 3, ["vg_abs", "vg_sum"], **chosen)

    with pytest.raises(
        fpa.InputError, match="the score sufficiency needs the points 95, 90, 80, 50 % of the c"
    ):
        evaluated(scores=["deletion", "sufficiency"])
    result = evaluated(scores="all", progress=True)
    assert "deletion" in result.scores
    assert "sufficiency" not in result.scores
    why = {"score": "sufficiency", "reason": result.about["scores_left_out"]["sufficiency"]}
    assert clause(Note(Kind.SCORE_LEFT_OUT, values=why)) in capsys.readouterr().err
    assert why["reason"] in " ".join(str(result).split())
    # What curves follow only for a score is not stored.
    assert list(result.evaluation.others) == ["centred"]
    with pytest.raises(fpa.InputError, match="the score sufficiency needs"):
        evaluated(scores=["all", "sufficiency"])
