"""Studies from the recipe to the report: run, then shown, and shown again; and what work would take."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, ParamSpec

from fpa.auditing.auditor import audit
from fpa.auditing.estimate import estimate_audit
from fpa.calling import renamed
from fpa.engine.estimate import Estimate
from fpa.errors import InputError
from fpa.evaluation.estimate import estimate_evaluation
from fpa.evaluation.evaluator import evaluate
from fpa.evaluation.result import Results
from fpa.evaluation.shards import DESCRIPTION
from fpa.evaluation.sharing import WAIT, Share, share_of
from fpa.files import folder_lock
from fpa.progress import Display, shown
from fpa.show import show_all
from fpa.study.estimate import estimate_study
from fpa.study.folder import SHOWN, Manifest, StudyFolder
from fpa.study.read import read_results
from fpa.study.recipe import Recipe
from fpa.study.run import FinishedStudy, finished_study, repeat_command
from fpa.training.finetuning import finetune
from fpa.training.tuning import TuningChoices, prepare_tuning
from fpa.values import checked

P = ParamSpec("P")


@renamed(output="folder", display="progress")
@checked
def run_study(
    recipe: Recipe,
    folder: Path | str,
    *,
    device: str | None = None,
    progress: bool | Display = True,
    overwrite: bool = False,
    repair: bool = False,
    part: str | None = None,
    wait: float = WAIT,
) -> Results:
    """Run a recipe into a folder, continuing with what is there; returns the results.

    The folder gets models, curves, tables, figures and a report. `overwrite` throws away a study of another
    recipe first; `repair` throws away damaged files, so that they are made again. The folder is locked while
    models are trained and results are shown: another run into it is refused. `progress=False` shows no
    progress. Where several processes were started together (torchrun, accelerate, srun), all call this: they
    train together and share the blocks of images, and one shows the results when all are there; `wait` as in
    `fpa.evaluate`. With `part` all, this process does all by itself.
    """
    share = share_of(part or "job", wait=wait, device=device)
    if share.is_part:
        raise InputError("a part of a study has no results: use the command fpa run with --part")
    with shown(progress) as display:
        made = share_study(
            recipe, folder, share, device=device, display=display, overwrite=overwrite, repair=repair
        )
    # The others of a job may read when the first has written everything.
    share.decided(lambda: None)
    return read_results(folder) if made is None else made


def share_study(
    recipe: Recipe,
    folder: Path | str,
    share: Share,
    *,
    device: str | None,
    display: Display,
    overwrite: bool = False,
    repair: bool = False,
) -> Results | None:
    """Run this process's share of a study; the results, where it puts them together."""
    with finished_study(
        recipe, folder, device=device, display=display, overwrite=overwrite, repair=repair, share=share
    ) as study:
        if study is None:
            return None
        _show(study)
        return study.results


def estimate(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> Estimate:
    """What `evaluate`, `audit`, `finetune` or `run_study` would take with these arguments, in 10 seconds.

    A few passes are timed, all others are counted; nothing stays on the disk. An image, or a step, that takes
    longer than that is waited for.

    >>> import fpa, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> found = estimate(fpa.evaluate, net, torch.randn(100, 1, 4, 4), ["ig_sum", "vg_abs"], points=5)
    >>> found.stages[0].passes["gradients"]
    20100
    """
    known: dict[Any, Any] = {
        evaluate: estimate_evaluation,
        audit: estimate_audit,
        finetune: _tuning,
        run_study: _study,
    }
    asked: Any = function
    if asked not in known:
        names = ", ".join(f"fpa.{each.__name__}" for each in known)
        raise InputError(f"there is an estimate of {names}; got {getattr(asked, '__name__', asked)!r}")
    made: Estimate = known[asked](*arguments, **named)
    return made


def _tuning(*arguments: Any, **named: Any) -> Estimate:
    """What `finetune` takes with these arguments."""
    given = inspect.signature(finetune).bind(*arguments, **named).arguments
    own = {item.name for item in fields(TuningChoices)}
    choices = TuningChoices(**{name: value for name, value in given.items() if name in own})
    return prepare_tuning(given["model"], given["data"], choices).estimate()


def _study(
    recipe: Recipe, folder: Path | str | None = None, *, device: str | None = None, **others: Any
) -> Estimate:
    """What `run_study` takes with these arguments."""
    return estimate_study(recipe, None if others.get("overwrite") else folder, device=device)


def show_again(folder: Path, output: Path, *, overwrite: bool = False) -> Results:
    """Make the tables, figures and report of a study or an evaluation again, into `output`."""
    results = read_results(folder)
    if elsewhere := output.resolve() != folder.resolve():
        if any((output / name).exists() for name in ("recipe.yaml", DESCRIPTION)):
            raise InputError(f"{output} holds another study or evaluation: choose another --output")
        if not overwrite:
            StudyFolder(output).refuse_others("or --overwrite to replace them")
    with folder_lock(output):
        if elsewhere or results.recipe is None:
            show_all(results, output, repeat_command(folder))
        else:
            manifest = Manifest(folder, int(results.recipe["seed"]), {})
            manifest.values["files"].clear()  # so that all are made
            _show(FinishedStudy(results, folder, manifest, Display(quiet=True)))
    return results


def _show(study: FinishedStudy) -> None:
    """Make the tables, figures and report of a study, each unless it is there, unchanged."""
    for stage in SHOWN:
        if study.manifest.shown(stage):
            study.display.skipped(stage)
        else:
            with study.display.making(stage), study.manifest.stage(stage):
                command = repeat_command(study.folder)
                paths = show_all(study.results, study.folder, command, only=[stage])[stage]
                study.manifest.note_files(stage, paths)
