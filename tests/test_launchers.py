"""Processes that a launcher has started, or that only say so: who may write, and who is told what."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import fpa
from fpa import InputError
from fpa.cli.main import main
from fpa.errors import DamagedError, Misplaced
from fpa.files import is_main_process

LITTLE = [
    "--training.epochs=1", "--training.milestones=[]", "--data.train_images=64", "--augmentations=none",
    "--data.evaluation_images=4", "--evaluation.points=3", "--evaluation.ig_steps=1",
    "--evaluation.estimators=vg_abs,vgx_sum", "--device=cpu",
]  # fmt: skip


@pytest.fixture
def second(monkeypatch):
    """What somebody may have set by hand, or a job of yesterday left behind."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_in_python_a_process_does_all_of_it_unless_told_otherwise(tmp_path, second):
    """A script may evaluate in one of its processes: nobody waits for the others."""
    assert not is_main_process()
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    images = torch.randn(2, 3, 8, 8)
    made = fpa.evaluate(net, images, ["vg_abs", "ig_sum"], folder=tmp_path / "e", progress=False)
    assert len(made.evaluation.indices) == 2
    with pytest.raises(InputError, match="no launcher has joined the processes"):
        fpa.evaluate(net, images, ["vg_abs"], folder=tmp_path / "f", part="job", progress=False)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("command", ["evaluate shapes-fpa --count 2", "audit shapes-fpa --count 2"])
def test_processes_that_nothing_has_joined_share_nothing(tmp_path, second, capsys, command):
    assert main([*command.split(), "--output", str(tmp_path / "rank")]) == 2
    assert "WORLD_SIZE=2 is set, but no launcher has joined the processes" in capsys.readouterr().err
    assert not (tmp_path / "rank").exists()


def test_processes_that_nothing_has_joined_do_not_train(tmp_path, second, capsys):
    assert main(["train", "tiny", *LITTLE, "--output", str(tmp_path / "t")]) == 2
    told = capsys.readouterr().err
    assert "WORLD_SIZE=2 is set, but no launcher has joined the processes" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("rank", "size"),
    [("0", "abc"), ("1", "abc"), ("x", "2"), ("2", "2"), ("-1", "2"), ("", "1"), ("9" * 5000, "2")],
)
def test_numbers_of_processes_that_make_no_sense_are_named(tmp_path, monkeypatch, rank, size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match=r"RANK='.*' and WORLD_SIZE='.*' must be whole") as error:
        is_main_process()
    assert len(str(error.value)) < 400


def test_a_rank_alone_is_nobody_s_business(monkeypatch):
    monkeypatch.setenv("RANK", "general")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert is_main_process()


def test_a_study_is_trained_by_several_and_made_by_the_first(tmp_path):
    """`torchrun -m fpa run`: the second process trains along and writes nothing, so nobody is surprised."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    words = ["-m", "fpa", "run", "tiny", *LITTLE, "--output", str(tmp_path / "study")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stderr + done.stdout
    assert done.stdout.count("report: ") == 1
    assert fpa.read_results(tmp_path / "study").models["none"].history["epoch"] == [1.0]


class TestAdvice:
    def test_a_block_of_another_evaluation_is_not_to_be_removed(self, tmp_path):
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
        nn.init.constant_(net[1].bias, 9.0)
        images = torch.randn(2, 3, 8, 8)
        for name, points in (("one", 3), ("two", 5)):
            fpa.evaluate(
                net, images, ["vg_abs", "ig_sum"], folder=tmp_path / name, points=points, progress=False
            )
        for kind in ("block", "scores"):
            name = f"blocks/{kind}-000000.parquet"
            (tmp_path / "two" / name).replace(tmp_path / "one" / name)
        with pytest.raises(DamagedError) as error:
            fpa.load_result(tmp_path / "one")
        told = str(error.value)
        assert "it is a block of another evaluation or another model" in told
        assert "move it" in told
        assert "is damaged" not in told
        assert "remove it" not in told.partition("fpa run --repair")[0]

    def test_damage_and_misplaced_files_are_told_apart(self, tmp_path):
        reasons = {tmp_path / "a": "it is empty", tmp_path / "b": Misplaced("it is of another model")}
        told = str(DamagedError(reasons))
        assert f"{tmp_path / 'a'} is damaged (it is empty): remove it" in told
        assert f"{tmp_path / 'b'} does not belong here (it is of another model): move it" in told
