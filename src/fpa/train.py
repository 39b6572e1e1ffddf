"""The training loop: one run or several side by side, stopped and continued at any moment.

A run is a recipe and an augmentation. Everything random about a step depends on the seed, the epoch and the
step, and a checkpoint holds the rest, so a run that was killed ends with the weights it would have had.
"""

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch.nn import functional

from fpa.augment import FPA, Draws, Rectangle
from fpa.batches import Batches, first_images, training_batches
from fpa.compiling import compiled
from fpa.data import ArraySplit, ImageData, Normalisation, evaluation_batches, load_data
from fpa.errors import InputError, unknown
from fpa.inputs import class_count, logits_of
from fpa.masking import Fill, get_masking
from fpa.models import ModelCard, build_model, check_same_tensors, open_tensors, read_card, save_model
from fpa.progress import Display, training_stage
from fpa.recipe import Recipe, differences
from fpa.seeds import derive
from fpa.store import clear_temporaries, replacing, writable_folder, write_text

INITIAL, AUGMENT, DROPOUT = 3, 4, 5
"""Keys that keep the random numbers of different purposes apart, see batches.py."""

PATIENCE = {"cuda": 0.5, "mps": 0.5}
"""Seconds between two looks at the numbers, where looking waits for the device."""


class TrainingError(InputError):
    """Training cannot go on; the last checkpoint is still there."""


@dataclass
class Epoch:
    """A row of the history, `training.csv`."""

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float
    test_accuracy: float | None
    images_per_second: float


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    augmentation: str
    seed: int
    path: Path
    accuracy: float


@dataclass(frozen=True)
class Job:
    """A model to train: a recipe (with its seed), an augmentation, and the folder for the result.

    A fine-tuning begins with `model`, of which a copy is trained; with a `teacher` the targets are what the
    teacher says of the unperturbed images instead of the labels. `augment` takes the place of what the recipe
    describes, `keep=False` leaves the folder alone.
    """

    recipe: Recipe
    augmentation: str
    folder: Path
    model: nn.Module | None = None
    teacher: nn.Module | None = None
    augment: FPA | None = None
    keep: bool = True


@dataclass
class Run:
    """One model being trained, with everything a checkpoint needs to hold."""

    recipe: Recipe
    augmentation: str
    folder: Path
    model: nn.Module
    network: nn.Module  # the model, wrapped for several processes
    optimizer: torch.optim.Optimizer
    augment: FPA | Rectangle | None
    batches: Batches
    normalisation: Normalisation
    draws: torch.Generator
    totals: Tensor  # loss summed over images, images right, images seen, first bad step or -1, steps done
    teacher: nn.Module | None = None
    keep: bool = True
    epoch: int = 0
    step: int = 0
    history: list[Epoch] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)
    random: dict[str, Tensor] | None = None  # states of the generators at a checkpoint, until it goes on

    @property
    def name(self) -> str:
        """What the run is called on the screen."""
        return training_stage(self.augmentation, self.recipe.seed)

    @property
    def position(self) -> tuple[int, int]:
        """How far the run is: epochs done, steps done in the next."""
        return self.epoch, self.step

    def start_epoch(self) -> None:
        """Get ready for the rest of an epoch."""
        self.batches.start(self.epoch, self.step)
        self.set_rate()
        if self.step == 0:
            seed = self.recipe.seed
            self.draws.manual_seed(derive(seed, AUGMENT, self.epoch))
            torch.manual_seed(derive(seed, DROPOUT, self.epoch))
            self.totals.zero_()
            self.totals[3] = -1
        elif self.random is not None:
            self.draws.set_state(self.random["random.draws"])
            torch.set_rng_state(self.random["random.global"])
            if "random.cuda" in self.random:
                torch.cuda.set_rng_state(self.random["random.cuda"], self.totals.device)
        self.random = None

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        moment = self.epoch + (self.step + 0.5) / self.batches.steps
        return self.recipe.training.learning_rate_at(moment)

    def set_rate(self) -> None:
        """Tell the optimiser the learning rate of the next step."""
        rate = self.rate
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a captured step reads the tensor, it would never see another number
            else:
                group["lr"] = rate

    def end_epoch(self, totals: Tensor, test_accuracy: float | None, images_per_second: float) -> None:
        """Write down the epoch and go to the next."""
        loss, right, seen = totals[:3].tolist()
        rate = self.recipe.training.learning_rate_at(self.epoch + 0.5)
        self.history.append(
            Epoch(self.epoch + 1, rate, loss / seen, right / seen, test_accuracy, images_per_second)
        )
        self.epoch, self.step = self.epoch + 1, 0

    def check(self, totals: Tensor) -> None:
        """Refuse to go on after a loss that is not a number."""
        bad = int(totals[3])
        if bad >= 0:
            rate = self.recipe.training.learning_rate_at(self.epoch + 0.5)
            kept = f"the last checkpoint in {self.folder} is kept; " if self.keep else ""
            raise TrainingError(
                f"{self.name}: the loss was not finite at step {bad + 1} of epoch {self.epoch + 1} "
                f"(learning rate {rate:g}); {kept}try a smaller training.learning_rate"
            )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors the rest of the run depends on, by name: the live ones, not copies."""
        momenta = {
            f"momentum.{name}": self.optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
        }
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return weights | momenta | {"totals": self.totals}

    def snapshot(self) -> Callable[[], None]:
        """Copy the state of this moment; the function returned writes it, while training may go on.

        Weights that are no longer finite never replace good ones.
        """
        fetch = _copied(self.tensors())
        states = {"random.draws": self.draws.get_state(), "random.global": torch.get_rng_state()}
        if self.totals.is_cuda:
            states["random.cuda"] = torch.cuda.get_rng_state(self.totals.device)
        card = {
            "recipe": self.recipe.to_dict(),
            "epoch": self.epoch,
            "step": self.step,
            "history": [asdict(row) for row in self.history],
        }
        history = list(self.history)

        def write() -> None:
            tensors = fetch()
            if not all(bool(value.isfinite().all()) for value in tensors.values()):
                return
            with replacing(self.checkpoint) as temporary:
                temporary.write_bytes(to_safetensors(tensors | states, {"checkpoint": json.dumps(card)}))
            write_history(history, self.folder / "training.csv")

        return write

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not self.keep or not self.checkpoint.exists():
            return
        with open_tensors(self.checkpoint) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            card = json.loads((file.metadata() or {}).get("checkpoint", "null"))
        if card is None:
            raise InputError(f"{self.checkpoint} is not a checkpoint written by fpa")
        refuse_other_recipe(self.recipe, card["recipe"], self.checkpoint)
        states = {name: found.pop(name) for name in list(found) if name.startswith("random.")}
        mine = self.tensors()
        check_same_tensors(self.checkpoint, self.recipe.model, mine, found)
        with torch.no_grad():
            for name, value in mine.items():
                value.copy_(found[name])
        self.epoch, self.step = card["epoch"], card["step"]
        self.history = [Epoch(**row) for row in card["history"]]
        self.random = states

    @property
    def result(self) -> Path:
        """The file of the trained model."""
        return self.folder / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """The file that holds the state of an unfinished run."""
        return self.folder / "checkpoint.safetensors"


def _copied(tensors: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Copies of tensors as they are now; the function returned gives them on the host, on any thread.

    CUDA, where its memory has room, copies them on the device in a moment and sends them to the host beside
    whatever it does next.
    """
    device = next(iter(tensors.values())).device
    needed = sum(value.nbytes for value in tensors.values())
    if device.type != "cuda" or 4 * needed > torch.cuda.mem_get_info(device)[0]:
        copies = {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
        return lambda: {name: value.contiguous() for name, value in copies.items()}
    copies = {name: value.detach().clone() for name, value in tensors.items()}
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def fetch() -> dict[str, Tensor]:
        with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
            done.wait()
            return {name: value.cpu().contiguous() for name, value in copies.items()}

    return fetch


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


class Steps(Protocol):
    """Advances a group of runs."""

    def __call__(self) -> None:
        """Take one step with every run."""


class EagerSteps:
    """A step at a time, as written."""

    def __init__(self, group: list[Run], trainer: Trainer) -> None:
        self.group, self.trainer = group, trainer

    def __call__(self) -> None:  # noqa: D102
        for run in self.group:
            run.batches.advance()
            images, labels, targets = next_batch(run, self.trainer.precision)
            logits = logits_for(run.network, images, self.trainer.precision)
            loss = functional.cross_entropy(logits, targets)
            run.optimizer.zero_grad()
            self.trainer.accelerator.backward(loss)
            run.optimizer.step()
            count(run.totals, loss.detach(), logits.detach(), labels)


class CapturedSteps:
    """The whole step of every run compiled and captured in one CUDA graph, a stream a run.

    At small batches the time goes into launching kernels; a graph launches them all at once, and the kernels
    of different runs fill the gaps that each leaves.
    """

    def __init__(self, group: list[Run], trainer: Trainer) -> None:
        self.group = group
        self.precision = trainer.precision
        self.forward = compiled(logits_for, repeatable=True)
        self.counted = compiled(count, repeatable=True)
        self.parameters = [[one for one in run.model.parameters() if one.requires_grad] for run in group]
        kept = [
            ({name: value.clone() for name, value in run.tensors().items()}, run.draws.get_state())
            for run in group
        ]
        streams = [torch.cuda.Stream() for _ in group]  # type: ignore[no-untyped-call]
        for warm_up in range(3):
            for run in group:
                if warm_up % run.batches.steps == 0:  # an epoch may have fewer steps than this
                    run.batches.start(run.epoch, 0)
                run.batches.advance()
            self._side_by_side(streams)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        for run in group:
            self.graph.register_generator_state(run.draws)
        with torch.cuda.graph(self.graph):
            self._side_by_side(streams)
        for run, (tensors, draws) in zip(group, kept, strict=True):
            with torch.no_grad():
                for name, value in run.tensors().items():
                    value.copy_(tensors[name])
            run.draws.set_state(draws)

    def __call__(self) -> None:  # noqa: D102
        for run in self.group:
            run.batches.advance()
        self.graph.replay()

    def _side_by_side(self, streams: list[torch.cuda.Stream]) -> None:
        main = torch.cuda.current_stream()
        for run, parameters, stream in zip(self.group, self.parameters, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                images, labels, targets = next_batch(run, self.precision, captured=True)
                logits = self.forward(run.network, images, self.precision)
                # Not compiled: the compiler orders its sums differently from process to process.
                loss = functional.cross_entropy(logits, targets)
                # Not backward(): it accumulates on the stream a parameter was first used on.
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                run.optimizer.step()
                self.counted(run.totals, loss.detach(), logits.detach(), labels)
        for stream in streams:
            main.wait_stream(stream)


def next_batch(run: Run, precision: str, captured: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The run's next images, normalised and perturbed, their labels, and the targets of the loss."""
    images, labels = run.batches.batch(run.draws)
    batch_size, mine = run.recipe.training.batch_size, run.batches.mine
    draws, noise = None, None
    if run.augment is not None:
        shape = (batch_size, images.shape[2], images.shape[3])
        draws = run.augment.draw(shape, images.device, run.draws)
        if isinstance(run.augment.masking, Fill):
            noise = run.augment.masking.noise(images.new_empty((batch_size, *images.shape[1:])), run.draws)
            noise = None if noise is None else noise[mine]
    prepared = _compiled_prepare if captured else prepare
    perturbed = prepared(images, run.normalisation, run.augment, draws, noise, batch_size, mine)
    if run.teacher is None:
        return perturbed, labels, labels
    taught = _compiled_taught if captured else taught_by
    labels, targets = taught(run.teacher, run.normalisation(images), labels, precision)
    return perturbed, labels, targets


def prepare(
    images: Tensor,
    normalisation: Normalisation,
    augment: FPA | Rectangle | None,
    draws: Draws | None,
    noise: Tensor | None,
    batch_size: int,
    mine: slice,
) -> Tensor:
    """Normalised and perturbed images from bytes, the random numbers given.

    The mask is made for the whole batch and cut to this process's share `mine` of it.
    """
    normalised = normalisation(images)
    if augment is None or draws is None:
        return normalised
    height, width = images.shape[2:]
    mask = augment.mask_of(draws, (batch_size, height, width))[mine]
    if isinstance(augment.masking, Fill):
        return augment.masking(normalised, mask, noise)
    return augment.masking(normalised, mask)


_compiled_prepare = compiled(prepare, repeatable=True)


def taught_by(teacher: nn.Module, images: Tensor, labels: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """What a model says of unperturbed images: classes [N] and probabilities [N, K].

    An unreadable image keeps its label and gets no probability at all, so that it counts for nothing.
    """
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = teacher(images)
    readable = labels >= 0
    probabilities = logits.float().softmax(1) * readable[:, None]
    return torch.where(readable, logits.argmax(1), labels), probabilities


_compiled_taught = compiled(taught_by, repeatable=True)


def logits_for(network: nn.Module, images: Tensor, precision: str) -> Tensor:
    """The logits [N, K] in float32, whatever the precision of the network's own arithmetic."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = logits_of(network(images))  # in training, some architectures return more than logits
    assert logits is not None
    return logits.float()


def count(totals: Tensor, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
    """Add a step to a run's totals, on the device."""
    seen = (labels >= 0).sum()
    right = (logits.argmax(1) == labels).sum()
    first_bad = (totals[3] < 0) & ~torch.isfinite(loss)
    bad = torch.where(first_bad, totals[4], totals[3])
    totals.copy_(
        torch.stack([totals[0] + loss * seen, totals[1] + right, totals[2] + seen, bad, totals[4] + 1])
    )


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


def write_history(history: list[Epoch], path: Path) -> None:
    """`training.csv`: a line an epoch."""
    names = [item.name for item in fields(Epoch)]
    lines = [",".join(names)]
    for row in history:
        values = (getattr(row, name) for name in names)
        lines.append(",".join("" if value is None else f"{value:.6g}" for value in values))
    write_text(path, "\n".join(lines) + "\n")


def clear_training(folder: Path) -> None:
    """Remove what training left of a model, and nothing else."""
    for file in ("model.safetensors", "checkpoint.safetensors", "training.csv"):
        (folder / file).unlink(missing_ok=True)


def refuse_other_recipe(recipe: Recipe, found: dict[str, Any], path: Path) -> None:
    """Refuse to go on with a model that was trained by another recipe, and show the difference."""
    later = ("augmentations:", "data.evaluation_images:", "evaluation")  # what a model does not depend on
    changed = [line for line in differences(recipe.to_dict(), found) if not line.startswith(later)]
    if changed:
        raise InputError(
            f"{path} was made by another recipe ({'; '.join(changed)}): choose another --output, "
            "or --overwrite to start anew"
        )


def check_device(device: str | None) -> None:
    """Refuse a device that this machine does not have."""
    if device not in (None, "cpu", "cuda", "mps"):
        raise InputError(f"device must be cpu, cuda or mps, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda was asked for, but PyTorch finds no CUDA device here")
    if device == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps was asked for, but PyTorch finds no Apple GPU here")


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
