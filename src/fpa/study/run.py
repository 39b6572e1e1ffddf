"""A whole study: train, explain, perturb and score, in stages that are skipped when they are done."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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
from fpa.evaluation.sharing import Share
from fpa.evaluation.subject import Case, open_subject
from fpa.files import folder_lock, refuse_busy
from fpa.models.saved import fingerprint, load_model
from fpa.progress import Display, curves_stage, training_stage
from fpa.study.folder import SHOWN, Manifest, StudyFolder
from fpa.study.read import read_study
from fpa.study.recipe import Recipe
from fpa.study.trainings import check_data, load_recipe_data, recipe_jobs, train

_TURN = 60.0
"""Seconds to wait for one's turn to look at the folder of a study, all of whose blocks are checked."""


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
    share: Share | None = None,
) -> Iterator[FinishedStudy | None]:
    """Train and evaluate the models of a recipe, continuing with what is in the folder `output`.

    The folder is locked while models are trained, and while the caller does something with the results. The
    curves are made by all who share the study; None is what they get who do not put the results together.
    """
    display = display or Display(quiet=True)
    share = share or Share()
    folder = Path(output)
    # All that can be refused is refused before the folder is touched: --overwrite deletes what is there.
    check_device(device)
    data = load_recipe_data(recipe)
    check_data(recipe, data)
    source = image_source(data, workers=recipe.data.workers)
    work = _Work(
        recipe=recipe,
        folder=folder,
        data=data,
        source=source,
        plan=planned(recipe, source, data),
        share=share,
        device=device,
        display=display,
    )
    with ExitStack() as locks:
        share.decided(lambda: _claim(work, locks, overwrite=overwrite, repair=repair))
        # What is written of a study besides blocks, one process writes.
        manifest = Manifest(folder, recipe.seed, circumstances(device)) if share.finishes else None
        if share.is_part:
            _check_trained(recipe, folder)
            Manifest(folder, recipe.seed, circumstances(device))  # of a study that was only trained so far
        else:
            _train(work, manifest)
    for name in recipe.trainings():
        _evaluate(work, folder / name, manifest)
    if manifest is None:
        yield None
        return
    with folder_lock(folder, share.wait * 60):
        yield FinishedStudy(read_study(folder), folder, manifest, display)


@dataclass(frozen=True)
class _Work:
    """A study and who makes it."""

    recipe: Recipe
    folder: Path
    data: ImageData
    source: ImageSource
    plan: Plan
    share: Share
    device: str | None
    display: Display


def _claim(work: _Work, locks: ExitStack, *, overwrite: bool, repair: bool) -> None:
    """Take the folder for the recipe; it stays locked until the models are trained."""
    folder = work.folder
    variants = work.recipe.trainings()
    # Parts that start at once wait for their turn; nobody else does.
    patience = _TURN if work.share.is_part else 0.2
    locks.enter_context(folder_lock(folder, patience))
    stored = StudyFolder(folder, [*variants])
    stored.refuse_links()  # before anything is locked there
    for name in variants:  # also a run into one of its parts is kept out
        if (folder / name).is_dir():
            locks.enter_context(folder_lock(folder / name, patience))
    stored.claim(work.recipe, work.display, overwrite=overwrite, repair=repair)
    # Those that were not there yet too, or are gone now.
    for name in variants:
        locks.enter_context(folder_lock(folder / name, patience))
    stages = {name: training_stage(name, variant.seed or 0) for name, variant in variants.items()}
    work.display.plan([*stages.values()], [*map(curves_stage, variants)], *([stage] for stage in SHOWN))


def _check_trained(recipe: Recipe, folder: Path) -> None:
    """Refuse to make a part of the curves of models that are not there: parts cannot train together."""
    missing = [name for name in recipe.trainings() if not (folder / name / "model.safetensors").exists()]
    if missing:
        remedy = "train first (fpa train, with the same recipe and --output), then start the parts"
        raise InputError(f"{folder} has no trained {', '.join(missing)}: {remedy}")
    train(recipe, folder)  # refuses models of another recipe


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


def _train(work: _Work, manifest: Manifest | None) -> None:
    """Train the models that are missing; where none is, check that those there are the recipe's.

    All processes of a job train together, and all see the same models missing.
    """
    recipe = work.recipe
    folder = work.folder
    variants = recipe.trainings()
    missing = work.share.decided(
        lambda: [name for name in variants if not (folder / name / "model.safetensors").exists()]
    )
    for name in variants.keys() - missing:
        work.display.skipped(training_stage(name, variants[name].seed or 0))
    if not missing:
        if manifest is not None:
            train(recipe, folder, data=work.data, device=work.device)
    elif manifest is None:
        train(recipe, folder, data=work.data, device=work.device)
    else:
        timings = manifest.compilation
        with manifest.stage("train"):
            train(recipe, folder, data=work.data, device=work.device, display=work.display, timings=timings)
    if manifest is not None:
        manifest.note_histories([folder / name / "training.csv" for name in variants], again=bool(missing))


def _evaluate(work: _Work, folder: Path, manifest: Manifest | None) -> None:
    """Evaluate one model, into the folder that has its name, unless all its curves are there."""
    name = folder.name
    path = folder / "model.safetensors"
    model = load_model(path, chosen_device(work.device), architecture=work.recipe.model)
    engine = Engine(model, precision=work.plan.precision)
    if work.share.decided(lambda: _evaluated(engine, work, folder)):
        work.display.skipped(curves_stage(name))
        return
    case = Case(open_subject(engine, work.source, SubjectOptions(name=name)), work.source, work.plan)
    with nullcontext() if manifest is None else manifest.stage(f"evaluate {name}"):
        made = carry_out(
            case,
            folder,
            examples=work.recipe.evaluation.examples,
            with_scores=False,  # over the images that all models of the study keep, once all are there
            progress=work.display.evaluating(name, case.source.count),
            share=work.share,
        )
        work.display.unreadable(case.source.lost)
        if manifest is not None and made.loaded is not None:
            manifest.values["blocks"][name] = made.loaded.description.block_size
            compiled = case.subject.engine.compile_seconds
            if compiled:
                manifest.compilation[f"evaluate {name}"] = round(compiled, 2)


def _evaluated(engine: Engine, work: _Work, folder: Path) -> bool:
    """Whether the folder holds all the curves of this model; those of another model are removed."""
    plan = work.plan
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
        refuse_busy(folder)
        work.display.say(f"{folder.name}: the curves were made with another model; making them again")
        stored.clear()
    # refuses curves of another plan
    if description is None or stored.images_a_block(asked) is None:
        return False
    if not stored.blocks or not (folder / EXAMPLES).exists():
        return False
    evaluation, _ = read_evaluation(folder)
    return evaluation.complete and evaluation.indices.tolist() == work.data.evaluation.tolist()


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
