"""Fine-tuning with FPA: a few epochs from existing weights, so that a model becomes fit for evaluation.

A data set is trained on by `train.py`, with its captured steps, checkpoints and history; a loader of your own
by the plain loop below, with the same loss and the same perturbation. What is chosen, and why:

- SGD with momentum, the learning rate up over the first tenth of the steps and down to 0 along a cosine: the
  first steps do not throw the model off, and the last ones settle it, however few there are.
- No weight decay: whatever changes in the weights, changes because of the masked pixels.
- Batch norms use and update their statistics as in any training. Keeping the old ones looks gentler, but
  masked pixels shift the activations, and with frozen statistics training diverges at learning rates that
  are harmless otherwise.
"""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fpa.data.forms import collated, is_batch, single_images
from fpa.data.labels import class_numbers, relabelled
from fpa.data.loaders import image_batches
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.data.sets import tuning_data
from fpa.data.splits import UNREADABLE, ImageData, evaluation_batches
from fpa.engine.devices import check_device, chosen_device
from fpa.errors import InputError, unknown
from fpa.masking import MASKINGS, get_masking
from fpa.models.saved import ModelCard, fingerprint
from fpa.models.wrap import class_count, classifier, input_channels, unwrapped
from fpa.progress import Display
from fpa.seeds import derive
from fpa.study.recipe import DataSettings, Recipe
from fpa.training.augment import FPA
from fpa.training.run import AUGMENT, DROPOUT, Epoch, Job, TrainingError, clear_training
from fpa.training.settings import FPASettings, TrainingSettings, suggested_fpa
from fpa.training.steps import count, logits_for, taught_by
from fpa.training.trainer import Trainer, check_data, train_jobs

TARGETS = ("auto", "labels", "model")


Targets = Literal["auto", "labels", "model"]


ClassIndex = Mapping[str, int] | Sequence[int]


@dataclass
class Finetuning(Recipe):
    """The recipe of a fine-tuning: a training's, where it begins and what it is taught.

    Attributes:
        start: Fingerprint of the weights it begins with.
        targets: labels, or model for the original model's own predictions.
        class_index: The model's class for each class of the data; null: they are the same.

    """

    start: str = ""
    targets: Literal["labels", "model"] = "labels"
    class_index: list[int] | None = None


def finetune(
    model: nn.Module,
    data: Any,
    *,
    epochs: int = 2,
    learning_rate: float = 0.003,
    batch_size: int = 64,
    fpa: FPA | None = None,
    targets: Targets = "auto",
    class_index: ClassIndex | None = None,
    normalisation: Normalisation | None = None,
    seed: int = 0,
    device: str | None = None,
    output: Path | str | None = None,
    inplace: bool = False,
    data_root: Path | str = "data",
    workers: int = 8,
    overwrite: bool = False,
    display: Display | None = None,
) -> nn.Module:
    """A copy of the model after a few epochs with FPA, in evaluation mode, on the device of the original.

    `data` is the name of a data set (`shapes`, `cifar10`, `folder:PATH`, ...), an `ImageData`, or your own
    `DataLoader` of normalised images and labels; a `Dataset`, or images and labels as `evaluate` takes them,
    are shuffled into batches. The same seed gives the same weights on a CPU; a loader that shuffles with a
    generator of its own must be given afresh for that.

    Frozen weights (`requires_grad=False`) stay as they are, unless all are frozen, as models for inference
    come: then all are trained. It is done in float32, the result has the precision of the model.

    With targets "labels" the model learns the data's labels, mapped by `class_index` (a dict from the data's
    class names, or a list, to the model's classes) where the model has others. With "model" it learns to say
    of a masked image what the original says of the unmasked one (self-distillation): no labels are needed,
    and the function that is explained stays as close as possible to the original. "auto" takes the labels if
    `class_index` is given or the classes are the model's, by name or, if it has no names, by their number;
    otherwise the model, also where the data have some of its classes only: it would forget the others.

    `fpa` sets the perturbation and its masking; default: the paper's for the image size. `output` is a folder
    for model.safetensors and training.csv, for models that fpa can build again (`load_model`); a stopped
    run goes on from there. `inplace=True` changes and returns the model itself.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    >>> images, labels = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    >>> tuned = finetune(model, (images, labels), epochs=1, batch_size=8, device="cpu")
    >>> tuned(images).shape, tuned is model
    (torch.Size([32, 4]), False)
    """
    check_device(device)
    if targets not in TARGETS:
        raise unknown("targets", targets, TARGETS)
    try:
        settings = TrainingSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=0.0,
            schedule="warm-cosine",
        )
    except InputError as error:  # here they are arguments, not fields of a recipe
        raise InputError(str(error).replace("training.", "")) from error
    original = unwrapped(model)
    tuned = copy.deepcopy(original).float()
    if not any(parameter.requires_grad for parameter in tuned.parameters()):
        tuned.requires_grad_(True)
    card: ModelCard | None = getattr(original, "card", None)
    normalisation = as_normalisation(normalisation)
    if normalisation is None and card is not None:
        normalisation = Normalisation(card.mean, card.std)
    display = display or Display(quiet=True)
    if isinstance(data, str):
        data = tuning_data(data, data_root, size=224 if card is None else card.input_shape[-1])
    task = _Task(tuned, card, settings, fpa, targets, class_index, normalisation, seed, device, display)
    if isinstance(data, ImageData):
        task.with_data(data, None if output is None else Path(output), str(data_root), workers, overwrite)
    elif output is not None:
        raise InputError(
            "output needs a data set (a name, folder:PATH or an ImageData): with a loader of your own, save "
            "the model that is returned"
        )
    else:
        task.with_loader(data)
    result = original if inplace else copy.deepcopy(original)
    with torch.no_grad():
        for old, new in zip(_tensors(result), _tensors(tuned), strict=True):
            old.copy_(new)
    if card is not None:
        result.card = tuned.card
    return (model if inplace else result).eval()


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@dataclass
class _Task:
    """What both ways of fine-tuning need; `tuned` gets the new weights."""

    tuned: nn.Module
    card: ModelCard | None
    settings: TrainingSettings
    fpa: FPA | None
    targets: Targets
    class_index: ClassIndex | None
    normalisation: Normalisation | None
    seed: int
    device: str | None
    display: Display

    def with_data(
        self, data: ImageData, output: Path | None, root: str, workers: int, overwrite: bool
    ) -> None:
        """Fine-tune on a data set, with everything training has."""
        if self.normalisation is not None:
            data = replace(data, normalisation=self.normalisation)
        self.settings = replace(self.settings, batch_size=min(self.settings.batch_size, len(data.train)))
        network = classifier(self.tuned, torch.zeros(1, *data.input_shape))
        outputs = _outputs(network, data.input_shape)
        index = None
        if self.targets != "model":
            index = self._matched(data.classes, outputs)
        classes = [str(number) for number in range(outputs)] if self.card is None else self.card.classes
        augment = self._augment(data.input_shape[1], data.input_shape[2])
        recipe = Finetuning(
            name="finetune",
            model=type(self.tuned).__name__ if self.card is None else self.card.architecture,
            augmentations=["fpa"],
            masking=_masking_name(augment, data.normalisation, needed=output is not None),
            seed=self.seed,
            data=DataSettings(data.name, root, size=data.input_shape[-1], workers=workers),
            training=self.settings,
            fpa=_fpa_settings(augment),
            start=fingerprint(self.tuned),
            targets="model" if index is None else "labels",
            class_index=None if index == list(range(outputs)) else index,
        )
        if output is not None and self.card is None:
            raise InputError(
                f"a model file can only be written of a model that fpa can build again, not of a "
                f"{recipe.model}: leave out output and save the model that is returned"
            )
        if index is None:
            data = _labelled_by(network, data, classes, chosen_device(self.device), workers)
        else:
            data = relabelled(data, classes, index)
        check_data(recipe, data, network)
        job = Job(
            recipe,
            "fpa",
            output or Path(),
            model=network,
            teacher=network if index is None else None,
            augment=augment,
            keep=output is not None,
        )
        if output is None:
            trainer = Trainer(recipe, job.folder, self.device, None, self.display)
            (run,) = trainer.finished([job], data)
            network.load_state_dict(run.model.state_dict())
            accuracy = run.history[-1].test_accuracy
        else:
            if overwrite:
                clear_training(output)
            (trained,) = train_jobs([job], data=data, device=self.device, display=self.display)
            network.load_state_dict(load_file(trained.path))
            accuracy = trained.accuracy
        if self.card is not None:
            card = replace(self.card, augmentation="fpa", accuracy=accuracy, recipe=recipe.to_dict())
            self.tuned.card = card  # type: ignore[assignment]

    def with_loader(self, data: Any) -> None:
        """Fine-tune on the batches of a loader, one after another."""
        settings, place = self.settings, torch.device(chosen_device(self.device))
        forked = [place] if place.type == "cuda" else []
        with torch.random.fork_rng(forked):
            # The seed also decides how a loader without a generator of its own shuffles.
            torch.manual_seed(derive(self.seed, DROPOUT))
            batches, steps = self._batches(data)
            first, labels, _ = next(iter(batches))
            self.tuned.to(place)
            network = classifier(self.tuned, first)
            outputs = _outputs(network, (first.shape[1], first.shape[2], first.shape[3]))
            taught = self.targets == "model" or (self.targets == "auto" and bool((labels < 0).all()))
            if taught and self.targets == "auto":
                self.display.say("the images have no labels: learning the model's own predictions")
            teacher = copy.deepcopy(network).eval() if taught else None
            index = self._index_of_labels(outputs, place)
            draws = torch.Generator(place)
            augment = self._augment(first.shape[2], first.shape[3])
            augment = FPA(**asdict(_fpa_settings(augment)), masking=augment.masking, generator=draws)
            augment.check(first)
            optimizer = torch.optim.SGD(network.parameters(), settings.learning_rate, settings.momentum)
            precision = "bfloat16" if place.type == "cuda" else "float32"
            for epoch in range(settings.epochs):
                torch.manual_seed(derive(self.seed, DROPOUT, epoch))
                draws.manual_seed(derive(self.seed, AUGMENT, epoch))
                network.train()
                totals = torch.zeros(5, device=place)
                totals[3] = -1
                began = time.monotonic()
                for step, (images, labels, _) in enumerate(batches):
                    if len(images) == 1 and steps > 1:
                        continue  # one image has no batch statistics
                    rate = settings.learning_rate_at(epoch + (step + 0.5) / steps)
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    images, labels = images.to(place, torch.float32), labels.to(place)
                    if teacher is None and bool((labels < 0).all()):
                        continue  # no label, no loss
                    if teacher is None:
                        labels = goal = _mapped(labels, index)
                    else:
                        labels, goal = taught_by(teacher, images, torch.zeros_like(labels), precision)
                    logits = logits_for(network, augment(images), precision)
                    loss = functional.cross_entropy(logits, goal)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    count(totals, loss.detach(), logits.detach(), labels)
                    lost, right, seen, bad = totals[:4].tolist()
                    if bad >= 0:
                        raise TrainingError(
                            f"the loss was not finite at step {step + 1} of epoch {epoch + 1} "
                            f"(learning rate {rate:g}): try a smaller learning_rate"
                        )
                    pace = seen / max(time.monotonic() - began, 1e-9)
                    done = (epoch + (step + 1) / steps) / settings.epochs
                    self.display.training("fpa", done, lost / max(seen, 1), right / max(seen, 1), pace)
                if totals[2] == 0:
                    raise InputError(
                        "there is nothing to learn from: no batch has labels and at least two images; "
                        "try targets='model' or larger batches"
                    )
                rate = settings.learning_rate_at(epoch + 0.5)
                row = Epoch(epoch + 1, rate, lost / seen, right / seen, None, pace)
                self.display.epoch("fpa", epoch + 1, settings.epochs, asdict(row))

    def _batches(self, data: Any) -> tuple[Iterable[tuple[Tensor, Tensor, Tensor]], int]:
        """Normalised batches and their number; images that come without batches are shuffled into them."""
        size, channels = self.settings.batch_size, input_channels(self.tuned)
        if is_batch(data):
            (parts,) = image_batches(data, self.normalisation, channels, numbers=False)
            loader = _shuffled(TensorDataset(*parts), size)
            return loader, len(loader)
        items = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        if isinstance(data, IterableDataset):
            data = DataLoader(data, size, collate_fn=collated)
        elif items and (isinstance(data, Dataset) or not isinstance(data, Iterable) or single_images(data)):
            data = _shuffled(data, size)
        if not isinstance(data, Iterable):
            raise InputError(
                "data must be a data set's name, folder:PATH, an ImageData, a DataLoader or a Dataset, or "
                f"images and labels, got {type(data).__name__}"
            )
        try:
            steps = len(data)  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(
                "the loader must have a length, the learning rate depends on it: "
                f"{type(data).__name__} has none"
            ) from error
        if steps == 0:
            raise InputError("there are no images: the loader is empty")
        return image_batches(data, self.normalisation, channels, numbers=False), steps

    def _augment(self, height: int, width: int) -> FPA:
        return FPA(**asdict(suggested_fpa(height, width))) if self.fpa is None else self.fpa

    def _matched(self, classes: list[str], outputs: int) -> list[int] | None:
        """The model's class for each class of the data; None: they have nothing to do with each other."""
        if self.class_index is not None:
            return _given_index(self.class_index, classes, outputs)
        found = class_numbers(classes, outputs, None if self.card is None else self.card.classes)
        if found is not None and (len(classes) == outputs or self.targets == "labels"):
            return found
        listed = f"{', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''}"
        told = f"the {len(classes)} classes of the data ({listed}) are not the {outputs} of the model"
        if not classes:
            told = "the images have no labels (no folder a class)"
        if self.targets == "labels":
            raise InputError(f"{told}: give class_index, or targets='model' to do without labels")
        self.display.say(f"{told}: learning the model's own predictions instead of the labels")
        return None

    def _index_of_labels(self, outputs: int, device: torch.device) -> Tensor:
        """The model's class for each label of a loader."""
        if self.class_index is None:
            return torch.arange(outputs, device=device)
        if isinstance(self.class_index, Mapping):
            raise InputError("with a loader, class_index must be a list: the model's class for each label")
        names = [str(label) for label in range(len(self.class_index))]
        return torch.tensor(_given_index(self.class_index, names, outputs), device=device)


def _shuffled(data: Dataset[Any], batch_size: int) -> DataLoader[Any]:
    """Batches in another order every epoch; a smaller one at the end is left out, for the batch norms."""
    count = len(data)  # type: ignore[arg-type]
    if count == 0:
        raise InputError("there are no images: the data set is empty")
    few = count < batch_size
    return DataLoader(
        data, count if few else batch_size, shuffle=True, drop_last=not few, collate_fn=collated
    )


def _outputs(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """How many classes the network has, if it can be trained at all."""
    if next(network.parameters(), None) is None:
        raise InputError("the model has no weights to fine-tune")
    return class_count(network, shape)


def _given_index(given: ClassIndex, classes: list[str], outputs: int) -> list[int]:
    if isinstance(given, Mapping):
        missing = [name for name in classes if name not in given]
        if missing:
            raise InputError(f"class_index says nothing of {', '.join(missing[:5])}")
        index = [given[name] for name in classes]
    else:
        index = list(given)
        if len(index) != len(classes):
            raise InputError(f"class_index must have {len(classes)} entries, one a class, got {len(index)}")
    wrong = [value for value in index if type(value) is not int or not 0 <= value < outputs]
    if wrong or len(set(index)) < len(index):
        found = f"{wrong[0]!r}" if wrong else "one of them twice"
        raise InputError(f"class_index must be different whole numbers in 0..{outputs - 1}, got {found}")
    return index


def _mapped(labels: Tensor, index: Tensor) -> Tensor:
    """Labels as classes of the model; those unknown count for nothing."""
    if int(labels.max()) >= len(index):
        raise InputError(
            f"labels must be in 0..{len(index) - 1}, found {int(labels.max())}: give class_index, "
            "or targets='model' to do without labels"
        )
    return torch.where(labels >= 0, index[labels.clamp(min=0)], UNREADABLE)


@torch.no_grad()
def _labelled_by(
    network: nn.Module, data: ImageData, classes: list[str], device: str, workers: int
) -> ImageData:
    """The data with the network's own predictions as labels of the test images; training asks it anew."""
    predicted = torch.zeros_like(data.test.labels)
    judge = copy.deepcopy(network).to(device).eval()
    for indices, images, _ in evaluation_batches(data.test, data.evaluation, 250, device, workers=workers):
        predicted[indices] = judge(data.normalisation(images)).argmax(1).cpu()
    train = replace(data.train, labels=torch.zeros_like(data.train.labels))
    return replace(data, classes=classes, train=train, test=replace(data.test, labels=predicted))


def _fpa_settings(augment: FPA) -> FPASettings:
    return FPASettings(augment.p, augment.p1_max, augment.p2, augment.s_max, augment.squares)


def _masking_name(augment: FPA, normalisation: Normalisation, needed: bool) -> str:
    """The name of an augmentation's masking, for the recipe that a model file keeps."""
    for name in MASKINGS:
        if get_masking(name, normalisation.mean, normalisation.std) == augment.masking:
            return name
    if needed:
        raise InputError(
            f"the masking {augment.masking} has no name that a model file could keep: use one of "
            f"{', '.join(MASKINGS)}, or leave out output"
        )
    return "constant"
