"""Options that several commands share: which model and images, and where to work."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fpa
from fpa.errors import LARGEST_SIDE, MOST_WORKERS, InputError, at_least, printable
from fpa.study.recipe import SMALL

if TYPE_CHECKING:
    from torch import nn

    from fpa.data.splits import ImageData
    from fpa.models.hubs import Opened


@dataclass(kw_only=True)
class RunOptions:
    """Where to work.

    Attributes:
        output: Folder for the results; default: a folder in runs/, named after the recipe or the model.
        device: cpu, cuda, cuda:N or mps; default: the best available.
        overwrite: Delete the earlier results in the folder and start afresh.
        quiet: Show errors only.
        estimate: Say what it would take (time, memory, disk) after a few passes, and stop.

    """

    output: Path | None = None
    device: str | None = None
    overwrite: bool = False
    quiet: bool = False
    estimate: bool = False

    def __post_init__(self) -> None:
        if self.device is not None:
            from fpa.engine.devices import check_device

            check_device(self.device)


@dataclass(frozen=True)
class NamedModel:
    """The model that was named in a command, and what is known about its images."""

    model: "nn.Module"
    name: str
    classes: list[str] | None
    normalisation: "fpa.Normalisation"
    data: str
    """The name of the data set."""
    size: int
    """The side of the images in pixels."""
    elsewhere: str = ""
    """The name of the data where they are not those that the model was trained on."""


@dataclass(kw_only=True)
class ModelOptions:
    """The model and its images.

    Attributes:
        weights: Weights of the model, if it has none yet: .safetensors, a state dict saved by torch.save, or
            DEFAULT, those that torchvision or timm publish for it (from their cache, or over the network).
        data: Name of a data set, or folder:PATH; default: the data set that the model was trained on.
        data_root: Folder that holds the data sets.
        mean: Mean of each channel of the model's images, for pixels in 0..1; default: the model's own.
        std: Standard deviation of each channel, likewise.
        size: Side of the images in pixels; default: the model's own, or 224.
        class_index: Which output of the model is which class of the images: a list, or a JSON file.
        workers: Processes that read and decode image files.

    """

    weights: Path | None = None
    data: str | None = None
    data_root: str = "data"
    mean: list[float] | None = None
    std: list[float] | None = None
    size: int | None = None
    class_index: str | None = None
    workers: int = 8

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise InputError("give both --mean and --std, or neither")
        at_least("--workers", self.workers, 0, MOST_WORKERS)
        at_least("--size", self.size, 1, LARGEST_SIDE)

    def open(self, model: str) -> NamedModel:
        """The model of this name, or the error that says what else must be given."""
        from fpa.data.splits import USUAL_SIDE

        normalisation = None
        if self.mean is not None and self.std is not None:
            normalisation = fpa.Normalisation(tuple(self.mean), tuple(self.std))
        opened = fpa.open_model(model, self.weights, normalisation=normalisation)
        data = self.data or opened.data
        if data is None:
            raise InputError("say which images: --data folder:PATH, or the name of a data set")
        if opened.normalisation is None:
            raise InputError(
                f"{model} does not say how its images are normalised: give --mean and --std, for pixels in "
                "0..1 (for instance --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5 for images in -1..1)"
            )
        if data in SMALL and self.size not in (None, 32):
            raise InputError(f"--size is for data sets of files: the images of {data} are 32 px")
        return NamedModel(
            opened.model,
            opened.name,
            classes=opened.classes,
            normalisation=opened.normalisation,
            data=data,
            size=self.size or opened.size or USUAL_SIDE,
            elsewhere="" if data == opened.data else Path(data.rpartition(":")[2]).absolute().name,
        )

    def judge(self, name: str, subject: NamedModel) -> "Opened":
        """The model that judges the subject's maps; it must take the same images."""
        from fpa.data.labels import other_classes
        from fpa.models.architectures import parse_model_name
        from fpa.models.saved import STATE_DICTS

        kind = parse_model_name(name).kind
        if kind not in ("file", "function", "hf") or Path(name).suffix in STATE_DICTS:
            needed = "a .safetensors file that fpa has written, a shipped model, hf:NAME or module:function"
            raise InputError(f"a judge must be {needed}, got {name}")
        opened = fpa.open_model(name)
        refused = f"{name} cannot judge {subject.name}:"
        if opened.classes and subject.classes:
            differ = other_classes(opened.classes, subject.classes)
            if differ:
                raise InputError(f"{refused} {differ}")
        if opened.size not in (None, subject.size):
            raise InputError(f"{refused} its size is {opened.size}, not {subject.size}")
        if opened.normalisation not in (None, subject.normalisation):
            own = opened.normalisation
            raise InputError(f"{refused} its normalisation is {own}, not {subject.normalisation}")
        return opened

    def evaluation_data(self, subject: NamedModel, count: int | None) -> "ImageData":
        """The images to evaluate a model on."""
        from fpa.data.sets import load_evaluation_data

        return load_evaluation_data(subject.data, self.data_root, evaluation_images=count, size=subject.size)


def show_estimate(estimate: "fpa.Estimate") -> int:
    """Print what work would take; returns the exit code."""
    from fpa.files import is_main_process

    if is_main_process():
        print(estimate)
    return 0


def show(results: "fpa.Results", folder: Path, quiet: bool) -> int:
    """Print results and where their report is; returns the exit code."""
    if not quiet:
        from rich.console import Console

        from fpa.show.tables import terminal

        Console().print(terminal(results))
        print(printable(f"report: {folder / 'report.html'}"))
    return 0
