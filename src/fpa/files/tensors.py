"""Tensors in safetensors files, with texts and a checksum.

Only what gives tensors imports torch: results are read without it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from fpa.errors import DamagedError, InputError, first_line
from fpa.files.atomic import write_bytes
from fpa.files.foreign import first_bytes

if TYPE_CHECKING:
    from torch import Tensor

TENSORS_CHECKSUM = "fpa-checksum"
"""The text of a safetensors file that guards its tensors and its other texts."""

WEIGHTS = "fpa-weights"
"""The text that is the fingerprint of a model's tensors, as they are once loaded."""


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], texts: Mapping[str, str]) -> None:
    """Write tensors, and texts by name, to a safetensors file with a checksum, whole or not at all."""
    from safetensors.torch import save

    guarded = {**texts, TENSORS_CHECKSUM: _checksum(tensors, texts)}
    write_bytes(path, save(dict(tensors), guarded))


def open_tensors(path: Path) -> Any:
    """Open a safetensors file, or say what is wrong with it."""
    first_bytes(path, "model file")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a complete safetensors file: {error}") from error


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """All tensors of a safetensors file; where it carries a checksum, damage is refused."""
    tensors, _ = tensors_and_texts(path)
    return tensors


def tensors_and_texts(path: Path) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """All tensors of a safetensors file, and its texts; where it carries a checksum, damage is refused."""
    with open_tensors(path) as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts: dict[str, str] = file.metadata() or {}
    if TENSORS_CHECKSUM not in texts and WEIGHTS in texts:  # no version wrote the one without the other
        raise InputError(f"{path} is damaged: it has lost its checksum")
    if texts.pop(TENSORS_CHECKSUM, None) not in (None, _checksum(tensors, texts)):
        raise InputError(f"{path} is damaged: its content does not match its checksum")
    return tensors, texts


def file_texts(path: Path) -> dict[str, str]:
    """The texts that a safetensors file carries beside its tensors, read without torch."""
    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DamagedError({path: first_line(error)}) from error


def tensors_fingerprint(tensors: Mapping[str, "Tensor"]) -> str:
    """What tensors are known by: the same where names, kinds and values are."""
    return _updated(hashlib.sha256(), tensors)[:16]


def _checksum(tensors: Mapping[str, "Tensor"], texts: Mapping[str, str]) -> str:
    joined = "".join(text for _, text in sorted(texts.items()))
    return _updated(hashlib.blake2b(joined.encode(), digest_size=16), tensors)


def _updated(digest: Any, tensors: Mapping[str, "Tensor"]) -> str:
    """The hash, in hexadecimal digits, with the names, kinds and values of tensors added."""
    import torch

    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        # As bytes: NumPy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return str(digest.hexdigest())
