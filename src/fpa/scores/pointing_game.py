"""Pointing game: whether the most important pixel lies on the object."""

from torch import Tensor

from fpa.scores.localisation import Localisation
from fpa.scores.score import Block, register


def pointing_game(maps: Tensor, masks: Tensor) -> Tensor:
    """The share of the largest values of each map [N, H, W] that lie in its mask, [N]: 0 or 1 without ties.

    >>> import torch
    >>> pointing_game(torch.tensor([[[1.0, 5.0, 5.0]]]), torch.tensor([[[True, True, False]]])).tolist()
    [0.5]
    """
    largest = maps == maps.amax((1, 2), keepdim=True)
    return (largest & masks).sum((1, 2)) / largest.sum((1, 2))


class PointingGame(Localisation):
    """`pointing_game`, without a margin: its authors also count a pixel up to 15 px from the object."""

    name = "pointing_game"
    title = "share of images whose most important pixel lies on the object"
    source = "Zhang et al. 2016"

    def value(self, block: Block, maps: Tensor, masks: Tensor) -> Tensor:  # noqa: D102
        return pointing_game(maps, masks)


register(PointingGame())
