"""Checks the rules of the house that no linter knows; `make lint` runs it.

Rooms
- Every module belongs to a room of `ROOMS`, and a room imports only from its own and those above it. An
  import counts in every form: at the top, inside a function, for type checking only, relative, as in
  `import fpa.study.run`, of a name that `fpa/__init__.py` exports (`from fpa import run_study` imports
  `running`), and by a string that names a module (`import_module("fpa.study.run")`). The package as a whole
  (`import fpa`) reaches everything, and a computed name could be any: only the rooms at the bottom import so.
- Every room says in its `__init__.py` what it does; no module or name with a leading underscore is imported.

Density
- A module has at most `LINES` lines, a function at most `FUNCTION`, without its docstring.
- A call has at most `POSITIONAL` positional arguments, and no `**` that mypy cannot check: what follows is a
  name annotated with the type of its values (`dict[str, float]`, a TypedDict, `P.kwargs`); not
  `dict[str, Any]`, not an expression, not a name without annotation. `{**a, **b}` is no call.
- One binding a line: no `a, b = x, y` with a tuple written out on both sides. `a, b = b, a` is a swap.

`EXCEPTIONS` and `FORWARDED` are the only exceptions, each with its reason; one that nothing needs is wrong.

    python tools/house.py               # what is wrong
    python tools/house.py --density     # how dense every module is
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from house_source import (
    COMPUTED,
    PACKAGE,
    WHOLE,
    Module,
    code_and_comment_lines,
    exports_of,
    functions_of,
    imported,
    private_names,
    qualified_names,
    read_package,
    splats_of,
    tuple_assignments,
)

ROOT = Path(__file__).parents[1]
ROOMS = (
    (
        *("errors", "calling", "values", "typed", "notes", "showing", "plugins", "files", "seeds"),
        *("progress", "sources", "attributes", "identity", "given"),
    ),
    ("masking",),
    ("data",),
    ("worlds",),
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
    ("running",),
    ("functional",),
    ("cli", "__main__", WHOLE),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

EXCEPTIONS = {
    ("showing", "show"): "the one way to it, for objects that print, plot and report themselves",
    ("showing", "statistics"): "the types of what shows itself",
    ("showing", "engine"): "the types of what shows itself",
    ("showing", "evaluation"): "the types of what shows itself",
    ("showing", "auditing"): "the types of what shows itself",
    ("auditing.verdict", "show"): "the type of the lines of the evidence",
    ("data.sets", "worlds"): "a world is a data set too, imported when it is asked for by its name",
    ("plugins", COMPUTED): "imports the module of a user, named module:NAME",
    ("models.architectures", COMPUTED): "imports the packages of models, if they are installed",
}
"""Module, what it may import nevertheless, and why."""

FORWARDED = {
    "values.checked.calling": "calls a function with its own arguments, the numbers of NumPy made plain",
    "cli.parsing._filled": "calls the function of a command with the options that its signature declares",
    "cli.parsing._group": "fills a dataclass with the options that its fields declare",
    "evaluation.keywords._made": "fills a dataclass with keywords that were checked against its fields",
    "running._tuning": "fills a dataclass with keywords that were bound to the signature of finetune",
    "study.recipe._made": "fills a dataclass with the values of a YAML file, each typed by its field",
    "masking.names._with_parameters": "calls a masking, a user's too, with parameters its signature has",
    "explanation.captum.Captum.raw_map.run": "calls a method of Captum's with what its signature has",
    "explanation.hookable._Uses.forward": "calls a module of the user's model as it was called",
    "explanation.hookable._RoutedRelus.__torch_function__": "calls a function of torch as it was called",
    "explanation.maps.Quantus.attributions": "calls a user's function with the arguments that came with it",
    "explanation.raw_maps.RawMap.configured": "fills the fields that a family, a user's too, leaves open",
}
"""Functions that may pass on keyword arguments to somebody else's, whose signature nobody knows, and why."""

LINES = 400
FUNCTION = 60
POSITIONAL = 5

KINDS = {
    "rooms": "modules in no room, or rooms that do not say what they do",
    "imports": "imports from a room below",
    "exceptions": "exceptions that nothing needs",
    "private": "imports of private modules and names",
    "files": f"files of more than {LINES} lines",
    "functions": f"functions of more than {FUNCTION} lines",
    "positional": f"calls with more than {POSITIONAL} positional arguments",
    "splats": "untyped ** in calls",
    "tuples": "tuple assignments of unrelated things",
}

Counts = dict[str, dict[str, int]]
"""Numbers of problems by kind and module."""


@dataclass(frozen=True)
class Problem:
    """A rule that a line of a module breaks."""

    kind: str
    module: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


def level_of(room: str) -> int:
    """The place of a room from above; what is not in the list, or could be anything, is at the bottom."""
    return LEVEL.get(room, LEVEL[WHOLE])


def home_of(name: str, exports: dict[str, str]) -> str:
    """The module behind what is imported from the package: itself, the home of an export, or everything."""
    first = name.partition(".")[0]
    if first in LEVEL or name == COMPUTED:
        return name
    if name == "__version__":
        return ROOMS[0][0]  # a constant, which reaches nothing: as good as the ground
    return exports.get(first, WHOLE)


def room_problems(module: Module) -> Iterator[Problem]:
    """A module in no room, or a room that does not say what it does."""
    if module.room not in LEVEL:
        yield Problem("rooms", module.name, 1, f"{module.room} is no room of ROOMS in tools/house.py")
    if module.name.endswith("__init__") and len((ast.get_docstring(module.tree) or "").split()) < 10:
        text = "its docstring must say in two sentences what the room does"
        yield Problem("rooms", module.name, 1, text)


def import_problems(module: Module, exports: dict[str, str], used: set[tuple[str, str]]) -> Iterator[Problem]:
    """Imports from below and of private things; the exceptions that are needed are added to `used`."""
    for line, name in imported(module):
        home = home_of(name, exports)
        room = home.partition(".")[0]
        last = home.rpartition(".")[2]
        if last.startswith("_") and not last.endswith("__"):
            yield Problem("private", module.name, line, f"imports the private module {home}")
        if level_of(room) <= level_of(module.room):
            continue
        if (module.name, room) in EXCEPTIONS:
            used.add((module.name, room))
            continue
        if room == COMPUTED:
            text = "imports by a computed name, which could be any"
        elif room == WHOLE:
            text = f"imports the whole package, which reaches rooms below {module.room}"
        else:
            text = f"imports {home}, which is below {module.room}"
        yield Problem("imports", module.name, line, text)
    for line, name in private_names(module):
        yield Problem("private", module.name, line, f"imports the private name {name}")


def density_problems(module: Module, used: set[str]) -> Iterator[Problem]:
    """What is too long, or packed; the functions of `FORWARDED` that need it are added to `used`."""
    lines = len(module.text.splitlines())
    if lines > LINES:
        yield Problem("files", module.name, lines, f"{lines} lines, at most {LINES}")
    for function, length in functions_of(module.tree):
        if length > FUNCTION:
            text = f"{function.name} has {length} lines without its docstring, at most {FUNCTION}"
            yield Problem("functions", module.name, function.lineno, text)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL:
            text = f"{len(node.args)} positional arguments, at most {POSITIONAL}"
            yield Problem("positional", module.name, node.lineno, text)
    for splat in splats_of(module.tree, {}, qualified_names(module.tree)):
        name = f"{module.name}.{splat.function}"
        if name in FORWARDED:
            used.add(name)
        else:
            text = f"mypy cannot check {beginning(splat.text)} in a call"
            yield Problem("splats", module.name, splat.line, text)
    for assignment in tuple_assignments(module.tree):
        text = f"one binding a line: {beginning(ast.unparse(assignment))}"
        yield Problem("tuples", module.name, assignment.lineno, text)


def beginning(text: str) -> str:
    """The first 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def problems_of(modules: dict[str, Module]) -> list[Problem]:
    """All that is wrong in a package."""
    exports = exports_of(modules[WHOLE].tree) if WHOLE in modules else {}
    excepted: set[tuple[str, str]] = set()
    forwarding: set[str] = set()
    found: list[Problem] = []
    for module in modules.values():
        found += room_problems(module)
        found += import_problems(module, exports, excepted)
        found += density_problems(module, forwarding)
    for name, target in sorted(set(EXCEPTIONS) - excepted):
        text = f"does not import {target} any more: remove it from EXCEPTIONS in tools/house.py"
        found.append(Problem("exceptions", name, 1, text))
    for name in sorted(set(FORWARDED) - forwarding):
        text = "passes on no untyped ** any more: remove it from FORWARDED in tools/house.py"
        found.append(Problem("exceptions", name, 1, text))
    return found


def counts_of(problems: list[Problem]) -> Counts:
    """How many problems there are."""
    counted = Counter((problem.kind, problem.module) for problem in problems)
    counts: Counts = {}
    for (kind, module), number in sorted(counted.items()):
        counts.setdefault(kind, {})[module] = number
    return counts


def density(modules: dict[str, Module], counts: Counts) -> Iterator[str]:
    """A line for each module, the largest first, and one for all."""
    yield "code  comments/100  tuples  splats  longest function  module"
    row = "{:4}  {:12.1f}  {:6}  {:6}  {:16}  {}".format
    tuples = counts.get("tuples", {})
    splats = counts.get("splats", {})
    sizes = {name: code_and_comment_lines(module.text) for name, module in modules.items()}
    longest = {
        name: max((length for _, length in functions_of(module.tree)), default=0)
        for name, module in modules.items()
    }
    for name, (code, comments) in sorted(sizes.items(), key=lambda item: -item[1][0]):
        share = 100 * comments / max(code, 1)
        yield row(code, share, tuples.get(name, 0), splats.get(name, 0), longest[name], name)
    code = sum(code for code, _ in sizes.values())
    comments = sum(comments for _, comments in sizes.values())
    share = 100 * comments / max(code, 1)
    yield row(code, share, sum(tuples.values()), sum(splats.values()), max(longest.values()), "all")


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong; the exit code is 1 if anything is."""
    parser = argparse.ArgumentParser(description="Checks the rules of the house.")
    parser.add_argument("--source", type=Path, default=ROOT / "src" / PACKAGE, help="folder of the package")
    parser.add_argument("--density", action="store_true", help="print how dense every module is")
    options = parser.parse_args(arguments)

    modules = read_package(options.source)
    if not modules:
        parser.error(f"there are no modules in {options.source}")
    problems = problems_of(modules)
    counts = counts_of(problems)
    if options.density:
        print(*density(modules, counts), sep="\n")
    for problem in problems:
        print(problem)
    for kind, meaning in KINDS.items():
        number = sum(counts.get(kind, {}).values())
        print(f"{number:4} {meaning}")
    print(f"{len(problems)} problems in {len(modules)} modules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
