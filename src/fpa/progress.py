"""What a person sees while the work goes on: a live display in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from fpa.errors import percent, printable


def training_stage(augmentation: str, seed: int) -> str:
    """What the training of a model is called on the screen."""
    return augmentation if seed == 0 else f"{augmentation} seed {seed}"


def curves_stage(model: str) -> str:
    """What the evaluation of a model is called on the screen."""
    return f"{model} curves"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.42), duration(3), duration(75), duration(7260)
    ('0.4 s', '3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds} s" if isinstance(seconds, int) else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


_BESIDE = 59
"""Columns of a terminal that the bar, the values and the time take beside a stage's name."""


class _Time(TimeRemainingColumn):
    """The time a stage still needs, or has taken; nothing for one that has not begun."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"{timedelta(seconds=int(task.finished_time or 0))} taken", style="progress.elapsed")
        if not task.started:
            return Text("")
        if (left := task.fields["left"]) is not None:
            return Text(f"{timedelta(seconds=int(left))} left", style="progress.remaining")
        return super().render(task) + Text(" left")


class Display:
    """Shows the progress of a study; one object for all its stages.

    Use it as a context manager: the live part is taken down at the end, also after an error.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(file=sys.stderr)
        self.live = not quiet and self.console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description:<16}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[values]:<28}", markup=False),
            _Time(),
            console=self.console,
            disable=not self.live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._alike: dict[str, Sequence[str]] = {}
        self._epochs: dict[str, float] = {}  # when a model's last epoch ended

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            lines = "\n".join(map(printable, text.split("\n")))
            # In a file a line stays one, on a screen it ends with a word.
            self.console.print(lines, highlight=False, markup=False, soft_wrap=not self.live)

    def plan(self, *stages: Sequence[str]) -> None:
        """Show all that is to come, in this order; stages given together take about equally long."""
        for alike in stages:
            for name in alike:
                self._task(name)
                self._alike[name] = alike

    def skipped(self, stage: str) -> None:
        """Show that a stage was done by an earlier run."""
        self._progress.update(self._task(stage), completed=1.0, values="already done")

    @contextmanager
    def making(self, stage: str) -> Iterator[None]:
        """Show that something is being made that has no steps to count."""
        if not self.live:
            self.say(f"making {stage}")
        self.bar(stage, 0.0, "")
        yield
        self.bar(stage, 1.0, "done")

    def training(self, name: str, done: float, loss: float, accuracy: float, pace: float) -> None:
        """Where the training of a model is: share done, loss and accuracy so far, images per second."""
        self.bar(name, done, f"loss {loss:.2f} acc {percent(accuracy)} {pace:,.0f}/s")

    def epoch(self, name: str, epoch: int, epochs: int, row: dict[str, Any], share: str = "accuracy") -> None:
        """A model has finished an epoch; `share` says what of the images it is that is counted."""
        tested = row["test_accuracy"]
        now = time.monotonic()
        before = self._epochs.get(name)
        self._epochs[name] = now
        if epoch == epochs:
            self.bar(name, 1.0, "done" if tested is None else f"test {share} {percent(tested)}")
        if not self.live:
            accuracy = f"{share} {percent(row['accuracy']):>7}"
            accuracy += "" if tested is None else f"  test {percent(tested):>7}"
            pace = f"{row['images_per_second']:,.0f} images/s"
            pace += "" if before is None else f"  {(now - before) * (epochs - epoch):.0f} s left"
            self.say(f"{name}: epoch {epoch}/{epochs}  loss {row['loss']:.3f}  {accuracy}  {pace}")

    def evaluating(self, name: str, images: int | None) -> "Tell":
        """Shows how a model's explanations and curves come along."""
        return Tell(self, curves_stage(name), images)

    def bar(self, name: str, done: float, values: str, left: float | None = None) -> None:
        """Move a bar of the live display; `left`: the seconds it still takes, if known."""
        task = self._task(name)
        tasks = self._progress.tasks
        self._progress.start_task(task)
        self._progress.update(task, completed=done, values=values, left=left)
        # A stage that has ended says how long those like it will take.
        if (taken := tasks[task].finished_time) is not None:
            for waiting in map(self._task, self._alike.get(name, ())):
                if not (tasks[waiting].started or tasks[waiting].completed):
                    self._progress.update(waiting, values=f"about {timedelta(seconds=int(taken))}")

    def unreadable(self, paths: Iterable[Path]) -> None:
        """Image files that were left out because they could not be read."""
        if names := sorted(map(str, paths)):
            self.say("\n  ".join([f"left out: {len(names)} unreadable image files", *names]))

    def _task(self, name: str) -> TaskID:
        if name not in self._tasks:
            text = printable(name)
            most = max(16, self.console.width - _BESIDE)
            # The middle is left out: names of one study begin alike and differ at their ends.
            text = text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"
            self._tasks[name] = self._progress.add_task(text, start=False, total=1.0, values="", left=None)
        return self._tasks[name]


class Tell:
    """Shows how far an evaluation is: the images explained and perturbed, and the estimator being run."""

    def __init__(self, display: Display, name: str, images: int | None) -> None:
        self.display = display
        self.name = name
        self.images = images
        self.done = self.skipped = 0
        self.began = self.last_line = time.monotonic()
        self.estimator = ""
        self.compiling = 0.0
        """Seconds that were spent on compiling: they say nothing about the images to come."""

    @property
    def pace(self) -> float:
        """Images per second."""
        # What an earlier run has done took no time now.
        return (self.done - self.skipped) / max(time.monotonic() - self.began - self.compiling, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take, once that can be told."""
        return (self.images - self.done) / self.pace if self.images and self.pace else None

    def at(self, estimator: str) -> None:
        """An estimator is being explained or perturbed now."""
        self.estimator = estimator
        pace = f"{self.pace:.1f} images/s" if self.done > self.skipped else ""
        share = self.done / self.images if self.images else 0.0
        self.display.bar(self.name, share, f"{clipped(estimator, 12):<12} {pace}", self.left)

    def advance(self, images: int) -> None:
        """So many more images are done."""
        self.done += images
        self.at("done" if self.done == self.images else self.estimator)
        now = time.monotonic()
        due = not self.display.live and (now - self.last_line > 10 or self.done == self.images)
        # After the first block that was computed, whoever has to wait for long learns it at once.
        estimate = self.done - self.skipped == images and (self.left or 0) > 30
        if due or estimate:
            self.last_line = now
            of = "" if self.images is None else f" of {self.images}"
            left = "" if not self.left else f", about {duration(round(self.left))} left"
            what = "image" if self.images == 1 else "images"
            self.line(f"{self.done}{of} {what}, {self.pace:.1f} images/s{left}")

    def skip(self, images: int) -> None:
        """So many more images were done before."""
        self.skipped += images
        self.advance(images)

    def line(self, text: str) -> None:
        """A line that stays."""
        self.display.say(f"{self.name}: {text}")


@contextmanager
def shown(progress: bool | Display) -> Iterator[Display]:
    """The display of a call: none, a new one, or the one given, which its owner takes down."""
    if isinstance(progress, Display):
        yield progress
    else:
        with Display(quiet=not progress) as display:
            yield display


@contextmanager
def telling(total: int | None, shown: bool | Tell) -> Iterator[Tell]:
    """Shows the progress of `total` images: not at all, as the terminal allows, or with the object given."""
    if not isinstance(shown, bool):
        yield shown
    else:
        with Display(quiet=not shown) as display:
            yield Tell(display, "evaluation", total)


def as_text(renderable: Any) -> str:
    """What rich would print, as plain text of 80 columns."""
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def clipped(text: str, most: int | None) -> str:
    """The text, or its beginning and an ellipsis, in at most so many characters."""
    return text if most is None or len(text) <= most else text[: most - 1].rstrip() + "…"
