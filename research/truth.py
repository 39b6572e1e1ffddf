"""Trains models in worlds whose truth is known, and puts maps of known truth to every protocol.

    python research/truth.py --seeds 0 1 --work runs/truth --minutes 9
    python research/truth.py --confirm --work runs/truth

A *cell* is a rule and a seed: the world `Cues(rule, seed=seed)`, four trainings, a fine-tuned twin, and a
file for every row of `research/truth.yaml` (who is explained, and who judges): the truths of all maps and the
areas under their curves, image by image. `research/truth_tables.py` makes the tables of them. What is there
is not made again. With `--minutes` no cell is begun that would end later. The confirming seeds are made only
with a `truth.yaml` that is committed, and a file made with another one is refused. `--tiny` does everything
very small, to see that it works.
"""

import argparse
import hashlib
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

import fpa
from fpa.auditing.evidence import random_curves
from fpa.auditing.rule import MASKED
from fpa.data.splits import DataRequest, ImageData
from fpa.engine.arithmetic import Precision
from fpa.engine.devices import chosen_device
from fpa.engine.engine import Engine
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.result import Result
from fpa.evaluation.truths import asked, judged_maps
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from fpa.worlds import Cues

PROTOCOL = Path(__file__).with_name("truth.yaml")
FEWEST_CUES = 3
SHARES = (*MASKED, 100)
"""Percent of the pixels masked at random whose outputs are kept, for the audit's rule."""


@dataclass(frozen=True)
class Experiment:
    """What `truth.yaml`, or another file like it, says."""

    settings: dict[str, Any]
    digest: str
    """SHA-256 of the file."""
    path: Path

    @classmethod
    def read(cls, path: Path = PROTOCOL) -> "Experiment":
        text = path.read_bytes()
        return cls(yaml.safe_load(text), hashlib.sha256(text).hexdigest(), path)

    def check_committed(self, digest: str | None) -> None:
        """Refuse to open the confirming seeds with a file that history does not know."""
        if digest is None:
            command = ["git", "-C", str(self.path.parent), "show", f"HEAD:./{self.path.name}"]
            committed = subprocess.run(command, capture_output=True, check=False).stdout
            digest = hashlib.sha256(committed).hexdigest()
        if digest != self.digest:
            raise SystemExit(f"{self.path.name} must be committed before the confirming seeds are drawn")


@dataclass(frozen=True)
class Bench:
    """Where cells are made."""

    experiment: Experiment
    work: Path
    device: torch.device
    tiny: bool
    precision: str

    def setting(self, name: str, small: Any = None) -> Any:
        return small if self.tiny and small is not None else self.experiment.settings[name]


@dataclass(frozen=True)
class Cell:
    """A world, its models, and what is measured of them."""

    bench: Bench
    rule: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.bench.work / self.rule / str(self.seed)

    def data(self) -> ImageData:
        """The world as a data set, judged on the first scenes with enough cues."""
        world = Cues(
            self.rule,
            seed=self.seed,
            train_images=self.bench.setting("train_images", 96),
            test_images=40 if self.bench.tiny else 1000,
        )
        data = world(DataRequest(f"cues, {self.rule}, seed {self.seed}"))
        cues = world.test_scenes(range(world.test_images)).cues.sum(1)
        judged = (cues >= FEWEST_CUES).nonzero()[:, 0][: self.bench.setting("judged", 4)]
        return replace(data, evaluation=judged)

    def models(self, data: ImageData) -> dict[str, nn.Module]:
        """The trained models by name, the twin included; those that are there are read."""
        changed: dict[str, Any] = {"seed": self.seed, "augmentations": ["none", "rectangle", "fpa"]}
        for name, value in self.bench.setting("training", {"epochs": 1}).items():
            changed[f"training.{name}"] = value
        recipe = load_recipe(self.bench.setting("recipe"), changed)
        squares = replace(recipe.fpa, **self.bench.setting("squares"))
        variant = fpa.study.recipe.Variant("fpa", fpa=squares)
        recipe = replace(recipe, variants={"fpa-squares": variant})
        names = self.bench.setting("models")
        device = str(self.bench.device)
        train(recipe, self.folder / "models", variants=names, data=data, device=device)
        models = {name: self.load(self.folder / "models" / name) for name in names}
        output = self.folder / "twin"
        if not (output / "model.safetensors").exists():
            fpa.finetune(
                models["none"],
                data,
                targets="model",
                epochs=1 if self.bench.tiny else None,
                seed=self.seed,
                device=device,
                folder=output,
            )
        return models | {"twin": self.load(output)}

    def load(self, folder: Path) -> nn.Module:
        return fpa.load_model(folder / "model.safetensors", self.bench.device)

    def missing(self) -> list[str]:
        """The rows that have no file yet; refuses files made with another `truth.yaml`."""
        missing = []
        for row in self.bench.setting("rows"):
            path = self.folder / f"{row}.npz"
            if not path.exists():
                missing.append(row)
            elif str(np.load(path)["digest"]) != self.bench.experiment.digest:
                name = self.bench.experiment.path.name
                raise SystemExit(f"{path} was made with another {name}: use another --work")
        return missing

    def make(self) -> None:
        """Whatever is missing."""
        rows = self.missing()
        if not rows:
            return
        began = time.perf_counter()
        data = self.data()
        models = self.models(data)
        trained = time.perf_counter()
        print(f"{self.rule} {self.seed}: models in {trained - began:.0f} s", flush=True)
        for row in rows:
            start = time.perf_counter()
            explained, judge = self.bench.setting("rows")[row]
            result = self.evaluate(data, models[explained], None if judge == explained else models[judge])
            known = values(result) | self.facts(data, models[explained], models[judge])
            known["digest"] = np.array(self.bench.experiment.digest)
            partial = self.folder / f"{row}.partial.npz"
            np.savez_compressed(partial, **known)
            partial.rename(self.folder / f"{row}.npz")
            spent = time.perf_counter() - start
            accuracy = result.accuracy or 0.0
            print(f"{self.rule} {self.seed} {row}: accuracy {accuracy:.3f}, {spent:.0f} s", flush=True)

    def facts(self, data: ImageData, explained: nn.Module, judge: nn.Module) -> dict[str, Any]:
        """What else a row stores; nothing here."""
        return {}

    def evaluate(self, data: ImageData, model: nn.Module, judge: nn.Module | None) -> Result:
        bench = self.bench
        first, *others = bench.setting("protocols")
        assert first == "pixels"
        return fpa.evaluate(
            self.engine(model),
            data,
            bench.setting("maps"),
            judge=None if judge is None else self.engine(judge),
            settings=fpa.Settings(ig_steps=bench.setting("ig_steps", 2), sg_samples=2 if bench.tiny else 15),
            points=bench.setting("points", 3),
            outputs=["centred", "logit"],
            protocols=others,
            scores=bench.setting("scores"),
            seed=self.seed,
            examples=0,
            progress=False,
        )

    def engine(self, model: nn.Module) -> Engine:
        name = self.bench.precision
        # Compiling takes longer than these passes of a small network.
        return Engine(model, precision=None if name == "auto" else Precision(name, name), compile=False)


def values(result: Result) -> dict[str, Any]:
    """What a row is judged by: truths and areas of all maps, image by image."""
    evaluation = result.evaluation
    plan = result.description.plan
    maps = judged_maps(result)
    by_protocol = {plan.protocol: evaluation, **evaluation.under}
    areas = {side: [-maps.scores[asked(each, side)] for each in by_protocol] for side in ("MIF", "LIF")}
    baseline = plan.random
    assert baseline is not None
    return {
        "names": np.array(maps.names),
        "signs": np.array([plan.estimators[name].sign for name in maps.names]),
        "ladders": np.array([" ".join(sorted(each)) for each in maps.ladders]),
        "signed": np.array(maps.signed),
        "protocols": np.array(list(by_protocol)),
        "images": evaluation.indices,
        "labels": evaluation.labels,
        "targets": evaluation.targets,
        **{f"fact {name}": each.astype(np.float32) for name, each in evaluation.image_facts.items()},
        **{score: _stacked(evaluation, score, maps.names) for score in evaluation.values if score != "A"},
        "mif": np.stack(areas["MIF"]).astype(np.float32),
        "lif": -np.stack(areas["LIF"]).astype(np.float32),
        "unmasked": evaluation.unmasked.astype(np.float32),
        "random": np.stack([_masked(part, baseline) for part in by_protocol.values()]),
        "raw unmasked": evaluation.others["logit"].unmasked.astype(np.float32),
        "raw areas": _raw_areas(evaluation.others["logit"], maps.names),
    }


def _stacked(evaluation: Evaluation, score: str, names: tuple[str, ...]) -> Any:
    """[N, M]."""
    return np.stack([evaluation.values[score][name] for name in names], 1).astype(np.float32)


def _masked(part: Evaluation, baseline: str) -> Any:
    """The output with some of the pixels masked at random, [shares, N]."""
    shares = [share / 100 for share in SHARES]
    return random_curves(part, baseline, shares).T.astype(np.float32)


def _raw_areas(part: Evaluation, names: tuple[str, ...]) -> Any:
    """A of the raw logit under the first protocol, [N, M]."""
    gaps = [part.lif[name].astype(np.float64) - part.mif[name].astype(np.float64) for name in names]
    return np.stack([100 * np.trapezoid(gap, part.fractions) for gap in gaps], 1).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", nargs="*", help="default: all of truth.yaml")
    parser.add_argument("--seeds", nargs="*", type=int, help="default: the exploring ones")
    parser.add_argument("--confirm", action="store_true", help="the confirming seeds")
    parser.add_argument("--work", type=Path, default=Path("runs/truth"))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "tf32", "bfloat16"])
    parser.add_argument(
        "--committed", help="SHA-256 of the committed truth.yaml, where there is no repository"
    )
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    experiment = Experiment.read()
    settings = experiment.settings
    seeds = options.seeds or (settings["confirming"] if options.confirm else settings["exploring"])
    closed = set(seeds) & set(settings["confirming"])
    if closed and not options.tiny:
        experiment.check_committed(options.committed)
    bench = Bench(
        experiment,
        options.work,
        chosen_device(options.device),
        tiny=options.tiny,
        precision=options.precision,
    )
    end = time.monotonic() + 60 * options.minutes
    longest = 0.0
    for seed in seeds:
        for rule in options.rules or settings["rules"]:
            began = time.monotonic()
            if began + longest > end:
                print(f"{rule} {seed}: left out, there is no time", flush=True)
                continue
            Cell(bench, rule, seed).make()
            longest = max(longest, time.monotonic() - began)


if __name__ == "__main__":
    main()
