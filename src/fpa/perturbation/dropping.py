"""The passes of perturbation curves without the tokens of removed patches, for vision transformers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fpa.engine import Work
from fpa.errors import InputError
from fpa.models.tokens import TokenGrid
from fpa.perturbation.features import Pixels
from fpa.perturbation.passes import CurvePasses, CurveValues
from fpa.perturbation.removal import Answers


def check_patches(grid: TokenGrid, parts: Pixels) -> None:
    """Refuse features that are not the patches of the network, or unions of equally many of them."""
    problem = misfit(grid, parts)
    if problem is None:
        return
    side = grid.patch
    sizes_that_fit = [
        side * times
        for times in range(1, min(grid.rows, grid.columns) + 1)
        if not grid.rows % times and not grid.columns % times and times * times < grid.count
    ]
    fitting = ", ".join(map(str, sizes_that_fit))
    raise InputError(
        f"the masking drop leaves out whole patches of the network, {side} pixels a side, and these features "
        f"{problem}: use features of {fitting} pixels"
    )


def misfit(grid: TokenGrid, parts: Pixels) -> str | None:
    """What keeps features from being unions of equally many patches; None: they are."""
    numbers = parts.numbers
    side = grid.patch
    corners = numbers[:, ::side, ::side]
    by_patch = numbers.view(len(numbers), grid.rows, side, grid.columns, side)
    if not bool((by_patch == corners[:, :, None, :, None]).all()):
        return "cut through them"
    patches = torch.zeros(len(corners), parts.most, dtype=torch.int64, device=corners.device)
    patches.scatter_add_(1, corners.flatten(1), torch.ones_like(corners.flatten(1)))
    alike = bool((patches == patches[0, 0]).all())
    return None if alike else "hold different numbers of them"


def kept_counts(grid: TokenGrid, parts: Pixels, removed: Sequence[int]) -> list[int]:
    """How many tokens every image keeps when so many of its features are removed.

    >>> grid = TokenGrid(patch=2, rows=2, columns=2, fewest=1)
    >>> from fpa.perturbation.features import features_of
    >>> kept_counts(grid, features_of(2, torch.zeros(1, 3, 4, 4)), [0, 1, 4])
    [4, 3, 1]
    """
    each = grid.count // parts.most
    return [max(grid.fewest, grid.count - each * number) for number in removed]


def share_given(grid: TokenGrid, parts: Pixels, fractions: Sequence[float]) -> float:
    """Of the tokens that curves would need if all were given at every point, the share that is.

    The unmasked image is left out: it is passed once, and serves all curves.

    >>> from fpa.perturbation.features import features_of
    >>> grid = TokenGrid(patch=2, rows=2, columns=2, fewest=0)
    >>> share_given(grid, features_of(2, torch.zeros(1, 3, 4, 4)), [0, 0.25, 0.5, 0.75, 1])
    0.375
    """
    removed = [round(fraction * parts.most) for fraction in fractions]
    kept = kept_counts(grid, parts, [number for number in removed if number])
    return sum(kept) / (grid.count * max(1, len(kept)))


def dropped(asked: CurvePasses) -> CurveValues:
    """The passes with the tokens of removed patches left out: those that are left are all that is given.

    At a point of the curves every image keeps equally many tokens, so the rows of a point are dense batches,
    and later points cost less. Where the network must be given a token, one patch stays at the end: the
    last in the order, which is another one for each map and order.
    """
    task = asked.task
    grid = task.engine.token_grid(task.images)
    check_patches(grid, asked.parts)
    rows = _Selection(asked, grid)
    removed = asked.steps.run[0].tolist()
    counts = kept_counts(grid, asked.parts, removed)
    points = [rows.run(kept) for kept in counts]
    shape = (len(asked.ranks), len(task.images), len(asked.sides))
    empty = task.images.new_empty((*shape, 0))
    inner = {
        name: torch.stack([point[name] for point in points], -1) if points else empty
        for name in asked.outputs
    }
    last = {name: task.images.new_full((1, 1, 1, 1), torch.nan) for name in asked.outputs}
    if asked.ends:
        end = rows.run(grid.fewest)
        last = {name: values[..., None] for name, values in end.items()}
    return CurveValues(inner, last)


class _Selection:
    """The tokens of images, and which of them each row of a point keeps: map by map, image by image."""

    def __init__(self, asked: CurvePasses, grid: TokenGrid) -> None:
        task = asked.task
        self.asked = asked
        # Made once for every image: only what comes after them is run again.
        self.tokens = task.engine.tokens(task.images)
        corners = asked.parts.numbers[:, :: grid.patch, :: grid.patch].flatten(1)
        ranks = asked.ranks.gather(2, corners.expand(len(asked.ranks), -1, -1))
        self.order = ranks.flatten(0, 1).argsort(dim=1, stable=True)
        """[maps * N, T]: the tokens in the LIF order."""
        self.lif = torch.tensor([side == "lif" for side in asked.sides], device=task.images.device)

    def run(self, kept: int) -> dict[str, Tensor]:
        """What the outputs say when every image keeps so many tokens, [maps, N, sides] each."""
        asked = self.asked
        task = asked.task
        images = len(task.images)
        sides = len(asked.sides)
        count = len(self.order) * sides
        answers = Answers(task, asked.labels, asked.outputs, count, rows_per_image=sides)

        def rows(start: int, stop: int) -> Tensor:
            row = torch.arange(start, stop, device=self.order.device)
            ranking = row // sides
            order = self.order.index_select(0, ranking)
            # LIF keeps the most important, which come last; MIF those that come first.
            last = self.lif.index_select(0, row % sides)[:, None]
            chosen = torch.where(last, order[:, order.shape[1] - kept :], order[:, :kept]).sort(1).values
            place = (ranking % images)[:, None] * order.shape[1] + chosen
            given = self.tokens.flatten(0, 1).index_select(0, place.flatten())
            return given.reshape(stop - start, kept, self.tokens.shape[2])

        def title(start: int) -> str:
            return asked.titles[start // (images * sides)]

        task.engine.logits([Work(count, rows, answers.take, name=title)])
        shape = (len(asked.ranks), images, sides)
        return {name: values.view(shape) for name, values in answers.values.items()}
