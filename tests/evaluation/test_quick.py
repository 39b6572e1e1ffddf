"""A quick look, and what is said before long work."""

import pytest
import torch
from torch import nn

import fpa
from fpa.cli.main import main
from fpa.evaluation import announcing
from fpa.evaluation.options import AuditOptions, EvaluateOptions
from fpa.evaluation.quick import quickened


def images(count):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def test_a_quick_look_takes_100_images_and_fewer_steps_and_points():
    result = fpa.evaluate(network(), images(130), ["ig_sum", "vg_abs"], quick=True, progress=False)
    assert len(result.evaluation.indices) == 100
    assert len(result.evaluation.fractions) == 11
    text = " ".join(str(result).split())
    assert "A quick look at 100 images, with 26 gradients for each, 11 points and one protocol" in text
    assert "it cannot decide small differences" in text


def test_it_takes_all_images_where_there_are_fewer():
    result = fpa.evaluate(network(), images(20), ["vgx_sum", "vg_abs"], quick=True, progress=False)
    assert len(result.evaluation.indices) == 20


def test_what_was_said_stays():
    options = EvaluateOptions(quick=True, points=5, ig_steps=7, count=300)
    made = quickened(options)
    assert (made.points, made.ig_steps, made.count) == (5, 7, 300)
    assert quickened(EvaluateOptions(points=5)).ig_steps == 200


def test_a_quick_audit_judges_one_masking():
    assert [*quickened(AuditOptions(quick=True)).maskings] == ["constant"]
    assert [*quickened(AuditOptions(quick=True, masking="blur")).maskings] == []
    assert [*quickened(AuditOptions(quick=True, maskings=["mean", "blur"])).maskings] == ["mean", "blur"]
    audit = fpa.audit(network(), images(120), quick=True, progress=False)
    assert audit.maskings == ("constant",)
    assert len(audit.result.evaluation.indices) == 100
    assert any("quick look at 100 images" in line for line in audit.because)


@pytest.mark.parametrize("command", ["evaluate", "audit"])
def test_a_quick_look_has_a_folder_of_its_own(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [command, "shapes-none", "--quick", "--ig_steps", "2", "--points", "5", "--device", "cpu"]
    main([*words, "--estimators", "ig_sum,vg_abs"])
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-quick")
    assert "quick look at 100 images" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def slow(monkeypatch):
    """Every image alone seems to take an hour, so that the work is worth an estimate."""
    monkeypatch.setattr(announcing, "_rough_seconds", lambda case: 3600.0)


def test_long_work_is_announced_with_the_estimate_and_the_quick_look(slow, monkeypatch, capsys):
    given = {}

    def estimated(case, folder, *, examples, seconds):
        given.update(images=case.source.count, seconds=seconds)
        stage = fpa.engine.estimate.Stage("evaluation", 7260.0)
        return fpa.Estimate((stage,), "cpu", 12)

    monkeypatch.setattr(announcing, "estimate_case", estimated)
    fpa.evaluate(network(), images(12), ["vgx_sum", "vg_abs"], points=3)
    said = capsys.readouterr().err
    assert "about 2 h 1 min on this machine; for a first look at 100 images" in said
    assert "--quick, in Python quick=True" in said
    assert given == {"images": 12, "seconds": 10.0}
    fpa.evaluate(network(), images(12), ["vgx_sum", "vg_abs"], points=3, quick=True)
    said = capsys.readouterr().err
    assert "about 2 h 1 min on this machine" in said
    assert "first look" not in said


def test_the_users_own_code_is_not_called_for_an_announcement(slow, monkeypatch):
    calls = []

    def own(model, images, classes):
        calls.append(len(images))
        return images.abs()

    fpa.evaluate(network(), images(12), {"own": own, "vgx": "vgx_sum"}, points=3)
    announced = sum(calls)
    calls.clear()
    fpa.evaluate(network(), images(12), {"own": own, "vgx": "vgx_sum"}, points=3, progress=False)
    assert announced == sum(calls)


def test_short_work_and_silent_work_are_not_announced(monkeypatch, capsys):
    monkeypatch.setattr(announcing, "estimate_case", None)  # would be an error
    fpa.evaluate(network(), images(12), ["vgx_sum", "vg_abs"], points=3)
    monkeypatch.setattr(announcing, "_rough_seconds", lambda case: 3600.0)
    fpa.evaluate(network(), images(12), ["vgx_sum", "vg_abs"], points=3, progress=False)


def test_what_is_left_out_of_many_blocks_is_warned_of_once(recwarn):
    pictures = images(200)
    pictures[::20] = torch.nan  # ten images, in every block of 32
    result = fpa.evaluate(network(), pictures, ["vgx_sum", "vg_abs"], points=3, progress=False)
    warned = [str(each.message) for each in recwarn if "not finite" in str(each.message)]
    assert len(warned) == 1
    assert sum("not finite" in line for line in result.evaluation.problems) > 1
