"""What lies in a cache or on somebody's server: fetched, or a line that says why it cannot be had here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fpa.errors import InputError, first_line, shortened

T = TypeVar("T")

_PATIENCE = 10
"""Seconds to wait for an answer of Hugging Face's hub, as its own package does."""

HUB_REMEDY = (
    "load it where there is a network, write model and image processor with save_pretrained(FOLDER), and "
    "name hf:FOLDER; or load it in Python and give it to fpa.evaluate"
)


@contextmanager
def fetched(what: str, remedy: str) -> Iterator[None]:
    """Say in a line what to do where something is in no cache and cannot be fetched."""
    try:
        yield
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        reason = shortened(first_line(error), 160).rstrip(".")
        problem = f"{what} cannot be loaded here ({reason})"
        raise InputError(problem if isinstance(error, ImportError) else f"{problem}: {remedy}") from error


def cached_or_fetched(load: Callable[[bool], T], repository: str | None) -> T:
    """What `load(local_files_only)` gives: from the cache; only what is not there is asked of the hub.

    So a model that was loaded once is the same next time, and needs no network. Without a repository it is
    a folder, and there is nothing to ask for.
    """
    try:
        return load(True)
    except OSError:
        if repository is None:
            raise
        ask_hub(repository)
        return load(False)


def ask_hub(repository: str) -> None:
    """Refuse, after one request, a repository that the hub does not have, or a hub that does not answer.

    The same request is the first of every download, which then is repeated for half a minute a file where
    nothing answers.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json"), timeout=_PATIENCE)
    except Exception as error:  # of the library for requests that the hub's package uses
        raise ConnectionError(f"{type(error).__name__}: {first_line(error)}") from error
