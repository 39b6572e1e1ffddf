"""The training loop: one run or several side by side, stopped and continued at any moment.

Everything random about a step depends on the seed, the epoch and the step, and a checkpoint holds the rest,
so a run that was killed ends with the weights it would have had.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from fpa.data.splits import UNREADABLE, ArraySplit, FileSplit, ImageData, read_batches
from fpa.engine.devices import arithmetic_on, check_device, chosen_device, out_of_memory
from fpa.engine.jobs import check_joined
from fpa.errors import InputError, unknown
from fpa.files import (
    announce_step,
    clear_temporaries,
    folder_lock,
    is_busy,
    is_main_process,
    launch,
    read_tensors,
    refuse_links,
    writable_folder,
)
from fpa.models.saved import read_card, save_model
from fpa.models.wrap import untouched
from fpa.progress import Display
from fpa.training.batches import Batches, FileBatches, LoaderBatches, training_batches
from fpa.training.checks import check_jobs
from fpa.training.photos_on_device import PhotosOnDevice, images_on_device, photos_on_device
from fpa.training.run import Job, Run, Trained, write_history
from fpa.training.settings import TrainingSettings
from fpa.training.steps import CapturedSteps, EagerSteps, batches_of

PATIENCE = {"cuda": 0.5, "mps": 0.5}
"""Seconds between two looks at the numbers, where looking waits for the device."""

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def train_jobs(
    jobs: Sequence[Job],
    data: ImageData | LoaderBatches | None,
    *,
    device: str | None = None,
    tracker: str | None = None,
    display: Display | None = None,
    workers: int = 0,
    overwrite: bool = False,
    timings: dict[str, float] | None = None,
) -> list[Trained]:
    """Train models that share their settings, continuing those that were begun and skipping the finished.

    Every job's folder is locked (or `Job.locked` instead). On CUDA all models advance together in one
    captured graph, elsewhere one after another; but models that share files which have to be read as they go
    always advance together. `data` may be None where everything is finished. `tracker` is one of
    accelerate's: tensorboard, wandb, mlflow, trackio. With `overwrite`, what is there is thrown away, but not
    before it is known that the new training can start. `timings` gets the seconds spent on compiling, under
    "train".
    """
    first = is_main_process()
    with ExitStack() as locks:
        # The other processes of a training write nothing, and wait for the first one, which holds the lock.
        for folder in sorted({job.locked or job.folder for job in jobs if first and job.folder}):
            locks.enter_context(folder_lock(folder))
        finished: dict[int, Trained] = {}
        for job in jobs:
            if job.folder is None or job.path is None:
                continue
            if job.locked:  # it is a part of a study
                refuse_links(job.folder.parent, [job.folder.name])
            if first and not is_busy(writable_folder(job.folder)):
                clear_temporaries(job.folder)
            if job.path.exists() and not overwrite:
                read_tensors(job.path)  # refuses one that is damaged
                card = read_card(job.path)
                job.refuse_other(card.recipe, job.path)
                if job.locked and card.variant not in ("", job.name):
                    raise InputError(f"{job.path} is the model of another training, {card.variant}")
                if first:
                    (job.folder / "checkpoint.safetensors").unlink(missing_ok=True)
                finished[id(job)] = job.finished(card)
        if missing := [job for job in jobs if id(job) not in finished]:
            trainer = Trainer(
                missing[0].settings,
                device,
                output=missing[0].locked,
                tracker=tracker,
                display=display,
                workers=workers,
            )
            assert data is not None
            check_jobs(missing, data)
            for folder in (job.folder for job in missing if overwrite and first and job.folder):
                for file in ("model.safetensors", "checkpoint.safetensors", "training.csv"):
                    (folder / file).unlink(missing_ok=True)
            try:
                finished |= zip(map(id, missing), trainer.train(missing, data), strict=True)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                full = f"not enough memory on {trainer.device} to train with batches of"
                remedy = "choose a smaller training.batch_size, smaller images or fewer data.workers"
                size = missing[0].settings.batch_size
                raise InputError(f"there is {full} {size} images: {remedy}, and run again") from error
            if timings is not None and trainer.compile_seconds:
                timings["train"] = round(trainer.compile_seconds, 2)
        return [finished[id(job)] for job in jobs]


class Trainer:
    """Trains runs that share their settings, on one device or on this process's share of several."""

    def __init__(
        self,
        settings: TrainingSettings,
        device: str | None = None,
        *,
        tracker: str | None = None,
        output: Path | None = None,
        display: Display | None = None,
        workers: int = 0,
    ) -> None:
        check_device(device)
        if tracker not in (None, *TRACKERS):
            raise unknown("tracker", str(tracker), TRACKERS)
        if tracker is not None and find_spec(tracker) is None:
            raise InputError(f"tracker {tracker!r} is not installed: pip install {tracker}")
        announce_step()
        check_joined("MASTER_ADDR" in os.environ)
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState

        if PartialState._shared_state and PartialState().num_processes == 1:
            AcceleratorState._reset_state(reset_partial_state=True)  # an earlier training's device
        folder = output if tracker else None
        # Of several processes accelerate must be told: it would take each for alone where there is no GPU.
        on_cpu = device == "cpu" or (launch().size > 1 and chosen_device(device) == "cpu")
        self.accelerator = Accelerator(cpu=on_cpu, log_with=tracker, project_dir=folder)
        self.settings = settings
        self.tracker = tracker
        self.workers = workers
        self.processes: int = self.accelerator.num_processes
        # Where accelerate sees one process, each of several would take itself for the first, and write.
        check_joined(self.processes > 1)
        self.device: torch.device = self.accelerator.device
        if device is not None and self.processes == 1:  # accelerate takes the first GPU
            self.device = torch.device(device)
        self.precision = settings.precision
        if self.precision == "auto":
            half = self.accelerator.mixed_precision == "bf16" or self.device.type == "cuda"
            self.precision = "bfloat16" if half else "float32"
        self.display = display if display and self.accelerator.is_main_process else Display(quiet=True)
        self.captured = self.device.type == "cuda" and settings.compile and self.processes == 1
        self.reduce = partial(self.accelerator.reduce, reduction="sum") if self.processes > 1 else None
        self.writing: list[Future[None]] = []
        self.photos: PhotosOnDevice | None = None
        self.loaders: dict[int, FileBatches] = {}
        self.compile_seconds = 0.0

    def train(self, jobs: list[Job], data: ImageData | LoaderBatches) -> list[Trained]:
        """Train these models to the end."""
        cuda = self.device.type == "cuda"
        size = self.settings.batch_size
        if isinstance(data, ImageData) and size % self.processes:
            several = f"{self.processes}, the number of processes"
            raise InputError(f"training.batch_size must be a multiple of {several}, got {size}")
        if self.tracker:
            recipe = {"recipe": jobs[0].description.get("name"), "seed": jobs[0].seed}
            self.accelerator.init_trackers("fpa", recipe)
        self.accelerator.wait_for_everyone()  # until the first process has cleared what is to be overwritten
        with (
            torch.cuda.device(self.device) if cuda else nullcontext(),
            torch.random.fork_rng([self.device] if cuda else []),
            arithmetic_on(self.device, tf32=self.precision != "float32"),
            ThreadPoolExecutor(1) as self.writer,
            closing(self),
        ):
            data = self.prepared(data)
            runs = [Run(job, data, self) for job in jobs]
            unfinished = list(runs)
            while unfinished:
                group, until = self._next_group(unfinished)
                if group[0].position < until:
                    self._advance(group, until, data)
                self._written()
                for run in [run for run in group if run.epoch >= self.settings.epochs]:
                    unfinished.remove(run)
                    self._finish(run, data)
        for tracker in self.accelerator.trackers:  # not end_training(), which parts the processes for good
            tracker.finish()
        return [run.trained() for run in runs]

    def prepared(self, data: ImageData | LoaderBatches) -> ImageData | LoaderBatches:
        """The data on the device, once for all runs; photos that fit are decoded once and for all."""
        if not isinstance(data, ImageData):
            return data
        splits = data.train, data.test
        train, test = (each.to(self.device) if isinstance(each, ArraySplit) else each for each in splits)
        if isinstance(train, FileSplit):
            self.photos = photos_on_device(train, self.device, self.workers)
        if isinstance(test, FileSplit) and (
            held := images_on_device(test, data.evaluation, self.device, self.workers)
        ):
            return replace(data, train=train, test=held, evaluation=torch.arange(len(held)))
        return replace(data, train=train, test=test)

    def batches(self, data: ImageData | LoaderBatches, seed: int) -> Batches:
        """The batches of a run with this seed; those of files are shared by all runs of a seed."""
        if seed in self.loaders:
            return self.loaders[seed]
        batches = training_batches(
            data,
            self.settings.batch_size,
            seed,
            self.device,
            workers=self.workers,
            photos=self.photos,
            rank=self.accelerator.process_index,
            processes=self.processes,
        )
        if isinstance(batches, FileBatches):
            self.loaders[seed] = batches
        return batches

    def start_epoch(self, group: list[Run]) -> None:
        """Get runs that stand at the same place ready for the rest of an epoch."""
        for batches in batches_of(group):
            batches.start(*group[0].position)
        for run in group:
            run.start_epoch()

    def close(self) -> None:
        """End the processes that read images."""
        for batches in self.loaders.values():
            batches.close()

    def _next_group(self, unfinished: list[Run]) -> tuple[list[Run], tuple[int, int]]:
        """The runs to advance now and the position to stop at.

        After a kill the runs may stand at different places; those behind catch up first.
        """
        end = (self.settings.epochs, 0)
        # What leaves out other numbers of tokens at every step is in no graph.
        alone = [run for run in unfinished if run.drops_tokens or not self.captured]
        if alone and not self.loaders:
            return alone[:1], end
        # Runs of one graph, or of one reader of files, take the same step at the same time.
        first, until, *_ = [*sorted({run.position for run in unfinished}), end]
        return [run for run in unfinished if run.position == first], until

    def _advance(self, group: list[Run], until: tuple[int, int], data: ImageData | LoaderBatches) -> None:
        settings = self.settings
        began = time.monotonic()
        captured = self.captured and not any(run.drops_tokens for run in group)
        steps = CapturedSteps(group, self) if captured else EagerSteps(group, self)
        self.saved = time.monotonic()  # what was compiled is no progress that a checkpoint could save
        if captured:
            self.compile_seconds += self.saved - began
        patience = PATIENCE.get(self.device.type, 0.0)
        while group[0].position < until:
            self.start_epoch(group)
            epoch, first = group[0].position
            last = until[1] if until[0] == epoch else group[0].batches.steps
            began = looked = now = time.monotonic()
            for step in range(first, last):
                for run in group if settings.schedule == "warm-cosine" else ():
                    run.set_rate()
                steps()
                for run in group:
                    run.step = step + 1
                now = time.monotonic()
                # To look is to wait for the device, which would then have nothing queued: only now and then.
                if now - looked >= patience:
                    looked = now
                    self._look(group, (step + 1 - first) / (now - began))
                    if step + 1 < last and now - self.saved > settings.checkpoint_seconds:
                        self._save(group)
            # Waits for the last step: the seconds are those of the device, not of queueing its work.
            totals = [run.checked_totals() for run in group]
            seconds = max(time.monotonic() - began, 1e-9)
            if last < group[0].batches.steps:
                continue
            for run, total in zip(group, totals, strict=True):
                tested = epoch + 1 == settings.epochs or (epoch + 1) % settings.test_every == 0
                share = None
                if tested and isinstance(data, ImageData):
                    share = accuracy(run.model, data, self.device, workers=self.workers)
                pace = (last - first) * run.batches.batch_size * len(group) / seconds
                run.end_epoch(total, share, pace)
                row = dict(vars(run.history[-1]))
                stage = run.job.stage
                measure = "agreement" if run.job.teacher else "accuracy"
                self.display.epoch(stage, row.pop("epoch"), settings.epochs, row, measure)
                values = {f"{stage}/{name}": value for name, value in row.items() if value is not None}
                self.accelerator.log(values, step=run.epoch)
            if group[0].epoch < settings.epochs and now - self.saved > settings.checkpoint_seconds:
                self._save(group)

    def _look(self, group: list[Run], steps_per_second: float) -> None:
        for run in group:
            totals = run.checked_totals()
            loss, right = (totals[:2] / totals[2].clamp(min=1)).tolist()
            done = (run.epoch + run.step / run.batches.steps) / self.settings.epochs
            pace = steps_per_second * run.batches.batch_size
            self.display.training(run.job.stage, done, loss, right, pace)

    def _save(self, group: list[Run]) -> None:
        """Write checkpoints while training continues; the disk may be slow, the state is that of now."""
        if self.accelerator.is_main_process:
            self._written()  # one at a time: a slow disk must not gather copies of the weights
            for run in group:
                run.checked_totals()
            self.writing = [self.writer.submit(run.snapshot()) for run in group if run.job.folder]
        self.saved = time.monotonic()

    def _written(self) -> None:
        """Wait for the checkpoints being written; what went wrong with them is raised here."""
        for write in self.writing:
            write.result()
        self.writing = []

    def _finish(self, run: Run, data: ImageData | LoaderBatches) -> None:
        job = run.job
        if job.way < 1:
            run.go_part_of_the_way()
            if isinstance(data, ImageData):
                share = accuracy(run.model, data, self.device, workers=self.workers)
                run.history[-1] = replace(run.history[-1], test_accuracy=share)
        self.display.unreadable(getattr(run.batches, "unreadable", ()))
        if self.accelerator.is_main_process and job.compared is not None:
            run.distance = job.compared(run.model)
        if self.accelerator.is_main_process and job.folder and job.path and job.card:
            card = job.card_of(run.history[-1].test_accuracy, run.distance)
            # With its model file a training counts as finished. Until then the checkpoint makes it again.
            write_history(run.history, job.folder / "training.csv")
            save_model(run.model, card, job.path)
            (job.folder / "checkpoint.safetensors").unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()


@torch.no_grad()
def predictions(
    model: nn.Module, data: ImageData, device: torch.device | str, *, batch_size: int = 500, workers: int = 0
) -> tuple[Tensor, Tensor]:
    """What the model says of the evaluation images, in float32, and their labels, both on the device."""
    batches = read_batches(data.test, torch.split(data.evaluation, batch_size), device, workers)
    with untouched(model), arithmetic_on(torch.device(device), tf32=False):
        parts = [(model(data.normalisation(images)).argmax(1), labels) for _, images, labels in batches]
    predicted, labels = map(torch.cat, zip(*parts, strict=True))
    return predicted, labels


def accuracy(
    model: nn.Module, data: ImageData, device: torch.device, *, batch_size: int = 500, workers: int = 0
) -> float:
    """Share of the evaluation images that the model classifies correctly, in float32."""
    predicted, labels = predictions(model, data, device, batch_size=batch_size, workers=workers)
    if bool((labels == UNREADABLE).all()):
        raise InputError(f"none of the {len(labels)} test images can be read: the folder may be gone")
    return int((predicted == labels).sum()) / max(int((labels >= 0).sum()), 1)
