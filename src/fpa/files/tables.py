"""Tables in Parquet files, each with notes and the key of what it belongs to, guarded by checksums."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fpa.errors import DamagedError, first_line
from fpa.files.atomic import replacing


class StoredTable(NamedTuple):
    """A table in a file, whose columns have not been read yet."""

    path: Path
    file: Any
    """A `pyarrow.parquet.ParquetFile`."""
    notes: dict[str, Any]
    key: str
    """Of what it belongs to."""

    def read(self) -> Any:
        """The columns, as a `pyarrow.Table`; damage is refused."""
        try:
            with self.file:
                return self.file.read()
        except Exception as error:  # damaged files raise exceptions of many types
            raise DamagedError({self.path: first_line(error)}) from error


def write_table(
    path: Path,
    table: Any,
    notes: Mapping[str, Any],
    key: str,
    texts: Sequence[str],
    *,
    split: Sequence[str] = (),
    keep_first: bool = False,
) -> bool:
    """Write a `pyarrow.Table` in one piece; `texts`: its columns of few texts, each often repeated.

    `split`: columns of numbers of which the first bytes, or the last ones, resemble each other. With
    `keep_first` a table that is there stays. Returns whether it is this one that is there now.
    """
    import pyarrow.parquet as pq

    text = json.dumps(notes)
    # Parquet's own checksums guard the columns alone.
    metadata = {"notes": text, "key": key, "checksum": _checksum(text, key)}
    # By an open file: pyarrow would take the name of a folder such as "run:1" for an address in a network.
    with replacing(path, keep_first=keep_first) as temporary, temporary.open("wb") as file:
        pq.write_table(
            table.replace_schema_metadata(metadata),
            file,
            use_dictionary=list(texts),  # numbers hardly repeat: their dictionaries would be as long
            column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT") or None,
            compression="zstd",
            write_page_checksum=True,
        )
        written = os.fstat(file.fileno())
    return not keep_first or os.path.samestat(written, path.stat())


def row_count(path: Path) -> int:
    """The rows of a table that `write_table` wrote, without reading them."""
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            return int(pq.read_metadata(file).num_rows)
    except Exception as error:  # damaged files raise exceptions of many types
        raise DamagedError({path: first_line(error)}) from error


def open_table(path: Path) -> StoredTable:
    """A table that `write_table` wrote: its notes and its key, which are checked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        texts = {name.decode(): text.decode() for name, text in (file.schema_arrow.metadata or {}).items()}
        notes: dict[str, Any] = json.loads(texts["notes"])
    except KeyError as error:
        raise DamagedError({path: f"it is no table of fpa: it has no {error}"}) from error
    except Exception as error:  # damaged files raise exceptions of many types
        raise DamagedError({path: first_line(error)}) from error
    key = texts.get("key", "")
    if texts.get("checksum") != _checksum(texts["notes"], key):
        raise DamagedError({path: "its content does not match its checksum"})
    return StoredTable(path, file, notes, key)


def _checksum(notes: str, key: str) -> str:
    return hashlib.blake2b(f"{key} {notes}".encode(), digest_size=16).hexdigest()
