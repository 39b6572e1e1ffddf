"""A whole study: train, explain, perturb, score and show, in stages that are skipped when they are done.

A study is a folder:

    recipe.yaml, manifest.json                 what was asked for; versions, device, seeds, timings
    AUGMENTATION/model.safetensors             a folder a model
    AUGMENTATION/training.csv
    AUGMENTATION/curves/                       block-NNNNNN.parquet and evaluation.json, see blocks.py
    AUGMENTATION/examples.npz                  a few images with all maps
    table.csv, table.md, table.tex
    figures/                                   PNG and PDF
    report.html
"""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpa.data.labels import labels_for, relabelled
from fpa.data.normalisation import Normalisation
from fpa.data.splits import ImageData, evaluation_batches, unreadable
from fpa.engine import Engine, Precision
from fpa.engine.devices import check_device, chosen_device
from fpa.errors import InputError
from fpa.evaluation.examples import make_examples
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.shards import SHARDS, read_evaluation
from fpa.explanation import Estimator, Settings
from fpa.files import read_json, replacing, writable_folder, write_arrays, write_text
from fpa.masking import Masking, get_masking
from fpa.models.saved import fingerprint, load_model, model_path, read_card, read_tensors
from fpa.progress import Display, curves_stage, training_stage
from fpa.show.tables import latex, markdown, results_table
from fpa.study.folder import _CURVES, _claim, _Manifest, _refuse_others, _sizes
from fpa.study.read import read_study, recipe_estimators
from fpa.study.recipe import AUGMENTATIONS, Recipe
from fpa.study.results import SHOWN, Study
from fpa.training.trainer import check_data, load_recipe_data, train


def run_study(
    recipe: Recipe,
    output: Path | str,
    *,
    device: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    repair: bool = False,
) -> Study:
    """Run a recipe into the folder `output`, going on with what is there; returns the results.

    `overwrite` throws away a study of another recipe first; `repair` throws away damaged files, so that they
    are made again.
    """
    display = display or Display(quiet=True)
    folder = Path(output)
    check_device(device)
    data = load_recipe_data(recipe)
    check_data(recipe, data)
    check_evaluation(recipe, data)
    _claim(folder, recipe, overwrite, repair, display)
    manifest = _Manifest(folder, recipe, device)

    trained = {name: training_stage(name, recipe.seed) for name in recipe.augmentations}
    display.plan(list(trained.values()), [curves_stage(name) for name in trained], *([one] for one in SHOWN))
    missing = [name for name in trained if not (folder / name / "model.safetensors").exists()]
    for name in trained.keys() - missing:
        display.skipped(trained[name])
    if missing:
        with manifest.stage("train"):
            train(recipe, folder, data=data, device=device, display=display, timings=manifest.compilation)
    else:  # still checks that the models there are the recipe's
        train(recipe, folder, data=data, device=device)
    for name in recipe.augmentations:
        _evaluate_stage(folder / name, recipe, data, device, display, manifest)
    study = read_study(folder)
    for stage, make in _show_stages(study, folder, repeat_command(folder)).items():
        if manifest.shown(stage):
            display.skipped(stage)
        else:
            with display.making(stage), manifest.stage(stage):
                manifest.values["files"][stage] = _sizes(make(), folder)
    return study


def evaluate_model(
    model: Path | str,
    output: Path | str,
    *,
    recipe: Recipe,
    device: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
) -> Study:
    """Explain, perturb and score one saved model on the recipe's data: a study of one model.

    `model` is a file or the name of a shipped model. The images are normalised as the model's card says.
    """
    display = display or Display(quiet=True)
    check_device(device)
    folder, path = Path(output), model_path(model)
    card = read_card(path)
    name = card.augmentation if card.augmentation in AUGMENTATIONS else "none"
    recipe = replace(recipe, augmentations=[name])
    data = load_recipe_data(recipe)
    if card.input_shape != data.input_shape:
        raise InputError(f"{path} takes images {card.input_shape}, the data have {data.input_shape}")
    if card.classes != data.classes:
        numbers, note = labels_for(data.classes, len(card.classes), card.classes)
        if numbers is None:
            known, given = ", ".join(card.classes[:3]), ", ".join(data.classes[:3])
            raise InputError(f"{path} knows other classes ({known}, ...) than the data ({given}, ...)")
        if note:
            display.say(note)
        data = relabelled(data, card.classes, numbers)
    data = replace(data, normalisation=Normalisation(card.mean, card.std))
    check_evaluation(recipe, data)
    read_tensors(path)  # a damaged model is refused before it is copied
    if overwrite and folder.resolve() in path.resolve().parents:
        raise InputError(f"{path} lies in {folder}, which --overwrite would clear: choose another --output")
    _claim(folder, recipe, overwrite, False, display)
    place = writable_folder(folder / name) / "model.safetensors"
    if place.exists() and place.read_bytes() != path.read_bytes():
        raise InputError(f"{place} is another model: choose another --output, or --overwrite")
    if not place.exists():
        with replacing(place) as temporary:
            shutil.copyfile(path, temporary)
    manifest = _Manifest(folder, recipe, device)
    _evaluate_stage(folder / name, recipe, data, device, display, manifest)
    study = read_study(folder)
    write_tables(study, folder)
    return study


def check_evaluation(recipe: Recipe, data: ImageData) -> None:
    """Refuse, before anything is trained, an evaluation that could not be scored."""
    estimators = recipe_estimators(recipe)
    if sum(one.sign != "baseline" for one in estimators.values()) < 2:
        raise InputError(
            f"evaluation.estimators must name at least two besides random, got {', '.join(estimators)}"
        )
    for name, one in estimators.items():
        one.raw.check(name, data.evaluation.tolist(), data.input_shape)
    if len(data.evaluation) < 2:
        raise InputError("data.evaluation_images must be at least 2")


def write_tables(study: Study, folder: Path) -> list[Path]:
    """Write table.csv, table.md and table.tex."""
    texts = {
        "csv": results_table(study).to_csv(index=False, float_format="%.6g"),
        "md": markdown(study),
        "tex": latex(study),
    }
    for kind, text in texts.items():
        write_text(folder / f"table.{kind}", text)
    return [folder / f"table.{kind}" for kind in texts]


def show_again(folder: Path, output: Path, *, overwrite: bool = False) -> Study:
    """Make the tables, figures and report of a study again, in its own folder or in one that holds none.

    Files of these names in another folder are replaced with `overwrite` only, those of a study never.
    """
    study = read_study(folder)
    own = output.resolve() == folder.resolve()
    if not own:
        if (output / "recipe.yaml").exists():
            raise InputError(f"{output} holds another study: choose another --output")
        if not overwrite:
            _refuse_others(output, "move them, or --overwrite")
    writable_folder(output)
    stages = _show_stages(study, output, repeat_command(folder))
    made = {stage: _sizes(make(), output) for stage, make in stages.items()}
    if own:
        manifest = read_json(folder / "manifest.json")
        write_text(folder / "manifest.json", json.dumps({**manifest, "files": made}, indent=2) + "\n")
    return study


def repeat_command(folder: Path) -> str:
    """What to type to run a study's recipe anew, into a folder beside it: in its own all would be skipped.

    >>> repeat_command(Path("my runs/shapes"))
    "fpa run 'my runs/shapes/recipe.yaml' --output 'my runs/shapes-again'"
    """
    if folder.name in ("", ".."):
        folder = folder.resolve()
    return shlex.join(["fpa", "run", str(folder / "recipe.yaml"), "--output", f"{folder}-again"])


def compare_studies(studies: list[Study], output: Path) -> None:
    """A table and the overview figures of several studies, but none of a group that no study has."""
    from fpa.show.figures.results import overview
    from fpa.show.figures.style import save
    from fpa.show.tables import comparison_table

    writable_folder(output)
    write_text(output / "comparison.csv", comparison_table(studies).to_csv(index=False, float_format="%.6g"))
    for signed, kind in ((True, "signed"), (False, "unsigned")):
        if any(signed in study.signed.values() for study in studies):
            save(overview(studies, signed=signed), output / f"overview-{kind}")
        else:  # one of an earlier comparison would be taken for this one's
            for suffix in ("png", "pdf"):
                (output / f"overview-{kind}.{suffix}").unlink(missing_ok=True)


def _evaluate_stage(
    folder: Path,
    recipe: Recipe,
    data: ImageData,
    device: str | None,
    display: Display,
    manifest: "_Manifest",
) -> None:
    """Explain and perturb with one model, unless that is done."""
    curves, examples = folder / "curves", folder / "examples.npz"
    model = load_model(folder / "model.safetensors", chosen_device(device))
    described = curves / "evaluation.json"
    if described.exists() and read_json(described).get("model") != fingerprint(model):
        display.say(
            f"{folder.name}: the model is another one than the curves were made with, making them again"
        )
        for pattern in (*_CURVES, "examples.npz"):
            for path in folder.glob(pattern):
                path.unlink()
    evaluated = any(curves.glob(SHARDS)) and read_evaluation(curves).complete
    if evaluated:
        display.skipped(curves_stage(folder.name))
        if examples.exists():
            return
    masking = get_masking(recipe.masking, data.normalisation.mean, data.normalisation.std)
    asked = recipe.evaluation.precision
    engine = Engine(model, precision=None if asked == "auto" else Precision(asked, asked))
    settings = _settings(recipe, data)
    estimators = recipe_estimators(recipe)
    with manifest.stage(f"evaluate {folder.name}"):
        if not evaluated:
            lost: set[Path] = set()
            with display.evaluating(folder.name, len(data.evaluation)) as tell:
                evaluate_blocks(
                    engine,
                    _Batches(data, recipe.data.workers, lost),
                    curves,
                    estimators=estimators,
                    settings=settings,
                    masking=masking,
                    points=recipe.evaluation.points,
                    seed=recipe.seed,
                    progress=tell,
                )
            display.unreadable(lost)
        manifest.values["blocks"][folder.name] = read_json(described)["block"]
        if engine.compile_seconds:
            manifest.compilation[f"evaluate {folder.name}"] = round(engine.compile_seconds, 2)
        _write_examples(examples, engine, data, recipe, estimators, settings, masking)


class _Batches:
    """The evaluation images, normalised, with labels and numbers; those that cannot be read are noted."""

    def __init__(self, data: ImageData, workers: int, lost: set[Path]) -> None:
        self.data, self.workers, self.lost = data, workers, lost
        self.dataset = data.evaluation  # its length tells how many images there are

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        data = self.data
        batches = evaluation_batches(data.test, data.evaluation, 64, "cpu", workers=self.workers)
        for indices, images, labels in batches:
            self.lost.update(unreadable(data.test, indices, labels))
            good = labels >= 0
            yield data.normalisation(images[good]), labels[good], indices[good]


def _settings(recipe: Recipe, data: ImageData) -> Settings:
    chosen = recipe.evaluation
    reference: Any = chosen.reference
    if reference == "black":
        reference = get_masking("black", data.normalisation.mean, data.normalisation.std)
    return Settings(chosen.ig_steps, chosen.sg_samples, chosen.sigma, reference)


def _write_examples(
    path: Path,
    engine: Engine,
    data: ImageData,
    recipe: Recipe,
    estimators: Mapping[str, Estimator],
    settings: Settings,
    masking: Masking,
) -> None:
    """A few images, evenly over the evaluation set, with the maps the curves were made of."""
    count = min(recipe.evaluation.examples, len(data.evaluation))
    places = torch.linspace(0, len(data.evaluation) - 1, count).round().long()
    chosen = data.evaluation[places]
    _, images, labels = next(evaluation_batches(data.test, chosen, count, "cpu"))
    good = labels >= 0
    chosen, images, labels = chosen[good], images[good], labels[good]
    foreground = getattr(data.test, "foreground", None)
    found = make_examples(
        engine,
        data.normalisation(images),
        images.numpy(),
        lambda fill: data.normalisation.inverse(fill).mul(255).round().clamp(0, 255).byte().numpy(),
        chosen.tolist(),
        labels,
        estimators,
        settings,
        masking,
        recipe.seed,
        None if foreground is None else foreground[chosen].numpy(),
    )
    write_arrays(path, found.to_arrays())


def _show_stages(study: Study, folder: Path, command: str) -> dict[str, Callable[[], Sequence[Path]]]:
    """What is made of the results, each with a function that makes it and returns its files."""

    def figures() -> Sequence[Path]:
        from fpa.show.figures.results import save_study_figures

        return save_study_figures(study, folder / "figures")

    def report() -> Sequence[Path]:
        from fpa.show.report.page import write_report

        return [write_report(study, folder / "report.html", command)]

    return {"tables": lambda: write_tables(study, folder), "figures": figures, "report": report}
