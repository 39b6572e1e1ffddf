"""Region perturbation: the area over the perturbation curve (AOPC), MIF (MoRF) and LIF (LeRF)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fpa.scores.area import in_percent
from fpa.scores.score import Block, Score, register


def aopc(curve: Tensor) -> Tensor:
    r"""$\frac{1}{K} \sum_k (y_0 - y_k)$ over the $K$ points of each curve $y$, [N, K] -> [N].

    >>> import torch
    >>> aopc(torch.tensor([[4.0, 1.0, 1.0]])).tolist()
    [2.0]
    """
    # The paper's 1 / (L + 1) of a sum from 0 to L: the unmasked point, where nothing has fallen, counts.
    return (curve[:, :1] - curve).double().mean(1)


class Aopc(Score):
    """`aopc` of the first output along the MIF curve, in percent of the unmasked output as A is."""

    name = "aopc"
    title = "mean fall of the output over the points of the MIF (MoRF) curve, in percent"
    source = "Samek et al. 2016"
    higher_is_better = True
    side: ClassVar[str] = "mif"

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        scale = in_percent(block)
        curves = getattr(block.curves[block.output], self.side)
        return {name: aopc(curve) * scale for name, curve in curves.items()}


class AopcLerf(Aopc):
    """The same along the LIF curve, which should fall late."""

    name = "aopc_lerf"
    title = "mean fall of the output over the points of the LIF (LeRF) curve, in percent"
    higher_is_better = False
    side = "lif"


register(Aopc())
register(AopcLerf())
