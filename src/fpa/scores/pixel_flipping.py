"""Pixel flipping: the area under the MIF curve."""

from collections.abc import Mapping

from torch import Tensor

from fpa.scores.area import curve_area, in_percent
from fpa.scores.score import Block, Score, register


class PixelFlipping(Score):
    r"""$100 \int m_i\,dx / u_i$ of the MIF curve $m_i$, with $u_i$ the unmasked output (1 if not divided)."""

    name = "pixel_flipping"
    title = "area under the MIF curve, in percent"
    source = "Bach et al. 2015"
    higher_is_better = False

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        curves = block.curves[block.output]
        scale = in_percent(block)
        return {name: curve_area(curves, "mif", name) * scale for name in block.maps}


register(PixelFlipping())
