"""One model being trained, and all that a checkpoint of it must hold."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fpa.data.splits import ImageData
from fpa.errors import InputError, first_line
from fpa.files import read_tensors, tensors_and_texts, write_tensors, write_text
from fpa.given import unseen
from fpa.models.saved import ModelCard, check_same_tensors
from fpa.models.tokens import tokens_of
from fpa.models.wrap import untouched
from fpa.progress import training_stage
from fpa.seeds import Stream, derive
from fpa.training.augment import FPA, Cell, Rectangle
from fpa.training.batches import LoaderBatches
from fpa.training.differences import training_differences
from fpa.training.settings import TrainingSettings
from fpa.training.tokens import DropTokens, TokenNetwork
from fpa.training.twins import TwinDistance, read_distance

if TYPE_CHECKING:
    from fpa.training.trainer import Trainer


class TrainingError(InputError):
    """Training cannot continue; the last checkpoint is still there."""


@dataclass(frozen=True)
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

    name: str
    seed: int
    path: Path | None
    """The model file; None where nothing was to be written."""
    accuracy: float | None
    """On the test images, if there are any."""
    model: nn.Module | None = field(default=None, compare=False, repr=False)
    """The trained model; None where an earlier run had finished it."""
    distance: TwinDistance | None = None
    """How far it is from the model that it began with, where that was asked for."""

    def state(self) -> dict[str, Tensor]:
        """The weights."""
        if self.model is not None:
            return self.model.state_dict()
        assert self.path is not None
        return read_tensors(self.path)


@dataclass(frozen=True)
class Job:
    """A model to train.

    Attributes:
        name: What it is called, on the screen and in a study's folder.
        settings: The optimisation; the same for all jobs that are trained together.
        seed: Seed of the order of the images, of the augmentation and of dropout.
        model: Makes the model that the training begins with.
        description: All that determines the weights, as plain values. The model file keeps it as its recipe,
            and a run is continued only if it is the same.
        augment: Perturbs the batches; None: nothing does.
        teacher: Where given, the targets are what it says of the unperturbed images, instead of the labels.
        clean: The share of the loss that the unperturbed images have.
        way: How much of the way from the weights at the start to those at the end the result goes.
        compared: Where given, says of the trained model how far it has moved.
        folder: Where the results go; None: nothing is written.
        card: What the model file will say, but for the accuracy and the recipe; needed with a folder.
        locked: The folder to lock for the training; None: `folder`. A study locks its own.

    """

    name: str
    settings: TrainingSettings
    seed: int
    model: Callable[[], nn.Module]
    description: dict[str, Any]
    augment: FPA | Rectangle | Cell | DropTokens | None = None
    teacher: nn.Module | None = None
    clean: float = 0.0
    way: float = 1.0
    compared: Callable[[nn.Module], TwinDistance] | None = None
    folder: Path | None = None
    card: ModelCard | None = None
    locked: Path | None = None

    @property
    def self_taught(self) -> bool:
        """Whether a teacher, the model as it was, says what is to be learned.

        The network then has something to lose: it is trained in evaluation mode, with the statistics of its
        batch norms as they are and nothing dropped, by AdamW instead of SGD.
        """
        return self.teacher is not None

    @property
    def path(self) -> Path | None:
        """The file of the trained model."""
        return None if self.folder is None else self.folder / "model.safetensors"

    def finished(self, card: ModelCard) -> Trained:
        """The run of this job that has left a file with this card."""
        distance = None if card.distance is None else read_distance(card.distance)
        return Trained(self.name, self.seed, self.path, card.accuracy, distance=distance)

    def card_of(self, accuracy: float | None, distance: TwinDistance | None) -> ModelCard:
        """What the file of the trained model says."""
        assert self.card is not None
        moved = None if distance is None else distance.to_json()
        return replace(self.card, accuracy=accuracy, recipe=self.description, distance=moved)

    @property
    def stage(self) -> str:
        """What the training is called on the screen."""
        return training_stage(self.name, self.seed)

    def refuse_other(self, description: dict[str, Any], path: Path) -> None:
        """Refuse to continue what was trained with other settings, and show the difference."""
        remedy = "choose another --output, or --overwrite to start again"
        for name, reason in unseen(self.description.get("code", {})).items():
            raise InputError(f"{path} cannot be continued with {name} ({reason}): {remedy}")
        if changed := training_differences(self.description, description):
            raise InputError(f"{path} was trained with other settings ({'; '.join(changed)}): {remedy}")


class Run:
    """One model being trained, at its beginning or where its checkpoint stands."""

    def __init__(self, job: Job, data: ImageData | LoaderBatches, trainer: "Trainer") -> None:
        device = trainer.device
        captured = trainer.captured
        settings = job.settings
        self.job = job
        self.model = job.model().to(device)
        # A captured step repeats its kernels with the addresses they had. What changes from step to step, the
        # learning rate and the counts of AdamW, therefore lives in tensors that the host writes into.
        rate: Any = torch.tensor(0.0, device=device) if captured else 0.0
        self.optimizer: torch.optim.Optimizer
        if job.self_taught:
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(),
                lr=rate,
                weight_decay=settings.weight_decay,
                fused=captured or None,
                capturable=captured,
                eps=1e-6,  # gradients that are mere rounding must not be made as large as any other
            )
        else:
            self.optimizer = torch.optim.SGD(
                self.model.parameters(),
                lr=rate,
                weight_decay=settings.weight_decay,
                fused=captured or None,
                momentum=settings.momentum,
            )
        # The moments are made here and not by the first step: a graph that is captured before it, and a
        # checkpoint that is read into them, need them to be there.
        for parameter in self.model.parameters():
            for moment in ("exp_avg", "exp_avg_sq") if job.self_taught else ("momentum_buffer",):
                self.optimizer.state[parameter][moment] = torch.zeros_like(parameter)
            if job.self_taught:
                self.optimizer.state[parameter]["step"] = torch.zeros((), device=device if captured else None)
        accelerator = trainer.accelerator
        processes = trainer.processes
        given: nn.Module = TokenNetwork(self.model) if self.drops_tokens else self.model
        self.network = accelerator.prepare_model(given) if processes > 1 else given
        self.network.train(not job.self_taught)
        self.batches = trainer.batches(data, job.seed)
        self.normalisation: Callable[[Tensor], Tensor] = data.normalisation
        self.teacher = None if job.teacher is None else copy.deepcopy(job.teacher).to(device).eval()
        self.draws = torch.Generator(device)
        self.totals = torch.zeros(5, device=device)
        """Totals of all processes: loss summed over images, right, seen, the first bad step or -1, steps."""
        self.epoch = self.step = 0
        self.history: list[Epoch] = []
        self.distance: TwinDistance | None = None
        self._tokens: int | None = None
        self.random: dict[str, Tensor] | None = None  # states of the generators, until a checkpoint continues
        self.restore()

    @property
    def drops_tokens(self) -> bool:
        """Whether the number of tokens, and with it the shape of a step, changes from step to step."""
        return isinstance(self.job.augment, DropTokens)

    def token_count(self, images: Tensor) -> int:
        """How many tokens images have."""
        if self._tokens is None:
            with torch.no_grad(), untouched(self.model):
                self._tokens = tokens_of(self.model, images[:1]).shape[1]
        return self._tokens

    @torch.no_grad()
    def go_part_of_the_way(self) -> None:
        """Put the weights between those of the start and those that were learned."""
        start = self.job.model().state_dict()
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                value.lerp_(start[name].to(value.device), 1 - self.job.way)

    def trained(self) -> Trained:
        """The run, finished."""
        job = self.job
        accuracy = self.history[-1].test_accuracy
        return Trained(job.name, job.seed, job.path, accuracy, model=self.model, distance=self.distance)

    @property
    def position(self) -> tuple[int, int]:
        """How far the run is: epochs done, steps done in the next."""
        return self.epoch, self.step

    def start_epoch(self) -> None:
        """Get ready for the rest of an epoch, whose batches have been started."""
        self.set_rate()
        if self.step == 0:
            # Seeds of the epoch, not a stream over all epochs: an epoch is the same whatever came before.
            self.draws.manual_seed(derive(self.job.seed, Stream.AUGMENT, self.epoch))
            torch.manual_seed(derive(self.job.seed, Stream.DROPOUT, self.epoch))
            self.totals.zero_()
            self.totals[3] = -1
        elif self.random is not None:
            self.draws.set_state(self.random["random.draws"])
            torch.set_rng_state(self.random["random.global"])
            if "random.cuda" in self.random:
                torch.cuda.set_rng_state(self.random["random.cuda"], self.totals.device)
        self.random = None

    def set_rate(self) -> None:
        """Tell the optimiser the learning rate of the next step."""
        rate = self.job.settings.learning_rate_at(self.epoch + (self.step + 0.5) / self.batches.steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a captured step reads the tensor, it would never see another number
            else:
                group["lr"] = rate

    def end_epoch(self, totals: Tensor, test_accuracy: float | None, images_per_second: float) -> None:
        """Add the epoch to the history and go to the next."""
        loss, right, seen = totals[:3].tolist()
        if seen == 0:
            remedy = "try targets='model' or larger batches"
            raise InputError(f"nothing to learn from: no batch has labels and at least two images; {remedy}")
        rate = self.job.settings.learning_rate_at(self.epoch + 0.5)
        self.epoch = self.epoch + 1
        self.step = 0
        self.history.append(
            Epoch(
                self.epoch,
                rate,
                loss=loss / seen,
                accuracy=right / seen,
                test_accuracy=test_accuracy,
                images_per_second=images_per_second,
            )
        )

    def checked_totals(self) -> Tensor:
        """The totals, on the host; after a loss that is not finite, training is refused."""
        totals = self.totals.cpu()
        if (bad := int(totals[3])) >= 0:
            rate = self.job.settings.learning_rate_at(self.epoch + 0.5)
            safe = f"the last checkpoint in {self.job.folder} is kept; " if self.job.folder else ""
            place = f"{self.job.stage}: the loss was not finite at step {bad + 1} of epoch {self.epoch + 1}"
            raise TrainingError(f"{place} (learning rate {rate:g}); {safe}try a smaller learning_rate")
        return totals

    def tensors(self) -> dict[str, Tensor]:
        """The tensors the rest of the run depends on, by name: the live ones, not copies."""
        state = self.optimizer.state
        parameters = self.model.named_parameters()
        momenta = {
            f"{kind.removesuffix('_buffer')}.{name}": value
            for name, each in parameters
            for kind, value in state[each].items()
        }
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return weights | momenta | {"totals": self.totals}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Give the live tensors these values."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])

    def snapshot(self) -> Callable[[], None]:
        """Copy the state of this moment; the function returned writes it, while training may go on.

        Weights that are no longer finite never replace good ones.
        """
        # Everything is copied before this returns, the states of the generators too: the next step changes
        # all of it at once, and a checkpoint of two moments would continue in neither.
        fetch = _copied(self.tensors())
        states = {"random.draws": self.draws.get_state(), "random.global": torch.get_rng_state()}
        if self.totals.is_cuda:
            states["random.cuda"] = torch.cuda.get_rng_state(self.totals.device)
        history = list(self.history)
        checkpoint = self.checkpoint
        place = {"epoch": self.epoch, "step": self.step, "history": [vars(row) for row in history]}
        card = json.dumps({"description": self.job.description, **place})

        def write() -> None:
            tensors = fetch()
            if checkpoint is None or not all(bool(value.isfinite().all()) for value in tensors.values()):
                return
            # One file, replaced whole: a run that is killed here finds the one before.
            write_tensors(checkpoint, tensors | states, {"checkpoint": card})
            write_history(history, checkpoint.with_name("training.csv"))

        return write

    def restore(self) -> None:
        """Continue from the checkpoint, if there is one."""
        path = self.checkpoint
        if path is None or not path.exists():
            return
        try:
            stored, texts = tensors_and_texts(path)
            if "checkpoint" not in texts:
                raise InputError(f"{path} is not a checkpoint written by fpa")
            card = json.loads(texts["checkpoint"])
            description = card["description"]
            position = (card["epoch"], card["step"])
            history = [_epoch(row) for row in card["history"]]
        except (InputError, ValueError, KeyError, TypeError) as error:
            remedy = "remove it, or --overwrite, to train from the start"
            raise InputError(f"{path} cannot be continued: {first_line(error)}; {remedy}") from error
        self.job.refuse_other(description, path)
        self.random = {name: stored.pop(name) for name in list(stored) if name.startswith("random.")}
        check_same_tensors(path, str(self.job.description.get("model")), self.tensors(), stored)
        self.load(stored)
        (self.epoch, self.step) = position
        self.history = history

    @property
    def checkpoint(self) -> Path | None:
        """The file that holds the state of an unfinished run."""
        return None if self.job.folder is None else self.job.folder / "checkpoint.safetensors"


def _copied(tensors: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Copies of tensors as they are now; the function returned gives them on the host, on any thread.

    CUDA, where its memory has room, copies them on the device in a moment and sends them to the host beside
    whatever it does next.
    """
    device = next(iter(tensors.values())).device
    needed = sum(value.nbytes for value in tensors.values())
    # A quarter of what is free at most: the next step may need the rest.
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


def _epoch(row: dict[str, Any]) -> Epoch:
    """A row of the history, as a checkpoint holds it."""
    return Epoch(
        epoch=row["epoch"],
        learning_rate=row["learning_rate"],
        loss=row["loss"],
        accuracy=row["accuracy"],
        test_accuracy=row["test_accuracy"],
        images_per_second=row["images_per_second"],
    )


def write_history(history: list[Epoch], path: Path) -> None:
    """Write `training.csv`: one line per epoch."""
    rows = [["" if value is None else f"{value:.6g}" for value in vars(row).values()] for row in history]
    write_text(path, "".join(",".join(row) + "\n" for row in [list(Epoch.__annotations__), *rows]))
