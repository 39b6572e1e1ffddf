"""The command `fpa`: a typed function a subcommand, settings from the recipe and the command line."""

import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpa import __version__
from fpa.errors import InputError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

DESCRIPTION = "Find out which explanations of an image classifier can be trusted."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 2 for bad input, 130 when interrupted."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in argv
    try:
        return _run([argument for argument in argv if argument != "--debug"])
    except InputError as error:
        if debug:
            traceback.print_exc()
        print(f"fpa: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fpa: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except OSError as error:
        if debug:
            traceback.print_exc()
        print(f"fpa: {error}", file=sys.stderr)
        return 2


def _run(argv: list[str]) -> int:
    if argv == ["--version"]:
        print(f"fpa {__version__}")
        return 0
    command = next((argument for argument in argv if not argument.startswith("-")), None)
    parser = _parser(argv[argv.index(command) + 1 :] if command else [])
    if not argv:
        parser.print_help()
        return 0
    namespace = _parse(parser, argv)
    if namespace.version:
        print(f"fpa {__version__}")
        return 0
    if namespace.subcommand is None:
        parser.print_help()
        return 0
    return COMMANDS[namespace.subcommand](namespace[namespace.subcommand])


def _parser(after_command: list[str]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="fpa", description=DESCRIPTION, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="Print the version.")
    commands = parser.add_subcommands(required=False, metavar="COMMAND")
    commands.add_subcommand("train", _train_parser(after_command), help="Train the models of a recipe.")
    commands.add_subcommand("recipes", _recipes_parser(), help="List the recipes that ship with fpa.")
    return parser


def _train_parser(after_command: list[str]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    from fpa.recipe import Recipe, recipe_names, recipe_values

    parser = ArgumentParser(
        prog="fpa train",
        description="Train the models of a recipe; started again, it goes on where it was.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        default="shapes",
        help=f"A recipe ({', '.join(recipe_names())}) or the path of a YAML file.",
    )
    parser.add_argument(
        "--augment", default=None, type=str | None, help="none, rectangle or fpa; several with commas."
    )
    parser.add_argument(
        "--seeds", default=None, type=str | None, help="Several seeds with commas, trained together."
    )
    _add_common(parser)
    parser.add_argument(
        "--tracker", default=None, type=str | None, help="tensorboard, wandb, mlflow or trackio."
    )
    parser.add_class_arguments(Recipe, skip={"name"})
    parser.set_defaults(
        _flat({k: v for k, v in recipe_values(_recipe_name(after_command)).items() if k != "name"})
    )
    return parser


def _add_common(parser: "ArgumentParser") -> None:
    parser.add_argument(
        "--output", default=None, type=Path | None, help="Folder of the results; default runs/RECIPE."
    )
    parser.add_argument(
        "--device", default=None, type=str | None, help="cpu, cuda or mps; default the best there is."
    )
    parser.add_argument("--overwrite", action="store_true", help="Throw away what is there and start anew.")
    parser.add_argument("--quiet", action="store_true", help="Show errors only.")
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")


def _recipes_parser() -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    return ArgumentParser(
        prog="fpa recipes", description="List the recipes.", exit_on_error=False, allow_abbrev=False
    )


def _recipe_name(after_command: list[str]) -> str:
    """The positional argument after `train`: defaults depend on it, so it is needed before parsing."""
    skip = False
    for argument in after_command:
        if skip:
            skip = False
        elif argument.startswith("--"):
            skip = "=" not in argument and argument not in FLAGS
        elif not argument.startswith("-"):
            return argument
    return "shapes"


FLAGS = ("--overwrite", "--quiet", "--debug", "--help")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _parse(parser: "ArgumentParser", argv: list[str]) -> "Namespace":
    import difflib

    from jsonargparse import ArgumentError

    try:
        namespace: Namespace = parser.instantiate(parser.parse_args(argv))
        return namespace
    except ArgumentError as error:
        message = " ".join(str(error).split())
        wrong = re.search(r"(--[\w.\-]+)", message) if "nrecognized" in message else None
        if wrong:
            from dataclasses import fields

            from fpa.recipe import Recipe

            known = ["--augment", "--seeds", "--output", "--device", "--tracker", *FLAGS]
            known += [f"--{name}" for name in _flat(Recipe().to_dict())] + [
                f"--{f.name}" for f in fields(Recipe)
            ]
            near = difflib.get_close_matches(wrong[1], known, n=3, cutoff=0.5)
            near = near or [k for k in known if k.rsplit(".", 1)[-1] == wrong[1].lstrip("-")]
            if near:
                message += f": did you mean {' or '.join(near)}?"
        raise InputError(message) from error


def _train(namespace: "Namespace") -> int:
    from rich.console import Console

    from fpa.progress import Display
    from fpa.recipe import recipe_from, recipe_values
    from fpa.train import Job, train_jobs

    recipe = recipe_from(namespace, recipe_values(namespace.recipe).get("name", Path(namespace.recipe).stem))
    augmentations = namespace.augment.split(",") if namespace.augment else recipe.augmentations
    replace(recipe, augmentations=augmentations)  # checks the names
    jobs = [
        Job(replace(recipe, seed=seed), name, _output(namespace, recipe.name, seed) / name)
        for seed in _seeds(namespace, recipe.seed)
        for name in augmentations
    ]
    if namespace.overwrite:
        for job in jobs:
            _clear(job.folder)
    with Display(quiet=namespace.quiet) as display:
        trained = train_jobs(jobs, device=namespace.device, tracker=namespace.tracker, display=display)
    if not namespace.quiet:
        console = Console()
        for one in trained:
            accuracy = f"test accuracy {100 * one.accuracy:5.1f}%"
            line = f"{one.augmentation:<10} seed {one.seed}  {accuracy}  {one.path}"
            console.print(line, highlight=False, soft_wrap=True)
    return 0


def _seeds(namespace: "Namespace", seed: int) -> list[int]:
    if namespace.seeds is None:
        return [seed]
    try:
        return [int(text) for text in namespace.seeds.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds must be whole numbers with commas, got {namespace.seeds!r}") from error


def _output(namespace: "Namespace", name: str, seed: int) -> Path:
    """Where the results of a seed go; without --output every seed but 0 has a folder of its own."""
    if namespace.output is None:
        return Path("runs") / (name if seed == 0 else f"{name}-seed{seed}")
    folder = Path(namespace.output)
    return folder if namespace.seeds is None else folder / f"seed{seed}"


def _clear(folder: Path) -> None:
    """Remove what training left of a model, and nothing else."""
    for file in ("model.safetensors", "checkpoint.safetensors", "training.csv"):
        (folder / file).unlink(missing_ok=True)


def _recipes(namespace: "Namespace") -> int:
    from rich.console import Console
    from rich.table import Table

    from fpa.recipe import load_recipe, recipe_description, recipe_names

    table = Table("recipe", "data", "model", "epochs", "about", box=None)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(
            name, recipe.data.name, recipe.model, str(recipe.training.epochs), recipe_description(name)
        )
    Console().print(table)
    return 0


COMMANDS = {"train": _train, "recipes": _recipes}
