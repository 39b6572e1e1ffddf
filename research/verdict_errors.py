"""How often is the verdict on the contradictions wrong, and how often is there one? Simulated.

    python research/verdict_errors.py [--draws 2000] [--page docs/results/verdict.md]

Populations of images are made up, or taken from the areas that the studies have stored; in each it is known
which signed-unsigned pairs MIF and LIF order oppositely. Samples are drawn from it and judged as
`fpa.auditing` judges. `--page` puts the tables into the page, which says what would refute the rule. The
exit code is 1 where something does.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from cifar10_conclusions import filled
from fpa.statistics.chance import opposite_by_chance
from fpa.statistics.intervals import holm, resampled_means, spearman
from fpa.statistics.orders import Orders, orders
from populations import (
    LEFT,
    PAIRS,
    PLACED,
    RIGHT,
    Areas,
    Population,
    audited,
    from_images,
    ladder,
    made_up,
    measured,
    moved,
    stored,
    synthetic,
    truth,
)

LIMIT = PAIRS // 6
LEVEL = 0.05
SIZES = (100, 300, 1000, 5000)
SMALL = (100, 200, 300)
NEAR = (100, 300)


def student(areas: Areas) -> Orders:
    return orders(areas, LEFT, RIGHT)


def wilcoxon(areas: Areas) -> Orders:
    """Signed ranks: about the middle of the differences, not their mean."""
    differences = areas[..., LEFT, :] - areas[..., RIGHT, :]
    p = stats.wilcoxon(differences, axis=-1, method="asymptotic").pvalue
    means = differences.mean(axis=-1)
    return Orders(means[:, 0], means[:, 1], p[:, 0], p[:, 1])


def sign_flip(areas: Areas, flips: int = 4999) -> Orders:
    """How often are the differences, with signs drawn at random, as far from 0 in the mean?"""
    differences = areas[..., LEFT, :] - areas[..., RIGHT, :]
    images = differences.shape[-1]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(images, flips))
    rows = differences.reshape(-1, images)
    means = rows.mean(axis=-1)
    p = np.empty(len(rows))
    for start in range(0, len(rows), 1000):
        part = slice(start, start + 1000)
        flipped = np.abs(rows[part] @ signs / images) >= np.abs(means[part, None]) * (1 - 1e-12)
        p[part] = (1 + flipped.sum(axis=-1)) / (flips + 1)
    shape = differences.shape[:-1]
    means, p = means.reshape(shape), p.reshape(shape)
    return Orders(means[:, 0], means[:, 1], p[:, 0], p[:, 1])


TESTS = {"Student's t": student, "Wilcoxon": wilcoxon, "sign flips": sign_flip}


@dataclass(frozen=True)
class Rates:
    """Shares of the samples of one population."""

    reliable: float
    unreliable: float
    wrong: float
    """*Unreliable* where no more than the limit are opposite, *reliable* where more do not agree."""
    false_claim: float
    """At least one pair surely agreeing or surely opposite that is not."""
    covered: float
    """The interval of the number of opposite pairs contains it."""


def rates(
    population: Population, rng: np.random.Generator, samples: int, images: int, test: Any = student
) -> Rates:
    """Draw samples in parts that fit into memory, and judge them."""
    at_once = max(1, 400_000 // images)
    parts = [min(at_once, samples - start) for start in range(0, samples, at_once)]
    counts = np.zeros(5)
    for part in parts:
        areas, means = population.draw(rng, part, images)
        low, high = test(areas).bounds(LEVEL)
        opposite, not_agreeing = truth(means)
        reliable = high <= LIMIT
        unreliable = low > LIMIT
        wrong = (unreliable & (opposite <= LIMIT)) | (reliable & (not_agreeing > LIMIT))
        false_claim = (low > opposite) | (high < not_agreeing)
        covered = (low <= opposite) & (opposite <= high)
        counts += [each.sum() for each in (reliable, unreliable, wrong, false_claim, covered)]
    return Rates(*(counts / samples))


def by_bootstrap(areas: np.ndarray, seed: int) -> str:
    """The rule before: the interval of the number of opposite pairs from resampling images, [2, 9, n]."""
    drawn = resampled_means(areas.reshape(18, -1), 400, seed).reshape(-1, 2, 9)
    signs = np.sign(drawn[..., LEFT] - drawn[..., RIGHT])
    counts = np.sort((signs[:, 0] * signs[:, 1] > 0).sum(axis=-1))
    low, high = counts[10], counts[-11]
    return "unreliable" if low > LIMIT else "reliable" if high <= LIMIT else "cannot tell"


def above(rate: float, samples: int, limit: float) -> bool:
    """Whether a rate seen is surely above a limit: by three standard errors."""
    return rate > limit + 3 * np.sqrt(limit * (1 - limit) / samples)


def percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def errors(samples: int) -> tuple[list[str], list[str]]:
    """Wrong verdicts by population and number of images; beside it what refutes the rule."""
    rng = np.random.default_rng(0)
    lines = [
        "| population | " + " | ".join(f"{size:,} images" for size in SIZES) + " | interval of the number |",
        "|---|" + "---:|" * (len(SIZES) + 1),
    ]
    refuted = []
    for population in (*synthetic(), *measured()):
        cells = []
        least = 1.0
        for size in SIZES:
            draws = max(samples // max(1, size // 300), 200)
            found = rates(population, rng, draws, size)
            cells.append(percent(found.wrong))
            least = min(least, found.covered)
            if above(found.wrong, draws, 0.05):
                refuted.append(f"{population.name}, {size} images: {percent(found.wrong)} % wrong verdicts")
            if above(1 - found.covered, draws, 0.07):
                refuted.append(f"{population.name}, {size} images: {percent(found.covered)} % covered")
        lines.append(f"| {population.name} | " + " | ".join(cells) + f" | {percent(least)} |")
    return lines, refuted


def next_to_0(samples: int) -> tuple[list[str], list[str]]:
    """Wrong verdicts on the areas of all stored audits, moved: those of the worst model.

    Which of two tied estimators seems better depends on where the far values lie, so the means are placed in
    both directions. The worst models of all are drawn again: the worst of many is partly bad luck.
    """
    rng = np.random.default_rng(5)
    lines = [
        "| areas moved, the worst model | " + " | ".join(f"{size} images" for size in NEAR) + " |",
        "|---|" + "---:|" * len(NEAR),
    ]
    refuted = []
    for told, judged in (("images judged", True), ("all images", False)):
        models = dict(audited(judged=judged))
        for name, means in PLACED.items():
            for direction, sign in (("", 1), (", mirrored", -1)):
                if not means.any() and sign < 0:
                    continue
                cells = []
                for size in NEAR:
                    model, wrong = _worst(models, sign * means, rng, samples, size)
                    cells.append(f"{percent(wrong)} ({model})" if wrong else "0.0")
                    if judged and above(wrong, 5 * samples, 0.05):
                        refuted.append(f"{model}, {name}{direction}, {size} images: {percent(wrong)} % wrong")
                lines.append(f"| {told}: {name}{direction} | " + " | ".join(cells) + " |")
    return lines, refuted


def _worst(
    models: dict[str, np.ndarray], means: np.ndarray, rng: np.random.Generator, samples: int, images: int
) -> tuple[str, float]:
    """The model with most wrong verdicts, and how many they are in fresh samples."""
    populations = {name: from_images(name, moved(areas, means), means) for name, areas in models.items()}
    first = {name: rates(each, rng, samples // 4, images).wrong for name, each in populations.items()}
    worst = sorted(first, key=lambda name: -first[name])[:3]
    again = {name: rates(populations[name], rng, 5 * samples, images).wrong for name in worst}
    return max(again.items(), key=lambda found: found[1])


def tests(samples: int) -> list[str]:
    """The three tests at 100 images: false claims where they are easiest to make, and power."""
    rng = np.random.default_rng(1)
    chosen = [each for each in synthetic() if "skewed" in each.name or "heavy" in each.name]
    chosen += [each for each in measured() if "seed-0" in each.name]
    lines = [
        "| population | " + " | ".join(f"{name}: wrong | a false claim | a verdict" for name in TESTS) + " |",
        "|---|" + "---:|" * 3 * len(TESTS),
    ]
    for population in chosen:
        cells = []
        for test in TESTS.values():
            found = rates(population, rng, samples, 100, test)
            cells += map(percent, (found.wrong, found.false_claim, found.reliable + found.unreliable))
        lines.append(f"| {population.name} | " + " | ".join(cells) + " |")
    return lines


LEAST_POWER = {"fpa": (0.55, 0.9, 0.98), "none": (0.2, 0.75, 0.97)}


def power(samples: int) -> tuple[list[str], list[str]]:
    """How often models with FPA are called reliable, and those without unreliable."""
    rng = np.random.default_rng(2)
    told = " | ".join(f"{size} images: reliable | unreliable" for size in SMALL)
    lines = ["| areas | " + told + " |", "|---|" + "---:|" * 2 * len(SMALL)]
    refuted = []
    for name, areas in stored():
        variant = name.rpartition(" ")[2]
        cells = []
        for place, size in enumerate(SMALL):
            found = rates(from_images(name, areas), rng, samples, size)
            cells += map(percent, (found.reliable, found.unreliable))
            right = found.reliable if variant == "fpa" else found.unreliable
            if variant in LEAST_POWER and above(1 - right, samples, 1 - LEAST_POWER[variant][place]):
                refuted.append(f"{name}, {size} images: only {percent(right)} % get the right verdict")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines, refuted


def before(samples: int) -> list[str]:
    """The verdicts of the rule before, by the bootstrap, beside those of the tests."""
    rng = np.random.default_rng(3)
    names = (
        "ties, correlation 0",
        "ties, correlation 0.38",
        "near ties, agreeing, 0.05 sd apart, correlation 0",
    )
    chosen = [each for each in synthetic() if each.name in (*names, f"{names[2]}.7")]
    lines = ["| population, 100 images | bootstrap: reliable | unreliable | tests: reliable | unreliable |"]
    lines.append("|---|---:|---:|---:|---:|")
    for population in chosen:
        areas, _ = population.draw(rng, samples, 100)
        old = [by_bootstrap(each, seed) for seed, each in enumerate(areas)]
        new = rates(population, rng, samples, 100)
        shares = [old.count(verdict) / samples for verdict in ("reliable", "unreliable")]
        cells = map(percent, (*shares, new.reliable, new.unreliable))
        lines.append(f"| {population.name} | " + " | ".join(cells) + " |")
    return lines


EVERY = np.triu_indices(9, k=1)


def surely_ordered(areas: np.ndarray) -> float:
    """The share of all pairs of [2, 9, n] in sure order by MIF and by LIF."""
    found = orders(areas, *EVERY)
    return float(((holm(found.p_mif) < LEVEL) & (holm(found.p_lif) < LEVEL)).mean())


SHARES = {"half of the pairs": 0.5, "all pairs": 1.0}


def correlations(samples: int) -> tuple[list[str], list[str]]:
    """How often the bootstrap interval of the rank correlation of MIF with LIF contains it."""
    rng = np.random.default_rng(4)
    chosen = [made_up(f"agreeing, {step:g} sd apart", ladder(step)) for step in (0.05, 0.1, 0.2, 0.5)]
    chosen += [from_images(name, areas) for name, areas in stored(("none", "fpa")) if "seed-0" in name]
    told = " | ".join(f"{name} surely ordered | samples of these" for name in SHARES)
    lines = [f"| population, 100 and 300 images | all samples | {told} |", "|---|" + "---:|" * 5]
    refuted = []
    for population in chosen:
        covered, ordered = map(np.array, zip(*_resampled(population, rng, samples), strict=True))
        cells = [percent(covered.mean())]
        for name, share in SHARES.items():
            sure = ordered >= share
            among = percent(covered[sure].mean()) if sure.any() else "–"
            cells += [among, percent(sure.mean())]
            if sure.any() and above(1 - covered[sure].mean(), int(sure.sum()), 0.07):
                refuted.append(f"{population.name}, {name} surely ordered: a correlation covers {among} %")
        lines.append(f"| {population.name} | " + " | ".join(cells) + " |")
    return lines, refuted


def _resampled(
    population: Population, rng: np.random.Generator, samples: int
) -> Iterator[tuple[bool, float]]:
    """Of every sample: is the interval of the correlation right, and how many pairs are surely ordered?"""
    for size in (100, 300):
        several, (mif, lif) = population.draw(rng, samples, size)
        right_one = float(spearman(-mif, lif))
        for seed, areas in enumerate(several):
            drawn = resampled_means(areas.reshape(18, -1), 400, seed).reshape(-1, 2, 9)
            low_first = np.sort(spearman(-drawn[:, 0], drawn[:, 1]))
            covered = low_first[10] - 1e-9 <= right_one <= low_first[-11] + 1e-9
            yield bool(covered), surely_ordered(areas)


def by_chance() -> list[str]:
    """How often unrelated rankings agree as far as *reliable* asks, by the distance of the groups."""
    effects = (0, 1, 2, 4, 10)
    shares = [opposite_by_chance(3, 6, group_effect=effect)[LIMIT] for effect in effects]
    return [
        "| groups apart by (sd) | " + " | ".join(map(str, effects)) + " |",
        "|---|" + "---:|" * len(effects),
        "| at most 3 of 18 pairs opposite, % | " + " | ".join(map(percent, shares)) + " |",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="samples of each population")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args()
    found = {
        "errors": errors(chosen.draws),
        "next to 0": next_to_0(chosen.draws),
        "power": power(chosen.draws),
        "correlations": correlations(max(chosen.draws // 10, 10)),
        "tests": (tests(max(chosen.draws // 4, 10)), []),
        "before": (before(max(chosen.draws // 5, 10)), []),
        "chance": (by_chance(), []),
    }
    refuted = [line for _, lines in found.values() for line in lines]
    for lines, _ in found.values():
        print("\n".join([*lines, ""]))
    print("\n".join(refuted) or "nothing refutes the rule")
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        told = {name: lines for name, (lines, _) in found.items()}
        told["refuted"] = [f"- {line}" for line in refuted] or ["Nothing."]
        chosen.page.write_text(filled(page, told), encoding="utf-8")
    return 1 if refuted else 0


if __name__ == "__main__":
    sys.exit(main())
