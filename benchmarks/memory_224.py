"""Memory and speed of all ten estimators and their curves on ResNet-50 at 224 px, with default settings.

    python benchmarks/memory_224.py [--gib 8] [--images 16] [--photos FOLDER] [--device cuda] [--tiny]

On CUDA the process is allowed `--gib` of memory; nothing else is set: m = 200, 21 points, ten estimators.
Images are random, or the first validation photos of an image folder (val/CLASS/*.jpg).
"""

import argparse
import tempfile
import time

import torch

import fpa
from fpa.data.sets import load_data
from fpa.data.splits import read_batches
from fpa.engine import Engine
from fpa.explanation import Settings
from fpa.models.architectures import build_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--photos")
    parser.add_argument("--tiny", action="store_true", help="few steps, to see that it runs")
    chosen = parser.parse_args()
    if chosen.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, chosen.gib * 2**30 / total))
    model = build_model("resnet50", 1000, (3, 224, 224)).to(chosen.device).eval()
    images = torch.randn(chosen.images, 3, 224, 224)
    if chosen.photos:
        data = load_data(f"folder:{chosen.photos}", size=224, evaluation_images=chosen.images)
        _, pixels, _ = next(read_batches(data.test, [data.evaluation[: chosen.images]]))
        images = data.normalisation(pixels)
    engine = Engine(model)
    settings = Settings(ig_steps=4, sg_samples=2) if chosen.tiny else Settings()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        fpa.evaluate(
            engine, images, settings=settings, points=3 if chosen.tiny else 21, folder=folder, progress=False
        )
        seconds = time.perf_counter() - began
    batches = {kind: engine.batch_size(kind, images[:1]) for kind in ("gradients", "forwards")}
    print(
        f"{chosen.device}, {chosen.gib:g} GiB allowed: {chosen.images} images in {seconds:.1f} s "
        f"({chosen.images / seconds:.2f} images/s), peak {engine.peak_memory / 2**30:.2f} GiB, "
        f"rows a batch {batches}, precision {engine.precision}"
    )


if __name__ == "__main__":
    main()
