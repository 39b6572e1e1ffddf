"""What is in the folder of an evaluation is continued, made again, or refused: never mixed up."""

import json
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.evaluation.differences import plan_differences
from fpa.files import read_json

NAMES = ["vg_abs", "ig_sum"]
QUICK = {"settings": fpa.Settings(ig_steps=2, sg_samples=2), "points": 3, "examples": 2, "progress": False}
IMAGES = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()


def test_a_block_without_its_scores_is_made_again(net, tmp_path):
    first = fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)
    for damage in ("missing", "garbage"):
        path = tmp_path / "blocks/scores-000000.parquet"
        if damage == "garbage":
            path.write_bytes(b"garbage")
            with pytest.raises(fpa.InputError, match=r"scores-000000.parquet is damaged .*: remove it"):
                fpa.load_result(tmp_path)
        path.unlink()
        again = fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)
        before, after = (each.evaluation.values["A"]["ig_sum"] for each in (first, again))
        assert np.array_equal(before, after, equal_nan=True)


@pytest.mark.parametrize("damage", ["lost", "not JSON", "one letter"])
def test_good_blocks_outlive_their_description(net, tmp_path, monkeypatch, damage):
    first = fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)
    path = tmp_path / "evaluation.json"
    content = path.read_text()
    path.write_text({"lost": "", "not JSON": "{"}.get(damage, content.replace("vg_abs", "vh_abs", 1)))
    if damage != "lost":
        with pytest.raises(fpa.InputError, match=r"evaluation.json is damaged") as error:
            fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)
        assert "parquet" not in str(error.value)
    path.unlink()
    with pytest.raises(fpa.InputError, match=r"block-000000.parquet does not belong here \(no eval"):
        fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, seed=1, **QUICK)  # they are of another plan
    monkeypatch.setattr("fpa.evaluation.computing.curves_of", None)  # nothing is computed again
    again = fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)
    before, after = (each.evaluation.values["A"]["ig_sum"] for each in (first, again))
    assert np.array_equal(before, after, equal_nan=True)
    assert read_json(path)["plan"] == first.plan


def test_a_saved_result_is_no_evaluation_to_continue(net, tmp_path):
    fpa.evaluate(net, IMAGES, NAMES, **QUICK).save(tmp_path)
    with pytest.raises(fpa.InputError, match=r"was written by Result.save and cannot be continued"):
        fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK)


def test_examples_follow_labels_and_number(net, tmp_path):
    for label, count in ((0, 2), (1, 2), (1, 3)):
        data = IMAGES, torch.full((40,), label)
        result = fpa.evaluate(net, data, NAMES, folder=tmp_path, **QUICK | {"examples": count})
        assert result.examples.labels.tolist() == [label] * count
        assert set(result.evaluation.labels) == {label}


@pytest.mark.parametrize("fractions", [[0.5, 1.0], [0.0]])
def test_fractions_that_could_not_be_scored_are_refused_before_any_work(net, fractions):
    with pytest.raises(fpa.InputError, match="fractions must be two or more and begin with 0"):
        fpa.evaluate(net, IMAGES, NAMES, fractions=fractions, **QUICK)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"points": 2}, "points must be at least 3, got 2"),
        ({"fractions": [0.0, 1.0]}, r"fractions must have one between 0 and 1.* got \[0.0, 1.0\]"),
        ({"features": 8, "points": 5}, "removes none or all of them.* use smaller features"),
        ({"fractions": [0.0, 0.001, 1.0]}, "0, 0.1, 100 % of 64 features removes none or all of them"),
    ],
)
def test_curves_on_which_all_maps_score_the_same_are_refused_before_any_work(net, how, message, tmp_path):
    with pytest.raises(fpa.InputError, match=message):
        fpa.evaluate(net, IMAGES, NAMES, folder=tmp_path, **QUICK | how)
    assert not list(tmp_path.glob("blocks/*"))


def test_an_engine_has_its_own_precision(net):
    with pytest.raises(fpa.InputError, match=r"the engine works in .*float32.*: leave out precision"):
        fpa.evaluate(fpa.Engine(net), IMAGES, NAMES, precision="bfloat16", **QUICK)


def test_maskings_of_one_name_differ_by_their_parameters(net, tmp_path):
    maskings = [{"name": "blur", "sigma": 1}, {"name": "blur", "sigma": 2}]
    settings = fpa.Settings(ig_steps=2, sg_samples=2, reference=torch.zeros(3, 1, 1))
    audit = fpa.audit(net, IMAGES, maskings=maskings, settings=settings, points=3, progress=False)
    assert audit.maskings == ("blur sigma=1", "blur sigma=2")
    audit.save(tmp_path / "audit.json")


def test_flipped_bits_of_every_file_are_found_or_change_nothing(net, tmp_path):
    whole = fpa.evaluate(net, IMAGES[:8], NAMES, folder=tmp_path, **QUICK)
    chance, found = random.Random(0), 0
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        before = path.read_bytes()
        for place in chance.sample(range(len(before)), 12):
            content = bytearray(before)
            content[place] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            try:
                again = fpa.load_result(tmp_path)
            except fpa.InputError as error:
                assert path.name in str(error)  # noqa: PT017
                found += 1
                continue
            assert again.about == whole.about
            for name in NAMES:
                assert np.array_equal(again.evaluation.mif[name], whole.evaluation.mif[name])
                assert np.array_equal(again.examples.maps[name], whole.examples.maps[name])
        path.write_bytes(before)
    assert found > 20


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_evaluations_leave_nothing_open(net):
    def opened():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    fpa.evaluate(net, IMAGES[:4], NAMES, **QUICK)
    before = opened()
    for _ in range(5):
        fpa.evaluate(net, IMAGES[:4], NAMES, **QUICK)
    assert opened() == before


def test_plans_that_differ_are_compared_in_one_readable_line():
    """Against the plans themselves: every field that differs is named, and none that does not."""
    engine = fpa.Engine(fpa.load_model("shapes-fpa"))

    def plan(estimators="paper", **settings):
        return json.loads(json.dumps(fpa.make_plan(estimators, **settings).to_json(engine)))

    usual = plan()
    for other, said in (
        (plan(settings=fpa.Settings(ig_steps=5)), "steps of ig_sum, ig_abs: 200 -> 5"),
        (plan(points=5), "fractions: 21 values -> 5 values"),
        (plan(seed=3, targets="label"), "seed: 0 -> 3; targets: none -> label"),
        (plan(["vg_abs"]), "estimators: without random, ig_sum, ig_abs and 6 more"),
        (plan(scores=["deletion"]), "scores: with deletion"),
    ):
        assert plan_differences(usual, other) == said
    assert plan_differences(usual, plan()) == ""
    everything = plan(["vg_sum", "sg_sum"], masking="blur", points=7, seed=9, features=4, outputs=["margin"])
    assert len(plan_differences(usual, everything)) <= 310
