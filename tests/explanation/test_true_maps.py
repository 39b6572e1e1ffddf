"""Maps of the truth as estimators: those of the ladders, made from passes of one's own."""

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa import InputError
from fpa.explanation import get_estimators
from fpa.explanation.true_maps import NAMES
from fpa.worlds.effects import true_effects
from fpa.worlds.ladder import RUNGS, KnownTruth, Rung, ladder_maps, other_numbers
from fpa.worlds.truth import truth
from small_world import small_cues, untrained

HOW = {"points": 3, "examples": 0, "progress": False, "outputs": ["centred"]}
COUNT = 12


@pytest.fixture(scope="module")
def model():
    return untrained()


@pytest.fixture(scope="module")
def data():
    return small_cues(COUNT)


def known_truth(model, data, numbers, weights):
    scenes = data.world.test_scenes(numbers)
    images = data.normalisation(scenes.render())
    with torch.no_grad():
        targets = model(images).argmax(1)

    def run(scene, rows):
        with torch.no_grad():
            logits = model(data.normalisation(rows(0, len(scene)))).double()
        return (logits.gather(1, targets[scene][:, None])[:, 0] - logits.mean(1))[:, None]

    gradients = fpa.explain(model, images, ["vg_abs"], output="centred", indices=list(numbers))["vg_abs"]
    return KnownTruth(scenes, true_effects(scenes, run).shapley[..., 0], gradients if weights else None)


@pytest.mark.parametrize("weights", [False, True])
def test_maps_are_those_of_the_ladders(model, data, weights):
    """Their truths are those of maps made one by one, and so is the order in which pixels go."""
    names = [name for name in NAMES if name.startswith("true:vg") == weights]
    result = fpa.evaluate(model, data, names, scores=["truth"], **HOW)
    known = known_truth(model, data, range(COUNT), weights)
    another = known_truth(model, data, other_numbers(0, range(COUNT), COUNT), weights)
    for name, rung in zip(names, [Rung("noise", 0.0), *RUNGS], strict=True):
        maps = ladder_maps(rung, known, another=another)
        wanted = truth(maps, known.scenes, known.effects).numpy()
        found = result.evaluation.values["truth"][name]
        np.testing.assert_allclose(found, wanted, atol=2e-3, err_msg=name)


def test_what_is_not_damaged_is_true(model, data):
    result = fpa.evaluate(model, data, ["true:flat", "true:vg"], scores=["truth", "truth_cues"], **HOW)
    many = data.world.test_scenes(range(COUNT)).cues.sum(1).numpy() >= 3
    for score in ("truth", "truth_cues"):
        for values in result.evaluation.values[score].values():
            np.testing.assert_allclose(values[many], 1, atol=1e-5)
            assert np.isnan(values[~many]).all()


def test_facts_of_images_are_stored_once(model, data, tmp_path):
    fpa.evaluate(model, data, ["vg_abs", "true:flat"], scores=["truth"], folder=tmp_path / "a", **HOW)
    found = fpa.load_result(tmp_path / "a")
    scenes = data.world.test_scenes(range(COUNT))
    facts = found.evaluation.image_facts
    np.testing.assert_array_equal(facts["cues"], scenes.cues.sum(1).numpy())
    assert set(facts) == {"cues", "centred_noise", "centred_interaction"}
    assert fpa.load_result(found.save(tmp_path / "b")).evaluation.image_facts.keys() == facts.keys()


def test_truth_is_of_the_model_explained_whoever_judges(model, data):
    torch.manual_seed(5)
    judge = nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 3)).eval()
    own = fpa.evaluate(model, data, ["true:noise-1"], scores=["truth"], **HOW)
    judged = fpa.evaluate(model, data, ["true:noise-1"], scores=["truth"], judge=judge, **HOW)
    ours = own.evaluation.values["truth"]["true:noise-1"]
    np.testing.assert_array_equal(judged.evaluation.values["truth"]["true:noise-1"], ours)
    assert judged.fidelity["true:noise-1"].area != own.fidelity["true:noise-1"].area


def test_they_rank_nothing_and_are_compared_by_every_protocol(model, data):
    """An explanation is compared with explanations; what an evaluation prefers is asked of all maps."""
    plan = fpa.make_plan(["vg_abs", "ig_sum", "random", "centre", "true:flat"], protocols=["1/4"], points=3)
    assert plan.varied == ["vg_abs", "ig_sum", "random", "centre", "true:flat"]
    assert "centre" not in fpa.make_plan(["vg_abs", "centre"], protocols=["1/4"], points=3).varied
    assert not plan.estimators["true:flat"].explains


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("true:flta", "unknown map of the truth 'flta': did you mean 'flat'"),
        ("true:", "unknown map of the truth"),
        ("true:blur-x", "unknown map of the truth"),
        ("true:vg/nois-1", "unknown map of the truth"),
        ("true:vgnoise-1", "unknown map of the truth"),
        ("true:/noise-1", "unknown map of the truth"),
        ("true:vg/", "unknown map of the truth"),
        ("true:noise-nan", "must be at least 0, got nan"),
        ("true:noise-inf", "must be at most 1,000, got inf"),
        ("true:shift-3", "must be at most 1, got 3"),
        ("true:forgotten-1.5", "must be a whole number of cues, got 1.5"),
    ],
)
def test_unknown_names(name, problem):
    with pytest.raises(InputError, match=problem):
        get_estimators([name])


def test_images_of_no_world_are_refused(model):
    images = torch.randn(4, 3, 16, 16)
    with pytest.raises(InputError, match="true:flat needs images that can be made again"):
        fpa.evaluate(model, images, ["true:flat", "vg_abs"], **HOW)
    with pytest.raises(InputError, match="only of images that a world made"):
        fpa.explain(model, images, ["true:flat"])
