"""Which blocks of an evaluation a process makes, and how it waits for those of the others."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fpa.engine.jobs import Job, joined_job
from fpa.errors import InputError, shortened
from fpa.evaluation.shards import EvaluationFolder, named
from fpa.files import Presence
from fpa.progress import Tell, duration

T = TypeVar("T")

WAIT = 60.0
"""Minutes that are waited for a further block of other processes."""

_LOOKS = (0.1, 2.0)
"""Seconds between two looks at the folder: the first, and after a while."""


@dataclass(frozen=True)
class Share:
    """The part of the blocks that this process makes; by default all of them."""

    rank: int = 0
    size: int = 1
    job: Job = field(default_factory=Job)
    """The processes that it agrees with; none where parts know nothing of each other."""
    wait: float = WAIT

    @property
    def is_part(self) -> bool:
        """Whether it is one of several parts that know nothing of each other."""
        return self.size > 1 and self.job.size == 1

    @property
    def finishes(self) -> bool:
        """Whether this process waits for all blocks and makes something of them."""
        return self.job.first and not self.is_part

    @property
    def in_words(self) -> str:
        """Of all blocks, which; for people.

        >>> Share(2, 8).in_words
        '3 of 8'
        """
        return f"{self.rank + 1} of {self.size}"

    def decided(self, decide: Callable[[], T]) -> T:
        """What the first process of the job finds; what this one does where it is alone."""
        return self.job.decided(decide)

    def chosen(self, count: int | None, there: Collection[int]) -> Callable[[int], bool]:
        """Whether a block is this process's, of so many (None: not known), of which some are `there`.

        Those that are missing are shared out one by one, so that all have about equally many however the
        last run ended; so are those that are there, whose images are compared. Parts that know nothing of
        each other may see different blocks there: they go by the number of a block.

        >>> ours = Share(1, 3, Job(1, 3)).chosen(8, there=[0, 1, 2, 3])
        >>> [number for number in range(8) if ours(number)]
        [1, 5]
        """
        if self.size == 1:
            return lambda number: True
        if self.is_part or count is None:
            return lambda number: number % self.size == self.rank
        missing = [number for number in range(count) if number not in there]
        return {*missing[self.rank :: self.size], *sorted(there)[self.rank :: self.size]}.__contains__


def share_of(part: str | None, *, wait: float = WAIT, device: object = None) -> Share:
    """The share that a text names: all (None), job (that of this process in its job), or 3/8.

    >>> share_of("3/8") == Share(2, 8), share_of(None) == Share()
    (True, True)
    """
    if part in (None, "all"):
        return Share(wait=wait)
    if part == "job":
        job = joined_job(None if device is None else str(device))
        return Share(job.rank, job.size, job, wait)
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        wanted = "one of several, such as 3/8 (the third of eight), or job, or all"
        raise InputError(f"part must be {wanted}, got {shortened(part)!r}")
    return Share(int(found[1]) - 1, int(found[2]), wait=wait)


def wait_for(
    stored: EvaluationFolder, numbers: Sequence[int], share: Share, present: Presence, tell: Tell
) -> None:
    """Wait until all these blocks are there.

    Refused is to wait on where a process of the job has ended without its blocks, or where none has come for
    as long as `share.wait` says.
    """
    missing = stored.missing(numbers)
    pause, longest = _LOOKS
    last = time.monotonic()
    told = last
    while missing:
        again = "run the same command again, with any number of processes"
        kept = f"what is done is kept in {stored.path}: {again}"
        lacking = f"{named(missing)} of {len(numbers)}"
        # Looked at before the blocks are: one that ends in order has stored its blocks by then.
        fallen = present.fallen
        before = missing
        missing = stored.missing(numbers)
        now = time.monotonic()
        if missing and fallen:
            raise InputError(f"{fallen[0]} has ended before {lacking} were made; {kept}")
        if missing != before:
            last = now
        elif now - last > share.wait * 60:
            waited = f"no block came for {duration(round(share.wait * 60))}"
            raise InputError(f"{waited}, and {lacking} are missing; {kept}")
        if missing and now - told > 60:
            told = now
            tell.line(f"waiting for other processes: {lacking} are missing")
        if missing:
            time.sleep(pause)
            pause = min(2 * pause, longest)


def wait_until_complete(stored: EvaluationFolder, share: Share) -> None:
    """Wait until the first process of the job has all blocks together, and says so in evaluation.json."""
    until = time.monotonic() + share.wait * 60
    known = -1
    while (found := stored.description()) is None or found.images is None:
        count = len(stored.blocks)
        now = time.monotonic()
        if count != known:
            known = count
            until = now + share.wait * 60
        if now > until:
            waited = f"no block came for {duration(round(share.wait * 60))}"
            raise InputError(f"{waited}, and {stored.path} is not complete: run the same command again")
        time.sleep(_LOOKS[0])
