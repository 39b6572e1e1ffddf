"""The whole CIFAR-10 study on one GPU: time of every stage, share of the floor, and other tools beside it.

    python benchmarks/cifar10_gpu.py --data data --output runs/cifar10 --json cifar10_gpu.json

1. `fpa run cifar10` from raw data to table, figures and report, in a process of its own, stage by stage;
2. the floor of training: steps times the step of three models captured in one graph, and the eager step;
3. the floor of an evaluation: passes times the best time of a pass of the bare model in the same precision;
4. where the time of an evaluation goes: passes against their floor, padded rows, and all the rest;
5. Captum at its best setting and Quantus' pixel flipping, on `--few` images, scaled to the same work.

All in one run. `--tiny` makes everything small, on a CPU too, to see that it works.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from explain_gpu import FORWARDS_PER_IMAGE, captum_seconds, floor, load, quantus_seconds, timed_evaluation
from fpa.data.sets import load_data
from fpa.engine import Engine
from fpa.engine.arithmetic import Runner
from fpa.explanation import PAPER, Settings, passes
from fpa.study.read import read_study
from fpa.study.recipe import load_recipe
from train_gpu import measure, prepared

TINY = {"training.epochs": 1, "data.train_images": 128, "data.evaluation_images": 8, "evaluation.ig_steps": 3}


def run_study(data: str, output: Path, seed: int, tiny: bool) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of the process to its end, and the manifest it leaves."""
    command = [sys.executable, "-m", "fpa", "run", "cifar10", "--data.root", data, "--seed", str(seed)]
    command += ["--output", str(output)]
    command += [f"--{name}={value}" for name, value in (TINY if tiny else {}).items()]
    command += ["--training.milestones=[]"] if tiny else []
    print("$ fpa " + " ".join(command[3:]), flush=True)
    with tempfile.TemporaryDirectory() as cache:  # what an earlier process compiled must not help
        began = time.perf_counter()
        environment = os.environ | {"COLUMNS": "80", "TORCHINDUCTOR_CACHE_DIR": cache}
        subprocess.run(command, check=True, env=environment)
        return time.perf_counter() - began, json.loads((output / "manifest.json").read_text())


def accuracies(study: Path) -> dict[str, float]:
    """Share of the test images that each model of a study classifies correctly."""
    return {name: model.accuracy for name, model in read_study(study).models.items()}


def training_steps(data: Any, tiny: bool) -> dict[str, float]:
    """Milliseconds per step: three models in one graph, and one model eagerly."""
    recipe = load_recipe("cifar10")
    steps, rounds = (1, 1) if tiny else (400, 5)
    three, _ = prepared(recipe, data, ["none", "rectangle", "fpa"], True)
    captured = measure({"three": three}, steps, rounds)["three"]
    del three
    eager, _ = prepared(recipe, data, ["fpa"], False)
    return {
        "captured_three": captured,
        "eager_one": measure({"one": eager}, max(1, steps // 4), rounds)["one"],
    }


def where_the_time_goes(model: nn.Module, images: Tensor, settings: Settings, best: dict[str, Any]) -> dict:
    """Seconds of a warm evaluation on CUDA: the passes against their floor, padding, and all the rest."""
    engine = Engine(model, compile=True, expected_rows=10**8)
    timed_evaluation(engine, images[:1024], settings, "cuda")  # compiles
    events: dict[str, list[tuple[Any, Any, int]]] = {"gradients": [], "forwards": []}
    plain = {"gradients": Runner.gradients, "forwards": Runner.logits}

    def watched(kind: str) -> Any:
        def run(self: Runner, rows: Tensor, *others: Any, **how: Any) -> Tensor:
            if not self.compiled:
                return plain[kind](self, rows, *others, **how)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = plain[kind](self, rows, *others, **how)
            end.record()
            events[kind].append((start, end, len(rows)))
            return result

        return run

    Runner.gradients = watched("gradients")  # type: ignore[method-assign]
    Runner.logits = watched("forwards")  # type: ignore[method-assign]
    try:
        total, _ = timed_evaluation(engine, images, settings, "cuda")
    finally:
        Runner.gradients = plain["gradients"]  # type: ignore[method-assign]
        Runner.logits = plain["forwards"]  # type: ignore[method-assign]
    found: dict[str, Any] = {"images": len(images), "seconds": total}
    needed = {"gradients": passes("paper", settings), "forwards": FORWARDS_PER_IMAGE - 1}
    for kind, calls in events.items():
        taken = sum(start.elapsed_time(end) for start, end, _ in calls) / 1e3
        rows = sum(count for _, _, count in calls)
        useful = len(images) * needed[kind]
        found[kind] = {
            "seconds": taken,
            "floor": useful / best[kind],
            "padding": (rows - useful) / best[kind],
        }
    found["rest"] = total - sum(found[kind]["seconds"] for kind in events)
    return found


def cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="folder that holds CIFAR-10")
    parser.add_argument("--output", type=Path, default=Path("runs/cifar10"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--few", type=int, default=512, help="images for Captum and Quantus")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="of the code, to be stored with the times")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    tiny = chosen.tiny
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if (chosen.output / "manifest.json").exists():
        raise SystemExit(f"{chosen.output} holds a study already: its stages would not be timed anew")
    wall, manifest = run_study(chosen.data, chosen.output, chosen.seed, tiny)

    data = load_data("cifar10", chosen.data)
    model = load(str(chosen.output / "none" / "model.safetensors"), device)
    settings = Settings(ig_steps=3) if tiny else Settings()
    few = data.normalisation(data.test.images[: 4 if tiny else chosen.few])
    best = floor(model, "bfloat16", [8] if tiny else [4096], device, device == "cuda")
    captum = captum_seconds(model, few, settings, device)
    quantus = quantus_seconds(model, few, device)
    milliseconds = training_steps(data, tiny)
    gap = None
    if device == "cuda":
        gap = where_the_time_goes(model, data.normalisation(data.test.images[:4096]), settings, best)

    count = len(data.evaluation) if not tiny else 8
    epochs, steps = (1, 2) if tiny else (40, len(data.train) // 64)
    gradients = passes("paper", settings)
    floors = {
        "train": epochs * steps * milliseconds["captured_three"] / 1e3,
        "evaluate": count * (gradients / best["gradients"] + FORWARDS_PER_IMAGE / best["forwards"]),
    }
    peers = {
        "train": 3 * epochs * steps * milliseconds["eager_one"] / 1e3,
        "evaluate": count * (captum["seconds_an_image"] + len(PAPER) * 2 * 20 * quantus["seconds_a_forward"]),
    }
    timings = manifest["timings"]
    compilation = manifest["compilation"]
    rows = []
    for stage, seconds in timings.items():
        kind = stage.split()[0]
        compiling = compilation.get(stage, 0.0)
        rows.append(
            {
                "stage": stage,
                "seconds": seconds,
                "of which compiling": compiling,
                "floor": floors.get(kind),
                "share of the floor": floors[kind] / (seconds - compiling) if kind in floors else None,
                "others": peers.get(kind),
                "times as long": peers[kind] / seconds if kind in peers else None,
            }
        )
    rest = wall - sum(timings.values())
    rows.append({"stage": "start, data, reading", "seconds": rest})
    theirs = peers["train"] + 3 * peers["evaluate"]
    rows.append(
        {
            "stage": "all",
            "seconds": wall,
            "of which compiling": sum(compilation.values()),
            "floor": floors["train"] + 3 * floors["evaluate"],
            "share of the floor": (floors["train"] + 3 * floors["evaluate"]) / wall,
            "others": theirs,
            "times as long": theirs / wall,
        }
    )
    head = list(rows[0])
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(cell(row.get(name)) for name in head) + " |")
    print("others: eager training one model after another; Captum and Quantus for the evaluation")
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    result = {"commit": chosen.commit, "device": gpu, "torch": torch.__version__, "wall": wall, "rows": rows}
    result |= {"accuracy": accuracies(chosen.output), "floor": best}
    result |= {"captum": captum, "quantus": quantus, "training": milliseconds, "few": len(few), "gap": gap}
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
