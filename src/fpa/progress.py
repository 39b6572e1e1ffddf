"""What a person sees while the work goes on: a live display in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display:
    """Shows the progress of a study; one object for all its stages.

    Use it as a context manager: the live part is taken down at the end, also after an error.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(file=sys.stderr)
        self.live = not quiet and self.console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def training(self, name: str, done: float, loss: float, accuracy: float, pace: float) -> None:
        """Where the training of a model is: share done, loss and accuracy so far, images a second."""
        if self.live:
            self.bar(name, done, f"loss {loss:.2f} acc {100 * accuracy:.0f}% {pace:,.0f}/s")

    def epoch(self, name: str, epoch: int, epochs: int, row: dict[str, Any]) -> None:
        """A model has finished an epoch."""
        tested = row["test_accuracy"]
        if self.live:
            if epoch == epochs:
                self.bar(name, 1.0, "done" if tested is None else f"test accuracy {100 * tested:.1f}%")
        elif not self.quiet:
            shown = "" if tested is None else f"  test {100 * tested:5.1f}%"
            self.say(
                f"{name}: epoch {epoch}/{epochs}  loss {row['loss']:.3f}  "
                f"accuracy {100 * row['accuracy']:5.1f}%{shown}  {row['images_per_second']:,.0f} images/s"
            )

    @contextmanager
    def evaluating(self, name: str, images: int, estimators: int) -> Iterator["Evaluating"]:
        """Show how a model's explanations and curves come along."""
        yield Evaluating(self, f"{name} curves", images, estimators)

    def bar(self, name: str, done: float, values: str) -> None:
        """Move a bar of the live display."""
        if self.live:
            self._progress.update(self._task(name), completed=done, values=values)

    def unreadable(self, paths: Iterable[Path]) -> None:
        """Image files that were left out because they could not be read."""
        names = sorted(map(str, paths))
        if names:
            self.say(f"left out: {len(names)} unreadable image files")
            for name in names:
                self.say(f"  {name}")

    def _task(self, name: str) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=1.0, values="")
        return self._tasks[name]


class Evaluating:
    """Images explained and perturbed so far; every estimator of an image is done at once."""

    def __init__(self, display: Display, name: str, images: int, estimators: int) -> None:
        self.display, self.name, self.images, self.estimators = display, name, images, estimators
        self.done = self.skipped = 0
        self.began = self.told = time.monotonic()

    def advance(self, images: int) -> None:
        """So many more images are done."""
        self.done += images
        now = time.monotonic()
        pace = (self.done - self.skipped) / max(now - self.began, 1e-9)
        values = f"{self.estimators} estimators, {pace:.1f} images/s"
        self.display.bar(self.name, self.done / self.images, values)
        if not self.display.live and (now - self.told > 10 or self.done == self.images):
            self.told = now
            left = (self.images - self.done) / pace
            self.line(f"{self.done} of {self.images} images  {pace:.1f} images/s  {left:.0f} s left")

    def skip(self, images: int) -> None:
        """So many more images were done before."""
        self.done += images
        self.skipped += images

    def line(self, text: str) -> None:
        """A line that stays."""
        self.display.say(f"{self.name}: {text}")
