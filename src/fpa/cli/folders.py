"""The folders of evaluations and audits, as commands use them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fpa
from fpa.cli.options import RunOptions
from fpa.errors import InputError
from fpa.files import folder_lock, launch, refuse_links
from fpa.notes import Note
from fpa.progress import Display

if TYPE_CHECKING:
    from fpa.evaluation.options import AuditOptions, EvaluateOptions
    from fpa.evaluation.sharing import Share


_TURN = 10.0
"""Seconds to wait for one's turn to look at a folder: the processes of an array start at once."""


@contextmanager
def claimed(
    folder: Path, run: RunOptions, notes: Sequence[Note | None] = (), share: "Share | None" = None
) -> Iterator[Display]:
    """Show what is done in a folder; one that holds something else is refused before any work.

    The notes are said first. Of several processes of a job the first looks, and speaks.
    """
    from fpa.show import words

    first = share is None or share.job.first
    with Display(quiet=run.quiet or not first) as display:
        if share is None:
            _check(folder, run)
        else:
            share.decided(lambda: _check(folder, run))
        for note in notes:
            if note is not None:
                display.say(words.clause(note, words.Reader(at_shell=True)))
        yield display


def _check(folder: Path, run: RunOptions) -> None:
    """Refuse a folder that holds something else than an evaluation."""
    from fpa.evaluation.shards import DESCRIPTION
    from fpa.study.folder import SHOWN_FILES

    with folder_lock(folder, _TURN):
        refuse_links(folder, ["figures"])
        evaluated = (folder / DESCRIPTION).exists()
        # The models of a study are evaluated in folders inside it: these are the study's to write.
        if any((place / "recipe.yaml").exists() for place in (folder, folder.absolute().parent)):
            raise InputError(f"{folder} holds a study, or a part of one: choose another --output")
        if not evaluated and any((folder / name).exists() for name in SHOWN_FILES):
            held = "tables, figures or a report of something else"
            raise InputError(f"{folder} holds {held}: choose another --output")
        # Locks, and what a killed run was writing, are nobody's files.
        others = any(not path.name.startswith(".fpa-") for path in folder.iterdir())
        if run.overwrite and others and not evaluated:
            raise InputError(f"{folder} is not empty and holds no evaluation: nothing was deleted")


def chosen_share(how: "EvaluateOptions | AuditOptions", run: RunOptions) -> "Share":
    """The part of the blocks that this process makes: that of its job, if no other is named."""
    from fpa.evaluation.sharing import share_of

    share = share_of(how.part or "job", wait=how.wait, device=run.device)
    refuse_overwriting(share, run)
    return share


def refuse_overwriting(share: "Share", run: RunOptions) -> None:
    """Refuse to throw away what the other parts are making."""
    if share.is_part and run.overwrite:
        raise InputError("--overwrite would delete what the other parts make: remove the folder, then begin")


def refuse_several(command: str) -> None:
    """Refuse to let several processes write the same files: nothing here can be shared out."""
    if launch().size > 1:
        raise InputError(f"{command} is work for one process: run it without torchrun, accelerate and srun")


def part_made(share: "Share", folders: Sequence[Path], command: str, run: RunOptions) -> int:
    """Say what is left to do when one of several parts is done; returns the exit code."""
    from fpa.evaluation.shards import EvaluationFolder, named

    if share.is_part and not run.quiet:
        left = []
        for folder in folders:
            stored = EvaluationFolder(folder)
            found = stored.description()
            missing = [] if found is None else stored.missing(found.numbers)
            left += [f"{named(missing)} of {folder.name}"] if missing else []
        if left:
            print(f"part {share.in_words} is done; still missing: {'; '.join(left)}")
        else:
            print(f"part {share.in_words} is done, and all blocks are there: {command}")
    return 0


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
