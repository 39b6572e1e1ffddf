"""How often do the 95 % intervals contain what they should? Simulated from populations that are known.

    python research/coverage.py [--draws 2000] [--page docs/fidelity.md]

The population is measured: the 10,000 images of the CIFAR-10 study (its areas, `docs/results/cifar10`) and
for the share of a logit kept under random masking the test images of shapes. From it so many images are
drawn, with replacement, and every interval is computed from them as fpa does from 100 images on; it is right
where it contains the number of the whole population. Numbers of pairs: verdict_errors.py. `--page` puts the
table into the page at its mark.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fpa
from cifar10_conclusions import filled, read_results
from fpa.scores.fidelity import Fidelity
from fpa.statistics.intervals import percentile_ends, resampled_means

SIZES = (5, 10, 20, 30, 100, 300, 1000)
RESULTS = Path("docs/results/cifar10")


def of_areas(mif: np.ndarray, lif: np.ndarray) -> Fidelity:
    """A straight line from 1 has the same area as the curve it stands for."""
    lines = (np.stack([np.ones(len(side)), 2 * side / 100 - 1], 1) for side in (mif, lif))
    return Fidelity.from_curves(*lines, [0, 1], normalise="none")


def gaps(found: Fidelity) -> np.ndarray:
    """The area between the curves of every image."""
    return np.asarray(found.lif_areas - found.mif_areas)


def contains(estimate: tuple[float, float, float], truth: float) -> bool:
    """Is the truth in the interval of (value, low, high)? Rounding does not count."""
    return bool(estimate[1] - 1e-9 <= truth <= estimate[2] + 1e-9)


def cifar10(folder: Path, draws: int) -> Iterator[tuple[str, int, bool]]:
    """A: (interval, images, whether it is right)."""
    rng = np.random.default_rng(0)
    for variant in ("none", "fpa"):
        results = read_results(folder)
        whole = results.scores[variant]["ig_sum"]
        area = whole.area
        images = whole.used
        for size in SIZES:
            for draw in range(draws):
                rows = rng.integers(images, size=size)
                found = of_areas(whole.mif_areas[rows], whole.lif_areas[rows])
                yield "A (normal, or t under 30)", size, abs(found.area - area) <= found.interval
                ends = percentile_ends(resampled_means(gaps(found)[None], 400, draw)[:, 0], 0.95)
                yield "A (bootstrap)", size, contains((0.0, *ends), area)


def kept(images: int, draws: int) -> Iterator[tuple[str, int, bool]]:
    """The share of the centred logit kept with 10 % of the pixels masked at random, and a ratio of means."""
    rng = np.random.default_rng(1)
    for variant in ("none", "fpa"):
        result = fpa.evaluate(
            fpa.load_model(f"shapes-{variant}"),
            "shapes",
            ["random", "vg_abs"],
            fractions=[0, 0.1],
            count=images,
            examples=0,
            progress=False,
            outputs="centred",
        )
        found = result.evaluation
        left = found.mif["random"][:, 1:].astype(float)
        start = found.unmasked.astype(float)
        truth = left.mean() / start.mean()
        mif = found.mif["vg_abs"]
        lif = found.lif["vg_abs"]
        whole = result.fidelity["vg_abs"]
        for size in SIZES:
            for draw in range(draws):
                rows = rng.integers(len(start), size=size)
                # As `share_kept`, which gives no interval to few images.
                drawn = resampled_means(np.stack([start[rows], left[rows, 0]]), 400, draw)
                ends = percentile_ends(drawn[:, 1] / drawn[:, 0], 0.95)
                yield "logit kept", size, contains((0.0, *ends), truth)
                some = Fidelity.from_curves(mif[rows], lif[rows], found.fractions)
                gap = abs(some.area_mean_then_divide - whole.area_mean_then_divide)
                yield "A, mean then divide", size, gap <= some.interval_mean_then_divide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="samples of each size and model")
    parser.add_argument("--images", type=int, default=1000, help="images of shapes")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args()
    right: dict[str, dict[int, list[bool]]] = {}
    for parts in (cifar10(RESULTS / "seed-0", chosen.draws), kept(chosen.images, chosen.draws // 5)):
        for name, size, found in parts:
            right.setdefault(name, {}).setdefault(size, []).append(bool(found))
    lines = ["| interval | " + " | ".join(f"{size:,} images" for size in SIZES) + " |"]
    lines.append("|---|" + "---:|" * len(SIZES))
    for name, by_size in right.items():
        cells = (f"{100 * np.mean(by_size[size]):.1f}" for size in SIZES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(filled(page, {"coverage": lines}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
