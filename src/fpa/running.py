"""Studies from the recipe to the report: run, then shown, and shown again."""

from pathlib import Path

from fpa.calling import renamed
from fpa.errors import InputError
from fpa.evaluation.result import Results
from fpa.evaluation.shards import DESCRIPTION
from fpa.files import folder_lock
from fpa.progress import Display, shown
from fpa.show import show_all
from fpa.study.folder import SHOWN, Manifest, StudyFolder
from fpa.study.read import read_results
from fpa.study.recipe import Recipe
from fpa.study.run import FinishedStudy, finished_study, repeat_command
from fpa.values import checked


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
) -> Results:
    """Run a recipe into a folder, continuing with what is there; returns the results.

    The folder gets models, curves, tables, figures and a report. `overwrite` throws away a study of another
    recipe first; `repair` throws away damaged files, so that they are made again. The folder is locked
    meanwhile: another run into it is refused. `progress=False` shows no progress.
    """
    with (
        shown(progress) as display,
        finished_study(
            recipe, folder, device=device, display=display, overwrite=overwrite, repair=repair
        ) as study,
    ):
        _show(study)
        return study.results


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
