"""The scores that explain again: Captum, hand values, and how many images they are computed for."""

import numpy as np
import pytest
import torch
from captum.metrics import sensitivity_max
from scipy import stats
from torch import nn

import fpa
from blocks import block_of, images, linear, scored
from fpa.notes import Kind, Note
from fpa.scores import SCORES, Given, Score
from fpa.scores.correlation import falls, random_subsets
from fpa.scores.explaining import noisy, spans
from fpa.scores.max_sensitivity import MaxSensitivity
from fpa.scores.parameter_randomisation import SmoothMprt, entropy, layers_in_use, randomised
from fpa.show import summary
from fpa.show.words import clause

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
    after = [smoothed(randomised(engine, batch, stage / 3)) for stage in (1, 2, 3)]
    for row, value in enumerate(values):
        each = [stats.spearmanr(before[row].flatten(), maps[row].flatten()).statistic for maps in after]
        assert value == pytest.approx(np.mean(each), abs=1e-9)


def test_layers_are_randomised_from_the_image_on_and_the_model_stays(net, batch):
    engine, state = fpa.Engine(net), {key: value.clone() for key, value in net.state_dict().items()}
    generator = torch.get_rng_state()
    some = randomised(engine, batch, 1 / 3).model.state_dict()
    assert not torch.equal(some["0.weight"], state["0.weight"])
    assert torch.equal(some["4.weight"], state["4.weight"])
    whole = randomised(engine, batch).model.state_dict()
    assert not torch.equal(whole["4.weight"], state["4.weight"])
    again = randomised(fpa.Engine(net), batch).model.state_dict()
    assert torch.equal(again["4.weight"], whole["4.weight"])
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


class Declared(nn.Module):
    """A network that uses its layers in one order and may declare them in another."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(3)
        layers = {"stem": nn.Conv2d(2, 4, 3, padding=1), "head": nn.Linear(4 * 36, 3)}
        for name in order:
            setattr(self, name, layers[name])

    def forward(self, images):
        return self.head(self.stem(images).tanh().flatten(1))


@pytest.mark.parametrize("score", ["mprt_smooth", "mprt_efficient"])
def test_layers_are_randomised_in_the_order_of_use_not_of_declaration(batch, score):
    values = []
    for order in (["stem", "head"], ["head", "stem"]):
        block = block_of(Declared(order).double().eval(), batch, estimators=["vg_sum"])
        values.append(scored(score, block)["vg_sum"])
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_layers_whose_weights_others_read_come_with_what_was_declared_before_them():
    """As the last layer of PyTorch's attention, which is never called."""

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, images):
            tokens = images.flatten(2).transpose(1, 2)
            return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))

    model = Transformer().eval()
    attention = model.attention
    layers = layers_in_use(model, torch.zeros(1, 4, 3, 3))
    assert layers == [attention, attention.out_proj, model.head]


def test_a_map_that_becomes_zero_leaves_the_other_stages(net, batch):
    """The image whose map changed most is not left out: its mean is over the stages that are defined."""
    learned = net[0].weight.clone()

    def vanishing(model, images, targets):
        images = images.detach().requires_grad_()
        raw = torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)[0]
        first_lost = not torch.equal(model[0].weight, learned)
        last_lost = not torch.equal(model[4].weight, net[4].weight)
        return 0 * raw if first_lost and not last_lost else raw

    block = block_of(net, batch, estimators=[vanishing])
    copies = batch + noisy(block, 2, "normal") * 0.1 * spans(batch)

    def smoothed(model):
        return sum(vanishing(model, copy, block.task.targets).sum(1) for copy in copies)

    engine = block.task.engine
    values = SmoothMprt(stages=3, samples=2, sigma=0.1)(block)["vanishing"]
    last = smoothed(randomised(engine, batch).model)
    for row, value in enumerate(values):
        expected = stats.spearmanr(smoothed(net)[row].flatten(), last[row].flatten()).statistic
        assert value == pytest.approx(expected, abs=1e-9)


class Hollow(Score):
    """A score that explains again and has no value for every other image that it is asked for."""

    name = "hollow"
    title = "nothing much"
    source = "these tests"
    higher_is_better = True
    needs = frozenset({"explain"})

    def __call__(self, block):
        numbers = torch.tensor(block.task.indices)
        values = numbers.double().where(numbers % 2 == 0, torch.nan)
        return dict.fromkeys(block.maps, values)


def test_images_without_a_value_are_counted_where_scores_explain_again(net):
    many = images(10, channels=2, side=6).float()
    how = {"points": 3, "examples": 0, "progress": False}
    result = fpa.evaluate(
        net.float(), many, ["vg_sum", "vg_abs"], scores=[Hollow()], score_images=4, targets=0, **how
    )
    net.double()
    kept = result.fidelity["vg_sum"].kept  # the rest has no positive logit, and is left out anyway
    asked = np.isin(np.arange(10), [0, 3, 6, 9])
    assert result.asked_for("hollow").tolist() == asked.tolist()
    lost = int((kept & asked & (np.arange(10) % 2 == 1)).sum())
    assert lost > 0
    text = fpa.show.tables.markdown(result.results)
    some, left_out = summary.without_value(result.results, {})
    assert " 4 images" in some
    assert f" {lost} image" in left_out
    assert some in text
    assert left_out in text


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
    for names, forwards, again, few in ((["max_sensitivity"], 0, 10, 3), (["insertion"], 3, 0, None)):
        values = {"scores": names, "forwards": forwards, "explanations": again, "gradients": again}
        assert clause(Note(Kind.PASSES_OF_SCORES, values=values | {"images": few})) in said
    why = {"score": "mprt_smooth", "reason": result.about["scores_left_out"]["mprt_smooth"]}
    assert clause(Note(Kind.SCORE_LEFT_OUT, values=why)) in said
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
