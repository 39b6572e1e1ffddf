"""The commands around recipes and results: `fpa run`, `train`, `report`, `compare` and `recipes`."""

import shlex
from pathlib import Path

from rich.console import Console

import fpa
from fpa.cli.naming import default_output
from fpa.cli.options import RunOptions, show, show_estimate
from fpa.errors import InputError, at_least, percent
from fpa.progress import Display
from fpa.study.recipe import Recipe


def run(
    recipe: Recipe, *, repair: bool = False, part: str | None = None, wait: float = 60.0, where: RunOptions
) -> int:
    """Run a whole study: train, explain, perturb, score, show. If it is stopped, the same command continues.

    Args:
        recipe: Name of a recipe (fpa recipes lists them), or the path of a YAML file; default: shapes.
        repair: Delete damaged files and make them again.
        part: Make only a part of the curves of models that are trained, such as 3/8, the third of eight; fpa
            report shows the whole when all are there. Default: this process's share of its job.
        wait: Minutes that a job waits for a further block of its other processes.

    """
    from fpa.cli.folders import part_made, refuse_overwriting
    from fpa.evaluation.sharing import share_of
    from fpa.running import share_study

    at_least("--wait", wait, 0)
    output = where.output or _default_folder(recipe.name, recipe.seed)
    if where.estimate:
        from fpa.study.estimate import estimate_study

        there = None if where.overwrite else output
        return show_estimate(estimate_study(recipe, there, device=where.device))
    share = share_of(part or "job", wait=wait, device=where.device)
    refuse_overwriting(share, where)
    if share.size > 1 and repair:
        raise InputError("--repair is for one process: repair the study without torchrun, then continue")
    with Display(quiet=where.quiet or not share.job.first) as display:
        results = share_study(
            recipe,
            output,
            share,
            device=where.device,
            display=display,
            overwrite=where.overwrite,
            repair=repair,
        )
    if results is None:
        folders = [output / name for name in recipe.trainings()]
        return part_made(share, folders, shlex.join(["fpa", "report", str(output)]), where)
    return show(results, output, where.quiet)


def train(
    recipe: Recipe,
    *,
    augment: list[str] | None = None,
    seeds: list[int] | None = None,
    tracker: str | None = None,
    where: RunOptions,
) -> int:
    """Train the models of a recipe. If it is stopped, the same command continues.

    Args:
        recipe: Name of a recipe (fpa recipes lists them), or the path of a YAML file; default: shapes.
        augment: Which of the recipe's trainings to run, such as none,fpa; default: all.
        seeds: Several seeds, trained together, each in a folder of its own; default: the recipe's.
        tracker: tensorboard, wandb, mlflow or trackio.

    """
    from fpa.files import is_main_process
    from fpa.study import trainings

    if seeds is not None and (not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds)):
        listed = ",".join(map(str, seeds))
        raise InputError(f"--seeds must be different whole numbers of at least 0, got {listed}")
    folders = {}
    for seed in seeds or [recipe.seed]:
        folder = where.output or _default_folder(recipe.name, seed)
        folders[seed] = folder if where.output is None or seeds is None else folder / f"seed{seed}"
    if where.estimate:
        from fpa.study.estimate import estimate_trainings

        return show_estimate(estimate_trainings(recipe, folders, augment, device=where.device))
    with Display(quiet=where.quiet) as display:
        models = trainings.train(
            recipe,
            folders,
            variants=augment,
            tracker=tracker,
            display=display,
            device=where.device,
            overwrite=where.overwrite,
        )
    if not where.quiet and is_main_process():
        for each in models:
            accuracy = "" if each.accuracy is None else f"test accuracy {percent(each.accuracy):>7}"
            print(f"{each.name:<10} seed {each.seed}  {accuracy}  {each.path}")
    return 0


def report(folder: str, *, output: Path | None = None, overwrite: bool = False, quiet: bool = False) -> int:
    """Make the tables, figures and report of a study or an evaluation again.

    Args:
        folder: The folder of a study or an evaluation.
        output: Folder to write them to; default: the folder itself.
        overwrite: Replace tables, figures and report that are in --output.
        quiet: Show errors only.

    """
    from fpa.cli.folders import refuse_several
    from fpa.running import show_again

    refuse_several("fpa report")
    target = output or Path(folder)
    results = show_again(Path(folder), target, overwrite=overwrite)
    return show(results, target, quiet)


def compare(folders: list[str], *, output: Path = Path("runs/comparison"), quiet: bool = False) -> int:
    """Put several studies and evaluations side by side.

    Args:
        folders: Folders of studies and evaluations.
        output: Folder for the tables and figures.
        quiet: Show errors only.

    """
    from fpa.cli.folders import refuse_several
    from fpa.show import write_comparison
    from fpa.show.tables import comparison

    refuse_several("fpa compare")
    several = [fpa.read_results(folder) for folder in folders]
    write_comparison(several, output)
    if not quiet:
        Console().print(comparison(several))
        print(f"tables and figures: {output}")
    return 0


def recipes() -> int:
    """List the recipes that come with fpa."""
    from rich.table import Table

    from fpa.study.recipe import recipe_description, recipe_names

    table = Table("recipe", "data", "model", "epochs", "about", box=None)
    for name in recipe_names():
        recipe = fpa.load_recipe(name)
        columns = recipe.data.name, recipe.model, str(recipe.training.epochs)
        table.add_row(name, *columns, recipe_description(name))
    Console().print(table)
    return 0


def _default_folder(recipe: str, seed: int) -> Path:
    """Where the results of a recipe go if --output does not say: every seed but 0 has a folder of its own."""
    return default_output(recipe, seed and f"seed{seed}")
