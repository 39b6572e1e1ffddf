"""One model being trained, and all that a checkpoint of it must hold."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from fpa.data.normalisation import Normalisation
from fpa.errors import InputError, differences
from fpa.files import replacing, write_text
from fpa.models.saved import check_same_tensors, open_tensors
from fpa.progress import training_stage
from fpa.seeds import derive
from fpa.study.recipe import Recipe
from fpa.training.augment import FPA, Rectangle
from fpa.training.batches import Batches

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
