"""Counts the modules and functions of fpa that four commands pass through, each on a tiny input.

The fewer there are, the sooner somebody who follows a command in the source has seen it all. What is called
counts once, however often; what is only imported, or called while modules are imported, does not count, nor
do functions without a name. Every command runs in a process and a folder of its own, so that no count depends
on another. All together take about a minute and a half.

    python tools/passage.py                               # all four
    python tools/passage.py --only audit --list           # one, with the names of its functions
    PYTHONPATH=ELSEWHERE/src python tools/passage.py      # of another version
"""

import argparse
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

COMMANDS = {
    "run": ["tiny"],
    "evaluate": ["shapes-fpa", "--count", "8", "--points", "6", "--ig_steps", "4"],
    "audit": ["shapes-none", "--count", "20", "--points", "6", "--ig_steps", "4"],
    "finetune": ["shapes-none", "--epochs", "1", "--batch_size", "500", "--audit_images", "20"],
}
"""The arguments of each command; with them it ends within seconds."""

FAILED = (1, 2, 130)
"""Exit codes of a command that did not come to its end; those of an audit are 0, 3 and 4."""


class Passage:
    """The functions of a package that are called while it is the profiler of a process."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}{os.sep}"
        self.called: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """What `sys.setprofile` calls for every call and return."""
        code = frame.f_code
        if event == "call" and code not in self.called and self._is_inside(code) and not self._imports(frame):
            self.called.add(code)

    def _is_inside(self, code: CodeType) -> bool:
        # The body of a class is called too; it is no function, and has no fast local variables.
        return code.co_filename.startswith(self.package) and bool(code.co_flags & inspect.CO_OPTIMIZED)

    def _imports(self, frame: FrameType) -> bool:
        """Is the body of one of the package's modules still running?"""
        outer: FrameType | None = frame
        while outer is not None:
            code = outer.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self.package):
                return True
            outer = outer.f_back
        return False

    def names(self) -> list[str]:
        """`module:function`, sorted."""
        found = set()
        for code in self.called:
            if not code.co_name.startswith("<"):
                path = Path(code.co_filename).relative_to(self.package)
                found.add(f"{'.'.join(path.with_suffix('').parts)}:{code.co_qualname}")
        return sorted(found)


def follow(command: str, names: Path) -> int:
    """Run a command in this process, and write the names of the functions that it passes through."""
    from fpa.cli.main import main as run_command

    passage = Passage(package_folder())
    threading.setprofile(passage)
    sys.setprofile(passage)
    try:
        code = run_command([command, *COMMANDS[command], "--quiet"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    names.write_text(json.dumps(passage.names()), encoding="utf-8")
    return 1 if code in FAILED else 0


def package_folder() -> Path:
    """Where fpa is; finding out does not import it."""
    found = importlib.util.find_spec("fpa")
    if found is None or found.origin is None:
        raise SystemExit("fpa is not installed")
    return Path(found.origin).resolve().parent


def functions_of(command: str) -> list[str]:
    """The functions of fpa that a command passes through in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(package_folder().parent)}
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names.json"
        words = [sys.executable, str(Path(__file__).resolve()), "--only", command, "--follow", str(names)]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"fpa {command} failed:\n{done.stdout}{done.stderr}")
        found: list[str] = json.loads(names.read_text(encoding="utf-8"))
        return found


def main() -> int:
    """Print a table of the counts."""
    parser = argparse.ArgumentParser(description="Counts what the commands of fpa pass through.")
    parser.add_argument("--only", choices=COMMANDS, help="one command instead of all")
    parser.add_argument("--list", action="store_true", help="print the names of the functions, too")
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        return follow(options.only, options.follow)

    print("| command | modules | functions |\n|---|---|---|", flush=True)
    for command in [options.only] if options.only else COMMANDS:
        functions = functions_of(command)
        modules = {name.partition(":")[0] for name in functions}
        print(f"| `fpa {command}` | {len(modules)} | {len(functions)} |", flush=True)
        if options.list:
            print(*functions, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
