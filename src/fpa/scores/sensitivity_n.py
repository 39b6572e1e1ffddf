"""Sensitivity-n: faithfulness correlation at several sizes of the sets, averaged."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fpa.scores.correlation import check_sets, falls, pearson, random_subsets, sums
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.seeds import Stream


class SensitivityN(Score):
    r"""Mean over sizes $n$ of Pearson's correlation over random sets $S$ of $n$ pixels.

    $\operatorname{mean}_n \rho_{|S| = n}\left(\sum_S a, f(x) - f(x \setminus S)\right)$. The source draws the
    correlation over $n$; this is its mean over sizes evenly spaced by their logarithm. An image where the
    correlation is undefined at one size has no value.
    """

    name = "sensitivity_n"
    title = (
        "mean correlation of the sums over random sets of 1 to 80 % of the pixels with the fall without each"
    )
    source = "Ancona et al. 2018"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __init__(self, shares: tuple[float, ...] = (0.01, 0.03, 0.09, 0.27, 0.8), samples: int = 40) -> None:
        check_sets(samples, *shares)
        self.shares = shares
        self.samples = samples

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=len(self.shares) * self.samples)

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        pixels = block.task.images[0, 0].numel()
        sizes = [max(1, round(share * pixels)) for share in self.shares]
        masks = random_subsets(block, sizes, self.samples, Stream.SIZES)
        fall = falls(block, masks, self.name)

        def value(total: Tensor) -> Tensor:
            # A correlation for each size: the falls of large sets lie apart from those of small ones, and one
            # correlation over all would mostly be that of the sizes.
            totals_of_sizes = torch.split(total, self.samples, 1)
            falls_of_sizes = torch.split(fall, self.samples, 1)
            pairs = zip(totals_of_sizes, falls_of_sizes, strict=True)
            return torch.stack([pearson(sum_over_set, fallen) for sum_over_set, fallen in pairs]).mean(0)

        return {name: value(total) for name, total in sums(block.maps, masks).items()}


register(SensitivityN())
