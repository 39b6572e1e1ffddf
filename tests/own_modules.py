"""Modules that a test writes into its folder, imports, edits and imports again, as users do with theirs."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path


def forget(names: Iterable[str]) -> None:
    """The next import of these modules reads their files."""
    for name in names:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def edit(name: str, old: str, new: str) -> None:
    """Replace a text in the file of a module, and forget all modules of the same folder, which may use it."""
    path = Path(f"{name}.py")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget(each.stem for each in Path.cwd().glob("*.py"))
