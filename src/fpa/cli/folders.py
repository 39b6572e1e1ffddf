"""The folders of evaluations and audits, as commands use them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import fpa
from fpa.cli.options import RunOptions
from fpa.errors import InputError
from fpa.files import folder_lock, refuse_links
from fpa.notes import Note
from fpa.progress import Display


@contextmanager
def claimed(folder: Path, run: RunOptions, notes: Sequence[Note | None] = ()) -> Iterator[Display]:
    """Lock the folder and show what is done; one that holds something else is refused before any work.

    The notes are said first.
    """
    from fpa.evaluation.shards import DESCRIPTION
    from fpa.show import words
    from fpa.study.folder import SHOWN_FILES

    with folder_lock(folder), Display(quiet=run.quiet) as display:
        refuse_links(folder, ["figures"])
        evaluated = (folder / DESCRIPTION).exists()
        # The models of a study are evaluated in folders inside it: these are the study's to write.
        if any((place / "recipe.yaml").exists() for place in (folder, folder.absolute().parent)):
            raise InputError(f"{folder} holds a study, or a part of one: choose another --output")
        if not evaluated and any((folder / name).exists() for name in SHOWN_FILES):
            held = "tables, figures or a report of something else"
            raise InputError(f"{folder} holds {held}: choose another --output")
        # The lock itself, and what a killed run was writing, are nobody's files.
        others = any(not path.name.startswith(".fpa-") for path in folder.iterdir())
        if run.overwrite and others and not evaluated:
            raise InputError(f"{folder} is not empty and holds no evaluation: nothing was deleted")
        for note in notes:
            if note is not None:
                display.say(words.clause(note, words.Reader(at_shell=True)))
        yield display


def remove_shown(folder: Path) -> None:
    """Remove what may have been made of an evaluation that was overwritten."""
    from fpa.study.folder import SHOWN_FILES

    refuse_links(folder, ["figures"])
    for name in (*SHOWN_FILES, "audit.json", "audit.html", "areas.parquet"):
        (folder / name).unlink(missing_ok=True)


def evaluation_of(engine: "fpa.Engine") -> Path | None:
    """The folder of an evaluation of this model, in runs/, that can be audited as it is."""
    from fpa.auditing.lacking import lacking
    from fpa.evaluation.shards import DESCRIPTION, EvaluationFolder
    from fpa.identity import network_identity
    from fpa.models.saved import fingerprint

    weights = fingerprint(engine.model)
    # The same weights in other code of the user's may be another function.
    code = network_identity(engine.model)
    networks = {} if code is None else {"model": code}
    for path in sorted(Path("runs").glob(f"evaluate-*/{DESCRIPTION}")):
        with suppress(InputError, OSError):
            found = EvaluationFolder(path.parent).description()
            if found is None or found.model != weights or found.plan.code.get("networks", {}) != networks:
                continue
            if found.images and lacking(found.plan) is None:
                return path.parent
    return None
