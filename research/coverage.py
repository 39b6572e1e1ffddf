"""How often do the 95 % intervals contain what they should? Simulated from populations that are known.

    python research/coverage.py [--draws 2000] [--page docs/fidelity.md]

The population is measured: the 10,000 images of the CIFAR-10 study (its areas, `docs/results/cifar10`) and
for the share of a logit kept under random masking the test images of shapes. From it so many images are
drawn, with replacement, and every interval is computed from them as fpa does; it is right where it contains
the number of the whole population. `--page` puts the table into the page at its mark.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fpa
from cifar10_conclusions import KINDS, filled, read_results
from fpa.explanation import PAPER
from fpa.scores.fidelity import Fidelity
from fpa.statistics import ranking_agreement, reliability, share_kept

SIZES = (5, 10, 20, 30, 100, 300, 1000)
RESULTS = Path("docs/results/cifar10")


def of_areas(mif: np.ndarray, lif: np.ndarray) -> Fidelity:
    """A straight line from 1 has the same area as the curve it stands for."""
    lines = (np.stack([np.ones(len(side)), 2 * side / 100 - 1], 1) for side in (mif, lif))
    return Fidelity.from_curves(*lines, [0, 1], normalise="none")


def taken(fidelities: dict[str, Fidelity], rows: np.ndarray) -> dict[str, Fidelity]:
    """The fidelities of a sample: those images, some of them several times."""
    return {name: of_areas(each.mif_areas[rows], each.lif_areas[rows]) for name, each in fidelities.items()}


def contains(estimate: tuple[float, float, float], truth: float) -> bool:
    """Is the truth in the interval of (value, low, high)? Rounding does not count."""
    return bool(estimate[1] - 1e-9 <= truth <= estimate[2] + 1e-9)


def cifar10(folder: Path, draws: int) -> Iterator[tuple[str, int, bool]]:
    """A, pairs in opposite order, rank correlations: (interval, images, whether it is right)."""
    rng = np.random.default_rng(0)
    for variant in ("none", "fpa"):
        results = read_results(folder)
        nine = {name: results.scores[variant][name] for name in PAPER if name != "random"}
        other = {name: results.scores["rectangle"][name] for name in nine}
        # The population's own numbers; their intervals are not used, so two draws are enough.
        whole = reliability(nine, KINDS, draws=2)
        agreement = ranking_agreement(nine, other, draws=2)
        area = nine["ig_sum"].area
        images = nine["ig_sum"].used
        for size in SIZES:
            for draw in range(draws):
                rows = rng.integers(images, size=size)
                found = taken({"ig_sum": nine["ig_sum"]}, rows)["ig_sum"]
                yield "A (normal, or t under 30)", size, abs(found.area - area) <= found.interval
                yield "A (bootstrap)", size, contains((0.0, *found.bootstrap(400)), area)
                if draw % 5:  # these take longer
                    continue
                some = reliability(taken(nine, rows), KINDS, draws=400, seed=draw)
                for kind in ("signed-unsigned", "all"):
                    right = contains(some.opposite[kind], whole.opposite[kind].value)
                    yield f"opposite pairs, {kind}", size, right
                yield (
                    "correlation, MIF with LIF",
                    size,
                    contains(some.correlation["all"], whole.correlation["all"].value),
                )
                both = ranking_agreement(taken(nine, rows), taken(other, rows), draws=400, seed=draw)
                yield "correlation, two evaluations", size, contains(both, agreement.value)


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
                estimate = share_kept(left[rows], start[rows], draws=400, seed=draw)[0]
                yield "logit kept", size, contains(estimate, truth)
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
