"""Files of fpa: each appears whole or not at all, carries a checksum, and is read without executing anything.

A file an idea: `atomic` writes, `locks` keeps a second run out of a folder, `checksums` finds damage,
`formats` are JSON and arrays as fpa stores them, `foreign` looks at files of others before they are opened.
Nothing here knows what is in the files.
"""

from fpa.files.atomic import (
    TEMPORARY,
    clear_temporaries,
    refuse_links,
    replacing,
    writable_folder,
    write_bytes,
    write_text,
)
from fpa.files.checksums import file_checksum, values_checksum
from fpa.files.foreign import first_bytes, refuse_bomb
from fpa.files.formats import CHECKSUM, file_texts, read_arrays, read_json, write_arrays, write_json
from fpa.files.locks import LOCK, folder_lock, is_main_process

__all__ = [
    "CHECKSUM", "LOCK", "TEMPORARY", "clear_temporaries", "file_checksum", "file_texts", "first_bytes",
    "folder_lock", "is_main_process", "read_arrays", "read_json", "refuse_bomb", "refuse_links", "replacing",
    "values_checksum", "writable_folder", "write_arrays", "write_bytes", "write_json", "write_text",
]  # fmt: skip
