"""A, the area between the LIF and the MIF curve: what the paper measures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fpa.scores.score import Block, Score, register

if TYPE_CHECKING:
    from torch import Tensor


class Area(Score):
    r"""$A = 100 \int (l_i - m_i)\,dx / u_i$, with $u_i$ the unmasked output (1 where it is not divided)."""

    name = "A"
    title = "area between the LIF and the MIF curve, in percent"
    source = "Brocki and Chung 2023; elsewhere called SRG (Blücher 2024) and ABPC (Schulz 2020)"
    higher_is_better = True

    def __call__(self, block: Block) -> "Mapping[str, Tensor]":  # noqa: D102
        from torch import trapezoid

        from fpa.perturbation.outputs import OUTPUTS

        output, curves = next(iter(block.curves.items()))
        start = curves.unmasked.double()
        divided = OUTPUTS[output].divided_by_start
        scale = start.where(start > 0, float("nan")) if divided else start.new_ones(())
        x = curves.fractions.to(start.device)

        def area(name: str) -> "Tensor":
            sides = (curves.lif, curves.shares_lif), (curves.mif, curves.shares_mif)
            lif, mif = (trapezoid(y[name].double(), (shares or {}).get(name, x)) for y, shares in sides)
            return 100 * (lif - mif) / scale

        return {name: area(name) for name in block.maps}


register(Area())
