"""Options that several commands share: which model and images, how to evaluate, where to work."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fpa
from fpa.errors import InputError, at_least, printable
from fpa.evaluation.options import AuditOptions, EvaluateOptions
from fpa.study.recipe import SMALL
from fpa.typed import typed_fields

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fpa.data.source import ImageSource
    from fpa.models.hubs import Opened


LARGEST_SIDE = 4096
"""Of an image, in pixels: larger ones fill the memory."""

LONGEST_NAME = 80
"""Characters of the settings in the name of a folder."""


@dataclass(kw_only=True)
class RunOptions:
    """Where to work.

    Attributes:
        output: Folder for the results; default: a folder in runs/, named after the recipe or the model.
        device: cpu, cuda, cuda:N or mps; default: the best available.
        overwrite: Delete the earlier results in the folder and start afresh.
        quiet: Show errors only.

    """

    output: Path | None = None
    device: str | None = None
    overwrite: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.device is not None:
            from fpa.engine.devices import check_device

            check_device(self.device)

    @property
    def place(self) -> dict[str, Any]:
        """The arguments of the functions that train models."""
        return {"device": self.device, "overwrite": self.overwrite}


class Subject(NamedTuple):
    """The model of a command, and what is known about its images."""

    model: "nn.Module"
    name: str
    classes: list[str] | None
    normalisation: "fpa.Normalisation"
    data: str
    size: int
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
        at_least("--workers", self.workers, 0)
        at_least("--size", self.size, 1)
        if self.size is not None and self.size > LARGEST_SIDE:
            raise InputError(f"--size must be at most {LARGEST_SIDE} pixels, got {self.size}")

    def open(self, model: str) -> Subject:
        """The model of this name, or the error that says what else must be given."""
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
        size = self.size or opened.size or 224
        facts: dict[str, Any] = {"data": data, "size": size}
        if data != opened.data:
            facts["elsewhere"] = Path(data.rpartition(":")[2]).absolute().name
        return Subject(opened.model, opened.name, opened.classes, opened.normalisation, **facts)

    def judge(self, name: str, subject: Subject) -> "Opened":
        """The model that judges the subject's maps; it must take the same images."""
        from fpa.data.labels import other_classes
        from fpa.models.architectures import parse_model_name
        from fpa.models.saved import STATE_DICTS

        kind = parse_model_name(name).kind
        if kind not in ("file", "function", "hf") or Path(name).suffix in STATE_DICTS:
            needed = "a .safetensors file that fpa has written, a shipped model, hf:NAME or module:function"
            raise InputError(f"a judge must be {needed}, got {name}")
        opened = fpa.open_model(name)
        theirs, ours = opened.classes, subject.classes
        if theirs and ours and (differ := other_classes(theirs, ours)):
            raise InputError(f"{name} cannot judge {subject.name}: {differ}")
        expected = {"size": subject.size, "normalisation": subject.normalisation}
        for fact, value in expected.items():
            if (own := getattr(opened, fact)) not in (None, value):
                raise InputError(f"{name} cannot judge {subject.name}: its {fact} is {own}, not {value}")
        return opened

    def images(self, subject: Subject, count: int | None) -> "tuple[ImageSource, str | None]":
        """The images to evaluate the model on, and a sentence about labels that are not certain."""
        import torch

        from fpa.data.labels import labels_for
        from fpa.data.sets import load_evaluation_data
        from fpa.models.wrap import class_count, classifier, input_channels
        from fpa.show import words

        data = load_evaluation_data(subject.data, self.data_root, evaluation_images=count, size=subject.size)
        channels = input_channels(subject.model) or data.input_shape[0]
        outputs = class_count(subject.model, (channels, *data.input_shape[1:]))

        how: dict[str, Any] = {"normalisation": subject.normalisation, "workers": self.workers}

        @cache
        def answers() -> "tuple[Tensor, Tensor]":
            places = torch.linspace(0, len(data.evaluation) - 1, min(len(data.evaluation), 100)).long()
            few = fpa.image_source(
                replace(data, evaluation=data.evaluation[places]), channels=channels, **how
            )
            engine = fpa.Engine(classifier(subject.model, few.first))
            parts = [(engine.predict(each.images).argmax(1), each.labels) for each in few.blocks(16)]
            predicted, known = map(torch.cat, zip(*parts, strict=True))
            return predicted.cpu(), known

        def right(numbers: list[int]) -> int:
            predicted, known = answers()
            return int((predicted == torch.tensor(numbers)[known]).sum())

        wanted = (subject.classes, self.class_index)
        labels, note = labels_for(data.classes, outputs, *wanted, right=right)
        labels = [-1] * len(data.classes) if labels is None else labels
        said = None if note is None else words.clause(note, words.Reader(at_shell=True))
        return fpa.image_source(data, channels=channels, labels=labels, **how), said


def engine_for(
    model: "nn.Module", source: "ImageSource", how: EvaluateOptions | AuditOptions, device: str | None
) -> "fpa.Engine":
    """The model, ready for many passes."""
    from fpa.engine.devices import chosen_device
    from fpa.evaluation.plan import checked_precision
    from fpa.models.wrap import classifier

    network = classifier(model, source.first, chosen_device(device))
    precision = checked_precision(how.precision)
    return fpa.Engine(network, precision=precision, batch_size=how.batch_size)


NOT_IN_NAMES = ("count", "batch_size", "examples", "score_images")
"""Options that do not tell the folder of a result from others; the count stands at the end of its name."""


def told_apart(how: EvaluateOptions | AuditOptions) -> str:
    """What was set of the options, for the name of a folder."""
    usual = vars(type(how)())
    names = [name for name in typed_fields(how) if name not in NOT_IN_NAMES]
    chosen = {name: getattr(how, name) for name in names}
    return in_a_name({name: value for name, value in chosen.items() if value != usual[name]})


def in_a_name(settings: Mapping[str, Any]) -> str:
    """Settings as a part of a folder's name; of many the beginning.

    Where two share it, the folder of the first refuses the second, whose plan is another.

    >>> in_a_name({"ig_steps": 5, "masking": {"name": "blur", "sigma": 4}, "scores": ["A", "deletion"]})
    'ig_steps5-masking-blur-sigma4-scores-A+deletion'
    """

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return "-".join(
                part if key == "name" else f"{key}{part}"
                for key, part in zip(value, map(text, value.values()), strict=True)
            )
        listed = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        return "+".join(re.sub(r"[^\w.]+", "", str(each)) for each in listed)

    parts = {name: text(value) for name, value in settings.items() if value is not None}
    whole = "-".join(f"{name}{'' if part[:1].isdigit() else '-'}{part}" for name, part in parts.items())
    return whole[:LONGEST_NAME].rstrip("-+.")


def default_output(*parts: str | int | None) -> Path:
    """The folder of a command's results where none is named, from what tells them from others.

    >>> str(default_output("evaluate", "shapes-fpa", 50)), str(default_output("evaluate", "shapes-fpa", None))
    ('runs/evaluate-shapes-fpa-50', 'runs/evaluate-shapes-fpa')
    """
    return Path("runs") / "-".join(str(part) for part in parts if part)


def show(results: "fpa.Results", folder: Path, quiet: bool) -> int:
    """Print results and where their report is; returns the exit code."""
    if not quiet:
        from rich.console import Console

        from fpa.show.tables import terminal

        Console().print(terminal(results))
        print(printable(f"report: {folder / 'report.html'}"))
    return 0
