"""Comprehensiveness and sufficiency: the probability without, and with only, the most important pixels."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from fpa.scores.score import Block, Given, Score, register

SHARES = (0.05, 0.1, 0.2, 0.5)
"""Of the pixels. The source has 1 % too, which lies between the points of a usual curve."""


def mean_fall(curve: Tensor, places: Sequence[int]) -> Tensor:
    """How far each curve [N, K] has fallen from its first point at these places, on average, [N].

    >>> import torch
    >>> mean_fall(torch.tensor([[1.0, 0.5, 0.25, 0.0]]), [1, 3]).tolist()
    [0.75]
    """
    return (curve[:, :1] - curve[:, [*places]]).double().mean(1)


class Comprehensiveness(Score):
    r"""Mean over shares $q$ of $p(x) - p(x \text{ without its most important } q)$, of the probability.

    Its authors average over 1, 5, 10, 20 and 50 %. The 1 % bin is left out: a curve of 21 points has none
    there.
    """

    name = "comprehensiveness"
    title = "mean fall of the probability without the most important 5, 10, 20 and 50 % of the pixels"
    source = "DeYoung et al. 2020"
    higher_is_better = True
    outputs = ("probability",)
    side: ClassVar[str] = "mif"
    removed: ClassVar[tuple[float, ...]] = SHARES

    def places(self, fractions: Sequence[float]) -> list[int]:
        """Where the shares removed are among the points of a curve; fewer if some are not."""
        near = [[abs(fraction - share) < 1e-6 for fraction in fractions] for share in self.removed]
        return [found.index(True) for found in near if any(found)]

    def missing(self, given: Given) -> str | None:  # noqa: D102
        if len(self.places(given.fractions)) < len(self.removed):
            points = ", ".join(f"{100 * share:g}" for share in self.removed)
            return f"needs the points {points} % of the curves: use 21 points"
        return super().missing(given)

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        places = self.places(block.fractions)
        curves = getattr(block.curves["probability"], self.side)
        return {name: mean_fall(curve, places) for name, curve in curves.items()}


class Sufficiency(Comprehensiveness):
    r"""Mean over shares $q$ of $p(x) - p(\text{only the most important } q \text{ of } x)$, likewise."""

    name = "sufficiency"
    title = "mean fall of the probability with only the most important 5, 10, 20 and 50 % of the pixels"
    higher_is_better = False
    # Only the most important q are left when the least important 1 - q are gone: a point of the LIF curve.
    side = "lif"
    removed = tuple(1 - share for share in SHARES)


register(Comprehensiveness())
register(Sufficiency())
