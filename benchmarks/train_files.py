"""Training on photo files, as a share of the same training on images that are on the device already.

    python benchmarks/train_files.py --data folder:photos --size 64 --model resnet18-cifar --batch 256
    python benchmarks/train_files.py --data food101 --root data --size 64 --model resnet50-64px

Measured one after the other, in images/s of all models together: the captured step on random bytes on the
device; on the files, decoded once and kept where they fit; and on the files, decoded every time, by each
number of `--workers` or, read by as many, by the device. Beside it, how many photos a second the workers
alone deliver, how many the device decodes (torchvision's decode_jpeg), and the host's memory. `--tiny` runs
it on a CPU, to see that it works.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit, ImageData
from fpa.study.recipe import load_recipe
from fpa.study.trainings import recipe_jobs
from fpa.training import batches as training_batches
from fpa.training import jpegs, photos_on_device
from fpa.training.run import Run
from fpa.training.steps import CapturedSteps, EagerSteps
from fpa.training.trainer import Trainer


def on_device(data: ImageData, images: int) -> ImageData:
    """Random bytes of the same shape, held whole, with as many classes."""
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, *data.input_shape), dtype=torch.uint8, generator=source)
    labels = torch.randint(0, len(data.classes), (images,), generator=source)
    split = ArraySplit(pixels, labels)
    return replace(data, train=split, test=split, evaluation=torch.arange(8), flip=True)


def host_gib() -> float:
    """Memory of this process and its workers; pages they share count once."""
    total = 0
    own = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if own in (parent, int(path.name)):
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 2**20


def measured(
    recipe: Any, data: ImageData, names: list[str], workers: int, seconds: float
) -> dict[str, float]:
    """Images a second of all models together, and the seconds it took to get ready."""
    began = time.perf_counter()
    trainer = Trainer(recipe.training, workers=workers)
    data = trainer.prepared(data)
    runs = [Run(job, data, trainer) for job in recipe_jobs(recipe, Path(tempfile.mkdtemp()), data, names)]
    steps = CapturedSteps(runs, trainer) if trainer.captured else EagerSteps(runs, trainer)
    ready = time.perf_counter() - began
    done = 0
    images = 0
    while not images:
        trainer.start_epoch(runs)
        for step in range(runs[0].batches.steps):
            if done == 2 * workers + 5:  # what was decoded beforehand is used up
                _wait()
                start = time.perf_counter()
            steps()
            done += 1
            if done > 2 * workers + 5 and step % 10 == 0:
                _wait()
                if time.perf_counter() - start > seconds:
                    images = (done - 2 * workers - 5) * recipe.training.batch_size * len(runs)
                    break
    _wait()
    speed = images / (time.perf_counter() - start)
    memory = host_gib()
    trainer.close()
    return {"images_per_second": round(speed), "ready_s": round(ready, 1), "host_gib": round(memory, 1)}


def workers_alone(data: ImageData, batch: int, workers: int, seconds: float) -> int:
    """Photos a second that the workers deliver when nobody trains."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = training_batches.FileBatches(data, batch, 0, mine=slice(None), device=device, workers=workers)
    loader.start(0, 0)
    for _ in range(min(loader.steps - 2, 2 * workers + 2)):
        loader.advance()
    began = time.perf_counter()
    done = 0
    for _ in range(loader.steps - min(loader.steps - 2, 2 * workers + 2)):
        loader.advance()
        done += batch
        if time.perf_counter() - began > seconds:
            break
    speed = done / (time.perf_counter() - began)
    loader.close()
    return round(speed)


def device_decoding(data: ImageData, batch: int, seconds: float) -> int | str:
    """Photos a second that torchvision decodes on the device, files in memory; nothing else is done."""
    from torchvision.io import ImageReadMode, decode_jpeg

    chosen = [data.train.paths[index] for index in range(min(batch, len(data.train)))]
    files = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in chosen]
    try:
        decode_jpeg(files, mode=ImageReadMode.RGB, device="cuda")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    _wait()
    began = time.perf_counter()
    done = 0
    while time.perf_counter() - began < seconds:
        decode_jpeg(files, mode=ImageReadMode.RGB, device="cuda")
        _wait()
        done += len(files)
    return round(done / (time.perf_counter() - began))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--root", default="data")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--model", default="resnet18-cifar")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--variants", nargs="+", default=["none", "rectangle", "fpa"])
    parser.add_argument("--workers", type=int, nargs="*", default=[16, 2])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    fields = {"model": chosen.model, "training.batch_size": chosen.batch, "data.size": chosen.size}
    recipe = load_recipe("cifar10", fields)
    data = load_data(chosen.data, chosen.root, size=chosen.size, evaluation_images=8)
    seconds = 0.5 if chosen.tiny else chosen.seconds
    usual_share = photos_on_device.MEMORY_SHARE
    result: dict[str, Any] = {key: str(value) for key, value in vars(chosen).items()}
    result |= {"torch": torch.__version__, "photos": len(data.train)}
    if torch.cuda.is_available():
        result["device"] = torch.cuda.get_device_name()

    def tell(name: str, row: Any) -> None:
        result[name] = row
        print(f"{name:<36} {row}", flush=True)
        if chosen.output:
            chosen.output.write_text(json.dumps(result, indent=1))

    images = 4 * chosen.batch if chosen.tiny else 8192
    best = measured(recipe, on_device(data, images), chosen.variants, 0, seconds)
    tell("on the device", best)
    rows = {"kept decoded": (usual_share, {}, max(chosen.workers, default=0))}
    for count in chosen.workers:
        rows[f"decoded by {count} workers"] = (0.0, {}, count)
        rows[f"decoded on the device, {count} workers"] = (0.0, {"cuda": 1, "cpu": 1}, count)
    for name, (share, smallest, workers) in rows.items():
        photos_on_device.MEMORY_SHARE = share
        jpegs.SMALLEST = smallest
        row = measured(recipe, data, chosen.variants, workers, seconds)
        share_of_best = row["images_per_second"] / best["images_per_second"]
        tell(name, row | {"of_on_the_device": round(share_of_best, 3)})
    for count in chosen.workers:
        tell(f"{count} workers alone", workers_alone(data, chosen.batch, count, seconds))
    if torch.cuda.is_available():
        tell("decoding on the device alone", device_decoding(data, chosen.batch, min(seconds, 3)))


if __name__ == "__main__":
    main()
