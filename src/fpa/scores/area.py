"""A, the area between the LIF and the MIF curve: what the paper measures."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, trapezoid

from fpa.engine.outputs import OUTPUTS
from fpa.perturbation.curves import Curves
from fpa.scores.score import Block, Score, register


def curve_area(curves: Curves, side: Literal["mif", "lif"], name: str) -> Tensor:
    """The area [N] under the curves of a map by the trapezoid rule, over the pixels exactly removed.

    >>> import torch
    >>> from fpa.perturbation import Curves
    >>> values = {"map": torch.tensor([[4.0, 1.0, 0.0]])}
    >>> x = torch.tensor([0, 0.5, 1], dtype=torch.float64)
    >>> curve_area(Curves(x, values, values, torch.tensor([4.0]), torch.tensor([0])), "mif", "map").tolist()
    [1.5]
    """
    y = getattr(curves, side)[name].double()
    # Where features differ in size, every image has its own x: the pixels that are gone, not the features.
    shares = getattr(curves, f"shares_{side}") or {}
    return trapezoid(y, shares.get(name, curves.fractions.to(y.device)))


def in_percent(block: Block) -> Tensor:
    """What the values [N] of the first output are multiplied by: 100, over the unmasked one if it is divided.

    NaN where the unmasked output is not positive: a ratio to it means nothing.
    """
    start = block.curves[block.output].unmasked.double()
    divided = OUTPUTS[block.output].divided_by_start
    return 100 / start.where(start > 0, float("nan")) if divided else 100 * start.isfinite().double()


def areas_between(curves: Curves, block: Block) -> dict[str, Tensor]:
    """The area [N] between the LIF and the MIF curves of every map, in percent."""
    scale = in_percent(block)
    return {
        name: (curve_area(curves, "lif", name) - curve_area(curves, "mif", name)) * scale
        for name in block.maps
    }


class Area(Score):
    r"""$A = 100 \int (l_i - m_i)\,dx / u_i$, with $u_i$ the unmasked output (1 where it is not divided).

    In percent where it is divided, as the logit and the centred logit are. Of the margin and the log-odds it
    is 100 times logits, not percent.
    """

    name = "A"
    title = "area between the LIF and the MIF curve, in percent"
    source = "Brocki and Chung 2023; elsewhere called SRG (Blücher 2024) and ABPC (Schulz 2020)"
    higher_is_better = True

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        return areas_between(block.curves[block.output], block)


register(Area())
