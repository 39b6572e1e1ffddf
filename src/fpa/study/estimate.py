"""What a study takes, before it starts: its trainings and its evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fpa.data import ImageData, image_source
from fpa.engine.devices import check_device, chosen_device
from fpa.engine.engine import Engine
from fpa.engine.estimate import LIMIT, Estimate, Stage
from fpa.evaluation.estimate import estimate_case
from fpa.evaluation.examples import EXAMPLES
from fpa.evaluation.options import SubjectOptions
from fpa.evaluation.subject import Case, open_subject
from fpa.study.recipe import Recipe
from fpa.study.run import planned
from fpa.study.trainings import check_data, load_recipe_data, recipe_jobs
from fpa.training.estimate import estimate_training
from fpa.training.run import Job


def estimate_study(
    recipe: Recipe, folder: Path | str | None = None, *, device: str | None = None, seconds: float = LIMIT
) -> Estimate:
    """What training and evaluating the models of a recipe takes; of those in the `folder`, nothing."""
    check_device(device)
    data = load_recipe_data(recipe)
    check_data(recipe, data)
    place = None if folder is None else Path(folder)
    jobs = _untrained(recipe, place, data)
    stages: list[Stage] = []
    if jobs:
        workers = recipe.data.workers
        stages.append(estimate_training(jobs, data, device=device, workers=workers, seconds=seconds / 2))
    source = image_source(data, workers=recipe.data.workers)
    new = {job.name for job in jobs}
    # What was evaluated has examples, which are written last.
    left = [
        name
        for name in recipe.trainings()
        if place is None or name in new or not (place / name / EXAMPLES).exists()
    ]
    if left:
        plan = planned(recipe, source, data)
        # Untrained: the passes of a trained model take as long.
        model = recipe_jobs(recipe, Path(), data, left[:1])[0].model().to(chosen_device(device))
        subject = open_subject(Engine(model, precision=plan.precision), source, SubjectOptions(name=left[0]))
        examples = recipe.evaluation.examples
        (one,) = estimate_case(Case(subject, source, plan), examples=examples, seconds=seconds / 2).stages
        stages.append(_times(one, len(left)))
    return Estimate(tuple(stages), chosen_device(device), source.count)


def estimate_trainings(
    recipe: Recipe,
    folders: Mapping[int, Path],
    names: Sequence[str] | None = None,
    *,
    device: str | None = None,
) -> Estimate:
    """What the trainings of a recipe take, or those that are named, with each seed of the folders."""
    check_device(device)
    data = load_recipe_data(recipe)
    jobs: list[Job] = []
    for seed, folder in folders.items():
        jobs += _untrained(replace(recipe, seed=seed), folder, data, names)
    stages: tuple[Stage, ...] = ()
    if jobs:
        stages = (estimate_training(jobs, data, device=device, workers=recipe.data.workers),)
    return Estimate(stages, chosen_device(device))


def _untrained(
    recipe: Recipe, folder: Path | None, data: ImageData, names: Sequence[str] | None = None
) -> list[Job]:
    """The trainings that are not in the folder."""
    jobs = recipe_jobs(recipe, folder or Path(), data, names)
    return [job for job in jobs if folder is None or job.path is None or not job.path.exists()]


def _times(stage: Stage, models: int) -> Stage:
    """The same work for so many models, one after the other."""
    return replace(
        stage,
        seconds=models * stage.seconds,
        passes={kind: models * rows for kind, rows in stage.passes.items()},
        disk=models * stage.disk,
    )
