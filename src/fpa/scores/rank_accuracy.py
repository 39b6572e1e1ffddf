"""Rank accuracy: how many of the most important pixels lie on the object, as many as the object has."""

from torch import Tensor

from fpa.perturbation import features_of
from fpa.scores.localisation import Localisation
from fpa.scores.score import Block, register


def rank_accuracy(ranks: Tensor, masks: Tensor) -> Tensor:
    """The share of the K highest ranks of each image, int [N, H, W], in its mask of K pixels, [N].

    >>> import torch
    >>> rank_accuracy(torch.tensor([[[3, 0, 2, 1]]]), torch.tensor([[[True, True, False, False]]])).tolist()
    [0.5]
    """
    size = masks.sum((1, 2))
    pixels = ranks[0].numel()
    top = ranks >= pixels - size[:, None, None]
    return (top & masks).sum((1, 2)) / size


class RankAccuracy(Localisation):
    """`rank_accuracy`; equal values are put in the same random order as along the curves."""

    name = "rank_accuracy"
    title = "share of the most important pixels, as many as the object has, that lie on the object"
    source = "Arras et al. 2022"

    def value(self, block: Block, maps: Tensor, masks: Tensor) -> Tensor:  # noqa: D102
        task = block.task
        pixels = features_of("pixels", task.images)
        order = block.shared("order", lambda: pixels.random_order(maps.device, task.seed, task.indices))
        return rank_accuracy(pixels.ranks(maps, order).view(maps.shape), masks)


register(RankAccuracy())
