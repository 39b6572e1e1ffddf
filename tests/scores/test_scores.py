"""Scores as a seam: one from outside gets what it says it needs, and is stored, read and shown."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fpa
from fpa.data import load_data
from fpa.engine import Work
from fpa.explanation import Settings
from fpa.masking import Constant
from fpa.scores import SCORES, Score, get_scores, register
from fpa.scores.max_sensitivity import MaxSensitivity

FEW = Settings(ig_steps=3, sg_samples=2)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8)).eval()


def evaluated(net, scores, folder=None, data="shapes", **changes):
    chosen = {"settings": FEW, "points": 5, "count": 12, "examples": 0, "progress": False, **changes}
    return fpa.evaluate(net, data, ["ig_sum", "vg_abs", "random"], scores=scores, folder=folder, **chosen)


class Kept(Score):
    """The share of the logit left with half of the pixels removed, least important first."""

    name = "kept"
    title = "share of the logit kept at half"
    source = "this test"
    higher_is_better = True

    def __call__(self, block):
        curves = block.curves["logit"]
        middle = curves.fractions.tolist().index(0.5)
        return {name: lif[:, middle] / curves.unmasked for name, lif in curves.lif.items()}


class Drop(Score):
    """What removing the single most important pixel costs: one further forward pass an estimator."""

    name = "drop"
    title = "drop of the logit by the most important pixel"
    source = "this test"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __call__(self, block):
        task = block.task
        start = block.logits.gather(1, task.targets[:, None])[:, 0]
        values = {}
        for name, maps in block.maps.items():
            mask = torch.zeros_like(maps, dtype=torch.bool)
            mask.flatten(1).scatter_(1, maps.flatten(1).argmax(1, keepdim=True), True)
            rows, out = task.masking(task.images, mask), torch.empty_like(start)

            def take(a, b, logits, out=out):
                out[a:b] = logits.gather(1, task.targets[a:b, None])[:, 0]

            task.engine.logits([Work(len(rows), lambda a, b, rows=rows: rows[a:b], take)])
            values[name] = start - out
        return values


class RawSum(Score):
    """The sum of the raw map over all channels and pixels."""

    name = "raw_sum"
    title = "sum of the raw map"
    source = "this test"
    higher_is_better = True
    needs = frozenset({"raw maps"})

    def __call__(self, block):
        return {name: raw.sum((1, 2, 3)) for name, raw in block.raw_maps.items()}


class Restless(Score):
    """How much the map changes when the image does, and when the model does."""

    name = "restless"
    title = "change of the map"
    source = "this test"
    higher_is_better = False
    needs = frozenset({"explain"})

    def __call__(self, block):
        brighter = block.explain(block.task.images + 0.1)
        torch.manual_seed(1)
        other = block.explain(model=nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8)))
        return {
            name: (brighter[name] - maps).abs().sum((1, 2)) + (other[name] - maps).abs().sum((1, 2))
            for name, maps in block.maps.items()
        }


class Inside(Score):
    """The share of the absolute map that lies on the object."""

    name = "inside"
    title = "share of the map on the object"
    source = "this test"
    higher_is_better = True
    needs = frozenset({"masks"})

    def __call__(self, block):
        masks = block.masks.to(block.task.images.device)
        return {
            name: (maps.abs() * masks).sum((1, 2)) / maps.abs().sum((1, 2))
            for name, maps in block.maps.items()
        }


def test_a_is_the_first_score_and_equals_the_fidelity_image_by_image(net):
    result = evaluated(net, ["A"])
    for name, fidelity in result.fidelity.items():
        expected = np.where(fidelity.kept, fidelity.lif_areas - fidelity.mif_areas, np.nan)
        values = np.where(fidelity.kept, result.evaluation.values["A"][name], np.nan)
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-4)
        assert result.scores["A"][name].mean == pytest.approx(fidelity.area, abs=1e-4)
        assert result.scores["A"][name].interval == pytest.approx(fidelity.interval, abs=1e-4)


def test_scores_from_outside_get_what_they_need(net):
    data = load_data("shapes")
    result = evaluated(net, [Kept(), Drop(), RawSum(), Restless(), Inside()])
    chosen = torch.tensor(result.evaluation.indices)
    images = data.normalisation(data.test.images[chosen])
    values = result.evaluation.values
    assert list(values) == ["A", "kept", "drop", "raw_sum", "restless", "inside"]
    weight = net[1].weight.detach()[result.evaluation.targets].view(-1, 3, 32, 32)
    bias = net[1].bias.detach()[result.evaluation.targets]
    # The model is linear: integrated gradients are weight times image, and add up to the logit less the bias.
    ig = (weight * images).sum(1)
    logit = ig.sum((1, 2)) + bias
    np.testing.assert_allclose(values["raw_sum"]["ig_sum"], ig.sum((1, 2)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(values["drop"]["ig_sum"], ig.flatten(1).amax(1), rtol=1e-3, atol=1e-3)
    lowest = ig.flatten(1).sort(1).values[:, 512:].sum(1) + bias
    np.testing.assert_allclose(values["kept"]["ig_sum"], lowest / logit, rtol=1e-2, atol=1e-2)
    gradient = weight.abs().sum(1)
    inside = (gradient * data.test.foreground[chosen]).sum((1, 2)) / gradient.sum((1, 2))
    np.testing.assert_allclose(values["inside"]["vg_abs"], inside, rtol=1e-4)
    assert (values["restless"]["ig_sum"] > 0).all()
    assert (values["restless"]["random"] == 0).all()  # a random map depends on neither image nor model


def test_they_are_stored_in_long_form_and_read_back(net, tmp_path):
    result = evaluated(net, ["A", Kept()], folder=tmp_path)
    files = sorted(tmp_path.glob("blocks/scores-*.parquet"))
    long = pd.concat([pd.read_parquet(path) for path in files])
    assert list(long.columns) == ["score", "estimator", "image", "value"]
    assert len(long) == 2 * 3 * 12
    chosen = long[(long["score"] == "kept") & (long["estimator"] == "vg_abs")]
    assert chosen["image"].tolist() == result.evaluation.indices.tolist()
    assert chosen["value"].tolist() == result.evaluation.values["kept"]["vg_abs"].tolist()
    again = fpa.load_result(tmp_path)
    assert again.scores == result.scores
    assert again.plan["scores"]["kept"]["higher_is_better"] is True


def test_a_score_is_equal_for_every_block_and_batch_size(net):
    from fpa.data.source import image_source
    from fpa.evaluation.description import SubjectFacts
    from fpa.evaluation.loop import evaluate_blocks
    from fpa.evaluation.plan import make_plan
    from fpa.evaluation.shards import read_evaluation

    again = ["max_sensitivity", "mprt_smooth", "mprt_efficient"]  # for two images, none in the second block
    scores = ["all", "road", *again, Kept(), Drop()]
    plan = make_plan(["vg_abs", "vgx_sum"], scores=scores, score_images=2)
    values = []
    for block, batch in ((12, 64), (5, 3)):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            engine, source = fpa.Engine(net, batch_size=batch), image_source("shapes", count=12)
            subject = SubjectFacts(name="net", classes=tuple("abcdefgh"))
            evaluate_blocks(engine, source, plan, folder, subject=subject, block_size=block, progress=False)
            values.append(read_evaluation(folder)[0].values)
    assert len(values[0]) == len(values[1]) > 20
    for score in values[0]:
        for name in ("vg_abs", "vgx_sum"):
            found, other = (each[score][name] for each in values)
            np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5, err_msg=score)
    few = np.isfinite(values[0]["mprt_smooth"]["vg_abs"])
    assert few.sum() == 2
    assert not few[5:10].any()


def test_by_name_once_registered_or_from_a_module(tmp_path, monkeypatch):
    register(Kept())
    try:
        assert [score.name for score in get_scores(["A", "kept"])] == ["A", "kept"]
    finally:
        SCORES.pop("kept")
    (tmp_path / "my_scores.py").write_text(
        "from fpa.scores import Score\n"
        "class Zero(Score):\n"
        "    name, title, source, higher_is_better = 'zero', 'nothing', 'nowhere', True\n"
        "    def __call__(self, block):\n"
        "        return {name: maps.new_zeros(len(maps)) for name, maps in block.maps.items()}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert get_scores("my_scores:Zero")[0].name == "zero"


@pytest.mark.parametrize(
    ("scores", "data", "message"),
    [
        (["raod"], "shapes", "unknown score 'raod': did you mean 'road'"),
        ([3], "shapes", "a score must be a name or an fpa.scores.Score, got int"),
        ([Inside()], torch.zeros(4, 3, 32, 32), "the score inside needs known masks of the objects"),
    ],
)
def test_what_cannot_be_had_is_refused_before_any_work(net, tmp_path, scores, data, message):
    count = None if isinstance(data, torch.Tensor) else 4
    with pytest.raises(fpa.InputError, match=message):
        evaluated(net, scores, folder=tmp_path / "out", data=data, count=count)
    assert not (tmp_path / "out" / "blocks").exists()


def test_an_image_or_map_that_is_not_finite_has_no_value_and_leaves_the_others_theirs(net):
    def constant(model, images, targets):
        return images.mean(1).where(images[:, 0] < 3, torch.nan if holes else 1.0)

    data = load_data("shapes")
    images, masks = data.normalisation(data.test.images[:5]), data.test.foreground[:5]
    images[1, 0, 2, 3] = 5
    again = ["max_sensitivity", "mprt_smooth", "mprt_efficient"]
    how = {"scores": ["all", *again], "points": 21, "examples": 0, "progress": False, "masks": masks}
    values = []
    for holes in (False, True):
        images[2, 0, 1, 1] = torch.inf if holes else 0.5
        estimators = {"mine": constant, "vgx_sum": "vgx_sum"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values.append(fpa.evaluate(net, images, estimators, **how).evaluation.values)
    assert len(values[1]) > 18
    for score in values[1]:
        whole, found = values[0][score]["mine"], values[1][score]["mine"]
        assert np.isnan(found[[1, 2]]).all(), score
        assert np.isnan(values[1][score]["vgx_sum"][2]), score
        np.testing.assert_allclose(found[[0, 3, 4]], whole[[0, 3, 4]], rtol=1e-4, atol=1e-5, err_msg=score)


def test_values_of_a_wrong_shape_are_refused(net):
    class Wrong(Kept):
        def __call__(self, block):
            return {name: maps[:, 0] for name, maps in block.maps.items()}

    with pytest.raises(fpa.InputError, match=r"the score kept must give \[12\] values for ig_sum"):
        evaluated(net, [Wrong()], masking=Constant())


def test_two_scores_of_one_kind_need_two_names():
    wide = MaxSensitivity(0.1, samples=2)
    both = [MaxSensitivity(0.02, samples=2), wide.named("max_sensitivity at 0.1")]
    assert wide.name == "max_sensitivity"
    assert [score.radius for score in get_scores(both)] == [0.02, 0.1]
    assert len(get_scores(["max_sensitivity", MaxSensitivity()])) == 1
    # `all` has none that was asked for: another in its place is meant
    assert wide in get_scores(["all", wide])
    for twice in ([*both[:1], wide], ["max_sensitivity", wide]):
        with pytest.raises(fpa.InputError, match=r"are called max_sensitivity .*\(\.\.\.\)\.named\("):
            get_scores(twice)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    how = {"scores": both, "points": 3, "ig_steps": 2, "progress": False}
    result = fpa.evaluate(net, torch.randn(2, 3, 8, 8), ["vg_abs", "ig_sum"], **how)
    assert [*result.evaluation.values] == ["A", "max_sensitivity", "max_sensitivity at 0.1"]
