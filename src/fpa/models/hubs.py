"""Weights that others publish, by name: of torchvision, timm and Hugging Face, from a cache or a network."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn
from torchvision import models as torchvision_models

from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.errors import InputError, first_line, shortened
from fpa.models.architectures import ModelName, import_for, local_folder
from fpa.models.wrap import Logits, unwrapped

DEFAULT = "DEFAULT"
"""As weights: those that torchvision or timm recommend for a model."""

_FILE = "fetch them where there is a network, and name the file: --weights FILE"
_FOLDER = (
    "load it where there is a network, write model and image processor with save_pretrained(FOLDER), and "
    "name hf:FOLDER; or load it in Python and give it to fpa.evaluate"
)


@dataclass(frozen=True)
class Opened:
    """A model and what is known about its images."""

    model: nn.Module
    name: str
    normalisation: Normalisation | None = None
    """How its images are normalised; None where the source does not say."""
    size: int | None = None
    """The side of its images in pixels; None where the source does not say."""
    classes: list[str] | None = None
    """The names of its outputs; None where the source does not say."""
    data: str | None = None
    """The data set it was trained on, if it is a model of fpa."""


def published(name: ModelName, weights: Path | str | None) -> str | None:
    """The name of weights that are published, such as DEFAULT; None where they are a file, or none."""
    word = str(weights).upper()
    if weights is None or os.path.exists(weights):
        return None
    if word == DEFAULT and name.kind in ("own", "function", "file"):
        places = "torchvision:NAME and timm:NAME"
        raise InputError(f"{name.spec} has no published weights: {DEFAULT} is for {places}")
    if name.kind == "torchvision" and word in torchvision_models.get_model_weights(name.name).__members__:
        return word
    return DEFAULT if word == DEFAULT else None


def open_published(name: ModelName, weights: str) -> Opened:
    """A model of torchvision or timm with published weights."""
    what = f"the weights {weights} of {name.spec}"
    if name.kind == "torchvision":
        entry = torchvision_models.get_model_weights(name.name)[weights]
        with _fetched(what, _FILE):
            return about(name, torchvision_models.get_model(name.name, weights=entry), None, entry)
    timm = import_for(name.spec, "timm")
    with _fetched(what, _FILE), _hub():
        return about(name, timm.create_model(name.name, pretrained=True), None)


def about(name: ModelName, model: nn.Module, classes: int | None, entry: Any = None) -> Opened:
    """A model of torchvision or timm with what they say about its images; `entry`: about these weights."""
    if name.kind == "timm":
        config: Any = import_for(name.spec, "timm").data.resolve_model_data_config(model)
        normalisation = as_normalisation((config["mean"], config["std"]))
        return Opened(model, name.name, normalisation, int(config["input_size"][-1]))
    entry = entry or next(iter(torchvision_models.get_model_weights(name.name)))
    transform, names = entry.transforms(), list(entry.meta["categories"])
    known = names if classes in (None, len(names)) else None
    return Opened(model, name.name, as_normalisation(transform), int(transform.crop_size[0]), known)


def open_hugging_face(name: ModelName) -> Opened:
    """An image classifier of Hugging Face: a folder that save_pretrained wrote, or a name in the hub."""
    transformers = import_for(name.spec, "transformers")
    folder = local_folder(name)
    where = str(folder or name.name)
    with _fetched(name.spec, _FOLDER), _hub(asked=folder is None) as reached:
        kind = transformers.AutoModelForImageClassification
        model, loading = kind.from_pretrained(where, output_loading_info=True, local_files_only=not reached)
        try:
            found = transformers.AutoImageProcessor.from_pretrained(where, local_files_only=not reached)
            processor = dict(found.to_dict())
        except (OSError, ValueError):  # it has none
            processor = {}
    if missing := sorted(loading["missing_keys"]):
        raise InputError(f"{name.spec} has no trained classifier: its weights lack {', '.join(missing[:3])}")
    normalisation, size = None, None
    odd = [key for key in ("include_top", "do_flip_channel_order") if processor.get(key)]
    if processor.get("do_normalize") and not odd:  # else --mean and --std are asked for
        normalisation = as_normalisation((processor["image_mean"], processor["image_std"]))
    sides = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
    if isinstance(sides, Mapping):
        sides = sides.get("height") or sides.get("shortest_edge")
    size = sides if isinstance(sides, int) else getattr(model.config, "image_size", None)
    plain = size if isinstance(size, int) else None
    names = class_names(model)
    return Opened(Logits(model), Path(where).name, normalisation, plain, names or None)


def class_names(model: nn.Module) -> list[str]:
    """The names that a model has for its outputs, kept by Hugging Face or fpa; empty where it has none."""
    network: Any = unwrapped(model)
    card = getattr(getattr(network, "card", None), "classes", None)  # fpa
    network = network.model if isinstance(network, Logits) else network
    labels = getattr(getattr(network, "config", None), "id2label", None)  # Hugging Face
    by_number = {str(key): str(name) for key, name in labels.items()} if isinstance(labels, Mapping) else {}
    named = [by_number[key] for key in map(str, range(len(by_number))) if key in by_number]
    if named == [f"LABEL_{number}" for number in range(len(named))]:  # what it calls those without names
        named = []
    return named or list(card or [])


@contextmanager
def _fetched(what: str, remedy: str) -> Iterator[None]:
    """Say in a line what to do where something is in no cache and cannot be fetched."""
    try:
        yield
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        reason = shortened(first_line(error), 160).rstrip(".")
        problem = f"{what} cannot be loaded here ({reason})"
        raise InputError(problem if isinstance(error, ImportError) else f"{problem}: {remedy}") from error


@contextmanager
def _hub(asked: bool = True) -> Iterator[bool]:
    """Whether Hugging Face's hub is asked; where it cannot be reached only the cache is, without waiting."""
    from huggingface_hub import constants

    place = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    before = constants.HF_HUB_OFFLINE
    asked = asked and not before
    if asked and not getproxies():
        try:
            socket.create_connection(
                (place.hostname or "", place.port or (80 if place.scheme == "http" else 443)), timeout=5
            ).close()
        except OSError:
            asked = False
    constants.HF_HUB_OFFLINE = not asked
    try:
        yield asked
    finally:
        constants.HF_HUB_OFFLINE = before
