"""Time of a training step on a GPU: eager, captured, with each augmentation, several runs side by side.

    python benchmarks/train_gpu.py [--tiny] [--output FILE] [--photos FOLDER]

Random images stand in for data: the time of a step does not depend on what is in them. With `--photos`, an
image folder (train/CLASS/*.jpg), only ResNet-50 at 224 px is measured, on these photos, held on the device.
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

from fpa.data.normalisation import minus_one_to_one
from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit, ImageData, read_batches
from fpa.study.recipe import load_recipe
from fpa.study.trainings import recipe_jobs
from fpa.training.run import Run
from fpa.training.steps import CapturedSteps, EagerSteps
from fpa.training.trainer import Trainer


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
    trainer = Trainer(recipe.training)
    jobs = recipe_jobs(recipe, Path(tempfile.mkdtemp()), data, names)
    runs = [Run(job, data, trainer) for job in jobs]
    steps = CapturedSteps(runs, trainer) if captured and trainer.captured else EagerSteps(runs, trainer)
    trainer.start_epoch(runs)
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
    """Median milliseconds per step of each, the rounds taken in turns so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in takers}
    for _ in range(rounds):
        for name, take in takers.items():
            wait()
            began = time.perf_counter()
            take(steps)
            wait()
            times[name].append((time.perf_counter() - began) / steps * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def photo_data(folder: Path) -> ImageData:
    """The training photos of a folder, resized and cropped to 224 px once, as an array."""
    data = load_data(f"folder:{folder}", size=224)
    order = torch.arange(len(data.train))
    batches = read_batches(data.train, order.split(64))
    parts = [(images.clone(), labels.clone()) for _, images, labels in batches]
    split = ArraySplit(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))
    return ImageData(
        "photos", data.classes, data.normalisation, (3, 224, 224), split, split, torch.arange(64), 0, True
    )


def study(label, model, size, batch, images, fpa, steps, rounds, precision, together):
    data = images if isinstance(images, ImageData) else random_data(images, size, 10, 4 if size == 32 else 0)
    fields = {"model": model, "training.batch_size": batch, "training.precision": precision}
    recipe = load_recipe("cifar10", fields | {f"fpa.{k}": v for k, v in fpa.items()})
    takers = {}
    ready = {}
    for name in ("none", "fpa") if isinstance(images, ImageData) else ("none", "fpa", "rectangle"):
        takers[name], ready[name] = prepared(recipe, data, [name], True)
    result = measure(takers, steps, rounds)
    del takers
    if together:
        three, ready["three"] = prepared(recipe, data, ["none", "rectangle", "fpa"], True)
        result["three together, each"] = measure({"three": three}, steps, rounds)["three"] / 3
    eager, _ = prepared(recipe, data, ["none"], False)
    result["eager"] = measure({"eager": eager}, max(1, steps // 4), rounds)["eager"]
    lines = {f"{key} ms": round(value, 4) for key, value in result.items()}
    lines["fpa images/s"] = round(1e3 * batch / result["fpa"])
    lines["fpa adds %"] = round(100 * (result["fpa"] / result["none"] - 1), 2)
    if "rectangle" in result:
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
    parser.add_argument("--photos", type=Path)
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
    if options.photos:
        photos = photo_data(options.photos)
        label = "ResNet-50, 224 px, batch 256, photos"
        sizes = (2, 1, "float32") if options.tiny else (10, 9, "bfloat16")
        model, batch = ("resnet-small", 8) if options.tiny else ("resnet50", 256)
        cases = [(label, model, 224, batch, photos, large, *sizes, False)]
    results = [study(*case) for case in cases]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if options.output:
        options.output.write_text(
            json.dumps({"device": device, "torch": torch.__version__, "cases": results}, indent=1)
        )


if __name__ == "__main__":
    main()
