"""The captured step on CUDA: the same training as the eager one, with live schedule and fresh masks."""

import multiprocessing
import os

import pytest
import torch
from safetensors.torch import load_file

from fpa.cli.main import main
from fpa.data import splits
from fpa.data.sets import load_data
from fpa.study.recipe import load_recipe
from fpa.study.trainings import load_recipe_data, recipe_jobs, train
from fpa.training import jpegs
from fpa.training.batches import DeviceFileBatches, FileBatches, _order, training_batches
from fpa.training.run import Run, TrainingError
from fpa.training.steps import CapturedSteps, EagerSteps
from fpa.training.trainer import Trainer
from interruptions import stopped_before
from miniatures import make_odd, make_unreadable, write_food101, write_image_folder, write_imagenet

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
    trainer.start_epoch(runs)
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
    trainer.start_epoch([run])
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
def test_stopped_and_continued_bit_for_bit(model, data, tmp_path):
    whole = recipe(training__checkpoint_seconds=0.0, model=model, training__precision="auto")
    train(whole, tmp_path / "whole", data=data, device="cuda")
    with stopped_before(13):
        train(whole, tmp_path / "cut", data=data, device="cuda")
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


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_image_folder(tmp_path_factory.mktemp("photos"), train=24, val=24)


@pytest.fixture(params=["kept", "read as they go", "decoded on the device"])
def kept(request, monkeypatch):
    if request.param != "kept":
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    if request.param == "decoded on the device":
        monkeypatch.setattr(jpegs, "SMALLEST", {"cuda": 1})
    return request.param


class TestFiles:
    """JPEG files: worker processes decode them and a thread pins memory while the step is captured."""

    def recipe(self, photos, **changes):
        fields = {"data__name": f"folder:{photos}", "data__size": 32, "data__train_images": None}
        fields |= {"data__evaluation_images": 8, "training__batch_size": 16, "training__precision": "auto"}
        fields |= {"training__milestones": []}
        return recipe(**fields | changes)

    def train(self, photos, output, variants=NAMES, **changes):
        chosen = self.recipe(photos, **changes)
        data = load_recipe_data(chosen)
        train(chosen, output, variants=list(variants), data=data, device="cuda")
        return {path.parent.name: load_file(path) for path in output.glob("*/model.safetensors")}

    def equal(self, models, others):
        pairs = [(value, others[name][key]) for name in models for key, value in models[name].items()]
        return all(torch.equal(*pair) for pair in pairs)

    @pytest.mark.parametrize("smallest", [{}, {"cuda": 1}])
    def test_the_number_of_workers_changes_nothing(self, photos, smallest, tmp_path, monkeypatch):
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
        monkeypatch.setattr(jpegs, "SMALLEST", smallest)
        models = [self.train(photos, tmp_path / str(n), ["fpa"], data__workers=n) for n in (0, 1, 16)]
        assert self.equal(models[0], models[1])
        assert self.equal(models[0], models[2])
        assert not multiprocessing.active_children()

    @pytest.mark.parametrize("model", ["resnet18-cifar", "mobilenet_v2"])
    def test_other_models(self, photos, model, tmp_path, monkeypatch):
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
        (weights,) = self.train(photos, tmp_path, ["fpa"], model=model, training__epochs=1).values()
        assert all(value.isfinite().all() for value in weights.values())

    def test_captured_sees_the_batches_that_eager_sees(self, photos, kept, tmp_path):
        seen = {}
        for captured in (True, False):
            chosen = self.recipe(photos, training__compile=captured)
            data = load_recipe_data(chosen)
            trainer = Trainer(chosen.training, "cuda", workers=2)
            data = trainer.prepared(data)
            runs = [Run(job, data, trainer) for job in recipe_jobs(chosen, tmp_path, data, NAMES)]
            steps = CapturedSteps(runs, trainer) if captured else EagerSteps(runs, trainer)
            trainer.start_epoch(runs)
            for _ in range(2):
                steps()
            seen[captured] = torch.stack([run.totals for run in runs])
            trainer.close()
        torch.testing.assert_close(seen[True], seen[False], rtol=2e-2, atol=2)

    def test_an_unreadable_file_counts_for_nothing(self, photos, kept, tmp_path, monkeypatch):
        make_unreadable(monkeypatch, load_recipe_data(self.recipe(photos)).train.paths[5])
        (weights,) = self.train(photos, tmp_path, ["none"], data__workers=0).values()
        assert all(value.isfinite().all() for value in weights.values())

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_device_decodes_as_workers_do(self, workers, tmp_path):
        data = load_data(f"folder:{write_image_folder(tmp_path, train=10)}", size=128)
        odd = make_odd(data.train.paths, grain=0)  # chroma is not interpolated alike
        damaged = data.train.paths.index(odd["no table"])  # some decoders make something of it
        device = torch.device("cuda")
        how = {"mine": slice(None), "device": device, "workers": workers}
        assert type(training_batches(data, 10, 3, device)) is DeviceFileBatches
        usual, ours = (kind(data, 10, 3, **how) for kind in (FileBatches, DeviceFileBatches))
        for epoch, step in ((0, 0), (0, 1), (1, 0)):
            for batches in (usual, ours):
                batches.start(epoch, step)
                batches.advance()
            rows = [i for i, n in enumerate(_order(20, 10, 3, epoch)[step].tolist()) if n != damaged]
            (expected, labels), (images, same) = (each.batch(torch.Generator()) for each in (usual, ours))
            assert torch.equal(labels[rows], same[rows])
            difference = (images[rows].int() - expected[rows].int()).abs().float()
            assert difference.mean((1, 2, 3)).max() < 2
        assert usual.unreadable - ours.unreadable <= {odd["no table"]}
        assert ours.unreadable <= usual.unreadable
        for batches in (usual, ours):
            batches.close()
        assert not multiprocessing.active_children()

    def test_an_epoch_of_one_step(self, photos, kept, tmp_path):
        self.train(photos, tmp_path, ["fpa"], training__batch_size=48)
        rows = tmp_path.joinpath("fpa", "training.csv").read_text().splitlines()
        assert len(rows) == 1 + self.recipe(photos).training.epochs

    def test_stopped_and_continued_bit_for_bit(self, photos, kept, tmp_path):
        changes = {"variants": ["none", "fpa"], "training__checkpoint_seconds": 0.0, "data__workers": 2}
        whole = self.train(photos, tmp_path / "whole", **changes)
        with stopped_before(4):
            self.train(photos, tmp_path / "cut", **changes)
        assert (tmp_path / "cut" / "fpa" / "checkpoint.safetensors").exists()
        assert self.equal(whole, self.train(photos, tmp_path / "cut", **changes))

    @pytest.mark.parametrize("workers", ["0", "16"])
    def test_the_command_finetune(self, photos, kept, workers, tmp_path):
        command = ["finetune", "shapes-none", "--data", f"folder:{photos}", "--size", "32", "--epochs", "1"]
        command += ["--device", "cuda", "--batch_size", "16", "--workers", workers]
        assert main([*command, "--output", str(tmp_path / "tuned")]) == 0
        assert (tmp_path / "tuned" / "model.safetensors").exists()

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize(("name", "write"), [("food101-64", write_food101), ("imagenet", write_imagenet)])
    def test_the_command_run(self, name, write, tmp_path):
        write(tmp_path / "data")
        command = ["run", name, "--data.root", str(tmp_path / "data"), "--output", str(tmp_path / "study")]
        command += ["--training.epochs", "1", "--training.batch_size", "4", "--training.milestones", "[]"]
        command += ["--data.size", "64", "--data.evaluation_images", "6", "--evaluation.ig_steps", "2"]
        command += ["--evaluation.points", "3", "--augmentations", "[none,fpa]", "--model", "resnet18"]
        assert main([*command, "--device", "cuda"]) == 0
        assert (tmp_path / "study" / "report.html").exists()

    def test_an_error_in_a_worker_ends_the_command(self, photos, tmp_path, monkeypatch, capfd):
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
        monkeypatch.setattr(splits.SeededImages, "__getitem__", lambda self, key: os.kill(os.getpid(), 9))
        command = [
            "train",
            "tiny",
            "--data.name",
            f"folder:{photos}",
            "--data.size",
            "32",
            "--device",
            "cuda",
        ]
        command += ["--training.batch_size", "16", "--data.train_images", "null"]
        command += ["--data.evaluation_images", "null", "--output", str(tmp_path), "--data.workers", "4"]
        assert main(command) == 2
        told = capfd.readouterr().err.splitlines()
        assert "worker" in told[-1]
        assert not any(line.startswith("Traceback") for line in told)
        assert not multiprocessing.active_children()
