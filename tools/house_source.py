"""What `tools/house.py` reads off the source of a package: facts, which it holds against its rules."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "fpa"

WHOLE = "__init__"
"""What `import fpa` imports: the package's own `__init__.py`, and through it everything."""

COMPUTED = "a computed name"
"""What `import_module(name)` imports."""

IMPORTERS = {"import_module", "__import__", "run_module", "exec", "eval"}
"""Functions that import, or run text that may import."""

UNTYPED = {"Any", "object", "dict", "Mapping", "MutableMapping"}
"""Annotations that say nothing about the values of a mapping."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Annotations = dict[str, ast.expr | None]


@dataclass(frozen=True)
class Module:
    """A file of the package: `name` is its dotted name below the package, `__init__` included."""

    name: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The first part of the name: `study` of `study.run`."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Splat:
    """A `**` in a call that mypy cannot check, and the function that it is in: `Class.method`."""

    line: int
    text: str
    function: str


def read_package(source: Path) -> dict[str, Module]:
    """All modules below the folder of a package, by name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, text, ast.parse(text))
    return modules


def below(dotted: str) -> str | None:
    """The part of a module's name below the package, `__init__` for the package; None for other packages.

    >>> below("fpa.study.run"), below("fpa"), below("fpastudy")
    ('study.run', '__init__', None)
    """
    package, _, rest = dotted.partition(".")
    if package != PACKAGE:
        return None
    return rest or WHOLE


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The full name of the module in `from module import ...`, also where it is relative."""
    if not node.level:
        return node.module or ""
    parents = [PACKAGE, *module.split(".")]
    package = parents[: len(parents) - node.level]
    if node.module:
        package.append(node.module)
    return ".".join(package)


def exports_of(package: ast.Module) -> dict[str, str]:
    """Where the names come from that `fpa/__init__.py` exports: its imports for the type checker say it."""
    homes: dict[str, str] = {}
    for node in ast.walk(package):
        if isinstance(node, ast.ImportFrom):
            home = below(absolute(node, WHOLE))
            if home is not None:
                homes |= {alias.asname or alias.name: home for alias in node.names}
    return homes


def imported(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name, below the package, of all that a module imports from it; an export by its own name."""
    docstrings = {id(node) for node in docstrings_of(module.tree)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                target = below(alias.name)
                if target is not None:
                    yield node.lineno, target
                    # Without `as`, the statement binds the package, and with it everything.
                    if alias.asname is None:
                        yield node.lineno, WHOLE
        elif isinstance(node, ast.ImportFrom):
            target = below(absolute(node, module.name))
            if target == WHOLE:
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif target is not None:
                yield node.lineno, target
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings:
            target = named(node)
            if target is not None:
                yield node.lineno, target
    yield from computed(module.tree)


def private_names(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name of what a module imports from the package though it begins with an underscore."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and below(absolute(node, module.name)) is not None:
            for alias in node.names:
                if alias.name.startswith("_") and not alias.name.startswith("__"):
                    yield node.lineno, alias.name


def text_of(node: ast.AST | None) -> str | None:
    """A string, or the beginning of an f-string up to the first value put into it."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def named(node: ast.Constant | ast.JoinedStr) -> str | None:
    """The module below the package that a string names: `"fpa.study.run"` or `f"fpa.study.{name}"`."""
    text = text_of(node)
    if text is None or not re.fullmatch(rf"{PACKAGE}(\.\w+)+(\.|:\w*)?", text):
        return None
    return text.partition(":")[0].removeprefix(f"{PACKAGE}.").rstrip(".")


def computed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of functions that import by a name which only running the code tells."""
    known = set(IMPORTERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known |= {alias.asname for alias in node.names if alias.name in IMPORTERS and alias.asname}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    of_known_modules = {id(call.func) for call in calls if names_module(call)}
    for node in ast.walk(tree):
        if id(node) in of_known_modules:
            continue
        if isinstance(node, ast.Name) and node.id in known:
            yield node.lineno, COMPUTED
        # `model.eval()` imports nothing: as attributes, only the functions of importlib and runpy count.
        if isinstance(node, ast.Attribute) and node.attr in IMPORTERS - {"exec", "eval"}:
            yield node.lineno, COMPUTED


def names_module(call: ast.Call) -> bool:
    """Does the first argument of a call say from which package, and if from ours, from which room?"""
    first = call.args[0] if call.args else None
    text = text_of(first)
    if text is None:
        return False
    if isinstance(first, ast.JoinedStr):
        # Only the parts that a dot ends are known: the rest may go on in what is put in.
        text = text.rpartition(".")[0]
        if text == PACKAGE:
            return False
    return re.fullmatch(r"\w+(\.\w+)*", text) is not None


def docstrings_of(tree: ast.AST) -> Iterator[ast.expr]:
    """Strings that stand alone: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and text_of(node.value) is not None:
            yield node.value


def functions_of(tree: ast.AST) -> Iterator[tuple[Function, int]]:
    """All functions, nested ones and methods too, with their lines: decorators and docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            yield node, lines


def tuple_assignments(tree: ast.AST) -> Iterator[ast.Assign]:
    """Assignments with a tuple or list written out on both sides; swaps and `*` on the right aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List):
            values = sorted(map(ast.unparse, node.value.elts))
            unpacked = any(isinstance(value, ast.Starred) for value in node.value.elts)
            targets = [each.elts for each in node.targets if isinstance(each, ast.Tuple | ast.List)]
            swap = all(sorted(map(ast.unparse, target)) == values for target in targets)
            if targets and not unpacked and not swap:
                yield node


def is_typed(annotation: ast.expr | None) -> bool:
    """Does an annotation tell mypy the type of the values?

    >>> texts = "dict[str, int]", "dict[str, NDArray[Any]]", "P.kwargs", "dict[str, Any]", "dict", "Any"
    >>> [is_typed(ast.parse(text, mode="eval").body) for text in texts]
    [True, True, True, False, False, False]
    """
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return is_typed(annotation.left) and is_typed(annotation.right)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith(("dict", "Mapping")):
        key_and_value = annotation.slice
        return not isinstance(key_and_value, ast.Tuple) or is_typed(key_and_value.elts[-1])
    return ast.unparse(annotation).rpartition(".")[2] not in UNTYPED


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the functions in it; the functions themselves are among them."""
    waiting: list[ast.AST] = [scope.body] if isinstance(scope, ast.Lambda) else list(scope.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function):
            waiting += [*node.decorator_list, node.args]
        elif isinstance(node, ast.Lambda):
            waiting.append(node.args)
        else:
            waiting += ast.iter_child_nodes(node)


def annotations_of(scope: Scope) -> Annotations:
    """The names that a function, or the module, binds itself, with their annotations or None."""
    found: Annotations = {}
    if not isinstance(scope, ast.Module):
        given = scope.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        found |= {each.arg: each.annotation for each in parameters if each is not None}
    for node in own_nodes(scope):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.annotation
    for node in own_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, None)
    return found


def qualified_names(node: ast.AST, name: str = "") -> dict[int, str]:
    """The names of functions, as `Class.method`, by the id of the node; a lambda has that of its place."""
    found: dict[int, str] = {}
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, Function | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        if isinstance(child, Function | ast.Lambda):
            found[id(child)] = inner
        found |= qualified_names(child, inner)
    return found


def splats_of(scope: Scope, around: Annotations, names: dict[int, str]) -> Iterator[Splat]:
    """The untyped `**` in a scope and the functions in it, from the annotations around it."""
    known = around | annotations_of(scope)
    for node in own_nodes(scope):
        if isinstance(node, Function | ast.Lambda):
            yield from splats_of(node, known, names)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                name = keyword.value.id if isinstance(keyword.value, ast.Name) else ""
                if keyword.arg is None and not is_typed(known.get(name)):
                    text = f"**{ast.unparse(keyword.value)}"
                    yield Splat(keyword.value.lineno, text, names.get(id(scope), ""))


def code_and_comment_lines(text: str) -> tuple[int, int]:
    """Lines with code, without blank lines, comments and docstrings; and lines with a comment of any kind."""
    strings: set[int] = set()
    for node in docstrings_of(ast.parse(text)):
        strings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    blank = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in blank:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - strings), len(comments)
