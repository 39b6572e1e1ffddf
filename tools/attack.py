"""Attacks the software and counts what it survives: `make attack`, a few minutes on two cores.

    python tools/attack.py                 # prints a table of trials, good and bad; exit code 1 if any is bad
    python tools/attack.py --write FILE    # and writes it, with what each attack is, to FILE
    python tools/attack.py --only flips    # one of them; --seed N: other draws; --scale 0.2: fewer trials

A study of a few images is run in forked processes, so that they can be killed, and its files are damaged,
exchanged and forged. Good is: the same tables in the end, or one line that says what is wrong before
anything is lost. Bad is: another result without a word, a traceback, a file that belongs to somebody else
changed, code run from a file, or memory and descriptors that grow.
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import attack_files
import attack_numbers
import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import fpa
from fpa import functional
from fpa.cli.main import COMMANDS, main
from fpa.data.shapes import draw_shapes
from fpa.models.saved import PRETRAINED
from fpa.progress import Display
from fpa.show.figures import results as figures
from fpa.show.tables import results_table
from fpa.study.folder import Manifest, StudyFolder
from fpa.study.read import read_study
from fpa.study.recipe import load_recipe

torch.set_num_threads(1)
# One figure stands for all: they are made alike, and take most of the time of so small a study.
figures.all_figures = lambda results: {"fidelity": figures.fidelity_dots(results)}
warnings.simplefilter("ignore")

FIELDS = {
    "augmentations": ["none", "fpa"],
    "data.train_images": 64,
    "data.evaluation_images": 8,
    "training.epochs": 2,
    "training.milestones": [],
    "evaluation.estimators": ["random", "vg_abs", "ig_sum"],
    "evaluation.ig_steps": 2,
    "evaluation.points": 3,
    "evaluation.examples": 1,
}
TABLES = ("table.csv", "table.md", "table.tex")
Outcome = tuple[int, str]
"""The exit code of a process, -9 if it was killed, and what it said."""


def study(folder: Path, seed: int = 0, **how: Any) -> None:
    """Run the small study."""
    fpa.run_study(load_recipe("tiny", {**FIELDS, "seed": seed}), folder, device="cpu", **how)


def child(work: Callable[[], Any], *, wait: bool = True) -> Any:
    """Run something in a process of its own: its outcome, or, without waiting, a function that waits."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, message = 0, ""
        try:
            os.close(reading)
            work()
        except fpa.InputError as error:
            code, message = 2, str(error)
        except BaseException as error:
            code, message = 1, f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
        with contextlib.suppress(OSError):
            os.write(writing, message.encode(errors="replace")[:60_000])
        os._exit(code)
    os.close(writing)

    def end(timeout: float | None = None) -> Outcome:
        if timeout is not None:
            deadline = time.monotonic() + timeout
            while time.monotonic() < deadline:
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    break
                time.sleep(0.005)
            else:
                os.kill(pid, signal.SIGKILL)
        message = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
        os.close(reading)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), message

    end.pid = pid  # type: ignore[attr-defined]
    return end() if wait else end


class Attack:
    """Counts trials; a bad one is remembered with what happened."""

    def __init__(self, place: Path, seed: int, scale: float) -> None:
        self.place, self.chance, self.scale = place, random.Random(seed), scale
        self.counts: dict[str, list[int]] = {}
        self.bad: list[str] = []
        self.reached: Counter[str] = Counter()  # trials that came to the start of the work
        self.finished = place / "finished"
        self.child = child

    def many(self, count: int) -> range:
        return range(max(1, round(count * self.scale)))

    def trial(self, kind: str, good: bool, details: object = "") -> None:
        counts = self.counts.setdefault(kind, [0, 0])
        counts[0 if good else 1] += 1
        if not good:
            self.bad.append(f"{kind}: {str(details)[:2500]}")
            print("BAD", self.bad[-1], flush=True)

    def copy(self) -> Path:
        folder = self.place / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        return Path(shutil.copytree(self.finished, folder))

    def ends_well(self, kind: str, folder: Path) -> None:
        """Continue the study: it must come to the same tables."""
        code, message = child(lambda: study(folder))
        same = code == 0 and all(
            (folder / name).read_bytes() == (self.finished / name).read_bytes() for name in TABLES
        )
        self.trial(kind, same, message or "other tables")
        left = [path.name for path in folder.rglob(".fpa-*")] if folder.exists() else []
        if left:
            self.trial(kind, False, f"left behind: {left[:3]}")

    # What is killed, and when.

    def kills(self) -> None:
        """Kills at random moments | the study is killed with SIGKILL up to four times, then run to its end"""
        for number in self.many(6):
            folder = self.place / f"killed{number}"
            for _ in range(self.chance.randint(1, 4)):
                child(lambda: study(folder), wait=False)(timeout=self.chance.uniform(0.05, self.seconds))
            self.ends_well("kills", folder)
            shutil.rmtree(folder, ignore_errors=True)

    def operations(self) -> None:
        """Kills at file operations | the study is killed at every k-th rename, removal, new folder or sync"""
        counted = self.place / "counted"

        def at(k: int, folder: Path, failure: Callable[[], None]) -> None:
            seen = [0]

            def patched(usual: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    seen[0] += 1
                    if seen[0] == k:
                        failure()
                    return usual(*arguments, **named)

                return call

            for name in ("replace", "unlink", "mkdir", "fsync", "rmdir"):
                setattr(os, name, patched(getattr(os, name)))
            study(folder)
            raise SystemExit(seen[0])

        code, message = child(lambda: at(-1, counted, lambda: None))
        total = int(message.partition("SystemExit: ")[2].split()[0])
        for number in self.many(14):
            folder = self.place / f"operation{number}"
            k = 1 + int(number * total / max(1, len(self.many(14))))
            code, message = child(lambda: at(k, folder, lambda: os.kill(os.getpid(), signal.SIGKILL)))
            self.trial("operations", code == -9, f"operation {k} of {total}: {code} {message}")
            self.ends_well("operations", folder)
            shutil.rmtree(folder, ignore_errors=True)

    def disk(self) -> None:
        """Full disk | the k-th file that is written to the end does not fit; then there is room again"""

        def full(k: int, folder: Path) -> None:
            usual, seen = os.fsync, [0]

            def fails(descriptor: int) -> None:
                seen[0] += 1
                if seen[0] >= k:
                    raise OSError(28, "No space left on device")
                usual(descriptor)

            os.fsync = fails
            study(folder)

        for _ in self.many(6):
            folder = self.place / "full"
            code, message = child(lambda: full(self.chance.randint(1, 40), folder))
            self.trial("disk", code == 2 and "the disk is full" in message and "\n" not in message, message)
            self.ends_well("disk", folder)
            shutil.rmtree(folder, ignore_errors=True)

    # What is damaged.

    def flips(self) -> None:
        """Flipped bits and cut files | of every kind of file: found and named, harmless, or made again"""
        before = self.facts(self.finished)
        for file in self.files():
            for number in self.many(7):
                folder = self.copy()
                content = bytearray((folder / file).read_bytes())
                if number == 0:
                    del content[self.chance.randrange(len(content)) :]
                else:
                    content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
                (folder / file).write_bytes(content)
                self.found(f"{file}, trial {number}", folder, before)

    def exchanged(self) -> None:
        """Files of another training | models, curves and examples in the wrong folder; another seed"""
        before = self.facts(self.finished)
        for file in self.files():
            if file.startswith("none/"):
                folder = self.copy()
                shutil.copy(folder / file.replace("none/", "fpa/"), folder / file)
                self.found(f"exchanged {file}", folder, before, kind="exchanged")
        folder = self.copy()
        text = (folder / "recipe.yaml").read_text()
        (folder / "recipe.yaml").write_text(text.replace("\nseed: 0", "\nseed: 1"))
        self.found("another seed", folder, before, kind="exchanged")

    def files(self) -> list[str]:
        names = [
            path.relative_to(self.finished) for path in sorted(self.finished.rglob("*")) if path.is_file()
        ]
        return [
            str(name)
            for name in names
            if name.parts[0] not in ("fpa", "figures") or name.name == "fidelity.png"
        ]

    def facts(self, folder: Path) -> str:
        """All that reading a study gives, as text, made in a process of its own."""
        code, message = child(lambda: self._say(folder))
        return message if code == 1 else f"refused {code}: {message}"

    def _say(self, folder: Path) -> None:
        display = Display(quiet=True)
        recipe = load_recipe("tiny", FIELDS)
        StudyFolder(folder, [*recipe.trainings()]).claim(recipe, display, overwrite=False, repair=False)
        results, manifest = read_study(folder), Manifest(folder, 0, {})
        shown = {stage: manifest.shown(stage) for stage in ("tables", "figures", "report")}
        facts = {
            "table": results_table(results).to_csv(),
            "about": results.about,
            "history": {name: model.history for name, model in results.models.items()},
            "examples": [float(each.examples.maps["ig_sum"].sum()) for each in results.models.values()],
            "shown": shown,
        }
        # Handed back as an error of its own kind: what is written to a pipe is text.
        raise RuntimeError(json.dumps(facts, sort_keys=True, default=str))

    def found(self, what: str, folder: Path, before: str, kind: str = "flips") -> None:
        after = self.facts(folder)
        named = after.startswith("refused 2: ") and str(folder) in after and "Traceback" not in after
        same = after.partition(" Traceback")[0] == before.partition(" Traceback")[0]
        again = (
            not after.startswith("refused")
            and '"shown": {' in after
            and "false" in after.partition('"shown"')[2][:90]
        )
        self.trial(kind, named or same or again, f"{what}: {after[:400]}")

    # What is at work at once.

    def concurrent(self) -> None:
        """Runs into one folder | studies of three seeds begin at once: one runs, the others are refused"""
        for _ in self.many(4):
            folder = self.place / "shared"
            running = [child(lambda seed=seed: study(folder, seed), wait=False) for seed in range(3)]
            ends = [end() for end in running]
            seed = yaml.safe_load((folder / "recipe.yaml").read_text())["seed"]
            stored = {
                json.loads(path.read_text())["plan"]["seed"] for path in folder.glob("*/evaluation.json")
            }
            codes = [code for code, _ in ends]
            self.trial("concurrent", codes.count(0) >= 1 and set(codes) <= {0, 2} and stored == {seed}, ends)
            self.trial("concurrent", ends[seed][0] == 0, f"recipe of seed {seed}: {codes}")
            shutil.rmtree(folder, ignore_errors=True)

    # What is forged.

    def hostile(self) -> None:
        """Hostile files | recipes, cards, results, archives, pickles that exhaust, mislead, run code"""
        place = self.place / "hostile"
        place.mkdir()
        os.chdir(place)
        Path("evil.py").write_text("import pathlib\npathlib.Path('ran').touch()\nclass Mask: pass\n")
        for name, work in self.forged(place):
            began = time.monotonic()
            code, message = child(lambda work=work: (limit(), work()))
            quick, quiet = time.monotonic() - began < 20, "\n" not in message and len(message) < 3000
            self.trial("hostile", code == 2 and quick and quiet, f"{name}: {code} {message[:300]}")
            self.trial("hostile", not (place / "ran").exists(), f"{name} ran code")
        os.chdir("/")

    def forged(self, place: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
        source = PRETRAINED / "shapes-fpa.safetensors"

        def recipe(text: str) -> Callable[[], Any]:
            return lambda: (Path("r.yaml").write_text(text), load_recipe("r.yaml"))

        def card(**changes: Any) -> Callable[[], Any]:
            def load() -> None:
                values = {"format": 1, **json.loads(json.dumps(vars(fpa.load_model(source).card)))} | changes
                save_file(load_file(source), "m.safetensors", {"fpa": json.dumps(values)})
                fpa.load_model("m.safetensors")

            return load

        def command(*words: str) -> Callable[[], Any]:
            def run() -> None:
                captured = io.StringIO()
                with contextlib.redirect_stderr(captured), contextlib.redirect_stdout(captured):
                    code = main([*words, "--quiet"])
                raise (
                    fpa.InputError(captured.getvalue().strip()) if code == 2 else RuntimeError(f"code {code}")
                )

            return run

        nine = "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12))
        yield "YAML aliases", recipe("a0: &a0 [1]\n" + nine)
        yield "YAML keys", recipe("".join(f"k{n}: 1\n" for n in range(20_000)))
        yield "YAML nesting", recipe("[" * 30_000)
        yield "YAML objects", recipe("seed: !!python/object/apply:os.system [touch ran]")
        for changes in (
            {"classes": 5},
            {"input_shape": "abc"},
            {"architecture": []},
            {"std": [0, 0, 0]},
            {"input_shape": [3, 10**9, 10**9]},
            {"classes": [1]},
            {"architecture": "evil:Mask"},
        ):
            yield f"card {changes}", card(**changes)

        def masking() -> None:
            with contextlib.suppress(fpa.InputError):
                card(recipe={"masking": "evil:Mask", "data": {"name": "shapes"}})()
            command("evaluate", "m.safetensors")()

        yield "card with a masking", masking

        def data() -> None:
            with contextlib.suppress(fpa.InputError):
                card(recipe={"data": {"name": "evil:Mask"}})()
            command("evaluate", "m.safetensors")()

        yield "card with a data set", data

        class Runs:
            def __reduce__(self) -> Any:
                return exec, ("import pathlib; pathlib.Path('ran').touch()",)

        Path("p.pt").write_bytes(pickle.dumps(Runs()))
        yield "pickle as weights", lambda: fpa.open_model("resnet18", "p.pt")
        np.save("p.npy", np.array([Runs()]), allow_pickle=True)
        yield "pickle as maps", lambda: fpa.get_estimators("maps:p.npy")
        with (
            zipfile.ZipFile("z.npz", "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("a.npy", "w") as file,
        ):
            for _ in range(1024):
                file.write(bytes(1 << 20))
        yield "archive of 1 GiB", lambda: fpa.get_estimators("maps:z.npz")
        yield "class index", command("evaluate", "shapes-fpa", "--class_index", '{"0": null}')
        yield "module from a file name", command("evaluate", "\x1b]0;owned\x07")
        results = self.finished / "none" / "evaluation.json"
        for name in ("plan", "classes", "name", "block"):

            def lacks(name: str = name) -> None:
                shutil.copytree(results.parent, "e", dirs_exist_ok=True)
                about = json.loads(results.read_text())
                del about[name], about["checksum"]
                Path("e/evaluation.json").write_text(json.dumps(about))
                fpa.load_result("e")

            yield f"results without {name}", lacks

    def links(self) -> None:
        """Links in a received folder | in the place of every file and folder: nothing behind them changes"""
        attack_files.links(self, study)

    def launchers(self) -> None:
        """Launchers by hand | RANK and WORLD_SIZE that no launcher has set: one line, nothing is written"""
        attack_files.launchers(self)

    def ended(self) -> None:
        """Signals | an evaluation without a folder is asked to end: no temporary folder is left"""
        attack_files.ended(self)

    def renamed(self) -> None:
        """Renamed checksums | of JSON files whose content is changed too: noticed"""
        attack_files.renamed(self)

    # What is fuzzed.

    def recipes(self) -> None:
        """Mutated recipes | fields with odd values or other names, up to the start of the work"""
        values = load_recipe("tiny", FIELDS).to_dict()
        odd: list[Any] = [None, True, "", "x", "a:b", -1, 0, 1.5, float("nan"), 10**30, [], [None], [[]], {}]
        odd += [{1: 2}, {"name": "blur", 1: 2}, "1", "math:pi", "A" * 5000, 1e300, "\x1b[31m"]
        odd += [["ig_sum", "vg_abs"]]
        odd += [
            10**400,
            -(10**400),
            {"name": "blur", "sigma": 1e9},
            {"name": "bokeh", "radius": 1e12},
            "run:1",
            2**62,
        ]
        odd += ["a\0b", "\x1b]0;x\x07", {"": 1}, [1e300], "segments:99999999", "vg_abs~1e9", 1e12]

        def run(changed: Any) -> None:
            Path("mutated.yaml").write_text(yaml.safe_dump(changed))
            fpa.run_study(load_recipe("mutated.yaml"), "nowhere", device="cpu")

        for _ in self.many(1000):
            changed = json.loads(json.dumps(values))
            for _ in range(self.chance.choice([1, 1, 2])):
                inner = changed
                while isinstance(inner[key := self.chance.choice([*inner])], dict) and inner[key]:
                    inner = inner[key]
                inner[key if self.chance.random() < 0.9 else f"{key}x"] = self.chance.choice(odd)
            self.refuses("recipes", lambda changed=changed: run(changed), changed, STARTS_OF_WORK)
        if not self.reached["recipes"]:
            raise SystemExit("no recipe came to the start of the work: nothing was tried")

    def commands(self) -> None:
        """Fuzzed commands | every option with odd values, up to the start of the work"""
        odd = [
            "null",
            "",
            "x",
            "-1",
            "0",
            "1.5",
            "nan",
            "[]",
            "[null]",
            "{}",
            "[[",
            "a:b",
            "math:pi",
            "1e400",
        ]
        odd += ["9" * 40, "\x1b[31m", "\udce9", "..", "/", "folder:/", "tiny", "A" * 3000, "cuda:99"]
        odd += [
            "captum:Nope",
            "maps:no.npy",
            "{name: blur, sigma: 1e9}",
            "run:1",
            "y.yaml",
            "meta",
            "1" + "0" * 400,
        ]
        odd += [
            "segments:99999999",
            "vg_abs~1e9,ig_sum",
            "{a: &a [1], b: [*a, *a]}",
            "2026-13-45",
            "a\nb",
            "~",
        ]
        starts = {"run": "tiny", "train": "tiny"} | dict.fromkeys(
            ("evaluate", "audit", "finetune"), "shapes-fpa"
        )

        def run(words: list[str]) -> None:
            captured = io.StringIO()
            with contextlib.redirect_stderr(captured), contextlib.redirect_stdout(io.StringIO()):
                code = main(words)
            if code == 1:
                raise RuntimeError(captured.getvalue()[:400])
            if code == 2:
                raise fpa.InputError(captured.getvalue().rstrip("\n"))

        for _ in self.many(1000):
            name = self.chance.choice([*COMMANDS])
            options = options_of(name)
            words = [name, starts.get(name, self.chance.choice(odd))]
            for _ in range(self.chance.randint(1, 3)):
                words += [self.chance.choice(options), self.chance.choice(odd)]
            self.refuses("commands", lambda words=words: run(words), words, STARTS_OF_WORK)
        if not self.reached["commands"]:
            raise SystemExit("no command came to the start of the work: nothing was tried")

    def refuses(self, kind: str, work: Callable[[], Any], what: object, until: Sequence[str] = ()) -> None:
        """Do something, perhaps only `until` the work begins: it ends, or one line says what is wrong."""
        os.chdir(self.place)
        fault = ""
        try:
            with contextlib.ExitStack() as patches:
                patches.enter_context(mock.patch("fpa.data.shapes.draw_shapes", DRAWN))
                for name in until:
                    patches.enter_context(mock.patch(name, side_effect=Reached))
                work()
        except Reached:
            self.reached[kind] += 1
        except SystemExit:
            pass
        except fpa.InputError as error:
            fault = "" if "\n" not in str(error) and len(str(error)) < 3000 else f"InputError: {error}"
        except Exception:
            fault = traceback.format_exc()[-500:]
        self.trial(kind, not fault, f"{fault} of {str(what)[:2000]}")

    def calls(self) -> None:
        """Odd calls of the API | one argument of a good call replaced by something odd"""
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 3)
        ).eval()
        nn.init.constant_(net[3].bias, 9.0)
        images, two = torch.randn(2, 3, 8, 8), ["vg_abs", "ig_sum"]
        quick = {"settings": fpa.Settings(ig_steps=1, sg_samples=1), "points": 3, "progress": False}
        saved = fpa.load_model("shapes-fpa")
        ends = {"a": [[2, 1, 0], [2, 0, 0]], "b": [[2, 1, 1], [2, 0, 1]]}
        lif, shares = [[2, 2, 0], [2, 2, 0]], [0, 0.5, 1]
        scored = {name: fpa.Fidelity.from_curves(mif, lif, shares) for name, mif in ends.items()}
        good: dict[Callable[..., Any], dict[str, Any]] = {
            fpa.evaluate: {
                "model": net,
                "data": images,
                "estimators": two,
                "masking": None,
                "features": "pixels",
                "outputs": ["logit"],
                "scores": ["A"],
                "count": 2,
                "seed": 0,
                "device": "cpu",
                **quick,
            },
            fpa.audit: {
                "model": net,
                "data": images,
                "estimators": two,
                "maskings": ["mean"],
                "count": 2,
                **quick,
            },
            fpa.explain: {
                "model": net,
                "images": images,
                "estimators": two,
                "targets": 1,
                "indices": [0, 1],
                "seed": 0,
            },
            fpa.finetune: {
                "model": net,
                "data": (images, [0, 1]),
                "epochs": 1,
                "batch_size": 2,
                "device": "cpu",
                "learning_rate": 0.01,
                "fpa": None,
                "targets": "auto",
                "class_index": None,
                "seed": 0,
            },
            fpa.perturbation_curves: {
                "model": net,
                "images": images,
                "maps": torch.rand(2, 8, 8),
                "points": 3,
                "labels": None,
                "fractions": None,
                "features": 2,
                "outputs": ["margin"],
            },
            fpa.FPA: {"p": 0.5, "p1_max": 0.2, "p2": 0.1, "s_max": 2, "masking": "blur", "generator": None},
            fpa.Rectangle: {"p": 0.5, "area": (0.1, 0.2), "aspect": (0.5, 2), "coin": "batch"},
            fpa.make_plan: {
                "estimators": two,
                "settings": None,
                "maskings": {},
                "points": 3,
                "precision": None,
            },
            fpa.image_source: {
                "data": images,
                "normalisation": None,
                "channels": 3,
                "labels": None,
                "count": 2,
            },
            fpa.load_data: {"name": "digits", "root": "data", "evaluation_images": 4, "size": 32},
            fpa.load_model: {"path": "shapes-fpa", "device": "cpu", "architecture": None},
            fpa.load_recipe: {"name": "tiny", "overrides": {}},
            fpa.Engine: {"model": net, "precision": None, "batch_size": 2, "memory": None},
            fpa.Normalisation: {"mean": (0.5,), "std": (0.5,)},
            fpa.Settings: {"ig_steps": 1, "sg_samples": 1, "sigma": 0.1, "reference": "masked"},
            fpa.suggested_fpa: {"height": 32, "width": 32, "targets": "labels"},
            fpa.read_results: {"folder": self.finished},
            fpa.load_result: {"folder": self.finished / "none"},
            fpa.open_model: {"spec": "shapes-fpa"},
            fpa.save_model: {"model": saved, "card": saved.card, "path": self.place / "model.safetensors"},
            fpa.get_masking: {"masking": "black", "mean": (0.5,), "std": (0.5,)},
            fpa.get_estimators: {"estimators": two, "settings": None},
            fpa.Cell: {},
            fpa.Fidelity.from_curves: {"mif": lif, "lif": lif, "fractions": shares},
            fpa.reliability: {"fidelities": scored, "signed": {"a": True, "b": False}},
            fpa.paired_test: {"first": scored["a"], "second": scored["b"]},
            functional.vanilla_gradient: {"model": net, "images": images},
            functional.integrated_gradients: {"model": net, "images": images, "steps": 2},
            functional.smooth_grad: {"model": net, "images": images, "samples": 2},
            functional.reduce: {"raw": images},
            functional.remove: {"images": images, "mask": images[:, 0] > 0},
        }
        odd: list[Any] = [
            None,
            True,
            "x",
            "",
            -1,
            0,
            10**30,
            1.5,
            float("nan"),
            [],
            [[1], [2, 3]],
            {},
            {1},
            object(),
            int,
            images.to("meta"),
            images.to_sparse(),
            images.to(torch.complex64),
            images[:0],
            images.double(),
            torch.tensor(1.0),
            np.ones((2, 3, 8, 8), np.float32)[:, :, ::-1],
            np.array([object()]),
            np.int64(2),
            b"x",
            range(3),
            Path("nowhere"),
            nn.Identity(),
            torch.Generator(),
            lambda *_: None,
        ]
        good |= attack_files.more_calls(images)
        odd += attack_files.odd_values(images)
        for function, given in good.items():  # every other argument as it is by default
            every = inspect.signature(function).parameters.items()
            good[function] = {name: each.default for name, each in every if each.default is not each.empty}
            good[function] |= given
            function(**good[function])  # a good call must be one, or nothing would be tried
        for _ in self.many(1000):
            function = self.chance.choice([*good])
            # Mostly one: two odd values hide each other.
            count = self.chance.choice([1, 1, 1, 2])
            changed = {self.chance.choice([*good[function]]): self.chance.choice(odd) for _ in range(count)}
            shown = ", ".join(f"{name}={brief(value)}" for name, value in changed.items())
            self.refuses(
                "calls",
                lambda: function(**good[function] | changed),
                f"{function.__qualname__}({shown})",
            )

    def in_place(self) -> None:
        """Functions that work in place | maskings, estimators, scores: the right score, or refused"""
        attack_numbers.in_place(self.trial, self.many(60), self.chance, "in_place")

    def continued(self) -> None:
        """Another model, images or masks | continuing a folder with others is refused, with the same not"""
        attack_numbers.continued(self.trial, self.many(48), self.chance, "continued", self.place)

    def growth(self) -> None:
        """100 evaluations | in one process: memory, open files and threads do not grow"""

        def evaluations() -> None:
            net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
            nn.init.constant_(net[1].bias, 9.0)
            images = torch.randn(8, 3, 8, 8)
            measured: list[tuple[float, int, int]] = []
            for number in range(100):
                fpa.evaluate(
                    net, images, ["ig_sum", "vg_abs"], settings=fpa.Settings(2, 2), points=3, progress=False
                )
                if number in (29, 99):
                    status = Path("/proc/self/status").read_text()
                    held = {
                        line.split(":")[0]: line.split()[1]
                        for line in status.splitlines()
                        if len(line.split()) > 1
                    }
                    opened = len(list(Path("/proc/self/fd").iterdir()))
                    measured.append((int(held["VmRSS"]) / 1024, opened, int(held["Threads"])))
            (before, files, threads), (after, more, others) = measured
            if after - before > 30 or more > files or others > threads:
                raise RuntimeError(str(measured))

        code, message = child(evaluations)
        self.trial("growth", code == 0, message)

    ATTACKS = (
        "kills",
        "operations",
        "disk",
        "flips",
        "exchanged",
        "concurrent",
        "hostile",
        "links",
        "launchers",
        "ended",
        "renamed",
        "recipes",
        "commands",
        "calls",
        "in_place",
        "continued",
        "growth",
    )

    def run(self, only: list[str] | None) -> None:
        """All attacks, or those that are named, on a study that is made first."""
        began = time.monotonic()
        code, message = child(lambda: study(self.finished))
        self.seconds = time.monotonic() - began
        if code != 0:
            raise SystemExit(f"the study itself failed: {message}")
        for name in only or self.ATTACKS:
            began = time.monotonic()
            getattr(self, name)()
            good, bad = self.counts.get(name, [0, 0])
            print(f"{name:<12} {good:5} good {bad:3} bad   {time.monotonic() - began:5.0f} s", flush=True)

    def table(self) -> str:
        lines = ["| attack | what is tried | trials | good | bad |", "|---|---|---|---|---|"]
        for name in self.ATTACKS:
            if name in self.counts:
                title, _, what = (getattr(self, name).__doc__ or "").partition(" | ")
                good, bad = self.counts[name]
                lines.append(f"| {title} | {what} | {good + bad} | {good} | {bad} |")
        return "\n".join(lines)


@cache
def options_of(command: str) -> list[str]:
    """The options that the help of a command names."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return sorted(set(re.findall(r"--[a-z][\w.]*", captured.getvalue())) - {"--debug"})


def brief(value: Any) -> str:
    """An odd value, for the line that names a bad trial."""
    try:
        return f"{type(value).__name__} {str(value)[:80]!r}"
    except Exception:
        return type(value).__name__


class Reached(BaseException):
    """The checks are over and the work would begin."""


STARTS_OF_WORK = (
    "fpa.study.run.folder_lock",
    "fpa.running.folder_lock",
    "fpa.cli.folders.folder_lock",
    "fpa.study.trainings.train_jobs",
    "fpa.training.finetuning.train_jobs",
)
DRAWN = cache(draw_shapes)  # the same images for every trial


def limit() -> None:
    """As much memory as reading a small file may take, beside what is there already."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (2 << 30), held + (2 << 30)))


PAGE = """# Reliability

What `make attack` (`tools/attack.py`) tried in its last run, and how it ended. A trial is good if the tables
in the end are those of a run that nothing happened to, or if one line says what is wrong before anything is
lost; it is bad if a result changes without a word, a traceback is shown, code from a file is run, or memory
and open files grow. A short form of each attack is in the tests.

{table}

Seed {seed}, {minutes:.0f} minutes, fpa {version}, PyTorch {torch}, Python {python}, {system}.
"""


def attack() -> int:
    """Run the attacks; the exit code is 1 if any trial was bad."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=Attack.ATTACKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    target = options.write and options.write.absolute()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fpa-attack-") as place:
        attacks = Attack(Path(place), options.seed, options.scale)
        attacks.run(options.only)
        os.chdir("/")
    print(attacks.table(), *attacks.bad, sep="\n")
    if target:
        facts = {"version": fpa.__version__, "torch": torch.__version__, "python": sys.version.split()[0]}
        minutes = (time.monotonic() - began) / 60
        system = f"{os.uname().sysname}, {os.cpu_count()} cores"
        text = PAGE.format(table=attacks.table(), seed=options.seed, minutes=minutes, system=system, **facts)
        target.write_text(text, encoding="utf-8")
    return 1 if attacks.bad else 0


if __name__ == "__main__":
    sys.exit(attack())
