"""`fpa COMMAND ...`: finds the command, runs it, and turns errors into one line and an exit code."""

import argparse
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any

from fpa import __version__
from fpa.cli.streams import Patient
from fpa.errors import (
    LONGEST,
    InputError,
    StoppedElsewhereError,
    first_line,
    one_of,
    printable,
    shortened,
)
from fpa.files.launching import Launch, launch

COMMANDS = {
    "run": ("studies", "Run a whole study: train, explain, perturb, score, show."),
    "train": ("studies", "Train the models of a recipe."),
    "evaluate": ("evaluating", "Explain, perturb and score one model."),
    "audit": ("auditing", "Can the evaluation of explanations on a model be trusted?"),
    "finetune": ("finetuning", "Train an existing model a little further with FPA."),
    "report": ("studies", "Make tables, figures and report again."),
    "compare": ("studies", "Put several studies and evaluations side by side."),
    "list": ("listing", "List estimators, scores, maskings, outputs, data and models."),
    "recipes": ("studies", "List the recipes that come with fpa."),
}
"""The module of each command and what it does; the function has the command's name."""

CONTINUED = ("run", "train", "evaluate", "audit", "finetune")
"""The commands that, when stopped, continue where they were if they are run again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 2 for bad input, 130 when interrupted, 1 for any other error."""
    with redirect_stdout(Patient(sys.stdout)), redirect_stderr(Patient(sys.stderr)):
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(argv: list[str]) -> int:
    # Options may stand before the command, as in `fpa --debug run`; they are the command's all the same.
    place = next((at for at, word in enumerate(argv) if not word.startswith("-")), len(argv))
    command = argv[place] if place < len(argv) else None
    options = argv[:place] + argv[place + 1 :]
    try:
        if command is None:
            print(f"fpa {__version__}" if "--version" in options else _help())
            return 0
        one_of("command", command, COMMANDS)
        # Imported when the command is known to exist: a misspelt one is refused at once.
        from fpa.cli.parsing import call

        function = getattr(import_module(f"fpa.cli.{COMMANDS[command][0]}"), command)
        with _ending_with_the_job():
            return call(function, options, shlex.join(["fpa", *argv]))
    except KeyboardInterrupt:
        # With --overwrite, the same command would delete what is done and begin again.
        without = ", without --overwrite," if "--overwrite" in argv else ""
        hint = f"; run the same command again{without} to continue" if command in CONTINUED else ""
        print(f"fpa: stopped{hint}", file=sys.stderr)
        return 130
    except StoppedElsewhereError:  # the first process of the job says why
        return 2
    except (InputError, OSError) as error:
        if "--debug" in argv:
            traceback.print_exc()
        _say(printable(shortened(str(error), LONGEST)))
        return 2
    except Exception as error:
        if "--debug" in argv:
            raise
        # On a CPU, torch raises a plain RuntimeError for lack of memory: only its words tell.
        full = ("DefaultCPUAllocator", "out of memory")
        if isinstance(error, MemoryError) or any(words in str(error) for words in full):
            remedy = "use smaller batches or images, fewer workers, or another device, and run again"
            print(f"fpa: there is not enough memory ({first_line(error)}): {remedy}", file=sys.stderr)
            return 2
        reason = printable(shortened(first_line(error)))
        print(f"fpa: {type(error).__name__}: {reason} (--debug shows where)", file=sys.stderr)
        return 1


def _say(problem: str) -> None:
    """Say what went wrong, and where, if this is not the first of several processes."""
    try:
        found = launch()
    except InputError:  # it is about these very numbers
        found = Launch(0, 1)
    where = f"process {found.rank + 1} of {found.size}: " if found.rank else ""
    print(f"fpa: {where}{problem}", file=sys.stderr)


@contextmanager
def _ending_with_the_job() -> Iterator[None]:
    """Meanwhile, a launcher that ends the processes of a job, since one has failed, ends this one in order.

    What is computed is stored, and the person is told how to go on.
    """
    several = any(name in os.environ for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    mine = threading.current_thread() is threading.main_thread()
    if not several or not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _help() -> str:
    """What `fpa --help` prints; it imports none of the commands, so it comes at once."""
    parser = argparse.ArgumentParser(
        prog="fpa",
        description="Find out which explanations of an image classifier can be trusted.",
        epilog="fpa COMMAND --help explains the usual options of a command, --help-all all of them.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser.format_help()
