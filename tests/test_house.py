"""The checks of `tools/house.py` fail on made-up packages that break the rules, and pass on a good one."""

import importlib
import re
from pathlib import Path

import pytest

ROOMS = {
    "": "A made-up package that has just enough rooms to break the rules of the house.",
    "data": "Images in: whatever people bring comes through here and leaves as arrays.",
    "study": "Runs everything: the trainings and the evaluations, one after the other.",
    "show": "From results to what people see; nothing new is computed in this room.",
    "cli": "The commands, a function each; nothing else prints or reads any arguments.",
}
EXPORTS = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpa.data.sets import load_data
    from fpa.study.run import run_study
"""


@pytest.fixture
def house(monkeypatch):
    """The tool, without the exceptions of the real package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "tools"))
    module = importlib.import_module("house")
    monkeypatch.setattr(module, "EXCEPTIONS", {})
    monkeypatch.setattr(module, "FORWARDED", {})
    return module


@pytest.fixture
def check(house, tmp_path, capsys):
    """Runs the tool on a package with further files; gives the exit code and the lines about problems."""
    source = tmp_path / "fpa"

    def run(files):
        written = {f"{room}/__init__.py": f'"""{text}"""\n' for room, text in ROOMS.items()}
        written["/__init__.py"] += EXPORTS
        written |= {"data/sets.py": "def load_data(): ...\n", "study/run.py": "def run_study(): ...\n"}
        for name, text in (written | files).items():
            path = source / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        code = house.main(["--source", str(source)])
        printed = capsys.readouterr().out.splitlines()
        return code, [line for line in printed if re.match(r"[\w.]+:\d+: ", line)]

    return run


GOOD = '''
"""A module that keeps to the rules."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import ParamSpec, TypeVar

from fpa import __version__, load_data
from fpa.data import sets

import fpa.data.sets as more

P = ParamSpec("P")
T = TypeVar("T")


def passed_on(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    first, second = sets.load_data()
    first, second = second, first
    height, *rest = [*first, second]
    shares: dict[str, float] = {"low": 0.1}
    print({**shares, **shares}, import_module("json"), import_module(f"fpa.data.{height}"), more)
    model.eval()
    call(1, 2, 3, 4, 5, **shares)
    return function(*arguments, **named)
'''


def test_a_package_that_keeps_to_the_rules_passes(check):
    command = {"cli/main.py": "import fpa\nfrom fpa import run_study\nfrom fpa.show import tables\n"}
    assert check({"study/good.py": GOOD, **command}) == (0, [])


@pytest.mark.parametrize(
    "text",
    [
        "from fpa.study.run import run_study",
        "from fpa.study import run",
        "from fpa import study",
        "from fpa import run_study",
        "from fpa import run_study as runs",
        "from fpa import load_data, run_study",
        "from fpa import *",
        "from fpa import unknown",
        "import fpa",
        "import fpa as everything",
        "import fpa.study.run",
        "import fpa.study.run as run",
        "import json, fpa.study",
        "import fpa.data.sets",
        "from ..study import run",
        "from ..study.run import run_study",
        "from .. import study",
        "from .. import run_study",
        "def late():\n    from fpa.study import run",
        "class Late:\n    def method(self):\n        import fpa.study.run as run",
        "try:\n    from fpa import run_study\nexcept ImportError:\n    pass",
        "if TYPE_CHECKING:\n    from fpa.study import run",
        "if not TYPE_CHECKING:\n    pass\nelse:\n    from fpa.study import run",
        'import_module("fpa.study.run")',
        'importlib.import_module("fpa.study")',
        'import_module(".run", "fpa.study")',
        'import_module(name="fpa.study.run")',
        'import_module(f"fpa.study.{name}")',
        'import_module(f"fpa.{name}")',
        'import_module(f"{package}.study")',
        'import_module("fpa." + name)',
        "import_module(name)",
        "from importlib import import_module as get\nget(name)",
        "list(map(import_module, names))",
        '__import__("fpa.study")',
        "__import__(name)",
        'runpy.run_module("fpa.study.run")',
        'sys.modules["fpa.study"].run',
        'pkgutil.resolve_name("fpa.study.run:run_study")',
        'exec("from fpa.study import run")',
        "eval(text)",
    ],
)
def test_an_import_from_a_room_below_is_found_in_every_form(check, text):
    code, lines = check({"data/photos.py": f"{text}\n"})
    assert code == 1
    assert lines
    assert all(line.startswith("data.photos:") and " imports " in line for line in lines)
    # A room below may do all of this.
    assert check({"data/photos.py": "", "cli/photos.py": f"{text}\n"}) == (0, [])


def test_the_runner_may_not_import_what_shows_it(check):
    code, lines = check({"study/run.py": "def run_study():\n    from fpa.show import tables\n"})
    assert code == 1
    assert lines == ["study.run:2: imports show, which is below study"]


def test_words_about_the_package_are_no_imports(check):
    text = '"""See fpa.study."""\nraise ValueError(f"use fpa.run_study, not {name}: see fpa.study")\n'
    assert check({"data/words.py": text}) == (0, [])


def test_an_exception_is_for_one_module_and_one_room(check, house, monkeypatch):
    text = "from fpa.show import tables\n"
    monkeypatch.setattr(house, "EXCEPTIONS", {("study.run", "show"): "until it is mended"})
    assert check({"study/run.py": text}) == (0, [])
    assert check({"study/run.py": text, "study/other.py": text})[0] == 1
    assert check({"study/run.py": text, "study/other.py": "from fpa.cli import main\n"})[0] == 1


def test_an_exception_that_nothing_needs_is_wrong(check, house, monkeypatch):
    monkeypatch.setattr(house, "EXCEPTIONS", {("study.run", "show"): "", ("gone", "show"): ""})
    monkeypatch.setattr(house, "FORWARDED", {"data.sets.load_data": ""})
    code, lines = check({"study/run.py": ""})
    assert code == 1
    assert lines == [
        "gone:1: does not import show any more: remove it from EXCEPTIONS in tools/house.py",
        "study.run:1: does not import show any more: remove it from EXCEPTIONS in tools/house.py",
        "data.sets.load_data:1: passes on no untyped ** any more: remove it from FORWARDED in tools/house.py",
    ]


@pytest.mark.parametrize("name", ["extra.py", "extra/things.py"])
def test_a_module_in_no_room_is_wrong(check, name):
    code, lines = check({name: "from fpa import run_study\n"})
    assert code == 1
    assert lines == [f"{name[:-3].replace('/', '.')}:1: extra is no room of ROOMS in tools/house.py"]


def test_a_room_says_what_it_does(check):
    code, lines = check({"data/__init__.py": '"""Data."""\n'})
    assert code == 1
    assert lines == ["data.__init__:1: its docstring must say in two sentences what the room does"]


@pytest.mark.parametrize(
    "text",
    [
        "from fpa.data._sets import x",
        "from fpa.data.sets import _x",
        "from .sets import _x",
        "import fpa.data._sets as x",
    ],
)
def test_private_imports_are_wrong(check, text):
    code, lines = check({"data/photos.py": f"{text}\n"})
    assert code == 1
    assert "private" in lines[0]


def test_a_file_has_at_most_400_lines(check):
    assert check({"data/long.py": "x = 1\n" * 400}) == (0, [])
    assert check({"data/long.py": "x = 1\n" * 401}) == (1, ["data.long:401: 401 lines, at most 400"])


def test_a_function_has_at_most_60_lines_without_its_docstring(check):
    documented = 'def long():\n    """One.\n\n    Two.\n    """\n'
    assert check({"data/long.py": documented + "    x = 1\n" * 59}) == (0, [])
    code, lines = check({"data/long.py": documented + "    x = 1\n" * 60})
    assert (code, lines) == (1, ["data.long:1: long has 61 lines without its docstring, at most 60"])
    method = "class Long:\n    async def method(self):\n" + "        x = 1\n" * 60
    assert check({"data/long.py": method})[0] == 1


def test_a_call_has_at_most_five_positional_arguments(check):
    code, lines = check({"data/call.py": "call(1, 2, 3, 4, 5, 6)\n"})
    assert (code, lines) == (1, ["data.call:1: 6 positional arguments, at most 5"])


@pytest.mark.parametrize(
    "text",
    [
        "how = {}\ncall(**how)",
        "how: dict[str, Any] = {}\ncall(**how)",
        "how: typing.Mapping[str, typing.Any] = {}\ncall(**how)",
        "how: dict = {}\ncall(**how)",
        "how: 'dict[str, object]' = {}\ncall(**how)",
        "how: dict[str, int] | dict[str, Any] = {}\ncall(**how)",
        "call(**{'a': 1})",
        "call(**asdict(x))",
        "call(**self.how)",
        "call(**a | b)",
        "def outer(**how):\n    call(**how)",
        "def outer(**how: Any):\n    call(**how)",
        "def outer(how: dict[str, Any]):\n    return lambda: call(**how)",
        "how: dict[str, int] = {}\ndef outer():\n    how = {}\n    call(**how)",
        "@decorate(**how)\ndef outer(x=call(1)): ...",
        "def outer(x=call(**how)): ...",
    ],
)
def test_a_splat_that_mypy_cannot_check_is_wrong(check, text):
    code, lines = check({"data/call.py": f"{text}\n"})
    assert code == 1
    assert len(lines) == 1
    assert "mypy cannot check **" in lines[0]


def test_a_function_may_forward_what_nobody_can_check_if_it_is_listed(check, house, monkeypatch):
    text = "class User:\n    def call(self, **named):\n        self.function(**named)\n"
    assert check({"data/user.py": text})[0] == 1
    monkeypatch.setattr(house, "FORWARDED", {"data.user.User.call": "a user's function"})
    assert check({"data/user.py": text}) == (0, [])
    assert check({"data/user.py": f"{text}    def other(self, how):\n        call(**how)\n"})[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "a, b = 1, 2",
        "a, b = [1, 2]",
        "self.a, self.b = x, y",
        "(a, b), c = (1, 2), 3",
        "a, b = b, c",
        "c = a, b = 1, 2",
        "def inner():\n    taken, left = left, []",
    ],
)
def test_a_tuple_assignment_of_unrelated_things_is_wrong(check, text):
    code, lines = check({"data/pairs.py": f"{text}\n"})
    assert code == 1
    assert "one binding a line" in lines[0]


@pytest.mark.parametrize(
    "text",
    [
        "a, b = b, a",
        "a, b, c = c, a, b",
        "a[0], a[1] = a[1], a[0]",
        "a, b = pair",
        "pair = 1, 2",
        "a, b = *rest, 1",
    ],
)
def test_swaps_and_unpacking_are_fine(check, text):
    assert check({"data/pairs.py": f"{text}\n"}) == (0, [])


def test_the_density_of_a_module(house, tmp_path, capsys):
    text = (
        '"""Words."""\n\n# Why.\ndef pair(x):  # also why\n    """Words."""\n    a, b = 1, 2\n    call(**x)\n'
    )
    (tmp_path / "data.py").write_text(text)
    house.main(["--source", str(tmp_path), "--density"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.endswith(" data"))
    assert row.split() == ["3", "66.7", "1", "1", "3", "data"]


def test_the_total_of_lines_is_not_limited(check):
    assert check({f"data/large{number}.py": "x = 1\n" * 400 for number in range(50)}) == (0, [])
