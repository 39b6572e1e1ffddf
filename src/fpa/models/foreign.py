"""Trained models by name: a saved file, torchvision, timm or your own function, with weights from a file.

Weights are data: safetensors, or what `torch.load` reads without executing anything. What would execute code
is refused.
"""

import importlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models

from fpa.data.normalisation import Normalisation
from fpa.data.sets import is_plain_name
from fpa.errors import InputError, first_line
from fpa.files import check_torch_file
from fpa.models.architectures import ModelName, build, parse_model_name, unknown_model
from fpa.models.saved import (
    check_same_tensors,
    load_model,
    model_path,
    read_card,
    read_tensors,
    shipped_models,
)

# Where training scripts keep the weights in a checkpoint, and what wrappers put before their names.
CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net", "weights")

WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")


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


def open_model(
    spec: str,
    weights: Path | str | None = None,
    *,
    classes: int | None = None,
    normalisation: Normalisation | None = None,
) -> Opened:
    """A trained model by name: a saved or shipped model, `torchvision:NAME`, `timm:NAME`, `module:function`.

    All names are those of `parse_model_name`. `weights` is a .safetensors file, or a checkpoint with the
    state dict; the number of classes follows from it (or is given as `classes`). A function `module:function`
    takes nothing, returns the model and may load its own weights; its module is looked for in the current
    folder too. `normalisation` takes the place of the one that torchvision, timm or the saved model say.

    >>> ", ".join(open_model("shapes-fpa").classes[:2])
    'disc, square'
    """
    name = parse_model_name(spec)
    if name.kind == "file":
        if weights is not None:
            raise InputError(f"{spec} is a saved model with its own weights: leave out {weights}")
        opened = _saved(spec)
    elif name.kind == "function":
        opened = Opened(build(name, None), name.name)
        if weights is not None:
            _load(opened.model, _state_dict(Path(weights)), Path(weights), spec)
    elif weights is None:
        raise InputError(
            f"{spec} needs weights: give a .safetensors file or a state dict saved with torch.save"
        )
    else:
        opened = _with_weights(name, Path(weights), classes)
    return replace(opened, model=opened.model.eval(), normalisation=normalisation or opened.normalisation)


def _saved(spec: str) -> Opened:
    path = Path(spec)
    if not path.suffix and not path.exists() and spec not in shipped_models():
        raise unknown_model(spec, [*shipped_models(), "a .safetensors file"])
    path = model_path(spec)
    card = read_card(path)
    data = card.recipe.get("data")
    data = data.get("name") if isinstance(data, dict) else None
    return Opened(
        model=load_model(path),
        name=path.stem if path.stem != "model" else path.absolute().parent.name,  # training names all alike
        normalisation=Normalisation(card.mean, card.std),
        size=card.input_shape[-1],
        classes=card.classes,
        data=data if is_plain_name(data) else None,
    )


def _with_weights(name: ModelName, path: Path, classes: int | None) -> Opened:
    """An architecture with as many classes as the weights have."""
    state = _state_dict(path)
    channels = 3
    if name.kind == "own":
        channels = next((values.shape[1] for values in state.values() if values.ndim == 4), channels)
    usual = _shapes_of(name, channels)
    state = _stripped(state, usual)
    classes = classes or _classes(usual, state)
    model = build(name, classes, channels, initialise=False)
    _load(model, state, path, name.spec)
    if name.kind == "own":
        return Opened(model, name.name)
    if name.kind == "timm":
        config: Any = importlib.import_module("timm.data").resolve_model_data_config(model)
        normalisation = Normalisation(tuple(config["mean"]), tuple(config["std"]))
        return Opened(model, name.name, normalisation, int(config["input_size"][-1]))
    entry = next(iter(torchvision_models.get_model_weights(name.name)))
    transform, names = entry.transforms(), list(entry.meta["categories"])
    normalisation = Normalisation(tuple(transform.mean), tuple(transform.std))
    known = names if classes in (None, len(names)) else None
    return Opened(model, name.name, normalisation, int(transform.crop_size[0]), known)


def _shapes_of(name: ModelName, channels: int) -> dict[str, Tensor]:
    """The tensors an architecture has by default, without their values where it can be built so."""
    try:
        with torch.device("meta"):
            return build(name, None, channels, initialise=False).state_dict()
    except Exception:  # some architectures compute numbers from tensors while they are built
        return build(name, None, channels, initialise=False).state_dict()


def _state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name; nothing in the file is executed."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if not path.is_file():
        raise InputError(f"there is no weights file {path}")
    check_torch_file(path, "weights file")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} was not loaded: it holds more than tensors, and reading it could execute code; save the "
            "weights alone, with torch.save(model.state_dict(), FILE) or as safetensors"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise InputError(f"{path} cannot be read as weights: {first_line(error)}") from error
    while isinstance(content, Mapping) and (
        inner := [content[key] for key in CHECKPOINT_KEYS if isinstance(content.get(key), Mapping)]
    ):
        content = inner[0]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds no state dict: it holds {type(content).__name__}")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not state:
        some = ", ".join(map(str, list(content)[:5]))
        raise InputError(f"{path} holds no state dict: its entries ({some}) are not tensors")
    return state


def _stripped(state: dict[str, Tensor], expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Without the prefixes that wrappers put before all names."""
    for prefix in WRAPPER_PREFIXES * 2:
        inside = any(name.startswith(prefix) for name in expected)
        if not inside and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _classes(expected: Mapping[str, Any], state: Mapping[str, Tensor]) -> int | None:
    """The number of classes of weights: where they differ from the usual ones in the first side alone."""
    shapes = [(state[name].shape, expected[name].shape) for name in expected.keys() & state.keys()]
    counts = {now[0] for now, usual in shapes if now and usual and now != usual and now[1:] == usual[1:]}
    return counts.pop() if len(counts) == 1 else None


def _load(model: nn.Module, state: dict[str, Tensor], path: Path, architecture: str) -> None:
    expected = model.state_dict()
    state = _stripped(state, expected)
    # Older checkpoints do not count the batches of batch norms, which nothing here uses.
    counters = {name: value for name, value in expected.items() if name.endswith("num_batches_tracked")}
    state = counters | state
    check_same_tensors(path, architecture, expected, state)
    expected.update(state)  # keeps the versions of the parts, which some architectures ask for
    model.load_state_dict(expected)
