"""A, the area between the LIF and the MIF curve: what the paper measures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fpa.scores.score import Block, Score, register

if TYPE_CHECKING:
    from torch import Tensor


def area_between(mif: "Tensor", lif: "Tensor", fractions_mif: "Tensor", fractions_lif: "Tensor") -> "Tensor":
    r"""The area under LIF minus that under MIF in percent, $100 \int (l - m)\,dx$ by the trapezoid rule.

    - `mif`, `lif` [N, K]: the curves of each image.
    - `fractions_mif`, `fractions_lif` [K] or [N, K]: the share of pixels removed at each point.

    >>> import torch
    >>> x = torch.tensor([0, 0.5, 1])
    >>> area_between(torch.tensor([[1.0, 0, 0]]), torch.tensor([[1.0, 1, 0]]), x, x).tolist()
    [50.0]
    """
    sides = ((lif, fractions_lif), (mif, fractions_mif))
    above, below = (((curve[:, 1:] + curve[:, :-1]) / 2 * x.diff()).sum(-1) for curve, x in sides)
    return 100 * (above - below)


class Area(Score):
    r"""$A = 100 \int (l_i - m_i)\,dx / u_i$, with $u_i$ the unmasked output (1 where it is not divided)."""

    name = "A"
    title = "area between the LIF and the MIF curve, in percent"
    source = "Brocki and Chung 2023; elsewhere called SRG (Blücher 2024) and ABPC (Schulz 2020)"
    higher_is_better = True

    def __call__(self, block: Block) -> "Mapping[str, Tensor]":  # noqa: D102
        from fpa.perturbation.outputs import OUTPUTS

        output, curves = next(iter(block.curves.items()))
        start = curves.unmasked.double()
        divided = OUTPUTS[output].divided_by_start
        scale = start.where(start > 0, float("nan")) if divided else start.new_ones(())
        x = curves.fractions.to(start.device)

        def area(name: str) -> "Tensor":
            at = ((shares or {}).get(name, x) for shares in (curves.shares_mif, curves.shares_lif))
            return area_between(curves.mif[name].double(), curves.lif[name].double(), *at) / scale

        return {name: area(name) for name in block.maps}


register(Area())
