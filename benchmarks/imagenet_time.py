"""How long ImageNet's 50,000 validation photos take on several GPUs: a calculation from measured figures.

    python benchmarks/imagenet_time.py [--gpus 1,8,64]

Nothing is run. docs/results/evaluate-224.json has the pace of one H200 (ResNet-50, ten estimators, 224 px)
and the images of a block; docs/results/many-images.json the time that one CPU core takes to put 50,000 images
together. Blocks are dealt out whole, so the process with most of them decides. A process compiles once, at
the same time as the others.
"""

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PHOTOS = 50_000
COMPILING = 19.0
"""Seconds, the most measured on a machine that had not compiled before (docs/results/performance.md)."""
READING = 693 / 2
"""Photos that one worker process decodes in a second at 224 px (docs/results/training-files-224.txt)."""
GRADIENTS = 216
FORWARDS = 400
"""Passes of an image: the ten estimators share theirs."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="1,8,64")
    chosen = parser.parse_args()
    measured = json.loads((RESULTS / "evaluate-224.json").read_text())
    warm = measured["evaluations"][0]
    floor = measured["floor"]
    together = next(
        each for each in json.loads((RESULTS / "many-images.json").read_text()) if each["images"] == PHOTOS
    )
    shown = together["seconds_to_read_them"] + together["seconds_for_tables_figures_report"]
    size = warm["block"]
    blocks = -(-PHOTOS // size)
    pace = warm["images_per_second"]
    passes = GRADIENTS / floor["gradients"] + FORWARDS / floor["forwards"]
    print(f"{blocks} blocks of {size} images; {pace:.1f} images/s a GPU")
    print(f"{passes * 1000:.1f} ms of passes an image")
    print(
        "| GPUs | blocks of the busiest | passes | rest of the loop | uneven shares | compiling, at most |",
        end="",
    )
    print(" tables, figures, report | in all | photos/s that are read |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in map(int, chosen.gpus.split(",")):
        busiest = -(-blocks // count)
        loop = PHOTOS / count / pace
        computing = PHOTOS / count * passes
        # The busiest process has full blocks, unless the short last one is its own alone.
        uneven = min(busiest * size, PHOTOS) / pace - loop
        total = loop + uneven + COMPILING + shown
        cells = [
            f"{count}",
            f"{busiest}",
            *(f"{value:,.0f} s" for value in (computing, loop - computing, uneven, COMPILING, shown, total)),
            f"{count * pace:,.0f}",
        ]
        print(f"| {' | '.join(cells)} |")
    workers = 64 * pace / READING
    print(f"64 GPUs read as fast as {workers:.1f} worker processes decode; each of 64 has 8 of them")


if __name__ == "__main__":
    main()
