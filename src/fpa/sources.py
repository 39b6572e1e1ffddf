"""Python source as it counts: whose a module is, what it says, what it imports, where functions stand in it.

Comments, docstrings and layout say nothing: a module counts as the text that its syntax tree is printed as.
"""

import ast
import dis
import hashlib
import importlib.util
import linecache
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal, NamedTuple

Owner = Literal["own", "installed", "ground"]
"""The user's own, another package's, or what everything here rests on: Python, torch, NumPy, fpa."""

GROUND = ("fpa", "torch", "torchvision", "numpy")
"""Packages that do not count: evaluation.json notes their versions, whatever is evaluated."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source(NamedTuple):
    """What a module says."""

    tree: ast.Module
    """Without docstrings; empty where there is a compiled file alone."""
    digest: str
    imports: tuple[str, ...]
    """Names that may be modules: `from a import b` gives a and a.b."""


def digest(content: str | bytes) -> str:
    """A short name for a text: the same for the same text alone."""
    whole = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(whole).hexdigest()[:16]


def owner_of(spec: ModuleSpec) -> Owner:
    """Whose a module is; a project installed with `pip install --editable` is the user's own.

    >>> owner_of(importlib.util.find_spec("json")), owner_of(importlib.util.find_spec("rich"))
    ('ground', 'installed')
    """
    top = spec.name.partition(".")[0]
    if top in GROUND or spec.origin is None or not spec.has_location:
        return "ground"
    place = Path(os.path.realpath(spec.origin))
    if {"site-packages", "dist-packages"} & set(place.parts):
        return "installed"
    # By name alone a user's own test.py or code.py would count as Python's.
    standard = top in sys.stdlib_module_names and place.is_relative_to(os.path.realpath(sys.base_prefix))
    return "ground" if standard else "own"


def spec_in(namespace: Mapping[str, Any]) -> ModuleSpec | None:
    """The module that a namespace is of; None for a script, a notebook or an interpreter."""
    return None if namespace.get("__name__") == "__main__" else namespace.get("__spec__")


def spec_of(kind: type) -> ModuleSpec | None:
    """The module of a class, likewise."""
    module = sys.modules.get(kind.__module__)
    if module is not None:
        return spec_in(vars(module))
    # it was loaded from a path, and is known to its functions alone
    methods = (function for value in vars(kind).values() for function in functions_of(value))
    return next((spec_in(method.__globals__) for method in methods), None)


def owner_of_class(kind: type) -> Owner | None:
    """Whose a class is; None for one from a script or a notebook."""
    spec = spec_of(kind)
    return None if spec is None else owner_of(spec)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The functions that an entry of a class is made of: it may be a property, or a class method."""
    inner = (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "func")))
    return (each for each in inner if isinstance(each, FunctionType))


def own_method(kind: type, name: str) -> FunctionType | None:
    """A method of a class, unless fpa, torch or Python defines it."""
    for each in kind.__mro__:
        method = vars(each).get(name)
        if method is not None:
            own = isinstance(method, FunctionType) and owner_of_class(each) != "ground"
            return method if own else None
    return None


def attributes_set(kind: type) -> dict[str, set[str]]:
    """The attributes that methods of a class set, by method; those of the classes it is made from aside."""
    found: dict[str, set[str]] = {}
    for name, value in vars(kind).items():
        for function in functions_of(value):
            steps = dis.get_instructions(function.__code__)
            changed = {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}
            found[name] = found.get(name, set()) | changed
    return found


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values that a function has taken from around it, by their names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


@cache
def version_of(package: str) -> str | None:
    """The version of the distribution that a package came with; None where it came with none."""
    try:
        return version(package)
    except PackageNotFoundError:  # sklearn is in scikit-learn, and google in many
        names = sorted(set(packages_distributions().get(package, [])))
        return ", ".join(map(version, names)) or None


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, without importing anything; None where there is none of this name."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent = name.rpartition(".")[0]
    if parent:
        above = find_module(parent)
        places = None if above is None else above.submodule_search_locations
        return None if places is None else PathFinder.find_spec(name, list(places))
    try:  # the current folder first, where `plugins.load_object` looks too
        return PathFinder.find_spec(name, [os.getcwd()]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


_READ: dict[str, tuple[ModuleSpec, Source | None]] = {}
"""What modules said when they were first looked at. An import makes a new spec, and so does a reload: while
it is the same, the code in memory is the one that was read, whatever has become of the file."""


def read_source(spec: ModuleSpec) -> Source | None:
    """What a module says; None where it cannot be read, or is no longer what was imported."""
    known = _READ.get(spec.name)
    if known is None or known[0] is not spec:
        known = _READ[spec.name] = (spec, None if _edited_since_import(spec) else _read(spec))
    return known[1]


def _read(spec: ModuleSpec) -> Source | None:
    path = Path(str(spec.origin))
    try:
        if path.is_file():
            content = path.read_bytes()
            if path.suffix not in (".py", ".pyw"):  # an extension, or bytecode without its source
                return Source(ast.Module([], []), digest(content), ())
            text = importlib.util.decode_source(content)
        else:  # in a zip archive
            text = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
    except (OSError, ImportError, AttributeError, SyntaxError, UnicodeDecodeError):
        return None
    tree = parsed(text)
    if tree is None:  # in the syntax of a loader of its own
        return Source(ast.Module([], []), digest(text), ())
    return Source(tree, digest(ast.unparse(tree)), tuple(imported_names(tree, spec.parent or "")))


def _edited_since_import(spec: ModuleSpec) -> bool:
    """Whether a module in memory is known to be older than its file.

    Its bytecode notes time and size of the file it was compiled from. Where nothing writes bytecode, what is
    there may be of any age and tells nothing.
    """
    loaded = getattr(sys.modules.get(spec.name), "__spec__", None) is spec
    if not loaded or sys.dont_write_bytecode or type(spec.loader) is not SourceFileLoader:
        return False
    try:
        with open(str(spec.cached), "rb") as file:
            flags, modified, size = struct.unpack("<4x3I", file.read(16))
        now = os.stat(str(spec.origin))
    except (OSError, struct.error):
        return False
    same = (modified, size) == (int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF)
    return flags == 0 and not same and os.access(str(spec.cached), os.W_OK)


@lru_cache(64)
def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a text, without docstrings; None where it has none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    del node.body[0]
    return tree


def imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    """What the code in a module of this package imports, wherever it does, as names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield _absolute(node.args[0].value, package)


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # goes further up than the package, and would fail when it is run
        return name.lstrip(".")


class Reached:
    """The modules that a piece of code reaches: the user's own by what they say, others by their version."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        """Digests by name."""
        self.packages: dict[str, str] = {}
        """Versions by name."""
        self.unread: set[str] = set()
        """The user's own that cannot be read."""

    def add(self, spec: ModuleSpec) -> None:
        """A module, and all that it imports."""
        waiting = [spec]
        while waiting:
            spec = waiting.pop()
            owner = owner_of(spec)
            top = spec.name.partition(".")[0]
            if owner == "installed" and (known := version_of(top)) is not None:
                self.packages[top] = known
            elif owner != "ground" and spec.name not in self.modules:
                source = read_source(spec)
                self.modules[spec.name] = "" if source is None else source.digest
                if source is None:
                    self.unread.add(spec.name)
                else:
                    waiting += self._found(source.imports)

    def add_names(self, names: Iterator[str]) -> None:
        """The modules among some names."""
        for spec in self._found(names):
            self.add(spec)

    def _found(self, names: Iterator[str] | tuple[str, ...]) -> list[ModuleSpec]:
        """The modules among the names, and the packages that they are in, which are imported with them."""
        found = dict[str, ModuleSpec]()
        for name in names:
            parts = name.split(".")
            if parts[0] in GROUND or parts[0] in self.packages:
                continue
            for end in range(1, len(parts) + 1):
                spec = find_module(".".join(parts[:end]))
                if spec is None:
                    break
                found[spec.name] = spec
                # a package without __init__.py is nobody's: what is in it may be
                if owner_of(spec) != "own" and spec.origin is not None:
                    break
        return list(found.values())


def typed_source(code: CodeType, namespace: Mapping[str, Any]) -> ast.Module | None:
    """The script, or the cell of a notebook, that a function was typed into; None where it is not known."""
    linecache.checkcache(code.co_filename)
    return parsed("".join(linecache.getlines(code.co_filename, dict(namespace))))


def definition(code: CodeType, tree: ast.Module | None) -> Definition | None:
    """Where a function stands in a source; None where it does not.

    Of several lambdas that begin in one line it is the smallest that all its instructions are in.
    """
    wanted = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef | ast.AsyncFunctionDef
    found: list[Definition] = []
    for node in ast.walk(tree or ast.Module([], [])):
        if isinstance(node, wanted) and _first_line(node) == code.co_firstlineno:
            named = isinstance(node, ast.Lambda) or node.name == code.co_name
            if named and _holds(node, code):
                found.append(node)
    return min(found, key=lambda node: len(unparsed(node)), default=None)


def _first_line(node: Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(each.lineno for each in (node, *decorators))


def _holds(node: Definition, code: CodeType) -> bool:
    """Whether all instructions of a function lie within a piece of source."""
    start = (_first_line(node), 0 if not isinstance(node, ast.Lambda) else node.col_offset)
    stop = (node.end_lineno or 0, node.end_col_offset or 0)
    for line, end_line, column, end_column in code.co_positions():
        if None in (line, end_line, column, end_column) or (column, end_column) == (0, 0):
            continue  # what a function does before its first expression
        if not (start <= (line, column) and (end_line, end_column) <= stop):
            return False
    return True


def unparsed(node: ast.AST) -> str:
    """A piece of source in the one layout that counts."""
    return ast.unparse(node)


def names_read(code: CodeType) -> Iterator[str]:
    """The global names that a function reads, and those that functions inside it read."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_read(constant)
