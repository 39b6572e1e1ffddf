"""The help of commands: what people use first, in the words that they type."""

import re

import pytest

from fpa.cli.helping import USUAL
from fpa.cli.main import main


def shown(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([*words])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def options_in(text):
    return re.findall(r"^  (?:-h, )?--([\w.-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("command", USUAL)
def test_help_shows_ten_options_and_says_how_many_more_there_are(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    short = shown(capsys, command, "--help")
    whole = shown(capsys, command, "--help-all")
    usual = options_in(short)
    assert usual[2:] == USUAL[command].split()
    assert usual[:2] == ["help", "help-all"]
    assert len(usual) == 12
    rest = set(options_in(whole)) - set(usual) - {"debug"}
    assert short.splitlines()[-1] == f"fpa {command} --help-all shows {len(rest)} more options."
    assert short.startswith(f"usage: fpa {command} ")
    assert len(short.splitlines()) < 70 < len(whole.splitlines())
    assert max(map(len, short.splitlines())) <= 80


def test_types_are_what_people_type(capsys):
    for command in USUAL:
        text = shown(capsys, command, "--help-all")
        assert not re.search(r"default: null|list\[|dict\[|Any\b|type:|in Python", text), command
    text = shown(capsys, "evaluate", "--help-all")
    for words in (
        "--estimators NAME[,NAME...]", "--mean X[,X...]", "--points N", "--sigma X", "--weights FILE",
        "--output FOLDER", "--precision {auto,float32,tf32,bfloat16}", "--protocols [NAME[,NAME...]]",
    ):  # fmt: skip
        assert f"  {words}" in text


def test_the_folder_of_results_is_called_as_in_python_too(capsys, tmp_path):
    words = ["evaluate", "shapes-fpa", "--count", "2", "--estimators", "vg_abs", "--points", "3", "--quiet"]
    assert main([*words, "--device", "cpu", "--folder", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "report.html").exists()
