"""One word means one thing in all functions, and a wrong one is answered with the right one."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision.transforms import v2

import fpa
from fpa.calling import KeywordError
from fpa.errors import InputError
from fpa.progress import Display

torch.manual_seed(0)
NET = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
IMAGES = torch.randn(8, 3, 8, 8)
LABELS = torch.arange(8) % 4
QUICK = {"ig_steps": 2, "sg_samples": 2, "progress": False}


GIVEN = {
    fpa.explain: [
        ({"ig_steps": 3}, "ig_steps; it is a setting: settings=fpa.Settings(ig_steps=3)"),
        ({"outputs": "logit"}, "outputs: did you mean output?"),
    ],
    fpa.evaluate: [({"verbose": 1}, "verbose: did you mean progress?")],
    fpa.audit: [({"folders": "runs"}, "folders: did you mean folder?")],
    fpa.finetune: [
        ({"epoch": 1}, "epoch: did you mean epochs?"),
        ({"p1_max": 0.3}, "p1_max; it is a setting: fpa={'p1_max': 0.3}"),
    ],
    fpa.load_model: [({"devise": "cpu"}, "devise: did you mean device?")],
    fpa.FPA: [({"smax": 3}, "smax: did you mean s_max?")],
}
"""Wrong keywords by function, and the answers."""


@pytest.mark.parametrize(
    ("function", "given", "answer"),
    [(function, *each) for function, several in GIVEN.items() for each in several],
)
def test_an_unknown_keyword_is_answered_with_the_function_and_the_right_one(function, given, answer):
    with pytest.raises(KeywordError) as refused:
        function(*([NET, IMAGES] if function is not fpa.FPA else []), **given)
    assert str(refused.value) == f"{function.__name__}() has no keyword {answer}"
    assert isinstance(refused.value, InputError)
    assert isinstance(refused.value, TypeError)  # as Python's own error is


def test_a_keyword_that_resembles_none_is_answered_with_all():
    with pytest.raises(KeywordError, match=r"read_results\(\) has no keyword colour \(it has folder\)"):
        fpa.read_results("runs", colour="red")


def test_old_keywords_work_and_say_once_what_they_are_called_now(tmp_path):
    model = fpa.load_model("shapes-none")
    images = torch.randn(8, 3, 32, 32)
    how = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-6, "device": "cpu"}
    with pytest.warns(DeprecationWarning, match="is now") as said:
        fpa.finetune(model, (images, LABELS), output=tmp_path / "old", display=Display(quiet=True), **how)
    assert [str(each.message) for each in said] == [
        "finetune(output=...) is now finetune(folder=...); the old name will go",
        "finetune(display=...) is now finetune(progress=...); the old name will go",
    ]
    assert {each.filename for each in said} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fpa.finetune(model, (images, LABELS), folder=tmp_path / "new", progress=False, **how)
    both = [fpa.load_model(tmp_path / name / "model.safetensors") for name in ("old", "new")]
    for old, new in zip(both[0].parameters(), both[1].parameters(), strict=True):
        assert torch.equal(old, new)
    with pytest.raises(KeywordError, match="got output and folder, which are one keyword"):
        fpa.finetune(model, IMAGES, output=tmp_path, folder=tmp_path)


def test_progress_is_shown_or_not_by_the_same_word(capsys):
    fpa.finetune(NET, (IMAGES, LABELS), epochs=1, batch_size=8, progress=False)
    assert capsys.readouterr().err == ""
    fpa.finetune(NET, (IMAGES, LABELS), epochs=1, batch_size=8)
    assert "learning the model's own predictions, 1 epoch" in capsys.readouterr().err


def test_masking_of_a_fine_tuning_is_that_of_its_perturbation():
    def tuned(**how):
        made = fpa.finetune(NET, (IMAGES, LABELS), epochs=1, batch_size=8, progress=False, **how)
        return made[1].weight

    blurred = tuned(masking="blur")
    assert torch.equal(blurred, tuned(fpa={"masking": "blur"}))
    assert not torch.equal(blurred, tuned())
    p1_max = tuned(masking="blur", fpa={"p1_max": 0.1})
    assert torch.equal(p1_max, tuned(fpa={"masking": "blur", "p1_max": 0.1}))
    assert not torch.equal(p1_max, blurred)
    for own in (fpa.FPA(), {"masking": "mean"}):
        with pytest.raises(InputError, match="fpa has a masking already"):
            tuned(masking="blur", fpa=own)


def test_masking_of_an_audit_is_the_one_judged():
    found = fpa.audit(NET, IMAGES, masking="blur", **QUICK)
    assert found.maskings == ("blur", "constant", "mean", "uniform")
    assert found.maskings == fpa.audit(NET, IMAGES, maskings=found.maskings, **QUICK).maskings
    alone = fpa.audit(NET, IMAGES, masking="mean", maskings=["mean"], **QUICK)
    assert alone.maskings == ("mean",)


def test_output_is_the_one_explained_and_scored_in_all():
    for function in (fpa.evaluate, fpa.audit):
        one = function(NET, IMAGES, output="margin", **QUICK)
        result = one if function is fpa.evaluate else one.result
        assert result.plan["outputs"][0] == "margin"
        assert result.plan["maps_of"] == "margin"
    assert fpa.make_plan(output="margin", outputs=["logit", "margin"]).outputs == ("margin", "logit")
    assert fpa.make_plan(output="logit") == fpa.make_plan()


def test_what_open_model_returns_is_a_model():
    opened = fpa.open_model("shapes-fpa")
    model = fpa.load_model("shapes-fpa")
    how = {"count": 4, "points": 3, **QUICK}
    named = fpa.evaluate(opened, "shapes", ["ig_sum", "vg_abs"], **how)
    bare = fpa.evaluate(model, "shapes", ["ig_sum", "vg_abs"], **how)
    assert named.fidelity["ig_sum"].area == bare.fidelity["ig_sum"].area
    assert named.name == "shapes-fpa"
    audited = fpa.audit(opened, "shapes", count=4, **QUICK)
    assert audited.name == "shapes-fpa"
    judged = fpa.evaluate(model, "shapes", ["vg_abs"], judge=fpa.open_model("shapes-none"), **how)
    assert judged.about["judge"] == "shapes-none"
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(*(fpa.explain(each, images, "vg_abs")["vg_abs"] for each in (opened, model)))
    how = {"epochs": 1, "batch_size": 2, "device": "cpu", "progress": False}
    tuned = [fpa.finetune(each, (images, [0, 1]), **how).state_dict() for each in (opened, model)]
    assert all(torch.equal(tuned[0][name], tuned[1][name]) for name in tuned[1])


def test_names_of_classes_come_with_what_open_model_returns():
    opened = replace(fpa.open_model("shapes-fpa"), classes=list("abcdefgh"))
    found = fpa.evaluate(opened, torch.randn(2, 3, 32, 32), ["vg_abs"], points=3, progress=False)
    assert found.description.subject.classes == tuple("abcdefgh")


@pytest.mark.parametrize(
    "given", [((0.5,) * 3, (0.25,) * 3), v2.Normalize([0.5] * 3, [0.25] * 3), "imagenet"], ids=str
)
def test_a_normalisation_is_taken_as_people_have_it(given):
    pixels = torch.randint(
        0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    mean = given.mean if isinstance(given, v2.Normalize) else given[0]
    std = given.std if isinstance(given, v2.Normalize) else given[1]
    if given == "imagenet":
        mean = [0.485, 0.456, 0.406]
        std = [0.229, 0.224, 0.225]
    images = v2.functional.normalize(pixels / 255, list(mean), list(std))
    how = {"points": 3, "progress": False}
    found = fpa.evaluate(NET, pixels, ["vgx_sum"], normalisation=given, **how)
    assert (
        found.fidelity["vgx_sum"].area
        == fpa.evaluate(NET, images, ["vgx_sum"], **how).fidelity["vgx_sum"].area
    )


def test_a_normalisation_that_is_none_is_answered_with_what_would_be():
    for function in (fpa.evaluate, fpa.audit, fpa.finetune):
        with pytest.raises(
            InputError, match=r"normalisation must be \(mean, std\) .* 'imagenet'.*, got 'cifar'"
        ):
            function(NET, IMAGES, normalisation="cifar")
