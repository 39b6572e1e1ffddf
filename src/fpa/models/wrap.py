"""What people bring as a model, made into the classifier that the rest of the package takes.

A model comes wrapped, compiled, in half precision or returning an object. Here it is unwrapped and
converted, or one sentence says what to change. The model given is never changed.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fpa.errors import InputError, first_line, warn

HALF = (torch.float16, torch.bfloat16)


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
    network = unwrapped(model)
    half = sorted({str(p.dtype) for p in network.parameters() if p.dtype in HALF})
    if half:
        kinds = " and ".join(half).replace("torch.", "")
        note = "a float32 copy is evaluated, whose logits have more digits"
        warn(f"the model's weights are {kinds}: {note}")
        network = _copied(network).float()
    if device is not None and any(p.device != placed(device) for p in network.parameters()):
        # `to` moves a module in place: what the user holds must stay where it is.
        network = (network if half else _copied(network)).to(device)
    return network if images is None else _logits_alone(network, _returned(network, images))


def tried_classifier(model: nn.Module, images: Tensor) -> tuple[nn.Module, int]:
    """As `classifier`, and the number of its outputs: one pass tells both.

    >>> _, outputs = tried_classifier(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.zeros(1, 3, 2, 2))
    >>> outputs
    5
    """
    network = classifier(model)
    returned = _returned(network, images)
    return _logits_alone(network, returned), _output_count(returned)


def _logits_alone(network: nn.Module, returned: Any) -> nn.Module:
    """The network, wrapped if what it returned is more than logits, or a single one."""
    logits = logits_of(returned)
    if getattr(getattr(network, "config", None), "problem_type", "") == "multi_label_classification":
        raise InputError(f"the model's configuration says {SEVERAL_LABELS}")
    if single := logits.ndim == 2 and logits.shape[1] == 1:
        note = "it counts as that of class 1 of two, and class 0 gets the logit 0"
        warn(f"the model returns a single logit: {note}")
    return network if logits is returned and not single else Logits(network)


SEVERAL_LABELS = (
    "that an image can have several labels: fpa follows one of several classes that exclude each other, "
    "so such a model cannot be evaluated (if its classes do, leave out its last sigmoid)"
)


class Logits(nn.Module):
    """A model that returns only the logits of what another returns; a single one z becomes (0, z)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        return self.alone(self.model(images))

    def alone(self, returned: Any) -> Tensor:
        """The logits in what the model returned, of two classes at least."""
        logits = logits_of(returned)
        if logits.ndim == 2 and logits.shape[1] == 1:
            return torch.cat([torch.zeros_like(logits), logits], 1)
        return logits


def logits_of(returned: Any) -> Tensor:
    """The logits in what a model returned: itself, `.logits`, `["logits"]` or the first of a tuple.

    >>> logits_of({"loss": None, "logits": torch.zeros(2, 5)}).shape
    torch.Size([2, 5])
    """
    inside = returned if isinstance(returned, Tensor) else getattr(returned, "logits", None)
    if inside is None and isinstance(returned, Mapping):
        inside = returned.get("logits")
    if inside is None and isinstance(returned, tuple | list):
        inside = next(iter(returned), None)
    if not isinstance(inside, Tensor):
        raise InputError(
            "the model must return logits [N, classes], or an object, dict or tuple with them as .logits, "
            f"['logits'] or first part; it returned {type(returned).__name__}"
        )
    return inside


def input_channels(model: nn.Module) -> int | None:
    """The channels of the images a model takes, if its first convolution tells.

    >>> input_channels(nn.Sequential(nn.Conv2d(1, 4, 3))), input_channels(nn.Flatten())
    (1, None)
    """
    unwrapped(model)  # refuses what is no model
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    return None if first is None else first.in_channels


def class_count(model: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """The number of outputs a classifier has for images of this shape (C, H, W); 2 for a single logit.

    >>> class_count(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2))
    5
    """
    return _output_count(_returned(model, torch.zeros(1, *input_shape)))


def _output_count(returned: Any) -> int:
    logits = logits_of(returned)
    if logits.ndim != 2:
        raise InputError(f"the model must return logits [N, classes], it returned {list(logits.shape)}")
    return max(2, logits.shape[1])


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DataParallel, DistributedDataParallel and torch.compile around it.

    >>> inner = nn.Flatten()
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("the model is TorchScript, which cannot be frozen: give the module it was made from")
    while True:
        parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = getattr(model, "module" if parallel else "_orig_mod", None)  # torch.compile has the latter
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        remedy = "give it in float32, on the device it is to run on"
        raise InputError(f"the model cannot be copied ({error}): {remedy}") from error


def placed(device: torch.device | str) -> torch.device:
    """The device with its number, as tensors on it say it."""
    try:
        found = torch.empty(0, device=device).device
        if found.type == "meta":  # whose tensors hold no numbers
            raise RuntimeError("nothing is computed there")
        return found
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {str(device)!r} cannot be used here: {first_line(error)}") from error


def _returned(model: nn.Module, images: Tensor) -> Any:
    """What the model, in evaluation mode, returns for one of the images."""
    weight = next(itertools.chain(model.parameters(), model.buffers()), None)
    image = images[:1].detach().clone()
    if weight is not None:
        image = image.to(weight.device, weight.dtype if weight.is_floating_point() else image.dtype)
    try:
        with torch.no_grad(), untouched(model):
            return model(image)
    except Exception as error:
        raise unfit_images(images.shape[1:], error) from error


def unfit_images(shape: torch.Size, error: Exception) -> InputError:
    """The error for images of a shape [C, H, W] that a model cannot take."""
    what = f"{list(shape)} (channels, height, width)"
    return InputError(f"the model cannot take images {what}: {first_line(error)}")


def check_head(predict: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """The outputs [N, classes] for a few images; refuses sigmoids of several labels.

    Where they are (log-)probabilities, a warning says it.

    Outputs that lie in 0..1 may be small logits: they are bounded if 1e6 times the images stay there, too.
    """
    outputs = predict(images)
    if outputs.shape[1] < 2 or not outputs.isfinite().all():
        return outputs

    def shares(values: Tensor) -> bool:
        return bool(((values >= 0) & (values <= 1)).all())

    def sum_to_one(values: Tensor) -> bool:
        return bool(((values.sum(1) - 1).abs() < 1e-4).all())

    saturate = "curves and areas are meant for logits, so leave out its last"
    if shares(outputs) and sum_to_one(outputs):
        problem = "the model's outputs look like probabilities (in 0..1, summing to 1), which saturate"
        warn(f"{problem}: {saturate} softmax")
    elif bool((outputs <= 0).all()) and sum_to_one(outputs.exp()):
        problem = "the model's outputs look like log-probabilities (exponentials summing to 1), never above 0"
        warn(f"{problem}: {saturate} log-softmax, or follow the output centred")
    elif shares(outputs):
        large = predict(1e6 * images)
        if shares(large) and not torch.equal(large, outputs):
            seen = "the model's outputs lie in 0..1 but do not sum to 1, as sigmoids do, which says"
            raise InputError(f"{seen} {SEVERAL_LABELS}")
    return outputs


@contextmanager
def untouched(model: nn.Module, *, freeze: bool = False) -> Iterator[None]:
    """Lend a model out in eval mode; its mode, gradients and requires_grad flags come back as they were."""
    modes = [(module, module.training) for module in model.modules()]
    own = (parameter for parameter in model.parameters() if not parameter.is_inference())  # those never learn
    flags = [(parameter, parameter.requires_grad, parameter.grad) for parameter in own]
    model.eval()
    for parameter, _, _ in flags:
        parameter.grad = None
        if freeze:
            parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad, grad in flags:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
