"""The passes of perturbation curves: which rows there are, and those whose images are filled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.engine import Work
from fpa.engine.devices import sent
from fpa.engine.tasks import Task
from fpa.masking import fully_masked
from fpa.perturbation.features import Pixels
from fpa.perturbation.removal import Answers, Removal


class Steps(NamedTuple):
    """How many features are removed at the points of a curve."""

    run: Tensor
    """[N, steps]: the numbers that are run."""
    columns: list[int]
    """Where each point is found among the unmasked image (0), those run (from 1 on) and the fully masked one
    (after them)."""
    fractions: Tensor
    """[K]: the exact fractions."""
    removed: Tensor
    """[N, K]: the numbers of all points."""


def steps_of(parts: Pixels, fractions: Sequence[float]) -> Steps:
    """How many features are removed at these fractions."""
    exact = torch.as_tensor(fractions, dtype=torch.float64)
    removed = (exact * parts.counts[:, None]).round().long()
    if not parts.equal:
        # The same point is another number of segments in each image, so all points are run for all of them.
        return Steps(removed, list(range(1, len(fractions) + 1)), exact, removed)
    # All images have equally many features: each number is run once only, and the two ends are shared.
    every = removed[0].tolist()
    inner = sorted({number for number in every if 0 < number < parts.most})
    place = {number: column for column, number in enumerate([0, *inner, parts.most])}
    run = torch.tensor([inner], dtype=torch.int64).expand(len(removed), -1)
    exact = torch.tensor(every, dtype=torch.float64) / parts.most
    return Steps(run, [place[number] for number in every], exact, removed)


@dataclass(frozen=True)
class CurvePasses:
    """All that the passes of the curves of some maps depend on."""

    task: Task
    labels: Tensor
    """[N]: the true classes."""
    outputs: Sequence[str]
    ranks: Tensor
    """[maps, N, F]: the place of every feature in the LIF order."""
    parts: Pixels
    steps: Steps
    sides: Sequence[str]
    """The orders that are run: "mif", "lif"."""
    titles: Sequence[str]
    """What the maps are called in the progress display."""

    @property
    def ends(self) -> bool:
        """Whether everything is removed at a point, and all images have the same number of features."""
        return self.parts.equal and self.steps.run.shape[1] + 1 in self.steps.columns


class CurveValues(NamedTuple):
    """What the model said along the curves, by output."""

    inner: dict[str, Tensor]
    """[maps, N, sides, steps]."""
    last: dict[str, Tensor]
    """With everything removed, of a shape that broadcasts to [maps, N, sides, 1]."""


class _FilledRows:
    """The masked images of all curves in one list: map by map, image by image, order by order, step by step.

    A mask is not stored but made when its row is, from the ranks of the map and a number: 40 masks of an
    image would take more memory than the ranks they all follow from.
    """

    def __init__(
        self, task: Task, pixel_ranks: Tensor, parts: Pixels, steps: Tensor, sides: Sequence[str]
    ) -> None:
        self.remove = Removal(task)
        self.pixel_ranks = pixel_ranks
        """[maps * N, H, W]."""
        self.images = len(task.images)
        self.steps = steps.shape[1]
        self.sides = len(sides)
        self.per_image = self.sides * self.steps
        device = task.images.device
        # LIF removes ranks below k; MIF removes those not below (features - k).
        limits = [parts.counts[:, None] - steps if side == "mif" else steps for side in sides]
        self.limits = sent(torch.stack(limits, 1).flatten(), device)
        self.most_first = sent(torch.tensor([side == "mif" for side in sides]), device)

    def __len__(self) -> int:
        return len(self.pixel_ranks) * self.per_image

    def map_of(self, row: int) -> int:
        """The number of the map that a row belongs to."""
        return row // (self.images * self.per_image)

    def masked(self, start: int, stop: int) -> Tensor:
        """The rows `start:stop`, [stop - start, C, H, W]."""
        row = torch.arange(start, stop, device=self.pixel_ranks.device)
        ranking = row // self.per_image
        image = ranking % self.images
        rank = self.pixel_ranks.index_select(0, ranking)
        limit = self.limits.index_select(0, row % self.per_image + image * self.per_image).to(rank.dtype)
        flipped = self.most_first.index_select(0, row // self.steps % self.sides)
        return self.remove(image, (rank < limit[:, None, None]) ^ flipped[:, None, None])


def filled(asked: CurvePasses) -> CurveValues:
    """The passes with removed pixels filled as the masking has it."""
    task = asked.task
    count = len(task.images)
    rows = _FilledRows(task, asked.parts.to_pixels(asked.ranks), asked.parts, asked.steps.run, asked.sides)
    inner = Answers(task, asked.labels, asked.outputs, len(rows), rows_per_image=rows.per_image)
    ends = Answers(task, asked.labels, asked.outputs, count, rows_per_image=1)
    works = [Work(len(rows), rows.masked, inner.take, name=lambda start: asked.titles[rows.map_of(start)])]
    if asked.ends:
        # With everything removed all maps and both orders are the same image: one pass serves them all.
        gone = fully_masked(task.masking, task.images, rows.remove.noise)
        works.append(Work(count, lambda start, stop: gone[start:stop], ends.take))
    task.engine.logits(works)
    shape = (len(asked.ranks), count, len(asked.sides), rows.steps)
    return CurveValues(
        inner={name: values.view(shape) for name, values in inner.values.items()},
        last={name: values[None, :, None, None] for name, values in ends.values.items()},
    )
