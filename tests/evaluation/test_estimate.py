"""What work takes, before it starts: passes are counted as the work itself makes them."""

import time
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import fpa
from fpa.engine import devices, rehearsal
from fpa.engine.estimate import Estimate, Stage
from fpa.evaluation import estimate as estimating
from fpa.evaluation.evaluator import carry_out
from fpa.evaluation.options import EvaluateOptions
from fpa.evaluation.plan import make_plan
from fpa.evaluation.subject import prepare

HOW = {
    "ten maps": {"settings": fpa.Settings(ig_steps=6, sg_samples=3)},
    "further maskings and patches": {
        "estimators": ["ig_sum", "vg_abs", "random"],
        "settings": fpa.Settings(ig_steps=4),
        "maskings": {"blur": "blur"},
        "protocols": ["2", "4+mean"],
    },
    "scores with passes of their own": {
        "estimators": ["vg_abs", "vgx_sum"],
        "scores": ["A", "deletion", "infidelity", "sensitivity_n"],
        "points": 5,
    },
}


class Net(nn.Sequential):
    """A small network of its own type, so that its passes can be told from those of its layers."""


def network():
    torch.manual_seed(0)
    return Net(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16 * 16, 5)).eval()


def images(count):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def passed():
    """How many images went through the network so far."""
    seen = Counter()

    def look(module, arguments):
        if isinstance(module, Net):
            seen["rows"] += len(arguments[0])

    hook = register_module_forward_pre_hook(look)
    yield seen
    hook.remove()


def counted(passed, work):
    before = passed["rows"]
    work()
    return passed["rows"] - before


def case_of(count, **options):
    net = network()
    return prepare(net, images(count), make_plan(**options), EvaluateOptions())


@pytest.mark.parametrize("how", HOW)
def test_the_passes_counted_are_those_that_the_evaluation_makes(how, passed):
    # A model is tried with at most 16 images, however many there are: the difference is without these.
    work = {
        n: counted(passed, lambda n=n: carry_out(case_of(n, **HOW[how]), None, progress=False))
        for n in (24, 72)
    }
    estimates = {n: estimating.estimate_case(case_of(n, **HOW[how])) for n in (24, 72)}
    passes = {n: sum(each.stages[0].passes.values()) for n, each in estimates.items()}
    assert passes[72] - passes[24] == work[72] - work[24]
    assert passes[72] == 3 * passes[24]


def test_an_estimate_runs_a_small_part_of_the_passes_that_it_counts(passed):
    options = {"settings": fpa.Settings(ig_steps=200, sg_samples=15)}
    found = counted(passed, lambda: estimating.estimate_case(case_of(5000, **options), seconds=2))
    assert found < 0.1 * sum(estimating.estimate_case(case_of(5000, **options)).stages[0].passes.values())


@pytest.fixture
def clock(monkeypatch, passed):
    """A clock that goes on by a second for every image that goes through the network, and never else."""

    class Clock:
        @staticmethod
        def monotonic():
            return float(passed["rows"])

    monkeypatch.setattr(devices, "time", Clock)
    monkeypatch.setattr(estimating, "time", Clock)
    monkeypatch.setattr(rehearsal, "time", Clock)


@pytest.mark.parametrize("how", HOW)
def test_the_time_is_that_of_all_passes_where_each_takes_a_second(how, clock, passed):
    found = estimating.estimate_case(case_of(640, **HOW[how]), seconds=1e9)
    assert found.seconds == pytest.approx(sum(found.stages[0].passes.values()))
    assert not found.longer


def test_examples_are_explained_once_more(clock):
    settings = {"estimators": ["ig_sum"], "settings": fpa.Settings(ig_steps=7)}
    plain = estimating.estimate_case(case_of(64, **settings), seconds=1e9)
    shown = estimating.estimate_case(case_of(64, **settings), seconds=1e9, examples=5)
    assert shown.seconds - plain.seconds == pytest.approx(5 * 7)
    assert shown.disk > plain.disk


def test_scores_that_explain_again_count_for_their_images_only(clock):
    settings = {"estimators": ["vg_abs"], "scores": ["A", "max_sensitivity"]}
    few = estimating.estimate_case(case_of(64, **settings, score_images=4), seconds=1e9)
    more = estimating.estimate_case(case_of(64, **settings, score_images=12), seconds=1e9)
    plan = make_plan(**settings)
    assert more.seconds - few.seconds == pytest.approx(8 * plan.explained_again.gradients)
    assert plan.explained_again.gradients > 0


def test_an_image_that_does_not_end_in_time_makes_a_lower_bound():
    found = estimating.estimate_case(case_of(100), seconds=-1)
    assert found.longer
    assert "more than" in str(found)
    assert found.stages[0].passes["gradients"] == 100 * 216


def test_disk_is_what_the_evaluation_leaves(tmp_path):
    options = {"settings": fpa.Settings(ig_steps=3, sg_samples=2)}
    found = estimating.estimate_case(case_of(200, **options))
    carry_out(case_of(200, **options), tmp_path, progress=False)
    left = sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    assert found.disk == pytest.approx(left, rel=0.25)


def test_blocks_that_are_there_take_no_more_time(tmp_path):
    options = {"estimators": ["vg_abs", "vgx_sum"], "points": 3}
    carry_out(case_of(40, **options), tmp_path, progress=False)
    found = estimating.estimate_case(case_of(40, **options), tmp_path)
    assert found.seconds == 0
    assert sum(found.stages[0].passes.values()) == 0
    assert found.disk > 0


def test_an_evaluation_after_an_estimate_has_the_same_numbers():
    net = network()
    options = {"settings": fpa.Settings(ig_steps=5, sg_samples=3), "progress": False}
    engine = fpa.Engine(net)
    fpa.estimate(fpa.evaluate, engine, images(12), **options)
    after = fpa.evaluate(engine, images(12), **options)
    fresh = fpa.evaluate(net, images(12), **options)
    for name, fidelity in fresh.fidelity.items():
        assert after.fidelity[name].area == fidelity.area


def test_a_judge_perturbs_and_the_model_explains(clock):
    options = {"estimators": ["ig_sum"], "settings": fpa.Settings(ig_steps=3), "points": 5}
    case = prepare(network(), images(32), make_plan(**options), EvaluateOptions(), judge=network())
    passes = estimating.estimate_case(case, seconds=1e9).stages[0].passes
    assert passes["gradients"] == 32 * 3
    assert passes["forwards"] == 32 * (2 * 3 + 1)


def test_a_stream_loses_no_image_by_an_estimate():
    batches = iter([images(8), images(8)])
    result = None
    case = prepare(network(), batches, make_plan(["vg_abs", "vgx_sum"], points=3), EvaluateOptions())
    estimating.estimate_case(case)
    result = carry_out(case, None, progress=False)
    assert len(result.evaluation.indices) == 16


def test_several_processes_share_whole_blocks():
    estimate = Estimate((Stage("evaluation", 80.0, once=4.0, shares=10),), "cpu")
    assert [estimate.seconds_with(n) for n in (1, 2, 8, 10, 64)] == [84, 44, 20, 12, 12]


def test_other_functions_have_no_estimate():
    with pytest.raises(
        fpa.InputError, match=r"fpa.evaluate, fpa.audit, fpa.finetune, fpa.run_study; got 'sleep'"
    ):
        fpa.estimate(time.sleep, 1)
