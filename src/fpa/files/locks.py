"""The lock of a folder: one run writes there at a time, and the next is told which one does."""

import errno
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fpa.errors import InputError
from fpa.files.atomic import writable_folder

LOCK = ".fpa-lock"
"""The name of the file by which a process holds a folder."""

_PATIENCE = 0.2
"""Seconds to ask for a lock: its holder may be removing the file at this very moment."""

NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
"""What file systems answer that have no locks: some network and cluster file systems."""


@contextmanager
def folder_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold a folder, so that no other run writes there; if one does, for `patience` seconds, say which.

    The lock is the operating system's: it is gone when the process ends, however it ends, and a file left
    behind blocks nobody. Inside one thread it nests. Where the file system has no locks, nobody is kept out.
    """
    from filelock import FileLock, Timeout  # here: most who read and write files take no lock

    path = writable_folder(folder).resolve() / LOCK
    _refuse_others(path)
    # One object for a path, which counts how often each thread holds it: that is the nesting. Its descriptor
    # is closed in forked processes, so that a worker that outlives a killed run does not keep the folder.
    lock = FileLock(
        path, timeout=_PATIENCE, is_singleton=True, fallback_to_soft=False, on_acquired=write_holder
    )
    try:
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise InputError(in_use(folder, in_words(holder_of(path)))) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise InputError(f"{folder} cannot be locked: {path}: {error.strerror}") from error
        path.unlink(missing_ok=True)
    try:
        yield
    finally:
        # Removed while it is still held: afterwards it could be the next run's. Who asks for it meanwhile
        # sees that the file has no name any more, and makes another.
        if lock.lock_counter == 1:
            with suppress(OSError):  # Windows keeps a file that is open; there the lock removes it
                path.unlink()
        lock.release()


def _refuse_others(path: Path) -> None:
    """Refuse what is no lock file in its place: it would be emptied, and behind a link lies somebody's own.

    Should a link appear only now, the lock does not follow it (O_NOFOLLOW).
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return
    if stat.S_ISDIR(found.st_mode):
        what = "a folder"
    elif stat.S_ISLNK(found.st_mode) or found.st_nlink > 1:
        what = "a link"
    else:
        what = "no plain file"
    raise InputError(f"{path.parent} cannot be locked: {path} is {what}; remove it first")


def write_holder(descriptor: int, more: Mapping[str, str] | None = None) -> None:
    """Say in a lock file, whose lock is held, which process has it, and what else others should know."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, own_words(more))


def own_words(more: Mapping[str, str] | None = None) -> bytes:
    """What the file of a lock that this process holds says."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "fpa")
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M"),
        "command": shlex.join([program, *sys.argv[1:]]),
        **(more or {}),
    }
    # Windows locks the first byte, which then nobody else can read: it is a blank.
    return f" {json.dumps(holder)}".encode()


def holder_of(path: Path) -> dict[str, Any]:
    """What the file of a lock says of its holder; {} where it says nothing yet, or no more."""
    with suppress(OSError, ValueError, AttributeError), path.open("rb") as file:
        file.seek(1)
        return dict(json.loads(file.read(100_000)).items())
    return {}


def in_words(holder: Mapping[str, Any]) -> str:
    """Which process holds a lock, for people."""
    with suppress(KeyError, AttributeError, TypeError):
        if holder["pid"] == os.getpid() and holder["host"] == socket.gethostname():
            return "another run in this process"
        since = holder["since"].removeprefix(time.strftime("%Y-%m-%d "))
        return f"process {holder['pid']} on {holder['host']} ({holder['command']}, since {since})"
    return "another process"


def in_use(folder: Path, holder: str) -> str:
    """That somebody, in words, is at work in a folder."""
    return f"{folder} is in use by {holder}: wait for it, or choose another --output"
