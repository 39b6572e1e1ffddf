"""The images that a model is fine-tuned on: a data set, or the batches of somebody's own loader."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fpa.data.crops import RandomCrop
from fpa.data.labels import class_numbers, has_names, relabelled, whole_number
from fpa.data.loaders import (
    ImageBatches,
    class_names_of,
    collated,
    has_own_labels,
    is_batch,
    single_images,
)
from fpa.data.normalisation import Normalisation
from fpa.data.sets import has_own_test
from fpa.data.splits import UNREADABLE, ArraySplit, ImageData, fixed_choice, read_batches
from fpa.errors import InputError
from fpa.models.wrap import class_count
from fpa.seeds import Stream, derive
from fpa.training.batches import REMEDY, LoaderBatches
from fpa.training.trainer import predictions
from fpa.training.twins import COMPARED

ClassIndex = Mapping[str, int] | Sequence[int]

NormalisedBatches = Iterable[tuple[Tensor, Tensor, Tensor]]
"""Images [N, C, H, W] as the model takes them, labels [N] and numbers [N]."""


@dataclass(frozen=True)
class Variation:
    """Whether images may be varied: parts of them cut out at random, and flipped."""

    crop: bool = True
    flip: bool = True

    def of(self, data: ImageData) -> ImageData:
        """A data set that is varied in no other way than this; what it does not do itself stays undone."""
        if self.crop and self.flip:
            return data
        if isinstance(data.train, ArraySplit):
            padding = data.crop_padding if self.crop else 0
            return replace(data, crop_padding=padding, flip=data.flip and self.flip)
        own = data.train.transform
        if not isinstance(own, RandomCrop):
            name = "flip" if self.crop else "crop"
            raise InputError(
                f"{name}=False has no effect on {data.name}: its files have a transform of their own"
            )
        varied = replace(own, crop=own.crop and self.crop, flip=own.flip and self.flip)
        return replace(data, train=replace(data.train, transform=varied))

    def shift(self, height: int, width: int) -> int:
        """By how many pixels tensors are moved at most: 4 of 32, as is usual for CIFAR-10."""
        return min(height, width) // 8 if self.crop else 0


def variation_of(data: ImageData) -> Variation:
    """What training does to the images of a data set, as far as fpa does it."""
    if isinstance(data.train, ArraySplit):
        return Variation(data.crop_padding > 0, data.flip)
    own = data.train.transform
    return Variation(own.crop, own.flip) if isinstance(own, RandomCrop) else Variation(False, False)


class TuningImages(ABC):
    """Images to learn from, opened once, and all that a fine-tuning has to know of them."""

    first: Tensor
    """At least one image [N, C, H, W], to try the model with."""
    batch_size: int
    steps: int
    """Steps of an epoch."""
    equal_batches: bool
    """Whether all batches have one size, as a captured step needs it."""
    variation: Variation
    """What is done to them."""
    origin: dict[str, Any]
    """Where they come from, for the description of the training."""

    some: Tensor
    """Images [N, C, H, W] to compare models on, as many as `COMPARED` where there are."""
    some_learned: bool
    """Whether these are images that are learned from."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.first.shape[1:]
        return channels, height, width

    @abstractmethod
    def matched(self, outputs: int, names: list[str] | None) -> list[int]:
        """The model's class for each class of the images, by their names or their number."""

    @abstractmethod
    def indexed(self, class_index: ClassIndex, outputs: int) -> list[int]:
        """The model's class for each class of the images, as the user says."""

    @abstractmethod
    def copies(self, network: nn.Module) -> Callable[[], nn.Module]:
        """Makes copies of the network that are fast on these images."""

    @abstractmethod
    def labelled(self, index: list[int], names: list[str]) -> ImageData | LoaderBatches:
        """What is trained on: the images with the model's classes `index` for their own."""

    @abstractmethod
    def taught(
        self, network: nn.Module, names: list[str], device: str, workers: int
    ) -> ImageData | LoaderBatches:
        """What is trained on, where the network teaches itself and labels do not matter."""

    @abstractmethod
    def untaught(self, names: list[str]) -> ImageData | LoaderBatches:
        """The same before the network was asked: to find out what the training would take."""


class DataSetImages(TuningImages):
    """A data set that fpa reads itself."""

    equal_batches = True

    def __init__(
        self, data: ImageData, batch_size: int, *, root: str, workers: int, variation: Variation
    ) -> None:
        data = variation.of(data)
        self.variation = variation_of(data)
        count = len(data.train)
        if count == 0:
            raise InputError(f"there are no images: {data.name} has none to train on")
        self.data = data
        self.batch_size = min(batch_size, count)
        self.steps = count // self.batch_size
        self.first = torch.zeros(1, *data.input_shape)
        # Read now: what went wrong with them after the training would cost the training.
        self.some = _some(data, workers)
        self.some_learned = not has_own_test(data)
        side = data.input_shape[-1]
        self.origin = {"name": data.name, "root": root, "size": side, "workers": workers, "images": count}
        # Only what is turned off: a data set says itself how it is varied.
        self.origin |= {name: False for name, used in asdict(variation).items() if not used}

    def matched(self, outputs: int, names: list[str] | None) -> list[int]:  # noqa: D102
        return matched_classes(self.data.classes, outputs, names)

    def indexed(self, class_index: ClassIndex, outputs: int) -> list[int]:  # noqa: D102
        return checked_index(class_index, self.data.classes, outputs)

    def copies(self, network: nn.Module) -> Callable[[], nn.Module]:
        """Copies with faster convolutions, on a CPU too, unless the model needs the usual order of memory.

        A model that calls `view` on its features does: it is tried once, on a copy that is thrown away.
        """
        tried = _in_memory_format(network, torch.channels_last)
        try:
            class_count(tried, self.shape)
        except InputError:
            return partial(copy.deepcopy, network)
        return partial(_in_memory_format, network, torch.channels_last)

    def labelled(self, index: list[int], names: list[str]) -> ImageData:  # noqa: D102
        return relabelled(self.data, names, index)

    def taught(self, network: nn.Module, names: list[str], device: str, workers: int) -> ImageData:
        """The data with the network's own predictions as labels of the test images.

        The accuracy on them then is how often the tuned model agrees with the original. In training the
        teacher is asked anew, about every crop: the labels there only have to be valid.
        """
        data = self.untaught(names)
        judge = copy.deepcopy(network).to(device)
        answers, _ = predictions(judge, data, device, batch_size=250, workers=workers)
        data.test.labels[data.evaluation] = answers.cpu()
        return data

    def untaught(self, names: list[str]) -> ImageData:  # noqa: D102
        splits = self.data.train, self.data.test
        train, test = (replace(split, labels=torch.zeros_like(split.labels)) for split in splits)
        return replace(self.data, classes=names, train=train, test=test)


class LoaderImages(TuningImages):
    """The batches of a loader, or a `Dataset` or images and labels that are shuffled into batches."""

    equal_batches = False

    def __init__(
        self,
        data: Any,
        batch_size: int,
        normalisation: Normalisation | None,
        channels: int | None,
        *,
        seed: int,
        device: str,
        variation: Variation,
    ) -> None:
        self.batch_size = batch_size
        place = torch.device(device)
        with torch.random.fork_rng([place] if place.type == "cuda" else []):
            # The seed also decides how a loader without a generator of its own shuffles.
            torch.manual_seed(derive(seed, Stream.DROPOUT))
            self.batches, self.steps = normalised_batches(data, batch_size, normalisation, channels)
            # Read once more, although some batches keep their first: reading moves a generator that the
            # loader may have, and so decides in which order the epochs come.
            batches = [images for images, _, _ in _until(self.batches, COMPARED)]
        self.first = batches[0]
        self.some = torch.cat(batches)[:COMPARED]
        self.some_learned = True
        self.shift = variation.shift(*self.first.shape[2:])
        self.variation = Variation(self.shift > 0, variation.flip)
        self.origin = {
            "name": None,
            "size": self.first.shape[-1],
            "batches": self.steps,
            "crop": self.shift,
            "flip": variation.flip,
        }
        # What makes labels of its own need not number the classes of the data set underneath.
        self.classes = None if has_own_labels(data) else class_names_of(data)

    def matched(self, outputs: int, names: list[str] | None) -> list[int]:
        """By number, unless the data set underneath has more or fewer classes than the model."""
        if self.classes is None or len(self.classes) == outputs:
            return list(range(outputs))
        return matched_classes(self.classes, outputs, names)

    def indexed(self, class_index: ClassIndex, outputs: int) -> list[int]:
        """By the names of the data set underneath; a list is one of labels, however many there are."""
        classes = self.classes if isinstance(class_index, Mapping) else None
        return checked_index(class_index, classes, outputs)

    def copies(self, network: nn.Module) -> Callable[[], nn.Module]:  # noqa: D102
        return partial(copy.deepcopy, network)

    def labelled(self, index: list[int], names: list[str]) -> LoaderBatches:  # noqa: D102
        return self._varied(torch.tensor(index))

    def taught(  # noqa: D102
        self, network: nn.Module, names: list[str], device: str, workers: int
    ) -> LoaderBatches:
        return self.untaught(names)

    def untaught(self, names: list[str]) -> LoaderBatches:  # noqa: D102
        return self._varied(None)

    def _varied(self, index: Tensor | None) -> LoaderBatches:
        return LoaderBatches(self.batches, self.steps, index, shift=self.shift, flip=self.variation.flip)


def normalised_batches(
    data: Any, size: int, normalisation: Normalisation | None, channels: int | None
) -> tuple[NormalisedBatches, int]:
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
        accepted = (
            "a data set's name, folder:PATH, an ImageData, a DataLoader, a Dataset, or images and labels"
        )
        raise InputError(f"data must be {accepted}, got {type(data).__name__}")
    try:
        steps = len(data)  # type: ignore[arg-type]
    except TypeError as error:
        needed = "the learning rate depends on the length of the loader"
        raise InputError(f"{needed}, but a {type(data).__name__} has none") from error
    return ImageBatches(data, normalisation, channels, numbers=False), steps


def _until(batches: NormalisedBatches, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The first batches, with so many images."""
    for batch in batches:
        yield batch
        count -= len(batch[0])
        if count <= 0:
            return


def _some(data: ImageData, workers: int) -> Tensor:
    """Some of the evaluation images, always the same, normalised; without those that cannot be read."""
    places = fixed_choice(data.evaluation.tolist(), COMPARED)
    batches = read_batches(data.test, torch.split(data.evaluation[places], 50), workers=workers)
    return torch.cat([data.normalisation(images[labels != UNREADABLE]) for _, images, labels in batches])


def _shuffled(data: Dataset[Any], batch_size: int) -> DataLoader[Any]:
    """Batches in another order every epoch; a smaller one at the end is left out, for the batch norms."""
    count = len(data)  # type: ignore[arg-type]
    if count == 0:
        raise InputError("there are no images: the data set is empty")
    return DataLoader(data, min(count, batch_size), shuffle=True, drop_last=True, collate_fn=collated)


def matched_classes(classes: list[str], outputs: int, names: list[str] | None) -> list[int]:
    """The model's class for each class of the data.

    Where `class_numbers` does not know it, nothing is assumed: labels in a wrong order would spoil the model.
    """
    index = class_numbers(classes, outputs, names if names and has_names(names) else None)
    if index is not None:
        return index
    listed = f"{', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''}"
    reason = f"the {len(classes)} classes of the data ({listed}) are not the {outputs} of the model"
    if not classes:
        reason = "the images have no labels (they are not in one folder per class)"
    raise InputError(f"{reason}: {REMEDY}")


def checked_index(class_index: ClassIndex, classes: list[str] | None, outputs: int) -> list[int]:
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


def _in_memory_format(network: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    return copy.deepcopy(network).to(memory_format=memory_format)
