"""Faithfulness correlation: does the sum over a random set of pixels tell what removing the set costs?"""

from collections.abc import Mapping

from torch import Tensor

from fpa.scores.correlation import check_sets, falls, pearson, random_subsets, sums
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.seeds import Stream


class FaithfulnessCorrelation(Score):
    r"""Pearson's correlation over random sets $S$ of pixels, all of the same size.

    $\rho_S\left(\sum_{S} a, f(x) - f(x \setminus S)\right)$. The sets are the same for all estimators.
    """

    name = "faithfulness_correlation"
    title = "correlation of the sums over 100 random sets of 10 % of the pixels with the fall without each"
    source = "Bhatt et al. 2020"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __init__(self, share: float = 0.1, samples: int = 100) -> None:
        check_sets(samples, share)
        self.share = share
        self.samples = samples

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=self.samples)

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        size = max(1, round(self.share * block.task.images[0, 0].numel()))
        masks = random_subsets(block, [size], self.samples, Stream.SUBSETS)
        fall = falls(block, masks, self.name)
        return {name: pearson(total, fall) for name, total in sums(block.maps, masks).items()}


register(FaithfulnessCorrelation())
