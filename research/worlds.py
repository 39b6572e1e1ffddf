"""Does a scene with cues left out look like one that never had them, and unlike one with cues masked?

    python research/worlds.py [--page docs/results/worlds.md]

The truth of an explanation is what a model says when cues are left out, so such scenes must not be strange to
it. Two classifiers are trained to tell

- scenes with cues left out from scenes freshly drawn that have the same kinds of cues: they must fail;
- scenes with cues left out from those with the cues masked: they must succeed, or they could tell nothing.

`LIMITS` were committed before the first run. `--page` puts the table into the page at its mark.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cifar10_conclusions import filled
from fpa.data.normalisation import minus_one_to_one
from fpa.masking import get_masking
from fpa.models.architectures import SmallResNet
from fpa.worlds import Cues, Scenes, World

LIMITS = {"fresh": ("upper", 0.55), "masked": ("value", 0.95)}
"""The upper end of the 95 % interval of the first AUC at most, the second AUC at least."""

EPOCHS = 6
BATCH = 32
POOL = 4
"""Scenes freshly drawn for each with cues left out, to find one with the same kinds."""


@dataclass(frozen=True)
class Auc:
    """The area under the ROC curve, with half its 95 % interval by DeLong et al. (1988)."""

    value: float
    interval: float
    images: int

    @property
    def upper(self) -> float:
        """The upper end of the interval."""
        return self.value + self.interval

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> "Auc":
        """How often the first scores [M] are above the second [N]; equal ones count half.

        >>> Auc.of(np.array([1.0, 3.0]), np.array([0.0, 1.0])).value
        0.875
        """
        above = (first[:, None] > second) + 0.5 * (first[:, None] == second)
        spread = above.mean(1).var(ddof=1) / len(first) + above.mean(0).var(ddof=1) / len(second)
        return cls(float(above.mean()), 1.96 * float(spread) ** 0.5, len(first) + len(second))


def with_cues(world: World, seed: int, count: int) -> tuple[list[int], Tensor, Tensor]:
    """The numbers of scenes that have a cue, their cues [N, cues], and those to leave out: at least one."""
    cues = torch.cat([scenes.cues for scenes in drawn(world, seed, range(count))])
    numbers = cues.any(1).nonzero()[:, 0].tolist()
    cues = cues[numbers]
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(cues.shape, generator=generator).masked_fill(~cues, 2)
    return numbers, cues, (keys < 1 / 3) | (keys == keys.amin(1, keepdim=True))


def drawn(world: World, seed: int, numbers: Sequence[int]) -> Iterator[Scenes]:
    """Scenes, some at a time."""
    return (world.draw(seed, numbers[start : start + 250]) for start in range(0, len(numbers), 250))


def rendered(world: World, seed: int, numbers: Sequence[int], leave: Tensor | None = None) -> Tensor:
    """The images of scenes, without these cues [N, cues]."""
    parts = list(drawn(world, seed, numbers))
    left_out = [None] * len(parts) if leave is None else leave.split(250)
    return torch.cat(
        [
            scenes.render(None if gone is None else scenes.without(gone))
            for scenes, gone in zip(parts, left_out, strict=True)
        ]
    )


def codes(cues: Tensor) -> list[int]:
    """A number for every set of cues, bool [N, cues]."""
    return (cues.long() << torch.arange(cues.shape[1])).sum(1).tolist()


def left_out_and_fresh(world: World, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Images with cues left out, and as many of other scenes, drawn with the cues that the former kept.

    Where no scene was drawn with the same kinds of cues, the one with cues left out is dropped as well.
    """
    numbers, cues, leave = with_cues(world, 2 * seed, count)
    pool = torch.cat([scenes.cues for scenes in drawn(world, 2 * seed + 1, range(POOL * count))])
    waiting = defaultdict(list)
    for number, code in enumerate(codes(pool)):
        waiting[code].append(number)
    remaining = enumerate(codes(cues & ~leave))
    pairs = [(row, waiting[code].pop()) for row, code in remaining if waiting[code]]
    rows = [row for row, _ in pairs]
    images = rendered(world, 2 * seed, [numbers[row] for row in rows], leave[rows])
    return images, rendered(world, 2 * seed + 1, [number for _, number in pairs])


def left_out_and_masked(world: World, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Images with cues left out, and images of other scenes with cues masked as evaluations mask them."""
    numbers, _, leave = with_cues(world, 2 * seed, count)
    others, _, masked = with_cues(world, 2 * seed + 1, count)
    normalisation = minus_one_to_one(3)
    parts = []
    for scenes, cues in zip(drawn(world, 2 * seed + 1, others), masked.split(250), strict=True):
        gone = (scenes.masks() & cues[:, :, None, None]).any(1)
        filled_in = get_masking("constant")(normalisation(scenes.render()), gone)
        parts.append((normalisation.inverse(filled_in) * 255).round().to(torch.uint8))
    return rendered(world, 2 * seed, numbers, leave), torch.cat(parts)


def told_apart(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int = EPOCHS) -> Auc:
    """How well a small ResNet trained on two kinds of images tells others of them apart."""
    torch.manual_seed(0)
    normalisation = minus_one_to_one(3)
    images = normalisation(torch.cat(train))
    labels = torch.cat([torch.full((len(part),), kind) for kind, part in enumerate(train)])
    model = SmallResNet(2, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, steps, pct_start=0.2)
    for _ in range(epochs):
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            flipped = images[batch].flip(3) if torch.rand(()) < 0.5 else images[batch]
            loss = torch.nn.functional.cross_entropy(model(flipped), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        first, second = (
            torch.cat([model(normalisation(part)).diff(dim=1)[:, 0] for part in images.split(500)]).numpy()
            for images in test
        )
    return Auc.of(second, first)


PROOFS = {
    "fresh": ("freshly drawn with the same kinds of cues", left_out_and_fresh),
    "masked": ("the cues masked", left_out_and_masked),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=int, default=4000, help="scenes of each kind to train on")
    parser.add_argument("--test", type=int, default=2000, help="scenes of each kind to test on")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args()
    world = Cues()
    lines = ["| cues left out, against | AUC | 95 % interval | limit | test images | seconds |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    failed = 0
    for name, (words, make) in PROOFS.items():
        start = time.perf_counter()
        found = told_apart(make(world, 1, chosen.train), make(world, 2, chosen.test))
        what, limit = LIMITS[name]
        fits = found.upper <= limit if what == "upper" else found.value >= limit
        failed += not fits
        wanted = f"upper end at most {limit}" if what == "upper" else f"at least {limit}"
        verdict = "kept" if fits else "**broken**"
        interval = f"{found.value - found.interval:.3f} to {found.upper:.3f}"
        seconds = time.perf_counter() - start
        cells = [words, f"{found.value:.3f}", interval, f"{wanted}: {verdict}"]
        cells += [f"{found.images:,}", f"{seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(filled(page, {"proofs": lines}), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
