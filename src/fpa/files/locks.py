"""The lock of a folder: one run writes there at a time, and the next is told which one does."""

import errno
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fpa.errors import InputError, shortened
from fpa.files.atomic import writable_folder

LOCK = ".fpa-lock"
"""The name of the file by which a process holds a folder."""

_PATIENCE = 0.2
"""Seconds to ask for a lock: its holder may be removing the file at this very moment."""

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
"""What file systems answer that have no locks: some network and cluster file systems."""


class Launch(NamedTuple):
    """Which of several processes this is, and of how many; a launcher such as torchrun says it."""

    rank: int
    size: int


def launch() -> Launch:
    """What the environment says about this process; alone, where it says nothing."""
    if "WORLD_SIZE" not in os.environ:  # RANK alone may be a variable of anybody's
        return Launch(0, 1)
    texts = {name: os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE")}
    # Digits alone: int() would also take "1_0" and " 1".
    if all(text.isascii() and text.isdigit() and len(text) < 7 for text in texts.values()):
        found = Launch(int(texts["RANK"]), int(texts["WORLD_SIZE"]))
        if found.rank < found.size:
            return found
    said = " and ".join(f"{name}={shortened(text, 40)!r}" for name, text in texts.items())
    wanted = "must be whole numbers, the first below the second, as torchrun sets them"
    raise InputError(f"the environment variables {said} {wanted}: unset them to work in one process")


def is_main_process() -> bool:
    """Whether this process may write: the only one, or the first of those that torchrun has started."""
    return launch().rank == 0


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other run writes there; if one does, the error says which.

    The lock is the operating system's: it is gone when the process ends, however it ends, and a file left
    behind blocks nobody. Inside one thread it nests. Where the file system has no locks, nobody is kept out.

    Of several processes the first alone may hold it. The others of a training write nothing and do not ask
    for it; that one is not the first is no proof of a first one that holds it.
    """
    from filelock import FileLock, Timeout  # here: most who read and write files take no lock

    rank, size = launch()
    if rank > 0:
        others = f"this process is not the first (RANK={rank} of WORLD_SIZE={size})"
        remedy = "unset both, or start it without torchrun"
        raise InputError(f"{folder} cannot be used: {others}, and only trainings share processes; {remedy}")
    path = writable_folder(folder).resolve() / LOCK
    _refuse_others(path)
    # One object for a path, which counts how often each thread holds it: that is the nesting. Its descriptor
    # is closed in forked processes, so that a worker that outlives a killed run does not keep the folder.
    lock = FileLock(
        path, timeout=_PATIENCE, is_singleton=True, fallback_to_soft=False, on_acquired=_write_holder
    )
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(_in_use(folder, path)) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
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


def _write_holder(descriptor: int) -> None:
    """Say in a lock file, whose lock is held, which process has it."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "fpa")
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M"),
        "command": shlex.join([program, *sys.argv[1:]]),
    }
    os.ftruncate(descriptor, 0)
    # Windows locks the first byte, which then nobody else can read: it is a blank.
    os.write(descriptor, f" {json.dumps(holder)}".encode())


def _in_use(folder: Path, path: Path) -> str:
    """That somebody holds the folder, and who: the file may not say it yet, or no more."""
    holder = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError), path.open("rb") as file:
        file.seek(1)
        written = json.loads(file.read(100_000))
        since = written["since"].removeprefix(time.strftime("%Y-%m-%d "))
        holder = f"process {written['pid']} on {written['host']} ({written['command']}, since {since})"
        if written["pid"] == os.getpid() and written["host"] == socket.gethostname():
            holder = "another run in this process"
    return f"{folder} is in use by {holder}: wait for it, or choose another --output"
