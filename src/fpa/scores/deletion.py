"""Deletion: the area under the probability while the most important pixels are removed first."""

from collections.abc import Mapping

from torch import Tensor

from fpa.scores.area import curve_area
from fpa.scores.score import Block, Score, register


class Deletion(Score):
    r"""$\int p_i\,dx$ of the class's probability $p_i$ along the MIF curve, in 0..1."""

    name = "deletion"
    title = "area under the probability along the MIF curve"
    source = "Petsiuk et al. 2018 (RISE)"
    higher_is_better = False
    outputs = ("probability",)

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        return {name: curve_area(block.curves["probability"], "mif", name) for name in block.maps}


register(Deletion())
