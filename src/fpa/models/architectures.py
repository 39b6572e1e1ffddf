"""The names of models, the same in recipes and commands, and models with new weights by these names."""

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models
from torchvision.models.resnet import BasicBlock

from fpa.errors import InputError, unknown
from fpa.identity import MADE_BY, identity
from fpa.models.fetching import HUB_REMEDY, cached_or_fetched, fetched
from fpa.models.wrap import Logits
from fpa.plugins import call_object, load_object


class SmallResNet(nn.Module):
    """Residual blocks of 16, 32 and 64 channels, for 32 px images on a CPU.

    One block of each width has 77,000 weights; three of each are the ResNet-20 of He et al. (2016), 270,000.
    """

    def __init__(self, classes: int, channels: int, *, blocks: int = 1) -> None:
        super().__init__()
        first = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        widths = [16, *(width for width in (16, 32, 64) for _ in range(blocks))]
        pairs = pairwise(widths)
        self.blocks = nn.Sequential(*(_block(a, b, 1 if a == b else 2) for a, b in pairs))
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    shortcut = None
    if inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    return BasicBlock(inputs, outputs, stride, shortcut)  # type: ignore[no-any-return]


def _small_stem(make: Callable[..., nn.Module], stride: int, classes: int, channels: int) -> nn.Module:
    """A ResNet whose stem keeps small images large: a 3x3 convolution of this stride, no pooling."""
    model = make(num_classes=classes)
    model.conv1 = stem = nn.Conv2d(channels, 64, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


OWN: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet-small": SmallResNet,
    "resnet20-cifar": partial(SmallResNet, blocks=3),
    "resnet18-cifar": partial(_small_stem, torchvision_models.resnet18, 1),  # for 32 px
    "resnet50-64px": partial(_small_stem, torchvision_models.resnet50, 2),
}
"""Architectures by name: functions of the numbers of classes and channels."""

PLACES = ("torchvision:NAME", "timm:NAME", "hf:NAME")
"""How models from elsewhere are named."""


@dataclass(frozen=True)
class ModelName:
    """A model's name: where the model comes from, and what it is called there."""

    kind: Literal["own", "torchvision", "timm", "hf", "function", "file"]
    """An architecture of `OWN`, of torchvision, timm or Hugging Face; a function; a saved or shipped one."""
    name: str
    spec: str
    """The whole name, as it was written."""


def parse_model_name(spec: str) -> ModelName:
    """What a name stands for.

    | name | stands for |
    |---|---|
    | `resnet-small`, `resnet20-cifar`, `resnet18-cifar`, `resnet50-64px` | an architecture of fpa |
    | `torchvision:NAME`, or `NAME` alone | a classifier of torchvision |
    | `timm:NAME` | a model of timm |
    | `hf:NAME`, `hf:FOLDER` | an image classifier of Hugging Face, in its hub or in a folder |
    | `module:function` | what the function returns |
    | a path, or any other name | a saved model, or one that ships with fpa |

    Names that torchvision and timm do not have are refused.

    >>> parse_model_name("resnet50").kind, parse_model_name("shapes-fpa").kind
    ('torchvision', 'file')
    """
    prefix, _, rest = spec.partition(":")
    if spec in OWN:
        return ModelName("own", spec, spec)
    if prefix == "torchvision":
        if rest not in torchvision_names():
            raise unknown("torchvision model", rest, torchvision_names())
        return ModelName("torchvision", rest, spec)
    if prefix == "timm":
        timm = import_for(spec, "timm")
        if not timm.is_model(rest):  # also true for names with a tag and old ones, which are not listed
            raise unknown("timm model", rest, timm.list_models())
        return ModelName("timm", rest, spec)
    if prefix == "hf":
        if not rest:
            raise InputError("hf: needs a name, as in hf:microsoft/resnet-50, or a folder, as in hf:my-model")
        return ModelName("hf", rest, spec)
    if os.path.isfile(spec):  # unlike Path's, also for names that are too long for a file
        return ModelName("file", spec, spec)
    if rest:
        return ModelName("function", rest, spec)
    return ModelName("torchvision" if spec in torchvision_names() else "file", spec, spec)


def torchvision_names() -> list[str]:
    """The classifiers of torchvision."""
    return torchvision_models.list_models(module=torchvision_models)  # type: ignore[no-any-return]


def import_for(spec: str, package: str) -> Any:
    """The package that a model needs (timm or transformers), or an error that says so."""
    try:
        return import_module(package)
    except ImportError as error:
        extra = "hf" if package == "transformers" else package
        raise InputError(f"model {spec!r} needs {package}: pip install 'fpa[{extra}]'") from error


def local_folder(name: ModelName) -> Path | None:
    """The folder that a name of Hugging Face stands for; None where it is a name in the hub."""
    folder = Path(name.name).expanduser()
    if os.path.isdir(folder):
        return folder
    if name.name.startswith((".", "~", "/")) or name.name.count("/") > 1:
        raise InputError(f"there is no folder {folder}: {name.spec} needs one that save_pretrained wrote")
    return None


def unknown_model(spec: str, more: Iterable[str] = ()) -> InputError:
    """The error for a name that stands for nothing, with the nearest names that do; `more` are known too."""
    if find_spec("timm") and spec in import_for(spec, "timm").list_models():
        return InputError(f"unknown model {spec!r}: did you mean timm:{spec}?")
    typed = (spec, spec.partition(":")[2])  # what does not work here is not what was meant
    names = [name for name in (*OWN, *more, *torchvision_names()) if name not in typed]
    if difflib.get_close_matches(spec, names, n=1, cutoff=0.5):
        return unknown("model", spec, names)
    return unknown("model", spec, [*OWN, *more, *PLACES, "module:function"])


def build_model(
    architecture: str, classes: int, input_shape: tuple[int, int, int], seed: int = 0
) -> nn.Module:
    """A new model with random weights that depend only on the seed.

    `architecture` is an architecture of fpa ("resnet-small", ...; see `OWN`), any classifier of torchvision
    ("resnet50", "torchvision:mobilenet_v2", ...), "timm:NAME" or "hf:NAME" where timm or transformers are
    installed, or "module:function", a function of your own that takes the number of classes and of channels
    and returns the model.

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
        return _from_function(name, classes, channels)
    if name.kind == "hf":
        return _from_hugging_face(name, classes, channels)
    if name.kind == "timm":
        # None is what is not said: not every model of timm takes another number of channels.
        model: nn.Module = import_for(name.spec, "timm").create_model(
            name.name,
            pretrained=False,
            num_classes=classes,
            in_chans=None if channels == 3 else channels,
        )
        return model
    if name.kind == "torchvision":
        return _from_torchvision(name, classes, channels, initialise)
    raise unknown_model(name.spec)


def _from_function(name: ModelName, classes: int | None, channels: int) -> nn.Module:
    """What a user's function returns for these numbers, or for none where the classes are not known."""
    returned = load_object(name.spec, "model")
    if classes is not None:
        returned = call_object(name.spec, "model", classes, channels)
    elif not isinstance(returned, nn.Module):  # a name may also stand for a model that is already made
        returned = call_object(name.spec, "model")
    if not isinstance(returned, nn.Module):
        what = type(returned).__name__
        raise InputError(f"{name.spec} must return a torch.nn.Module, it returned {what}")
    # What the function does with layers of torch alone shows neither in weights nor in classes.
    setattr(returned, MADE_BY, identity(import_module(name.spec.partition(":")[0])))
    return returned


def _from_hugging_face(name: ModelName, classes: int | None, channels: int) -> nn.Module:
    """The architecture that a configuration of Hugging Face describes."""
    transformers = import_for(name.spec, "transformers")
    folder = local_folder(name)
    where = str(folder or name.name)

    def config_of(cached: bool) -> Any:
        return transformers.AutoConfig.from_pretrained(where, local_files_only=cached)

    with fetched(name.spec, HUB_REMEDY):
        config = cached_or_fetched(config_of, name.name if folder is None else None)
    config.num_channels = channels
    config.num_labels = classes or config.num_labels
    return Logits(transformers.AutoModelForImageClassification.from_config(config))


def _from_torchvision(name: ModelName, classes: int | None, channels: int, initialise: bool) -> nn.Module:
    if channels != 3:
        remedy = f"use one of {', '.join(OWN)} or a timm model"
        raise InputError(f"model {name.spec!r} takes images of 3 channels, these have {channels}: {remedy}")
    settings: dict[str, int] = {}
    if classes is not None:
        settings["num_classes"] = classes
    if not initialise and name.name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False  # a default that they warn about, and a file replaces
    model: nn.Module = torchvision_models.get_model(name.name, weights=None, **settings)
    return model
