"""Checks the rules of the house that no linter knows; `make lint` runs it.

- A room imports only from the rooms above it in `ROOMS`, also inside functions. `SHOW_THEMSELVES` are the
  exceptions: objects that print, plot or report themselves ask `show` when they are asked to.
- No module has more than `LINES` lines, and the package no more than `CODE` lines of code: lines that are
  neither blank, comment nor docstring.
- No call has more than `POSITIONAL` positional arguments.
- Every room says in its `__init__.py` what it does.

    python tools/house.py           # what is wrong, and the size
    python tools/house.py --sizes   # lines of code by module
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fpa"
ROOMS = (
    ("errors", "values", "plugins", "files", "seeds", "progress"),
    ("masking",),
    ("data",),
    ("models",),
    ("engine",),
    ("training",),
    ("explanation",),
    ("perturbation",),
    ("statistics",),
    ("scores",),
    ("evaluation",),
    ("auditing",),
    ("study",),
    ("show",),
    ("functional",),
    ("cli", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
SHOW_THEMSELVES = {"evaluation.result", "auditing.verdict", "study.run"}
LINES, POSITIONAL = 400, 5
CODE = 14000  # what there is now


def modules() -> dict[str, Path]:
    """All modules of the package by their name in it."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in paths}


def code_lines(text: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    ignored = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - strings)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name, below the package, of everything imported from it; type checking aside."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("fpa.")
            and id(node) not in typing_only
        ):
            yield node.lineno, node.module.removeprefix("fpa.")
        elif isinstance(node, ast.ImportFrom) and node.module == "fpa":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in LEVEL)


def problems(name: str, text: str) -> Iterator[str]:
    """What is wrong with a module."""
    tree, room = ast.parse(text), name.partition(".")[0]
    if text.count("\n") > LINES:
        yield f"{name}: {text.count(chr(10))} lines, at most {LINES}"
    if name.endswith("__init__") and len((ast.get_docstring(tree) or "").split()) < 10:
        yield f"{name}: its docstring must say in two sentences what the room does"
    for line, other in imported(tree):
        below = other.partition(".")[0]
        if room in LEVEL and LEVEL[below] > LEVEL[room] and not (below == "show" and name in SHOW_THEMSELVES):
            yield f"{name}:{line}: {room} imports {other}, which is below it"
        if other.rpartition(".")[2].startswith("_"):
            yield f"{name}:{line}: imports the private module {other}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL:
            yield f"{name}:{node.lineno}: {len(node.args)} positional arguments, at most {POSITIONAL}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fpa"):
            for alias in node.names:
                if alias.name.startswith("_") and not alias.name.startswith("__"):
                    yield f"{name}:{node.lineno}: imports the private name {alias.name}"


def main() -> int:
    """Print what is wrong; the exit code is 1 if anything is."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    sizes = {name: code_lines(text) for name, text in texts.items()}
    if "--sizes" in sys.argv:
        for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
            print(f"{size:5} {name}")
    wrong = [problem for name, text in texts.items() for problem in problems(name, text)]
    total = sum(sizes.values())
    if total > CODE:
        wrong.append(f"{total} lines of code, at most {CODE}")
    print(*wrong, f"{total} lines of code in {len(sizes)} modules", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
