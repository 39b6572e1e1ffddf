"""Trained models from files: models of fpa, which describe themselves, and weights of any other source.

Weights are data: safetensors, or what `torch.load` reads without executing anything. What would execute code
is refused.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.data.sets import is_plain_name
from fpa.errors import InputError, first_line, shortened
from fpa.files import WEIGHTS, open_tensors, read_tensors, read_torch, tensors_fingerprint, write_tensors
from fpa.models.architectures import ModelName, build, parse_model_name, unknown_model
from fpa.models.hubs import (
    DEFAULT,
    Opened,
    about,
    open_hugging_face,
    open_published,
    published,
    remember_images,
)
from fpa.models.wrap import placed
from fpa.plugins import load_object
from fpa.values import besides, check_types, checked

FORMAT = 1
"""Version of the metadata in a model file."""

LARGEST = 65536
"""The most channels, and pixels along a side, that a model file may speak of."""

PRETRAINED = Path(__file__).parent / "pretrained"

# Where training scripts keep the weights in a checkpoint, and what wrappers put before their names.
CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net", "weights")

WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class ModelCard:
    """What a saved model says about itself.

    Attributes:
        architecture: Name that `build_model` knows.
        classes: Names of the classes, in the order of the logits.
        input_shape: (C, H, W) of an image.
        mean: Mean of each channel that the normalisation subtracts, for pixels in 0..1.
        std: Standard deviation of each channel that the normalisation divides by.
        augmentation: "none", "fpa", "rectangle" or "cell", or the user's own word.
        accuracy: Share of correctly classified evaluation images, if known; of a model that was fine-tuned
            towards its own predictions, the share that it classifies as before.
        recipe: All that determined the weights: the settings of the training.
        variant: What the training is called in its study, if it belongs to one.
        distance: How far fine-tuning has moved the model, as `fpa.twin_distance` says it; None: not known.

    """

    architecture: str
    classes: list[str]
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str = "none"
    accuracy: float | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    variant: str = ""
    distance: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not of their kind, as those of a forged file may be."""
        check_types(self)
        for side in self.input_shape:
            if not 1 <= side <= LARGEST:
                raise InputError(f"input_shape must be in 1..{LARGEST} each, got {side}")
        if len(Normalisation(self.mean, self.std).mean) != self.input_shape[0]:
            channels = self.input_shape[0]
            raise InputError(f"mean and std must have {channels} numbers, one for each channel")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise InputError(f"accuracy must be a share in 0..1, got {self.accuracy}")


@checked
def save_model(model: nn.Module, card: ModelCard, path: Path | str, *, half: bool = False) -> None:
    """Write weights and card to one `.safetensors` file, whole or not at all.

    A model of another architecture than its card names is refused: the file could not be loaded. With `half`
    the weights of convolutions and linear layers are rounded to float16: half the size. Biases
    and the statistics of batch norms, few but sensitive, stay as they are.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    _check_card(card, state)
    if half:
        state = {name: value.half() if value.ndim > 1 else value for name, value in state.items()}
    text = json.dumps({"format": FORMAT, **asdict(card)})
    weights = tensors_fingerprint(_restored(state))  # as they will be when they are loaded
    write_tensors(Path(path), state, {"fpa": text, WEIGHTS: weights})


def _check_card(card: ModelCard, state: dict[str, Tensor]) -> None:
    """Refuse weights of another architecture than a card names, as far as fpa can build that itself."""
    name = parse_model_name(card.architecture)
    if name.kind not in ("own", "torchvision", "timm"):
        return
    try:
        with torch.device("meta"):
            expected = build(name, len(card.classes), card.input_shape[0]).state_dict()
    except Exception:  # some architectures compute numbers from tensors while they are built
        return
    check_same_tensors("the model", card.architecture, expected, _stripped(state, expected))


def _restored(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was rounded to float16, in float32 again."""
    return {key: value.float() if value.dtype == torch.float16 else value for key, value in state.items()}


STATE_DICTS = (".pth", ".pt", ".bin", ".ckpt")


def shipped_models() -> list[str]:
    """The names of the trained models that ship with the package."""
    return sorted(path.stem for path in PRETRAINED.glob("*.safetensors"))


def model_path(name: Path | str) -> Path:
    """The file of a model: a path, or the name of a model that ships with the package."""
    path = Path(name)
    if str(name) in shipped_models():
        return PRETRAINED / f"{name}.safetensors"
    if path.suffix in STATE_DICTS:
        options = f"--model torchvision:NAME --weights {path}"
        raise InputError(f"{path} is not a .safetensors file of fpa: name its architecture, with {options}")
    if os.path.isfile(path / "model.safetensors"):
        raise InputError(f"{path} is a folder: name the model in it, {path / 'model.safetensors'}")
    if path.suffix or os.path.isfile(path) or path.parent != Path():
        return path
    if os.path.isfile(path / "config.json"):
        raise InputError(f"{path} is a folder of Hugging Face: name it hf:{path}")
    raise unknown_model(str(name), [*shipped_models(), "a .safetensors file"])


def read_card(path: Path | str) -> ModelCard:
    """What a model file says about itself, without loading the weights."""
    path = model_path(path)
    with open_tensors(path) as file:
        text = (file.metadata() or {}).get("fpa")
    if text is None:
        raise InputError(f"{path} was not written by fpa: it does not name the architecture of its weights")
    try:
        values = json.loads(text)
        if values.pop("format", None) == FORMAT:
            return _card(values)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        reason = shortened(first_line(error))
        raise InputError(f"{path} is damaged: its description of itself cannot be read ({reason})") from error
    raise InputError(f"{path} was written by another version of fpa (this one reads format {FORMAT})")


def _card(values: Mapping[str, Any]) -> ModelCard:
    """A card as JSON holds it, where tuples are lists."""
    if others := besides(values, ModelCard):
        raise InputError(f"there is no field {', '.join(others)}")

    def as_tuple(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value  # the card refuses anything else

    return ModelCard(
        architecture=values["architecture"],
        classes=values["classes"],
        input_shape=as_tuple(values["input_shape"]),
        mean=as_tuple(values["mean"]),
        std=as_tuple(values["std"]),
        augmentation=values.get("augmentation", "none"),
        accuracy=values.get("accuracy"),
        recipe=values.get("recipe", {}),
        variant=values.get("variant", ""),
        distance=values.get("distance"),
    )


@checked
def load_model(
    path: Path | str, device: torch.device | str = "cpu", *, architecture: str | None = None
) -> nn.Module:
    """The model in a `.safetensors` file written by fpa, in evaluation mode; its card is `model.card`.

    `path` may also be the name of a model that ships with the package. The file is data only: nothing in it
    can execute code. So a model built by a function of your own is loaded only if you name the function
    too: `architecture="module:function"`. Weights stored in float16 are loaded as float32.

    >>> model = load_model("shapes-fpa")
    >>> model.card.augmentation, model.card.classes[:2]
    ('fpa', ['disc', 'square'])
    """
    _refuse_no_file(str(path))
    path = model_path(path)
    place = placed(device)
    card = read_card(path)
    state = _restored(read_tensors(path))
    name = parse_model_name(card.architecture)
    size: tuple[int | None, int] = len(card.classes), card.input_shape[0]
    if name.kind == "function" and architecture != card.architecture:
        spec = card.architecture
        problem = f"{path} was built by the function {spec}, which is not run just because a file says so"
        raise InputError(f"{problem}: name it yourself, with load_model(path, architecture={spec!r})")
    function = load_object(card.architecture, "model") if name.kind == "function" else None
    if isfunction(function) and not signature(function).parameters:
        size = None, 3  # as `open_model` calls it, for fine-tuning
    # The weights that building draws are thrown away: on the meta device they cost nothing.
    with torch.device("cpu" if name.kind == "function" else "meta"):
        model = build(name, *size)
    state = _stripped(state, model.state_dict())  # a model that returns an object was wrapped in fine-tuning
    check_same_tensors(path, card.architecture, model.state_dict(), state)
    model.load_state_dict(state, assign=True)
    if any(buffer.is_meta for buffer in model.buffers()):  # computed by the architecture, not stored
        model = build(name, *size)
        model.load_state_dict(state)
    model.card = card  # type: ignore[assignment]
    return model.to(place).eval()


def _refuse_no_file(spec: str) -> None:
    """Refuse the name of an architecture, or of others' weights, with what opens it."""
    kind = parse_model_name(spec).kind
    if kind == "file" or os.path.exists(spec):
        return
    weights = {"own": ", FILE", "torchvision": f", {DEFAULT!r}", "timm": f", {DEFAULT!r}"}.get(kind, "")
    full = f"torchvision:{spec}" if kind == "torchvision" and ":" not in spec else spec
    remedy = f"open it with fpa.open_model({full!r}{weights})"
    raise InputError(f"load_model reads files that fpa wrote, and {spec} is none: {remedy}")


def check_same_tensors(what: Path | str, model: str, expected: dict[str, Any], state: dict[str, Any]) -> None:
    """Refuse a file whose tensors are not those that an architecture has."""
    both = sorted(expected.keys() & state.keys())
    shapes = {name: (list(state[name].shape), list(expected[name].shape)) for name in both}
    kinds = {
        "missing": sorted(expected.keys() - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "of another shape": [f"{name} {a} instead of {b}" for name, (a, b) in shapes.items() if a != b],
    }
    problems = [
        f"{kind}: {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for kind, names in kinds.items()
        if names
    ]
    if problems:
        raise InputError(f"{what} does not hold weights of the architecture {model!r}: {'; '.join(problems)}")


def fingerprint(model: nn.Module) -> str:
    """Of the weights: two models with the same weights and names are the same."""
    return tensors_fingerprint(model.state_dict())


@checked
def open_model(
    spec: str,
    weights: Path | str | None = None,
    *,
    classes: int | None = None,
    normalisation: Any = None,
) -> Opened:
    """A trained model by name: saved, shipped, `torchvision:NAME`, `timm:NAME`, `hf:NAME`, `module:function`.

    All names are those of `parse_model_name`. `weights` is a .safetensors file, or a checkpoint with the
    state dict; the number of classes follows from it (or is given as `classes`). "DEFAULT" stands for the
    weights that torchvision or timm publish; they, and models of Hugging Face, come from the cache of these
    packages, or over the network. A function `module:function`
    takes nothing, returns the model and may load its own weights; its module is looked for in the current
    folder too. `normalisation`, in any form that `evaluate` takes, replaces the one that torchvision, timm
    or the saved model say. `evaluate`, `audit` and `finetune` take what is returned; the network itself is
    `.model`.

    >>> ", ".join(open_model("shapes-fpa").classes[:2])
    'disc, square'
    """
    name = parse_model_name(spec)
    named = published(name, weights)
    if name.kind == "file":
        if weights is not None:
            raise InputError(f"{spec} is a saved model with its own weights: leave out {weights}")
        opened = _saved(spec)
    elif name.kind == "function":
        opened = Opened(build(name, None), name.name)
        if weights is not None:
            _load(opened.model, _state_dict(Path(weights)), Path(weights), spec)
    elif name.kind == "hf":
        if weights is not None and not named:
            raise InputError(f"{spec} has its own weights: leave out {weights}")
        opened = open_hugging_face(name)
    elif weights is None:
        remedy = "a .safetensors file or a state dict saved with torch.save"
        named = "" if name.kind == "own" else f", or {DEFAULT}, those that {name.kind} publishes"
        raise InputError(f"{spec} needs weights: {remedy}{named}")
    elif named:
        opened = open_published(name, named)
    else:
        opened = _with_weights(name, Path(weights), classes)
    known = as_normalisation(normalisation) or opened.normalisation
    remember_images(opened.model, known, opened.size)
    return replace(opened, model=opened.model.eval(), normalisation=known)


def _saved(spec: str) -> Opened:
    path = model_path(spec)
    card = read_card(path)
    data = card.recipe.get("data")
    name = path.stem if path.stem != "model" else path.absolute().parent.name  # training names all alike
    size = card.input_shape[-1]
    normalisation = Normalisation(card.mean, card.std)
    known = data["name"] if isinstance(data, dict) and is_plain_name(data.get("name")) else None
    return Opened(load_model(path), name, normalisation, size, card.classes, data=known)


def _with_weights(name: ModelName, path: Path, classes: int | None) -> Opened:
    """An architecture with as many classes as the weights have."""
    state = _state_dict(path)
    channels = 3
    if name.kind == "own":
        channels = next((values.shape[1] for values in state.values() if values.ndim == 4), channels)
    try:
        with torch.device("meta"):  # the shapes are enough
            usual = build(name, None, channels, initialise=False).state_dict()
    except Exception:  # some architectures compute numbers from tensors while they are built
        usual = build(name, None, channels, initialise=False).state_dict()
    state = _stripped(state, usual)
    classes = classes or _classes(usual, state)
    model = build(name, classes, channels, initialise=False)
    _load(model, state, path, name.spec)
    if name.kind == "own":
        return Opened(model, name.name)
    return about(name, model, classes)


def _state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name; nothing in the file is executed."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    content = read_torch(path, "weights file")
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds no state dict: it holds {type(content).__name__}")
    while inner := [content[key] for key in CHECKPOINT_KEYS if isinstance(content.get(key), Mapping)]:
        content = inner[0]
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
    # Older checkpoints do not count the batches of batch norms, which nothing here uses.
    counters = {name: value for name, value in expected.items() if name.endswith("num_batches_tracked")}
    state = counters | _stripped(state, expected)
    check_same_tensors(path, architecture, expected, state)
    expected.update(state)  # keeps the versions of the parts, which some architectures ask for
    model.load_state_dict(expected)
