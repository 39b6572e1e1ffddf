"""Checksums: what a file or a value is known by, and by which damage is found.

They are in files that people have, so they stay as they are: 16 digits of SHA-256 for what is known by it,
BLAKE2 of 16 bytes for what guards a file's content.
"""

import hashlib
import json
from pathlib import Path
from typing import Any


def values_checksum(values: Any) -> str:
    """Of plain values, whatever the order of their keys.

    >>> values_checksum({"a": 1, "b": 2}) == values_checksum({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def file_checksum(path: Path) -> str:
    """Of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
