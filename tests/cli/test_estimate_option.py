"""`--estimate`: what a command would take is printed, and nothing is left behind."""

import re

import pytest

from fpa.cli.main import main

QUICK = ["--estimators", "ig_sum,vg_abs", "--ig_steps", "2", "--count", "30"]
RECIPE = """
name: tiny
model: resnet-small
augmentations: [none, fpa]
data: {name: shapes, train_images: 64, evaluation_images: 20}
training: {epochs: 3, batch_size: 32}
evaluation: {estimators: [ig_sum, vg_abs], points: 3, ig_steps: 2, examples: 1}
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        # two steps and one gradient; one point between both ends, for two maps and two orders, and the end
        (["evaluate", "shapes-none", *QUICK, "--points", "3"], "90 gradients and 150 forward passes for 30"),
        (["audit", "shapes-none", *QUICK], "90 gradients and"),
        (["train", "tiny.yaml"], "12 training steps"),
        (["train", "tiny.yaml", "--seeds", "0,1", "--augment", "fpa"], "12 training steps"),
        (["run", "tiny.yaml"], "12 training steps, 120 gradients and 200 forward passes for 20 images"),
        (
            ["finetune", "shapes-none", "--epochs", "1", "--audit_images", "0"],
            "62 training steps",
        ),
    ],
)
def test_it_says_what_a_command_takes_and_leaves_nothing(command, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    assert main([*command, "--device", "cpu", "--estimate"]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert re.search(r"^time: about .* on this machine \(cpu\)$", out, re.MULTILINE)
    assert re.search(r"^with a device like this one for each: 8 processes about .*, 64 processes", out, re.M)
    assert re.search(r"^memory of a process: [\d.]+ [MG]iB$", out, re.MULTILINE)
    assert re.search(r"^disk: \d+ [KM]iB$", out, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_fine_tuning_is_estimated_with_its_two_audits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["finetune", "shapes-none", "--epochs", "1", "--audit_images", "120", "--estimate"])
    out = capsys.readouterr().out
    assert re.search(r"training about .*, audit before about .* and audit after about", out)
    # IG with 50 steps, 15 noisy copies and one gradient, before and after
    assert f"{2 * 120 * 66:,} gradients" in out


def test_what_is_in_the_folder_takes_no_more_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "shapes-none", *QUICK, "--points", "3", "--device", "cpu", "--quiet"]
    assert main(command) == 0
    main([*command, "--estimate"])
    assert "gradients" not in capsys.readouterr().out
    main([*command, "--estimate", "--overwrite"])
    assert "90 gradients" in capsys.readouterr().out
    assert main(command) == 0
