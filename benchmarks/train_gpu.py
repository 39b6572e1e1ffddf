"""Time of a training step on a GPU: eager, captured, with each augmentation, several runs side by side.

    python benchmarks/train_gpu.py [--tiny] [--output FILE]

Random images stand in for data: the time of a step does not depend on what is in them.
The share of FPA is the captured step with it against the captured step without it, measured in turns.
`--tiny` runs everything at small sizes, on a CPU too, to see that it works.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from fpa.data import ArraySplit, ImageData, minus_one_to_one
from fpa.progress import Display
from fpa.recipe import load_recipe
from fpa.train import CapturedSteps, EagerSteps, Job, Trainer


def random_data(images: int, size: int, classes: int, crop: int) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=generator)
    split = ArraySplit(pixels, torch.randint(0, classes, (images,), generator=generator))
    names = [str(c) for c in range(classes)]
    return ImageData(
        "random", names, minus_one_to_one(3), (3, size, size), split, split, torch.arange(64), crop, True
    )


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def prepared(recipe, data, names, captured):
    """A function that takes `n` steps, and the seconds it took to get ready."""
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp())
    trainer = Trainer(recipe, folder, None, None, Display(quiet=True))
    runs = [trainer.start(Job(recipe, name, folder / name), data) for name in names]
    steps = CapturedSteps(runs, trainer) if captured and trainer.captured else EagerSteps(runs, trainer)
    for run in runs:
        run.start_epoch()
    left = [0]

    def take(n: int) -> None:
        for _ in range(n):
            if left[0] == 0:
                for run in runs:
                    run.batches.start(0, 0)
                left[0] = runs[0].batches.steps
            steps()
            left[0] -= 1

    take(3)
    wait()
    return take, time.perf_counter() - began


def measure(takers: dict, steps: int, rounds: int) -> dict[str, float]:
    """Median milliseconds a step of each, the rounds taken in turns so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in takers}
    for _ in range(rounds):
        for name, take in takers.items():
            wait()
            began = time.perf_counter()
            take(steps)
            wait()
            times[name].append((time.perf_counter() - began) / steps * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def study(label, model, size, batch, images, fpa, steps, rounds, precision, together):
    data = random_data(images, size, 10, 4 if size == 32 else 0)
    fields = {"model": model, "training.batch_size": batch, "training.precision": precision}
    recipe = load_recipe("cifar10", fields | {f"fpa.{k}": v for k, v in fpa.items()})
    takers, ready = {}, {}
    for name in ("none", "fpa", "rectangle"):
        takers[name], ready[name] = prepared(recipe, data, [name], True)
    result = measure(takers, steps, rounds)
    del takers
    if together:
        three, ready["three"] = prepared(recipe, data, ["none", "rectangle", "fpa"], True)
        result["three together, each"] = measure({"three": three}, steps, rounds)["three"] / 3
    eager, _ = prepared(recipe, data, ["none"], False)
    result["eager"] = measure({"eager": eager}, max(1, steps // 4), rounds)["eager"]
    lines = {f"{key} ms": round(value, 4) for key, value in result.items()}
    lines["fpa adds %"] = round(100 * (result["fpa"] / result["none"] - 1), 2)
    lines["rectangle adds %"] = round(100 * (result["rectangle"] / result["none"] - 1), 2)
    lines |= {f"set-up of {key} s": round(value, 1) for key, value in ready.items()}
    print(label, precision)
    for key, value in lines.items():
        print(f"  {key:<24} {value:>10}")
    return {"case": label, "precision": precision, **lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    small = {"p1_max": 0.25, "p2": 0.1, "s_max": 3}
    large = {"p1_max": 0.3, "p2": 0.01, "s_max": 10}
    if options.tiny:
        cases = [("tiny", "resnet-small", 32, 8, 64, small, 2, 1, "float32", True)]
    else:
        cases = [
            ("ResNet-18, 32 px, batch 64", "resnet18-cifar", 32, 64, 50000, small, 400, 7, "bfloat16", True),
            ("ResNet-18, 32 px, batch 64", "resnet18-cifar", 32, 64, 50000, small, 200, 5, "tf32", True),
            ("ResNet-50, 224 px, batch 256", "resnet50", 224, 256, 2048, large, 10, 7, "bfloat16", False),
        ]
    results = [study(*case) for case in cases]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if options.output:
        options.output.write_text(
            json.dumps({"device": device, "torch": torch.__version__, "cases": results}, indent=1)
        )


if __name__ == "__main__":
    main()
