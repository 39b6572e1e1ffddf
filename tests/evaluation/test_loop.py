"""The block loop: resumable, exact, and honest about what it leaves out."""

import copy
import dataclasses
import json
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fpa.data.source import image_source
from fpa.engine.engine import Engine
from fpa.errors import DamagedError, InputError
from fpa.evaluation import computing, loop, shards
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.plan import make_plan
from fpa.explanation import Settings, explain
from fpa.masking import Constant, Uniform
from fpa.perturbation.curves import perturbation_curves
from fpa.progress import Display, Tell
from fpa.show.words import clause

FEW = Settings(ig_steps=3, sg_samples=2)


def some(count=10, size=6, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 4)).eval()


def read_evaluation(folder):
    return shards.read_evaluation(folder)[0]


def run(net, data, folder, *, block=4, progress=False, estimators="paper", **changes):
    plan = make_plan(estimators, **{"settings": FEW, "points": 5, **changes})
    subject = SubjectFacts(name="net", classes=("a", "b", "c", "d"))
    evaluate_blocks(
        Engine.of(net), image_source(data), plan, folder, subject=subject, block_size=block, progress=progress
    )
    return read_evaluation(folder)


def same(one, two):
    for name in ("fractions", "indices", "labels", "targets", "unmasked"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert list(one.mif) == list(two.mif)
    for name in one.mif:
        assert np.array_equal(one.mif[name], two.mif[name], equal_nan=True)
        assert np.array_equal(one.lif[name], two.lif[name], equal_nan=True)


def test_it_is_explain_and_perturbation_curves_on_every_image(net, tmp_path):
    """In float64, where no rounding swaps two neighbours of a ranking."""
    net, images, labels = copy.deepcopy(net).double(), some().double(), torch.arange(10) % 4
    how = {"seed": 3, "outputs": ["logit", "probability"], "masking": Uniform()}
    found = run(net, (images, labels), tmp_path, **how)
    maps = explain(net, images, settings=FEW, seed=3, masking=Uniform())
    curves = perturbation_curves(net, images, maps, points=5, labels=labels, **how)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        "blocks/block-000000.parquet",
        "blocks/block-000001.parquet",
        "blocks/block-000002.parquet",
        "blocks/scores-000000.parquet",
        "blocks/scores-000001.parquet",
        "blocks/scores-000002.parquet",
        "evaluation.json",
    ]
    assert list(found.mif) == list(maps)
    assert found.labels.tolist() == labels.tolist()
    assert found.indices.tolist() == list(range(10))
    assert found.complete
    assert found.fractions.tolist() == curves.fractions.tolist()
    other, expected = found.others["probability"], curves.others["probability"]
    for stored, computed in ((found, curves), (other, expected)):
        np.testing.assert_allclose(stored.unmasked, computed.unmasked, rtol=1e-9)
        for name in maps:
            np.testing.assert_allclose(stored.mif[name], computed.mif[name], rtol=1e-9, err_msg=name)
            np.testing.assert_allclose(stored.lif[name], computed.lif[name], rtol=1e-9, err_msg=name)


def test_accuracy_does_not_depend_on_who_else_is_in_the_block(net, tmp_path):
    images, labels = some(4), torch.tensor([0, 0, 0, -1])
    found = [
        run(
            net,
            (images, labels),
            tmp_path / str(block),
            block=block,
            estimators=["random"],
            outputs=["logit", "accuracy"],
        )
        for block in (4, 2, 1)
    ]
    for one in found[1:]:
        assert one.others["accuracy"].unmasked.tolist() == found[0].others["accuracy"].unmasked.tolist()


def test_the_mean_sorted_scores_come_along(net, tmp_path):
    images = some()
    images[3, 0, 0, 0] = torch.nan
    with pytest.warns(UserWarning, match="left out"):
        found = run(net, images, tmp_path, estimators=["vg_abs", "random"])
    kept = [index for index in range(10) if index != 3]
    maps = explain(net, images[kept], ["vg_abs"], indices=kept)["vg_abs"]
    expected = torch.stack([map_.flatten().sort().values for map_ in maps]).double().mean(0)
    np.testing.assert_allclose(found.importance["vg_abs"], expected, rtol=1e-4)


def test_an_interrupted_run_goes_on_and_equals_an_uninterrupted_one(net, tmp_path, monkeypatch):
    whole = run(net, some(), tmp_path / "whole")
    real, calls = computing.curves_of, []

    def interrupted(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(computing, "curves_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(net, some(), tmp_path / "part")
    assert [path.name for path in (tmp_path / "part").rglob("block-*")] == ["block-000000.parquet"]
    half = read_evaluation(tmp_path / "part")
    assert not half.complete
    assert len(half.unmasked) == 4
    same(run(net, some(), tmp_path / "part"), whole)
    assert len(calls) == 2 + 2  # the first block was not computed again
    assert read_evaluation(tmp_path / "part").complete


def test_a_complete_run_is_only_read(net, tmp_path, monkeypatch):
    whole = run(net, some(), tmp_path)
    monkeypatch.setattr(computing, "curves_of", None)
    same(run(net, some(), tmp_path, block=None), whole)


def test_images_that_changed_after_the_first_are_noticed(net, tmp_path):
    whole = run(net, some(), tmp_path, estimators="vg_abs")
    for place in (1, 9):
        images = some()
        images[place] += 1e-3 * some(seed=1)[place]
        with pytest.raises(InputError, match="holds an evaluation of other images"):
            run(net, images, tmp_path, estimators="vg_abs")
    same(run(net, some(), tmp_path, estimators="vg_abs"), whole)


def test_labels_may_become_known_later(net, tmp_path, monkeypatch):
    labels = torch.arange(10) % 4
    unknown = run(net, some(), tmp_path, estimators="vg_abs")
    assert (unknown.labels == -1).all()
    monkeypatch.setattr(computing, "curves_of", None)  # nothing is computed again
    known = run(net, (some(), labels), tmp_path, estimators="vg_abs")
    assert known.labels.tolist() == labels.tolist()
    same(dataclasses.replace(known, labels=unknown.labels), unknown)
    same(read_evaluation(tmp_path), known)
    with pytest.raises(InputError, match=r"labels must be in 0..3; 9 of image 0"):
        run(net, (some(), labels + 9), tmp_path, estimators="vg_abs")


def test_accuracy_follows_the_labels_of_a_resumed_run(net, tmp_path):
    asked = {"estimators": ["random"], "outputs": ["logit", "accuracy"]}
    labels = torch.arange(10) % 4
    run(net, some(), tmp_path / "resumed", **asked)
    resumed = run(net, (some(), labels), tmp_path / "resumed", **asked)
    fresh = run(net, (some(), labels), tmp_path / "fresh", **asked)
    same(resumed.others["accuracy"], fresh.others["accuracy"])


def test_loaders_of_any_batch_size_give_the_same(net, tmp_path):
    data = TensorDataset(some(), torch.arange(10) % 4)
    whole = run(net, (some(), torch.arange(10) % 4), tmp_path / "whole")
    for size in (1, 3, 10):
        same(run(net, DataLoader(data, batch_size=size), tmp_path / str(size)), whole)


def test_images_keep_their_numbers(net, tmp_path):
    """The noise of image 7 is that of image 7 also in a subset."""
    chosen = [7, 2, 5]
    whole = run(net, some(), tmp_path / "whole", estimators=["random", "sg_abs"])
    part = run(
        net,
        [(some()[chosen], torch.zeros(3).long(), torch.tensor(chosen))],
        tmp_path / "part",
        estimators=["random", "sg_abs"],
    )
    assert part.indices.tolist() == chosen
    np.testing.assert_allclose(part.mif["random"], whole.mif["random"][chosen], rtol=1e-4, atol=1e-5)


def test_what_is_not_finite_is_named_counted_and_left_out(net, tmp_path):
    images = some()
    images[5, 0, 0, 0] = float("nan")

    def broken(model, rows, targets):
        return torch.where(rows[:, :1] == images[2, :1], float("inf"), rows)

    names = {"vg_abs": "vg_abs", "mine": broken}
    with pytest.warns(UserWarning, match="left out") as told:
        found = run(net, images, tmp_path, estimators=names)
    assert len(told) == 2
    assert all(clause(note) in str(each.message) for note, each in zip(found.left_out, told, strict=True))
    assert {name: found.fidelity(name).non_finite for name in names} == {"vg_abs": 1, "mine": 2}
    assert [note.values for note in found.left_out] == [
        {"what": "map", "estimator": "mine", "count": 1, "images": [2]},
        {"what": "image", "estimator": "", "count": 1, "images": [5]},
    ]
    clean = run(net, some(), tmp_path / "clean", estimators=["vg_abs"])
    good = [row for row in range(10) if row != 5]
    np.testing.assert_allclose(found.mif["vg_abs"][good], clean.mif["vg_abs"][good], rtol=1e-4, atol=1e-5)


def test_unmasked_logits_that_are_not_positive_are_counted(tmp_path):
    class Total(nn.Module):
        def forward(self, x):
            return x.sum((1, 2, 3), keepdim=True)[:, :, 0, 0]

    images = torch.ones(5, 1, 2, 2)
    images[1], images[3] = -1, 0
    assert run(Total(), images, tmp_path, estimators="vg_abs").fidelity("vg_abs").non_positive == 2


def test_patches_of_unequal_size_keep_their_shares(net, tmp_path):
    found = run(net, some(), tmp_path, estimators="vg_abs", features=4)
    assert found.shares_mif["vg_abs"].shape == (10, 5)
    assert (np.diff(found.shares_mif["vg_abs"], axis=1) > 0).all()


def test_the_area_of_patches_of_unequal_size_is_over_the_pixels_removed(tmp_path):
    """Images of ones, 3 x 3, in patches of 2: 4, 2, 2 and 1 pixels, and a model that adds the pixels up.

    The logit is then the share of pixels left, so every curve is the line from 1 to 0, whatever the map,
    and both areas are exactly a half.
    """

    class Total(nn.Module):
        def forward(self, x):
            return x.sum((1, 2, 3), keepdim=True)[:, :, 0, 0]

    images, maps = torch.ones(2, 1, 3, 3), torch.arange(18.0).view(2, 3, 3)
    found = run(Total(), images, tmp_path, estimators={"mine": maps}, features=2)
    area = found.fidelity("mine")
    np.testing.assert_allclose(found.mif["mine"][0] / 9, [1, 8 / 9, 6 / 9, 4 / 9, 0], rtol=1e-6)
    np.testing.assert_allclose([*area.mif_areas, *area.lif_areas], 50, rtol=1e-6)


@pytest.mark.parametrize("fractions", [[0, 0.97, 1], [0, 0.5, 1], [0, 0.3, 0.9, 1]])
@pytest.mark.parametrize("features", ["pixels", 2])
def test_curves_under_a_masking_that_cannot_remove_everything_end_where_it_can(tmp_path, fractions, features):
    """As if the plan's own masking were that one, whichever fractions the plan has."""
    torch.manual_seed(0)
    net, images = nn.Sequential(nn.Flatten(), nn.Linear(3 * 81, 4)).eval(), some(4, size=9)
    how = {"estimators": ["vg_abs"], "points": 5, "features": features}
    found = run(net, images, tmp_path / "a", fractions=fractions, maskings={"imputed": "road"}, **how)
    shares = [*(each for each in fractions if each < 0.95), 0.95]
    alone = run(net, images, tmp_path / "b", fractions=shares, masking="road", **how)
    same(found.under["imputed"], alone)
    assert found.under["imputed"].fidelity("vg_abs").area == alone.fidelity("vg_abs").area


def test_progress_lines_for_logs(net, tmp_path, capsys):
    run(net, some(), tmp_path, estimators="vg_abs", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith("evaluation: 10 of 10 images, ")
    assert lines[-2].endswith("images/s")
    assert "peak memory" in lines[-1]


class AtOnce:
    """An executor whose work is done when it is handed over."""

    def __init__(self, workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, work, *arguments):
        future = Future()
        future.set_result(work(*arguments))
        return future


def test_a_stored_block_counts_while_the_next_one_is_computed(net, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_AHEAD", {"cpu": 1})  # as on CUDA
    monkeypatch.setattr(loop, "ThreadPoolExecutor", AtOnce)
    tell, counted = Tell(Display(quiet=True), "curves", 10), set()
    monkeypatch.setattr(tell, "at", lambda name: counted.add((name, tell.done)))
    run(net, some(), tmp_path, estimators="vg_abs", progress=tell)
    assert {done for name, done in counted if name == "VG_abs"} == {0, 4, 8}


def test_a_block_that_cannot_be_stored_ends_the_evaluation(net, tmp_path, monkeypatch):
    """Also if that is known while the engine computes the next one: no batch was too large."""
    tell, waiting = Tell(Display(quiet=True), "curves", 10), []

    class Later(Future):
        def result(self, timeout=None):
            finish()
            return super().result(timeout)

    class WhileComputing(AtOnce):
        def submit(self, work, *arguments):
            waiting.append((Later(), work, arguments))
            return waiting[-1][0]

    def finish(name=""):
        for future, work, arguments in waiting:
            try:
                future.set_result(work(*arguments))
            except MemoryError as error:
                future.set_exception(error)
        waiting.clear()

    def full(self, number, block, description, **named):
        if number == 1:
            raise MemoryError("no room for the columns")
        usual(self, number, block, description, **named)

    usual = shards.EvaluationFolder.write
    monkeypatch.setattr(shards.EvaluationFolder, "write", full)
    monkeypatch.setattr(loop, "_AHEAD", {"cpu": 1})  # as on CUDA
    monkeypatch.setattr(loop, "ThreadPoolExecutor", WhileComputing)
    monkeypatch.setattr(tell, "at", finish)
    with pytest.raises(MemoryError, match="no room for the columns"):
        run(net, some(), tmp_path, estimators="vg_abs", progress=tell)


def test_another_evaluation_in_the_folder_is_not_mixed_in(net, tmp_path):
    run(net, some(), tmp_path, estimators="ig_sum")
    for changes, message in [
        ({"seed": 1}, r"other seed \(seed: 0 -> 1\): choose another folder"),
        ({"estimators": "vg_sum"}, "other estimators"),
        ({"masking": Constant(1.0)}, "other masking"),
        ({"settings": Settings()}, r"other estimators \(steps of ig_sum: 3 -> 200\)"),
        ({"points": 4}, "other fractions"),
        ({"block": 5}, "holds blocks of 4 images, not 5"),
    ]:
        with pytest.raises(InputError, match=message):
            run(net, some(), tmp_path, **{"estimators": "ig_sum", **changes})
    other = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    with pytest.raises(InputError, match="other model"):
        run(other, some(), tmp_path, estimators="ig_sum")
    with pytest.raises(InputError, match="made from other images"):
        run(net, [(some(), torch.zeros(10).long(), torch.arange(1, 11))], tmp_path, estimators="ig_sum")
    with pytest.raises(InputError, match="more images than the 4 given now"):
        run(net, some()[:4], tmp_path, estimators="ig_sum")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there are no images: the loader yields nothing"),
        (torch.zeros(0, 3, 6, 6), "there are no images"),
        ([{"picture": 1}], "has no images: expected one of image"),
        ([(some(2), torch.zeros(3))], r"labels must be whole numbers \[2\]"),
        ((some(2), torch.tensor([0, 9])), r"labels must be in 0..3; 9 of image 1"),
        (torch.zeros(2, 3, 6, 6, 1), r"images must be \[N, C, H, W\]"),
    ],
)
def test_bad_data(net, tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        run(net, data, tmp_path)


def test_bad_choices_come_before_the_work(net, tmp_path):
    for changes, message in [
        ({"block": 0}, "images in a block must be at least 1, got 0"),
        ({"outputs": ["x"]}, "unknown output"),
        ({"fractions": [2]}, "fractions must be in"),
        ({"features": 99}, "patch size"),
    ]:
        with pytest.raises(InputError, match=message):
            run(net, some(2), tmp_path, **changes)
    with pytest.raises(InputError, match="holds no evaluation"):
        read_evaluation(tmp_path / "nothing")


def test_a_flipped_bit_of_a_block_is_found_or_changes_nothing(net, tmp_path):
    def parts():
        found = read_evaluation(tmp_path)
        return vars(found) | {"others": {name: vars(each) for name, each in found.others.items()}}

    run(net, some(), tmp_path)
    good = parts()
    shard = tmp_path / "blocks/block-000000.parquet"
    content = shard.read_bytes()
    found = 0
    for place in range(10, len(content), len(content) // 150):
        shard.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            again = parts()
        except DamagedError:
            found += 1
        else:
            np.testing.assert_equal(again, good)
    assert found > 50


def test_a_block_of_another_evaluation_is_named(net, tmp_path):
    for folder, points in (("one", 5), ("two", 7)):
        run(net, some(), tmp_path / folder, points=points, block=4)
    (tmp_path / "two/blocks/block-000001.parquet").replace(tmp_path / "one/blocks/block-000001.parquet")
    with pytest.raises(
        InputError, match=r"one/blocks/block-000001.parquet does not belong here \(it is a block of another"
    ):
        read_evaluation(tmp_path / "one")


def test_the_manifest_says_what_was_asked(net, tmp_path):
    run(net, some(), tmp_path, estimators="ig_sum", seed=4)
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert stored["images"] == 10
    assert stored["plan"]["seed"] == 4
    assert stored["plan"]["estimators"]["ig_sum"]["raw"]["steps"] == 3
    assert stored["plan"]["masking"] == {"name": "constant", "value": 0.0}


def test_the_batch_size_moves_no_area_by_a_hundredth(tmp_path):
    """Maps and logits differ by rounding; A, in percent, by less than 0.01."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 7 * 7, 4))
    areas = []
    for batch in (3, 64):
        found = run(Engine(model, batch_size=batch), some(40, 16), tmp_path / str(batch), points=21, block=16)
        used = found.unmasked > 0.1
        gaps = {
            name: (found.lif[name] - found.mif[name])[used] / found.unmasked[used, None] for name in found.mif
        }
        areas.append([100 * np.trapezoid(gap, found.fractions, axis=1).mean() for gap in gaps.values()])
    assert np.abs(np.subtract(*areas)).max() < 0.01
    assert np.abs(areas[0]).max() > 1
