"""Mass accuracy: how much of the importance lies on the object."""

from torch import Tensor

from fpa.scores.localisation import Localisation
from fpa.scores.score import Block, register


def mass_accuracy(maps: Tensor, masks: Tensor) -> Tensor:
    r"""$\sum_M a^+ / \sum a^+$ of the positive part $a^+$ of each map [N, H, W] in its mask $M$, [N].

    NaN where nothing is positive.

    >>> import torch
    >>> mass_accuracy(torch.tensor([[[3.0, 1.0, -9.0]]]), torch.tensor([[[True, False, False]]])).tolist()
    [0.75]
    """
    positive = maps.clamp(min=0).double()
    return (positive * masks).sum((1, 2)) / positive.sum((1, 2))


class MassAccuracy(Localisation):
    """`mass_accuracy`: evidence against the class is no reason to lie elsewhere, so it is left out."""

    name = "mass_accuracy"
    title = "share of the positive importance that lies on the object"
    source = "Arras et al. 2022"

    def value(self, block: Block, maps: Tensor, masks: Tensor) -> Tensor:  # noqa: D102
        return mass_accuracy(maps, masks)


register(MassAccuracy())
