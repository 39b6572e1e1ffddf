"""An evaluation at 224 px against the passes it is made of: ResNet-50, ten estimators, m = 200, 21 points.

    python benchmarks/evaluate_224.py [--model resnet50] [--images 256] [--photos FOLDER] [--out FILE]

1. floor: gradients/s and forwards/s of the bare model (bfloat16, batch norms folded, channels-last,
   compiled), the best over the batch sizes; passes at that speed are the floor of an evaluation;
2. evaluation: `fpa.evaluate` with default settings, a quarter of the images to compile, the same quarter
   again, then all, as a share of the floor; the difference tells what does not grow with the images;
3. with `--parts`, what the device did in an evaluation, by kernel, and how long it waited.

Images are random, or the validation photos of an image folder (val/CLASS/*.jpg), decoded by `--workers`.
To try it without a GPU: `--device cpu --images 2 --tiny`.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import fpa
from explain_gpu import FORWARDS_PER_IMAGE, floor, seconds
from fpa.data.sets import load_evaluation_data
from fpa.data.source import image_source
from fpa.engine import Engine
from fpa.evaluation import loop
from fpa.explanation import Settings, passes
from fpa.models.architectures import build_model


def timed(engine: Engine, images: Any, settings: Settings) -> float:
    with tempfile.TemporaryDirectory() as folder:

        def evaluate() -> object:
            return fpa.evaluate(engine, images, settings=settings, folder=folder, examples=0, progress=False)

        return seconds(evaluate, engine.device.type)


def parts(engine: Engine, images: Any, settings: Settings) -> dict[str, Any]:
    """Milliseconds per image of the kernels that take longest, and of no kernel at all."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        taken = timed(engine, images, settings)
    events = profiled.key_averages()
    kernels = [(event.self_device_time_total / 1e3, event.count, event.key) for event in events]
    kernels.sort(reverse=True)
    busy = sum(entry[0] for entry in kernels) / 1e3
    shown = [[round(ms, 2), count, name[:110]] for ms, count, name in kernels[:45]]
    return {"seconds": taken, "busy_seconds": busy, "kernels_ms": shown}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--rows", type=int, nargs="+", default=[0], help="rows a batch; 0: the default")
    parser.add_argument("--block", type=int, help="images a block; without it, the default")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", action="store_true", help="see what the device did, kernel by kernel")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    size = 64 if chosen.tiny else 224
    device = chosen.device
    cuda = chosen.device == "cuda"
    settings = Settings(ig_steps=4, sg_samples=2) if chosen.tiny else Settings()
    model = build_model(chosen.model, 1000, (3, size, size)).to(device).eval()
    images: Any = torch.randn(chosen.images, 3, size, size)
    if chosen.photos:
        data = load_evaluation_data(f"folder:{chosen.photos}", evaluation_images=chosen.images, size=size)
        images = image_source(data, workers=chosen.workers)
    result: dict[str, Any] = {"torch": torch.__version__, "model": chosen.model, "images": chosen.images}
    if cuda:
        result["gpu"] = torch.cuda.get_device_name()
    best = floor(model, "bfloat16", [4] if chosen.tiny else chosen.batches, device, cuda, size=size)
    result["floor"] = best
    print(
        f"floor: {best['gradients']:,.0f} gradients/s, {best['forwards']:,.0f} forwards/s; {best['all']}",
        flush=True,
    )
    least = chosen.images * (
        passes("paper", settings) / best["gradients"] + FORWARDS_PER_IMAGE / best["forwards"]
    )
    if chosen.block:
        loop.default_block_size = lambda *_: chosen.block
    for rows in chosen.rows:
        engine = Engine(model, expected_rows=chosen.images * 600, batch_size=rows or None)
        quarter = images[: chosen.images // 4] if isinstance(images, torch.Tensor) else images
        first = timed(engine, quarter, settings)
        short = timed(engine, quarter, settings)
        taken = timed(engine, images, settings)
        one = torch.zeros(1, 3, size, size)
        row: dict[str, Any] = {
            "first_seconds": first,
            "compile_seconds": engine.compile_seconds,
            "seconds": taken,
            "images_per_second": chosen.images / taken,
            "share_of_floor": least / taken,
            # A quarter of the images takes more than a quarter of the time.
            "fixed_seconds": (4 * short - taken) / 3 if quarter is not images else None,
            "peak_gib": engine.peak_memory / 2**30,
            "block": loop.default_block_size(engine, one),
            "rows": {kind: engine.batch_size(kind, one) for kind in ("gradients", "forwards")},
        }
        result.setdefault("evaluations", []).append(row)
        print(row, flush=True)
        if chosen.parts:
            row["parts"] = parts(engine, images, settings)
        if chosen.out:
            chosen.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
