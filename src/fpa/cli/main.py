"""The command `fpa`: a typed function a subcommand, settings from the recipe and the command line."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpa import __version__
from fpa.errors import InputError, unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

    from fpa.data.labels import DataBatches
    from fpa.data.normalisation import Normalisation
    from fpa.models.foreign import Opened
    from fpa.study.recipe import Recipe
    from fpa.study.results import Study


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
        again = "; the same command goes on from the last checkpoint" if _command(argv) in RESUMED else ""
        print(f"fpa: stopped{again}", file=sys.stderr)
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
    command = _command(argv)
    if command is not None and command not in PARSERS:
        raise unknown("command", command, PARSERS)
    argv = _with_brackets(argv)
    parser = _parser(command, argv[argv.index(command) + 1 :] if command else [])
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
    chosen = namespace[namespace.subcommand]
    count = chosen.get("count")
    if count is not None and count < 1:
        raise InputError(f"--count must be at least 1, got {count}")
    return COMMANDS[namespace.subcommand](chosen)


LISTS = ("--estimators", "--maskings", "--mean", "--std", "--augmentations", "--evaluation.estimators")


def _with_brackets(argv: list[str]) -> list[str]:
    """A list may be written without brackets: `--estimators ig_sum,vg_abs`."""
    found = list(argv)
    for place, argument in enumerate(argv):
        option, equals, value = argument.partition("=")
        if option not in LISTS:
            continue
        if equals and not value.startswith("["):
            found[place] = f"{option}=[{value}]"
        elif not equals and place + 1 < len(argv) and not argv[place + 1].startswith(("[", "--")):
            found[place + 1] = f"[{argv[place + 1]}]"
    return found


def _command(argv: list[str]) -> str | None:
    return next((argument for argument in argv if not argument.startswith("-")), None)


def _parser(command: str | None, after_command: list[str]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="fpa", description=DESCRIPTION, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="Print the version.")
    commands = parser.add_subcommands(required=False, metavar="COMMAND")
    for name, (make, help_) in PARSERS.items():
        commands.add_subcommand(name, make(after_command if name == command else []), help=help_)
    return parser


def _empty_parser(name: str, description: str) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    return ArgumentParser(
        prog=f"fpa {name}", description=description, exit_on_error=False, allow_abbrev=False
    )


def _run_parser(after_command: list[str]) -> "ArgumentParser":
    description = "Run a whole study: train, explain, perturb, score, show. Started again, it goes on."
    parser = _empty_parser("run", description)
    _add_recipe(parser, after_command)
    parser.add_argument("--repair", action="store_true", help="Remove damaged files and make them again.")
    return parser


def _train_parser(after_command: list[str]) -> "ArgumentParser":
    description = "Train the models of a recipe; started again, it goes on where it was."
    parser = _empty_parser("train", description)
    _add_recipe(parser, after_command)
    parser.add_argument(
        "--augment", default=None, type=str | None, help="none, rectangle or fpa; several with commas."
    )
    parser.add_argument(
        "--seeds", default=None, type=str | None, help="Several seeds with commas, trained together."
    )
    parser.add_argument(
        "--tracker", default=None, type=str | None, help="tensorboard, wandb, mlflow or trackio."
    )
    return parser


def _evaluate_parser(after_command: list[str]) -> "ArgumentParser":
    description = "Explain, perturb and score one model: a saved one, or your own with --model."
    parser = _empty_parser("evaluate", description)
    _add_model_file(parser)
    _add_data(parser)
    parser.add_argument(
        "--count", default=None, type=int | None, help="How many test images; default all of the data set's."
    )
    parser.add_argument("--ig_steps", default=200, type=int, help="Steps of integrated gradients.")
    _add_own_model(parser)
    for name, kind, help_ in (
        (
            "estimators",
            list[str] | None,
            "With --model: names of estimators, as [ig_sum,vg_abs]; default paper.",
        ),
        ("masking", str | None, "With --model: what removing a pixel means, constant, mean, blur, ..."),
        ("points", int | None, "With --model: points of a perturbation curve; default 21."),
        ("features", str | None, "With --model: what is removed, pixels or the side of square patches."),
    ):
        parser.add_argument(f"--{name}", default=None, type=kind, help=help_)
    _add_common(parser, "runs/evaluate-MODEL")
    return parser


def _finetune_parser(after_command: list[str]) -> "ArgumentParser":
    description = "Train a few epochs with FPA from existing weights; started again, it goes on where it was."
    parser = _empty_parser("finetune", description)
    _add_model_file(parser)
    _add_own_model(parser)
    _add_data(parser)
    parser.add_argument("--epochs", default=2, type=int, help="Passes over the training set.")
    parser.add_argument("--learning_rate", default=0.003, type=float, help="Largest learning rate.")
    parser.add_argument("--batch_size", default=64, type=int, help="Images a step.")
    parser.add_argument(
        "--targets",
        default="auto",
        type=str,
        help="labels; model: the model's own predictions; auto: the labels if the classes are the model's.",
    )
    parser.add_argument("--masking", default="constant", type=str, help="What removing a pixel means.")
    size = "default: the paper's for the image size."
    parser.add_argument("--p", default=None, type=float | None, help=f"Share of batches perturbed; {size}")
    parser.add_argument("--p1_max", default=None, type=float | None, help=f"Most pixels selected; {size}")
    parser.add_argument("--p2", default=None, type=float | None, help=f"Share that starts a square; {size}")
    parser.add_argument("--s_max", default=None, type=int | None, help=f"Largest side of a square; {size}")
    parser.add_argument("--seed", default=0, type=int, help="Seed of everything random.")
    parser.add_argument("--workers", default=8, type=int, help="Processes that decode image files.")
    _add_common(parser, "runs/finetune-MODEL")
    return parser


def _add_data(parser: "ArgumentParser") -> None:
    parser.add_argument(
        "--data",
        default=None,
        type=str | None,
        help="A data set's name or folder:PATH; default the model's own.",
    )
    parser.add_argument("--data_root", default="data", type=str, help="Folder that holds the data sets.")


def _add_model_file(parser: "ArgumentParser") -> None:
    parser.add_argument(
        "model_file",
        nargs="?",
        default=None,
        help="A .safetensors file written by fpa, or the name of a shipped model; or give --model.",
    )


def _add_own_model(parser: "ArgumentParser") -> None:
    """The options that say which model, and what its images look like; `_own_model` reads them."""
    for name, kind, help_ in (
        (
            "model",
            str | None,
            "torchvision:NAME, timm:NAME, a saved model, or module:function returning one.",
        ),
        ("weights", Path | None, "Weights for --model: .safetensors, or a state dict saved with torch.save."),
        ("mean", list[float] | None, "Mean of each channel of its images in 0..1, if another than usual."),
        ("std", list[float] | None, "Standard deviation of each channel, if another than usual."),
        ("size", int | None, "Side of its images in pixels, if another than usual."),
        ("class_index", str | None, "Which output is which class of --data: a list or a JSON file."),
    ):
        parser.add_argument(f"--{name}", default=None, type=kind, help=help_)


def _audit_parser(after_command: list[str]) -> "ArgumentParser":
    parser = _empty_parser(
        "audit",
        "Can the evaluation of explanations on this model be trusted? "
        "Exit code 0: reliable, 3: unreliable, 4: cannot tell, 2: bad input.",
    )
    _add_model_file(parser)
    _add_data(parser)
    parser.add_argument(
        "--count", default=None, type=int | None, help="How many test images; default all of the data set's."
    )
    parser.add_argument(
        "--maskings",
        default=None,
        type=list[str] | None,
        help="What removing a pixel means: the one that is judged, then others to compare it with; "
        "default [constant,mean,blur,uniform].",
    )
    parser.add_argument("--points", default=21, type=int, help="Points of a perturbation curve.")
    parser.add_argument(
        "--features", default="pixels", type=int | str, help="What is removed: pixels or the side of patches."
    )
    parser.add_argument("--ig_steps", default=200, type=int, help="Steps of integrated gradients.")
    parser.add_argument("--seed", default=0, type=int, help="Seed of everything random.")
    _add_own_model(parser)
    _add_output(parser, "runs/audit-MODEL")
    parser.add_argument(
        "--device", default=None, type=str | None, help="cpu, cuda, cuda:N or mps; default the best there is."
    )
    return parser


def _report_parser(after_command: list[str]) -> "ArgumentParser":
    parser = _empty_parser("report", "Make the tables, figures and report of a study again.")
    parser.add_argument("study", help="The folder of a study.")
    _add_output(parser, "the study itself")
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace tables, figures and report that are in --output."
    )
    return parser


def _compare_parser(after_command: list[str]) -> "ArgumentParser":
    parser = _empty_parser("compare", "Put several studies side by side.")
    parser.add_argument("studies", nargs="+", help="Folders of studies.")
    _add_output(parser, "runs/comparison")
    return parser


def _recipes_parser(after_command: list[str]) -> "ArgumentParser":
    return _empty_parser("recipes", "List the recipes that ship with fpa.")


def _add_recipe(parser: "ArgumentParser", after_command: list[str]) -> None:
    """The recipe as a positional argument, and every field of it as an option with its default from there."""
    from fpa.study.recipe import Recipe, load_recipe, recipe_names

    parser.add_argument(
        "recipe",
        nargs="?",
        default="shapes",
        help=f"A recipe ({', '.join(recipe_names())}) or the path of a YAML file.",
    )
    _add_common(parser, "runs/RECIPE")
    parser.add_class_arguments(Recipe, skip={"name"})
    values = load_recipe(_recipe_name(after_command)).to_dict()
    parser.set_defaults(_flat({key: value for key, value in values.items() if key != "name"}))


def _add_common(parser: "ArgumentParser", default: str) -> None:
    _add_output(parser, default)
    parser.add_argument(
        "--device", default=None, type=str | None, help="cpu, cuda, cuda:N or mps; default the best there is."
    )
    parser.add_argument("--overwrite", action="store_true", help="Throw away what is there and start anew.")


def _add_output(parser: "ArgumentParser", default: str) -> None:
    help_ = f"Folder of the results; default {default}."
    parser.add_argument("--output", default=None, type=Path | None, help=help_)
    parser.add_argument("--quiet", action="store_true", help="Show errors only.")
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")


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


FLAGS = ("--overwrite", "--repair", "--quiet", "--debug", "--help")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and key not in ("masking", "variants")
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _parse(parser: "ArgumentParser", argv: list[str]) -> "Namespace":
    import difflib

    from jsonargparse import ArgumentError

    try:
        namespace: Namespace = parser.instantiate(parser.parse_args(argv))
        return namespace
    except ArgumentError as error:
        message = " ".join(str(error).split())
        key = re.search(r'Parser key "([\w.]+)"', message)
        kinds = [kind for kind in re.findall(r"Expected an? <class '(\w+)'>", message) if kind in KINDS]
        if key and kinds:
            given = re.search(r"Got value: (.+?)(?= - |$)|Given value: (.+)", message)
            message = f"--{key[1]} must be {KINDS[kinds[0]]}"
            message += f", got {given[1] or given[2]}" if given else ""
        elif "<class 'list'>" in message:
            message += "; write a list as [one,two]"
        wrong = re.search(r"(--[\w.\-]+)", message) if "nrecognized" in message else None
        if wrong:
            known = _options(argv)
            near = difflib.get_close_matches(wrong[1], known, n=3, cutoff=0.6)
            near = near or [name for name in known if name.rsplit(".", 1)[-1] == wrong[1].lstrip("-")]
            if near:
                message += f": did you mean {' or '.join(near)}?"
        raise InputError(message) from error


KINDS = {"int": "a whole number", "float": "a number", "list": "a list, like [one,two]", "str": "a name"}


def _options(argv: list[str]) -> list[str]:
    """All options of the command that was given."""
    command = next((argument for argument in argv if argument in PARSERS), None)
    if command is None:
        return ["--version", "--help"]
    parser = PARSERS[command][0]([])
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _recipe(namespace: "Namespace") -> "Recipe":
    from fpa.study.recipe import recipe_from, recipe_values

    name = recipe_values(namespace.recipe).get("name", Path(namespace.recipe).stem)
    return recipe_from(namespace, name)


def _run_study(namespace: "Namespace") -> int:
    from fpa.progress import Display
    from fpa.study.run import run_study

    recipe = _recipe(namespace)
    output = _output(namespace, recipe.name, recipe.seed)
    with Display(quiet=namespace.quiet) as display:
        study = run_study(
            recipe,
            output,
            device=namespace.device,
            display=display,
            overwrite=namespace.overwrite,
            repair=namespace.repair,
        )
    _show(namespace, study)
    if not namespace.quiet:
        print(f"report: {output / 'report.html'}")
    return 0


def _evaluate(namespace: "Namespace") -> int:
    if (namespace.model is None) == (namespace.model_file is None):
        raise InputError("name one model: fpa evaluate MODEL_FILE, or fpa evaluate --model NAME --data DATA")
    if namespace.model is not None:
        return _evaluate_own(namespace)
    own = ("weights", "mean", "std", "size", "class_index", "estimators", "masking", "points", "features")
    wrong = next((name for name in own if namespace[name] is not None), None)
    if wrong:
        raise InputError(f"--{wrong} goes with --model: fpa evaluate --model {namespace.model_file} ...")
    from fpa.models.saved import model_path, read_card
    from fpa.progress import Display
    from fpa.study.recipe import DataSettings, EvaluationSettings, Recipe
    from fpa.study.run import evaluate_model

    path = model_path(namespace.model_file)
    card = read_card(path)
    images = namespace.data or card.recipe.get("data", {}).get("name")
    if images is None:
        raise InputError(f"{path} does not say what data it was trained on: give --data")
    recipe = Recipe(
        name=path.stem if path.stem != "model" else card.augmentation,
        model=card.architecture,
        masking=card.recipe.get("masking", "constant"),
        data=DataSettings(
            images, namespace.data_root, size=card.input_shape[-1], evaluation_images=namespace.count
        ),
        evaluation=EvaluationSettings(ig_steps=namespace.ig_steps),
    )
    amount = "" if namespace.count is None else f"-{namespace.count}"
    output = namespace.output or Path("runs") / f"evaluate-{recipe.name}{amount}"
    with Display(quiet=namespace.quiet) as display:
        study = evaluate_model(
            path,
            output,
            recipe=recipe,
            device=namespace.device,
            display=display,
            overwrite=namespace.overwrite,
        )
    _show(namespace, study)
    if not namespace.quiet:
        print(f"tables and curves: {output}")
    return 0


def _finetune(namespace: "Namespace") -> int:
    from dataclasses import asdict

    from fpa.data.labels import class_numbers
    from fpa.data.sets import has_own_test, tuning_data
    from fpa.masking import get_masking
    from fpa.models.saved import ModelCard
    from fpa.models.wrap import class_count
    from fpa.progress import Display
    from fpa.training.augment import FPA
    from fpa.training.finetuning import finetune
    from fpa.training.settings import suggested_fpa

    if (namespace.model is None) == (namespace.model_file is None):
        raise InputError("name one model: fpa finetune MODEL_FILE, or fpa finetune --model NAME --data DATA")
    namespace.model = namespace.model or namespace.model_file
    opened, images, size, normalisation = _opened(namespace)
    data = tuning_data(images, namespace.data_root, size=size)
    outputs = class_count(opened.model, data.input_shape)
    index = None
    if namespace.class_index is not None:
        index = class_numbers(data.classes, outputs, opened.classes, namespace.class_index)
    model: Any = opened.model
    card: ModelCard | None = getattr(model, "card", None)
    model.card = ModelCard(
        architecture=namespace.model if card is None else card.architecture,
        classes=opened.classes or [str(number) for number in range(outputs)],
        input_shape=data.input_shape,
        mean=normalisation.mean,
        std=normalisation.std,
    )
    given = {name: namespace[name] for name in ("p", "p1_max", "p2", "s_max") if namespace[name] is not None}
    settings = {**asdict(suggested_fpa(*data.input_shape[1:])), **given}
    masking = get_masking(namespace.masking, normalisation.mean, normalisation.std)
    output = namespace.output or Path("runs") / f"finetune-{opened.name}"
    with Display(quiet=namespace.quiet) as display:
        tuned: Any = finetune(
            model,
            data,
            epochs=namespace.epochs,
            learning_rate=namespace.learning_rate,
            batch_size=namespace.batch_size,
            fpa=FPA(**settings, masking=masking),
            targets=namespace.targets,
            class_index=index,
            seed=namespace.seed,
            device=namespace.device,
            output=output,
            data_root=namespace.data_root,
            workers=namespace.workers,
            overwrite=namespace.overwrite,
            display=display,
        )
    if not namespace.quiet:
        taught = tuned.card.recipe["targets"] == "model"
        what = "agreement with the original" if taught else "test accuracy"
        if not has_own_test(data):
            what = f"{what.removeprefix('test ')} on the training images"
        same = card is not None and card.recipe.get("data", {}).get("name") == data.name
        known = card.accuracy if card is not None and same and not taught else None
        before = "" if known is None else f" (before: {100 * known:.1f}%)"
        print(f"{what} {100 * tuned.card.accuracy:.1f}%{before}  {output / 'model.safetensors'}")
    return 0


def _evaluate_own(namespace: "Namespace") -> int:
    from fpa.engine.devices import chosen_device
    from fpa.evaluation.evaluator import evaluate
    from fpa.evaluation.shards import SHARDS
    from fpa.explanation.estimator import Settings
    from fpa.explanation.explainer import SETS, get_estimators
    from fpa.files import writable_folder, write_text
    from fpa.masking import get_masking
    from fpa.perturbation.curves import check_fractions
    from fpa.progress import Display

    names = [name for given in namespace.estimators or ["paper"] for name in SETS.get(given, [given])]
    estimators, settings = get_estimators(names), Settings(ig_steps=namespace.ig_steps)
    points = 21 if namespace.points is None else namespace.points
    get_masking(namespace.masking or "constant", (0.0,), (1.0,))  # what is wrong is told before the work
    check_fractions(points)
    opened, batches, note = _own_model(namespace)
    amount = "" if namespace.count is None else f"-{namespace.count}"
    output = namespace.output or Path("runs") / f"evaluate-{opened.name}{amount}"
    curves = output / "curves"
    if namespace.overwrite:
        for old in (*curves.glob(SHARDS), curves / "evaluation.json"):
            old.unlink(missing_ok=True)
    writable_folder(output)
    features = namespace.features or "pixels"
    with Display(quiet=namespace.quiet) as display:
        if note:
            display.say(note)
        with display.evaluating(opened.name, len(batches.dataset)) as tell:
            result = evaluate(
                opened.model,
                batches,
                estimators,
                masking=namespace.masking,
                points=points,
                settings=settings,
                features=int(features) if features.isdigit() else features,
                normalisation=opened.normalisation,
                classes=opened.classes,
                device=chosen_device(namespace.device),
                folder=curves,
                name=opened.name,
                progress=tell,
            )
        display.unreadable(batches.lost)
    result.save(output / "result.npz")
    write_text(output / "table.csv", result.table().to_csv(float_format="%.6g"))
    result.report(output / "report.html", shlex.join(["fpa", *sys.argv[1:]]))
    if not namespace.quiet:
        print(result)
        print(f"report: {output / 'report.html'}")
    return 0


def _own_model(namespace: "Namespace") -> "tuple[Opened, DataBatches, str | None]":
    """The model and the images that the options name, and a line about labels that are not certain."""
    from fpa.data.labels import DataBatches, labels_for
    from fpa.data.sets import load_evaluation_data
    from fpa.models.wrap import class_count

    opened, images, size, _ = _opened(namespace)
    data = load_evaluation_data(images, namespace.data_root, evaluation_images=namespace.count, size=size)
    outputs = class_count(opened.model, data.input_shape)
    numbers, note = labels_for(data.classes, outputs, opened.classes, namespace.class_index)
    return opened, DataBatches(data, numbers), note


def _opened(namespace: "Namespace") -> "tuple[Opened, str, int, Normalisation]":
    """The model that the options name, its data set, and the size and normalisation of its images."""
    from fpa.data.normalisation import Normalisation
    from fpa.engine.devices import check_device
    from fpa.models.foreign import open_model

    check_device(namespace.device)
    if (namespace.mean is None) != (namespace.std is None):
        raise InputError("give both --mean and --std, or neither")
    normalisation = None
    if namespace.mean is not None:
        normalisation = Normalisation(tuple(namespace.mean), tuple(namespace.std))
    opened = open_model(namespace.model, namespace.weights, normalisation=normalisation)
    images = namespace.data or opened.data
    if images is None:
        raise InputError("say which images: --data folder:PATH, or the name of a data set")
    if opened.normalisation is None:
        raise InputError(
            f"{namespace.model} does not say how its images are normalised: give --mean and --std, "
            "for pixels in 0..1 (for instance --mean [0.5,0.5,0.5] --std [0.5,0.5,0.5] for -1..1)"
        )
    return opened, images, namespace.size or opened.size or 224, opened.normalisation


def _audit(namespace: "Namespace") -> int:
    from rich.console import Console

    from fpa.auditing.auditor import MASKINGS, audit
    from fpa.auditing.rule import FEWEST_IMAGES
    from fpa.data.sets import has_training_images
    from fpa.engine.devices import chosen_device
    from fpa.explanation.estimator import Settings
    from fpa.files import writable_folder
    from fpa.progress import Display

    if (namespace.model is None) == (namespace.model_file is None):
        raise InputError("name one model: fpa audit MODEL_FILE, or fpa audit --model NAME --data DATA")
    namespace.model = namespace.model or namespace.model_file
    namespace.maskings = namespace.maskings or list(MASKINGS)
    opened, batches, note = _own_model(namespace)
    name = opened.name
    output = writable_folder(namespace.output or Path("runs") / f"audit-{name}")
    with Display(quiet=namespace.quiet) as display:
        if note:
            display.say(note)
        if len(batches.dataset) < FEWEST_IMAGES:
            display.say(f"{len(batches.dataset)} images: under {FEWEST_IMAGES} the verdict is cannot tell")
        with display.evaluating(name, len(batches.dataset)) as tell:
            found = audit(
                opened.model,
                batches,
                settings=Settings(ig_steps=namespace.ig_steps),
                maskings=namespace.maskings,
                points=namespace.points,
                features=namespace.features,
                seed=namespace.seed,
                normalisation=opened.normalisation,
                device=chosen_device(namespace.device),
                name=f"{name} on {batches.data.name}",
                progress=tell,
            )
        display.unreadable(batches.lost)
    if found.verdict == "unreliable" and _can_be_named(namespace.model):
        if has_training_images(batches.data.name):
            found = replace(found, command=_finetune_command(namespace, batches.data.name))
        else:
            found = replace(found, advice=(*found.advice, NO_TRAINING_IMAGES))
    found.save(output / "audit.json")
    found.report(output / "audit.html")
    if not namespace.quiet:
        Console().print(found)
        print(f"page: {output / 'audit.html'}")
    return found.exit_code


NO_TRAINING_IMAGES = (
    "These images are for evaluation only. Fine-tuning (fpa finetune) needs others: in train/ beside them, "
    "or a folder of photos, which need no labels."
)


def _can_be_named(model: str) -> bool:
    """Whether `fpa finetune` can build the model again; one that a function returned is tuned in Python."""
    return model.startswith(("torchvision:", "timm:")) or ":" not in model or Path(model).exists()


def _finetune_command(namespace: "Namespace", data: str) -> str:
    """How to fine-tune the model that was audited, for the masking that was judged."""
    words = ["fpa", "finetune", *(["--model"] if namespace.model_file is None else []), namespace.model]
    words += ["--data", data]
    for name in ("data_root", "weights", "mean", "std", "size", "class_index"):
        if namespace[name] not in (None, "data"):
            words += [f"--{name}", str(namespace[name]).replace(", ", ",")]
    words += ["--masking", namespace.maskings[0]] if namespace.maskings[0] != "constant" else []
    return shlex.join(words)


def _report(namespace: "Namespace") -> int:
    from fpa.study.run import show_again

    folder = Path(namespace.study)
    study = show_again(folder, namespace.output or folder, overwrite=namespace.overwrite)
    _show(namespace, study)
    if not namespace.quiet:
        print(f"report: {(namespace.output or folder) / 'report.html'}")
    return 0


def _compare(namespace: "Namespace") -> int:
    from rich.console import Console

    from fpa.show.tables import comparison
    from fpa.study.read import read_study
    from fpa.study.run import compare_studies

    folders = [Path(folder) for folder in namespace.studies]
    studies = [read_study(folder) for folder in folders]
    output = namespace.output or Path("runs") / "comparison"
    compare_studies(studies, output)
    if not namespace.quiet:
        Console().print(comparison(studies))
        print(f"tables and figures: {output}")
    return 0


def _show(namespace: "Namespace", study: "Study") -> None:
    from rich.console import Console

    from fpa.show.tables import headline, notes, terminal

    if namespace.quiet:
        return
    console = Console()
    console.print(headline(study), style="bold", highlight=False, markup=False)
    console.print(terminal(study))
    for note in notes(study):
        console.print(note, style="dim", highlight=False, markup=False)
    told = {
        note for model in study.models.values() for score in model.fidelity.values() for note in score.notes
    }
    for note in sorted(told):
        console.print(f"note: {note}", highlight=False, markup=False)


def _train(namespace: "Namespace") -> int:
    from rich.console import Console

    from fpa.progress import Display
    from fpa.study.trainings import train

    recipe = _recipe(namespace)
    seeds = _seeds(namespace, recipe.seed)
    with Display(quiet=namespace.quiet) as display:
        trained = train(
            recipe,
            {seed: _output(namespace, recipe.name, seed) for seed in seeds},
            variants=namespace.augment.split(",") if namespace.augment else None,
            device=namespace.device,
            tracker=namespace.tracker,
            display=display,
            overwrite=namespace.overwrite,
        )
    if not namespace.quiet and os.environ.get("RANK", "0") == "0":  # one of several processes speaks
        console = Console()
        for one in trained:
            accuracy = "" if one.accuracy is None else f"test accuracy {100 * one.accuracy:5.1f}%"
            line = f"{one.name:<10} seed {one.seed}  {accuracy}  {one.path}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _seeds(namespace: "Namespace", seed: int) -> list[int]:
    if namespace.seeds is None:
        return [seed]
    texts = namespace.seeds.split(",")
    if not all(text.isdigit() for text in texts) or len(set(texts)) < len(texts):
        raise InputError(f"--seeds must be different whole numbers with commas, got {namespace.seeds!r}")
    return [int(text) for text in texts]


def _output(namespace: "Namespace", name: str, seed: int) -> Path:
    """Where the results of a seed go; without --output every seed but 0 has a folder of its own."""
    if namespace.output is None:
        return Path("runs") / (name if seed == 0 else f"{name}-seed{seed}")
    folder = Path(namespace.output)
    return folder if namespace.get("seeds") is None else folder / f"seed{seed}"


def _recipes(namespace: "Namespace") -> int:
    from rich.console import Console
    from rich.table import Table

    from fpa.study.recipe import load_recipe, recipe_description, recipe_names

    table = Table("recipe", "data", "model", "epochs", "about", box=None)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(
            name, recipe.data.name, recipe.model, str(recipe.training.epochs), recipe_description(name)
        )
    Console().print(table)
    return 0


COMMANDS = {
    "run": _run_study,
    "train": _train,
    "evaluate": _evaluate,
    "audit": _audit,
    "finetune": _finetune,
    "report": _report,
    "compare": _compare,
    "recipes": _recipes,
}


RESUMED = ("run", "train", "evaluate", "finetune")


PARSERS = {
    "run": (_run_parser, "Run a whole study: train, explain, perturb, score, show."),
    "train": (_train_parser, "Train the models of a recipe."),
    "evaluate": (_evaluate_parser, "Explain, perturb and score one saved model."),
    "audit": (_audit_parser, "Can the evaluation of explanations on a model be trusted?"),
    "finetune": (_finetune_parser, "Train a few epochs with FPA from existing weights."),
    "report": (_report_parser, "Make a study's tables, figures and report again."),
    "compare": (_compare_parser, "Put several studies side by side."),
    "recipes": (_recipes_parser, "List the recipes that ship with fpa."),
}
