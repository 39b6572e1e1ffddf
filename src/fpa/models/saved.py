"""Models in one file that describes itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from fpa.errors import InputError, unknown
from fpa.files import replacing, what_it_is
from fpa.models.architectures import build, parse_model_name

FORMAT = 1
"""Version of the metadata in a model file."""

PRETRAINED = Path(__file__).parent / "pretrained"


@dataclass(frozen=True)
class ModelCard:
    """What a saved model says about itself.

    Attributes:
        architecture: Name that `build_model` knows.
        classes: Names of the classes, in the order of the logits.
        input_shape: (C, H, W) of an image.
        mean: Mean of each channel that the normalisation subtracts, for pixels in 0..1.
        std: Standard deviation of each channel that the normalisation divides by.
        augmentation: "none", "fpa" or "rectangle", or the user's own word.
        accuracy: Share of correctly classified evaluation images, if known.
        recipe: All that determined the weights: the settings of the training.
        variant: What the training is called in its study, if it belongs to one.

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

    def check(self) -> None:
        """Raise TypeError or ValueError where a value is not of its kind, as in a forged file."""
        words = [self.architecture, self.augmentation, *self.classes]
        numbers = [*self.input_shape, *self.mean, *self.std, self.accuracy or 0.0]
        channels, _, _ = self.input_shape
        if not all(isinstance(word, str) for word in words) or not isinstance(self.recipe, dict):
            raise TypeError("names must be text, the recipe a mapping")
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError("sizes, mean, std and accuracy must be numbers")
        if not len(self.mean) == len(self.std) == channels:
            raise ValueError(f"mean and std must have {channels} numbers, one for each channel")


def save_model(model: nn.Module, card: ModelCard, path: Path | str) -> None:
    """Write weights and card to one `.safetensors` file, whole or not at all."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    text = json.dumps({"format": FORMAT, **asdict(card)})
    metadata = {"fpa": text, "fpa-checksum": _checksum(state, text)}
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(to_safetensors(state, metadata))


def shipped_models() -> list[str]:
    """The names of the trained models that ship with the package."""
    return sorted(path.stem for path in PRETRAINED.glob("*.safetensors"))


def model_path(name: Path | str) -> Path:
    """The file of a model: a path, or the name of a model that ships with the package."""
    path = Path(name)
    if str(name) in shipped_models():
        return PRETRAINED / f"{name}.safetensors"
    if path.suffix in (".pth", ".pt", ".bin", ".ckpt"):
        raise InputError(
            f"{path} is not a model file of fpa (.safetensors): name its architecture too, with "
            f"--model torchvision:NAME --weights {path}"
        )
    if path.suffix or path.is_file() or path.parent != Path():
        return path
    raise unknown("model file or shipped model", str(name), shipped_models())


def read_card(path: Path | str) -> ModelCard:
    """What a model file says about itself, without loading the weights."""
    path = model_path(path)
    with open_tensors(path) as file:
        text = (file.metadata() or {}).get("fpa")
    if text is None:
        raise InputError(
            f"{path} was not written by fpa: it does not say which architecture its weights are of"
        )
    try:
        values = json.loads(text)
        if values.pop("format", None) == FORMAT:
            tuples = {name: tuple(values[name]) for name in ("input_shape", "mean", "std")}
            card = ModelCard(**values | tuples)
            card.check()
            return card
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"{path} is damaged: what it says about itself cannot be read ({error})") from error
    raise InputError(f"{path} was written by another version of fpa (this one reads format {FORMAT})")


def load_model(
    path: Path | str, device: torch.device | str = "cpu", *, architecture: str | None = None
) -> nn.Module:
    """The model in a `.safetensors` file written by fpa, in evaluation mode; its card is `model.card`.

    `path` may also be the name of a model that ships with the package. The file is data only: nothing in it
    can execute code. So a model built by a function of your own is loaded only if you name the function
    too: `architecture="module:function"`.

    >>> model = load_model("shapes-fpa")
    >>> model.card.augmentation, model.card.classes[:2]
    ('fpa', ['disc', 'square'])
    """
    path = model_path(path)
    card, state = read_card(path), read_tensors(path)
    name = parse_model_name(card.architecture)
    size = len(card.classes), card.input_shape[0]
    if name.kind == "function" and architecture != card.architecture:
        raise InputError(
            f"{path} was built by the function {card.architecture}, which is not run only because a file "
            f"names it: name it yourself, with load_model(path, architecture={card.architecture!r})"
        )
    # The weights that building draws are thrown away: on the meta device they cost nothing.
    with torch.device("cpu" if name.kind == "function" else "meta"):
        model = build(name, *size)
    check_same_tensors(path, card.architecture, model.state_dict(), state)
    model.load_state_dict(state, assign=True)
    if any(buffer.is_meta for buffer in model.buffers()):  # computed by the architecture, not stored
        model = build(name, *size)
        model.load_state_dict(state)
    model.card = card  # type: ignore[assignment]
    return model.to(device).eval()


def check_same_tensors(
    path: Path, architecture: str, expected: dict[str, Any], state: dict[str, Any]
) -> None:
    """Refuse a file whose tensors are not those that an architecture has."""
    kinds = {
        "missing": sorted(expected.keys() - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "of another shape": sorted(
            f"{name} {list(state[name].shape)} instead of {list(expected[name].shape)}"
            for name in expected.keys() & state.keys()
            if expected[name].shape != state[name].shape
        ),
    }
    problems = [
        f"{kind}: {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for kind, names in kinds.items()
        if names
    ]
    if problems:
        raise InputError(
            f"{path} does not hold weights of the architecture {architecture!r}: {'; '.join(problems)}"
        )


def open_tensors(path: Path) -> Any:
    """Open a safetensors file, or say what is wrong with it."""
    if not path.is_file():
        raise InputError(f"there is no model file {path}")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            reason = what_it_is(file.read(64)) or error
        raise InputError(f"{path} is not a complete safetensors file: {reason}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; where it carries a checksum, damage is refused."""
    with open_tensors(path) as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    stored = metadata.get("fpa-checksum")
    if stored is not None and stored != _checksum(state, metadata.get("fpa", "")):
        raise InputError(f"{path} is damaged: its content does not match its checksum")
    return state


def _checksum(state: Mapping[str, Tensor], card: str) -> str:
    return _updated(hashlib.blake2b(card.encode(), digest_size=16), state)


def _updated(digest: Any, state: Mapping[str, Tensor]) -> str:
    """The hash, in hexadecimal digits, with the names, kinds and values of tensors added."""
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return str(digest.hexdigest())


def fingerprint(model: nn.Module) -> str:
    """Of the weights: two models with the same weights and names are the same."""
    return _updated(hashlib.sha256(), model.state_dict())[:16]
