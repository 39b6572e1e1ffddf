"""The training loop: one run or several side by side, stopped and continued at any moment.

A run is a recipe and an augmentation. Everything random about a step depends on the seed, the epoch and the
step, and a checkpoint holds the rest, so a run that was killed ends with the weights it would have had.
"""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit, ImageData, evaluation_batches, first_images
from fpa.engine.devices import check_device
from fpa.errors import InputError, unknown
from fpa.files import clear_temporaries, writable_folder
from fpa.masking import get_masking
from fpa.models.architectures import build_model
from fpa.models.saved import ModelCard, read_card, save_model
from fpa.models.wrap import class_count
from fpa.progress import Display
from fpa.seeds import derive
from fpa.study.recipe import Recipe
from fpa.training.augment import FPA, Rectangle
from fpa.training.batches import training_batches
from fpa.training.run import INITIAL, PATIENCE, Job, Run, Trained, refuse_other_recipe, write_history
from fpa.training.steps import CapturedSteps, EagerSteps, Steps


def train(
    recipe: Recipe,
    output: Path | str,
    *,
    augmentations: Sequence[str] | None = None,
    data: ImageData | None = None,
    device: str | None = None,
    tracker: str | None = None,
    display: Display | None = None,
    timings: dict[str, float] | None = None,
) -> list[Trained]:
    """Train a recipe's models into `output`/AUGMENTATION/model.safetensors, going on with what is there.

    On CUDA all models advance together in one captured graph, elsewhere one after another.
    `tracker` is one of accelerate's: tensorboard, wandb, mlflow, trackio. `timings` gets the seconds spent on
    compiling, under "train".
    """
    names = list(augmentations or recipe.augmentations)
    replace(recipe, augmentations=names)  # checks the names
    jobs = [Job(recipe, name, Path(output) / name) for name in names]
    return train_jobs(jobs, data=data, device=device, tracker=tracker, display=display, timings=timings)


def train_jobs(
    jobs: Sequence[Job],
    *,
    data: ImageData | None = None,
    device: str | None = None,
    tracker: str | None = None,
    display: Display | None = None,
    timings: dict[str, float] | None = None,
) -> list[Trained]:
    """Train models of one recipe, their augmentations and seeds as the jobs say; see `train`."""
    finished: dict[int, Trained] = {}
    missing = []
    for job in jobs:
        path = writable_folder(job.folder) / "model.safetensors"
        clear_temporaries(job.folder)
        if path.exists():
            card = read_card(path)
            refuse_other_recipe(job.recipe, card.recipe, path)
            (job.folder / "checkpoint.safetensors").unlink(missing_ok=True)
            accuracy = math.nan if card.accuracy is None else card.accuracy
            finished[id(job)] = Trained(job.augmentation, job.recipe.seed, path, accuracy)
        else:
            missing.append(job)
    if missing:
        recipe = missing[0].recipe
        trainer = Trainer(recipe, missing[0].folder.parent, device, tracker, display or Display(quiet=True))
        data = load_recipe_data(recipe) if data is None else data
        for job, trained in zip(missing, trainer.train(missing, data), strict=True):
            finished[id(job)] = trained
        if timings is not None and trainer.compile_seconds:
            timings["train"] = round(trainer.compile_seconds, 2)
    return [finished[id(job)] for job in jobs]


def load_recipe_data(recipe: Recipe) -> ImageData:
    """The data of a recipe, found and checked."""
    settings = recipe.data
    data = load_data(
        settings.name, settings.root, evaluation_images=settings.evaluation_images, size=settings.size
    )
    if settings.train_images is not None and settings.train_images < len(data.train):
        data = replace(data, train=first_images(data.train, settings.train_images))
    return data


def make_augment(recipe: Recipe, name: str, normalisation: Normalisation) -> FPA | Rectangle | None:
    """The augmentation of this name with the recipe's settings; None for "none"."""
    masking = get_masking(recipe.masking, normalisation.mean, normalisation.std)
    if name == "fpa":
        return FPA(**asdict(recipe.fpa), masking=masking)
    if name == "rectangle":
        return Rectangle(**asdict(recipe.rectangle), masking=masking)
    return None


class Trainer:
    """Runs of one recipe on one device, or on this process's share of several."""

    def __init__(
        self, recipe: Recipe, output: Path, device: str | None, tracker: str | None, display: Display
    ) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState

        check_device(device)
        check_tracker(tracker)
        if PartialState._shared_state and PartialState().num_processes == 1:
            AcceleratorState._reset_state(reset_partial_state=True)  # an earlier training's device
        self.accelerator = Accelerator(
            cpu=device == "cpu", log_with=tracker, project_dir=output if tracker else None
        )
        precision = recipe.training.precision
        if precision == "auto":
            launched = self.accelerator.mixed_precision == "bf16"
            precision = "bfloat16" if launched or self.accelerator.device.type == "cuda" else "float32"
        if tracker:
            self.accelerator.init_trackers("fpa", {"recipe": recipe.name, "seed": recipe.seed})
        self.recipe, self.precision = recipe, precision
        self.display = display if self.accelerator.is_main_process else Display(quiet=True)
        self.device: torch.device = self.accelerator.device
        self.processes: int = self.accelerator.num_processes
        self.captured = self.device.type == "cuda" and recipe.training.compile and self.processes == 1
        self.writing: list[Future[None]] = []
        self.compile_seconds = 0.0

    def train(self, jobs: list[Job], data: ImageData) -> list[Trained]:
        """Train these models to the end."""
        return [
            Trained(run.augmentation, run.recipe.seed, run.result, float(run.history[-1].test_accuracy or 0))
            for run in self.finished(jobs, data)
        ]

    def finished(self, jobs: list[Job], data: ImageData) -> list[Run]:
        """The runs of these jobs, brought to their end."""
        check_data(self.recipe, data, jobs[0].model)
        if self.recipe.training.batch_size % self.processes:
            raise InputError(
                f"training.batch_size {self.recipe.training.batch_size} cannot be shared equally by "
                f"{self.processes} processes: choose a multiple of {self.processes}"
            )
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices),
            _float32_arithmetic(tf32=self.precision != "float32"),
            ThreadPoolExecutor(1) as self.writer,
        ):
            if isinstance(data.train, ArraySplit) and isinstance(data.test, ArraySplit):  # once for all runs
                data = replace(data, train=data.train.to(self.device), test=data.test.to(self.device))
            runs = [self.start(job, data) for job in jobs]
            left = list(runs)
            while left:
                group, until = self._next_group(left)
                if group[0].position < until:
                    stepper: Steps = EagerSteps(group, self)
                    if self.captured:
                        began = time.monotonic()
                        stepper = CapturedSteps(group, self)
                        self.compile_seconds += time.monotonic() - began
                        for run in group:  # what was compiled is no progress that a checkpoint could save
                            run.saved = time.monotonic()
                    self._advance(group, until, stepper, data)
                self._written()
                for run in group:
                    if run.epoch >= self.recipe.training.epochs:
                        left.remove(run)
                        self._finish(run, data)
        self.accelerator.end_training()
        return runs

    def start(self, job: Job, data: ImageData) -> Run:
        """A run of this job, at its beginning or where its checkpoint stands."""
        recipe, settings = job.recipe, job.recipe.training
        seed = derive(recipe.seed, INITIAL)
        if job.model is None:
            model = build_model(recipe.model, len(data.classes), data.input_shape, seed)
        else:
            model = copy.deepcopy(job.model)
        model = model.to(memory_format=torch.channels_last)  # faster convolutions, on a CPU too
        model = model.to(self.device)
        rate: Any = torch.tensor(0.0, device=self.device) if self.captured else 0.0
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=self.captured,
        )
        for parameter in model.parameters():  # so that a first step is like every other
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        network = self.accelerator.prepare_model(model) if self.processes > 1 else model
        run = Run(
            recipe,
            job.augmentation,
            job.folder,
            model,
            network.train(),
            optimizer,
            job.augment or make_augment(recipe, job.augmentation, data.normalisation),
            training_batches(
                data,
                settings.batch_size,
                recipe.seed,
                self.device,
                rank=self.accelerator.process_index,
                processes=self.processes,
                workers=recipe.data.workers,
            ),
            data.normalisation,
            torch.Generator(self.device),
            torch.zeros(5, device=self.device),
            None if job.teacher is None else copy.deepcopy(job.teacher).to(self.device).eval(),
            job.keep,
        )
        run.restore()
        return run

    def _next_group(self, left: list[Run]) -> tuple[list[Run], tuple[int, int]]:
        """The runs to advance now and the position to stop at.

        After a kill the runs may stand at different places; those behind catch up first.
        """
        end = (self.recipe.training.epochs, 0)
        if not self.captured:
            return left[:1], end
        places = sorted({run.position for run in left})
        group = [run for run in left if run.position == places[0]]
        return group, places[1] if len(places) > 1 else end

    def _advance(self, group: list[Run], until: tuple[int, int], steps: "Steps", data: ImageData) -> None:
        settings = self.recipe.training
        patience = PATIENCE.get(self.device.type, 0.0)
        while group[0].position < until:
            for run in group:
                run.start_epoch()
            epoch, first = group[0].position
            last = until[1] if until[0] == epoch else group[0].batches.steps
            began = looked = now = time.monotonic()
            for step in range(first, last):
                if settings.schedule == "warm-cosine":
                    for run in group:
                        run.set_rate()
                steps()
                for run in group:
                    run.step = step + 1
                now = time.monotonic()
                if now - looked >= patience:
                    looked = now
                    pace = (step + 1 - first) * settings.batch_size / (now - began)
                    self._look(group, pace)
                    if step + 1 < last and now - group[0].saved > settings.checkpoint_seconds:
                        self._save(group)
            totals = [self._totals(run) for run in group]
            seconds = max(time.monotonic() - began, 1e-9)
            pace = (last - first) * settings.batch_size * len(group) / seconds
            if last < group[0].batches.steps:
                continue
            for run, total in zip(group, totals, strict=True):
                run.check(total)
                tested = epoch + 1 == settings.epochs or (epoch + 1) % settings.test_every == 0
                accuracy = self._test(run, data) if tested else None
                run.end_epoch(total, accuracy, pace)
                self._tell(run)
            if group[0].epoch < settings.epochs and now - group[0].saved > settings.checkpoint_seconds:
                self._save(group)

    def _look(self, group: list[Run], pace: float) -> None:
        for run in group:
            totals = run.totals.cpu()
            run.check(totals)
            loss, right, seen = totals[:3].tolist()
            done = run.epoch * run.batches.steps + run.step
            self.display.training(
                run.name,
                done / (self.recipe.training.epochs * run.batches.steps),
                loss / max(seen, 1),
                right / max(seen, 1),
                pace,
            )

    def _tell(self, run: Run) -> None:
        row = run.history[-1]
        self.display.epoch(run.name, row.epoch, self.recipe.training.epochs, asdict(row))
        values = {item.name: getattr(row, item.name) for item in fields(row) if item.name != "epoch"}
        self.accelerator.log(
            {f"{run.name}/{name}": value for name, value in values.items() if value is not None},
            step=row.epoch,
        )

    def _totals(self, run: Run) -> Tensor:
        """The totals over all processes."""
        if self.processes == 1:
            return run.totals.cpu()
        gathered = self.accelerator.gather(run.totals[None]).cpu()
        total: Tensor = gathered.sum(0)
        total[3] = gathered[:, 3].max()
        return total

    def _save(self, group: list[Run]) -> None:
        """Write checkpoints beside the training; the disk may be slow, the state is that of now."""
        if self.accelerator.is_main_process:
            self._written()
            for run in group:
                run.check(run.totals.cpu())
            self.writing = [self.writer.submit(run.snapshot()) for run in group if run.keep]
        for run in group:
            run.saved = time.monotonic()

    def _written(self) -> None:
        """Wait for the checkpoints being written; what went wrong with them is raised here."""
        for write in self.writing:
            write.result()
        self.writing = []

    def _finish(self, run: Run, data: ImageData) -> None:
        self.display.unreadable(getattr(run.batches, "unreadable", ()))
        if self.accelerator.is_main_process and run.keep:
            card = ModelCard(
                architecture=run.recipe.model,
                classes=data.classes,
                input_shape=data.input_shape,
                mean=data.normalisation.mean,
                std=data.normalisation.std,
                augmentation=run.augmentation,
                accuracy=run.history[-1].test_accuracy,
                recipe=run.recipe.to_dict(),
            )
            write_history(run.history, run.folder / "training.csv")
            save_model(run.model, card, run.result)
            run.checkpoint.unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()

    def _test(self, run: Run, data: ImageData) -> float:
        with _float32_arithmetic(tf32=False):
            return accuracy(run.model, data, self.device, workers=self.recipe.data.workers)


@torch.no_grad()
def accuracy(
    model: nn.Module, data: ImageData, device: torch.device, *, batch_size: int = 500, workers: int = 0
) -> float:
    """Share of the evaluation images that the model classifies correctly, in float32."""
    training = model.training
    model.eval()
    right = seen = torch.zeros((), dtype=torch.int64, device=device)
    for _, images, labels in evaluation_batches(
        data.test, data.evaluation, batch_size, device, workers=workers
    ):
        predicted = model(data.normalisation(images)).argmax(1)
        right = right + (predicted == labels).sum()
        seen = seen + (labels >= 0).sum()
    model.train(training)
    return int(right) / max(int(seen), 1)


TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def check_tracker(tracker: str | None) -> None:
    """Refuse a tracker that is not known or not installed."""
    if tracker is not None and tracker not in TRACKERS:
        raise unknown("tracker", tracker, TRACKERS)
    if tracker is not None and find_spec(tracker) is None:
        raise InputError(f"tracker {tracker!r} is not installed: pip install {tracker}")


def check_data(recipe: Recipe, data: ImageData, model: nn.Module | None = None) -> None:
    """Refuse, before training, data that the recipe, or the model given, cannot be trained on."""
    recipe.training.check()
    recipe.data.check()
    if recipe.training.batch_size > len(data.train):
        raise InputError(
            f"training.batch_size is {recipe.training.batch_size}, "
            f"but there are only {len(data.train)} training images"
        )
    classes = len(data.classes)
    for split in (data.train, data.test):
        labels = split.labels
        if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
            raise InputError(
                f"labels must be in 0..{classes - 1} for {classes} classes, "
                f"found {int(labels.min())}..{int(labels.max())}"
            )
        if isinstance(split, ArraySplit) and split.images.dtype != torch.uint8:
            raise InputError(f"images must be uint8, got {split.images.dtype}")
    augment = make_augment(recipe, "fpa", data.normalisation)
    if isinstance(augment, FPA):
        augment.check_size(*data.input_shape[1:])
    make_augment(recipe, "rectangle", data.normalisation)
    if model is None:
        model = build_model(recipe.model, classes, data.input_shape)
    try:
        outputs = class_count(model, data.input_shape)
    except InputError as error:
        raise InputError(f"model {recipe.model!r} does not fit the data: {error}") from error
    if outputs != classes:
        raise InputError(f"model {recipe.model!r} has {outputs} outputs, the data have {classes} classes")


@contextmanager
def _float32_arithmetic(tf32: bool) -> Iterator[None]:
    """Whether float32 products on CUDA may be rounded to TF32; put back afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
