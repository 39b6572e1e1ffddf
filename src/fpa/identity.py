"""What determines the numbers of a piece of user code, as JSON: its code and its values.

    {"name": "mymethod:mine", "code": "0d9e...", "packages": {"captum": "0.9.0"}, "defaults": {"k": 2}, ...}

Code is the source of the user's own modules that it reaches through imports, without comments and docstrings;
of a script or a notebook it is the functions, classes and values that it reaches by their names. An installed
package counts by its version, and fpa, torch and NumPy do not count.

Values are those of closures, defaults, arguments of `functools.partial` and attributes of objects. Arrays and
networks count by a hash. Left out is what calls use up or leave behind: generators of random numbers, weak
references, `functools.lru_cache` and `functools.cached_property`, fields of a dataclass with `compare=False`;
of a network what `forward` sets, and tensors that any method but `__init__` sets.

A method `identity()` of an object's class, which returns JSON, takes the place of all this.
"""

import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AnySet
from typing import Any

from fpa import sources
from fpa.attributes import is_array, is_network, own_attributes, replaced_methods, size_of, state_of
from fpa.errors import InputError, first_line
from fpa.sources import Owner, Reached, digest
from fpa.values import as_json, name_of

LONGEST = 200
"""Characters that a value may take in JSON; a longer one counts by its hash."""

UNSEEN = "unseen"
"""Where an identity says which code it could not see, and why."""

MADE_BY = "made_by"
"""What a network carries that a function of the user's has made: the identity of the function."""

_USED_UP = (
    "random:", "numpy.random.", "weakref:", "builtins:generator", "_thread:", "torch._C:Generator",
    "torch:device",
)  # fmt: skip
"""How the names of types begin whose state does not count: it is used up, or says where and not what."""

_CLASS_FACTS = (
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "_abc_impl",
    "__static_attributes__", "__dataclass_params__", "__annotations__", "__match_args__",
)  # fmt: skip
"""What stands in a class without its doing."""


def identity(value: Any) -> dict[str, Any] | None:
    """The identity of a function, a class or an object; None where it is all fpa's, torch's or Python's.

    >>> import textwrap
    >>> identity(functools.partial(textwrap.indent, prefix="  ")) is None
    True
    """
    walk = _Walk(value)
    return walk.result(lambda: walk.json(value))


def network_identity(network: Any) -> dict[str, Any] | None:
    """The identity of a network without its weights; None where no code of the user's own is in it.

    Counted are the classes of its parts, what is set on those that are the user's own, functions that take
    the place of a method, hooks, and the function of the user's that made it.
    """
    walk = _Walk(network)
    found = walk.result(lambda: walk.network(network, weights=False))
    return found if walk.is_own else None


class _Walk:
    """Goes through all that a value is made of, once, and gathers the code that it meets."""

    def __init__(self, root: Any) -> None:
        self.reached = Reached()
        self.typed: dict[str, str] = {}
        """What was typed into scripts and notebooks, by its name."""
        self.unseen: dict[str, str] = {}
        """Why code could not be seen, by its name."""
        self.overridden = False
        """Whether an `identity()` of the user's was asked."""
        self.made = False
        """Whether a function of the user's made a network."""
        self._root = root
        self._parts: dict[int, str] = {}
        """Where the parts of networks are in them: two layers without weights differ in nothing else."""
        self._done: dict[int, tuple[Any, Any]] = {}
        """Values, which must not be freed meanwhile, with their JSON."""
        self._classes: set[type] = set()

    @property
    def is_own(self) -> bool:
        """Whether some of the code is the user's own."""
        return bool(self.reached.modules or self.typed or self.unseen or self.overridden or self.made)

    def result(self, go: Callable[[], Any]) -> dict[str, Any] | None:
        """What is found, with the code; None where that is neither the user's nor an installed package's."""
        try:
            found = go()
        except RecursionError:
            found = {"name": name_of(self._root)}
            self.unseen[found["name"]] = "what it holds is nested too deeply"
        unread = "its file cannot be read, or was edited after it was imported"
        self.unseen |= dict.fromkeys(self.reached.unread, unread)
        if not (self.is_own or self.reached.packages):
            return None
        result = {"name": found["name"]}
        if self.reached.modules or self.typed or self.unseen:
            result["code"] = None if self.unseen else digest(_text([self.reached.modules, self.typed]))
        if self.reached.packages:
            result["packages"] = dict(sorted(self.reached.packages.items()))
        if self.unseen:
            result[UNSEEN] = dict(sorted(self.unseen.items()))
        for group, values in found.items():
            if group not in result:
                listed = group in _GROUPS
                result[group] = {key: _short(each) for key, each in values.items()} if listed else values
        return result

    def json(self, value: Any) -> Any:
        """A value as JSON; all code in it is noted on the way."""
        if value is None or isinstance(value, str | bool | int | float):
            return as_json(value)
        if id(value) not in self._done:
            # what is met again inside itself is told by its kind
            self._done[id(value)] = (value, {"name": name_of(type(value)), "cycle": True})
            self._done[id(value)] = (value, self._json(value))
        return self._done[id(value)][1]

    def _json(self, value: Any) -> Any:
        plain = type(value).__module__ in ("builtins", "collections", "types")
        if isinstance(value, bytes | bytearray | memoryview):
            return {"sha256": digest(bytes(value))}
        if isinstance(value, range | complex | slice):
            return str(value)
        if plain and isinstance(value, Mapping):
            return {self._key(key): self.json(part) for key, part in value.items()}
        if plain and isinstance(value, Sequence | AnySet):
            parts = [self.json(part) for part in value]
            return sorted(parts, key=_text) if isinstance(value, AnySet) else parts
        if is_array(value):
            return self._array(value)
        return self.network(value, weights=True) if is_network(value) else self._code(value)

    def _array(self, value: Any) -> Any:
        if str(value.dtype) == "object":
            return self.json(value.tolist())
        try:
            return as_json(value)
        except Exception:  # sparse, nested and quantised tensors, and those without numbers
            return {"name": name_of(type(value)), "dtype": str(value.dtype)}

    def _key(self, key: Any) -> str:
        simple = key is None or isinstance(key, str | bool | int | float)
        return str(key) if simple else _text(self.json(key))

    def _code(self, value: Any) -> dict[str, Any]:
        """A function, a class, a module or an object."""
        match value:
            case functools.partial():
                arguments = {str(place): each for place, each in enumerate(value.args)} | value.keywords
                return {**self.json(value.func), **self._groups({"arguments": arguments})}
            case types.MethodType():
                owner = (
                    self._code(value.__self__)
                    if isinstance(value.__self__, type)
                    else self.json(value.__self__)
                )
                function = {} if "identity" in owner else self.json(value.__func__)
                return {**function, **owner, "name": name_of(value)}
            case types.FunctionType():
                # torch.compile keeps the function it was given, and has closures full of its own state
                return self._function(vars(value).get("_torchdynamo_orig_callable", value))
            case types.BuiltinFunctionType() if isinstance(value.__self__, types.ModuleType | None):
                self._module(getattr(sys.modules.get(value.__module__ or ""), "__spec__", None))
                return {"name": name_of(value)}
            case functools._lru_cache_wrapper():
                return dict(self.json(value.__wrapped__))
            case type():
                self._class(value)
                return {"name": name_of(value)}
            case types.ModuleType():
                self._module(getattr(value, "__spec__", None))
                return {"name": value.__name__}
        return self._object(value)

    def _module(self, spec: Any) -> Owner | None:
        """Note a module; says whose it is, or None where the code is in no file of its own."""
        if spec is None:
            return None
        self.reached.add(spec)
        return sources.owner_of(spec)

    def _function(self, function: types.FunctionType) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name_of(function)}
        code = function.__code__
        spec = None if code.co_filename.startswith("<") else sources.spec_in(function.__globals__)
        owner = self._module(spec)
        wrapped = vars(function).get("__wrapped__")
        if owner == "ground":
            return found if wrapped is None else dict(self.json(wrapped))
        if owner is None:
            found |= self._typed(function, is_wrapper=wrapped is not None)
        elif (
            spec is not None and "<" in code.co_qualname
        ):  # `module:<lambda>` is the name of all lambdas of a module
            source = sources.read_source(spec)
            node = sources.definition(code, source and source.tree)
            found["definition"] = "" if node is None else digest(sources.unparsed(node))
        arguments = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        by_name = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
        groups = {
            "defaults": by_name | (function.__kwdefaults__ or {}),
            "closure": dict(sources.closure_of(function)),
            "attributes": {key: each for key, each in vars(function).items() if key != "__wrapped__"},
            "wrapped": {} if wrapped is None else {"function": wrapped},
        }
        return found | self._groups(groups)

    def _typed(self, function: types.FunctionType, *, is_wrapper: bool) -> dict[str, Any]:
        """A function of a script, a notebook or an interpreter: its source, and what it reaches by name."""
        code = function.__code__
        namespace = function.__globals__
        node = sources.definition(code, sources.typed_source(code, namespace))
        name = name_of(function)
        if node is None:
            if not is_wrapper:  # decorators that write code, as type checkers do, keep what they wrap
                self.unseen[name] = "its source is not to be found"
            return {}
        text = sources.unparsed(node)
        self.typed[f"{name} {digest(text)}"] = text
        self.reached.add_names(sources.imported_names(node, str(namespace.get("__package__") or "")))
        names = set(sources.names_read(code)) & namespace.keys()
        values = self._groups({"globals": {each: namespace[each] for each in sorted(names)}})
        # Functions and modules without values of their own are known by the code.
        with_values = {key: each for key, each in values.get("globals", {}).items() if not _is_name(each)}
        return {"definition": digest(text)} | ({"globals": with_values} if with_values else {})

    def _class(self, kind: type) -> None:
        """Note the code of a class and of those it is made from."""
        for each in kind.__mro__:
            if each not in self._classes:
                self._classes.add(each)
                if self._module(sources.spec_of(each)) is None:
                    self._typed_class(each)

    def _typed_class(self, kind: type) -> None:
        """A class of a script or a notebook: its methods, and the values that stand in it."""
        values: dict[str, Any] = {}
        for name, value in vars(kind).items():
            functions = list(sources.functions_of(value))
            if not functions and name not in _CLASS_FACTS:
                values[name] = self.json(value)
            for place, function in enumerate(functions):
                # `dataclass` and namedtuples write methods that follow from their fields
                if not name.startswith("__") or function.__code__.co_filename != "<string>":
                    values[f"{name} {place}"] = self.json(function)
        self.typed[name_of(kind)] = _text(values)

    def _object(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        found: dict[str, Any] = {"name": name_of(kind)}
        if any(name_of(each).startswith(_USED_UP) for each in kind.__mro__[:-1]):
            return found
        if self._says_itself(value):
            return found | {"identity": _own_identity(value, found["name"])}
        self._class(kind)
        if sources.own_method(kind, "described") is not None:
            own = value.described()
            attributes = own if isinstance(own, Mapping) else {"described": own}
            return found | self._groups({"attributes": attributes})
        return found | self._groups({"attributes": state_of(value)})

    def _says_itself(self, value: Any) -> bool:
        """Whether an object has an `identity()` for us; in other packages the word has other meanings."""
        kind = type(value)
        ours = value is self._root or sources.owner_of_class(kind) != "installed"
        if ours and sources.own_method(kind, "identity") is not None:
            self.overridden = True
            return True
        return False

    def network(self, network: Any, *, weights: bool) -> dict[str, Any]:
        """A network: the code of its classes, what is set on the user's own, and on request its weights."""
        found: dict[str, Any] = {"name": name_of(type(network))}
        if id(network) in self._parts:
            return found | {"part": self._parts[id(network)]}
        if self._says_itself(network):
            return found | {"identity": _own_identity(network, found["name"])}
        if weights:
            found["weights"] = self._weights(network)
        internal = {*vars(sys.modules["torch"].nn.Module()), "card", MADE_BY}
        parts = dict(network.named_modules())
        number = len({place.partition(" ")[0] for place in self._parts.values()})
        self._parts |= {id(part): f"{number} {name}" for name, part in parts.items()}
        values: dict[str, Any] = {}
        for place, part in parts.items():
            self._class(type(part))
            if vars(part).get(MADE_BY) is not None:
                found[MADE_BY] = vars(part)[MADE_BY]
                self.made = True
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values()):
                self.json(hook)
            own = sources.owner_of_class(type(part)) not in ("ground", "installed")
            counted = own_attributes(part) if own else replaced_methods(part)
            prefix = f"{place}." if place else ""
            values |= {prefix + name: each for name, each in counted.items() if name not in internal}
        return found | self._groups({"attributes": values})

    def _weights(self, network: Any) -> str:
        """A hash of all tensors, and of what the parts say of themselves: strides, rates, their order."""
        hashed = hashlib.sha256(repr(network).encode("utf-8", "replace"))
        for name, value in network.state_dict().items():
            hashed.update(f"{name} {_text(self.json(value))}".encode())
        return hashed.hexdigest()[:16]

    def _groups(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Values by group and name, without empty groups. Larger networks come first: others are parts."""
        found: dict[str, Any] = {}
        for group, values in groups.items():
            ordered = sorted(values, key=lambda key: size_of(values[key]), reverse=True)
            in_group = {str(key): self.json(values[key]) for key in ordered}
            if in_group:
                found[group] = in_group
        return found


_GROUPS = ("arguments", "attributes", "closure", "defaults", "globals", "wrapped")


def _own_identity(value: Any, name: str) -> Any:
    """What an object's own `identity()` says."""
    try:
        return json.loads(json.dumps(value.identity(), allow_nan=False))
    except Exception as error:  # whatever the user's own code raises
        raise InputError(f"identity() of {name} must return JSON: {first_line(error)}") from error


def _is_name(values: Any) -> bool:
    return isinstance(values, dict) and values.keys() <= {"name", "definition"}


def _text(values: Any) -> str:
    return json.dumps(values, sort_keys=True)


def _short(values: Any) -> Any:
    text = _text(values)
    return values if len(text) <= LONGEST else {"sha256": digest(text)}
