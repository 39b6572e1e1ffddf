"""Files of fpa: each appears whole or not at all, carries a checksum, and is read without executing anything.

A file an idea: `atomic` writes, `locks` keeps a second run out of a folder, `presence` tells who shares one,
`launching` which of several processes this is, `checksums` finds damage, `formats` (JSON, arrays), `tables`
(Parquet) and `tensors` (safetensors) are what fpa stores, `foreign` reads what others wrote, `documents` is
YAML. Nothing here knows what the files are about.
"""

from fpa.files.atomic import (
    TEMPORARY,
    clear_temporaries,
    inner_folder,
    refuse_links,
    replacing,
    temporary_folder,
    writable_folder,
    write_bytes,
    write_text,
)
from fpa.files.checksums import file_checksum, values_checksum
from fpa.files.documents import yaml_values
from fpa.files.foreign import first_bytes, named_arrays, read_torch, refuse_bomb
from fpa.files.formats import CHECKSUM, read_arrays, read_json, write_arrays, write_json
from fpa.files.launching import announce_step, is_main_process, launch
from fpa.files.locks import LOCK, folder_lock, in_use
from fpa.files.presence import PRESENT, Presence, at_work, is_busy, refuse_busy
from fpa.files.tables import StoredTable, open_table, row_count, write_table
from fpa.files.tensors import (
    WEIGHTS,
    file_texts,
    open_tensors,
    read_tensors,
    tensors_and_texts,
    tensors_fingerprint,
    write_tensors,
)

__all__ = [
    "CHECKSUM", "LOCK", "PRESENT", "TEMPORARY", "WEIGHTS", "Presence", "StoredTable", "announce_step",
    "at_work", "clear_temporaries", "file_checksum", "file_texts", "first_bytes", "folder_lock", "in_use",
    "inner_folder", "is_busy", "is_main_process", "launch", "named_arrays", "open_table", "open_tensors",
    "read_arrays", "read_json", "read_tensors", "read_torch", "refuse_bomb", "refuse_busy", "refuse_links",
    "replacing", "row_count", "temporary_folder", "tensors_and_texts", "tensors_fingerprint",
    "values_checksum", "writable_folder", "write_arrays", "write_bytes", "write_json", "write_table",
    "write_tensors", "write_text", "yaml_values",
]  # fmt: skip
