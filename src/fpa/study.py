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

import csv
import json
import os
import platform
import shlex
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpa import __version__
from fpa.blocks import SHARDS, Evaluation, evaluate_blocks, fingerprint, read_blocks, read_evaluation
from fpa.data import ImageData, Normalisation, evaluation_batches, unreadable
from fpa.engine import Engine, Precision
from fpa.errors import DamagedError, InputError
from fpa.estimators import SETS, Estimator, Method, Settings, get_estimators
from fpa.evaluation import make_examples
from fpa.fidelity import common_images, reliability
from fpa.masking import Masking, get_masking
from fpa.models import load_model, model_path, read_card, read_tensors
from fpa.progress import Display, curves_stage, training_stage
from fpa.recipe import AUGMENTATIONS, Recipe, differences, load_recipe, recipe_names, recipe_values
from fpa.results import SHOWN, Examples, ModelResult, Study
from fpa.sources import labels_for, relabelled
from fpa.store import (
    clear_temporaries,
    read_arrays,
    read_json,
    replacing,
    writable_folder,
    write_arrays,
    write_text,
)
from fpa.tables import latex, markdown, results_table
from fpa.train import check_data, check_device, load_recipe_data, train

FORMAT = 1
"""Version of the folder's layout."""

FIGURES = (
    "curves-signed",
    "curves-unsigned",
    "definition-of-area",
    "fidelity",
    "fpa-examples",
    "lif-over-scores",
    "ranks",
    "sign-fluctuation",
)
"""Names of the figures a study may have."""

_TRAINED = ("model.safetensors", "checkpoint.safetensors", "training.csv")
_CURVES = ("curves/evaluation.json", f"curves/{SHARDS}")
_WRITTEN = (
    "manifest.json",
    *(f"{name}/{file}" for name in AUGMENTATIONS for file in (*_TRAINED, *_CURVES, "examples.npz")),
    *("table.csv", "table.md", "table.tex"),
    *(f"figures/{name}.{kind}" for name in FIGURES for kind in ("pdf", "png")),
    "report.html",
    "recipe.yaml",  # removed last: without it the rest would be somebody else's
)
_PARTS = ("", "figures", *(f"{name}/curves" for name in AUGMENTATIONS), *AUGMENTATIONS)


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
    if sum(one.raw != "random" for one in estimators.values()) < 2:
        raise InputError(
            f"evaluation.estimators must name at least two besides random, got {', '.join(estimators)}"
        )
    for name, one in estimators.items():
        if isinstance(one.raw, Method):
            one.raw.check(name, data.evaluation.tolist(), data.input_shape)
    if len(data.evaluation) < 2:
        raise InputError("data.evaluation_images must be at least 2")


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
    for name in recipe.augmentations:
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
    numbers = json.loads((resources.files("fpa") / "published.json").read_text(encoding="utf-8"))
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
    from fpa.figures import overview, save
    from fpa.tables import comparison_table

    writable_folder(output)
    write_text(output / "comparison.csv", comparison_table(studies).to_csv(index=False, float_format="%.6g"))
    for signed, kind in ((True, "signed"), (False, "unsigned")):
        if any(signed in study.signed.values() for study in studies):
            save(overview(studies, signed=signed), output / f"overview-{kind}")
        else:  # one of an earlier comparison would be taken for this one's
            for suffix in ("png", "pdf"):
                (output / f"overview-{kind}.{suffix}").unlink(missing_ok=True)


def clear_study(folder: Path) -> None:
    """Remove a study's files, and nothing else; a folder that holds something else is refused."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "recipe.yaml").exists():
        raise InputError(f"{folder} is not empty and holds no study: nothing was removed")
    for path in _study_files(folder):
        path.unlink()
    for part in _PARTS:
        clear_temporaries(folder / part)
    for part in _PARTS[1:]:
        if (folder / part).is_dir() and not any((folder / part).iterdir()):
            (folder / part).rmdir()


def damaged_files(folder: Path) -> dict[Path, object]:
    """The files of a study that cannot be read, and blocks that nothing describes, with the reasons."""
    for path in _study_files(folder):
        if not os.access(path, os.R_OK):  # to be read by someone else, and not to be removed
            raise InputError(f"{path} cannot be read: you lack the permission")
    readers: list[tuple[Path, Callable[[Path], Any]]] = [(folder / "manifest.json", read_json)]
    for name in AUGMENTATIONS:
        part = folder / name
        readers += [
            (part / "model.safetensors", read_tensors),
            (part / "checkpoint.safetensors", read_tensors),
        ]
        readers += [(part / "curves", read_blocks), (part / "examples.npz", _read_examples)]
    damaged: dict[Path, object] = {}
    for path, read in readers:
        try:
            if path.exists():
                read(path)
        except DamagedError as error:
            damaged |= error.reasons
        except InputError as error:
            damaged[path] = error
    return damaged


def _claim(folder: Path, recipe: Recipe, overwrite: bool, repair: bool, display: Display) -> None:
    """Take the folder for this recipe, or refuse what is there; damaged files are removed on request."""
    if overwrite:
        clear_study(folder)
    path = folder / "recipe.yaml"
    if path.exists():
        _check_format(folder)
        with _stored_recipe(path):
            changed = differences(recipe.to_dict(), recipe_values(str(path)))
        if changed:
            raise InputError(
                f"{folder} holds a study of another recipe ({'; '.join(changed)}): choose another --output, "
                "or --overwrite to start anew"
            )
    else:
        _refuse_others(folder)
    damaged = damaged_files(folder)
    if damaged and not (repair and path.exists()):  # without a recipe they may be of something else
        raise DamagedError(damaged)
    for file, reason in damaged.items():
        display.say(f"removed a damaged file: {file} ({reason})")
        file.unlink()
    writable_folder(folder)
    for part in _PARTS:
        clear_temporaries(folder / part)
    if not path.exists():
        write_text(path, recipe.to_yaml())


def _check_format(folder: Path) -> None:
    """Refuse a study of another format; a manifest that is missing or damaged is another matter."""
    try:
        found = read_json(folder / "manifest.json").get("format")
    except DamagedError:
        return
    if found != FORMAT:
        raise InputError(
            f"{folder} was written by another version of fpa (format {found}, this one reads {FORMAT}): "
            "use that version, or choose another --output"
        )


@contextmanager
def _stored_recipe(path: Path) -> Iterator[None]:
    """Says what to do where the recipe of a study cannot be read."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{error}; restore {path}, or start the study anew with fpa run and --overwrite"
        ) from error


def _study_files(folder: Path) -> list[Path]:
    """The files in a folder that have the names of a study's."""
    return [path for pattern in _WRITTEN for path in sorted(folder.glob(pattern)) if path.is_file()]


def _refuse_others(folder: Path, remedy: str = "or move them") -> None:
    """Refuse a folder with files that a study would overwrite and that no study there has written.

    What training leaves is none: going on with it is safe, training refuses a model of another recipe.
    """
    trained = {
        folder / name / file
        for name in AUGMENTATIONS
        if any((folder / name / made).exists() for made in _TRAINED[:2])
        for file in _TRAINED
    }
    found = [str(path.relative_to(folder)) for path in _study_files(folder) if path not in trained]
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise InputError(
            f"{folder} holds no study (there is no recipe.yaml), but files that would be overwritten: "
            f"{', '.join(found[:5])}{more}; choose another --output, {remedy}"
        )


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


def _read_examples(path: Path) -> Examples | None:
    if not path.exists():
        return None
    try:
        return Examples.from_arrays(read_arrays(path))
    except (InputError, KeyError) as error:
        raise DamagedError({path: error}) from error


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


def _show_stages(study: Study, folder: Path, command: str) -> dict[str, Callable[[], Sequence[Path]]]:
    """What is made of the results, each with a function that makes it and returns its files."""

    def figures() -> Sequence[Path]:
        from fpa.figures import save_study_figures

        return save_study_figures(study, folder / "figures")

    def report() -> Sequence[Path]:
        from fpa.report import write_report

        return [write_report(study, folder / "report.html", command)]

    return {"tables": lambda: write_tables(study, folder), "figures": figures, "report": report}


def _sizes(paths: Sequence[Path], folder: Path) -> dict[str, int]:
    """The sizes of files by their names in a folder."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(paths)}


def _circumstances(device: str | None) -> dict[str, Any]:
    """What a result may depend on beside the recipe."""
    import torchvision

    place = chosen_device(device)
    versions = {"fpa": __version__, "torch": torch.__version__, "torchvision": torchvision.__version__}
    return {
        "versions": versions | {"numpy": np.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name() if place == "cuda" else place,
        "threads": torch.get_num_threads(),
    }


class _Manifest:
    """manifest.json: how the results came to be, added to stage by stage."""

    def __init__(self, folder: Path, recipe: Recipe, device: str | None) -> None:
        self.path = folder / "manifest.json"
        self.values: dict[str, Any]
        self.here = _circumstances(device)
        if self.path.exists():
            self.values = read_json(self.path)
            for key in ("blocks", "timings", "compilation", "files"):
                self.values.setdefault(key, {})
            return
        self.values = {
            "format": FORMAT,
            **self.here,
            "seeds": {"seed": recipe.seed},
            "blocks": {},
            "timings": {},
            "compilation": {},
            "files": {},
        }
        self._write()

    @property
    def compilation(self) -> dict[str, float]:
        """Seconds of each stage that were spent on compiling, part of its timing."""
        seconds: dict[str, float] = self.values["compilation"]
        return seconds

    def shown(self, stage: str) -> bool:
        """Whether a stage has come to its end and all its files are still there, as large as they were."""
        files, folder = self.values["files"].get(stage), self.path.parent
        if stage not in self.values["timings"] or not isinstance(files, dict):
            return False  # earlier manifests have names without sizes
        return all((folder / name).is_file() for name in files) and files == _sizes(
            [folder / name for name in files], folder
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; what follows from it must be made again. Time before a kill is not counted."""
        timings = self.values["timings"]
        stale = {name, *SHOWN} if name not in SHOWN else {name}
        self.values["timings"] = {key: value for key, value in timings.items() if key not in stale}
        known = [{key: self.values.get(key) for key in self.here}, *self.values.get("also", [])]
        if name not in SHOWN and self.here not in known:
            self.values["also"] = [*known[1:], self.here]
        self._write()
        began = time.monotonic()
        yield
        self.values["timings"][name] = round(time.monotonic() - began, 2)
        self._write()

    def _write(self) -> None:
        write_text(self.path, json.dumps(self.values, indent=2) + "\n")


def chosen_device(device: str | None) -> str:
    """The device asked for, or the best there is."""
    if device is not None:
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
