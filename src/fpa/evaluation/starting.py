"""How an evaluation begins in a folder, or goes on there: alone, or beside processes of the same plan."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from fpa.errors import InputError
from fpa.evaluation.description import Description
from fpa.evaluation.shards import DESCRIPTION, EvaluationFolder
from fpa.evaluation.sharing import Share
from fpa.files import Presence, at_work, clear_temporaries, folder_lock, in_use, refuse_links, row_count

_TURN = 10.0
"""Seconds to wait for one's turn to look at the folder: many may start at once."""

_SEEN = 60.0
"""Seconds until what one machine has written must be seen by another."""


@dataclass(frozen=True)
class Start:
    """What a process wants to begin or continue."""

    stored: EvaluationFolder
    asked: Description
    """What evaluation.json would say if nothing were there."""
    fixed_size: bool
    """Whether somebody has asked for so many images a block: those that are there must have as many."""
    overwrite: bool = False


@dataclass(frozen=True)
class Started:
    """What all processes of a job go by."""

    description: Description
    there: list[int]
    """The blocks that were there when it began."""
    present: Presence


def started(start: Start, share: Share, stack: ExitStack) -> Started:
    """Begin, or refuse what is in the folder; this process is seen at work there until the stack is closed.

    Of a job the first process looks at the folder, and tells the others what it has found.
    """
    folder = start.stored.path

    def begin() -> list[int]:
        with folder_lock(folder, _TURN):
            present.append(stack.enter_context(at_work(folder, job=share.job.token, share=share.in_words)))
            return _begun(start, present[0])

    present: list[Presence] = []
    there = share.decided(begin)
    if not present:
        present.append(stack.enter_context(at_work(folder, job=share.job.token, share=share.in_words)))
    description = _agreed(start)
    present[0].is_missed = share.job.size > 1
    return Started(description, there, present[0])


def _begun(start: Start, present: Presence) -> list[int]:
    """Make the folder ready; returns the blocks that are there."""
    stored = start.stored
    refuse_links(stored.path, ["blocks"])
    if start.overwrite:
        for other in present.others:
            raise InputError(in_use(stored.path, other))
        stored.clear()
    if present.alone:
        _clear_leftovers(stored, present)
    there = stored.images_a_block(start.asked.origin)
    before = stored.description()
    described = before
    if before is None and there is not None:  # evaluation.json was lost: it is made anew
        described = replace(stored.described_by_blocks(start.asked) or start.asked, block_size=there)
    description = start.asked if described is None else _continuing(start, described)
    if before is None:
        # On a file system without locks another process may be doing the same: the first one's stays.
        stored.describe(description, keep_first=True)
    elif (before.answers, before.places) != (description.answers, description.places):
        # One of an earlier version, or of fewer images.
        stored.describe(replace(description, images=None))
    return stored.blocks


def _clear_leftovers(stored: EvaluationFolder, present: Presence) -> None:
    """Remove what killed processes have left, where nobody else is at work."""
    present.clear_fallen()
    clear_temporaries(stored.path)
    clear_temporaries(stored.path / "blocks")
    stored.clear_halves()
    # A run that failed before its first block leaves no evaluation that would stand in the way of another.
    if stored.description() is not None and not stored.has_any:
        (stored.path / DESCRIPTION).unlink()


def _agreed(start: Start) -> Description:
    """What evaluation.json says, for this process too; another plan, another model and so on are refused."""
    until = time.monotonic() + _SEEN
    found = start.stored.description()
    while found is None and time.monotonic() < until:
        time.sleep(0.1)
        found = start.stored.description()
    if found is None:
        raise InputError(f"{start.stored.path / DESCRIPTION} is gone: it was removed meanwhile; run again")
    return _continuing(start, found)


def _continuing(start: Start, before: Description) -> Description:
    """What is asked for, as it goes on with what was begun before; what does not fit is refused."""
    stored = start.stored
    stored.check_same(before.origin, start.asked.origin)
    stored.check_same_answers(before, start.asked)
    if start.fixed_size and before.block_size != start.asked.block_size:
        held = f"{stored.path} holds blocks of {before.block_size} images, not {start.asked.block_size}"
        raise InputError(f"{held}: use another folder")
    # As many images a block as those that are there have, whatever would suit this device.
    return replace(start.asked.continuing(before), block_size=before.block_size)


def described(
    stored: EvaluationFolder, description: Description, forms: Mapping[str, str], share: Share
) -> Description:
    """Say in evaluation.json in which forms the model ran and, if all blocks are there, how many images."""
    with folder_lock(stored.path, share.wait * 60):
        now = stored.description()
        images = None if now is None else now.images
        if share.finishes:
            images = sum(row_count(stored.file(number)) for number in stored.blocks)
        complete = replace(description, images=images).with_arithmetic(forms)
        stored.describe(complete)
    return complete
