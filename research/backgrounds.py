"""How much contrast photos have at every scale, and the amplitudes with which the world `cues` has the same.

    python research/backgrounds.py --data data

For 3,000 photos of CIFAR-10 and as many backgrounds: the root mean square of brightness in bands of spatial
frequency (cycles per image), and the amplitudes of noise at scales of 1, 2, 4, ... pixels that fit them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fpa.data.sets import load_data
from fpa.seeds import uniform_by_index
from fpa.worlds.backgrounds import draw_backgrounds, finer, grid_sides

BANDS = ((0.5, 1.5), (1.5, 2.5), (2.5, 4), (4, 6), (6, 8), (8, 12), (12, 23))
"""Cycles per image."""
SIZE = 32
COUNT = 3000


def power(brightness: Tensor) -> np.ndarray:
    """The variance of brightness [N, 32, 32] in every band, the mean over images."""
    centred = brightness - brightness.mean((1, 2), keepdim=True)
    spectrum = torch.fft.fft2(centred).abs().square() / SIZE**4
    frequency = torch.fft.fftfreq(SIZE) * SIZE
    radius = (frequency[:, None].square() + frequency.square()).sqrt()
    within = [(radius >= low) & (radius < high) for low, high in BANDS]
    return np.array([float(spectrum[:, band].sum(1).mean()) for band in within])


def of_scale(level: int, count: int = 400) -> np.ndarray:
    """The variances of noise of amplitude 1 at one scale alone."""
    sides = grid_sides(SIZE)
    counts = [side * side for side in sides]
    drawn = 2 * uniform_by_index(7, range(count), sum(counts)) - 1
    fields = torch.zeros(1)
    for number, (side, values) in enumerate(zip(sides, torch.split(drawn, counts, dim=1), strict=True)):
        coarser = finer(finer(fields).mT).mT if number else fields
        fields = coarser + (number == level) * values.view(-1, side, side)
    return power(fields[:, 1 : SIZE + 1, 1 : SIZE + 1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    photos = load_data("cifar10", options.data).test.images[:COUNT].float() / 255
    backgrounds = draw_backgrounds(0, range(COUNT), SIZE, "cpu")
    wanted = power(photos.mean(1))
    found = power(backgrounds.mean(1))
    scales = np.stack([of_scale(level) for level in range(len(grid_sides(SIZE)))], 1)
    # Relative to the band: the faint ones decide whether a masked pixel stands out.
    amplitudes = np.sqrt(nnls(scales / wanted[:, None], np.ones(len(wanted)))[0])
    print("| cycles per image | photos | backgrounds |\n|---|---:|---:|")
    for (low, high), photo, background in zip(BANDS, np.sqrt(wanted), np.sqrt(found), strict=True):
        print(f"| {low:g} to {high:g} | {photo:.3f} | {background:.3f} |")
    print("amplitudes at scales of 1, 2, 4, ... pixels:", amplitudes[::-1].round(3).tolist())


if __name__ == "__main__":
    main()
