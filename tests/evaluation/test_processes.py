"""Several processes, one evaluation: real ones, which meet by gloo or know nothing of each other."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fpa
from evaluation.several_shares import COUNTS, SIZE, evaluate, images, network, stream
from fpa import InputError
from fpa.cli.main import main
from fpa.engine.jobs import Job
from fpa.evaluation.examples import read_examples
from fpa.evaluation.shards import EvaluationFolder, load_result
from fpa.evaluation.sharing import Share, share_of, wait_for
from fpa.files import at_work, launch
from fpa.files.launching import announce_step
from fpa.progress import Display, Tell

SCRIPT = Path(__file__).with_name("several_shares.py")


@pytest.fixture(autouse=True)
def one_thread():
    """As many as each of the processes has: with others, sums are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def started(what, folder, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(SCRIPT), what, str(folder)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def same(one, two):
    """Bit for bit, examples included."""
    one, two = load_result(one), load_result(two)
    assert one.evaluation.complete
    assert two.evaluation.complete
    assert np.array_equal(one.evaluation.indices, two.evaluation.indices)
    assert np.array_equal(one.evaluation.unmasked, two.evaluation.unmasked)
    for name in one.evaluation.mif:
        assert np.array_equal(one.evaluation.mif[name], two.evaluation.mif[name])
        assert np.array_equal(one.evaluation.lif[name], two.evaluation.lif[name])
        assert one.fidelity[name].area == two.fidelity[name].area
    for name, maps in one.examples.maps.items():
        assert np.array_equal(maps, two.examples.maps[name])
    assert np.array_equal(one.examples.indices, two.examples.indices)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    for name, count in COUNTS.items():
        evaluate(folder / name, count)
    evaluate(folder / "stream", 15, data=stream(15))
    torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory, alone):
    """What three processes make together; of one evaluation two blocks are there already."""
    folder = tmp_path_factory.mktemp("three")
    shutil.copytree(alone / "resumed", folder / "resumed")
    for number in (1, 2, 4, 5):
        for kind in ("block", "scores"):
            EvaluationFolder(folder / "resumed").file(number, kind).unlink()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", "--standalone"]
    done = subprocess.run(
        [*command, str(SCRIPT), "in_a_job", str(folder)],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


class TestJob:
    @pytest.mark.parametrize("name", [*COUNTS, "stream"])
    def test_three_processes_have_the_numbers_of_one(self, alone, three, name):
        folder, _ = three
        same(folder / name, alone / name)
        left = {path.name for path in (folder / name).rglob("*") if path.name.startswith(".fpa-")}
        assert left <= {".fpa-lock"}

    @pytest.mark.parametrize(
        ("name", "blocks"),
        [
            ("even", [[0, 3], [1, 4], [2, 5]]),
            ("uneven", [[0, 3], [1], [2]]),
            ("few", [[0], [1], []]),
            ("resumed", [[1, 5], [2], [4]]),
            ("stream", [[0, 3], [1], [2]]),
        ],
    )
    def test_every_image_is_computed_once_by_the_process_whose_block_it_is_in(self, three, name, blocks):
        _, told = three
        count = COUNTS.get(name, 15)
        expected = [
            [image for number in own for image in range(number * SIZE, min((number + 1) * SIZE, count))]
            for own in blocks
        ]
        assert [each[name] for each in told] == expected

    def test_in_python_every_process_gets_the_whole_result(self, three):
        _, told = three
        made = fpa.evaluate(
            network(), images(10), ["ig_sum", "vg_abs"], points=3, ig_steps=2, examples=0, progress=False
        )
        assert [each["python"] for each in told] == [[10, made.fidelity["ig_sum"].area]] * 3

    def test_another_plan_ends_all_of_them(self, three):
        _, told = three
        assert all("holds an evaluation with other fractions" in each["refused"] for each in told)


def test_a_killed_process_ends_the_job_and_the_rest_is_made_by_another_number(tmp_path, alone):
    """Two tasks of an srun step, without a launcher that would end the one when the other dies."""
    step = {
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2",
    }  # fmt: skip
    both = [
        started("dying", tmp_path / "e", SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **step)
        for rank in range(2)
    ]
    told = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [2, -9], told
    assert f"process {both[1].pid} on " in told[0]
    assert "has ended before blocks 3 and 5 of 6 were made; what is done is kept" in told[0]
    kept = EvaluationFolder(tmp_path / "e").blocks
    assert kept == [0, 1, 2, 4]
    assert evaluate(tmp_path / "e", 24) == [*range(12, 16), *range(20, 24)]
    same(tmp_path / "e", alone / "even")
    assert not [path for path in (tmp_path / "e").iterdir() if path.name.startswith(".fpa-at-work")]


def test_two_plain_runs_share_a_folder_without_locks(tmp_path, alone):
    both = [started("without_locks", tmp_path) for _ in range(2)]
    told = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    same(tmp_path, alone / "even")


class TestOneFolder:
    def test_the_block_that_was_written_first_stays(self, tmp_path):
        evaluate(tmp_path, 8)
        stored = EvaluationFolder(tmp_path)
        description = stored.description()
        before = stored.file(0).read_bytes()
        block = stored.read_block(0, description)
        block.columns["unmasked/logit"] = block.columns["unmasked/logit"] + 1
        stored.write(0, block, description)
        assert stored.file(0).read_bytes() == before

    def test_scores_of_a_process_that_died_before_its_curves_are_replaced(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fpa.evaluation.shards._BETWEEN", 0.05)
        evaluate(tmp_path, 8)
        stored = EvaluationFolder(tmp_path)
        description = stored.description()
        block = stored.read_block(0, description)
        stored.file(0).unlink()
        stored.file(0, "scores").write_bytes(b"half of somebody's")
        stored.write(0, block, description)
        assert load_result(tmp_path).evaluation.complete

    def test_what_is_at_work_is_not_overwritten_and_its_files_stay(self, tmp_path):
        evaluate(tmp_path, 8)
        half = tmp_path / "blocks" / ".fpa-tmp-1"
        half.touch()
        with at_work(tmp_path, share="2 of 2"):
            assert evaluate(tmp_path, 8) == []
            assert half.exists()
            with pytest.raises(InputError, match="is in use by another run in this process"):
                fpa.audit(network(), images(8), folder=tmp_path, overwrite=True, progress=False)
        assert EvaluationFolder(tmp_path).blocks == [0, 1]
        evaluate(tmp_path, 8)
        assert not half.exists()

    def test_a_plan_without_blocks_is_in_nobody_s_way_once_its_process_is_gone(self, tmp_path):
        evaluate(tmp_path, 8)
        for path in (tmp_path / "blocks").iterdir():
            path.unlink()
        with at_work(tmp_path), pytest.raises(InputError, match="holds an evaluation with other fractions"):
            evaluate(tmp_path, 8, points=7)
        assert evaluate(tmp_path, 8, points=7) == list(range(8))

    def test_waiting_names_the_missing_blocks_and_has_a_limit(self, tmp_path):
        evaluate(tmp_path, 8)
        stored = EvaluationFolder(tmp_path)
        share = Share(0, 2, Job(0, 2), wait=0.005)
        quiet = Tell(Display(quiet=True), "e", 16)
        said = r"no block came for .* and blocks 2 and 3 of 4 are missing"
        with at_work(tmp_path) as present, pytest.raises(InputError, match=said):
            wait_for(stored, range(4), share, present, quiet)


class TestParts:
    def test_parts_then_a_report(self, tmp_path, capsys):
        plain = [
            "evaluate",
            "shapes-fpa",
            "--count",
            "70",
            "--estimators",
            "ig_sum,vg_abs",
            "--ig_steps",
            "2",
        ]
        plain += ["--points", "3", "--device", "cpu", "--examples", "2"]
        assert main([*plain, "--output", str(tmp_path / "one"), "--quiet"]) == 0
        folder = tmp_path / "parts"
        parts = [*plain, "--output", str(folder)]
        assert main([*parts, "--part", "3/4"]) == 0
        assert "part 3 of 4 is done; still missing: blocks 0 and 1 of parts" in capsys.readouterr().out
        assert main(["report", str(folder)]) == 2
        assert "is not complete (blocks 0 and 1 of 3 missing)" in capsys.readouterr().err
        assert main([*parts, "--part", "4/4"]) == 0  # more parts than blocks
        assert main([*parts, "--part", "2/4", "--points", "5"]) == 2
        assert "holds an evaluation with other fractions" in capsys.readouterr().err
        assert main([*parts, "--part", "1/4", "--overwrite"]) == 2
        assert "--overwrite would delete what the other parts make" in capsys.readouterr().err
        assert main([*parts, "--part", "2/4"]) == 0
        assert main([*parts, "--part", "1/4"]) == 0
        assert f"all blocks are there: fpa report {folder}" in capsys.readouterr().out
        assert main(["report", str(folder), "--quiet"]) == 0
        one, two = (pd.read_csv(tmp_path / name / "table.csv") for name in ("one", "parts"))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
        assert (read_examples(tmp_path / "one").indices == read_examples(folder).indices).all()

    def test_parts_of_a_study_need_its_models_and_make_its_curves(self, tmp_path, capsys):
        recipe = [
            "tiny", "--training.epochs=1", "--training.milestones=[]", "--data.train_images=64",
            "--augmentations=none", "--data.evaluation_images=40", "--evaluation.points=3",
            "--evaluation.ig_steps=1", "--evaluation.estimators=vg_abs,vgx_sum", "--device=cpu",
            "--output", str(tmp_path / "s"),
        ]  # fmt: skip
        assert main(["run", *recipe, "--part", "1/2"]) == 2
        assert "has no trained none: train first (fpa train" in capsys.readouterr().err
        assert main(["train", *recipe, "--quiet"]) == 0
        assert main(["run", *recipe, "--part", "2/2"]) == 0
        assert "part 2 of 2 is done; still missing: block 0 of none" in capsys.readouterr().out
        assert main(["run", *recipe, "--part", "1/2"]) == 0
        assert main(["report", str(tmp_path / "s"), "--quiet"]) == 0
        assert (tmp_path / "s/report.html").exists()

    @pytest.mark.parametrize("part", ["0/8", "9/8", "3", "a/b", "-1/2", "1/0"])
    def test_a_part_that_cannot_be_is_refused(self, part):
        with pytest.raises(InputError, match="part must be one of several, such as 3/8"):
            share_of(part)

    def test_a_part_needs_a_folder(self):
        with pytest.raises(InputError, match="processes share an evaluation by its folder"):
            fpa.evaluate(network(), images(4), ["vg_abs", "ig_sum"], part="1/2", progress=False)

    def test_the_shares_of_any_number_hold_every_block_once(self):
        for size in (1, 2, 3, 7):
            for there in ((), (0,), (1, 2, 5), range(6)):
                for shares in (
                    [Share(rank, size) for rank in range(size)],
                    [Share(rank, size, Job(rank, size)) for rank in range(size)],
                ):
                    taken = [n for share in shares for n in range(6) if share.chosen(6, there)(n)]
                    assert sorted(taken) == list(range(6))


class TestSlurm:
    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch):
        # Set first: so they are put back, whatever is set in between.
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_a_plain_command_in_a_batch_job_of_eight_tasks_is_alone(self, monkeypatch):
        monkeypatch.setenv("SLURM_NTASKS", "8")
        monkeypatch.setenv("SLURM_PROCID", "0")
        assert launch().size == 1
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")  # srun -n 1
        assert launch().size == 1

    def test_a_task_of_a_step_is_one_of_several(self, monkeypatch):
        for name, value in {
            "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        assert launch() == (5, 8, 1)
        announce_step()
        assert launch() == (5, 8, 1)
        assert os.environ["MASTER_ADDR"] == "gpu07"
        assert os.environ["LOCAL_WORLD_SIZE"] == "4"

    def test_what_torchrun_says_goes_first(self, monkeypatch):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
        monkeypatch.setenv("SLURM_PROCID", "5")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        assert launch()[:2] == (1, 2)
