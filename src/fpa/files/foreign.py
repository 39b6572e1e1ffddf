"""Files of others: what they are is seen before anything opens them, and nothing in them is executed."""

import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fpa.errors import InputError, first_line

EXPANDED = 256 << 20
"""Bytes that any archive may expand to."""

RATIO = 200
"""How many times its own size a larger one may."""


def first_bytes(path: Path, kind: str) -> bytes:
    """The first bytes of a file; one that is not there is refused, and what often lies in its place."""
    if not path.is_file():
        raise InputError(f"there is no {kind} {path}")
    with path.open("rb") as file:
        start = file.read(64)
    problem = "" if start else "it is empty"
    if start.startswith(b"version https://git-lfs"):
        problem = "it is a Git LFS pointer: the file itself was not fetched (git lfs pull)"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        problem = "it is a web page, perhaps the error of a download"
    if problem:
        raise InputError(f"{path} is not a {kind}: {problem}")
    return start


def refuse_bomb(path: Path) -> None:
    """Refuse a small archive that would expand to a very large one."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        expanded = sum(entry.file_size for entry in archive.infolist())
    if expanded > max(EXPANDED, RATIO * path.stat().st_size):
        raise InputError(f"{path} would expand to {expanded / 2**30:.1f} GiB: it is not opened")


def read_torch(path: Path, kind: str) -> Any:
    """What torch.save wrote, memory-mapped where the format allows it; nothing in the file is executed."""
    import torch

    start = first_bytes(path, kind)
    if not start.startswith((b"PK", b"\x80")):  # neither a zip archive nor a pickle
        raise InputError(f"{path} is not a {kind}: it begins with {start[:16]!r}")
    refuse_bomb(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        problem = f"{path} was not loaded: it holds more than tensors, and reading it could execute code"
        remedy = "save the tensors alone, as in torch.save(model.state_dict(), FILE), or as safetensors"
        raise InputError(f"{problem}; {remedy}") from error
    except Exception as error:  # of many types, where a file is damaged
        raise InputError(f"{path} cannot be read as a {kind}: {first_line(error)}") from error


def named_arrays(path: Path, kind: str) -> Mapping[str, Callable[[], Any]]:
    """What reads each array of a .npy, .npz, .safetensors or torch file, memory-mapped but in .npz, by name.

    A single array has the name of its file. `kind` is what errors call the file.
    """
    import numpy as np

    first_bytes(path, kind)
    refuse_bomb(path)
    file: Any
    match path.suffix:
        case ".npy":  # copy on write: torch takes no read-only arrays
            return {path.stem: partial(np.load, path, mmap_mode="c", allow_pickle=False)}
        case ".npz":
            file = np.load(path, allow_pickle=False)
            return {name: partial(file.__getitem__, name) for name in file.files}
        case ".safetensors":
            from safetensors import safe_open

            file = safe_open(path, framework="pt")
            return {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
    from torch import Tensor

    held = read_torch(path, kind)
    tensors = {path.stem: held} if isinstance(held, Tensor) else held
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InputError(f"{path} must hold a tensor or a dict of tensors, got {type(held).__name__}")
    return {str(name): value.detach for name, value in tensors.items()}
