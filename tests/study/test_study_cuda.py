"""A study on CUDA: killed, or robbed of results, it goes on and ends with the same areas."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from fpa.running import run_study
from fpa.study.read import read_study
from fpa.study.recipe import load_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def assert_same_areas(before, after):
    for name, model in before.models.items():
        for estimator, score in model.fidelity.items():
            assert abs(score.area - after.models[name].fidelity[estimator].area) < 0.05


def modified(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_blocks_made_again_give_every_area_within_five_hundredths(tmp_path):
    recipe = load_recipe("shapes", {"augmentations": ["none", "fpa"], "data.evaluation_images": 1000})
    before = run_study(recipe, tmp_path, device="cuda")
    lost = [tmp_path / name / "blocks" / "block-000000.parquet" for name in ("none", "fpa")]
    for path in lost:
        path.unlink()
    run_study(recipe, tmp_path, device="cuda")
    assert_same_areas(before, read_study(tmp_path))


def test_killed_at_random_moments_it_ends_with_the_same_models_and_areas(tmp_path):
    changes = ["--training.checkpoint_seconds=0", "--training.epochs=20", "--data.evaluation_images=600"]
    changes.append("--augmentations=[none,fpa]")
    command = [sys.executable, "-m", "fpa", "run", "shapes", "--device", "cuda", "--quiet", *changes]
    assert subprocess.run([*command, "--output", str(tmp_path / "whole")], check=False).returncode == 0
    cut, chance, kills = tmp_path / "cut", random.Random(0), 0
    signs = ["fpa/checkpoint.safetensors", "none/blocks/block-000000.parquet"]
    for sign in signs:  # of how far it is; then a little more
        process = subprocess.Popen([*command, "--output", str(cut)])
        before = modified(cut / sign)
        while process.poll() is None:
            if modified(cut / sign) > before:
                time.sleep(chance.random())
                break
            time.sleep(0.01)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills
    assert subprocess.run([*command, "--output", str(cut)], check=False).returncode == 0
    for name in ("none", "fpa"):
        one, two = (load_file(tmp_path / folder / name / "model.safetensors") for folder in ("whole", "cut"))
        assert all(torch.equal(value, two[key]) for key, value in one.items())
    assert_same_areas(read_study(tmp_path / "whole"), read_study(cut))
