"""Single deletion: does the sum of the attributions of a cell tell what deleting that cell costs?"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fpa.scores.correlation import falls, spearman, sums
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.training.augment import cell_numbers

GRID = 4
"""Cells down and across, as in the source."""


class SingleDeletion(Score):
    r"""Spearman's correlation over the cells of a grid of 4 x 4.

    $\rho_s\left(\sum_{c} a, f(x) - f(x \setminus c)\right)$, with the map $a$ summed over each cell $c$ and
    the output $f$ that is scored. The deletions are the same for all estimators: 16 passes an image. Maps
    without a sign are scored too, as their authors do: only the order of the sums counts.
    """

    name = "sds"
    title = "rank correlation of the map's sums over 16 cells with the fall of the output without each"
    source = "Hesse et al. 2024"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def only_by_name(self, given: Given) -> str | None:  # noqa: D102
        return "is called idsds on this model" if given.augmentation == "cell" else None

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=GRID**2, shared=("cells", GRID))

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        images = block.task.images
        numbers = cell_numbers(images.shape[2], images.shape[3], GRID, images.device)
        masks = (numbers == torch.arange(GRID**2, device=images.device)[:, None, None])[None]
        fall = block.shared(("cells", GRID), lambda: falls(block, masks, self.name))
        return {name: spearman(total, fall) for name, total in sums(block.maps, masks).items()}


class InDomainSingleDeletion(SingleDeletion):
    """The same on a model that was fine-tuned with deletions of such cells, so that it knows them."""

    name = "idsds"
    title = "single deletion on a model fine-tuned with it: rank correlation of the map over 16 cells"

    def missing(self, given: Given) -> str | None:  # noqa: D102
        if given.augmentation != "cell":
            return "needs a model fine-tuned with deleted cells: fpa finetune --augmentation cell"
        return super().missing(given)

    def only_by_name(self, given: Given) -> str | None:  # noqa: D102
        return None


register(SingleDeletion())
register(InDomainSingleDeletion())
