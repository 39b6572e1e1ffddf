"""Reading a study's results."""

import csv
import json
import warnings
from importlib import resources
from pathlib import Path

from fpa.errors import InputError, differences
from fpa.evaluation.shards import Evaluation, read_evaluation
from fpa.explanation.estimator import Estimator
from fpa.explanation.explainer import SETS, get_estimators
from fpa.files import (
    read_json,
)
from fpa.models.saved import read_card
from fpa.scores.fidelity import common_images
from fpa.statistics.contradictions import reliability
from fpa.study.folder import _check_format, _read_examples, _stored_recipe
from fpa.study.recipe import Recipe, load_recipe, recipe_names
from fpa.study.results import ModelResult, Study


def read_study(folder: Path | str) -> Study:
    """The results in a study's folder, scored over the images that all its models keep."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if (folder / "curves" / "evaluation.json").exists() and not (folder / "recipe.yaml").exists():
        raise InputError(
            f"{folder} holds the evaluation of one model, with its own report.html, and no study"
        )
    if not (folder / "recipe.yaml").exists():
        raise InputError(f"{folder} holds no study: there is no recipe.yaml")
    _check_format(folder)
    with _stored_recipe(folder / "recipe.yaml"):
        recipe = load_recipe(str(folder / "recipe.yaml"))
    manifest = read_json(folder / "manifest.json")
    for key in ("files", "also"):  # for going on with the study; they say nothing about its results
        manifest.pop(key, None)
    evaluations: dict[str, Evaluation] = {}
    for name in recipe.trainings():
        found = read_evaluation(folder / name / "curves")
        if not found.complete:
            raise InputError(
                f"{folder / name / 'curves'} is not complete: run the study again to go on with it"
            )
        evaluations[name] = found
    estimators = recipe_estimators(recipe)
    signed = {name: one.signed for name, one in estimators.items() if one.raw != "random"}
    keep = common_images(*(found.unmasked for found in evaluations.values()))
    models, classes = {}, []
    for name, found in evaluations.items():
        card = read_card(folder / name / "model.safetensors")
        classes = card.classes
        fidelity = {estimator: found.fidelity(estimator, keep=keep) for estimator in estimators}
        models[name] = ModelResult(
            augmentation=name,
            accuracy=float((found.labels == found.targets).mean()),
            history=_read_history(folder / name / "training.csv"),
            evaluation=found,
            fidelity=fidelity,
            reliability=reliability(fidelity, signed),
            examples=_read_examples(folder / name / "examples.npz"),
        )
    return Study(recipe.name, recipe, classes, models, signed, manifest, published(recipe), folder)


def recipe_estimators(recipe: Recipe) -> dict[str, Estimator]:
    """The estimators a recipe names, sets spelled out."""
    names = [name for given in recipe.evaluation.estimators for name in SETS.get(given, [given])]
    return get_estimators(names)


def published(recipe: Recipe) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's numbers where the recipe is the paper's: augmentation -> estimator -> (A, half-width)."""
    numbers = json.loads((resources.files("fpa.study") / "published.json").read_text(encoding="utf-8"))
    if recipe.name not in numbers or recipe.name not in recipe_names():
        return {}
    changed = differences(recipe.to_dict(), load_recipe(recipe.name).to_dict())
    if any(not line.startswith(("seed:", "augmentations:", "data.evaluation_images:")) for line in changed):
        return {}
    return {
        augmentation: {
            name: (area, width) for name, (area, width) in zip(numbers["estimators"], rows, strict=True)
        }
        for augmentation, rows in numbers[recipe.name].items()
    }


def _read_history(path: Path) -> dict[str, list[float | None]]:
    """The columns of a training's history; empty where the file is missing or cannot be understood."""
    if not path.exists():
        return {}
    try:
        names, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines(), strict=True)
        if "epoch" not in names:
            raise ValueError("it has no column epoch")
        columns = zip(*rows, strict=True) if rows else [() for _ in names]
        return {
            name: [float(value) if value else None for value in column]
            for name, column in zip(names, columns, strict=True)
        }
    except (OSError, ValueError, csv.Error) as error:
        warnings.warn(f"{path} is damaged ({error}): the history of this training is left out", stacklevel=2)
        return {}
