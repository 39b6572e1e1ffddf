"""What --help shows: the options that people use, in the words that they type."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

import docstring_parser

from fpa.errors import InputError, counted, shortened
from fpa.typed import helps_of

Command = Callable[..., int]

USUAL = {
    "run": "data.name data.root model augmentations training.epochs evaluation.estimators "
    "evaluation.scores output device estimate",
    "train": "data.name data.root model augment seeds training.epochs tracker output device estimate",
    "evaluate": "data weights estimators scores masking protocols count output quick estimate",
    "audit": "data weights estimators masking protocols count output device quick estimate",
    "finetune": "data weights epochs targets class_index masking audit_images output device estimate",
}
"""By command: the options that --help shows, in this order; --help-all shows all."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    name: str
    """Without the dashes; those of a recipe have dots: training.epochs."""
    kind: Any
    default: Any
    help: str
    group: str = ""
    """The heading in the help that it stands under."""
    is_flag: bool = False
    alone: str | None = None
    """What it means without a value; None: it needs one."""

    @property
    def is_mapping(self) -> bool:
        """Whether it may have parts of any names, options themselves: --masking.sigma."""
        return any(get_origin(kind) is dict for kind in (self.kind, *get_args(self.kind)))

    @property
    def help_text(self) -> str:
        """The help, with what is taken where nothing is given; without what only Python can do."""
        about, python, _ = self.help.replace("`", "").partition("; in Python")
        about += "." if python else ""
        plain = self.is_flag or self.default is None
        return about if plain else f"{about} (default: {as_typed(self.default)})"

    @property
    def placeholder(self) -> str:
        """What stands for the value in the help: the choices, where there are some, or the kind of word."""
        return _PLACES.get(self.name) or _placeholder(self.kind)


_PLACES = {"output": "FOLDER", "data_root": "FOLDER", "data.root": "FOLDER", "class_index": "LIST"}
"""Of options whose type says less than their name."""


def _placeholder(kind: Any) -> str:
    """The words that are typed for a type.

    >>> _placeholder(int | None), _placeholder(tuple[str, ...]), _placeholder(dict[str, Any] | str | None)
    ('N', 'NAME[,NAME...]', 'NAME')
    """
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is Literal:
        return f"{{{','.join(parts)}}}"
    if get_origin(kind) in (list, tuple):
        one = _placeholder(parts[0])
        return f"{one}[,{one}...]"
    if get_origin(kind) is dict:
        return "MAPPING"
    if parts:  # one of several: a name, where that is possible
        return "NAME" if str in parts else _placeholder(parts[0])
    return {int: "N", float: "X", Path: "FILE"}.get(kind, "NAME")


class Parser(argparse.ArgumentParser):
    """Takes the words of a command apart; what is wrong with them is an `InputError`."""

    def error(self, message: str) -> NoReturn:
        """Refuse words that cannot be taken apart."""
        raise InputError(shortened(" ".join(message.split()), 1000))


def usual_options(function: Command, options: Mapping[str, Option]) -> dict[str, Option]:
    """Those of a command's options that people use, under one heading; of a few options all."""
    named = USUAL.get(function.__name__)
    if named is None:
        return dict(options)
    return {name: replace(options[name], group="") for name in named.split()}


def make_parser(function: Command, options: Mapping[str, Option], left_out: int = 0) -> Parser:
    """The parser of a command, whose help has so many options `left_out`."""
    words = [f"[{word}]" if word in ("RECIPE", "KINDS") else word for word in _positional(function)]
    command = f"fpa {function.__name__}"
    parser = Parser(
        prog=command,
        usage=" ".join([command, *words, *(["[OPTIONS]"] if options else [])]),
        description=docstring_parser.parse(function.__doc__ or "").description,
        epilog=f"{command} --help-all shows {counted(left_out, 'more option')}." if left_out else None,
        allow_abbrev=False,
        add_help=False,
        # Only what was typed is there afterwards: the rest has the defaults of the functions themselves.
        argument_default=argparse.SUPPRESS,
    )
    for word, (help_text, several) in _positional(function).items():
        parser.add_argument(word, nargs="*" if several else "?", help=help_text)
    parser.add_argument("-h", "--help", action="store_true", help="Show this help and exit.")
    if function.__name__ in USUAL:
        parser.add_argument("--help-all", action="store_true", help="Show all options and exit.")
    hidden = argparse.SUPPRESS if left_out else "Show the traceback of an error."
    parser.add_argument("--debug", action="store_true", help=hidden)
    groups: dict[str, Any] = {"": parser}
    for option in options.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        text = option.help_text.replace("%", "%%")
        # The folder of results is called as in Python, too, unless another folder is named.
        also = ["--folder"] if option.name == "output" and "folder" not in options else []
        if option.is_flag:
            groups[option.group].add_argument(f"--{option.name}", *also, action="store_true", help=text)
        else:
            groups[option.group].add_argument(
                f"--{option.name}",
                *also,
                metavar=option.placeholder,
                help=text,
                nargs=None if option.alone is None else "?",
                const=option.alone,
            )
    return parser


def _positional(function: Command) -> dict[str, tuple[str, bool]]:
    """The words that stand for themselves: their help, and whether there may be several."""
    helps = helps_of(function)
    return {
        name.upper(): (helps[name], get_origin(parameter.annotation) is list)
        for name, parameter in parameters_of(function).items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }


def as_typed(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "null" if value is None else str(value)


def parameters_of(source: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, with their types."""
    return inspect.signature(source, eval_str=True).parameters
