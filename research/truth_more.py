"""More protocols and all published scores, put to maps of known truth: one cell, exploratory.

    python research/truth.py --rules additive --seeds 0 --work runs/truth
    python research/truth_more.py --work runs/truth --minutes 3

Takes the models of a cell that research/truth.py has made (rule additive, seed 0) and puts the same maps of
the same scenes to what the core leaves out: other sizes of patches, other maskings, and every score of fpa
that gives a map of an image a value. A *stage* is some of these. Each leaves a file for every row (who is
explained, and who judges) in RULE/SEED/more, and what is there is not made again; with `--minutes` no stage
is begun that would end later, going by the longest so far. What fails is tried again one by one, so that it
takes nothing else with it. At the end `more.csv` is written from the files: how often each protocol or score
prefers the worse of two maps, and how often A by pixels does on the same pairs. `--minutes 0` only writes it.
`--tiny` needs a cell made with `--tiny`.
"""

import argparse
import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import fpa
from fpa.data.splits import ImageData
from fpa.engine.devices import chosen_device
from fpa.evaluation.result import Result
from fpa.evaluation.truths import asked, judged_maps
from fpa.scores import SCORES
from fpa.statistics.preferences import preference_errors
from fpa.training.augment import Cell as SingleCell
from truth import PROTOCOL, Bench, Cell, Experiment
from truth_tables import Row

FIRST = "pixels"
OF_TRUTH = ("truth", "truth_cues")
KINDS = (("truth", "all"), ("truth", "ladders"), ("truth", "same sign"), ("truth", "explanations"))
WANTED = (*KINDS, ("truth_cues", "all"))
"""Which truth, on which pairs."""
ROWS = {"none": ("none", "none"), "fpa": ("fpa", "fpa"), "judge": ("none", "twin")}
CELLS = "cells"
"""The model `none` fine-tuned with deleted cells: the score idsds asks for it."""
NOT_ASKED = {
    "A": "is A by pixels",
    "road": "is A by the protocol pixels+road",
    "truth_unsigned": "is a truth",
    "truth_log_odds": "is a truth",
    "truth_parts": "is a truth",
}


def crossed(features: Sequence[str], maskings: Sequence[str]) -> tuple[str, ...]:
    """The names of these protocols."""
    every = [(each, masking) for masking in maskings for each in features]
    return tuple(each if masking == "constant" else f"{each}+{masking}" for each, masking in every)


@dataclass(frozen=True)
class Stage:
    """What is measured in one evaluation of each row."""

    name: str
    protocols: tuple[str, ...] = ()
    """Besides the first."""
    scores: tuple[str, ...] = ()
    """Besides the truths."""
    rows: tuple[str, ...] = tuple(ROWS)
    again: bool = False
    """Whether its scores explain again: maps made from the truth have no value of them and are not asked."""

    def parts(self) -> list["Stage"]:
        """One by one."""
        every = [name for name, score in SCORES.items() if not {"explain", "masks"} & score.needs]
        names = [name for name in every if name not in NOT_ASKED] if self.scores == ("all",) else self.scores
        alone = [replace(self, protocols=(each,), scores=()) for each in self.protocols]
        return alone + [replace(self, protocols=(), scores=(name,)) for name in names]


IN_CORE = ("pixels", "1/8", "1/4", "segments:60")
OTHER_SIZES = ("1/16", "7", "1/2")
STAGES = (
    Stage("scores", scores=("all",)),
    Stage("sizes", crossed(OTHER_SIZES, ["constant", "blur"])),
    Stage("maskings", crossed(IN_CORE, ["mean", "uniform"])),
    Stage("explaining", scores=("max_sensitivity", "mprt_efficient"), rows=("none", "fpa"), again=True),
    # Imputing takes several times as long as the passes. Of the four patches of half a side all would be
    # removed, and nothing left to impute from.
    Stage("road", crossed(IN_CORE[:2], ["road"])),
    Stage("sizes-maskings", crossed(OTHER_SIZES, ["mean", "uniform"])),
    Stage("cells", scores=("idsds",), rows=(CELLS,)),
    Stage("randomising", scores=("mprt_smooth",), rows=("none", "fpa"), again=True),
    Stage("road-larger", crossed(IN_CORE[2:], ["road"])),
)
"""What says most for its time comes first."""


@dataclass
class More:
    """What is measured in one cell beyond the core."""

    cell: Cell
    data: ImageData
    models: dict[str, nn.Module]

    @property
    def folder(self) -> Path:
        return self.cell.folder / "more"

    @classmethod
    def of(cls, cell: Cell) -> "More":
        """The cell with its models read; refuses one that is not there."""
        paths = {name: cell.folder / "models" / name for name in ("none", "fpa")}
        paths["twin"] = cell.folder / "twin"
        for path in paths.values():
            if not (path / "model.safetensors").exists():
                command = f"research/truth.py --rules {cell.rule} --seeds {cell.seed} --work ..."
                raise SystemExit(f"{path} has no model: make the cell first, with {command}")
        return cls(cell, cell.data(), {name: cell.load(path) for name, path in paths.items()})

    def judge_of(self, row: str) -> tuple[nn.Module, nn.Module | None]:
        """Who is explained and, where it is another one, who judges."""
        if row == CELLS:
            if CELLS not in self.models:
                self.models[CELLS] = self.tuned()
            return self.models["none"], self.models[CELLS]
        explained, judge = ROWS[row]
        return self.models[explained], None if judge == explained else self.models[judge]

    def tuned(self) -> nn.Module:
        """`none` fine-tuned as its twin was, with deleted cells in place of FPA."""
        output = self.folder / CELLS
        if not (output / "model.safetensors").exists():
            fpa.finetune(
                self.models["none"],
                self.data,
                targets="model",
                fpa=SingleCell(),
                epochs=1 if self.cell.bench.tiny else None,
                seed=self.cell.seed,
                device=str(self.cell.bench.device),
                folder=output,
            )
        return self.cell.load(output)

    def make(self, stage: Stage, row: str) -> None:
        """The file of a stage and a row; what fails is named in it."""
        began = time.perf_counter()
        failed: list[str] = []
        try:
            found = [self.measure(stage, row)]
        except Exception as error:
            found = []
            for part in stage.parts():
                try:
                    found.append(self.measure(part, row))
                except Exception as alone:
                    name = (*part.protocols, *part.scores)[0]
                    failed.append(f"{name}: {_sentence(alone)}")
            print(f"{stage.name} {row}: one by one, since {_sentence(error)}", flush=True)
        for each in failed:
            print(f"{stage.name} {row}: failed: {each}", flush=True)
        if not found:
            return  # nothing is stored, and all is tried again by the next run
        known = merged(found) | {
            "failed": np.array(failed, dtype=str),
            "digest": np.array(self.cell.bench.experiment.digest),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{stage.name}-{row}.partial.npz"
        np.savez_compressed(partial, **known)
        partial.rename(self.folder / f"{stage.name}-{row}.npz")
        print(f"{stage.name} {row}: {time.perf_counter() - began:.1f} s", flush=True)

    def measure(self, stage: Stage, row: str) -> dict[str, Any]:
        """Evaluate as the core does, with other protocols and scores."""
        bench = self.cell.bench
        maps = [each for each in bench.setting("maps") if not (stage.again and each == "truths")]
        changed = {
            "maps": maps,
            "protocols": [FIRST, *stage.protocols],
            "scores": [*OF_TRUTH, *stage.scores],
        }
        settings = bench.experiment.settings | changed
        altered = replace(bench, experiment=replace(bench.experiment, settings=settings))
        model, judge = self.judge_of(row)
        return measured(replace(self.cell, bench=altered).evaluate(self.data, model, judge))


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def measured(result: Result) -> dict[str, Any]:
    """Truths, areas and scores of all maps, image by image."""
    evaluation = result.evaluation
    plan = result.description.plan
    maps = judged_maps(result)
    protocols = [plan.protocol, *evaluation.under]
    scores = [name for name in evaluation.values if name not in OF_TRUTH and name not in NOT_ASKED]
    reasons = result.description.scores_left_out or {}
    left_out = {name: why for name, why in reasons.items() if name not in NOT_ASKED}
    stacked = {
        name: np.stack([evaluation.values[name][each] for each in maps.names], 1).astype(np.float32)
        for name in [*OF_TRUTH, *scores]
    }
    return {
        "names": np.array(maps.names),
        "signs": np.array([plan.estimators[name].sign for name in maps.names]),
        "ladders": np.array([" ".join(sorted(each)) for each in maps.ladders]),
        "signed": np.array(maps.signed),
        "images": evaluation.indices,
        "fact centred_noise": evaluation.image_facts["centred_noise"].astype(np.float32),
        "protocols": np.array(protocols),
        "mif": -np.stack([maps.scores[asked(each, "MIF")] for each in protocols]).astype(np.float32),
        "lif": np.stack([maps.scores[asked(each, "LIF")] for each in protocols]).astype(np.float32),
        "scores": np.array(scores, dtype=str),
        "left out": np.array([f"{name}: {why}" for name, why in left_out.items()], dtype=str),
        **stacked,
    }


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was measured in several evaluations of the same maps, as if in one."""
    found: dict[str, Any] = {}
    for part in parts:
        found |= part
    # Every part has the first protocol besides its own.
    areas = {side: [parts[0][side][:1], *(part[side][1:] for part in parts)] for side in ("mif", "lif")}
    names = [FIRST, *(str(name) for part in parts for name in part["protocols"][1:])]
    every = {key: np.concatenate([part[key] for part in parts]) for key in ("scores", "left out")}
    return found | every | {"protocols": np.array(names)} | {k: np.concatenate(v) for k, v in areas.items()}


@dataclass(frozen=True)
class Made:
    """What a file of a stage and a row holds."""

    stage: Stage
    row: str
    values: Mapping[str, Any]

    def table(self) -> Iterator[dict[str, Any]]:
        """The errors of all protocols and scores, each with that of A by pixels on the same pairs."""
        row = Row(self.values)
        areas = row.scores()
        pixels = areas[FIRST, "A"]
        if self.stage.name == STAGES[0].name:
            named = {("protocol", FIRST, side): areas[FIRST, side] for side in ("A", "MIF", "LIF")}
        else:
            named = {("protocol", *key): each for key, each in areas.items() if key[0] != FIRST}
        for name in self.values["scores"]:
            values = self.values[str(name)].astype(np.float64)
            named["score", str(name), "value"] = values if SCORES[str(name)].higher_is_better else -values
        for (kind, name, side), values in named.items():
            for truth, pairs in WANTED:
                both = {"own": values, "pixels": pixels}
                found = preference_errors(row.truths(truth), both, row.noise(truth), row.pairs(pairs))
                if not found.pairs:
                    continue
                yield {
                    "row": self.row,
                    "kind": kind,
                    "name": name,
                    "side": side,
                    "truth": truth,
                    "pairs": pairs,
                    "error": round(found.errors["own"], 5),
                    "A by pixels": round(found.errors["pixels"], 5),
                    "counted": found.pairs,
                    "close": found.close,
                    "missing": found.missing,
                    "maps": int(np.isfinite(values).any(axis=0).sum()),
                    "images": int(np.isfinite(values).any(axis=1).sum()),
                    "note": "without maps made from the truth" if self.stage.again else "",
                }

    def left_out(self) -> dict[str, str]:
        """Why scores and protocols have no value here."""
        lines = [*self.values["left out"], *self.values["failed"]]
        return {name: why for name, _, why in (str(line).partition(": ") for line in lines)}


def read(cell: Cell) -> list[Made]:
    """All files of a cell; refuses those made with another truth.yaml."""
    made = []
    for stage in STAGES:
        for row in stage.rows:
            path = cell.folder / "more" / f"{stage.name}-{row}.npz"
            if path.exists():
                values = dict(np.load(path))
                if str(values["digest"]) != cell.bench.experiment.digest:
                    raise SystemExit(f"{path} was made with another {PROTOCOL.name}: use another --work")
                made.append(Made(stage, row, values))
    return made


def rows_of(cell: Cell) -> Iterator[dict[str, Any]]:
    """All errors, and after them what was left out, with the reason."""
    made = read(cell)
    keys = {"rule": cell.rule, "seed": cell.seed}
    known = set()
    for each in made:
        for line in each.table():
            known.add((each.row, line["name"]))
            yield keys | line
    for row in ROWS:
        reasons: dict[str, str] = {name: why for name, why in NOT_ASKED.items() if not why.endswith("truth")}
        for each in made:
            reasons |= each.left_out() if each.row == row else {}
        again = [name for name in reasons if name in SCORES and "explain" in SCORES[name].needs]
        if row == "judge":
            reasons |= dict.fromkeys(again, "does not depend on who judges: see the row none")
        for name, why in reasons.items():
            if (row, name) not in known:
                kind = "score" if name in SCORES else "protocol"
                yield keys | {"row": row, "kind": kind, "name": name, "counted": 0, "note": why}


def measure_all(cell: Cell, minutes: float) -> None:
    """Every stage and row that has no file yet, while there is time."""
    missing = [
        (stage, row)
        for stage in STAGES
        for row in stage.rows
        if not (cell.folder / "more" / f"{stage.name}-{row}.npz").exists()
    ]
    end = time.monotonic() + 60 * minutes
    if not missing or minutes <= 0:
        return
    more = More.of(cell)
    longest = 0.0
    for stage, row in missing:
        began = time.monotonic()
        if began + longest > end:
            print(f"{stage.name} {row}: left out, there is no time", flush=True)
            continue
        more.make(stage, row)
        longest = max(longest, time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rule", default="additive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/truth"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/truth"))
    parser.add_argument("--minutes", type=float, default=1e9, help="0: only write the table")
    parser.add_argument("--no-table", action="store_true", help="only measure: the table needs no GPU")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "tf32", "bfloat16"])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    bench = Bench(
        Experiment.read(),
        options.work,
        chosen_device(options.device),
        tiny=options.tiny,
        precision=options.precision,
    )
    cell = Cell(bench, options.rule, options.seed)
    read(cell)  # refuse files of another protocol before any work
    measure_all(cell, options.minutes)
    if options.no_table:
        return
    lines = list(rows_of(cell))
    if not lines:
        raise SystemExit(f"nothing is measured yet in {cell.folder}")
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "more.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
