"""Writing: a file appears whole or not at all, and what a killed process leaves is known by its name."""

import errno
import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fpa.errors import InputError, first_line, shortened

TEMPORARY = ".fpa-tmp-"
"""How the name of a file that is being written begins."""


@contextmanager
def replacing(path: Path, *, keep_first: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends without an error.

    A reader sees the old file or the new one, never half of one, also after a crash or a full disk. A link
    at `path` is replaced, not followed. With `keep_first` a file that is there stays, also one that another
    process has put there meanwhile.
    """
    if "\0" in str(path) or not path.name:
        raise InputError(f"there can be no file {str(path)!r}")
    # In the same folder, for a move between file systems would be a copy, which a crash can cut in two; with
    # the same ending, by which some libraries choose the format.
    temporary = path.with_name(f"{TEMPORARY}{uuid4().hex}{path.suffix}")
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: a file is to be written there")
        temporary.touch(exist_ok=False)  # with the permissions of any new file, unlike tempfile's
        yield temporary
        # Without it a power cut after the move could leave the new name with no content.
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        if keep_first:
            _move_unless_there(temporary, path)
        else:
            temporary.replace(path)
    except OSError as error:
        raise InputError(_not_written(path, error)) from error
    finally:
        # A folder that has become a file, or cannot be looked into, must not hide what went wrong.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _move_unless_there(temporary: Path, path: Path) -> None:
    """Give a file its name, unless another one has it."""
    try:
        os.link(temporary, path)  # of two who do so at once, one is refused by the system
    except FileExistsError:
        return
    except OSError:
        # There are no such links on this file system: a moment is left between the look and the move.
        if not path.exists():
            temporary.replace(path)


def _not_written(path: Path, error: OSError) -> str:
    """Why a file could not be written, in one line."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {path} was not written; what was there before is kept"
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return f"the folder {path.parent} is gone: it was removed or renamed meanwhile; run again"
    return f"{path} cannot be written: {error.strerror or error}"


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one piece; its path again."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_text(path: Path, text: str, *, keep_first: bool = False) -> Path:
    """Write a text file in one piece; its path again. With `keep_first` one that is there stays."""
    with replacing(path, keep_first=keep_first) as temporary:
        # Names of files may hold bytes that are no text (lone surrogates), which UTF-8 cannot hold.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def writable_folder(path: Path) -> Path:
    """Create the folder and prove that files can be written there, before any work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"cannot write to the folder {shortened(str(path))!r}: {reason}") from error
    return path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, also where the process is asked to end (SIGTERM, SIGHUP)."""
    with _ending_in_order(), tempfile.TemporaryDirectory(prefix="fpa-") as folder:
        yield Path(folder)


class _Asked(BaseException):
    """The process was asked to end: raised where it stands, so that what is open is closed."""


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Meanwhile, a signal that would end the process at once ends it once all that is open is closed."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Python lets the main thread alone choose, and a handler of somebody's own is left in its place.
    mine = threading.current_thread() is threading.main_thread()
    taken = [each for each in signals if mine and signal.getsignal(each) is signal.SIG_DFL]
    asked: list[int] = []

    def end(number: int, frame: Any) -> None:
        asked.append(number)
        raise _Asked

    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
        if asked:  # as it would have ended: whoever waits for it is told so
            os.kill(os.getpid(), asked[0])


def inner_folder(folder: Path, name: str) -> Path:
    """A folder inside another, created and proved to be writable; a link in its place is not followed."""
    refuse_links(folder, [name])
    return writable_folder(folder / name)


def clear_temporaries(folder: Path) -> None:
    """Remove what a killed process left of files it was writing in `folder`; nothing else is touched."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def refuse_links(folder: Path, parts: Iterable[str]) -> None:
    """Refuse a folder of which a part is a link: what is written or removed there would be somebody else's.

    A folder may come from somebody else, links and all. The folder itself may be reached by a link: that is
    the name which the user gave it.
    """
    for part in parts:
        path = folder / part
        if path.is_symlink():
            remedy = "nothing was removed or written there; remove the link first"
            raise InputError(f"{path} is a link to another folder: {remedy}")
