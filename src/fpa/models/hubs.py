"""Weights that others publish, by name: of torchvision, timm and Hugging Face, from a cache or a network."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torchvision import models as torchvision_models

from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.errors import InputError
from fpa.models.architectures import ModelName, import_for, local_folder
from fpa.models.fetching import HUB_REMEDY, ask_hub, cached_or_fetched, fetched
from fpa.models.wrap import Logits, unwrapped

DEFAULT = "DEFAULT"
"""As weights: those that torchvision or timm recommend for a model."""

_FILE = "fetch them where there is a network, and name the file: --weights FILE"


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
    with fetched(f"the weights {weights} of {name.spec}", _FILE):
        if name.kind == "timm":
            return about(name, _timm_with_weights(name), None)
        entry = torchvision_models.get_model_weights(name.name)[weights]
        return about(name, torchvision_models.get_model(name.name, weights=entry), None, entry)


def _timm_with_weights(name: ModelName) -> nn.Module:
    """A model of timm with the weights that timm recommends, from the cache where they are there."""
    from huggingface_hub import try_to_load_from_cache

    timm = import_for(name.spec, "timm")
    published = timm.models.get_pretrained_cfg(name.name)
    repository, _, revision = ((published and published.hf_hub_id) or "").partition("@")
    overlay: dict[str, str] = {}
    if repository:
        file = published.hf_hub_filename or "model.safetensors"
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str) and cached.endswith(".safetensors"):
            overlay["file"] = cached  # else timm would ask the hub, also for what it has
        else:
            ask_hub(repository)
    return timm.create_model(name.name, pretrained=True, pretrained_cfg_overlay=overlay)  # type: ignore[no-any-return]


def about(name: ModelName, model: nn.Module, classes: int | None, entry: Any = None) -> Opened:
    """A model of torchvision or timm with what they say about its images; `entry`: about these weights."""
    if name.kind == "timm":
        config: Any = import_for(name.spec, "timm").data.resolve_model_data_config(model)
        normalisation = as_normalisation((config["mean"], config["std"]))
        return Opened(model, name.name, normalisation, int(config["input_size"][-1]))
    entry = entry or next(iter(torchvision_models.get_model_weights(name.name)))
    transform = entry.transforms()
    names = list(entry.meta["categories"])
    known = names if classes in (None, len(names)) else None
    return Opened(model, name.name, as_normalisation(transform), int(transform.crop_size[0]), known)


def open_hugging_face(name: ModelName) -> Opened:
    """An image classifier of Hugging Face: a folder that save_pretrained wrote, or a name in the hub."""
    transformers = import_for(name.spec, "transformers")
    folder = local_folder(name)
    where = str(folder or name.name)
    repository = name.name if folder is None else None

    def model_of(cached: bool) -> Any:
        kind = transformers.AutoModelForImageClassification
        return kind.from_pretrained(where, output_loading_info=True, local_files_only=cached)

    def processor_of(cached: bool) -> dict[str, Any]:
        found = transformers.AutoImageProcessor.from_pretrained(where, local_files_only=cached)
        return dict(found.to_dict())

    with fetched(name.spec, HUB_REMEDY):
        model, loading = cached_or_fetched(model_of, repository)
        try:
            processor = cached_or_fetched(processor_of, repository)
        except (OSError, ValueError):  # it has none
            processor = {}
    if missing := sorted(loading["missing_keys"]):
        raise InputError(f"{name.spec} has no trained classifier: its weights lack {', '.join(missing[:3])}")
    return Opened(
        Logits(model),
        Path(where).name,
        normalisation=_processor_normalisation(processor),
        size=_processor_size(processor, model.config),
        classes=class_names(model) or None,
    )


def _processor_normalisation(processor: Mapping[str, Any]) -> Normalisation | None:
    """How an image processor normalises; None where it does more than that: then it is asked for."""
    more = processor.get("include_top") or processor.get("do_flip_channel_order")
    if more or not processor.get("do_normalize"):
        return None
    return as_normalisation((processor["image_mean"], processor["image_std"]))


def _processor_size(processor: Mapping[str, Any], config: Any) -> int | None:
    """The side of the images that an image processor makes, or that the model's configuration names."""
    sides = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
    if isinstance(sides, Mapping):
        sides = sides.get("height") or sides.get("shortest_edge")
    size = sides if isinstance(sides, int) else getattr(config, "image_size", None)
    return size if isinstance(size, int) else None


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


_NORMALISATION = "fpa_normalisation"
_SIDE = "fpa_image_side"


def remember_images(model: nn.Module, normalisation: Normalisation | None, side: int | None) -> None:
    """Let a model itself say what images it takes, for whoever gets only the model."""
    if normalisation is not None:
        setattr(model, _NORMALISATION, normalisation)
    if side is not None:
        setattr(model, _SIDE, side)


def normalisation_of(model: nn.Module) -> Normalisation | None:
    """How the images of a model are normalised, where the model says it; None where it does not.

    A card of fpa says it, `open_model` leaves it on the models it opens, and timm's have a configuration.

    >>> normalisation_of(nn.Flatten()) is None
    True
    """
    for part in _parts(model):
        if (known := getattr(part, _NORMALISATION, None)) is not None:
            return as_normalisation(known)
        if (card := getattr(part, "card", None)) is not None and hasattr(card, "mean"):
            return Normalisation(card.mean, card.std)
        config = getattr(part, "pretrained_cfg", None)  # timm
        if isinstance(config, Mapping) and {"mean", "std"} <= config.keys():
            return as_normalisation((config["mean"], config["std"]))
    return None


def image_side_of(model: nn.Module) -> int | None:
    """The side of a model's images in pixels, where the model says it, as in `normalisation_of`.

    Of Hugging Face's own models the configuration says it.

    >>> image_side_of(nn.Flatten()) is None
    True
    """
    for part in _parts(model):
        known = getattr(part, _SIDE, None)
        if known is not None:
            return int(known)
        card = getattr(part, "card", None)
        if card is not None and hasattr(card, "input_shape"):
            return int(card.input_shape[-1])
        config = getattr(part, "pretrained_cfg", None)  # timm
        if isinstance(config, Mapping) and "input_size" in config:
            return int(config["input_size"][-1])
        side = _processor_size({}, getattr(part, "config", None))
        if side is not None:
            return side
    return None


def _parts(model: nn.Module) -> list[Any]:
    """A model and, where it only picks the logits of another, that one."""
    network: Any = unwrapped(model)
    return [network, network.model] if isinstance(network, Logits) else [network]
