"""How often do the 95 % intervals contain what they should? Simulated from populations that are known.

    python research/coverage.py [--draws 2000] [--page docs/fidelity.md]
    python research/coverage.py --scores runs/scores-none runs/scores-fpa

The populations are measured: the 10,000 images of the CIFAR-10 study (its areas, `docs/results/cifar10`), the
test images of shapes, and the images of all models whose areas are stored (`docs/results/areas`). From each
so many images are drawn, with replacement, and every interval is computed from them as fpa does from 100
images on; it is right where it contains the number of the whole population. Numbers of pairs:
verdict_errors.py. `--page` puts the tables into the page at their marks. `--scores` looks
at the scores of evaluations that are there instead (those of score_agreement.py), at samples of 100 images.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import fpa
from cifar10_conclusions import filled, read_results
from fpa.auditing.areas import OutputAreas, read_areas
from fpa.auditing.rule import MASKED
from fpa.evaluation.rankings import is_binary, values_of
from fpa.scores.fidelity import Fidelity
from fpa.statistics.intervals import (
    FEWEST_RESAMPLED,
    Estimate,
    estimate,
    half_widths,
    percentile_ends,
    resampled_means,
)
from fpa.statistics.skewness import outwards, shift_of_limits

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
                ends = found.bootstrap(400, seed=draw)
                if size < FEWEST_RESAMPLED:  # fpa gives none, and this is why
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


def all_gaps(model: OutputAreas) -> dict[str, np.ndarray]:
    """By estimator: the area between its curves, of every image that has one."""
    return {name: (areas.lif_areas - areas.mif_areas)[model.measured] for name, areas in model.areas.items()}


def every_area(models: dict[str, OutputAreas], draws: int, right: Right) -> None:
    """The interval of A of every estimator on every model."""
    rng = np.random.default_rng(3)
    for model in models.values():
        for size in SIZES:
            rows = rng.integers(model.measured.sum(), size=(max(200, draws * 100 // max(size, 100)), size))
            for gap in all_gaps(model).values():
                contained = np.abs(gap[rows].mean(axis=1) - gap.mean()) <= half_widths(gap[rows])
                right.setdefault("A, every estimator and model", {}).setdefault(size, []).extend(contained)


FEW = (100, 300)
"""Numbers of images at which the worst interval of many is looked for."""


def lowest_table(models: dict[str, OutputAreas], draws: int) -> list[str]:
    """How often the worst interval of A, and of the difference of two A, is right, with and without skewness.

    The worst of many is partly bad luck: those that seem to be bad are drawn again, ten times as often.
    """
    rng = np.random.default_rng(4)
    shares: dict[tuple[str, int], list[float]] = {}
    for size in FEW:
        for model in models.values():
            alone = all_gaps(model)
            pairs = [one - two for one, two in combinations(alone.values(), 2)]
            for what, each in [*(("A", gap) for gap in alone.values()), *(("A - A", gap) for gap in pairs)]:
                found = _contained(what, each, size, draws // 2, rng)
                if min(found.values()) < 0.94:
                    found = _contained(what, each, size, 5 * draws, rng)
                for name, share in found.items():
                    shares.setdefault((name, size), []).append(share)
    lines = table_head("the lowest of all", FEW)
    for what in dict.fromkeys(what for what, _ in shares):
        cells = []
        for size in FEW:
            of_all = np.array(shares[what, size])
            under = int((of_all < 0.93).sum())
            cells.append(f"{100 * of_all.min():.1f} ({under} of {len(of_all)} under 93)")
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return lines


def _contained(
    what: str, gap: np.ndarray, size: int, draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """In which share of the samples the intervals contain the mean of the population."""
    samples = gap[rng.integers(gap.size, size=(draws, size))]
    # A has 1.96 standard errors, a test Student's t.
    quantile = 1.96 if what == "A" else student.ppf(0.975, size - 1)
    errors = samples.std(axis=1, ddof=1) / np.sqrt(size)
    away = np.abs(samples.mean(axis=1) - gap.mean())
    longer = outwards(quantile, shift_of_limits(samples))
    return {
        f"{what}, skewness left aside": float((away <= quantile * errors).mean()),
        what: float((away <= longer * errors).mean()),
    }


def worst_scores(folders: list[Path], draws: int) -> list[str]:
    """The intervals of all scores of some evaluations that are right least often, at 100 images."""
    rng = np.random.default_rng(6)
    shares: dict[str, tuple[float, float]] = {}
    for folder in folders:
        result = fpa.load_result(folder)
        for score in result.evaluation.values:
            if is_binary(result, score):
                continue  # these have Wilson's
            for estimator in result.fidelity:
                values = values_of(result, estimator, score)
                known = values[np.isfinite(values)]
                if known.size >= FEW[0]:
                    found = _contained("A", known, FEW[0], 5 * draws, rng)
                    shares[f"{result.name}, {score}, {estimator}"] = (found["A"], min(found.values()))
    lowest = sorted(shares, key=shares.__getitem__)[:6]
    under = [sum(share[place] < 0.93 for share in shares.values()) for place in (0, 1)]
    lines = [f"under 93 %: {under[0]} of {len(shares)}, with skewness left aside {under[1]}"]
    return [
        *lines,
        *(f"{name}: {100 * shares[name][0]:.1f} ({100 * shares[name][1]:.1f})" for name in lowest),
    ]


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
    parser.add_argument("--scores", type=Path, nargs="+", help="folders of evaluations")
    chosen = parser.parse_args()
    if chosen.scores:
        print("\n".join(worst_scores(chosen.scores, chosen.draws)))
        return
    right: Right = {}
    for parts in (
        cifar10(RESULTS / "seed-0", chosen.draws),
        mean_then_divide(chosen.images, chosen.draws // 5),
    ):
        for name, size, found in parts:
            right.setdefault(name, {}).setdefault(size, []).append(bool(found))
    models = {path.stem: read_areas(path).outputs["centred"] for path in sorted(AREAS.glob("*.parquet"))}
    every_area(models, chosen.draws, right)
    lowest = lowest_table(models, chosen.draws)
    kept = kept_table(models, chosen.draws, right)
    lines = table_head("interval", SIZES)
    for name, by_size in right.items():
        cells = (f"{100 * np.mean(by_size[size]):.1f}" for size in SIZES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    print("\n".join([*lines, "", *lowest, "", *kept]))
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(
            filled(page, {"coverage": lines, "lowest": lowest, "kept": kept}), encoding="utf-8"
        )


if __name__ == "__main__":
    sys.exit(main())
