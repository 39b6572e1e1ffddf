"""What a person sees while a study runs."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from fpa.explanation import PAPER
from fpa.progress import Display
from fpa.running import run_study
from fpa.study.recipe import load_recipe


def live(width=80):
    screen = io.StringIO()
    return screen, Display(console=Console(file=screen, force_terminal=True, width=width, color_system=None))


def bars(screen):
    """The last state of every bar by the name of its stage."""
    found = {}
    for line in screen.getvalue().splitlines():
        name, bar, rest = line.partition("\u2501")
        if bar:
            found[name.strip().split("\x1b[2K")[-1]] = bar + rest
    return found


def test_a_study_shows_all_its_stages_the_estimator_it_is_at_and_the_time(tmp_path, monkeypatch):
    screen, display = live()
    said, bar = [], display.bar

    def noted(name, done, values, left=None):
        said.append(f"{name}: {values}")
        bar(name, done, values)

    monkeypatch.setattr(display, "bar", noted)
    with display:
        run_study(load_recipe("tiny"), tmp_path, device="cpu", progress=display)
    shown = bars(screen)
    stages = ["none", "rectangle", "fpa", "none curves", "rectangle curves", "fpa curves"]
    assert list(shown) == [*stages, "tables", "figures", "report"]
    assert all("100%" in line and "taken" in line for line in shown.values())
    assert max(len(line) for line in shown.values()) <= 80
    for estimator in ("IG", *(estimator.label(name).text for name, estimator in PAPER.items())):
        assert any(line.startswith(f"fpa curves: {estimator} ") for line in said)
    assert any(line.startswith("fpa curves: VG'_sum ") and "images/s" in line for line in said)

    again, display = live()
    with display:
        run_study(load_recipe("tiny"), tmp_path, device="cpu", progress=display)
    assert all("already done" in line for line in bars(again).values())


def test_a_stage_that_waits_shows_how_long_its_like_took(monkeypatch):
    screen, display = live()
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(display._progress, "get_time", lambda: float(next(clock)))
    with display:
        display.plan(["one", "two"], ["other"])
        for share in (0.2, 0.4, 0.6):
            display.bar("one", share, "")
        display._progress.refresh()
        assert "left" in bars(screen)["one"]
        display.bar("one", 1.0, "done")
    shown = bars(screen)
    assert "about 0:0" in shown["two"]
    assert "about" not in shown["other"]


@pytest.mark.parametrize("name", ["fpa", "torchvision:mobilenet_v2", "my_package.networks:build_network"])
def test_a_long_name_leaves_room_for_the_bar_the_values_and_the_time(name):
    screen, display = live()
    with display:
        stage = display.evaluating(name, 1000).name
        display.bar(stage, 0.43, f"{'SQ-SG_sum':<12} 12.3 images/s", 312.0)
    ((shown, rest),) = bars(screen).items()
    assert "43% SQ-SG_sum    12.3 images/s" in rest
    assert "0:05:12 left" in rest
    assert shown[:3] == name[:3]
    assert shown.endswith("curves")


def test_plain_lines_tell_the_time_left(capsys):
    display = Display(console=Console(width=200, stderr=True))
    row = {"loss": 1.0, "accuracy": 0.5, "test_accuracy": None, "images_per_second": 100.0}
    for epoch in (1, 2):
        display.epoch("fpa", epoch, 4, row)
    first, second = capsys.readouterr().err.splitlines()
    assert "left" not in first
    assert second.endswith("images/s  0 s left")


def test_stages_done_before_stay_so_and_a_resumed_one_ends(tiny_study, tmp_path):
    folder = Path(shutil.copytree(tiny_study[0], tmp_path / "copy"))
    (folder / "none" / "blocks" / "block-000000.parquet").unlink()
    screen, display = live()
    with display:
        run_study(load_recipe("tiny"), folder, device="cpu", progress=display)
    shown = bars(screen)
    assert "already done" in shown["fpa"]
    assert "already done" in shown["fpa curves"]
    assert "100%" in shown["none curves"]
    assert "taken" in shown["none curves"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_ends_with_a_word_on_a_screen_and_is_one_in_a_file(terminal):
    console = Console(file=io.StringIO(), width=20, force_terminal=terminal, color_system=None)
    Display(console=console).say("several words that need more room")
    expected = ["several words that", "need more room"] if terminal else ["several words that need more room"]
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == expected


def test_the_time_spent_on_compiling_is_not_in_the_pace_nor_in_the_time_left(monkeypatch):
    from fpa.progress import Tell

    clock = [0.0]
    monkeypatch.setattr("fpa.progress.time.monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=100)
    tell = Tell(Display(console=console), "model", 100)
    clock[0], tell.compiling = 60.0, 50.0
    tell.advance(10)
    assert "10 of 100 images, 1.0 images/s, about 1 min 30 s left" in console.file.getvalue()
