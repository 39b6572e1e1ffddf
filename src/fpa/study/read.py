"""Reading results: of a study, or of a single evaluation."""

import csv
import json
import os
from importlib import resources
from pathlib import Path

from fpa.errors import DamagedError, InputError, warn
from fpa.evaluation.examples import read_examples
from fpa.evaluation.result import Result, Results
from fpa.evaluation.shards import DESCRIPTION, EvaluationFolder, load_result, named, read_evaluation
from fpa.files import WEIGHTS, file_checksum, file_texts
from fpa.scores.fidelity import common_images
from fpa.study.folder import StudyFolder, check_format, read_manifest, stored_recipe
from fpa.study.recipe import Recipe, load_recipe, recipe_names
from fpa.training.differences import differing
from fpa.values import checked


@checked
def read_results(folder: Path | str) -> Results:
    """The results in a folder: those of a study, or those of one evaluation."""
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise InputError(f"there is no folder {folder}")
    if (folder / "recipe.yaml").exists():
        return read_study(folder)
    if (folder / DESCRIPTION).exists():
        result = load_result(folder)
        if not result.evaluation.complete:
            raise InputError(
                f"{folder} is not complete{lacking(folder)}: run the same command again to continue"
            )
        return Results(result.name, {result.name: result}, about=result.about, folder=folder)
    raise InputError(f"{folder} holds no results: there is neither a recipe.yaml nor an {DESCRIPTION}")


def read_study(folder: Path | str) -> Results:
    """The results in a study's folder, scored over the images that all its models keep."""
    folder = Path(folder)
    if not (folder / "recipe.yaml").exists():
        raise InputError(f"{folder} holds no study: there is no recipe.yaml")
    check_format(folder)
    recipe = stored_recipe(folder / "recipe.yaml")
    manifest = read_manifest(folder / "manifest.json")
    known = manifest.pop("files", {}).get("train", {})
    kept = manifest.pop("histories", {})
    manifest.pop("also", None)  # for continuing the study; it says nothing about its results
    if foreign := StudyFolder(folder, [*recipe.trainings()]).foreign(recipe):
        raise DamagedError(foreign)
    evaluations = {name: read_evaluation(folder / name) for name in recipe.trainings()}
    for name, (evaluation, description) in evaluations.items():
        if not evaluation.complete:
            where = folder / name
            raise InputError(f"{where} is not complete{lacking(where)}: run the study again to continue")
        if (model := folder / name / "model.safetensors").exists():
            weights = file_texts(model).get(WEIGHTS)  # none where an earlier version wrote it
            if weights not in (None, description.model):
                wrong = "holds curves of other weights than those of its model"
                raise InputError(f"{folder / name} {wrong}: run the study again to make them anew")
    several = [evaluation for evaluation, _ in evaluations.values()]
    keep = common_images(*(each.unmasked for each in several)) if several[0].divided else None
    models = {}
    for name, (evaluation, description) in evaluations.items():
        part = folder / name
        examples = read_examples(part, description.origin)
        place = f"{name}/training.csv"
        history = read_history(folder / place, known.get(place), kept.get(place))
        models[name] = Result.of(name, evaluation, description, keep=keep, examples=examples, history=history)
    return Results(recipe.name, models, manifest, published(recipe), recipe=recipe.to_dict(), folder=folder)


def lacking(folder: Path) -> str:
    """Which blocks of an evaluation are missing, in brackets; nothing where that is not known."""
    stored = EvaluationFolder(folder)
    description = stored.description()
    missing = [] if description is None else stored.missing(description.numbers)
    return f" ({named(missing)} of {len(description.numbers)} missing)" if description and missing else ""


def published(recipe: Recipe) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's numbers where the recipe is the paper's: variant -> estimator -> (A, half-width)."""
    numbers = json.loads((resources.files("fpa.study") / "published.json").read_text(encoding="utf-8"))
    if recipe.name not in numbers or recipe.name not in recipe_names():
        return {}
    changed = differing(recipe.to_dict(), load_recipe(recipe.name).to_dict())
    # What is trained besides the paper's variants does not change those.
    others = {path for path in changed if path.partition(".")[0] != "variants"}
    if others - {"seed", "augmentations", "data.evaluation_images"}:
        return {}
    return {
        augmentation: dict(zip(numbers["estimators"], map(tuple, rows), strict=True))
        for augmentation, rows in numbers[recipe.name].items()
        if augmentation in recipe.augmentations
    }


def read_history(
    path: Path, checksum: str | None = None, kept: str | None = None
) -> dict[str, list[float | None]]:
    """The columns of a training's history; where the file is damaged or missing, those of the text `kept`.

    Empty where there is neither.
    """
    if path.exists():
        try:
            if checksum not in (None, file_checksum(path)):
                raise ValueError("its content does not match its checksum")
            return _columns(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, csv.Error) as error:
            told = "left out" if kept is None else "read from manifest.json"
            warn(f"{path} is damaged ({error}): the history of this training is {told}")
    if kept is None:
        return {}
    try:
        return _columns(kept)
    except (ValueError, csv.Error) as error:
        raise DamagedError({path: error}) from error


def _columns(text: str) -> dict[str, list[float | None]]:
    """The columns of a history in CSV; what is none is a ValueError."""
    names, *rows = csv.reader(text.splitlines(), strict=True)
    if "epoch" not in names:
        raise ValueError("it has no column epoch")
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    values = [[float(value) if value else None for value in column] for column in columns]
    return dict(zip(names, values, strict=True))
