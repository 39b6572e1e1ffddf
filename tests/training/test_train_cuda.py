"""The captured step on CUDA: the same training as the eager one, with live schedule and fresh masks."""

import pytest
import torch
from safetensors.torch import load_file

from fpa.study.recipe import load_recipe
from fpa.study.trainings import load_recipe_data, recipe_jobs, train
from fpa.training.run import Run, TrainingError
from fpa.training.steps import CapturedSteps, EagerSteps
from fpa.training.trainer import Trainer
from miniatures import write_class_folder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NAMES = ["none", "rectangle", "fpa"]


def recipe(**changes):
    fields = {"training.precision": "float32", "training.checkpoint_seconds": 1e9}
    return load_recipe("tiny", fields | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="module")
def data():
    return load_recipe_data(recipe())


def steps_of(data, tmp_path, names, captured, count, **changes):
    trainer = Trainer(recipe(**changes).training, "cuda")
    runs = [Run(job, data, trainer) for job in recipe_jobs(recipe(**changes), tmp_path, data, names)]
    steps = CapturedSteps(runs, trainer) if captured else EagerSteps(runs, trainer)
    for run in runs:
        run.start_epoch()
    for _ in range(count):
        steps()
    torch.cuda.synchronize()
    return runs


def test_captured_equals_eager_within_rounding(data, tmp_path):
    captured = steps_of(data, tmp_path, NAMES, True, 4)
    eager = steps_of(data, tmp_path, NAMES, False, 4, training__compile=False)
    for one, two in zip(captured, eager, strict=True):
        torch.testing.assert_close(one.totals, two.totals, rtol=1e-2, atol=2)
        for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


def test_together_equals_alone_within_rounding(data, tmp_path):
    together = steps_of(data, tmp_path, NAMES, True, 4)
    for index, name in enumerate(NAMES):
        (alone,) = steps_of(data, tmp_path, [name], True, 4)
        for a, b in zip(together[index].model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


def test_the_schedule_reaches_a_captured_step(data, tmp_path):
    (run,) = steps_of(data, tmp_path, ["none"], True, 2)
    trainer = Trainer(recipe().training, "cuda")
    (job,) = recipe_jobs(recipe(), tmp_path, data, ["none"])
    run = Run(job, data, trainer)
    steps = CapturedSteps([run], trainer)
    run.start_epoch()
    steps()
    for group in run.optimizer.param_groups:
        group["lr"].fill_(0.0)
    before = [p.clone() for p in run.model.parameters()]
    steps()
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


def test_replays_draw_fresh_masks_coins_and_crops(data, tmp_path):
    trainer = Trainer(recipe().training, "cuda")
    (job,) = recipe_jobs(recipe(), tmp_path, data, ["fpa"])
    run = Run(job, data, trainer)
    masked = torch.zeros(1, device="cuda")
    mask = torch.zeros(32, 32, 32, dtype=torch.bool, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(run.draws)
    shape = (32, 32, 32)
    run.job.augment.mask_of(run.job.augment.draw(shape, "cuda", run.draws), shape)
    with torch.cuda.graph(graph):
        mask.copy_(run.job.augment.mask_of(run.job.augment.draw(shape, "cuda", run.draws), shape))
        masked.copy_(mask.float().mean())
    shares, masks = [], []
    for _ in range(200):
        graph.replay()
        shares.append(masked.item())
        masks.append(mask.cpu().clone())
    perturbed = [share for share in shares if share > 0]
    assert 60 < len(perturbed) < 140
    assert len(set(perturbed)) > 0.9 * len(perturbed)
    nonempty = [m for m, share in zip(masks, shares, strict=True) if share > 0]
    assert not any(torch.equal(a, b) for i, a in enumerate(nonempty) for b in nonempty[:i])


def test_the_warm_up_leaves_no_trace(data, tmp_path):
    trainer = Trainer(recipe().training, "cuda")
    (job,) = recipe_jobs(recipe(), tmp_path, data, ["fpa"])
    run = Run(job, data, trainer)
    before = {name: value.clone() for name, value in run.tensors().items()}
    random = run.draws.get_state()
    CapturedSteps([run], trainer)
    assert all(torch.equal(before[name], value) for name, value in run.tensors().items())
    assert torch.equal(random, run.draws.get_state())


@pytest.mark.parametrize("model", ["resnet-small", "mobilenet_v2"])  # without and with dropout
def test_stopped_and_continued_bit_for_bit(model, data, tmp_path, monkeypatch):
    whole = recipe(training__checkpoint_seconds=0.0, model=model, training__precision="auto")
    train(whole, tmp_path / "whole", data=data, device="cuda")
    calls = iter(range(100))
    usual = CapturedSteps.__call__

    def stops(self):
        if next(calls) == 13:
            raise KeyboardInterrupt
        usual(self)

    monkeypatch.setattr(CapturedSteps, "__call__", stops)
    monkeypatch.setattr("fpa.training.trainer.PATIENCE", {"cuda": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train(whole, tmp_path / "cut", data=data, device="cuda")
    monkeypatch.undo()
    assert (tmp_path / "cut" / "fpa" / "checkpoint.safetensors").exists()
    train(whole, tmp_path / "cut", data=data, device="cuda")
    for name in NAMES:
        one, two = (load_file(tmp_path / folder / name / "model.safetensors") for folder in ("whole", "cut"))
        assert all(torch.equal(value, two[key]) for key, value in one.items())


def test_an_epoch_of_one_step(tmp_path):
    short = recipe(data__train_images=40)
    train(short, tmp_path, variants=["fpa"], data=load_recipe_data(short), device="cuda")
    assert len(tmp_path.joinpath("fpa", "training.csv").read_text().splitlines()) == 1 + short.training.epochs


def test_a_loss_that_is_not_a_number_is_noticed(data, tmp_path):
    wild = recipe(training__learning_rate=1e18, training__milestones=[])
    with pytest.raises(TrainingError, match="not finite at step"):
        train(wild, tmp_path, variants=["none"], data=data, device="cuda")


class TestFiles:
    """Training on JPEG files: worker processes decode and a thread pins memory while the step is captured."""

    @pytest.fixture(scope="class")
    def photos(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("photos")
        for number, split in enumerate(("train", "val")):
            write_class_folder(folder / split, ["cat", "dog"], 24, seed=number)
        return folder

    def recipe(self, photos, **changes):
        return recipe(data__name=f"folder:{photos}", data__size=32, training__batch_size=16, **changes)

    def train(self, photos, output, workers=0, variants=None, **changes):
        chosen = self.recipe(photos, data__workers=workers, **changes)
        train(chosen, output, variants=variants, data=load_recipe_data(chosen), device="cuda")
        return {path.parent.name: load_file(path) for path in output.glob("*/model.safetensors")}

    @pytest.mark.parametrize("workers", [0, 1, 16])
    def test_the_step_is_captured_and_the_number_of_workers_changes_nothing(self, photos, workers, tmp_path):
        models = self.train(photos, tmp_path / "one", workers)
        others = self.train(photos, tmp_path / "two", 2)
        assert sorted(models) == sorted(NAMES)
        for name, tensors in models.items():
            assert all(torch.equal(value, others[name][key]) for key, value in tensors.items())
