"""A rehearsal of many passes: the first few of every list are run and timed, the others are counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from fpa.engine.arithmetic import PassKind
from fpa.engine.devices import time_when_done
from fpa.engine.engine import Engine
from fpa.engine.works import Work

_Result = TypeVar("_Result")


class TooLongError(Exception):
    """What is rehearsed does not end in the time that there is for it."""


@dataclass(frozen=True)
class TimedPasses:
    """A list of passes: how many there are, and the seconds that all of them would take."""

    kind: PassKind
    rows: int
    seconds: float


class Rehearsal(Engine):
    """An engine that runs the first batches of every list of rows and counts the rest.

    It shares models and batch sizes with the engine it is made of, so that what it finds out is known to that
    one too. The results of rows that were not run are noise, which takes as much disk as real ones do.
    Compiling takes longer than a rehearsal may: what is not compiled yet is timed as it is.
    """

    def __init__(self, engine: Engine, seconds: float) -> None:
        # Not made anew: a second copy of the model would take memory, and its forms would be probed again.
        vars(self).update(vars(engine))
        self.will_compile = False
        """Whether the work itself would be compiled, where the rehearsal was not."""
        self._engine = engine
        self.compile = False
        self.watch = lambda name: None
        self.ends = time.monotonic() + seconds
        self.lists: list[TimedPasses] = []
        self.enough = 0.1
        """Seconds for which a list is timed, over several batches where passes are fast."""
        self.inside = 0.0
        """Seconds that were spent on passes."""
        self._warm: set[tuple[PassKind, torch.Size]] = set()

    def begin(self) -> None:
        """Forget what was timed; what is warm stays so."""
        self.lists = []
        self.inside = 0.0

    @property
    def counted(self) -> dict[PassKind, int]:
        """Rows of all lists, by kind."""
        kinds = dict.fromkeys(each.kind for each in self.lists)
        return {kind: sum(each.rows for each in self.lists if each.kind == kind) for kind in kinds}

    def seconds_a_row(self, kind: PassKind) -> float:
        """The mean over all rows of a kind; 0 where there was none."""
        rows = self.counted.get(kind, 0)
        return sum(each.seconds for each in self.lists if each.kind == kind) / rows if rows else 0.0

    @property
    def seconds(self) -> float:
        """What all passes of the lists would take."""
        return sum(each.seconds for each in self.lists)

    def attempt(self, kind: PassKind, row: Tensor, run: Callable[[int], _Result]) -> _Result | None:
        """As the engine does it, while there is time."""
        if time.monotonic() > self.ends:
            raise TooLongError
        return super().attempt(kind, row, run)

    def _run(self, kind: PassKind, works: Sequence[Work]) -> None:
        works = [work for work in works if work.count]
        if not works:
            return
        began = self._now()
        total = sum(work.count for work in works)
        if kind == "exact":  # a pass for each image, whose result is needed
            super()._run(kind, works)
            self.lists.append(TimedPasses(kind, total, self._now() - began))
        else:
            self.will_compile |= self._would_compile(works, total)
            rows, seconds = self._timed(kind, works, total)
            self.lists.append(TimedPasses(kind, total, seconds * total / rows))
        self.inside += self._now() - began

    def _timed(self, kind: PassKind, works: Sequence[Work], total: int) -> tuple[int, float]:
        """How many rows were run, and in how many seconds; the others get noise."""
        classes: list[Tensor] = []
        watched = [replace(work, take=_noting(work, classes)) for work in works]
        row = works[0].rows(0, 1)
        batch = min(self.batch_size(kind, row), total)
        key = (kind, row.shape)
        if key not in self._warm:  # the first batch loads kernels and takes memory
            self._warm.add(key)
            super()._run(kind, _first(watched, batch))
        began = self._now()
        super()._run(kind, _first(watched, batch))
        seconds = self._now() - began
        rows = batch
        more = min(total, batch * int(self.enough / max(seconds, 1e-6)))
        if more > batch and self._now() + self.enough < self.ends:
            began = self._now()
            super()._run(kind, _first(watched, more))
            seconds = self._now() - began
            rows = more
        if kind == "forwards":
            _fill(works, rows, batch, classes[0][:1])
        return rows, seconds

    def _would_compile(self, works: Sequence[Work], total: int) -> bool:
        """Whether the engine itself would compile these passes, and has not yet."""
        if any(runner.compiled for runner in self._runners.values()):
            return False
        return self._engine.compiles(works[0].rows(0, 1), total)

    def _now(self) -> float:
        return time_when_done(self.device)


def _noting(work: Work, seen: list[Tensor]) -> Callable[[int, int, Tensor], None]:
    """Takes results as a work does, and keeps one to know their shape."""

    def take(start: int, stop: int, result: Tensor) -> None:
        if not seen:
            seen.append(result)
        work.take(start, stop, result)

    return take


def _first(works: Sequence[Work], rows: int) -> list[Work]:
    """The first rows of a list of works."""
    chosen = []
    for work in works:
        if rows > 0:
            chosen.append(replace(work, count=min(work.count, rows)))
            rows -= work.count
    return chosen


def _fill(works: Sequence[Work], rows: int, batch: int, one: Tensor) -> None:
    """Hand out noise like `one` [1, classes] for all but the first rows, a batch at a time."""
    numbers = torch.Generator(one.device).manual_seed(0)
    for work in works:
        for start in range(min(rows, work.count), work.count, batch):
            stop = min(start + batch, work.count)
            shape = (stop - start, one.shape[1])
            noise = torch.randn(shape, generator=numbers, device=one.device, dtype=one.dtype)
            work.take(start, stop, noise)
        rows = max(rows - work.count, 0)
