"""Writing: a file appears whole or not at all, and what a killed process leaves is known by its name."""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fpa.errors import InputError

TEMPORARY = ".fpa-tmp-"
"""How the name of a file that is being written begins."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends without an error.

    A reader sees the old file or the new one, never half of one, also after a crash or a full disk. A link
    at `path` is replaced, not followed.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: a file is to be written there")
    # In the same folder, for a move between file systems would be a copy, which a crash can cut in two; with
    # the same ending, by which some libraries choose the format.
    temporary = path.with_name(f"{TEMPORARY}{uuid4().hex}{path.suffix}")
    try:
        temporary.touch(exist_ok=False)  # with the permissions of any new file, unlike tempfile's
        yield temporary
        # Without it a power cut after the move could leave the new name with no content.
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


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one piece; its path again."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a text file in one piece; its path again."""
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


def clear_temporaries(folder: Path) -> None:
    """Remove what a killed process left of files it was writing in `folder`; nothing else is touched."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def refuse_links(folder: Path, parts: Iterable[str]) -> None:
    """Refuse to remove files of a folder where a part of it is a link: they would be somewhere else."""
    for part in parts:
        path = folder / part
        if path.is_symlink():
            remedy = "nothing was removed; remove the link first"
            raise InputError(f"{path} is a link to another folder: {remedy}")
