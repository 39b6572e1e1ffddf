"""From a typed function to a command: its signature and docstring are the options and the help.

- A parameter before the `*` is a positional argument, and also an option of its name; a list takes several
  words. A `recipe` is named by a positional argument, and all its fields are options, which change it.
- A parameter after the `*` is an option, or a flag if it is a bool. A dataclass is a group of options: its
  fields.
- `command` is no option: it receives what was typed.

The words are taken apart by argparse; what they say is read as the declared types by `fpa.typed`.
"""

import argparse
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin

import docstring_parser

import fpa
from fpa.cli.helping import Command, Option, Parser, as_typed, make_parser, parameters_of, usual_options
from fpa.errors import InputError, shortened
from fpa.study.recipe import Recipe
from fpa.typed import helps_of, meant_alone, plain, typed, typed_fields

Given = dict[str, Any]
"""What was typed, by the names of the options."""


def call(function: Command, argv: Sequence[str], command: str) -> int:
    """Call the function of a command with the options in `argv`; `command` is all that was typed."""
    options = {option.name: option for option in _options(function)}
    given = _given(make_parser(function, options), options, argv)
    if "help" in given or "help_all" in given:
        if "RECIPE" in given:  # whose values are the defaults
            options = {option.name: option for option in _options(function, given["RECIPE"])}
        shown = options if "help_all" in given else usual_options(function, options)
        make_parser(function, shown, left_out=len(options) - len(shown)).print_help()
        raise SystemExit(0)
    try:
        return int(_filled(function, {**given, "command": command}))
    except _NotNamedError as error:
        raise InputError(f"{error}{_taken(options, given)}") from None


def _options(source: Callable[..., Any], recipe: str | None = None) -> Iterator[Option]:
    """The options of a command; with the name of a recipe its values are the defaults."""
    helps = helps_of(source)
    for name, parameter in parameters_of(source).items():
        kind = parameter.annotation
        if kind is Recipe:
            yield from _recipe_options(Recipe() if recipe is None else fpa.load_recipe(recipe))
        elif is_dataclass(kind):
            yield from _group_options(kind, helps)
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and get_origin(kind) is not list:
            yield Option(name, str | None, None, f"Another way to name {name.upper()}.")
        elif parameter.kind is parameter.KEYWORD_ONLY and name != "command":
            yield Option(name, kind, parameter.default, helps[name], is_flag=kind is bool)


def _group_options(kind: Any, own: Mapping[str, str]) -> Iterator[Option]:
    """The fields of a dataclass, each an option; of some the command has help of its `own`."""
    title = docstring_parser.parse(kind.__doc__ or "").short_description or ""
    helps = {**helps_of(kind), **own}
    usual = kind()
    alone = meant_alone(kind)
    for name, field_type in typed_fields(kind).items():
        yield Option(
            name=name,
            kind=field_type,
            default=getattr(usual, name),
            help=helps[name],
            group=title.rstrip("."),
            is_flag=field_type is bool,
            alone=alone.get(name),
        )


def _recipe_options(settings: Any, prefix: str = "", group: str = "Recipe") -> Iterator[Option]:
    """The fields of a recipe, and of the settings in it, each an option; its name is not one."""
    helps = helps_of(type(settings))
    for name, field_type in typed_fields(settings).items():
        value = getattr(settings, name)
        if is_dataclass(value):
            title = docstring_parser.parse(value.__doc__ or "").short_description or ""
            yield from _recipe_options(value, f"{prefix}{name}.", title.rstrip("."))
        elif prefix or name != "name":
            # What is in a mapping is looked at when the recipe is made.
            kind = dict[str, Any] if get_origin(field_type) is dict else field_type
            yield Option(f"{prefix}{name}", kind, value, helps[name], group)


def _given(parser: Parser, options: Mapping[str, Option], argv: Sequence[str]) -> Given:
    """What was typed, as the declared types."""
    for name in dict.fromkeys(word.partition("=")[0] for word in argv):
        whole = options.get(name.removeprefix("--").rpartition(".")[0])
        # The parts of a mapping have names of its own, so they are options once somebody types them.
        if name.startswith("--") and whole is not None and whole.is_mapping:
            parser.add_argument(name, help=argparse.SUPPRESS)
    words, unknown = parser.parse_known_args([*argv])
    if unknown:
        raise _unknown(unknown, options)
    given: Given = {}
    for name, word in vars(words).items():
        if name in options and not options[name].is_flag:
            given[name] = typed(f"--{name}", word, options[name].kind)
        elif "." in name:
            given[name] = plain(word)
        elif word not in (None, []):  # a positional argument that was left out
            given[name] = word
    return given


def _unknown(words: Sequence[str], options: Mapping[str, Option]) -> InputError:
    """The error for words that are no part of the command, with what may have been meant."""
    first = words[0].partition("=")[0]
    refused = f"unrecognized arguments: {shortened(' '.join(words))}"
    if not first.startswith("-"):
        return InputError(f"{refused} (the items of a list are separated by commas)")
    names = [f"--{name}" for name in options]
    near = difflib.get_close_matches(first, names, n=2, cutoff=0.7)
    near = [name for name in near if name.startswith(first)] or near  # letters left out at the end
    near = near or [name for name in names if name.rpartition(".")[2] == first.lstrip("-")]
    return InputError(f"{refused}: did you mean {' or '.join(near)}?" if near else refused)


class _NotNamedError(InputError):
    """A positional argument is missing, or there are two of them."""


def _taken(options: Mapping[str, Option], given: Given) -> str:
    """The word that an option took which needs none: it may have been meant for the command itself."""
    words = {
        name: as_typed(given[name])
        for name, option in options.items()
        if option.alone is not None and name in given
    }
    taken = {name: word for name, word in words.items() if word != options[name].alone}
    return "".join(
        f" ({word} was read as the value of --{name}: put it first)" for name, word in taken.items()
    )


def _filled(function: Command, given: Given) -> int:
    """What the function of a command returns for the options that were given."""
    arguments: dict[str, Any] = {}
    for name, parameter in parameters_of(function).items():
        kind = parameter.annotation
        if kind is Recipe:
            arguments[name] = _recipe(given)
        elif is_dataclass(kind):
            arguments[name] = _group(kind, given)
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            arguments[name] = _named(function, name, given)
        else:
            arguments |= _chosen([name], given)
    return function(**arguments)


def _group(kind: Any, given: Given) -> Any:
    """A dataclass with the options that were given."""
    return kind(**_chosen([*typed_fields(kind)], given))


def _chosen(names: Sequence[str], given: Given) -> Given:
    """Those of the options that were given; the parts of a mapping together."""
    chosen: Given = {}
    for name in names:
        parts = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{name}.")}
        if parts:
            whole = given.get(name, {})
            chosen[name] = (whole if isinstance(whole, dict) else {"name": whole}) | parts
        elif name in given:
            chosen[name] = given[name]
    return chosen


def _recipe(given: Given) -> Recipe:
    """The recipe that was named, with the fields that were given."""
    known = [option.name for option in _recipe_options(Recipe())]
    changes = _chosen(known, given)
    return fpa.load_recipe(given.get("RECIPE", "shapes"), changes)


def _named(source: Callable[..., Any], name: str, given: Given) -> Any:
    """A positional argument, which may also be given as an option."""
    word = name.upper()
    found = [given[key] for key in (word, name) if key in given]
    if len(found) == 1:
        return found[0]
    parameter = parameters_of(source)[name]
    if not found and parameter.default is not parameter.empty:
        return parameter.default
    start = f"fpa {source.__name__}"
    if get_origin(parameter.annotation) is list:
        raise _NotNamedError(f"name one or more {name}: {start} {word}")
    raise _NotNamedError(f"name one {name}: {start} {word}, or {start} --{name} {word}")
