"""The scores that explain again: Captum, hand values, and how many images they are computed for."""

import numpy as np
import pytest
import torch
from captum.metrics import sensitivity_max
from scipy import stats
from torch import nn

import fpa
from blocks import block_of, images, linear, scored
from fpa.scores import SCORES, Given, Score
from fpa.scores.correlation import falls, random_subsets
from fpa.scores.explaining import noisy, spans
from fpa.scores.max_sensitivity import MaxSensitivity
from fpa.scores.parameter_randomisation import SmoothMprt, entropy, randomised

NAMES = ("max_sensitivity", "mprt_smooth", "mprt_efficient")


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(3)
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3)
    return nn.Sequential(*layers).double().eval()


@pytest.fixture(scope="module")
def batch():
    return images(3, channels=2, side=6)


def test_max_sensitivity_equals_captums(net, batch):
    block = block_of(net, batch, estimators=["vg_abs", "vgx_sum"])
    values = MaxSensitivity(samples=4)(block)
    offsets = noisy(block, 4, "uniform") * 0.02 * spans(batch)

    def only(inputs):  # which come as a tensor or as a tuple of one
        return inputs[0] if isinstance(inputs, tuple) else inputs

    def near(inputs):  # Captum repeats every image, then perturbs all copies at once
        return only(inputs) + offsets.transpose(0, 1).flatten(0, 1)

    for name in ("vg_abs", "vgx_sum"):

        def explained(inputs, target, name=name):
            return (fpa.explain(net, only(inputs), [name], targets=target)[name],)

        how = {"n_perturb_samples": 4, "target": block.task.targets}
        expected = sensitivity_max(explained, batch, near, **how)
        np.testing.assert_allclose(values[name], expected, rtol=1e-6)


def test_maps_that_know_neither_image_nor_model_are_seen_through(net, batch):
    block = block_of(net, batch, estimators=["vg_sum", "random"])
    assert scored("max_sensitivity", block)["random"] == [0, 0, 0]  # it cannot tell: nothing changes
    assert scored("mprt_smooth", block)["random"] == pytest.approx([1, 1, 1])
    assert scored("mprt_efficient", block)["random"] == [0, 0, 0]
    assert max(map(abs, scored("mprt_smooth", block)["vg_sum"])) < 0.8


def test_on_a_linear_model_the_gradient_does_not_depend_on_the_image():
    block = block_of(linear(), images(3), estimators=["vg_sum", "vgx_sum"])
    values = scored("max_sensitivity", block)
    assert values["vg_sum"] == pytest.approx([0, 0, 0], abs=1e-12)
    assert min(values["vgx_sum"]) > 0


def test_smooth_randomisation_equals_a_plain_loop(net, batch):
    block = block_of(net, batch, estimators=["vg_sum"])
    values = SmoothMprt(stages=3, samples=2, sigma=0.1)(block)["vg_sum"]
    copies = batch + noisy(block, 2, "normal") * 0.1 * spans(batch)

    def smoothed(model):
        maps = [fpa.explain(model, copy, "vg_sum", targets=block.task.targets)["vg_sum"] for copy in copies]
        return torch.stack(maps).mean(0)

    before, engine = smoothed(net), block.task.engine
    after = [smoothed(randomised(engine, stage / 3)) for stage in (1, 2, 3)]
    for row, value in enumerate(values):
        each = [stats.spearmanr(before[row].flatten(), maps[row].flatten()).statistic for maps in after]
        assert value == pytest.approx(np.mean(each), abs=1e-9)


def test_layers_are_randomised_from_the_image_on_and_the_model_stays(net):
    engine, state = fpa.Engine(net), {key: value.clone() for key, value in net.state_dict().items()}
    generator = torch.get_rng_state()
    some = randomised(engine, 1 / 3).model.state_dict()
    assert not torch.equal(some["0.weight"], state["0.weight"])
    assert torch.equal(some["4.weight"], state["4.weight"])
    whole = randomised(engine).model.state_dict()
    assert not torch.equal(whole["4.weight"], state["4.weight"])
    assert torch.equal(randomised(fpa.Engine(net)).model.state_dict()["4.weight"], whole["4.weight"])
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_entropy_equals_scipys():
    maps = torch.randn(3, 9, 9, generator=torch.Generator().manual_seed(0))
    expected = [stats.entropy(np.histogram(each, bins=100)[0]) for each in maps.double().numpy()]
    np.testing.assert_allclose(entropy(maps.double()), expected, rtol=1e-9)


@pytest.mark.parametrize("score", NAMES)
def test_any_part_of_the_images_gives_the_same(net, batch, score):
    whole = scored(score, block_of(net, batch, estimators=["vg_sum", "sg_abs"]))
    part = block_of(
        fpa.Engine(net, batch_size=2), batch[[2, 0]], estimators=["vg_sum", "sg_abs"], indices=[2, 0]
    )
    for name, values in scored(score, part).items():
        np.testing.assert_allclose(values, np.array(whole[name])[[2, 0]], rtol=1e-6, atol=1e-9)


def test_they_are_computed_when_named_for_some_images_and_their_cost_is_shown(net, batch, capsys):
    many = images(7, channels=2, side=6).float()
    chosen = {"estimators": ["vg_sum", "vg_abs"], "points": 3, "examples": 0, "score_images": 3}
    result = fpa.evaluate(net.float(), many, scores=["all", "max_sensitivity"], **chosen)
    said = capsys.readouterr().err
    assert (
        "max_sensitivity: every estimator explains 10 times more (10 gradients) for each of 3 images" in said
    )
    assert "insertion: 3 forward passes for each image" in said
    assert "left out: the score mprt_smooth explains again, so it is computed only when it is named" in said
    values = result.evaluation.values["max_sensitivity"]["vg_abs"]
    assert np.flatnonzero(np.isfinite(values)).tolist() == [0, 3, 6]
    assert result.scores["max_sensitivity"]["vg_abs"].used <= 3
    assert result.plan["scores"]["max_sensitivity"]["images"] == 3
    net.double()


def test_maps_from_before_cannot_be_explained_again(net, batch):
    stored = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0))
    estimators = fpa.get_estimators({"stored": stored})
    facts = {"fractions": [0, 1], "masking": fpa.get_masking()}
    assert "needs an estimator that can explain" in SCORES["mprt_smooth"].missing(Given(estimators, **facts))
    block = block_of(net, batch, estimators=["vg_sum"])
    both = {"vg_sum": block.estimators["vg_sum"], **estimators}
    object.__setattr__(block, "estimators", both)
    object.__setattr__(block, "maps", block.maps | {"stored": stored.double()})
    values = scored("max_sensitivity", block)
    assert np.isnan(values["stored"]).all()
    assert np.isfinite(values["vg_sum"]).all()


class Witness(Score):
    """Everything that a score is given, in one number an image: a difference anywhere changes it."""

    title = "a number of all that is known of an image"
    source = "these tests"
    higher_is_better = True

    def __init__(self, *needs):
        self.name = "witness_" + "_".join(need.replace(" ", "_") for need in needs)
        self._needs = frozenset({"explain", *needs})

    @property
    def needs(self):
        return self._needs

    def __call__(self, block):
        again = block.explain()
        assert block.output == "logit"
        values = {}
        for name in block.estimators:
            parts = [again[name].flatten(1)]
            if "curves" in self.needs:
                for curves in block.curves.values():
                    parts += [
                        curves.mif[name],
                        curves.lif[name],
                        curves.unmasked[:, None],
                        curves.targets[:, None],
                    ]
                    sides = (curves.shares_mif, curves.shares_lif)
                    parts += [shares[name] for shares in sides if shares is not None]
            if "forwards" in self.needs:
                parts.append(falls(block, random_subsets(block, [5], 3, stream=99), self.name))
                parts.append(block.curves_under(block.task.masking, [0, 0.5, 1], "logit").mif[name])
            if "raw maps" in self.needs:
                parts.append(block.raw_maps[name].flatten(1))
            every = torch.cat([part.double() for part in parts], 1)
            values[name] = (every * torch.arange(1, every.shape[1] + 1).sqrt()).sum(1)
        return values


@pytest.mark.parametrize("features", ["pixels", 4, "segments:4"])
@pytest.mark.parametrize(
    "needs", [("curves",), ("forwards",), ("raw maps",), ("curves", "forwards", "raw maps")]
)
def test_chosen_images_come_with_all_that_a_score_needs(net, needs, features):
    """Some images, in blocks with none, one or several of them, get what they get where all are chosen."""
    many = images(40, channels=2, side=6).float()
    how = {
        "points": 3,
        "examples": 0,
        "features": features,
        "settings": fpa.Settings(2, 2),
        "progress": False,
    }
    witness = Witness(*needs)

    def values(count):
        result = fpa.evaluate(
            net.float(), many, ["vg_sum", "sg_abs"], scores=[witness], score_images=count, **how
        )
        return result.evaluation.values[witness.name]

    every = values(40)
    for count in (1, 7, 39):
        some = values(count)
        places = np.linspace(0, 39, count).round().astype(int)
        for name in ("vg_sum", "sg_abs"):
            assert np.flatnonzero(np.isfinite(some[name])).tolist() == places.tolist()
            np.testing.assert_allclose(some[name][places], every[name][places], rtol=1e-5)
    net.double()
