"""Memory of an evaluation by its number of images: tiny images and a tiny network, blocks as on a CPU.

    python benchmarks/many_images.py [--counts 5000,50000] [--output docs/results/many-images.json]

Every number of images is a process of its own: what the operating system calls its most memory is noted when
the blocks are made, and again when tables, figures and report are. The paper's ten estimators, 21 points.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from fpa.data.source import image_source
from fpa.engine import Engine
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.plan import make_plan
from fpa.evaluation.shards import load_result
from fpa.explanation import Settings
from fpa.show import show_all

SIDE = 8
POINTS = 21


class Drawn(Dataset[torch.Tensor]):
    """Images that are made when they are read, so that none has to be held."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(number))


def most_memory() -> float:
    """MiB that this process has held at most (Linux counts them in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(count: int) -> dict[str, float]:
    """Evaluate so many images in this process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 10))
    net[3].bias.data += 5.0  # unmasked logits above 0, so that images count
    plan = make_plan("paper", settings=Settings(ig_steps=1, sg_samples=1), points=POINTS)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        evaluate_blocks(
            Engine.of(net),
            image_source(Drawn(count)),
            plan,
            folder,
            subject=SubjectFacts("tiny", tuple(f"class {number}" for number in range(10))),
            examples=8,
            progress=False,
        )
        seconds = time.perf_counter() - began
        blocks = most_memory()
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        began = time.perf_counter()
        result = load_result(folder)
        reading = time.perf_counter() - began
        sides = (result.evaluation.mif, result.evaluation.lif)
        curves = sum(each.nbytes for side in sides for each in side.values())
        began = time.perf_counter()
        show_all(result.results, Path(folder), "")
        showing = time.perf_counter() - began
    return {
        "images": count,
        "seconds_for_the_blocks": round(seconds, 1),
        "seconds_to_read_them": round(reading, 1),
        "seconds_for_tables_figures_report": round(showing, 1),
        "mib_for_the_blocks": round(blocks, 1),
        "mib_with_the_result": round(most_memory(), 1),
        "mib_of_curves": round(curves / 2**20, 1),
        "mib_on_disk": round(disk / 2**20, 1),
    }


def main() -> None:
    """Measure every number of images in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="5000,50000")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", type=int, help="measure this number here and print it")
    chosen = parser.parse_args()
    if chosen.one is not None:
        print(json.dumps(measured(chosen.one)))
        return
    found = []
    for count in map(int, chosen.counts.split(",")):
        command = [sys.executable, __file__, "--one", str(count)]
        found.append(
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        )
        print(found[-1])
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
