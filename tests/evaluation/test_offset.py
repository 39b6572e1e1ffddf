"""What a number added to all logits does to an evaluation, and what is said about it."""

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.evaluation.offset import logit_offset
from fpa.notes import Kind, Note, Severity
from fpa.show import scope, summary
from fpa.show.tables import notes, results_table
from fpa.show.words import clause

QUICK = {"settings": fpa.Settings(ig_steps=4, sg_samples=2), "points": 5, "progress": False, "examples": 0}
NAMES = ["random", "ig_sum", "vgx_sum", "vg_abs"]


class Shifted(nn.Module):
    """A small net to whose logits a constant and a multiple of the image's mean are added."""

    def __init__(self, constant=0.0, times_mean=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4, bias=False)
        )
        self.constant, self.times_mean = constant, times_mean

    def forward(self, images):
        shift = self.constant + self.times_mean * images.mean((1, 2, 3))
        return 10 * self.net(images) + shift[:, None]


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def evaluated(images, *shift, **how):
    return fpa.evaluate(Shifted(*shift), images, NAMES, **QUICK, **how)


@pytest.mark.parametrize("output", ["centred", "margin", "log_odds", "probability"])
def test_no_shift_changes_the_outputs_that_depend_on_the_softmax_alone(images, output):
    plain, other = (evaluated(images, *shift, outputs=output) for shift in ((), (20.0, 92.0)))
    for name in NAMES:
        assert other.fidelity[name].area == pytest.approx(plain.fidelity[name].area, rel=1e-3, abs=1e-2)
        assert other.fidelity[name].used == len(images)
    assert other.reliability.opposite == plain.reliability.opposite
    assert plain.head is None


def test_the_offset_of_a_head_is_measured_shown_and_warned_of(images):
    plain, shifted = evaluated(images), evaluated(images, 50.0)
    with torch.no_grad():
        logits = Shifted(50.0)(images)
    mean = logits.mean(1)
    expected = float(mean.mean() / (logits.amax(1) - mean).mean())
    assert shifted.head.offset == pytest.approx(expected, rel=1e-4)
    assert abs(plain.head.offset) < 0.5
    (line,) = scope.heads(shifted.results)
    assert f" {100 * expected:.1f} %." in line
    assert line in notes(shifted.results)
    assert set(results_table(shifted.results).head_offset) == {shifted.head.offset}
    # The centred logit of both is the same number, so its A is, and that of the logit is not.
    for name in ("ig_sum", "vgx_sum", "vg_abs"):
        assert shifted.head.areas[name][1] == pytest.approx(plain.head.areas[name][1], rel=1e-3)
    assert "ig_sum" in shifted.head.moved
    assert Kind.OFFSET_MATTERS in [note.kind for note in shifted.facts]
    (doubt,) = summary.doubts(shifted.results, brief=True)
    assert doubt in " ".join(str(shifted).split())
    centred = evaluated(images, 50.0, outputs="centred")
    assert summary.doubts(centred.results, brief=True) == []


@pytest.mark.filterwarnings("ignore:estimator broken")
def test_an_estimator_without_a_finite_map_is_named_and_the_rest_is_scored(images, tmp_path):
    def broken(model, images, targets):
        return torch.full_like(images, torch.nan)

    named = {"broken": broken, **{name: name for name in NAMES}}
    result = fpa.evaluate(Shifted(), images, named, **QUICK)
    assert list(result.fidelity) == NAMES
    for name, expected in evaluated(images).fidelity.items():
        assert result.fidelity[name].area == expected.area
    note = Note(Kind.NEVER_FINITE, Severity.WARNING, {"estimator": "broken"})
    assert note in result.facts
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    for shown in (str(result), page):
        assert clause(note) in " ".join(shown.split())
    with pytest.raises(fpa.InputError, match="no image is left to score"):
        fpa.evaluate(Shifted(), images, {"broken": broken}, **QUICK)


def test_the_same_estimator_with_other_settings_enters_no_pair(images):
    def saliency(model, images, targets):
        images = images.requires_grad_()
        return torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)[0].abs()

    finer = fpa.Estimator(fpa.explanation.IntegratedGradients(steps=8), "sum")
    mine = fpa.Estimator(saliency, kind="unsigned")
    named = {name: name for name in NAMES} | {"finer": finer, "mine": mine}
    result = fpa.evaluate(Shifted(), images, named, **QUICK)
    assert result.reliability.duplicates == {"finer": "ig_sum", "mine": "vg_abs"}
    assert len(result.reliability.pairs) == 3
    (line,) = scope.sentences(result.results, [Kind.NEAR_DUPLICATES])
    assert line in " ".join(str(result).split())


def test_labels_of_one_class_say_nothing_about_chance(images):
    for labels in (torch.zeros(40, dtype=torch.int64), torch.arange(40) % 2):
        result = fpa.evaluate(Shifted(), (images, labels), ["vg_abs", "ig_sum"], **QUICK)
        lines = scope.unchecked(result.results)
        assert bool(lines) == (labels.max() == 0)
        assert all(line in notes(result.results) for line in lines)
        commonest = None if labels.max() == 0 else 0.5
        assert result.evaluation.chance == commonest
        assert bool(result.results.not_above_chance) == (labels.max() == 1)  # it has learned nothing


def test_a_centred_head_gives_no_warning(images):
    class Centred(Shifted):
        def forward(self, images):
            logits = super().forward(images)
            return logits - logits.mean(1, keepdim=True)

    result = fpa.evaluate(Centred(), images, NAMES, **QUICK)
    assert result.head.offset == pytest.approx(0, abs=1e-6)
    assert result.head.moved == ()
    assert (result.head.facts, result.head.warning) == ((), "")
    np.testing.assert_allclose(*zip(*result.head.areas.values(), strict=True), rtol=1e-5, atol=1e-4)


def absolute_gradient(model, images, targets):
    images = images.requires_grad_()
    return torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)[0].abs()


def brightness(model, images, targets):
    return images.mean(1)


def test_functions_are_looked_at_before_they_are_called_signed(images):
    named = ["ig_sum", "random", absolute_gradient, brightness]
    result = fpa.evaluate(Shifted(), images, named, **QUICK)
    assert result.signed == {"ig_sum": True, "absolute_gradient": False, "brightness": True}
    told = fpa.Estimator(absolute_gradient, kind="signed")  # who says it is believed
    assert fpa.evaluate(Shifted(), images, {"mine": told}, **QUICK).signed == {"mine": True}
    by_name = fpa.evaluate(Shifted(), images, ["ig_sum", f"{__name__}:absolute_gradient"], **QUICK)
    assert by_name.fidelity[f"{__name__}:absolute_gradient"].area == result.fidelity["absolute_gradient"].area


def test_an_audit_counts_a_function_by_its_maps_and_names_what_is_there_twice(images):
    how = {name: each for name, each in QUICK.items() if name != "examples"} | {"maskings": ["constant"]}
    verdict = fpa.audit(Shifted(), images, estimators=["ig_sum", absolute_gradient], **how)
    assert (verdict.evidence.signed, verdict.evidence.unsigned) == (1, 1)
    with pytest.raises(fpa.InputError, match="at least one signed and one unsigned estimator"):
        fpa.audit(Shifted(), images, estimators=["ig_sum", brightness], **how)

    def own(model, images, targets):  # an audit explains the centred logit
        return absolute_gradient(
            lambda rows: model(rows) - model(rows).mean(1, keepdim=True), images, targets
        )

    verdict = fpa.audit(Shifted(), images, estimators=["ig_sum", "vg_abs", own], **how)
    assert Note(Kind.NEAR_DUPLICATES, Severity.INFO, {"of": {"own": "vg_abs"}}) in verdict.reasons


def test_two_of_the_same_are_said_to_be_so_where_no_pair_is_left(images):
    result = fpa.evaluate(Shifted(), images, ["vg_abs", absolute_gradient], **QUICK)
    assert result.reliability.duplicates == {"absolute_gradient": "vg_abs"}
    (line,) = scope.sentences(result.results, [Kind.NEAR_DUPLICATES])
    assert line in " ".join(str(result).split())


def test_without_a_score_nothing_has_moved(images):
    result = evaluated(images[:4])
    head = logit_offset(result.evaluation, {}, result.reliability, {})
    assert head.offset == result.head.offset
    assert head.moved == ()


def test_an_estimator_that_is_there_twice_counts_in_no_pair_of_the_centred_logit_either(images):
    twice = {"again": fpa.Estimator(fpa.explanation.IntegratedGradients(steps=8), "sum")}
    twice["mine"] = fpa.Estimator(absolute_gradient, kind="unsigned")
    once = fpa.evaluate(Shifted(50.0, 92.0), images, NAMES, **QUICK)
    result = fpa.evaluate(Shifted(50.0, 92.0), images, {**{name: name for name in NAMES}, **twice}, **QUICK)
    assert set(result.reliability.duplicates) == {"again", "mine", *once.reliability.duplicates}
    assert result.head.opposite == once.head.opposite
