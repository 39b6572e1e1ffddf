"""Time of FPA on a CPU, beside torchvision's RandomErasing and a compiled loop over pixels.

    python benchmarks/augment.py

All three perturb the same batch (p = 1: every batch is perturbed), in turns; medians and ratios are printed.
The loop is the paper's algorithm pixel by pixel, compiled by numba; RandomErasing masks one rectangle an
image and is applied image by image, as in a data loader.
"""

import argparse
import statistics
import time

import numba
import numpy as np
import torch
from torchvision.transforms import v2

from fpa import FPA, Rectangle

CASES = [
    ((128, 3, 32, 32), {"p1_max": 0.25, "p2": 0.1, "s_max": 3}),
    ((64, 3, 224, 224), {"p1_max": 0.3, "p2": 0.01, "s_max": 10}),
]


@numba.njit(cache=False)
def compiled_loop(images, p1_max, p2, s_max):  # pragma: no cover
    count, channels, height, width = images.shape
    out = images.copy()
    p1 = np.random.uniform(0.0, p1_max)
    for n in range(count):
        for h in range(height):
            for w in range(width):
                if np.random.random() < p1:
                    for c in range(channels):
                        out[n, c, h, w] = 0
                    if np.random.random() < p2:
                        side = np.random.randint(1, s_max + 1)
                        for c in range(channels):
                            for y in range(h, min(h + side, height)):
                                for x in range(w, min(w + side, width)):
                                    out[n, c, y, x] = 0
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {rounds} rounds in turns")
    print(f"{'batch':<20}{'method':<26}{'ms':>9}{'against FPA':>13}")
    for shape, setting in CASES:
        images = torch.randn(shape)
        array = images.numpy()
        fpa = FPA(1.0, **setting)
        rectangle = Rectangle(1.0)
        erasing = v2.RandomErasing(1.0, scale=(0.02, 0.4), ratio=(0.3, 1 / 0.3))
        methods = {
            "FPA": lambda fpa=fpa, images=images: fpa(images),
            "Rectangle": lambda rectangle=rectangle, images=images: rectangle(images),
            "RandomErasing per image": lambda e=erasing, images=images: torch.stack([e(x) for x in images]),
            "compiled loop (numba)": lambda a=array, s=setting: compiled_loop(
                a, s["p1_max"], s["p2"], s["s_max"]
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in methods}
        for round_ in range(rounds + 1):
            for name, method in methods.items():
                began = time.perf_counter()
                method()
                if round_:  # the first round compiles and warms up
                    times[name].append(time.perf_counter() - began)
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, value in medians.items():
            label = "x".join(map(str, shape))
            print(f"{label:<20}{name:<26}{1e3 * value:>9.2f}{value / medians['FPA']:>12.2f}x")


if __name__ == "__main__":
    main()
