"""Files of others: what they are is seen before anything opens them."""

import zipfile
from pathlib import Path

from fpa.errors import InputError

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
