"""The folder of a study: its files, who may write them, and what is damaged."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fpa import __version__
from fpa.engine.devices import chosen_device
from fpa.errors import DamagedError, InputError, differences
from fpa.evaluation.examples import Examples
from fpa.evaluation.shards import SHARDS, read_blocks
from fpa.files import (
    clear_temporaries,
    read_arrays,
    read_json,
    writable_folder,
    write_text,
)
from fpa.models.saved import read_tensors
from fpa.progress import Display
from fpa.study.recipe import AUGMENTATIONS, Recipe, recipe_values
from fpa.study.results import SHOWN

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


def _read_examples(path: Path) -> Examples | None:
    if not path.exists():
        return None
    try:
        return Examples.from_arrays(read_arrays(path))
    except (InputError, KeyError) as error:
        raise DamagedError({path: error}) from error


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
        "device": torch.cuda.get_device_name(place) if place.startswith("cuda") else place,
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
