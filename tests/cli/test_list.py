"""`fpa list`: all that can be named stands there, with a line, and can be used."""

import re

import pytest

import fpa
from fpa.cli.listing import DATA, ESTIMATORS, KINDS, MASKINGS, OUTPUTS, SCORES
from fpa.cli.main import main
from fpa.data.sets import DATA_SETS
from fpa.engine import outputs
from fpa.masking import get_masking, names
from fpa.models.saved import shipped_models
from fpa.scores import SCORES as REGISTERED


def listed(capsys, *kinds):
    assert main(["list", *kinds]) == 0
    return capsys.readouterr().out


def test_everything_that_fpa_has_is_listed_with_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = listed(capsys)
    headings = re.findall(r"^(\w+)$", text, re.MULTILINE)
    assert headings == [*KINDS]
    assert max(map(len, text.splitlines())) <= 80
    for registered in (REGISTERED, names.MASKINGS, outputs.OUTPUTS, DATA_SETS, shipped_models()):
        for name in registered:
            assert re.search(rf"^  {re.escape(name)} +\S", text, re.MULTILINE), name


def test_what_is_listed_can_be_used():
    for name in [
        name for name in ESTIMATORS if name not in ("twins",) and not re.search("[A-Z]|module", name)
    ]:
        assert fpa.get_estimators(name)
    assert set(SCORES) <= set(REGISTERED)
    assert {name for name in DATA if ":" not in name} <= set(DATA_SETS)
    assert set(OUTPUTS) <= set(outputs.OUTPUTS)
    for name in MASKINGS:
        if ":" not in name:
            assert get_masking(name, (0.5,), (0.5,))


def test_one_kind_alone_and_a_kind_that_there_is_not(capsys):
    text = listed(capsys, "outputs", "maskings")
    assert text.index("outputs\n") < text.index("  logit ") < text.index("maskings\n") < text.index("  blur ")
    assert "scores" not in text
    assert main(["list", "score"]) == 2
    assert "unknown kind 'score': did you mean 'scores'" in capsys.readouterr().err


def test_what_users_register_is_listed_too(capsys, monkeypatch):
    def brightest(logits, targets, labels):
        """The largest logit."""
        return logits.amax(1)

    monkeypatch.setitem(outputs.OUTPUTS, "brightest", outputs.Output(brightest))
    assert re.search(r"  brightest +The largest logit\.", listed(capsys, "outputs"))


@pytest.mark.parametrize("kind", ["estimators", "models", "recipes"])
def test_every_kind_has_lines(capsys, kind):
    assert len(listed(capsys, kind).splitlines()) > 5
