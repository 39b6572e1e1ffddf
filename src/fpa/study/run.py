"""A whole study: train, explain, perturb, score and show, in stages that are skipped when they are done."""

import shlex
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from fpa.data import ImageData, image_source
from fpa.engine.devices import check_device, chosen_device
from fpa.engine.engine import Engine
from fpa.errors import DamagedError, InputError, at_least
from fpa.evaluation.description import Origin
from fpa.evaluation.evaluator import describe_subject
from fpa.evaluation.examples import EXAMPLES
from fpa.evaluation.loop import evaluate_blocks, made_with, suited
from fpa.evaluation.plan import Plan, make_plan
from fpa.evaluation.result import Results
from fpa.evaluation.shards import DESCRIPTION, EvaluationFolder, read_evaluation
from fpa.files import folder_lock
from fpa.models.saved import fingerprint, load_model
from fpa.progress import Display, curves_stage, training_stage
from fpa.study.folder import SHOWN, Manifest, StudyFolder
from fpa.study.read import read_results, read_study
from fpa.study.recipe import Recipe
from fpa.study.trainings import check_data, load_recipe_data, train
from fpa.values import checked


@checked
def run_study(
    recipe: Recipe,
    output: Path | str,
    *,
    device: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    repair: bool = False,
) -> Results:
    """Run a recipe into the folder `output`, continuing with what is there; returns the results.

    `overwrite` throws away a study of another recipe first; `repair` throws away damaged files, so that they
    are made again. The folder is locked meanwhile: another run into it is refused.
    """
    display, folder = display or Display(quiet=True), Path(output)
    check_device(device)
    data = load_recipe_data(recipe)
    check_data(recipe, data)
    how = recipe.evaluation
    names = ("outputs", "maps_of", "scores", "score_images")
    chosen: dict[str, Any] = {name: getattr(how, name) for name in names}
    chosen["masking"] = recipe.masking
    plan = make_plan(seed=recipe.seed, **chosen, **how.plan(data.normalisation))
    if sum(each.explains for each in plan.estimators.values()) < 2:
        named = ", ".join(plan.estimators)
        raise InputError(f"evaluation.estimators must name at least two explanations, got {named}")
    at_least("data.evaluation_images", len(data.evaluation), 2)
    plan = suited(plan, image_source(data))
    variants = recipe.trainings()
    with folder_lock(folder), ExitStack() as parts:
        for name in variants:  # also a run into one of its parts is kept out
            if (folder / name).is_dir():
                parts.enter_context(folder_lock(folder / name))
        StudyFolder(folder, [*variants]).claim(recipe, display, overwrite=overwrite, repair=repair)
        for name in variants:
            parts.enter_context(folder_lock(folder / name))
        manifest = Manifest(folder, recipe.seed, circumstances(device))
        stages = {name: training_stage(name, variant.seed or 0) for name, variant in variants.items()}
        display.plan([*stages.values()], [*map(curves_stage, variants)], *([stage] for stage in SHOWN))
        missing = [name for name in variants if not (folder / name / "model.safetensors").exists()]
        for name in variants.keys() - missing:
            display.skipped(stages[name])
        shown: dict[str, Any] = {"display": display, "timings": manifest.compilation} if missing else {}
        with manifest.stage("train") if missing else nullcontext():
            # where none is missing, this still checks that the models there are the recipe's
            train(recipe, folder, data=data, device=device, **shown)
        manifest.note_histories([folder / name / "training.csv" for name in variants], again=bool(missing))
        for name in variants:
            path = folder / name / "model.safetensors"
            model = load_model(path, chosen_device(device), architecture=recipe.model)
            engine = Engine(model, precision=plan.precision)
            if _evaluated(engine, plan, data, path.parent, display):
                display.skipped(curves_stage(name))
                continue
            source = image_source(data, workers=recipe.data.workers)
            described = describe_subject(engine, source, name)
            shown = {"examples": how.examples, "progress": display.evaluating(name, source.count)}
            with manifest.stage(f"evaluate {name}"):
                about = evaluate_blocks(engine, source, plan, path.parent, subject=described, **shown)
                display.unreadable(source.lost)
                manifest.values["blocks"][name] = about.block
                if engine.compile_seconds:
                    manifest.compilation[f"evaluate {name}"] = round(engine.compile_seconds, 2)
        return _show(read_study(folder), folder, display, manifest)


def _evaluated(engine: Engine, plan: Plan, data: ImageData, folder: Path, display: Display) -> bool:
    """Whether the folder holds all the curves of this model; those of another model are removed."""
    stored = EvaluationFolder(folder)
    described = stored.description()
    asked = Origin(plan.stored(engine), fingerprint(engine.model))
    other = described is not None and described.model != asked.model
    if described is None:
        try:
            stored.images_a_block(asked)
        except DamagedError:  # blocks that nothing describes, and not of this model
            other = True
    if other:
        display.say(f"{folder.name}: the curves were made with another model; making them again")
        stored.clear()
    # refuses curves of another plan
    if described is None or stored.images_a_block(asked) is None:
        return False
    if not stored.blocks or not (folder / EXAMPLES).exists():
        return False
    evaluation, _ = read_evaluation(folder)
    return evaluation.complete and evaluation.indices.tolist() == data.evaluation.tolist()


def _show(results: Results, folder: Path, display: Display, manifest: Manifest) -> Results:
    """Make the tables, figures and report of these results, each unless it is there, unchanged."""
    from fpa.show import show_all

    for stage in SHOWN:
        if manifest.shown(stage):
            display.skipped(stage)
        else:
            with display.making(stage), manifest.stage(stage):
                paths = show_all(results, folder, repeat_command(folder), only=[stage])[stage]
                manifest.note_files(stage, paths)
    return results


def show_again(folder: Path, output: Path, *, overwrite: bool = False) -> Results:
    """Make the tables, figures and report of a study or an evaluation again, into `output`."""
    from fpa.show import show_all

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
            _show(results, folder, Display(quiet=True), manifest)
    return results


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
