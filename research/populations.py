"""Populations of images in which it is known how MIF and LIF order the paper's nine estimators.

Made up, or taken from the areas that the studies have stored; for `verdict_errors.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cifar10_conclusions import SIGNED, UNSIGNED
from fpa.auditing.areas import read_areas

NINE = [*SIGNED, *UNSIGNED]
LEFT, RIGHT = (place.ravel() for place in np.meshgrid(range(3), range(3, 9), indexing="ij"))
PAIRS = len(LEFT)
STUDIES = {"CIFAR-10": "docs/results/cifar10", "Food-101": "docs/results/food101"}
AUDITS = "docs/results/areas"
FAR = 3.0
"""Means so many standard deviations apart are told apart by any sample here."""

Areas = np.ndarray
"""[samples, 2, 9, images]: of MIF and LIF, three signed estimators, then six unsigned ones."""


Sample = tuple[Areas, np.ndarray]
"""Areas, and the means of their population, [2, 9] or [samples, 2, 9] where each sample has its own."""


@dataclass(frozen=True)
class Population:
    """Images of which everything is known."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Sample]
    """(random numbers, samples, images) -> what is drawn."""


def truth(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many pairs are in opposite order, and how many are not in the same one: ties are neither."""
    signs = np.sign(means[..., LEFT] - means[..., RIGHT])
    product = signs[..., 0, :] * signs[..., 1, :]
    return (product > 0).sum(axis=-1), PAIRS - (product < 0).sum(axis=-1)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, of variance 1."""
    return rng.standard_t(3, shape) / np.sqrt(3)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Lognormal, of mean 0 and variance 1: a few images have far larger areas than the others."""
    return (np.exp(rng.normal(size=shape)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)


def made_up(
    name: str,
    means: Any,
    *,
    noise: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = normal,
    correlation: float = 0.0,
    copies: float | None = None,
) -> Population:
    """Noise of standard deviation 1 about these means, [2, 9].

    `correlation` is that of the noise of MIF with the noise of LIF of an estimator. With `copies`, signed
    estimators are one map and unsigned ones another, each copy with noise of its own of that size.
    """
    centre = np.asarray(means, dtype=float)

    def draw(rng: np.random.Generator, samples: int, images: int) -> Sample:
        shape = (samples, 9, images)
        of_mif = _copied(noise(rng, shape), rng, copies)
        own = np.sqrt(1 - correlation**2)
        other = _copied(noise(rng, shape), rng, copies) if own else 0.0
        both = np.stack([of_mif, correlation * of_mif + own * other], axis=1)
        return centre[..., None] + both, centre

    return Population(name, draw)


def _copied(values: np.ndarray, rng: np.random.Generator, copies: float | None) -> np.ndarray:
    if copies is None:
        return values
    first = np.concatenate([values[:, :1].repeat(3, axis=1), values[:, 3:4].repeat(6, axis=1)], axis=1)
    return np.asarray(first + copies * rng.normal(size=values.shape))


def ladder(step: float, *, opposite: bool = False) -> np.ndarray:
    """Nine estimators, signed and unsigned in turn, each `step` better than the next, by both or by MIF."""
    place = np.array([1, 4, 7, 0, 2, 3, 5, 6, 8]) * step
    return np.stack([place, place if opposite else -place])


def apart_by_lif() -> np.ndarray:
    """Tied by MIF, signed estimators far ahead by LIF."""
    return np.stack([np.zeros(9), np.repeat([FAR, 0.0], [3, 6])])


def three_opposite(tied: str) -> np.ndarray:
    """Three pairs surely opposite, nine tied by MIF, six of them by "both": one false claim decides."""
    mif = [0, 0, 0, FAR, FAR, FAR, 0, 0, 0]
    rest = FAR if tied == "both" else -3 * FAR
    return np.array([mif, [-FAR, FAR, FAR, 0, 0, 0, rest, rest, rest]])


def four_not_agreeing(tied: str) -> np.ndarray:
    """Fourteen pairs surely agreeing, four tied, by MIF or by both: one false claim is enough."""
    mif = np.array([0, -FAR, -FAR, 0, 0, 0, 0, FAR, FAR])
    lif = np.array([0, FAR, FAR, 0, 0, 0, 0, -FAR, -FAR]) + (0 if tied == "both" else [FAR] * 3 + [0] * 6)
    return np.stack([mif, lif])


def drawn_at_random(spread: float, relation: float, group_effect: float, correlation: float) -> Population:
    """Every sample of a population of its own: means drawn, those by LIF related to those by MIF or not."""
    noise = made_up("", np.zeros((2, 9)), correlation=correlation)

    def draw(rng: np.random.Generator, samples: int, images: int) -> Sample:
        goodness = rng.normal(size=(2, samples, 9))
        goodness[..., :3] += rng.normal(0, group_effect, (2, samples, 1))
        by_lif = relation * goodness[0] + np.sqrt(1 - relation**2) * goodness[1]
        means = spread * np.stack([-goodness[0], by_lif], axis=1)
        return noise.draw(rng, samples, images)[0] + means[..., None], means

    told = f"means at random, {spread:g} sd, relation {relation:g}, groups {group_effect:g} sd"
    return Population(told, draw)


def synthetic() -> Iterator[Population]:
    ties = np.zeros((2, 9))
    for correlation in (0.0, 0.38, 0.7, 1.0, -1.0):
        yield made_up(f"ties, correlation {correlation:g}", ties, correlation=correlation)
    yield made_up("ties, heavy tails", ties, noise=heavy)
    yield made_up("ties, skewed", ties, noise=skewed)
    yield made_up("ties, skewed, correlation 0.7", ties, noise=skewed, correlation=0.7)
    yield made_up("ties, near-duplicates", ties, copies=0.05)
    for step in (0.05, 0.2):
        for correlation in (0.0, 0.7):
            told = f"{step:g} sd apart, correlation {correlation:g}"
            yield made_up(f"near ties, agreeing, {told}", ladder(step), correlation=correlation)
            opposite = ladder(step, opposite=True)
            yield made_up(f"near ties, opposite, {told}", opposite, correlation=correlation)
    for noise in (normal, skewed):
        told = noise.__name__
        yield made_up(f"tied by MIF, apart by LIF, {told}", apart_by_lif(), noise=noise)
        yield made_up(f"three opposite, others tied by MIF, {told}", three_opposite("mif"), noise=noise)
        yield made_up(f"four tied by MIF, others agreeing, {told}", four_not_agreeing("mif"), noise=noise)
    yield made_up("tied by MIF, apart by LIF, near-duplicates", apart_by_lif(), copies=0.05)
    yield made_up("three opposite, others tied, correlation 1", three_opposite("both"), correlation=1.0)
    yield made_up("four tied, others agreeing, correlation -1", four_not_agreeing("both"), correlation=-1.0)
    for spread in (0.05, 0.2, 0.5):
        for relation, effect in ((0.0, 0.0), (0.0, 4.0), (0.8, 1.0), (-0.8, 1.0)):
            yield drawn_at_random(spread, relation, effect, correlation=0.38)


def stored(variants: tuple[str, ...] = ("none", "rectangle", "fpa")) -> Iterator[tuple[str, np.ndarray]]:
    """The areas [2, 9, N] of every study, seed and training."""
    for study, folder in STUDIES.items():
        for path in sorted(Path(folder).glob("seed-*/areas.parquet")):
            table = pd.read_parquet(path)
            there = [each for each in variants if f"{each}.ig_sum.mif" in table]
            for variant in there:
                sides = [[table[f"{variant}.{name}.{side}"] for name in NINE] for side in ("mif", "lif")]
                areas = np.array(sides)
                yield f"{study}, {path.parent.name}, {variant}", areas[..., np.isfinite(areas).all((0, 1))]


def from_images(name: str, areas: np.ndarray, means: Any = None) -> Population:
    """Images drawn with replacement from those measured; `means` where they are known better than rounded."""
    known = areas.mean(axis=-1) if means is None else np.asarray(means, dtype=float)

    def draw(rng: np.random.Generator, samples: int, images: int) -> Sample:
        rows = rng.integers(areas.shape[-1], size=(samples, images))
        return np.ascontiguousarray(np.moveaxis(areas[:, :, rows], 2, 0)), known

    return Population(name, draw)


def moved(areas: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The images measured, moved so that the means are these, in standard deviations of all areas."""
    centred = areas - areas.mean(axis=-1, keepdims=True)
    return np.asarray(centred + means[..., None] * areas.std())


PLACED = {
    "ties": np.zeros((2, 9)),
    "tied by MIF": apart_by_lif(),
    "three opposite": three_opposite("mif"),
    "four tied": four_not_agreeing("mif"),
}
"""Means that make the rule err most easily, in standard deviations."""


def measured() -> Iterator[Population]:
    """The measured images as they are, and with means that make the rule err most easily."""
    for name, areas in stored():
        yield from_images(name, areas)
    for name, areas in stored(("none", "fpa")):
        if "seed-0" in name:
            for told, means in PLACED.items():
                yield from_images(f"{name}, {told}", moved(areas, means), means)


def audited(*, judged: bool) -> Iterator[tuple[str, np.ndarray]]:
    """The areas [2, 9, N] of every audit that is stored: of the images judged, or of all measured."""
    for path in sorted(Path(AUDITS).glob("*.parquet")):
        found = read_areas(path).outputs["centred"]
        images = found.usable if judged else found.measured
        sides = ("mif_areas", "lif_areas")
        yield (
            path.stem,
            np.array([[getattr(found.areas[name], side)[images] for name in NINE] for side in sides]),
        )
