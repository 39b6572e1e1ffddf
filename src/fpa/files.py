"""Files that appear whole or not at all."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpa.errors import DamagedError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


TEMPORARY = ".fpa-tmp-"
"""How the name of a file that is being written begins."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends without an error.

    A reader sees the old file or the new one, never half of one, also after a crash or a full disk.
    """
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"the disk is full: {path} was not written; what was there before is kept"
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small text file in one piece."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def writable_folder(path: Path) -> Path:
    """Create the folder and prove that files can be written there, before any work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {path}: {error.strerror}") from error
    return path


def check_torch_file(path: Path, kind: str) -> None:
    """Refuse a file that torch.save did not write, by its first bytes: neither a zip archive nor a pickle."""
    with path.open("rb") as file:
        start = file.read(64)
    if not start.startswith((b"PK", b"\x80")):
        raise InputError(f"{path} is not a {kind}: {what_it_is(start) or f'it begins with {start[:16]!r}'}")


def what_it_is(start: bytes) -> str | None:
    """What often lies where a large file should be, known by its first bytes; None: something else.

    >>> what_it_is(b"<!DOCTYPE html><html>")
    'it is a web page, perhaps the error of a download'
    """
    if not start:
        return "it is empty"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the file itself was not fetched (git lfs pull)"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, perhaps the error of a download"
    return None


def clear_temporaries(folder: Path) -> None:
    """Remove what a killed process left of files it was writing in `folder`; nothing else is touched."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file written by fpa, or an error that names it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError({path: error}) from error
    if not isinstance(values, dict):
        raise DamagedError({path: "it holds no mapping"})
    return values


def write_arrays(path: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays to one .npz file, whole or not at all."""
    import numpy as np

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """The arrays of a .npz file; nothing in it can execute code."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # damaged archives raise exceptions of many types
        raise InputError(f"{path} cannot be read as arrays, it is damaged or missing: {error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
