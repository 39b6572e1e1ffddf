"""Fine-tuning with FPA: a short training from existing weights, so that a model becomes fit for evaluation.

It is a training like any other (`trainer.py`), on a data set or on the batches of a loader of your own.
What is chosen, and why:

- The learning rate goes up over the first tenth of the steps and down to 0 along a cosine: the first steps do
  not throw the model off, and the last ones settle it, however few there are.
- No weight decay: whatever changes in the weights, changes because of the masked pixels.
- A model that learns labels is trained like any other, by SGD. One that learns its own predictions is
  usually a published network with few photos to learn from. It is trained by AdamW in evaluation mode: its
  batch norms keep their statistics. Every batch is masked, since its teacher sees the images whole, and more
  pixels of large images are selected, up to half at 224 px, since maps differ in LIF mostly where half of the
  pixels and more are masked. For the same loss of accuracy fewer contradictions are left than with SGD;
  selecting more pixels leaves fewer still, for up to 2.5 points more (docs/results/finetuning.md).
- Small sets are seen more often, so that there are enough steps.
"""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fpa.data.labels import class_numbers, has_names, relabelled, whole_number
from fpa.data.loaders import (
    ImageBatches,
    class_names_of,
    collated,
    has_own_labels,
    is_batch,
    single_images,
)
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.data.sets import check_normalised, tuning_data
from fpa.data.splits import ImageData
from fpa.engine.devices import check_device, chosen_device
from fpa.engine.engine import Engine
from fpa.errors import InputError, unknown
from fpa.masking import get_masking, masking_json
from fpa.models.hubs import normalisation_of
from fpa.models.saved import ModelCard, fingerprint
from fpa.models.wrap import class_count, classifier, input_channels, unwrapped
from fpa.progress import Display
from fpa.seeds import Stream, derive
from fpa.training.augment import FPA, Cell
from fpa.training.batches import REMEDY, LoaderBatches
from fpa.training.run import Job
from fpa.training.settings import FPASettings, TrainingSettings, suggested_fpa
from fpa.training.trainer import predictions, train_jobs
from fpa.values import checked

Targets = Literal["auto", "labels", "model"]
ClassIndex = Mapping[str, int] | Sequence[int]

RATES = {"labels": 0.01, "model": 0.0003}
"""The largest learning rate by what the model learns: of SGD for labels, of AdamW for its own predictions."""

STEPS = 7800
MOST_EPOCHS = 60
"""So many steps are taken where nobody says how many epochs, but no more epochs than this."""


@checked
@torch.inference_mode(False)
def finetune(
    model: nn.Module | Engine,
    data: Any,
    *,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int = 64,
    fpa: FPA | Cell | FPASettings | Mapping[str, Any] | None = None,
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
    """A copy of the model after a short training with FPA, in evaluation mode, on the device of the original.

    `data` is the name of a data set (`shapes`, `cifar10`, `folder:PATH`, ...), an `ImageData`, or your own
    `DataLoader` of normalised images and labels; a `Dataset`, or images and labels as `evaluate` takes them,
    are shuffled into batches. The same seed gives the same weights on a CPU; a loader that shuffles with its
    own generator must be made again for that.

    Frozen weights (`requires_grad=False`) stay as they are, unless all are frozen, as in models for
    inference: then all are trained. Training runs in float32; the result has the precision of the model.

    With targets "model" it learns to say of a masked image what the original says of the unmasked one
    (self-distillation): no labels are needed, and the function that is explained stays as close as possible
    to the original. With "labels" it learns the data's labels. Their classes are the model's by name or, if
    it has no names, by number; where they differ, `class_index` (a dict from the data's class names, or a
    list, to the model's classes) says which is which. "auto" is "labels" if `class_index` is given, otherwise
    "model".

    Without `epochs` there are as many as make 7,800 steps, but no more than 60. The largest `learning_rate`
    is 0.01 for labels (SGD) and 0.0003 for the model's own predictions (AdamW; batch norms keep their
    statistics).

    `fpa` sets the perturbation and its masking, is the settings from `suggested_fpa`, or a dict of what
    differs from the default: the paper's settings for the image size, but for the model's own predictions
    p = 1, and p1_max grows to 0.5 at 224 px. `Cell` in its place deletes single cells, for the score idsds.
    `output` is a folder for model.safetensors and training.csv, for models that fpa can rebuild
    (`load_model`); a stopped run continues from there. A loader is then read again from the start of the
    epoch, and batches that were already trained on are skipped. `inplace=True` changes and returns the model
    itself.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    >>> images, labels = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    >>> tuned = finetune(model, (images, labels), epochs=1, batch_size=8, device="cpu")
    >>> tuned(images).shape, tuned is model
    (torch.Size([32, 4]), False)
    """
    check_device(device)
    if targets not in get_args(Targets):
        raise unknown("targets", targets, get_args(Targets))
    chosen: dict[str, Any] = {"epochs": 1 if epochs is None else epochs, "batch_size": batch_size}
    chosen["learning_rate"] = RATES["labels"] if learning_rate is None else learning_rate
    try:
        settings = TrainingSettings(**chosen, weight_decay=0.0, schedule="warm-cosine")
    except InputError as error:  # here they are arguments, not fields of a recipe
        raise InputError(str(error).replace("training.", "")) from error
    model = model.model if isinstance(model, Engine) else model
    original = unwrapped(model)
    tuned = copy.deepcopy(original).float()
    if not any(parameter.requires_grad for parameter in tuned.parameters()):
        tuned.requires_grad_(True)
    card: ModelCard | None = getattr(original, "card", None)
    architecture = type(tuned).__name__ if card is None else card.architecture
    if output is not None and card is None:
        rule = f"a model file can only be written for a model that fpa can rebuild, not for a {architecture}"
        raise InputError(f"{rule}: leave out output and save the returned model")
    normalisation = as_normalisation(normalisation)
    if normalisation is None and (card is not None or isinstance(data, str | ImageData)):
        normalisation = normalisation_of(original)
    if isinstance(data, str):
        if normalisation is None:
            check_normalised(data)
        data = tuning_data(data, data_root, size=224 if card is None else card.input_shape[-1])
    display = display or Display(quiet=True)
    if isinstance(data, ImageData):
        data = data if normalisation is None else replace(data, normalisation=normalisation)
        settings = replace(settings, batch_size=min(batch_size, len(data.train)))
        steps = len(data.train) // settings.batch_size
        first = torch.zeros(1, *data.input_shape)
        origin = {"name": data.name, "root": str(data_root), "size": first.shape[-1], "workers": workers}
        origin["images"] = len(data.train)
    else:
        settings = replace(settings, compile=False)  # a captured step has one size of batches
        place = torch.device(chosen_device(device))
        with torch.random.fork_rng([place] if place.type == "cuda" else []):
            # The seed also decides how a loader without a generator of its own shuffles.
            torch.manual_seed(derive(seed, Stream.DROPOUT))
            batches, steps = _batches(data, batch_size, normalisation, input_channels(tuned))
            first, _, _ = next(iter(batches))
        origin = {"name": None, "size": first.shape[-1], "batches": steps}
    shape = (first.shape[1], first.shape[2], first.shape[3])
    network = classifier(tuned, first)
    if next(network.parameters(), None) is None:
        raise InputError("the model has no weights to fine-tune")
    outputs = class_count(network, shape)
    names = [str(number) for number in range(outputs)] if card is None else card.classes
    classes = data.classes if isinstance(data, ImageData) else None
    known = classes if classes is not None or has_own_labels(data) else class_names_of(data)
    index: list[int] | None = None
    if targets != "model" and class_index is not None:
        index = _checked_index(class_index, known if isinstance(class_index, Mapping) else classes, outputs)
    elif targets == "labels":
        # A loader's labels are numbers of outputs, unless its data set has more or fewer classes than these.
        by_number = known is None or (classes is None and len(known) == outputs)
        named = None if card is None else names
        index = list(range(outputs)) if by_number else _matched(known or [], outputs, named)
    if index is None and learning_rate is None:
        settings = replace(settings, learning_rate=RATES["model"])
    if epochs is None:
        settings = replace(settings, epochs=min(MOST_EPOCHS, math.ceil(STEPS / max(steps, 1))))
    if isinstance(fpa, FPA | Cell):
        augment = fpa
    else:
        usual = asdict(suggested_fpa(*shape[1:], "model" if index is None else "labels"))
        own = asdict(fpa) if isinstance(fpa, FPASettings) else dict(fpa or {})
        for name in own:
            if name not in (*usual, "masking"):
                raise unknown("setting of fpa", str(name), (*usual, "masking"))
        augment = FPA(**usual | own)
    augment.check(first)
    kind = "cell" if isinstance(augment, Cell) else "fpa"
    named = ["p", "grid"] if kind == "cell" else [item.name for item in fields(FPASettings)]
    masking = masking_json(augment.masking)
    if output is not None:
        get_masking(masking)  # who reads the model file must be able to make it again
    description = {
        "name": "finetune",
        "model": architecture,
        "masking": masking,
        "seed": seed,
        "data": origin,
        "training": asdict(settings),
        "augmentation": kind,
        kind: {name: getattr(augment, name) for name in named},
        "start": fingerprint(tuned),
        "targets": "model" if index is None else "labels",
        "optimizer": "adamw" if index is None else "sgd",
        "class_index": None if index == list(range(outputs)) else index,
    }
    learned = "the model's own predictions" if index is None else "the labels"
    display.say(f"learning {learned}, {settings.epochs} epoch{'s' * (settings.epochs > 1)}")
    job = Job(
        kind,
        settings,
        seed,
        model=partial(copy.deepcopy, network) if classes is None else partial(_channels_last, network, shape),
        description=json.loads(json.dumps(description)),
        augment=augment,
        teacher=network if index is None else None,
        folder=None if output is None else Path(output),
        card=None if card is None else replace(card, augmentation=kind, variant=""),
    )
    if classes is None:
        data = LoaderBatches(batches, steps, None if index is None else torch.tensor(index))
    elif index is None:
        data = _labelled_by(network, data, names, chosen_device(device), workers)
    else:
        data = relabelled(data, names, index)
    (trained,) = train_jobs([job], data, device=device, display=display, workers=workers, overwrite=overwrite)
    network.load_state_dict(trained.state())
    result = original if inplace else copy.deepcopy(original)
    result.load_state_dict(tuned.state_dict())  # in the precision and on the device of the original
    if job.card is not None:
        result.card = replace(job.card, accuracy=trained.accuracy, recipe=job.description)  # type: ignore[assignment]
    return (model if inplace else result).eval()


def _batches(
    data: Any, size: int, normalisation: Normalisation | None, channels: int | None
) -> tuple[Iterable[tuple[Tensor, Tensor, Tensor]], int]:
    """Normalised batches and their number; images that come without batches are shuffled into them."""
    if is_batch(data):
        (parts,) = ImageBatches(data, normalisation, channels, numbers=False)
        loader = _shuffled(TensorDataset(*parts), size)
        return loader, len(loader)
    items = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset):
        data = DataLoader(data, size, collate_fn=collated)
    elif items and (isinstance(data, Dataset) or not isinstance(data, Iterable) or single_images(data)):
        data = _shuffled(data, size)
    if not isinstance(data, Iterable):
        forms = "a data set's name, folder:PATH, an ImageData, a DataLoader, a Dataset, or images and labels"
        raise InputError(f"data must be {forms}, got {type(data).__name__}")
    try:
        steps = len(data)  # type: ignore[arg-type]
    except TypeError as error:
        needed = "the learning rate depends on the length of the loader"
        raise InputError(f"{needed}, but a {type(data).__name__} has none") from error
    return ImageBatches(data, normalisation, channels, numbers=False), steps


def _matched(classes: list[str], outputs: int, names: list[str] | None) -> list[int]:
    """The model's class for each class of the data."""
    index = class_numbers(classes, outputs, names if names and has_names(names) else None)
    if index is not None:
        return index
    listed = f"{', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''}"
    reason = f"the {len(classes)} classes of the data ({listed}) are not the {outputs} of the model"
    if not classes:
        reason = "the images have no labels (they are not in one folder per class)"
    raise InputError(f"{reason}: {REMEDY}")


def _checked_index(class_index: ClassIndex, classes: list[str] | None, outputs: int) -> list[int]:
    """The model's class for each class of the data; for each label where `classes` are not known."""
    if isinstance(class_index, Mapping):
        if classes is None:
            raise InputError("with a loader, class_index must be a list: the model's class for each label")
        if missing := [name for name in classes if name not in class_index]:
            raise InputError(f"class_index has no entry for {', '.join(missing[:5])}")
        class_index = [class_index[name] for name in classes]
    given = list(class_index)
    index = [number for number in map(whole_number, given) if number is not None]
    if classes is not None and len(given) != len(classes):
        raise InputError(f"class_index must have {len(classes)} entries, one per class, got {len(given)}")
    wrong = [each for each in given if (number := whole_number(each)) is None or not 0 <= number < outputs]
    if wrong or len(set(index)) < len(index):
        problem = f"{wrong[0]!r}" if wrong else "one of them twice"
        raise InputError(f"class_index must be different whole numbers in 0..{outputs - 1}, got {problem}")
    return index


def _shuffled(data: Dataset[Any], batch_size: int) -> DataLoader[Any]:
    """Batches in another order every epoch; a smaller one at the end is left out, for the batch norms."""
    count = len(data)  # type: ignore[arg-type]
    if count == 0:
        raise InputError("there are no images: the data set is empty")
    return DataLoader(data, min(count, batch_size), shuffle=True, drop_last=True, collate_fn=collated)


def _channels_last(network: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """A copy with faster convolutions, on a CPU too, unless the model needs tensors in the usual order."""
    copied = copy.deepcopy(network).to(memory_format=torch.channels_last)
    try:
        class_count(copied, shape)
    except InputError:
        return copy.deepcopy(network)
    return copied


def _labelled_by(
    network: nn.Module, data: ImageData, classes: list[str], device: str, workers: int
) -> ImageData:
    """The data with the network's own predictions as labels of the test images; training asks it anew."""
    judge = copy.deepcopy(network).to(device)
    predicted = torch.zeros_like(data.test.labels)
    predicted[data.evaluation] = predictions(judge, data, device, batch_size=250, workers=workers)[0].cpu()
    train = replace(data.train, labels=torch.zeros_like(data.train.labels))
    return replace(data, classes=classes, train=train, test=replace(data.test, labels=predicted))
