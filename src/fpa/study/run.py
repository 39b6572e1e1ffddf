"""A whole study: train, explain, perturb and score, in stages that are skipped when they are done."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fpa.data import ImageData, ImageSource, image_source
from fpa.engine.devices import check_device, chosen_device
from fpa.engine.engine import Engine
from fpa.errors import DamagedError, InputError, at_least
from fpa.evaluation.description import Origin
from fpa.evaluation.evaluator import carry_out
from fpa.evaluation.examples import EXAMPLES
from fpa.evaluation.loop import made_with, suited
from fpa.evaluation.options import SubjectOptions
from fpa.evaluation.plan import Plan, plan_of
from fpa.evaluation.result import Results
from fpa.evaluation.shards import EvaluationFolder, read_evaluation
from fpa.evaluation.subject import Case, open_subject
from fpa.files import folder_lock
from fpa.models.saved import fingerprint, load_model
from fpa.progress import Display, curves_stage, training_stage
from fpa.study.folder import SHOWN, Manifest, StudyFolder
from fpa.study.read import read_study
from fpa.study.recipe import Recipe
from fpa.study.trainings import check_data, load_recipe_data, recipe_jobs, train


@dataclass(frozen=True)
class FinishedStudy:
    """A study whose models are trained and evaluated."""

    results: Results
    folder: Path
    manifest: Manifest
    display: Display


@contextmanager
def finished_study(
    recipe: Recipe,
    output: Path | str,
    *,
    device: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    repair: bool = False,
) -> Iterator[FinishedStudy]:
    """Train and evaluate the models of a recipe, continuing with what is in the folder `output`.

    The folder is locked, also while the caller does something with the results.
    """
    display = display or Display(quiet=True)
    folder = Path(output)
    # All that can be refused is refused before the folder is touched: --overwrite deletes what is there.
    check_device(device)
    data = load_recipe_data(recipe)
    check_data(recipe, data)
    source = image_source(data, workers=recipe.data.workers)
    plan = planned(recipe, source, data)
    variants = recipe.trainings()
    with folder_lock(folder), ExitStack() as parts:
        stored = StudyFolder(folder, [*variants])
        stored.refuse_links()  # before anything is locked there
        for name in variants:  # also a run into one of its parts is kept out
            if (folder / name).is_dir():
                parts.enter_context(folder_lock(folder / name))
        stored.claim(recipe, display, overwrite=overwrite, repair=repair)
        # Those that were not there yet too, or are gone now.
        for name in variants:
            parts.enter_context(folder_lock(folder / name))
        manifest = Manifest(folder, recipe.seed, circumstances(device))
        stages = {name: training_stage(name, variant.seed or 0) for name, variant in variants.items()}
        display.plan([*stages.values()], [*map(curves_stage, variants)], *([stage] for stage in SHOWN))
        _train(recipe, folder, data=data, device=device, display=display, manifest=manifest)
        for name in variants:
            model = load_model(
                folder / name / "model.safetensors", chosen_device(device), architecture=recipe.model
            )
            engine = Engine(model, precision=plan.precision)
            if _evaluated(engine, plan, data, folder / name, display):
                display.skipped(curves_stage(name))
            else:
                case = Case(open_subject(engine, source, SubjectOptions(name=name)), source, plan)
                _evaluate(case, recipe, folder / name, display=display, manifest=manifest)
        yield FinishedStudy(read_study(folder), folder, manifest, display)


def planned(recipe: Recipe, source: ImageSource, data: ImageData) -> Plan:
    """The plan of a recipe for its images, with the scores that can be computed of them.

    Refused is, before any training, what its models cannot be explained or perturbed by.
    """
    plan = plan_of(recipe.plan_options(source.normalisation))
    if sum(each.explains for each in plan.estimators.values()) < 2:
        named = ", ".join(plan.estimators)
        raise InputError(f"evaluation.estimators must name at least two explanations, got {named}")
    at_least("data.evaluation_images", source.count, 2)
    untrained = Engine(recipe_jobs(recipe, Path(), data)[0].model())
    for name, estimator in plan.estimators.items():
        estimator.raw.check_model(name, untrained, source.first)
    return suited(plan, source, untrained)


def _train(
    recipe: Recipe,
    folder: Path,
    *,
    data: ImageData,
    device: str | None,
    display: Display,
    manifest: Manifest,
) -> None:
    """Train the models that are missing; where none is, check that those there are the recipe's."""
    variants = recipe.trainings()
    missing = [name for name in variants if not (folder / name / "model.safetensors").exists()]
    for name in variants.keys() - missing:
        display.skipped(training_stage(name, variants[name].seed or 0))
    if missing:
        with manifest.stage("train"):
            train(recipe, folder, data=data, device=device, display=display, timings=manifest.compilation)
    else:
        train(recipe, folder, data=data, device=device)
    manifest.note_histories([folder / name / "training.csv" for name in variants], again=bool(missing))


def _evaluate(case: Case, recipe: Recipe, folder: Path, *, display: Display, manifest: Manifest) -> None:
    """Evaluate one model, into the folder that has its name."""
    name = folder.name
    with manifest.stage(f"evaluate {name}"):
        result = carry_out(
            case,
            folder,
            examples=recipe.evaluation.examples,
            with_scores=False,  # over the images that all models of the study keep, once all are there
            progress=display.evaluating(name, case.source.count),
        )
        display.unreadable(case.source.lost)
        manifest.values["blocks"][name] = result.description.block_size
        compiled = case.subject.engine.compile_seconds
        if compiled:
            manifest.compilation[f"evaluate {name}"] = round(compiled, 2)


def _evaluated(engine: Engine, plan: Plan, data: ImageData, folder: Path, display: Display) -> bool:
    """Whether the folder holds all the curves of this model; those of another model are removed."""
    stored = EvaluationFolder(folder)
    description = stored.description()
    asked = Origin(plan.stored(engine), fingerprint(engine.model))
    other = description is not None and description.model != asked.model
    if description is None:
        try:
            stored.images_a_block(asked)
        except DamagedError:  # blocks that nothing describes, and not of this model
            other = True
    if other:
        display.say(f"{folder.name}: the curves were made with another model; making them again")
        stored.clear()
    # refuses curves of another plan
    if description is None or stored.images_a_block(asked) is None:
        return False
    if not stored.blocks or not (folder / EXAMPLES).exists():
        return False
    evaluation, _ = read_evaluation(folder)
    return evaluation.complete and evaluation.indices.tolist() == data.evaluation.tolist()


def repeat_command(folder: Path) -> str:
    """What to type to make the results in a folder once more; a study into a folder beside its own.

    >>> repeat_command(Path("my runs/shapes"))
    "fpa run 'my runs/shapes/recipe.yaml' --output 'my runs/shapes-again'"
    """
    description = EvaluationFolder(folder).description()
    if description is not None:
        return description.subject.command or ""
    if folder.name in ("", ".."):
        folder = folder.resolve()
    return shlex.join(["fpa", "run", str(folder / "recipe.yaml"), "--output", f"{folder}-again"])


def circumstances(device: str | None) -> dict[str, Any]:
    """What a result may depend on beside the recipe."""
    import torchvision

    here = made_with(torch.device(chosen_device(device)))
    here["versions"]["torchvision"] = torchvision.__version__
    return {**here, "threads": torch.get_num_threads()}
