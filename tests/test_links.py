"""Links in a folder that somebody sent: nothing is written, locked or removed behind them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fpa
from fpa import InputError
from fpa.cli.main import main
from fpa.files import inner_folder
from fpa.running import show_again

QUICK = {"settings": fpa.Settings(ig_steps=1, sg_samples=1), "points": 3, "progress": False}
NAMES = (".fpa-tmp-1", "block-000000.parquet", "fidelity.png", "model.safetensors")


@pytest.fixture
def net():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    nn.init.constant_(network[1].bias, 9.0)
    return network


@pytest.fixture
def evaluated(net, tmp_path):
    """A folder that holds an evaluation, and a call that would continue it."""
    folder = tmp_path / "received"
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def again():
        return fpa.evaluate(net, images, ["vg_abs", "ig_sum"], folder=folder, **QUICK)

    again()
    return folder, again


@pytest.fixture
def outside(tmp_path):
    """A folder of somebody's own, with files whose names fpa uses too."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text("a year of work")
    return folder


def untouched(outside):
    return {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        NAMES, "a year of work"
    )


def test_blocks_are_not_written_behind_a_link(evaluated, outside):
    folder, again = evaluated
    (folder / "blocks").rename(folder / "away")
    (folder / "blocks").symlink_to(outside)
    with pytest.raises(
        InputError, match=r"received/blocks is a link to another folder: nothing was .*written"
    ):
        again()
    assert untouched(outside)


def test_a_result_is_not_saved_behind_a_link(evaluated, outside, tmp_path):
    _, again = evaluated
    (tmp_path / "other").mkdir()
    (tmp_path / "other/blocks").symlink_to(outside)
    with pytest.raises(InputError, match="other/blocks is a link"):
        again().save(tmp_path / "other")
    assert untouched(outside)


def test_figures_are_not_written_behind_a_link(evaluated, outside):
    folder, _ = evaluated
    (folder / "figures").symlink_to(outside)
    with pytest.raises(InputError, match="received/figures is a link"):
        show_again(folder, folder)
    assert untouched(outside)
    assert not (folder / "table.csv").exists()  # refused before anything was made


def test_an_evaluation_is_refused_where_its_figures_would_go_elsewhere(tmp_path, outside, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/figures").symlink_to(outside)
    assert main(["evaluate", "shapes-fpa", "--count", "2", "--output", str(tmp_path / "out")]) == 2
    assert "out/figures is a link to another folder" in capsys.readouterr().err
    assert not (tmp_path / "out/evaluation.json").exists()
    assert untouched(outside)


@pytest.mark.parametrize("part", ["none", "fpa/blocks", "figures"])
def test_a_study_is_not_run_behind_a_link(tmp_path, outside, part):
    folder = tmp_path / "study"
    (folder / part).parent.mkdir(parents=True)
    (folder / part).symlink_to(outside)
    with pytest.raises(InputError, match=f"study/{part} is a link"):
        fpa.run_study(fpa.load_recipe("tiny"), folder, device="cpu")
    assert untouched(outside)


def test_a_model_is_not_trained_behind_a_link(tmp_path, outside, capsys):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "fpa").symlink_to(outside)
    (outside / "model.safetensors").unlink()
    assert main(["train", "tiny", "--augment", "fpa", "--quiet", "--output", str(folder)]) == 2
    assert "study/fpa is a link" in capsys.readouterr().err
    assert sorted(path.name for path in outside.iterdir()) == [
        ".fpa-tmp-1",
        "block-000000.parquet",
        "fidelity.png",
    ]


def test_a_file_that_is_a_link_is_replaced_and_not_followed(evaluated, tmp_path):
    folder, _ = evaluated
    mine = tmp_path / "mine.txt"
    mine.write_text("a year of work")
    written = ("table.csv", "table.md", "table.tex", "report.html")
    for name in written:
        (folder / name).symlink_to(mine)
    show_again(folder, folder)
    assert mine.read_text() == "a year of work"
    assert not any((folder / name).is_symlink() for name in written)


def test_a_folder_that_is_itself_reached_by_a_link_is_used(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    assert inner_folder(tmp_path / "runs", "blocks") == tmp_path / "runs" / "blocks"
    assert Path(tmp_path / "disk/blocks").is_dir()
