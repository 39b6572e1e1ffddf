"""`tools/passage.py` counts what is called, not what is imported."""

import importlib
import sys
from pathlib import Path


def test_what_is_called_counts_once_and_what_runs_at_import_does_not(tmp_path, monkeypatch):
    package = tmp_path / "walked"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(
        "def main():\n"
        "    from walked.second import Thing\n"
        "    def inner():\n"
        "        return [each for each in map(lambda x: x, [1])]\n"
        "    return inner(), inner(), Thing().method()\n"
        "def other():\n"
        "    pass\n"
    )
    (package / "second.py").write_text(
        "from walked.third import registered\n"
        "@registered\n"
        "class Thing:\n"
        "    def method(self):\n"
        "        pass\n"
    )
    (package / "third.py").write_text("def registered(kind):\n    return kind\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "tools"))
    passage = importlib.import_module("passage").Passage(package)
    main = importlib.import_module("walked.first").main
    before = sys.getprofile()
    sys.setprofile(passage)
    try:
        main()
    finally:
        sys.setprofile(before)
    assert passage.names() == ["first:main", "first:main.<locals>.inner", "second:Thing.method"]
