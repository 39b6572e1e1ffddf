"""How often do the 95 % intervals contain what they should? Simulated from populations that are known.

    python research/coverage.py [--draws 2000] [--page docs/fidelity.md]

The populations are measured: the 10,000 images of the CIFAR-10 study (its areas, `docs/results/cifar10`), the
test images of shapes, and the images of all models whose areas are stored (`docs/results/areas`). From each
so many images are drawn, with replacement, and every interval is computed from them as fpa does from 100
images on; it is right where it contains the number of the whole population. Numbers of pairs:
verdict_errors.py. `--page` puts the tables into the page at their marks.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import fpa
from cifar10_conclusions import filled, read_results
from fpa.auditing.areas import OutputAreas, read_areas
from fpa.auditing.rule import MASKED
from fpa.scores.fidelity import Fidelity
from fpa.statistics.intervals import Estimate, estimate, percentile_ends, resampled_means

SIZES = (5, 10, 20, 30, 100, 300, 1000)
JUDGED = (100, 300, 1000)
"""Numbers of images that an audit accepts."""
RESULTS = Path("docs/results/cifar10")
AREAS = Path("docs/results/areas")

Right = dict[str, dict[int, list[bool]]]


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


def mean_then_divide(images: int, draws: int) -> Iterator[tuple[str, int, bool]]:
    """A of the mean curves of shapes, a ratio of means."""
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
        mif = found.mif["vg_abs"]
        lif = found.lif["vg_abs"]
        whole = result.fidelity["vg_abs"]
        for size in SIZES:
            for _ in range(draws):
                rows = rng.integers(len(mif), size=size)
                some = Fidelity.from_curves(mif[rows], lif[rows], found.fractions)
                gap = abs(some.area_mean_then_divide - whole.area_mean_then_divide)
                yield "A, mean then divide", size, gap <= some.interval_mean_then_divide


def kept_intervals(
    models: dict[str, OutputAreas], size: int, draws: int
) -> Iterator[tuple[str, Estimate, float]]:
    """By model: the logit kept by a sample of its images, with the interval, and by all of them."""
    rng = np.random.default_rng(2)
    starts = {name: model.unmasked[model.usable] for name, model in models.items()}
    lefts = {name: model.masked[MASKED[0]][model.usable] for name, model in models.items()}
    for draw in range(draws):
        rows = {name: rng.integers(len(start), size=size) for name, start in starts.items()}
        # As `share_kept`, which gives no interval to few images; one resampling serves all models.
        start = np.stack([starts[name][rows[name]] for name in models])
        left = np.stack([lefts[name][rows[name]] for name in models])
        drawn = resampled_means(np.concatenate([start, left]), 1000, draw)
        shares = drawn[:, len(models) :] / drawn[:, : len(models)]
        for place, name in enumerate(models):
            value = left[place].mean() / start[place].mean()
            yield name, estimate(value, shares[:, place]), lefts[name].mean() / starts[name].mean()


def kept_table(models: dict[str, OutputAreas], draws: int, right: Right) -> list[str]:
    """How often the interval of the logit kept lies on one side of the truth, in all models and in the worst.

    Multiplying what is kept by a number multiplies the interval too, so this is how often a model that lies
    exactly at the limit is put on one side of it.
    """
    under: dict[int, list[float]] = {}
    above: dict[int, list[float]] = {}
    for size in SIZES:
        found: dict[str, list[tuple[bool, bool]]] = {}
        for name, kept, truth in kept_intervals(models, size, draws):
            found.setdefault(name, []).append((kept.high < truth, kept.low > truth))
            right.setdefault("logit kept", {}).setdefault(size, []).append(contains(kept, truth))
        shares = np.array([np.mean(sides, axis=0) for sides in found.values()])
        under[size] = [*shares[:, 0]]
        above[size] = [*shares[:, 1]]
    lines = table_head("interval of the logit kept", JUDGED)
    for name, by_size in (("wholly under the truth", under), ("wholly above it", above)):
        cells = (f"{100 * np.mean(by_size[size]):.1f} ({100 * np.max(by_size[size]):.1f})" for size in JUDGED)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def every_area(models: dict[str, OutputAreas], draws: int, right: Right) -> list[str]:
    """The interval of A of every estimator on every model; which are right least often, at 100 images."""
    rng = np.random.default_rng(3)
    shares: dict[tuple[str, str], float] = {}
    for name, model in models.items():
        for size in SIZES:
            rows = rng.integers(model.usable.sum(), size=(max(200, draws * 100 // max(size, 100)), size))
            for estimator, areas in model.areas.items():
                gap = (areas.lif_areas - areas.mif_areas)[model.usable]
                samples = gap[rows]
                quantile = student.ppf(0.975, size - 1) if size < 30 else 1.96
                half = quantile * samples.std(axis=1, ddof=1) / np.sqrt(size)
                contained = np.abs(samples.mean(axis=1) - gap.mean()) <= half
                right.setdefault("A, every estimator and model", {}).setdefault(size, []).extend(contained)
                if size == JUDGED[0]:
                    shares[name, estimator] = float(contained.mean())
    lowest = sorted(shares, key=lambda key: shares[key])[:5]
    below = sum(share < 0.93 for share in shares.values())
    listed = ", ".join(f"{' '.join(key)} {100 * shares[key]:.1f}" for key in lowest)
    return [f"under 93 % at {JUDGED[0]} images: {below} of {len(shares)}; lowest: {listed}"]


def table_head(first: str, sizes: tuple[int, ...]) -> list[str]:
    """The first two lines of a table with a column a number of images."""
    return [
        f"| {first} | " + " | ".join(f"{size:,} images" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="samples of each size and model")
    parser.add_argument("--images", type=int, default=1000, help="images of shapes")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args()
    right: Right = {}
    for parts in (
        cifar10(RESULTS / "seed-0", chosen.draws),
        mean_then_divide(chosen.images, chosen.draws // 5),
    ):
        for name, size, found in parts:
            right.setdefault(name, {}).setdefault(size, []).append(bool(found))
    models = {path.stem: read_areas(path).outputs["centred"] for path in sorted(AREAS.glob("*.parquet"))}
    print(*every_area(models, chosen.draws, right), sep="\n")
    kept = kept_table(models, chosen.draws, right)
    lines = table_head("interval", SIZES)
    for name, by_size in right.items():
        cells = (f"{100 * np.mean(by_size[size]):.1f}" for size in SIZES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    print("\n".join([*lines, "", *kept]))
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(filled(page, {"coverage": lines, "kept": kept}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
