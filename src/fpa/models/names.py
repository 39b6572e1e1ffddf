"""The names of models, the same in recipes and commands."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from torchvision import models as torchvision_models

from fpa.errors import InputError, unknown
from fpa.models.resnets import OWN


@dataclass(frozen=True)
class ModelName:
    """A model's name: where the model comes from, and what it is called there."""

    kind: Literal["own", "torchvision", "timm", "function", "file"]
    """An architecture of `OWN`, of torchvision or of timm; a function; a saved file or a shipped model."""
    name: str
    spec: str
    """The whole name, as it was written."""


def parse_model_name(spec: str) -> ModelName:
    """What a name stands for.

    | name | stands for |
    |---|---|
    | `resnet-small`, `resnet18-cifar` | an architecture of fpa |
    | `torchvision:NAME`, or `NAME` alone | a classifier of torchvision |
    | `timm:NAME` | a model of timm |
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
        timm = import_timm(spec)
        if not timm.is_model(rest):  # also true for names with a tag and old ones, which are not listed
            raise unknown("timm model", rest, timm.list_models())
        return ModelName("timm", rest, spec)
    if not Path(spec).is_file():
        if rest:
            return ModelName("function", rest, spec)
        if spec in torchvision_names():
            return ModelName("torchvision", spec, spec)
    return ModelName("file", spec, spec)


def torchvision_names() -> list[str]:
    """The classifiers of torchvision."""
    names: list[str] = torchvision_models.list_models(module=torchvision_models)
    return names


def import_timm(spec: str) -> Any:
    """The package timm, or an error that says that the model needs it."""
    try:
        import timm
    except ImportError as error:
        raise InputError(f"model {spec!r} needs timm: pip install 'fpa[timm]'") from error
    return timm


def unknown_model(spec: str, more: Iterable[str] = ()) -> InputError:
    """The error for a name that stands for nothing, with the nearest names that do; `more` are known too."""
    if find_spec("timm") and spec in import_timm(spec).list_models():
        return InputError(f"unknown model {spec!r}: did you mean timm:{spec}?")
    names = [*OWN, *more, *torchvision_names()]
    if difflib.get_close_matches(spec, names, n=1, cutoff=0.5):
        return unknown("model", spec, names)
    return unknown("model", spec, [*OWN, *more, "torchvision:NAME", "timm:NAME", "module:function"])
