"""Standard output and error that never fail: what a terminal cannot show is shown in simpler characters."""

import codecs
import os
from contextlib import suppress
from typing import Any, TextIO

_SIMPLER = {"±": "+-", "−": "-", "–": "-", "…": "...", "′": "'", "×": "x", "→": "->"}


class Patient:
    """A stream for which nobody listening is no error: the work goes on, and its files are written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        if stream is None:  # it was closed before the program began
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="fpa")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, as far as anybody reads it."""
        self._patiently("write", text)
        return len(text)

    def flush(self) -> None:
        """Send on what was written."""
        self._patiently("flush")

    def _patiently(self, method: str, *arguments: str) -> None:
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # `| head` has seen enough, the disk is full, or it was closed
            with suppress(OSError, ValueError):  # from here on, also at the program's end, it goes nowhere
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _simpler(error: UnicodeError) -> tuple[str, int]:
    """Characters that a terminal does not know, in ones that it does."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_SIMPLER.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error("fpa", _simpler)
