"""ROAD: A with the pixels that are removed imputed from those that are left."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fpa.masking import Road
from fpa.perturbation import up_to
from fpa.scores.area import areas_between
from fpa.scores.score import Block, Given, Passes, Score, register


class RoadArea(Score):
    r"""$100 \int_0^{0.95} (l_i - m_i)\,dx / u_i$, as A is, of curves under the masking `road`.

    With everything removed nothing is left to impute from, so the area ends at 95 %: it is not comparable
    with an A over the whole range.
    """

    name = "road"
    title = (
        "area between the LIF and the MIF curve with removed pixels imputed, up to 95 % removed, in percent"
    )
    source = "Rong et al. 2022"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __init__(self, sigma: float = 0.01) -> None:
        self.sigma = sigma
        """Of the noise, as a share of each channel's range."""

    def fractions(self, fractions: Sequence[float]) -> list[float]:
        """Those of a curve that leave something to impute from, up to the most that can be removed."""
        return up_to(self.masking.most, fractions)

    @property
    def masking(self) -> Any:  # noqa: D102
        return Road(self.sigma)

    def only_by_name(self, given: Given) -> str | None:  # noqa: D102
        return (
            "solves a system of equations for every perturbed image, so it is computed only when it is named"
        )

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=2 * len(given.estimators) * (len(self.fractions(given.fractions)) - 1))

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        shares = self.fractions(block.fractions)
        return areas_between(block.curves_under(self.masking, shares, block.output), block)


register(RoadArea())
