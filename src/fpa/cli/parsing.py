"""From a typed function to a command: its signature and docstring are the options and the help.

- A parameter before the `*` is a positional argument, and also an option of its name; a list takes several
  words. A `Recipe` is named by a positional argument, and all its fields are options.
- A parameter after the `*` is an option, or a flag if it is a bool. A dataclass is a group of options, one
  for each of its fields.
- `command` is no option: it receives what was typed.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_origin, get_type_hints

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from fpa.errors import InputError

Command = Callable[..., int]

NOT_OPTIONS = ("command", "return")


def call(function: Command, argv: Sequence[str], command: str) -> int:
    """Call the function of a command with the options in `argv`."""
    parser = make_parser(function)
    argv = _with_brackets(argv, _options(parser))
    hints = _hints(function)
    if "recipe" in hints:
        _take_defaults_from_recipe(parser, argv)
    chosen = _parse(parser, argv)
    arguments: dict[str, Any] = {"command": command} if "command" in _parameters(function) else {}
    for name, kind in hints.items():
        if name == "recipe":
            arguments[name] = _recipe(chosen)
        elif is_dataclass(kind):
            arguments[name] = kind(**{field.name: chosen[field.name] for field in fields(kind)})
        elif _is_positional(function, name) and get_origin(kind) is not list:
            arguments[name] = _one_of(function.__name__, name, chosen)
        else:
            arguments[name] = chosen[name]
    return function(**arguments)


def make_parser(function: Command) -> ArgumentParser:
    """The parser of a command."""
    described = docstring_parser.parse(function.__doc__ or "")
    parser = ArgumentParser(
        prog=f"fpa {function.__name__}",
        description=described.description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    helps = {each.arg_name: each.description for each in described.params}
    for name, kind in _hints(function).items():
        default = _parameters(function)[name].default
        if name == "recipe":
            from fpa.study.recipe import recipe_names

            known = ", ".join(recipe_names())
            parser.add_argument(
                "RECIPE", nargs="?", default="shapes", help=f"A recipe ({known}) or the path of a YAML file."
            )
            parser.add_class_arguments(kind, skip={"name"})
        elif is_dataclass(kind):
            _add_group(parser, kind)
        elif not _is_positional(function, name):
            _add_option(parser, name, kind, default, helps.get(name))
        elif get_origin(kind) is list:
            parser.add_argument(name, nargs="+", metavar=name.upper(), help=helps[name])
        else:
            parser.add_argument(name.upper(), nargs="?", help=helps[name])
            _add_option(parser, name, str | None, None, f"Another way to name {name.upper()}.")
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return parser


def _add_group(parser: ArgumentParser, options: Any) -> None:
    described = docstring_parser.parse(options.__doc__)
    helps = {each.arg_name: each.description for each in described.params}
    title = (described.short_description or "").rstrip(".")
    group, hints = parser.add_argument_group(title), get_type_hints(options)
    for field in fields(options):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        _add_option(group, field.name, hints[field.name], default, helps[field.name])


def _add_option(target: Any, name: str, kind: Any, default: Any, text: str | None) -> None:
    if kind is bool:
        target.add_argument(f"--{name}", action="store_true", help=text)
    else:
        target.add_argument(f"--{name}", type=kind, default=default, help=text)


def _take_defaults_from_recipe(parser: ArgumentParser, argv: list[str]) -> None:
    """Give every field of the recipe that is named the value it has there as its default."""
    from fpa.study.recipe import load_recipe

    try:
        name = parser.parse_args([word for word in argv if word not in ("-h", "--help")]).RECIPE
    except ArgumentError:  # shown when it is parsed with the right defaults
        name = "shapes"
    values = load_recipe(name).to_dict()
    parser.set_defaults({field: value for field, value in values.items() if field != "name"})


def _recipe(chosen: Namespace) -> Any:
    from fpa.study.recipe import load_recipe, recipe_from

    return recipe_from(chosen, load_recipe(chosen.RECIPE).name)


def _one_of(command: str, name: str, chosen: Namespace) -> str:
    """A positional argument, or the option of the same name: exactly one of them."""
    words = [word for word in (chosen[name.upper()], chosen[name]) if word is not None]
    if len(words) != 1:
        shown = name.upper()
        raise InputError(f"name one {name}: fpa {command} {shown}, or fpa {command} --{name} {shown}")
    return str(words[0])


def _parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    try:
        chosen: Namespace = parser.instantiate(parser.parse_args(argv))
        return chosen
    except ArgumentError as error:
        raise InputError(_in_words(" ".join(str(error).split()), _options(parser))) from error


KINDS = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'list'>": "a list, like [one,two]",
}


def _in_words(message: str, options: Sequence[str]) -> str:
    """jsonargparse's message in the words of somebody who typed a command."""
    key = re.search(r'Parser key "([\w.]+)"', message)
    expected = re.search(r"Expected an? (<class '(?:int|float|list)'>|typing\.Literal\[([^]]+)\])", message)
    if key and expected:
        kind = KINDS.get(expected[1]) or f"one of {expected[2].replace(chr(39), '')}"
        value = re.search(r"Got value: (.+?)(?= - |$)|Given value: (.+)", message)
        return f"--{key[1]} must be {kind}" + (f", got {value[1] or value[2]}" if value else "")
    wrong = re.search(r"nrecognized arguments: (--[\w.\-]+)", message)
    if wrong:
        near = difflib.get_close_matches(wrong[1], options, n=3, cutoff=0.6)
        near = near or [name for name in options if name.rpartition(".")[2] == wrong[1].lstrip("-")]
        message += f": did you mean {' or '.join(near)}?" if near else ""
    return message


def _options(parser: ArgumentParser) -> list[str]:
    """All options of a parser; those that take a list are there a second time, with a + at the end."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


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


def _parameters(function: Command) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _hints(function: Command) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(function).items() if name not in NOT_OPTIONS}


def _is_positional(function: Command, name: str) -> bool:
    return _parameters(function)[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
