"""The plain answer: the best explanation, how far to trust it, and what to type next."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fpa
from fpa.cli.main import main
from fpa.evaluation.rankings import tied, tied_by_area
from fpa.evaluation.recommended import RECOMMENDED
from fpa.show.answers import answer, of_audit


@pytest.fixture(scope="module")
def images():
    return torch.randn(120, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def linear():
    """A model without interactions: gradient times input is the truth."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()


@pytest.fixture(scope="module")
def result(linear, images):
    return fpa.evaluate(linear, images, ["random", "vgx_sum", "vg_abs"], progress=False)


def test_the_best_explanation_is_named_with_its_area(result):
    assert tied(result) == ["vgx_sum"]
    first = answer(result.results)[0]
    assert "VG'_sum" in first
    assert f"{result.fidelity['vgx_sum'].area:.1f}" in first
    assert "VG_abs" not in first


def test_explanations_that_cannot_be_told_apart_are_all_named(linear, images):
    both = fpa.evaluate(linear, images, ["random", "vgx_sum", "ig_sum", "vg_abs"], points=5, progress=False)
    leading = tied(both)
    assert {"vgx_sum", "ig_sum"} <= set(leading)
    names = {"vgx_sum": "VG'_sum", "ig_sum": "IG_sum", "vg_abs": "VG_abs"}
    first = answer(both.results)[0]
    for name, shown in names.items():
        assert (shown in first) == (name in leading)


def test_the_recommended_protocol_decides_where_it_was_asked_for(linear, images):
    both = fpa.evaluate(
        linear, images, ["random", "vgx_sum", "vg_abs"], protocols=[RECOMMENDED], points=5, progress=False
    )
    by_patches = both.by_protocol[RECOMMENDED].fidelity
    first = answer(both.results)[0]
    leading = max(("vgx_sum", "vg_abs"), key=lambda name: by_patches[name].area)
    assert f"{by_patches[leading].area:.1f}" in first
    assert f"{both.fidelity[leading].area:.1f}" not in first


def test_leading_by_areas_is_leading_by_the_result(result):
    areas = {name: result.fidelity[name] for name in result.signed}
    assert tied_by_area(areas, result.reliability) == tied(result)
    assert tied_by_area({}, result.reliability) == []


def test_the_next_step_is_in_the_language_that_was_used(result, linear, images):
    assert answer(result.results)[-1] == "Next: fpa.audit_result(result)"
    few = fpa.evaluate(linear, images, ["vgx_sum", "vg_abs"], points=3, progress=False)
    assert answer(few.results)[-1] == "Next: fpa.audit(model, data)"
    subject = replace(result.description.subject, command="fpa evaluate model.pt")
    typed = replace(result, description=replace(result.description, subject=subject))
    stored = replace(typed.results, folder=Path("runs/my model"))
    assert answer(stored)[-1] == "Next: fpa audit 'runs/my model'"


def test_few_images_are_named_where_trust_is_asked_for(linear, images):
    for some in (images[:8], torch.cat([images, images])):
        made = fpa.evaluate(linear, some, ["random", "vgx_sum", "vg_abs"], points=5, progress=False)
        used = made.results.images_used
        assert (used >= 100) == (len(some) > 8)
        assert (f"{used} images" in answer(made.results)[1]) == (used < 100)


def test_a_study_with_too_few_points_for_an_audit_names_a_model(result, linear, images):
    short = fpa.evaluate(linear, images, ["random", "vgx_sum", "vg_abs"], points=5, progress=False)
    for made, where in ((result, "runs/s"), (short, "runs/s/fpa/model.safetensors")):
        models = {"none": made, "fpa": made}
        study = replace(made.results, models=models, recipe={}, folder=Path("runs/s"))
        assert answer(study)[-1] == f"Next: fpa audit {where}"


def test_a_model_at_chance_has_no_best_explanation(linear, images):
    labels = torch.arange(120) % 3
    chance = fpa.evaluate(linear, (images, labels), ["random", "vgx_sum", "vg_abs"], points=5, progress=False)
    assert chance.results.not_above_chance
    assert "VG" not in answer(chance.results)[0]


def test_it_stands_in_the_text_the_notebook_and_the_report(result, tmp_path):
    line = answer(result.results)[0]
    assert line in str(result).replace("\n", " ")
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (result._repr_html_(), page):
        assert line.replace("'", "&#39;") in text


def test_an_audit_names_the_best_unless_the_test_is_unreliable(linear, images):
    found = fpa.audit(linear, images, "paper", maskings=["constant"], progress=False)
    assert found.verdict != "unreliable"
    assert "VG'_sum" in of_audit(found)
    assert "VG" not in of_audit(replace(found, verdict="unreliable"))


@pytest.mark.parametrize(
    ("typed", "next_command"),
    [
        ("fpa evaluate shapes-fpa --points 3", "fpa audit shapes-fpa"),
        (
            "fpa evaluate torchvision:resnet18 --weights 'my net.pth' --data folder:x --quiet --points 3",
            "fpa audit torchvision:resnet18 --weights 'my net.pth' --data folder:x",
        ),
        (
            "fpa evaluate --overwrite net.safetensors --points=3 --size=64",
            "fpa audit net.safetensors --size=64",
        ),
        (
            "fpa evaluate --model a.safetensors --points 3 --device cpu",
            "fpa audit a.safetensors --device cpu",
        ),
    ],
)
def test_the_next_command_carries_the_names_that_were_typed(typed, next_command, linear, images):
    few = fpa.evaluate(
        linear, images, ["vgx_sum", "vg_abs"], points=4, progress=False
    )  # too few for an audit
    subject = replace(few.description.subject, command=typed)
    said = answer(replace(few, description=replace(few.description, subject=subject)).results)
    assert said[-1] == f"Next: {next_command}"


def test_the_next_command_of_an_evaluation_at_the_shell_can_be_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "shapes-fpa", "--count", "6", "--points", "4", "--device", "cpu"]
    assert main([*words, "--estimators", "vgx_sum,vg_abs"]) == 0
    out = capsys.readouterr().out
    assert "Next: fpa audit shapes-fpa --device cpu" in out
