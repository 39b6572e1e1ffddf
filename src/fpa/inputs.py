"""What people bring, made into what the rest of the package takes: a classifier, and normalised batches.

A model comes wrapped, compiled, in half precision or returning an object; a loader yields dicts, PIL images
or bytes. Here it is unwrapped and converted, or one sentence says what to change. The model given is never
changed.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from fpa.data import Normalisation
from fpa.engine import untouched
from fpa.errors import InputError

IMAGE_KEYS = ("image", "images", "pixel_values", "img", "x", "input", "inputs")
LABEL_KEYS = ("label", "labels", "y", "target", "targets")
INDEX_KEYS = ("index", "indices", "idx")

HALF = (torch.float16, torch.bfloat16)
# Resizing with antialiasing overshoots a little; normalised images leave 0..1 by far more.
_OVERSHOOT = 0.05
# Normalised pixels stay within a few standard deviations, bytes as floats do not.
_LIKE_BYTES = 16


def classifier(
    model: nn.Module, images: Tensor | None = None, device: torch.device | str | None = None
) -> nn.Module:
    """The model as an engine can use it: images in, float logits [N, classes] out; the same one if it does.

    Taken off: DataParallel, DistributedDataParallel and torch.compile. Weights in half precision become a
    float32 copy, another `device` a copy there. With `images` [N, C, H, W], normalised, one of them is sent
    through: a model that returns an object, a dict or a tuple with the logits is wrapped to return them
    alone, and one that cannot take such images is refused. The model given stays exactly as it was.

    >>> inner = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> classifier(nn.DataParallel(inner)) is inner
    True
    """
    found = unwrapped(model)
    half = sorted({str(p.dtype) for p in found.parameters() if p.dtype in HALF})
    if half:
        warnings.warn(
            f"the model's weights are {' and '.join(half).replace('torch.', '')}: "
            "a float32 copy is evaluated, its logits have more digits",
            stacklevel=2,
        )
        found = _copied(found).float()
    if device is not None and any(p.device != _placed(device) for p in found.parameters()):
        found = (found if half else _copied(found)).to(device)
    if images is None:
        return found
    returned = _probed(found, images)
    if isinstance(returned, Tensor):
        return found
    if logits_of(returned) is None:
        raise InputError(
            "the model must return logits [N, classes], or an object, dict or tuple with them as .logits, "
            f"['logits'] or first part; it returned {type(returned).__name__}"
        )
    return Logits(found)


class Logits(nn.Module):
    """A model that returns only the logits of what another returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        logits = logits_of(self.model(images))
        assert logits is not None
        return logits


def logits_of(returned: Any) -> Tensor | None:
    """The logits in what a model returned: itself, `.logits`, `["logits"]` or the first of a tuple.

    >>> logits_of({"loss": None, "logits": torch.zeros(2, 5)}).shape
    torch.Size([2, 5])
    """
    if isinstance(returned, Tensor):
        return returned
    inside = getattr(returned, "logits", None)
    if inside is None and isinstance(returned, Mapping):
        inside = returned.get("logits")
    if inside is None and isinstance(returned, (tuple, list)) and returned:
        inside = returned[0]
    return inside if isinstance(inside, Tensor) else None


def input_channels(model: nn.Module) -> int | None:
    """The channels of the images a model takes, if its first convolution tells.

    >>> input_channels(nn.Sequential(nn.Conv2d(1, 4, 3))), input_channels(nn.Flatten())
    (1, None)
    """
    unwrapped(model)  # refuses what is no model
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    return None if first is None else first.in_channels


def class_count(model: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """The number of outputs a classifier has for images of this shape (C, H, W).

    >>> class_count(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2))
    5
    """
    logits = logits_of(_probed(model, torch.zeros(1, *input_shape)))
    if logits is None or logits.ndim != 2:
        raise InputError("the model must return logits [N, classes]")
    return logits.shape[1]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DataParallel, DistributedDataParallel and torch.compile around it.

    >>> inner = nn.Flatten()
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "the model is TorchScript, whose weights cannot be frozen: give the module that it was made of"
        )
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):  # torch.compile's wrapper
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"the model cannot be copied ({error}): give it in float32, on the device it is to run on"
        ) from error


def _placed(device: torch.device | str) -> torch.device:
    """The device with its number, as tensors on it say it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the device {str(device)!r} cannot be used here: {reason}") from error


def _probed(model: nn.Module, images: Tensor) -> Any:
    """What the model, in evaluation mode, returns for one of the images."""
    weight = next(itertools.chain(model.parameters(), model.buffers()), None)
    one = images[:1].detach().clone()
    if weight is not None:
        one = one.to(weight.device, weight.dtype if weight.is_floating_point() else one.dtype)
    with torch.no_grad(), untouched(model):
        try:
            return model(one)
        except Exception as error:
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise InputError(
                f"the model cannot take images {list(images.shape[1:])} (channels, height, width): {reason}"
            ) from error


class ImageBatches:
    """Normalised batches from a loader; see `image_batches`. Iterated again if the loader can be."""

    def __init__(
        self,
        loader: Any,
        normalisation: Normalisation | None = None,
        channels: int | None = None,
        numbers: bool = True,
    ) -> None:
        normalisation = as_normalisation(normalisation)
        self.normalisation = normalisation
        self.numbers = numbers
        self.channels = channels or (len(normalisation.mean) if normalisation else None)
        if isinstance(loader, str | Path):
            raise InputError(
                f"the images must be given, not their name {str(loader)!r}: load them, for instance with "
                "data = fpa.data.load_data(name), or use the command fpa evaluate --data"
            )
        self._source = [loader] if is_batch(loader) else loader
        if hasattr(self._source, "__getitem__") and not hasattr(self._source, "__iter__"):
            self._source = _Items(self._source)
        try:
            self.one_pass = iter(self._source) is self._source
        except TypeError as error:
            raise InputError(
                "the images must be a tensor, an array, a list, or a loader that yields batches of them, got "
                f"{type(loader).__name__}"
            ) from error
        self._taken: list[Any] = []
        self._range: str | None = None
        self._numbered = False
        self._seen: set[int] = set()
        self._needed = self._told = False
        self._first: Tensor | None = None

    @property
    def dataset(self) -> Sequence[Any] | None:
        """Something with the number of images as its length; None where that is not known."""
        if isinstance(self._source, list) and len(self._source) == 1:
            return range(len(self.first))
        inner = self._source if isinstance(self._source, _Items) else getattr(self._source, "dataset", None)
        return range(len(inner)) if isinstance(inner, Sized) else None

    @property
    def shuffled(self) -> bool:
        """Whether the loader may give the images in another order than the data set's."""
        return not in_order(self._source)

    @property
    def drawn(self) -> bool:
        """Whether the loader draws the images at random, in another order every time."""
        batches = getattr(self._source, "batch_sampler", None)
        samplers = (getattr(self._source, "sampler", None), getattr(batches, "sampler", None))
        return any(
            isinstance(one, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)) for one in samplers
        )

    @property
    def numbered(self) -> bool:
        """Whether the loader says which image is which."""
        _ = self.first
        return self._numbered

    def check_numbers(self) -> None:
        """Refuse a loader of which one cannot tell which image is which, now or when a number repeats."""
        self._needed = True
        if self.shuffled and not self.numbered:
            raise InputError(SHUFFLED)

    @property
    def first(self) -> Tensor:
        """The images of the first batch, normalised; a loader that can be read once loses nothing."""
        if self._first is None:
            source = iter(self._source)
            taken = list(itertools.islice(source, 1))
            if not taken:
                raise InputError("there are no images: the loader yields nothing")
            self._first = self._converted(taken[0], 0, 0)[0]
            if self.numbers and _parts(taken[0])[2] is not None:
                if len(self._first) == 1:
                    taken += itertools.islice(source, 1)  # one image alone cannot show that numbers differ
                self._numbered = _are_numbers(taken, self.channels)
            if self.one_pass:
                self._taken = taken
        return self._first

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        _ = self.first  # what its range says holds for all batches
        taken, self._taken = self._taken, []
        self._seen, at = set(), 0
        for number, raw in enumerate(itertools.chain(taken, self._source)):
            batch = self._converted(raw, number, at)
            at += len(batch[0])
            yield batch

    def _converted(self, raw: Any, number: int, at: int) -> tuple[Tensor, Tensor, Tensor]:
        given, labels, numbers = _parts(raw)
        images = self._normalised(_as_batch(given, self.channels), number)
        if self._first is not None and images.shape[1:] != self._first.shape[1:]:
            raise InputError(
                f"images of different sizes: batch {number} has {list(images.shape[1:])}, the first one "
                f"{list(self._first.shape[1:])}: resize or crop them to one size"
            )
        count = len(images)
        indices = torch.arange(at, at + count)
        if self._numbered:
            indices = _whole_numbers("indices", numbers, count)
            self._check_new(indices.tolist())
        return images, _whole_numbers("labels", labels, count), indices

    def _check_new(self, numbers: list[int]) -> None:
        """Refuse numbers of images that came before: then they number something else, or images repeat."""
        for number in numbers:
            if number in self._seen and not self._told:
                told = (
                    f"the number {number} came with two images: the third part of a batch (or its index) "
                    "numbers the images, so leave it out, or give every image a number of its own once"
                )
                if self._needed:
                    raise InputError(told)
                warnings.warn(f"{told}; noise and ties of such images are drawn alike", stacklevel=4)
                self._told = True
            self._seen.add(number)

    def _normalised(self, images: Tensor, number: int) -> Tensor:
        if self.channels is not None and images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise InputError(
                    f"the model takes {self.channels} channels, the images have {images.shape[1]} "
                    f"({list(images.shape)}): convert them"
                )
            images = images.expand(-1, self.channels, -1, -1)
        found, low, high = _range(images)
        if self._range is None:
            self._range = found
            self._explain(found, low, high)
        elif not _same_range(self._range, found):
            raise InputError(
                f"batch {number} reaches from {low:.3g} to {high:.3g}, the first one looked {self._range}: "
                "give all images in the same range"
            )
        images = images if images.dtype == torch.float64 else images.float()
        if self.normalisation is None or self._range == NORMALISED:
            return images
        return self.normalisation(images / 255 if self._range == BYTES else images)

    def _explain(self, found: str, low: float, high: float) -> None:
        """Say what the range of the first batch means, if anything has to be said."""
        if self.normalisation is not None:
            return
        if found == BYTES:
            raise InputError(
                f"the images are not normalised (they reach from {low:.3g} to {high:.3g}): normalise them "
                "as in training, or pass normalisation=fpa.data.Normalisation(mean, std), "
                "for pixels in 0..1"
            )
        if found == UNIT:
            warnings.warn(
                "the images lie in 0..1 and are used as they are; if the model was trained on normalised "
                "images, pass normalisation=fpa.data.Normalisation(mean, std)",
                stacklevel=2,
            )


def warn_of_probabilities(outputs: Tensor) -> None:
    """Say that a model's outputs [N, classes] look like probabilities, where logits are needed."""
    likely = outputs.shape[1] > 1 and bool(((outputs >= 0) & (outputs <= 1)).all())
    if likely and bool(((outputs.sum(1) - 1).abs() < 1e-4).all()):
        warnings.warn(
            "the model's outputs look like probabilities (in 0..1, their sum is 1), which saturate: curves "
            "and areas are meant for logits, so leave out its last softmax",
            stacklevel=3,
        )


def as_normalisation(given: Any) -> Normalisation | None:
    """How images are normalised: a Normalisation, (mean, std), a transform that has both, or None.

    >>> as_normalisation(((0.5,), (0.25,)))
    Normalisation(mean=(0.5,), std=(0.25,))
    """
    if given is None or isinstance(given, Normalisation):
        return given
    pair = isinstance(given, (tuple, list))
    parts: Any = given if pair else [getattr(given, name, 0) for name in ("mean", "std")]
    try:
        mean, std = (tuple(float(value) for value in part) for part in parts)
    except (TypeError, ValueError) as error:
        raise InputError(
            "normalisation must be (mean, std) with a number a channel, a transform with .mean and .std, or "
            f"fpa.data.Normalisation(mean, std), got {given!r}"
        ) from error
    return Normalisation(mean, std)


def image_batches(
    loader: Any,
    normalisation: Normalisation | None = None,
    channels: int | None = None,
    numbers: bool = True,
) -> ImageBatches:
    """Batches (images [N, C, H, W] normalised, labels [N], indices [N]) from whatever holds images.

    `loader` is a tensor, an array, a list of PIL images, (images, labels), a data set, or anything that
    yields such batches; a batch may also be a dict ("image", "pixel_values", "label", ...) or have a third
    part, which numbers the images if it is whole numbers. Unknown labels are -1. Grey images are repeated
    to the `channels` the model takes, and opacity, a fourth channel at the end, is dropped.

    With a `normalisation`, bytes and floats in 0..255 or in 0..1 are normalised, images outside of these
    ranges are taken to be normalised already. Without one, bytes are refused, and a warning tells that
    images in 0..1 are used as they are. The first batch decides for all. Without `numbers` a third part is
    left aside: in training an image may come twice.

    >>> grey = np.zeros((2, 8, 8), dtype=np.uint8)
    >>> batches = image_batches((grey, [3, 1]), Normalisation((0.5,) * 3, (0.5,) * 3))
    >>> next(iter(batches))[0].shape
    torch.Size([2, 3, 8, 8])
    """
    return ImageBatches(loader, normalisation, channels, numbers)


SHUFFLED = (
    "precomputed maps belong to images by number, and the loader shuffles them: use shuffle=False, "
    "without a sampler, or yield (images, labels, indices)"
)


def in_order(loader: Any) -> bool:
    """Whether a loader gives the images of its data set one after the other, from the first to the last.

    Anything without a sampler does, as far as that can be seen; so does a data set that is only iterated.

    >>> from torch.utils.data import DataLoader, SubsetRandomSampler
    >>> images = torch.zeros(4, 1, 2, 2)
    >>> in_order(DataLoader(images)), in_order(DataLoader(images, sampler=SubsetRandomSampler([2, 0])))
    (True, False)
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return True
    batches = getattr(loader, "batch_sampler", None)
    # A batch sampler of another kind may draw as it likes, whatever it says about a sampler.
    plain = batches is None or type(batches) is BatchSampler
    samplers = (getattr(loader, "sampler", None), getattr(batches, "sampler", None))
    return plain and all(one is None or isinstance(one, SequentialSampler) for one in samplers)


BYTES, UNIT, NORMALISED = "like bytes (0..255)", "like 0..1", "normalised"


def _range(images: Tensor) -> tuple[str, float, float]:
    """What the values look like, and their smallest and largest."""
    if images.dtype == torch.bool:
        return UNIT, 0.0, 1.0
    whole = not images.is_floating_point()
    finite = images if whole else images[images.isfinite()]
    if finite.numel() == 0:
        return NORMALISED, float("nan"), float("nan")
    low, high = (float(value) for value in finite.aminmax())
    if whole:
        if low < 0 or high > 255:
            raise InputError(f"whole-numbered images must be in 0..255, they reach from {low:g} to {high:g}")
        return BYTES, low, high
    if low >= -1 and high > _LIKE_BYTES:
        return BYTES, low, high
    unit = low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT
    return (UNIT if unit else NORMALISED), low, high


def _same_range(first: str, now: str) -> bool:
    """A dark batch of bytes or a pale one of normalised images may look like 0..1; else none differs."""
    return first == now or (now == UNIT and first != UNIT)


class _Items:
    """A data set without an iterator of its own, item by item."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return (self.items[number] for number in range(len(self)))


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_image(value: Any) -> bool:
    """Whether a value is one image or an array of them, rather than a label."""
    return isinstance(value, Image.Image) or (_is_array(value) and value.ndim >= 2)


def _are_images(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(_is_image, value))


def is_batch(loader: Any) -> bool:
    """Whether the loader is itself one batch: images, with labels or without."""
    if _is_array(loader) or isinstance(loader, Mapping):
        return True
    if isinstance(loader, list):
        return _are_images(loader) and not any(_is_array(part) and part.ndim == 4 for part in loader)
    return isinstance(loader, tuple) and len(loader) > 0 and (_is_image(loader[0]) or _are_images(loader[0]))


def single_images(items: Any) -> bool:
    """Whether a sequence holds single images, with labels or without, instead of batches."""
    if len(items) == 0:
        return False
    image, label, _ = _parts(items[0])
    alone = isinstance(image, Image.Image) or (_is_array(image) and image.ndim < 4)
    return alone and (label is None or np.ndim(label) == 0)


def _parts(batch: Any) -> tuple[Any, Any, Any]:
    """Images, labels and numbers of a batch, None where it has none."""
    if isinstance(batch, Mapping):
        keys = {str(key).lower(): value for key, value in batch.items()}
        image = next((key for key in IMAGE_KEYS if key in keys), None)
        if image is None:
            raise InputError(
                f"a batch with the keys {', '.join(map(str, batch))} has no images: "
                f"expected one of {', '.join(IMAGE_KEYS)}"
            )
        label, index = (
            next((keys[key] for key in known if key in keys), None) for known in (LABEL_KEYS, INDEX_KEYS)
        )
        return keys[image], label, index
    if _is_image(batch) or _is_array(batch):
        return batch, None, None
    if isinstance(batch, (list, tuple)) and batch:
        if len(batch) > 1 and _are_images(batch) and not _is_image_pair(batch):
            return batch, None, None
        if len(batch) <= 3 and (_is_image(batch[0]) or _are_images(batch[0])):
            return batch[0], *(batch[n] if len(batch) > n else None for n in (1, 2))
    what = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    raise InputError(
        "a batch must be images, (images, labels), (images, labels, indices) or a dict of them, with images "
        f"as tensors, arrays or PIL images; got {what}"
    )


def collated(items: list[Any]) -> Any:
    """Items of a data set as one batch: as PyTorch does it, or, where it cannot, images and labels as lists.

    >>> images, labels = collated([(Image.new("RGB", (4, 4)), 2), (Image.new("RGB", (4, 4)), 0)])
    >>> len(images), labels
    (2, [2, 0])
    """
    try:
        return default_collate(items)
    except (TypeError, RuntimeError):  # PIL images, or images of several sizes
        parts = [_parts(item) for item in items]
        labels = [label for _, label, _ in parts]
        return [image for image, _, _ in parts], None if any(one is None for one in labels) else labels


def _is_image_pair(batch: Sequence[Any]) -> bool:
    """Images and labels [N, 1] or [N, classes], which look like a small image themselves."""
    first, second = batch[:2]
    return _is_array(first) and _is_array(second) and first.ndim > second.ndim == 2


def _as_batch(given: Any, channels: int | None) -> Tensor:
    """Any form of images as a tensor [N, C, H, W] in its own range."""
    if isinstance(given, (list, tuple)):
        images = [_as_batch(image, channels) for image in given]
        sizes = {tuple(image.shape[1:]) for image in images}
        if len(sizes) > 1:
            first, other = [list(size) for size in sorted(sizes)][:2]
            raise InputError(
                f"images of different sizes, {first} and {other}: resize or crop them to one size"
            )
        return torch.cat(images)
    if isinstance(given, Image.Image):
        grey = channels == 1 or (channels is None and given.mode in ("L", "1"))
        given = np.array(given.convert("L" if grey else "RGB"))
    try:
        images_ = torch.as_tensor(given).detach()
    except TypeError as error:
        raise InputError(f"images must be numbers, got an array of {given.dtype}") from error
    if images_.ndim == 2:
        return images_[None, None]
    if images_.ndim == 3:
        if images_.shape[0] == (channels or 3):
            return images_[None]
        if images_.shape[-1] in (3, 4):
            return _as_batch(images_[None], channels)
        return images_[:, None]
    if images_.ndim != 4:
        raise InputError(f"images must be [N, C, H, W], got {list(images_.shape)}")
    if images_.shape[1] not in (1, 3, channels):
        if images_.shape[-1] in (1, 3, channels):
            return images_.permute(0, 3, 1, 2)
        if images_.shape[-1] == 4 and channels == 3:  # red, green, blue and opacity
            return images_[..., :3].permute(0, 3, 1, 2)
        if images_.shape[-1] == 4 and channels is None:
            return images_.permute(0, 3, 1, 2)
    return images_


def _are_numbers(batches: Sequence[Any], channels: int | None) -> bool:
    """Whether the third parts of these batches number the images; they may be paths or anything else."""
    numbers: list[int] = []
    for images, _, values in map(_parts, batches):
        try:
            numbers += _whole_numbers("indices", values, len(_as_batch(images, channels))).tolist()
        except InputError:
            return False
    return len(set(numbers)) == len(numbers)


def _whole_numbers(name: str, values: Any, count: int) -> Tensor:
    """Labels or indices as int64 [count] on the CPU; -1 where there are none."""
    if values is None:
        return torch.full((count,), -1)
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be whole numbers, one an image, got {values!r:.80}") from error
    if found.ndim == 0 or found.shape == (count, 1):
        found = found.reshape(-1)
    if found.shape != (count,) or found.is_floating_point() or found.dtype == torch.bool:
        raise InputError(
            f"{name} must be whole numbers [{count}], one an image, got {found.dtype} {list(found.shape)}"
        )
    return found.to(torch.int64)
