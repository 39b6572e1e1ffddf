"""Fine-tuning with FPA: a few epochs from existing weights, so that a model becomes fit for evaluation.

It is a training like any other (`trainer.py`), on a data set or on the batches of a loader of your own.
What is chosen, and why:

- SGD with momentum, the learning rate up over the first tenth of the steps and down to 0 along a cosine: the
  first steps do not throw the model off, and the last ones settle it, however few there are.
- No weight decay: whatever changes in the weights, changes because of the masked pixels.
- Batch norms use and update their statistics as in any training. Keeping the old ones looks gentler, but
  masked pixels shift the activations, and with frozen statistics training diverges at learning rates that
  are harmless otherwise.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fpa.data.labels import class_numbers, relabelled
from fpa.data.loaders import ImageBatches, collated, is_batch, single_images
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.data.sets import tuning_data
from fpa.data.splits import ImageData, read_batches
from fpa.engine.devices import check_device, chosen_device
from fpa.errors import InputError, unknown
from fpa.masking import MASKINGS, get_masking
from fpa.models.saved import ModelCard, fingerprint
from fpa.models.wrap import class_count, classifier, input_channels, unwrapped
from fpa.progress import Display
from fpa.seeds import Stream, derive
from fpa.training.augment import FPA
from fpa.training.batches import LoaderBatches
from fpa.training.run import Job
from fpa.training.settings import FPASettings, TrainingSettings, suggested_fpa
from fpa.training.trainer import train_jobs

Targets = Literal["auto", "labels", "model"]
TARGETS: tuple[Targets, ...] = ("auto", "labels", "model")
ClassIndex = Mapping[str, int] | Sequence[int]


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
    run continues from there. A loader is then read again from the start of the epoch, without training on
    what was done. `inplace=True` changes and returns the model itself.

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
    if isinstance(data, str):
        data = tuning_data(data, data_root, size=224 if card is None else card.input_shape[-1])
    task = _Task(
        tuned,
        card,
        settings,
        fpa=fpa,
        targets=targets,
        class_index=class_index,
        normalisation=normalisation,
        seed=seed,
        device=device,
        display=display or Display(quiet=True),
    )
    folder = None if output is None else Path(output)
    if isinstance(data, ImageData):
        job, data = task.with_data(data, folder, str(data_root), workers)
    else:
        job, data = task.with_loader(data, folder)
    (trained,) = train_jobs(
        [job], data, device=device, display=task.display, workers=workers, overwrite=overwrite
    )
    task.network.load_state_dict(trained.state())
    result = original if inplace else copy.deepcopy(original)
    with torch.no_grad():
        for old, new in zip(_tensors(result), _tensors(tuned), strict=True):
            old.copy_(new)
    if job.card is not None:
        result.card = replace(job.card, accuracy=trained.accuracy, recipe=job.description)  # type: ignore[assignment]
    return (model if inplace else result).eval()


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@dataclass
class _Task:
    """What fine-tuning on a data set and on a loader have in common."""

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
        self, data: ImageData, output: Path | None, root: str, workers: int
    ) -> tuple[Job, ImageData]:
        """The job of fine-tuning on a data set, and the data with the labels that it learns."""
        if self.normalisation is not None:
            data = replace(data, normalisation=self.normalisation)
        self.settings = replace(self.settings, batch_size=min(self.settings.batch_size, len(data.train)))
        self.network = classifier(self.tuned, torch.zeros(1, *data.input_shape))
        outputs = _outputs(self.network, data.input_shape)
        index = None if self.targets == "model" else self._matched(data.classes, outputs)
        origin = {"name": data.name, "root": root, "size": data.input_shape[-1], "workers": workers}
        job = self._job(data.input_shape, data.normalisation, origin, index, output)
        classes = [str(number) for number in range(outputs)] if self.card is None else self.card.classes
        if index is None:
            data = _labelled_by(self.network, data, classes, chosen_device(self.device), workers)
        else:
            data = relabelled(data, classes, index)
        shape, network = data.input_shape, self.network
        return replace(job, model=lambda: _channels_last(copy.deepcopy(network), shape)), data

    def with_loader(self, data: Any, output: Path | None) -> tuple[Job, LoaderBatches]:
        """The job of fine-tuning on the batches of a loader, and these."""
        self.settings = replace(self.settings, compile=False)  # a captured step has one size of batches
        place = torch.device(chosen_device(self.device))
        with torch.random.fork_rng([place] if place.type == "cuda" else []):
            # The seed also decides how a loader without a generator of its own shuffles.
            torch.manual_seed(derive(self.seed, Stream.DROPOUT))
            batches, steps = self._batches(data)
            first, labels, _ = next(iter(batches))
        self.network = classifier(self.tuned, first)
        shape = (first.shape[1], first.shape[2], first.shape[3])
        outputs = _outputs(self.network, shape)
        index: list[int] | None = None
        if self.targets == "auto" and bool((labels < 0).all()):
            self.display.say("the images have no labels: learning the model's own predictions")
        elif self.targets != "model":
            index = self._index_of_labels(outputs)
        origin = {"name": None, "size": shape[-1], "batches": steps}
        job = self._job(shape, self.normalisation, origin, index, output)
        assert job.augment is not None
        job.augment.check(first)
        return job, LoaderBatches(batches, steps, None if index is None else torch.tensor(index))

    def _job(
        self,
        shape: tuple[int, int, int],
        normalisation: Normalisation | None,
        origin: dict[str, Any],
        index: list[int] | None,
        output: Path | None,
    ) -> Job:
        """The training from here; `index` is the model's class for each label, None: it teaches itself."""
        augment = FPA(**asdict(suggested_fpa(*shape[1:]))) if self.fpa is None else self.fpa
        architecture = type(self.tuned).__name__ if self.card is None else self.card.architecture
        if output is not None and self.card is None:
            raise InputError(
                f"a model file can only be written of a model that fpa can build again, not of a "
                f"{architecture}: leave out output and save the model that is returned"
            )
        same = index is not None and index == list(range(_outputs(self.network, shape)))
        description = {
            "name": "finetune",
            "model": architecture,
            "masking": _masking_name(augment, normalisation, needed=output is not None),
            "seed": self.seed,
            "data": origin,
            "training": asdict(self.settings),
            "augmentation": "fpa",
            "fpa": asdict(
                FPASettings(augment.p, augment.p1_max, augment.p2, augment.s_max, squares=augment.squares)
            ),
            "start": fingerprint(self.tuned),
            "targets": "model" if index is None else "labels",
            "class_index": None if same else index,
        }
        return Job(
            "fpa",
            self.settings,
            self.seed,
            model=lambda: copy.deepcopy(self.network),
            description=json.loads(json.dumps(description)),
            augment=augment,
            teacher=self.network if index is None else None,
            folder=output,
            card=None if self.card is None else replace(self.card, augmentation="fpa", variant=""),
        )

    def _batches(self, data: Any) -> tuple[Iterable[tuple[Tensor, Tensor, Tensor]], int]:
        """Normalised batches and their number; images that come without batches are shuffled into them."""
        size, channels = self.settings.batch_size, input_channels(self.tuned)
        if is_batch(data):
            (parts,) = ImageBatches(data, self.normalisation, channels, numbers=False)
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
        return ImageBatches(data, self.normalisation, channels, numbers=False), steps

    def _matched(self, classes: list[str], outputs: int) -> list[int] | None:
        """The model's class for each class of the data; None: they have nothing to do with each other."""
        if self.class_index is not None:
            return _given_index(self.class_index, classes, outputs)
        index = class_numbers(classes, outputs, None if self.card is None else self.card.classes)
        if index is not None and (len(classes) == outputs or self.targets == "labels"):
            return index
        listed = f"{', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''}"
        reason = f"the {len(classes)} classes of the data ({listed}) are not the {outputs} of the model"
        if not classes:
            reason = "the images have no labels (they are not in one folder per class)"
        if self.targets == "labels":
            raise InputError(f"{reason}: give class_index, or targets='model' to do without labels")
        self.display.say(f"{reason}: learning the model's own predictions instead of the labels")
        return None

    def _index_of_labels(self, outputs: int) -> list[int]:
        """The model's class for each label of a loader."""
        if self.class_index is None:
            return list(range(outputs))
        if isinstance(self.class_index, Mapping):
            raise InputError("with a loader, class_index must be a list: the model's class for each label")
        names = [str(label) for label in range(len(self.class_index))]
        return _given_index(self.class_index, names, outputs)


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
            raise InputError(f"class_index has no entry for {', '.join(missing[:5])}")
        index = [given[name] for name in classes]
    else:
        index = list(given)
        if len(index) != len(classes):
            raise InputError(f"class_index must have {len(classes)} entries, one per class, got {len(index)}")
    wrong = [value for value in index if type(value) is not int or not 0 <= value < outputs]
    if wrong or len(set(index)) < len(index):
        problem = f"{wrong[0]!r}" if wrong else "one of them twice"
        raise InputError(f"class_index must be different whole numbers in 0..{outputs - 1}, got {problem}")
    return index


def _channels_last(network: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """Faster convolutions, on a CPU too, unless the model needs its tensors in the usual order."""
    network = network.to(memory_format=torch.channels_last)
    try:
        class_count(network, shape)
    except InputError:
        network = network.to(memory_format=torch.contiguous_format)
    return network


@torch.no_grad()
def _labelled_by(
    network: nn.Module, data: ImageData, classes: list[str], device: str, workers: int
) -> ImageData:
    """The data with the network's own predictions as labels of the test images; training asks it anew."""
    predicted = torch.zeros_like(data.test.labels)
    judge = copy.deepcopy(network).to(device).eval()
    for indices, images, _ in read_batches(data.test, torch.split(data.evaluation, 250), device, workers):
        predicted[indices] = judge(data.normalisation(images)).argmax(1).cpu()
    train = replace(data.train, labels=torch.zeros_like(data.train.labels))
    return replace(data, classes=classes, train=train, test=replace(data.test, labels=predicted))


def _masking_name(augment: FPA, normalisation: Normalisation | None, needed: bool) -> str:
    """The name of an augmentation's masking, for the recipe that a model file keeps."""
    for name in MASKINGS:
        if normalisation and get_masking(name, normalisation.mean, normalisation.std) == augment.masking:
            return name
    if needed:
        raise InputError(
            f"the masking {augment.masking} has no name that a model file could keep: use one of "
            f"{', '.join(MASKINGS)}, or leave out output"
        )
    return "constant"
