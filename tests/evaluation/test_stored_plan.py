"""The plan and the description of an evaluation, as they are stored: typed, exact, and read without torch."""

import copy
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import fpa
from fpa.evaluation.description import Description
from fpa.evaluation.shards import EvaluationFolder
from fpa.explanation import Settings, get_estimators
from fpa.files import read_json, write_json

NAMED = {"noise": "random", "mine": "vg_abs", "soft": "vg_abs~2", "ig": "ig_sum", "middle": "centre"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 4))
    images = torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    place = tmp_path_factory.mktemp("stored")
    fpa.evaluate(
        net, images, NAMED, points=3, scores=["A", "max_sensitivity"], score_images=2, targets="best:2",
        settings=Settings(ig_steps=2, sg_samples=2), folder=place, progress=False,
    )  # fmt: skip
    return place


@pytest.fixture
def about(folder):
    return read_json(folder / "evaluation.json")


def test_what_was_read_is_written_again(about):
    assert Description.from_json(about).to_json() == about
    assert json.dumps(Description.from_json(about).plan.to_json()) == json.dumps(about["plan"])


def test_what_another_version_wrote_besides_stays_and_what_it_left_out_is_not_invented(about):
    about["plan"]["estimators"]["mine"]["later"] = about["plan"]["later"] = about["later"] = {"a": [1, None]}
    for key in ("maps_of", "precision", "targets"):
        del about["plan"][key]
    for key in ("augmentation", "training", "notes", "made_with"):
        del about[key]
    assert Description.from_json(copy.deepcopy(about)).to_json() == about


def test_the_key_of_blocks_is_that_of_the_plan_and_the_weights_as_json(about):
    text = json.dumps([about["plan"], about["model"]], sort_keys=True)
    assert Description.from_json(about).origin.key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_facts_of_a_plan(about):
    plan = Description.from_json(about).plan
    assert plan.signed == {"mine": False, "ig": True}
    assert (plan.random, plan.model_free, plan.twins) == ("noise", ["noise", "middle"], {"mine": ["soft"]})
    assert plan.families["mine"] == ("vg", "abs", False)
    assert plan.families["middle"] is None
    assert (plan.outputs, plan.targets, plan.fractions) == (("logit", "centred"), "best:2", (0.0, 0.5, 1.0))
    assert (plan.scores["A"].images, plan.scores["max_sensitivity"].images) == (None, 2)
    assert plan.scores["max_sensitivity"].higher_is_better is False


def test_facts_say_what_estimators_are():
    for name, each in get_estimators(["paper", "baselines", "cam", "random~", "twins"]).items():
        facts = each.facts(name)
        assert (facts.sign, facts.explains, facts.is_random) == (each.sign, each.explains, each.is_random)
        assert facts.label == each.label(name)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("plan", "estimators", "mine", "sign"), "odd", "sign of mine must be one of signed, unsigned"),
        (("plan", "estimators", "mine", "label"), None, "the label of mine must be a mapping"),
        (
            ("plan", "estimators", "mine", "label"),
            {"key": "mine", "name": "VG", "reduction": "<b>"},
            "reduction of the label of mine must be one of sum, abs",
        ),
        (("plan", "estimators", "mine", "raw"), "vg", "raw of mine must be a mapping"),
        (("plan", "scores", "A"), {}, "title of the score A must be text"),
        (("plan", "seed"), "0", "seed must be a whole number"),
        (("plan",), [], "plan must be a mapping"),
        (("classes",), None, "classes must be a list"),
        (("notes",), "all well", "notes must be a list"),
    ],
)
def test_damage_is_named(folder, tmp_path, about, path, value, said):
    copied = shutil.copytree(folder, tmp_path / "copy")
    inner = about
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_json(copied / "evaluation.json", about)
    with pytest.raises(fpa.InputError, match=rf"evaluation.json is damaged \({said}"):
        EvaluationFolder(copied).description()


def test_public_dictionaries_are_plain_json(folder, about):
    result = fpa.load_result(folder)
    assert result.about == about
    assert json.loads(json.dumps(result.plan)) == result.plan == about["plan"]


def test_it_is_read_without_torch(folder):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None\n"
        "from fpa.evaluation.shards import EvaluationFolder\n"
        "from fpa.explanation import facts\n"
        f"plan = EvaluationFolder({str(folder)!r}).description().plan\n"
        "assert isinstance(plan.estimators['mine'], facts.EstimatorFacts)\n"
        "print(*plan.signed)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mine", "ig"]


def test_an_odd_card_does_not_make_an_unreadable_folder(tmp_path):
    """What a model's file says of its training is somebody else's text."""
    model = fpa.load_model("shapes-fpa")
    model.card = replace(model.card, recipe={**model.card.recipe, "fpa": "as usual"})
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    result = fpa.evaluate(model, images, ["vg_abs", "random"], points=3, folder=tmp_path, progress=False)
    assert result.description.subject.training is None
    assert result.augmentation == "fpa"
