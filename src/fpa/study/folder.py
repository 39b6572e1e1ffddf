"""The folder of a study: its files, who may write them, what is damaged, and how it came to be.

recipe.yaml, manifest.json           what was asked for; versions, device, seeds, timings
VARIANT/model.safetensors            one folder per trained model, which also holds its evaluation
VARIANT/training.csv
VARIANT/evaluation.json, blocks/, examples.npz
table.csv, table.md, table.tex
figures/                             PNG and PDF
report.html
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fpa.errors import DamagedError, InputError, Misplaced, first_line, same_format
from fpa.evaluation.examples import EXAMPLES, read_examples
from fpa.evaluation.shards import DESCRIPTION, FILES, EvaluationFolder
from fpa.files import (
    LOCK,
    clear_temporaries,
    file_checksum,
    file_texts,
    is_busy,
    read_json,
    read_tensors,
    refuse_busy,
    refuse_links,
    writable_folder,
    write_json,
    write_text,
)
from fpa.progress import Display
from fpa.study.recipe import AUGMENTATIONS, Recipe, load_recipe
from fpa.training.differences import as_in_recipe, differences
from fpa.values import check_type

FORMAT = 2
"""Version of the folder's layout."""

FIGURES = (
    "curves-signed", "curves-unsigned", "definition-of-area", "fidelity", "fpa-examples", "lif-over-scores",
    "ranks", "score-agreement", "sign-fluctuation",
)  # fmt: skip
"""Names of the figures a study may have."""

SHOWN = ("tables", "figures", "report")
"""The stages of a study that follow from the results of the others."""

_PARTS = ("blocks", "timings", "compilation", "files")
"""Of manifest.json: mappings that are added to stage by stage."""

TRAINED = ("model.safetensors", "checkpoint.safetensors", "training.csv")
FIGURE_FILES = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("pdf", "png")]
SHOWN_FILES = ("table.csv", "table.md", "table.tex", *FIGURE_FILES, "report.html")


class StudyFolder:
    """The files of a study with these variants; nothing else in the folder is ever touched."""

    def __init__(self, path: Path, variants: Sequence[str] = AUGMENTATIONS) -> None:
        self.path = path
        self.variants = dict.fromkeys(variants)
        with suppress(InputError):  # there is no recipe, or it cannot be read: said elsewhere
            self.variants |= dict.fromkeys(load_recipe(str(path / "recipe.yaml")).trainings())

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders of a study."""
        return ("", "figures", *(part for name in self.variants for part in (f"{name}/blocks", name)))

    @property
    def files(self) -> list[Path]:
        """The files that have the names of a study's; the recipe last: without it the rest is not its own."""
        inner = [f"{name}/{file}" for name in self.variants for file in (*TRAINED, *FILES)]
        patterns = ["manifest.json", *inner, *SHOWN_FILES, "recipe.yaml"]
        return [path for pattern in patterns for path in sorted(self.path.glob(pattern)) if path.is_file()]

    def clear(self) -> None:
        """Remove a study's files; a folder that holds something else is refused."""
        others = self.path.exists() and any(path.name != LOCK for path in self.path.iterdir())
        if others and not (self.path / "recipe.yaml").exists():
            raise InputError(f"{self.path} is not empty and holds no study: nothing was removed")
        self.refuse_links()
        for path in self.files:
            path.unlink()
        self.clear_temporaries()
        for part in self.parts[1:]:
            with suppress(OSError):  # there is none, or something of somebody else's is in it
                (self.path / part).rmdir()

    def refuse_links(self) -> None:
        """Refuse a study of which a folder is a link: nothing is written or removed behind it."""
        refuse_links(self.path, self.parts[1:])

    def clear_temporaries(self) -> None:
        """Remove what a killed run left of files it was writing; where somebody is at work they are his."""
        if not any(is_busy(self.path / name) for name in self.variants):
            for part in self.parts:
                clear_temporaries(self.path / part)

    def damaged(self, recipe: Recipe | None = None) -> dict[Path, object]:
        """The files that cannot be read or, in a study of `recipe`, are foreign, with the reasons."""
        for path in self.files:
            if not os.access(path, os.R_OK):  # to be read by someone else, and not to be removed
                raise InputError(f"{path} cannot be read: you lack permission")

        foreign = {} if recipe is None else self.foreign(recipe)

        def evaluation(path: Path) -> None:
            stored = EvaluationFolder(path.parent)
            description = None
            if path.parent / DESCRIPTION not in foreign:  # which would make all others foreign
                with suppress(DamagedError):
                    description = stored.description()
            if path.name == EXAMPLES:
                read_examples(path.parent, None if description is None else description.origin)
            elif description is None:
                reasons: dict[Path, object] = {}
                for check in (stored.check_blocks, stored.description):
                    try:
                        check()
                    except DamagedError as error:
                        reasons |= error.reasons
                if reasons:
                    raise DamagedError(reasons)
            else:
                stored.read()

        readers: dict[str, Callable[[Path], Any]] = dict.fromkeys(TRAINED[:2], read_tensors)
        readers |= {"manifest.json": read_manifest, EXAMPLES: evaluation, DESCRIPTION: evaluation}
        # also where it is missing: there may be blocks
        descriptions = (self.path / name / DESCRIPTION for name in self.variants)
        damaged: dict[Path, object] = {}
        for path in dict.fromkeys([*self.files, *descriptions]):
            try:
                if path.name in readers:
                    readers[path.name](path)
            except DamagedError as error:
                damaged |= error.reasons
            except InputError as error:
                damaged[path] = error
        return damaged | foreign

    def foreign(self, recipe: Recipe) -> dict[Path, object]:
        """Models and evaluations of another training than the one in whose folder they are.

        Those of other settings than the recipe's are refused: it may be the recipe that was changed.
        """
        found: dict[Path, object] = {}
        others: dict[Path, list[str]] = {}
        for name, variant in recipe.trainings().items():
            model = self.path / name / TRAINED[0]
            description = self.path / name / DESCRIPTION
            with suppress(DamagedError):  # damage is found elsewhere
                card = _card(model)
                if card.get("variant", "") not in ("", name):
                    found[model] = Misplaced(f"it is the model of the training {card['variant']}")
                elif card:
                    others[model] = differences(recipe.description(variant), as_in_recipe(card["recipe"]))
            with suppress(DamagedError):
                evaluation = EvaluationFolder(description.parent).description()
                if evaluation is None:
                    continue
                if evaluation.subject.name != name:
                    found[description] = Misplaced(f"it is the evaluation of {evaluation.subject.name}")
                asked = {"seed": recipe.seed, "points": recipe.evaluation.points}
                made = {"seed": evaluation.plan.seed, "points": len(evaluation.plan.fractions)}
                others[description] = differences(asked, made)
        for path, changed in others.items():
            if changed:
                settings = f"was made with other settings than recipe.yaml has ({'; '.join(changed)})"
                raise InputError(f"{path} {settings}: restore recipe.yaml, or start afresh with --overwrite")
        return found

    def claim(self, recipe: Recipe, display: Display, *, overwrite: bool, repair: bool) -> None:
        """Take the folder for this recipe, or refuse what is there; damaged files are removed on request."""
        self.refuse_links()
        if overwrite or repair:
            for name in self.variants:
                refuse_busy(self.path / name)
        if overwrite:
            self.clear()
        self.restore_histories(display)
        path = self.path / "recipe.yaml"
        if path.exists():
            check_format(self.path)
            if changed := differences(recipe.to_dict(), stored_recipe(path).to_dict()):
                other = f"{self.path} holds a study of another recipe ({'; '.join(changed)})"
                raise InputError(f"{other}: choose another --output, or --overwrite to start afresh")
        else:
            self.refuse_others()
        damaged = self.damaged(recipe if path.exists() else None)
        if damaged and not (repair and path.exists()):  # without a recipe they may be of something else
            raise DamagedError(damaged)
        for file, reason in damaged.items():
            display.say(f"removed a damaged or foreign file: {file} ({reason})")
            file.unlink(missing_ok=True)
        writable_folder(self.path)
        self.clear_temporaries()
        if not path.exists():
            write_text(path, recipe.to_yaml())

    def restore_histories(self, display: Display) -> None:
        """Write a training.csv that was lost or changed again, as the manifest keeps it.

        Nothing else remembers the epochs once the checkpoint is gone. What was changed is kept beside it.
        """
        with suppress(DamagedError):  # which is said elsewhere
            manifest = self.path / "manifest.json"
            kept = read_manifest(manifest).get("histories", {}) if manifest.exists() else {}
            for path in (self.path / name / TRAINED[2] for name in self.variants):
                text = kept.get(str(path.relative_to(self.path)))
                if text is None or not path.with_name(TRAINED[0]).exists():
                    continue
                if path.is_file() and path.read_bytes() == text.encode():
                    continue
                if path.exists():
                    aside = path.replace(path.with_name(f"{path.name}.damaged"))
                    display.say(f"{path} was damaged: written again, and what it held is in {aside.name}")
                write_text(path, text)

    def refuse_others(self, remedy: str = "or move them") -> None:
        """Refuse a folder with files that a study would overwrite and that no study there has written.

        What training leaves is fine: it can be continued, and training refuses a model of another recipe.
        """
        folders = [self.path / name for name in self.variants]
        begun = [folder for folder in folders if any((folder / made).exists() for made in TRAINED[:2])]
        trained = {folder / file for folder in begun for file in TRAINED}
        if others := [str(path.relative_to(self.path)) for path in self.files if path not in trained]:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            raise InputError(
                f"{self.path} holds no study (there is no recipe.yaml), but files that would be overwritten: "
                f"{', '.join(others[:5])}{more}; choose another --output, {remedy}"
            )


def _card(path: Path) -> dict[str, Any]:
    """What a model file says of itself; empty where it is not there or says nothing."""
    try:
        card = json.loads(file_texts(path).get("fpa", "{}")) if path.exists() else {}
        if not card or (isinstance(card["recipe"], dict) and isinstance(card.get("variant", ""), str)):
            return dict(card)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError({path: first_line(error)}) from error
    raise DamagedError({path: "its description of itself cannot be read"})


def check_format(folder: Path) -> None:
    """Refuse a study of another format; a manifest that is missing or damaged is another matter."""
    with suppress(DamagedError):
        version = read_manifest(folder / "manifest.json").get("format")
        same_format(folder, version, FORMAT, "use that version, or choose another --output")


def read_manifest(path: Path) -> dict[str, Any]:
    """What manifest.json says, each part of it of the type that it is written with."""
    values = read_json(path)
    try:
        for part in (*_PARTS, "histories"):  # of which earlier versions wrote some, or none
            check_type(part, values.get(part, {}), dict)
        check_type("histories", values.get("histories", {}), dict[str, str])
        check_type("files", values.get("files", {}), dict[str, dict[str, str]])
    except InputError as error:
        raise DamagedError({path: error}) from error
    return values


def stored_recipe(path: Path) -> Recipe:
    """The recipe of a study, or an error that says what to do where it cannot be read."""
    try:
        return load_recipe(str(path))
    except InputError as error:
        raise InputError(f"{error}; restore {path}, or start afresh with fpa run and --overwrite") from error


class Manifest:
    """manifest.json: how the results came to be, added to stage by stage."""

    def __init__(self, folder: Path, seed: int, here: dict[str, Any]) -> None:
        self.path = folder / "manifest.json"
        self.here = here
        parts: dict[str, Any] = {name: {} for name in _PARTS}
        if self.path.exists():
            self.values = parts | read_manifest(self.path)
        else:
            self.values = {"format": FORMAT, **here, "seeds": {"seed": seed}, **parts}
            self._write()
        self.compilation: dict[str, float] = self.values["compilation"]
        """Seconds of each stage that were spent on compiling, part of its timing."""

    def shown(self, stage: str) -> bool:
        """Whether a stage has come to its end and its files are still there, unchanged."""
        files = self.values["files"].get(stage)
        known = stage in self.values["timings"] and isinstance(files, dict)
        return known and files == self._checksums(files)

    def note_files(self, stage: str, paths: Sequence[Path]) -> None:
        """Remember the files that a stage wrote."""
        names = sorted(str(path.relative_to(self.path.parent)) for path in paths)
        self.values["files"][stage] = self._checksums(names)

    def note_histories(self, paths: Sequence[Path], *, again: bool) -> None:
        """Remember the histories of the trainings, once, or again after one of them."""
        if again or "train" not in self.values["files"] or "histories" not in self.values:
            written = [path for path in paths if path.exists()]
            self.note_files("train", written)
            folder = self.path.parent
            texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in written}
            self.values["histories"] = texts
            self._write()

    def _checksums(self, names: Sequence[str] | dict[str, str]) -> dict[str, str]:
        paths = {name: self.path.parent / name for name in names}
        return {name: file_checksum(path) for name, path in paths.items() if path.is_file()}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; what follows from it must be made again. Time before a kill is not counted."""
        for stale in {name} if name in SHOWN else {name, *SHOWN}:
            self.values["timings"].pop(stale, None)
        # Every machine, device and version that took part is noted, each once.
        known = [{key: self.values.get(key) for key in self.here}, *self.values.get("also", [])]
        if name not in SHOWN and self.here not in known:
            self.values["also"] = [*known[1:], self.here]
        self._write()
        began = time.monotonic()
        yield
        self.values["timings"][name] = round(time.monotonic() - began, 2)
        self._write()

    def _write(self) -> None:
        write_json(self.path, self.values)
