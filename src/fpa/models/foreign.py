"""Models by name, from torchvision, timm, a saved file or anyone's own function, with weights from a file.

Weights are data: safetensors, or what `torch.load` reads without executing anything. What would execute code
is refused.
"""

import importlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models

from fpa.data.normalisation import Normalisation
from fpa.errors import InputError, first_line, unknown
from fpa.files import check_torch_file, load_object
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
    """A model by name: `torchvision:NAME`, `timm:NAME`, a saved or shipped model of fpa, `module:function`.

    `weights` is a .safetensors file, or a checkpoint with the state dict; the number of classes follows from
    it (or is given as `classes`). A function must return the model and may load its own weights; its module
    is looked for in the current folder too. `normalisation` takes the place of the one that torchvision, timm
    or the saved model say.

    >>> ", ".join(open_model("shapes-fpa").classes[:2])
    'disc, square'
    """
    kind, _, rest = spec.partition(":")
    if kind in ("torchvision", "timm"):
        if kind == "torchvision" and rest not in _torchvision_names():
            raise unknown("torchvision model", rest, _torchvision_names())
        if kind == "timm" and not _is_timm(rest):
            raise unknown("timm model", rest, _timm_names())
        if weights is None:
            raise InputError(
                f"{spec} needs weights: give a .safetensors file or a state dict saved with torch.save"
            )
        found = _published(kind, rest, _state_dict(Path(weights)), Path(weights), classes)
    elif rest and not Path(spec).exists():
        model = _from_function(spec)
        if weights is not None:
            _load(model, _state_dict(Path(weights)), Path(weights), spec)
        found = Opened(model, rest)
    else:
        found = _saved(spec)
        if weights is not None:
            raise InputError(f"{spec} is a saved model with its own weights: leave out {weights}")
    chosen = normalisation or found.normalisation
    return Opened(found.model.eval(), found.name, chosen, found.size, found.classes, found.data)


def _saved(spec: str) -> Opened:
    path = Path(spec)
    if not path.suffix and not path.exists() and spec not in shipped_models():
        known = [*shipped_models(), "torchvision:NAME", "timm:NAME", "module:function", "a .safetensors file"]
        for kind, listed in (("torchvision", _torchvision_names), ("timm", _timm_names)):
            if spec in listed():
                raise InputError(f"unknown model {spec!r}: did you mean {kind}:{spec}?")
        raise unknown("model", spec, known)
    found = model_path(spec)
    name = found.stem if found.stem != "model" else found.absolute().parent.name  # training names all alike
    card = read_card(found)
    return Opened(
        load_model(spec),
        name,
        Normalisation(card.mean, card.std),
        card.input_shape[-1],
        card.classes,
        card.recipe.get("data", {}).get("name"),
    )


def _published(kind: str, name: str, state: dict[str, Tensor], path: Path, classes: int | None) -> Opened:
    """An architecture of torchvision or timm with as many classes as the weights have."""
    architecture = f"{kind}:{name}"
    build = _torchvision if kind == "torchvision" else _timm
    usual = _shapes_of(build, name)
    state = _stripped(state, usual)
    other = classes or _classes(usual, state)
    model = build(name, other)
    _load(model, state, path, architecture)
    if kind == "torchvision":
        entry = next(iter(torchvision_models.get_model_weights(name)))
        transform = entry.transforms()
        normalisation = Normalisation(tuple(transform.mean), tuple(transform.std))
        names = list(entry.meta["categories"])
        known = names if other in (None, len(names)) else None
        return Opened(model, name, normalisation, int(transform.crop_size[0]), known)
    config: Any = importlib.import_module("timm.data").resolve_model_data_config(model)
    normalisation = Normalisation(tuple(config["mean"]), tuple(config["std"]))
    return Opened(model, name, normalisation, int(config["input_size"][-1]))


def _shapes_of(build: Callable[[str, int | None], nn.Module], name: str) -> dict[str, Tensor]:
    """The tensors an architecture has by default, without their values where it can be built so."""
    try:
        with torch.device("meta"):
            return build(name, None).state_dict()
    except InputError:
        raise
    except Exception:  # some architectures compute numbers from tensors while they are built
        return build(name, None).state_dict()


def _torchvision_names() -> list[str]:
    names: list[str] = torchvision_models.list_models(module=torchvision_models)
    return names


def _timm_names() -> list[str]:
    """Empty where timm is not installed."""
    try:
        import timm
    except ImportError:
        return []
    names: list[str] = timm.list_models()
    return names


def _is_timm(name: str) -> bool:
    """Also True for names with a tag and old ones, which timm does not list; and where timm is missing."""
    try:
        import timm
    except ImportError:
        return True  # that it is missing is told when the model is built
    return bool(timm.is_model(name))


def _torchvision(name: str, classes: int | None) -> nn.Module:
    how: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    # These two warn about a default that weights from a file make meaningless.
    how |= {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = torchvision_models.get_model(name, weights=None, **how)
    return model


def _timm(name: str, classes: int | None) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise InputError(f"model 'timm:{name}' needs timm: pip install 'fpa[timm]'") from error
    how: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    model: nn.Module = timm.create_model(name, pretrained=False, **how)
    return model


def _from_function(spec: str) -> nn.Module:
    make = load_object(spec, "model")
    if not callable(make):
        raise InputError(f"{spec} must be a function that returns a model, it is a {type(make)}")
    try:
        model = make if isinstance(make, nn.Module) else make()
    except Exception as error:
        raise InputError(
            f"{spec} failed with {type(error).__name__}: {first_line(error)} (--debug shows where)"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} must return a torch.nn.Module, it returned {type(model).__name__}")
    return model


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
    while isinstance(content, Mapping):
        inner = next((content[key] for key in CHECKPOINT_KEYS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
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
        if all(name.startswith(prefix) for name in state) and not any(
            name.startswith(prefix) for name in expected
        ):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _classes(expected: Mapping[str, Any], found: Mapping[str, Tensor]) -> int | None:
    """The number of classes of weights: where they differ from the usual ones in the first side alone."""
    counts = {
        found[name].shape[0]
        for name in expected.keys() & found.keys()
        if found[name].ndim == expected[name].ndim > 0
        and found[name].shape != expected[name].shape
        and found[name].shape[1:] == expected[name].shape[1:]
    }
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
