"""Models with new weights, by the name of their architecture."""

from typing import Any

import torch
from torch import nn
from torchvision import models as torchvision_models

from fpa.errors import InputError
from fpa.files import call_object, load_object
from fpa.models.names import ModelName, import_timm, parse_model_name, unknown_model
from fpa.models.resnets import OWN


def build_model(
    architecture: str, classes: int, input_shape: tuple[int, int, int], seed: int = 0
) -> nn.Module:
    """A new model with random weights that depend only on the seed.

    `architecture` is "resnet-small", "resnet18-cifar", any classifier of torchvision ("resnet50",
    "torchvision:mobilenet_v2", ...), with timm installed "timm:NAME", or "module:function", a function of
    your own that takes the number of classes and of channels and returns the model.

    >>> model = build_model("resnet-small", classes=8, input_shape=(3, 32, 32))
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """
    name = parse_model_name(architecture)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(name, classes, input_shape[0])


def build(name: ModelName, classes: int | None, channels: int = 3, *, initialise: bool = True) -> nn.Module:
    """The model of a name, with as many classes as the architecture usually has if they are not given.

    Without `initialise` some weights may be left as they are, for those from a file to replace.
    """
    if name.kind == "own":
        return OWN[name.name](classes or 10, channels)
    if name.kind == "function":
        return _returned(name.spec, *(() if classes is None else (classes, channels)))
    if name.kind == "file":
        raise unknown_model(name.spec)
    how: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    model: nn.Module
    if name.kind == "timm":
        how |= {} if channels == 3 else {"in_chans": channels}
        model = import_timm(name.spec).create_model(name.name, pretrained=False, **how)
        return model
    if channels != 3:
        raise InputError(
            f"model {name.spec!r} takes images of 3 channels, these have {channels}: "
            f"use one of {', '.join(OWN)} or a timm model"
        )
    if not initialise and name.name in ("googlenet", "inception_v3"):
        how["init_weights"] = False  # they warn about a default that weights from a file make meaningless
    model = torchvision_models.get_model(name.name, weights=None, **how)
    return model


def _returned(spec: str, *arguments: int) -> nn.Module:
    """The model that `module:function` returns, or is."""
    model = load_object(spec, "model")
    if arguments or not isinstance(model, nn.Module):
        model = call_object(spec, "model", *arguments)
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} must return a torch.nn.Module, it returned {type(model).__name__}")
    return model
