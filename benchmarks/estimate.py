"""What `--estimate` says, beside what the work then takes, at sizes that the estimate did not run.

    python benchmarks/estimate.py [--only NAME ...] [--photos FOLDER --weights FILE] [--device cpu]

An estimate runs a block of images at most (32 of 32 px, 4 of 224 px on a CPU) and a few training steps. The
work is all of it: hundreds of images, every step. Ratios are estimate / work; the memory is that of a process
of its own for each line. `--photos` is a folder of photos in one folder per class, `--weights` those of a
MobileNetV2 for torchvision; without them the line of 224 px is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fpa
from fpa.engine.devices import peak_memory

PAPER_AT_224 = {"count": 24, "ig_steps": 20, "points": 11}
"""Fewer steps and points than usual: 30 gradients and 180 forward passes a photo instead of 216 and 381."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=WORKS)
    parser.add_argument("--photos")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measured(chosen.one, chosen)))
        return
    print(f"{'work':<28} {'estimate':>9} {'work':>9} {'time':>6} {'memory':>7} {'disk':>6}   estimated in")
    for name in chosen.only or WORKS:
        if name != "photos" or chosen.photos:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            row = json.loads(out.splitlines()[-1])
            print(
                f"{name:<28} {row['seconds'][0]:7.0f} s {row['seconds'][1]:7.0f} s "
                f"{_ratio(row['seconds']):6.2f} {_ratio(row['memory']):7.2f} {_ratio(row['disk']):6.2f}"
                f"   {row['took']:.1f} s",
                flush=True,
            )


def _ratio(both: list[float]) -> float:
    return both[0] / both[1] if both[1] else float("nan")


def measured(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Estimate and work: seconds, bytes of memory, bytes on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        function, arguments, named = WORKS[name](chosen, Path(folder, "work"))
        began = time.perf_counter()
        estimate = fpa.estimate(function, *arguments, **named)
        took = time.perf_counter() - began
        began = time.perf_counter()
        function(*arguments, **named, progress=False)
        seconds = time.perf_counter() - began
        # What is shown of a study is on top of the estimate, and says so.
        stored = ("*.parquet", "*.safetensors", "*.npz")
        disk = sum(file.stat().st_size for kind in stored for file in Path(folder).rglob(kind))
        import torch

        memory = peak_memory(torch.device(chosen.device))
    return {
        "seconds": [estimate.seconds, seconds],
        "memory": [estimate.memory, memory],
        "disk": [estimate.disk, disk],
        "took": took,
    }


Work = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _evaluation(chosen: argparse.Namespace, folder: Path) -> Work:
    model = fpa.load_model("shapes-fpa", chosen.device)
    return fpa.evaluate, (model, "shapes"), {"count": 300, "folder": folder}


def _protocols(chosen: argparse.Namespace, folder: Path) -> Work:
    model = fpa.load_model("shapes-fpa", chosen.device)
    named = {"count": 200, "folder": folder, "ig_steps": 50, "protocols": ["1/8", "1/8+blur", "segments:30"]}
    return fpa.evaluate, (model, "shapes"), named


def _audit(chosen: argparse.Namespace, folder: Path) -> Work:
    model = fpa.load_model("shapes-none", chosen.device)
    return fpa.audit, (model, "shapes"), {"count": 100, "ig_steps": 50, "folder": folder}


def _finetuning(chosen: argparse.Namespace, folder: Path) -> Work:
    model = fpa.load_model("shapes-none", chosen.device)
    named = {"epochs": 6, "folder": folder, "device": chosen.device}
    return fpa.finetune, (model, "shapes"), named


def _study(chosen: argparse.Namespace, folder: Path) -> Work:
    changes = {"training.epochs": 4, "data.evaluation_images": 60}
    return fpa.run_study, (fpa.load_recipe("shapes", changes), folder), {"device": chosen.device}


def _photos(chosen: argparse.Namespace, folder: Path) -> Work:
    opened = fpa.open_model("torchvision:mobilenet_v2", chosen.weights)
    opened.model.to(chosen.device)
    named = {**PAPER_AT_224, "normalisation": opened.normalisation, "folder": folder}
    return fpa.evaluate, (opened.model, f"folder:{chosen.photos}"), named


WORKS: dict[str, Callable[[argparse.Namespace, Path], Work]] = {
    "evaluation": _evaluation,
    "protocols": _protocols,
    "audit": _audit,
    "finetuning": _finetuning,
    "study": _study,
    "photos": _photos,
}


if __name__ == "__main__":
    main()
