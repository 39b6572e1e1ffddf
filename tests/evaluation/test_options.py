"""The options of evaluations and audits: one declaration for Python, the command line and recipes."""

import inspect
from dataclasses import fields
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.cli.main import main
from fpa.errors import InputError
from fpa.evaluation.options import AuditOptions, EvaluateOptions, PlanOptions
from fpa.evaluation.plan import plan_of
from fpa.masking import black
from fpa.study.recipe import EvaluationSettings, load_recipe

torch.manual_seed(0)
NET = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
IMAGES = torch.randn(4, 3, 8, 8)

KEYWORDS = {
    fpa.make_plan: "estimators settings masking maskings points fractions features outputs maps_of scores "
    "score_images targets seed precision normalisation",
    fpa.evaluate: "model data estimators masking points fractions settings features outputs maps_of scores "
    "score_images targets normalisation classes class_index count seed precision device judge masks examples "
    "folder name progress",
    fpa.audit: "model data estimators count settings maskings points features outputs targets class_index "
    "seed precision normalisation device folder overwrite name progress",
}
"""What could be given before the options were declared in one place."""


@pytest.mark.parametrize("function", KEYWORDS, ids=lambda function: function.__name__)
def test_all_keywords_are_there_with_help(function):
    parameters = inspect.signature(function).parameters
    expected = KEYWORDS[function].split()
    assert set(expected) <= set(parameters)
    leading = [name for name in expected if name in ("model", "data", "estimators")]
    assert list(parameters)[: len(leading)] == leading
    others = [each.kind for name, each in parameters.items() if name not in leading]
    assert set(others) == {inspect.Parameter.KEYWORD_ONLY}
    for name in parameters:
        assert f"        {name}: " in function.__doc__


@pytest.mark.parametrize(
    ("command", "options"),
    [("evaluate", EvaluateOptions), ("audit", AuditOptions), ("run", EvaluationSettings)],
)
def test_a_command_shows_the_defaults_that_python_has(capsys, command, options):
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    prefix = "evaluation." if command == "run" else ""
    usual = options()
    for name in ("estimators", "ig_steps", "sigma", "points", "features", "precision", "outputs"):
        value = getattr(usual, name)
        typed = ",".join(value) if isinstance(value, tuple) else value
        about = shown[shown.rindex(f" --{prefix}{name} ") :]
        assert about.index(f"default: {typed})") < 500, name


def test_the_fields_of_a_recipe_are_options_of_a_plan():
    own = {item.name for item in fields(EvaluationSettings)}
    assert own - {item.name for item in fields(PlanOptions)} == {"examples"}
    recipe = load_recipe("tiny", {"evaluation.points": 3, "masking": "mean", "seed": 5})
    plan = plan_of(recipe.plan_options(fpa.Normalisation((0.5,) * 3, (0.5,) * 3)))
    assert plan == fpa.make_plan(
        ["paper"], points=3, masking="mean", seed=5, settings=fpa.Settings(ig_steps=4, sg_samples=2)
    )


def test_an_unknown_keyword_is_refused_with_the_nearest():
    for function in (fpa.evaluate, fpa.audit):
        with pytest.raises(InputError, match=r"\(\) has no keyword pionts: did you mean points"):
            function(NET, IMAGES, pionts=3)
    with pytest.raises(InputError, match=r"make_plan\(\) has no keyword score: did you mean scores"):
        fpa.make_plan(score="A")
    with pytest.raises(TypeError, match="positional"):
        fpa.evaluate(NET, IMAGES, "paper", 3)


def test_numbers_of_estimators_one_by_one_or_all_in_one():
    one = fpa.evaluate(NET, IMAGES, ["ig_sum"], ig_steps=2, points=3, progress=False)
    two = fpa.evaluate(
        model=NET,
        data=IMAGES,
        estimators=["ig_sum"],
        settings=fpa.Settings(ig_steps=2),
        points=3,
        progress=False,
    )
    assert one.plan == two.plan
    assert one.fidelity["ig_sum"].area == two.fidelity["ig_sum"].area
    assert one.plan["estimators"]["ig_sum"]["raw"]["steps"] == 2
    with pytest.raises(InputError, match=r"give settings, or ig_steps, .* not both"):
        fpa.evaluate(NET, IMAGES, ig_steps=2, settings=fpa.Settings())
    scale = fpa.Normalisation((0.25,) * 3, (0.5,) * 3)
    plan = fpa.make_plan(["ig_sum"], reference="black", normalisation=scale)
    assert plan.estimators["ig_sum"].raw.reference == black(scale.mean, scale.std)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"ig_steps": 0}, "ig_steps must be at least 1, got 0"),
        ({"sg_samples": "many"}, "sg_samples must be a whole number, got 'many'"),
        ({"sigma": -1.0}, "sigma must be at least 0, got -1.0"),
        ({"score_images": 0}, "score_images must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"examples": -1}, "examples must be at least 0, got -1"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"reference": "white"}, "reference must be one of masked, black, got 'white'"),
        ({"settings": {"ig_steps": 3}}, "settings must be a Settings or null, got"),
        ({"judge": "shapes-fpa"}, "judge must be a torch.nn.Module or an Engine or what fpa.open_model"),
    ],
)
def test_values_that_do_not_fit_are_refused(option, message):
    with pytest.raises(InputError, match=message):
        fpa.evaluate(NET, IMAGES, **option)


def test_an_engine_has_a_batch_size_of_its_own():
    assert fpa.evaluate(NET, IMAGES, ["vg_abs"], points=3, batch_size=2, progress=False).fidelity
    with pytest.raises(InputError, match="the engine has a batch size of its own: leave out batch_size"):
        fpa.evaluate(fpa.Engine(NET), IMAGES, batch_size=2)


class TestTargets:
    """The class explained, by name, or one for every image."""

    how: ClassVar = {"points": 3, "progress": False, "output": "probability"}

    def test_a_class_by_name_is_the_class_of_that_number(self):
        classes = ["cat", "dog", "eel", "fly"]
        by_name = fpa.evaluate(NET, IMAGES, ["vgx_sum"], classes=classes, targets="eel", **self.how)
        by_number = fpa.evaluate(NET, IMAGES, ["vgx_sum"], classes=classes, targets=2, **self.how)
        assert by_name.plan == by_number.plan
        assert np.array_equal(by_name.evaluation.mif["vgx_sum"], by_number.evaluation.mif["vgx_sum"])

    def test_a_name_that_the_model_has_not_is_refused_with_the_nearest(self):
        with pytest.raises(InputError, match="unknown targets 'egl': did you mean 'eel'"):
            fpa.evaluate(NET, IMAGES, classes=["cat", "dog", "eel", "fly"], targets="egl", **self.how)
        with pytest.raises(InputError, match=r"several classes .* 'cat': give the number, 0, 2"):
            fpa.evaluate(NET, IMAGES, classes=["cat", "dog", "cat", "fly"], targets="cat", **self.how)
        opened = fpa.open_model("shapes-fpa")
        found = fpa.audit(opened, "shapes", ["vgx_sum", "vg_abs"], count=3, targets="disc", progress=False)
        assert set(found.result.evaluation.targets) == {0}

    @pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
    def test_one_for_every_image(self, kind, tmp_path):
        numbers = [3, 0, 2, 2]
        found = fpa.evaluate(NET, IMAGES, ["vgx_sum"], targets=kind(numbers), folder=tmp_path, **self.how)
        assert found.evaluation.targets.tolist() == numbers
        for place, number in enumerate(numbers):
            alone = fpa.evaluate(NET, IMAGES, ["vgx_sum"], targets=number, **self.how).evaluation
            assert np.array_equal(found.evaluation.mif["vgx_sum"][place], alone.mif["vgx_sum"][place])
        again = fpa.load_result(tmp_path)
        assert again.evaluation.targets.tolist() == numbers
        assert "the one given for it" in " ".join(str(again).split())
        with pytest.raises(InputError, match="targets"):  # others are another plan
            fpa.evaluate(NET, IMAGES, ["vgx_sum"], targets=[0, 0, 2, 2], folder=tmp_path, **self.how)

    def test_too_few_and_impossible_ones_are_refused(self):
        with pytest.raises(InputError, match=r"targets are 2, one for each image .* image number 2"):
            fpa.evaluate(NET, IMAGES, ["vgx_sum"], targets=[0, 1], **self.how)
        with pytest.raises(InputError, match="0 or more each"):
            fpa.evaluate(NET, IMAGES, ["vgx_sum"], targets=[0, 1, -1, 0], **self.how)

    def test_images_left_out_for_their_class_are_said_first(self):
        found = fpa.evaluate(
            NET, IMAGES, ["vgx_sum", "vg_abs"], targets=[3, 0, 2, 2], points=3, progress=False
        )
        with torch.no_grad():
            logits = NET(IMAGES).gather(1, torch.tensor([[3], [0], [2], [2]]))
        count = int((logits <= 0).sum())
        assert 0 < count < 4
        first = str(found).splitlines()
        assert " ".join(first[:2]).startswith(
            f"{count} of 4 images left out: the logit of the class explained is not positive."
        )
        other = fpa.evaluate(NET, IMAGES, ["vgx_sum"], points=3, progress=False)
        assert "left out: the" not in str(other)


def test_the_output_that_is_scored_is_named_below_the_table():
    for output, words in {"logit": "logit", "centred": "centred logit", "margin": "margin"}.items():
        found = fpa.evaluate(NET, IMAGES, ["vgx_sum"], output=output, points=3, progress=False)
        assert f"the area between the LIF and the MIF curve of the {words}," in " ".join(str(found).split())
