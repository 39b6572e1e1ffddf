"""What people type, and what YAML files hold, as the types that settings declare."""

from pathlib import Path
from typing import Any, Literal

import pytest

from fpa.errors import InputError
from fpa.typed import typed


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        ("1e-3", float, 0.001),
        (2, float, 2.0),
        ("5e-4", float, 5e-4),  # which YAML takes for text
        ("true", bool, True),
        ("null", int | None, None),
        ("null", str | None, None),
        ("8", str | int, 8),
        ("pixels", str | int, "pixels"),
        ("a,b", list[str], ["a", "b"]),
        ("[a, b]", list[str], ["a", "b"]),
        ("one", list[str] | None, ["one"]),
        ("[]", list[int], []),
        ("0.02,0.4", tuple[float, float], (0.02, 0.4)),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ("blur,{name: blur, sigma: 4}", list[dict[str, Any] | str], ["blur", {"name": "blur", "sigma": 4}]),
        ("{name: blur}", dict[str, Any] | str, {"name": "blur"}),
        ("my.module:Mask", dict[str, Any] | str, "my.module:Mask"),
        ("slow", Literal["slow", "fast"], "slow"),
        ("runs/one", Path | None, Path("runs/one")),
    ],
)
def test_fits(value, kind, expected):
    found = typed("--option", value, kind)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("many", int | None, "--option must be a whole number, got many"),
        (3.0, int, "--option must be a whole number, got 3.0"),
        (True, int, "--option must be a whole number, got True"),
        ("9" * 30, int, "--option must be a whole number, got 999"),
        ("9" * 5000, int, "--option must be a whole number, got 999"),
        ("half", float, "--option must be a number, got half"),
        ("1", str | None, None),
        (1, str, "--option must be text, got 1"),
        ("1,x", list[int], "--option must be a list of whole numbers, got 1,x"),
        ("1.5,x", list[str | int], "--option must be a list of texts or whole numbers, got 1.5,x"),
        ("[1", list[int], r"--option must be a list of whole numbers, got \[1"),
        ("1,2,3", tuple[float, float], "--option must be a list of numbers, got 1,2,3"),
        ("brown", Literal["red", "blue"], "--option must be one of red, blue, got brown"),
        ({1: 2}, dict[str, Any], "--option must be a mapping, got {1: 2}"),
        ("[" * 20000, list[str], "--option must be a list of texts, got"),
        ("2001-99-99,a", list[str], "--option must be a list of texts, got 2001-99-99,a"),
    ],
)
def test_does_not_fit(value, kind, message):
    if message is None:
        assert typed("--option", value, kind) == value
        return
    with pytest.raises(InputError, match=message) as told:
        typed("--option", value, kind)
    assert len(str(told.value)) < 200
