"""Files that appear whole or not at all, and objects that users keep in files of their own."""

import errno
import hashlib
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fpa.errors import DamagedError, InputError, first_line

TEMPORARY = ".fpa-tmp-"
"""How the name of a file that is being written begins."""

EXPANDED, RATIO = 256 << 20, 200
"""Bytes that any archive may expand to, and how many times its own size a larger one may."""

CHECKSUM = "checksum"
"""The field of a JSON file that guards the others."""

LOCK = ".fpa-lock"
"""The name of the file by which a process holds a folder."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends without an error.

    A reader sees the old file or the new one, never half of one, also after a crash or a full disk.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: a file is to be written there")
    temporary = path.with_name(f"{TEMPORARY}{uuid4().hex}{path.suffix}")
    try:
        temporary.touch(exist_ok=False)  # with the permissions of any new file, unlike tempfile's
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        message = f"the disk is full: {path} was not written; what was there before is kept"
        raise InputError(message) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a small text file in one piece; its path again."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def writable_folder(path: Path) -> Path:
    """Create the folder and prove that files can be written there, before any work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {path}: {error.strerror}") from error
    return path


def is_main_process() -> bool:
    """Whether this process may write: the only one, or the first of those that torchrun has started."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


_holds: dict[Path, list[int]] = {}
"""The lock files that this process holds: of each the descriptor, and the thread as often as it holds it."""

_holds_guard = threading.Lock()


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other run writes there; if one does, the error says which.

    The lock is the operating system's: it is gone when the process ends, however it ends, and a file left
    behind blocks nobody. Inside one thread it nests. The other processes that torchrun has started belong to
    the first one's run and take no lock.
    """
    if not is_main_process():
        yield
        return
    path, thread = writable_folder(folder).resolve() / LOCK, threading.get_ident()
    with _holds_guard:
        if path not in _holds:
            _holds[path] = [_locked_file(path, folder)]
        hold = _holds[path]
        if thread not in hold[1:] and len(hold) > 1:
            raise _in_use(folder, "another run in this process")
        hold.append(thread)
    try:
        yield
    finally:
        with _holds_guard:
            hold.pop()
            if len(hold) == 1:
                with suppress(OSError):  # Windows keeps a file that is open
                    path.unlink()
                os.close(_holds.pop(path)[0])


def _in_use(folder: Path, holder: str) -> InputError:
    return InputError(f"{folder} is in use by {holder}: wait for it, or choose another --output")


def _locked_file(path: Path, folder: Path) -> int:
    """A descriptor of the lock file, locked, with this process as its content."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                holder = _holder(descriptor)
                os.close(descriptor)
                raise _in_use(folder, holder) from error
            # Otherwise the file system has no locks, and nobody can be kept out.
        with suppress(FileNotFoundError):  # the one who held it may just have removed it
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)
    program = Path(sys.argv[0]).name.replace("__main__.py", "fpa")
    content = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M")}
    content["command"] = shlex.join([program, *sys.argv[1:]])
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps(content).encode())
    return descriptor


def _holder(descriptor: int) -> str:
    """Who holds a lock, from the file's content, which may not have been written yet."""
    try:
        holder = json.loads(os.read(descriptor, 100_000))
        since = holder["since"].removeprefix(time.strftime("%Y-%m-%d "))
        return f"process {holder['pid']} on {holder['host']} ({holder['command']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 2**30, os.SEEK_SET)  # beyond the content, which others may read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


def refuse_links(folder: Path, parts: Iterable[str]) -> None:
    """Refuse to remove files of a folder where a part of it is a link: they would be somewhere else."""
    if links := [path for path in (folder / part for part in parts) if path.is_symlink()]:
        remedy = "nothing was removed; remove the link first"
        raise InputError(f"{links[0]} is a link to another folder: {remedy}")


def clear_temporaries(folder: Path) -> None:
    """Remove what a killed process left of files it was writing in `folder`; nothing else is touched."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a mapping with its checksum, in one piece; its path again."""
    return write_text(path, json.dumps({**values, CHECKSUM: _checksum(values)}, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file written by fpa, or an error that names it; where it carries a checksum, that is checked."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no mapping")
        if values.pop(CHECKSUM, None) not in (None, _checksum(values)):
            raise ValueError("its content does not match its checksum")
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError({path: first_line(error)}) from error
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def file_checksum(path: Path) -> str:
    """Of the content of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def file_texts(path: Path) -> dict[str, str]:
    """The texts that a safetensors file carries beside its tensors, read without torch."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DamagedError({path: first_line(error)}) from error


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to one .npz file, whole or not at all."""
    import numpy as np

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a .npz file; nothing in it can execute code."""
    import numpy as np

    try:
        refuse_bomb(path)
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except InputError:
        raise
    except Exception as error:  # damaged archives raise exceptions of many types
        raise InputError(f"{path} cannot be read as arrays, it is damaged or missing: {error}") from error


def refuse_bomb(path: Path) -> None:
    """Refuse a small archive that would expand to a very large one."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        expanded = sum(entry.file_size for entry in archive.infolist())
    if expanded > max(EXPANDED, RATIO * path.stat().st_size):
        raise InputError(f"{path} would expand to {expanded / 2**30:.1f} GiB: it is not opened")
