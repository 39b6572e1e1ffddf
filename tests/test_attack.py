"""`make attack` is long and stands apart: a few of its trials show that it still reaches what it attacks."""

import subprocess
import sys
from pathlib import Path


def test_mutated_recipes_come_to_the_start_of_the_work(tmp_path):
    script = Path(__file__).parents[1] / "tools" / "attack.py"
    command = [sys.executable, str(script), "--only", "recipes", "--scale", "0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 100 | 100 | 0 |" in done.stdout


def test_odd_calls_and_renamed_checksums_end_in_one_line(tmp_path):
    """With another seed than `make attack` has."""
    script = Path(__file__).parents[1] / "tools" / "attack.py"
    command = [sys.executable, str(script), "--only", "calls", "--only", "renamed", "--only", "launchers"]
    command += ["--scale", "0.04", "--seed", "26"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 40 | 40 | 0 |" in done.stdout
