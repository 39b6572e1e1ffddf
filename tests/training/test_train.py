"""Training: against a plain loop, through kills, with bad input."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from fpa import InputError, load_model
from fpa.data.crops import crop_and_flip
from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit
from fpa.models.architectures import build_model
from fpa.models.saved import read_card
from fpa.seeds import Stream, derive
from fpa.study.recipe import Variant, load_recipe
from fpa.study.trainings import load_recipe_data, make_augment, train
from fpa.training.batches import ArrayBatches, training_batches
from fpa.training.run import TrainingError
from fpa.training.settings import TrainingSettings
from fpa.training.trainer import Trainer, accuracy, train_jobs
from training.several_processes import plain_job, tuned_by_itself

TINY = load_recipe("tiny")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    return load_recipe_data(TINY)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, train(TINY, folder, data=data, device="cpu")


def weights(folder, name="fpa"):
    return load_file(Path(folder) / name / "model.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_leaves_a_model_and_a_history_for_every_augmentation(trained, data):
    folder, runs = trained
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        f"{name}/{file}"
        for name in ("fpa", "none", "rectangle")
        for file in ("model.safetensors", "training.csv")
    ]
    for run in runs:
        model = load_model(run.path)
        assert model.card.augmentation == run.name
        assert accuracy(model, data, CPU) == model.card.accuracy == run.accuracy
        lines = (run.path.parent / "training.csv").read_text().splitlines()
        assert lines[0].startswith("epoch,learning_rate,loss,accuracy,test_accuracy,")
        assert [line.split(",")[:2] for line in lines[1:]] == [["1", "0.05"], ["2", "0.05"], ["3", "0.005"]]
    assert not same(weights(folder, "fpa"), weights(folder, "none"))
    assert not same(weights(folder, "fpa"), weights(folder, "rectangle"))


@pytest.mark.parametrize("name", ["none", "rectangle", "fpa"])
def test_equals_a_plain_loop(trained, data, name):
    """The optimiser, the schedule and the perturbation written down once more with PyTorch's own parts."""
    model = build_model("resnet-small", 8, (3, 32, 32), derive(0, Stream.INITIAL)).train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2])
    augment = make_augment(TINY, Variant(name), data.normalisation)
    batches = ArrayBatches(data.train, data, 32, 0)
    for epoch in range(3):
        batches.start(epoch, 0)
        draws = torch.Generator().manual_seed(derive(0, Stream.AUGMENT, epoch))
        for _ in range(256 // 32):
            images, labels = batches.batch(draws)
            images = images.float() / 255 * 2 - 1
            if augment is not None:
                mask = augment.mask_of(augment.draw((32, 32, 32), "cpu", draws), (32, 32, 32))
                images = images * ~mask[:, None]
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        schedule.step()
    for key, value in weights(trained[0], name).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=1e-4, atol=1e-5)


def test_running_again_changes_nothing(trained, data):
    folder, runs = trained
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert train(TINY, folder, data=data, device="cpu") == runs
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_killed_at_any_moment_it_ends_with_the_same_weights(trained, data, tmp_path):
    command = [sys.executable, "-m", "fpa", "train", "tiny", "--augment", "fpa", "--device", "cpu"]
    command += ["--output", str(tmp_path / "run"), "--quiet"]
    chance = random.Random(0)
    checkpoint, kills = tmp_path / "run" / "fpa" / "checkpoint.safetensors", 0
    while kills < 2:
        process = subprocess.Popen(command)
        seen = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None:  # wait until it has got further than the last time, then a little more
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns > seen:
                time.sleep(chance.random() * 0.2)
                break
            time.sleep(0.005)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 1
    train(TINY, tmp_path / "run", variants=["fpa"], data=data, device="cpu")
    assert same(weights(tmp_path / "run"), weights(trained[0]))
    assert sorted(p.name for p in (tmp_path / "run" / "fpa").iterdir()) == [
        "model.safetensors",
        "training.csv",
    ]


def test_dropout_too_continues_bit_for_bit(data, tmp_path, monkeypatch):
    """A model that draws from the global generator, stopped in the middle of an epoch."""
    recipe = load_recipe("tiny", {"model": "mobilenet_v2", "data.train_images": 32, "training.batch_size": 8})
    recipe.training.epochs = 2
    recipe.training.milestones = []
    few = load_recipe_data(recipe)
    train(recipe, tmp_path / "whole", variants=["fpa"], data=few, device="cpu")
    calls = iter(range(100))

    def stops(self, draws, usual=ArrayBatches.batch):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return usual(self, draws)

    monkeypatch.setattr(ArrayBatches, "batch", stops)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "cut", variants=["fpa"], data=few, device="cpu")
    monkeypatch.undo()
    torch.manual_seed(1234)
    train(recipe, tmp_path / "cut", variants=["fpa"], data=few, device="cpu")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_unfinished_runs_continue_each_with_its_own_random_state(tmp_path):
    """Two runs of a model with dropout, both cut inside an epoch: neither takes the other's state."""
    recipe = load_recipe("tiny", {"model": "mobilenet_v2", "data.train_images": 24, "training.batch_size": 8})
    recipe.training.epochs, recipe.training.milestones = 2, []
    data = load_recipe_data(recipe)
    names = ["none", "fpa"]
    train(recipe, tmp_path / "whole", variants=names, data=data, device="cpu")
    for name in names:
        with pytest.MonkeyPatch.context() as patch:
            calls = iter(range(100))
            usual = ArrayBatches.batch

            def stops(self, draws, calls=calls, usual=usual):
                if next(calls) == 4:
                    raise KeyboardInterrupt
                return usual(self, draws)

            patch.setattr(ArrayBatches, "batch", stops)
            with pytest.raises(KeyboardInterrupt):
                train(recipe, tmp_path / "cut", variants=[name], data=data, device="cpu")
    train(recipe, tmp_path / "cut", variants=names, data=data, device="cpu")
    for name in names:
        assert same(weights(tmp_path / "cut", name), weights(tmp_path / "whole", name))


def test_global_random_state_is_left_alone(data, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    recipe = load_recipe("tiny", {"training.epochs": 1, "training.milestones": []})
    train(recipe, tmp_path, data=data, device="cpu", variants=["none"])
    assert torch.equal(torch.get_rng_state(), before)


def test_newer_switches_of_tf32_are_no_obstacle(data, tmp_path):
    """torch refuses to read its older switches where a user has set the newer ones alone."""
    recipe = load_recipe("tiny", {"training.epochs": 1, "training.milestones": [], "data.train_images": 32})
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        train(recipe, tmp_path, variants=["none"], data=data, device="cpu")
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize(
    ("settings", "scheduler"),
    [
        (
            TrainingSettings(epochs=68, schedule="cosine", learning_rate=0.1),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 68),
        ),
        (
            TrainingSettings(epochs=90, schedule="steps", milestones=[30, 60], learning_rate=0.1),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [30, 60]),
        ),
    ],
)
def test_schedules_equal_pytorchs(settings, scheduler):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], settings.learning_rate)
    schedule = scheduler(optimizer)
    for epoch in range(settings.epochs):
        assert settings.learning_rate_at(epoch) == pytest.approx(
            schedule.get_last_lr()[0], rel=1e-9, abs=1e-12
        )
        optimizer.step()
        schedule.step()


def test_a_loss_that_is_not_a_number_stops_with_the_step_and_keeps_the_checkpoint(data, tmp_path):
    recipe = load_recipe("tiny", {"training.learning_rate": 1e18, "training.milestones": []})
    with pytest.raises(
        TrainingError, match=r"none: the loss was not finite at step \d+ of epoch \d.*checkpoint"
    ):
        train(recipe, tmp_path, variants=["none"], data=data, device="cpu")
    kept = load_file(tmp_path / "none" / "checkpoint.safetensors")
    assert all(value.isfinite().all() for key, value in kept.items() if key.startswith("model."))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Everything that two processes are asked for, in one start of them."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    script = Path(__file__).with_name("several_processes.py")
    result = subprocess.run(
        [*command, str(script), str(folder)], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def one_thread():
    """As many as torchrun gives each process: with others, sums are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestSeveralProcesses:
    def test_without_batch_norms_they_end_with_the_weights_of_one(self, data, two_processes):
        """The mean of the gradients of two halves is the gradient of the batch: only the rounding differs."""
        (alone,) = train_jobs([plain_job()], data, device="cpu")
        together = load_file(two_processes / "plain.safetensors")
        start = plain_job().model().state_dict()
        for key, value in alone.model.state_dict().items():
            torch.testing.assert_close(together[key], value, rtol=1e-5, atol=1e-6)
            assert (value - start[key]).abs().max() > 1e-3  # there was something to get wrong

    def test_a_model_learns_its_own_predictions_as_in_one(self, data, two_processes):
        together, start = (
            load_file(two_processes / "tuned.safetensors"),
            load_model("shapes-none").state_dict(),
        )
        for key, value in tuned_by_itself(data).state_dict().items():
            torch.testing.assert_close(together[key], value, rtol=1e-5, atol=1e-5)
            assert ("running" in key or "tracked" in key) is torch.equal(value, start[key]), key

    def test_with_batch_norms_they_are_a_plain_loop_over_halves(self, data, two_processes, one_thread):
        """Each process normalises its half by itself, the first one's statistics are those that are kept.

        Halving is exact and two numbers have one sum, so this is bit for bit.
        """
        model = build_model("resnet-small", 8, (3, 32, 32), derive(0, Stream.INITIAL)).train()
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])
        augment = make_augment(TINY, Variant("fpa"), data.normalisation)
        batches = ArrayBatches(data.train, data, 32, 0)
        for epoch in range(2):
            batches.start(epoch, 0)
            draws = torch.Generator().manual_seed(derive(0, Stream.AUGMENT, epoch))
            for _ in range(256 // 32):
                images, labels = batches.batch(draws)
                mask = augment.mask_of(augment.draw((32, 32, 32), "cpu", draws), (32, 32, 32))
                images = data.normalisation(images) * ~mask[:, None]
                optimizer.zero_grad()
                for part in (slice(16, 32), slice(16)):
                    kept = {name: value.clone() for name, value in model.named_buffers()}
                    (functional.cross_entropy(model(images[part]), labels[part]) / 2).backward()
                    if part.start:
                        for name, value in model.named_buffers():
                            value.copy_(kept[name])
                optimizer.step()
            schedule.step()
        assert same(weights(two_processes / "whole"), model.state_dict())

    def test_stopped_inside_an_epoch_they_end_with_the_same_weights_and_history(self, two_processes):
        assert same(weights(two_processes / "cut"), weights(two_processes / "whole"))
        rows = [
            [line.rsplit(",", 1)[0] for line in (two_processes / name / "fpa" / "training.csv").open()]
            for name in ("cut", "whole")
        ]
        assert rows[0] == rows[1]  # all columns but the speed
        assert sorted(path.name for path in (two_processes / "cut").iterdir()) == ["fpa"]


def test_the_shares_of_the_processes_are_the_batch():
    data = load_data("shapes")
    whole = training_batches(data, 10, 3, CPU)
    parts = [training_batches(data, 10, 3, CPU, rank=rank, processes=3) for rank in range(3)]
    for batches in (whole, *parts):
        batches.start(1, 5)
    for _ in range(2):
        draws = [torch.Generator().manual_seed(7) for _ in range(4)]
        images, labels = whole.batch(draws[0])
        pieces = [part.batch(draw) for part, draw in zip(parts, draws[1:], strict=True)]
        assert torch.equal(images, torch.cat([piece[0] for piece in pieces]))
        assert torch.equal(labels, torch.cat([piece[1] for piece in pieces]))


def test_every_epoch_shows_every_image_once_in_a_new_order():
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 4, 4)
    data = load_data("shapes")
    split = ArraySplit(images, torch.arange(20))
    batches = ArrayBatches(split, data, 5, 0)
    orders = []
    for epoch in range(2):
        batches.start(epoch, 0)
        seen = [batches.batch(torch.Generator()) for _ in range(batches.steps)]
        assert all(torch.equal(image[:, 0, 0, 0], label.to(torch.uint8)) for image, label in seen)
        orders.append(torch.cat([label for _, label in seen]))
        assert orders[-1].sort().values.tolist() == list(range(20))
    assert not torch.equal(*orders)


def test_crop_and_flip_is_the_same_as_padding_and_slicing():
    images = torch.randint(1, 255, (6, 3, 8, 10), dtype=torch.uint8)
    chosen = torch.tensor([4, 0, 4, 2])
    shift = torch.tensor([[-4, 4, 0, 3], [2, -1, 0, -4]])
    flipped = torch.tensor([True, False, True, False])
    got = crop_and_flip(images, chosen, shift, flipped)
    padded = functional.pad(images, (4, 4, 4, 4))
    for n in range(4):
        y, x = 4 + shift[0, n], 4 + shift[1, n]
        expected = padded[chosen[n], :, y : y + 8, x : x + 10]
        assert torch.equal(got[n], expected.flip(2) if flipped[n] else expected)


def test_tensorboard_is_written_when_asked_for(data, tmp_path):
    pytest.importorskip("tensorboard")
    recipe = load_recipe("tiny", {"training.epochs": 1, "training.milestones": []})
    train(recipe, tmp_path, variants=["none"], data=data, device="cpu", tracker="tensorboard")
    assert list(tmp_path.rglob("events.out.tfevents*"))


class TestBadInput:
    def test_another_recipe_over_a_finished_model(self, trained, data):
        with pytest.raises(InputError, match=r"other settings \(training.epochs: 3 -> 4\).*--overwrite"):
            train(load_recipe("tiny", {"training.epochs": 4}), trained[0], data=data, device="cpu")

    def test_a_checkpoint_of_another_architecture(self, data, tmp_path):
        recipe = load_recipe("tiny", {"training.learning_rate": 1e18, "training.milestones": []})
        with pytest.raises(TrainingError):
            train(recipe, tmp_path, variants=["none"], data=data, device="cpu")
        with pytest.raises(InputError, match=r"model: resnet-small -> resnet18-cifar"):
            train(
                replace(recipe, model="resnet18-cifar"),
                tmp_path,
                variants=["none"],
                data=data,
                device="cpu",
            )

    def test_labels_out_of_range(self, data, tmp_path):
        wrong = replace(data, train=ArraySplit(data.train.images, data.train.labels + 1))
        with pytest.raises(InputError, match=r"labels must be in 0..7 for 8 classes, found 1..8"):
            train(TINY, tmp_path, data=wrong, device="cpu")

    def test_squares_larger_than_the_images(self, data, tmp_path):
        with pytest.raises(InputError, match=r"s_max must be in 1\.\.31"):
            train(load_recipe("tiny", {"fpa.s_max": 32}), tmp_path, data=data, device="cpu")

    def test_batch_larger_than_the_data(self, data, tmp_path):
        with pytest.raises(InputError, match="only 256 training images"):
            train(load_recipe("tiny", {"training.batch_size": 300}), tmp_path, data=data, device="cpu")

    def test_a_device_that_is_not_there(self, data, tmp_path):
        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA device")
        with pytest.raises(InputError, match="finds no CUDA device"):
            train(TINY, tmp_path, data=data, device="cuda")
        with pytest.raises(InputError, match="cpu, cuda, cuda:N or mps, got 'tpu'"):
            train(TINY, tmp_path, data=data, device="tpu")

    def test_a_damaged_checkpoint_is_named(self, data, tmp_path):
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "checkpoint.safetensors").write_bytes(b"half a file")
        with pytest.raises(InputError, match=r"checkpoint.safetensors cannot be continued: .*not a complete"):
            train(TINY, tmp_path, variants=["none"], data=data, device="cpu")

    def test_a_flipped_bit_of_a_checkpoint_is_found(self, data, tmp_path):
        recipe = load_recipe("tiny", {"training.learning_rate": 1e30})
        with pytest.raises(TrainingError):  # which leaves a checkpoint
            train(recipe, tmp_path, data=data, device="cpu")
        path = tmp_path / "none" / "checkpoint.safetensors"
        whole = path.read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little")
        chance = random.Random(0)
        for place in (*chance.sample(range(header, len(whole)), 12), *chance.sample(range(8, header), 12)):
            content = bytearray(whole)
            content[place] ^= 1 << chance.randrange(7)
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"checkpoint.safetensors"):
                train(recipe, tmp_path, data=data, device="cpu")

    def test_too_little_memory_is_one_line_and_what_to_do(self, data, tmp_path, monkeypatch):
        monkeypatch.setattr(Trainer, "_advance", lambda *_: torch.empty(2**58, device="cpu"))
        with pytest.raises(InputError, match=r"not enough memory on cpu .* 32 images: .*training.batch_size"):
            train(TINY, tmp_path, variants=["none"], data=data, device="cpu")

    def test_a_full_disk_keeps_the_last_checkpoint(self, data, tmp_path, monkeypatch):
        usual, writes = Path.write_bytes, []

        def full(path, content):
            writes.append(path)
            if len(writes) > 3:
                usual(path, content[:100])
                raise OSError(28, "No space left on device")
            return usual(path, content)

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(InputError, match=r"the disk is full: .*checkpoint.safetensors was not written"):
            train(TINY, tmp_path, variants=["none"], data=data, device="cpu")
        monkeypatch.undo()
        assert sorted(p.name for p in (tmp_path / "none").iterdir()) == [
            "checkpoint.safetensors",
            "training.csv",
        ]
        train(TINY, tmp_path, variants=["none"], data=data, device="cpu")
        assert read_card(tmp_path / "none" / "model.safetensors").accuracy is not None
