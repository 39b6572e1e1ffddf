"""From a typed function to a command: its signature and docstring are the options and the help.

- A parameter before the `*` is a positional argument, and also an option of its name; a list takes several
  words. A `recipe` is named by a positional argument, and all its fields are options.
- A parameter after the `*` is an option, or a flag if it is a bool. A dataclass is a group of options: its
  fields.
- `command` is no option: it receives what was typed.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, get_origin

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, Namespace

import fpa
from fpa.errors import InputError, shortened
from fpa.values import check_type

Command = Callable[..., int]


def call(function: Command, argv: Sequence[str], command: str) -> int:
    """Call the function of a command with the options in `argv`; `command` is all that was typed."""
    parser = make_parser(function)
    # those that take a list are there a second time, with a + at the end
    options = [name for action in parser._actions for name in action.option_strings if name[:2] == "--"]
    words = _with_brackets(argv, options)
    if "recipe" in _parameters(function):
        _take_defaults_from_recipe(parser, words)
    try:
        chosen = parser.instantiate(parser.parse_args(words))
    except (ArgumentError, UnicodeError) as error:
        raise InputError(shortened(_in_words(" ".join(str(error).split()), options), 1000)) from error
    chosen["command"] = command
    return int(_filled(function, chosen))


def make_parser(function: Command) -> ArgumentParser:
    """The parser of a command."""
    parser = ArgumentParser(
        prog=f"fpa {function.__name__}",
        description=docstring_parser.parse(function.__doc__ or "").description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    _add_options(parser, parser, function)
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return parser


def _add_options(parser: ArgumentParser, target: Any, source: Callable[..., Any]) -> None:
    """Add the parameters of a function, or the fields of a dataclass, to a parser or a group of it."""
    documents = [docstring_parser.parse(kind.__doc__ or "") for kind in getattr(source, "__mro__", [source])]
    helps = {each.arg_name: each.description for document in documents for each in document.params}
    defaults = vars(source()) if is_dataclass(source) else {}
    for name, parameter in _parameters(source).items():
        kind, default = parameter.annotation, defaults.get(name, parameter.default)
        if name == "recipe":
            parser.add_argument("RECIPE", nargs="?", default="shapes", help=helps[name])
            parser.add_class_arguments(kind, skip={"name"})
        elif is_dataclass(kind):
            title = docstring_parser.parse(kind.__doc__ or "").short_description or ""
            _add_options(parser, parser.add_argument_group(title.rstrip(".")), kind)  # type: ignore[arg-type]
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and get_origin(kind) is list:
            target.add_argument(name, nargs="+", metavar=name.upper(), help=helps[name])
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            target.add_argument(name.upper(), nargs="?", help=helps[name])
            target.add_argument(f"--{name}", type=str | None, help=f"Another way to name {name.upper()}.")
        elif kind is bool:
            target.add_argument(f"--{name}", action="store_true", help=helps[name])
        elif name != "command":
            target.add_argument(f"--{name}", type=kind, default=default, help=helps[name])


def _filled(source: Callable[..., Any], chosen: Namespace) -> Any:
    """What a function returns, or a dataclass is, with the options that were chosen."""
    arguments: dict[str, Any] = {}
    for name, parameter in _parameters(source).items():
        kind = parameter.annotation
        if name == "recipe":
            from fpa.study.recipe import recipe_from

            recipe = fpa.load_recipe(chosen.RECIPE)
            made = recipe_from(chosen, recipe.name)
            arguments[name] = replace(made, training=made.training.adapted(recipe.training))
        elif is_dataclass(kind):
            arguments[name] = _filled(kind, chosen)  # type: ignore[arg-type]
        elif name.upper() in chosen:  # a positional argument that is an option too
            words = [word for word in (chosen[name.upper()], chosen[name]) if word is not None]
            if len(words) != 1:
                start, word = f"fpa {source.__name__}", name.upper()
                raise InputError(f"name one {name}: {start} {word}, or {start} --{name} {word}")
            arguments[name] = words[0]
        else:
            check_type(f"--{name}", chosen[name], Any if name == "command" else kind)
            arguments[name] = chosen[name]
    return source(**arguments)


def _take_defaults_from_recipe(parser: ArgumentParser, words: Sequence[str]) -> None:
    """Make what the named recipe says the default of every option that is a field of it."""
    try:
        name = parser.parse_args([word for word in words if word not in ("-h", "--help")]).RECIPE
    except (ArgumentError, UnicodeError):  # it is shown when the words are parsed for good
        name = "shapes"
    values = fpa.load_recipe(name).to_dict()
    parser.set_defaults({field: value for field, value in values.items() if field != "name"})


def _in_words(message: str, options: Sequence[str]) -> str:
    """The message of jsonargparse in the words of somebody who typed a command."""
    kinds = {"int": "a whole number", "float": "a number", "list": "a list, like [one,two]"}
    key = re.search(r'Parser key "([\w.]+)"', message)
    expected = re.search(r"Expected an? (?:<class '(int|float|list)'>|typing\.Literal\[([^]]+)\])", message)
    if key and expected:
        kind = kinds[expected[1]] if expected[1] else f"one of {expected[2].replace(chr(39), '')}"
        value = re.search(r"Got value: (.+?)(?= - |$)|Given value: (.+)", message)
        return f"--{key[1]} must be {kind}" + (f", got {value[1] or value[2]}" if value else "")
    if wrong := re.search(r"nrecognized arguments: (--[\w.\-]+)", message):
        plain = [name for name in options if not name.endswith("+")]
        near = difflib.get_close_matches(wrong[1], plain, n=2, cutoff=0.7)
        near = near or [name for name in options if name.rpartition(".")[2] == wrong[1].lstrip("-")]
        message += f": did you mean {' or '.join(near)}?" if near else ""
    elif "nrecognized arguments" in message:
        message += " (the items of a list are separated by commas)"
    return message


def _with_brackets(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """A list may be written without brackets, which jsonargparse needs: `--estimators ig_sum,vg_abs`."""
    words = list(argv)
    for place, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if f"{option}+" not in options:
            continue
        if equals and not value.startswith("["):
            words[place] = f"{option}=[{value}]"
        elif not equals and place + 1 < len(argv) and not argv[place + 1].startswith(("[", "--")):
            words[place + 1] = f"[{argv[place + 1]}]"
    return words


def _parameters(source: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(source, eval_str=True).parameters
