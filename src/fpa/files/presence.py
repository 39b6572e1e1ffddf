"""Who is at work in a folder that several processes share: each holds the lock of a file of its own there.

A lock is gone when its process ends, however it ends. A file that says whose it is and is not locked is that
of a process that has ended before its work was done.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from fpa.errors import InputError, first_line, shortened
from fpa.files.atomic import writable_folder
from fpa.files.locks import NO_LOCKS, holder_of, in_use, in_words, own_words, write_holder

PRESENT = ".fpa-at-work-"
"""How the names of these files begin."""


@dataclass
class Presence:
    """One of the processes at work in a folder, as it sees the others."""

    path: Path
    """Its own file."""
    job: str
    """What the processes that were started together have in common; empty: nothing was."""
    known: bool = True
    """Whether others can be seen: on a file system without locks nobody can."""
    is_missed: bool = False
    """Whether others rely on this one: then its file stays if it ends before its work is done."""

    @property
    def others(self) -> list[str]:
        """Who else is at work here, in words."""
        return [in_words(holder) for holder, held in self._look() if held]

    @property
    def fallen(self) -> list[str]:
        """Processes of the same job that have ended before their work was done, in words, and why."""
        found = [holder for holder, held in self._look() if not held and holder.get("job") == self.job]
        return [f"{in_words(each)}{_reason(each)}" for each in found] if self.job else []

    @property
    def alone(self) -> bool:
        """Whether it is certain that nobody else is at work here."""
        return self.known and not self.others

    def clear_fallen(self) -> None:
        """Remove the files of processes that have ended, unless they are of the same job."""
        if self.known:
            for path, holder, held in self._files():
                if not held and not (self.job and holder.get("job") == self.job):
                    path.unlink(missing_ok=True)

    def _look(self) -> list[tuple[dict[str, Any], bool]]:
        return [(holder, held) for _, holder, held in self._files()] if self.known else []

    def _files(self) -> Iterator[tuple[Path, dict[str, Any], bool]]:
        """The files of others: what they say, and whether their lock is held."""
        from filelock import FileLock, Timeout

        for path in self.path.parent.glob(f"{PRESENT}*"):
            if path == self.path:
                continue
            lock = FileLock(path, timeout=0, fallback_to_soft=False)
            try:
                lock.acquire()
            except Timeout:
                yield path, holder_of(path), True
                continue
            except OSError:
                continue
            holder = holder_of(path)
            # One that says nothing has no owner yet, or none any more: its owner makes another.
            if not holder:
                path.unlink(missing_ok=True)
            lock.release()
            if holder:
                yield path, holder, False


@contextmanager
def at_work(folder: Path, *, job: str = "", share: str = "") -> Iterator[Presence]:
    """Be seen at work in a folder; `share` says which part of the work, for people."""
    from filelock import FileLock

    path = writable_folder(folder).resolve() / f"{PRESENT}{uuid4().hex}"
    said = {"job": job, "share": share}
    lock = FileLock(path, timeout=1, fallback_to_soft=False, on_acquired=partial(write_holder, more=said))
    present = Presence(path, job)
    try:
        lock.acquire()
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        if error.errno not in NO_LOCKS:
            raise InputError(f"{folder} cannot be used: {path}: {error.strerror}") from error
        present.known = False
    try:
        yield present
    except BaseException as error:
        # Others of the job are told why: whoever waits for this one finds its file, and no lock on it.
        if present.is_missed and present.known:
            ended = shortened(first_line(error) or type(error).__name__, 300)
            with suppress(OSError):
                path.write_bytes(own_words({**said, "ended": ended}))
            lock.release()
        raise
    finally:
        if lock.is_locked:
            with suppress(OSError):
                path.unlink()
            lock.release()


def _reason(holder: dict[str, Any]) -> str:
    return f": {holder['ended']}" if holder.get("ended") else ""


def refuse_busy(folder: Path) -> None:
    """Refuse to remove anything from a folder in which others are at work."""
    found = Presence(folder.resolve() / PRESENT, "")
    for other in found.others if folder.is_dir() else ():
        raise InputError(in_use(folder, other))


def is_busy(folder: Path) -> bool:
    """Whether others are seen at work in a folder."""
    return folder.is_dir() and not Presence(folder.resolve() / PRESENT, "").alone
