"""Insertion: the area under the probability while a blurred image gets its most important pixels back."""

from collections.abc import Mapping

from torch import Tensor

from fpa.masking import Blur
from fpa.scores.area import curve_area
from fpa.scores.score import Block, Given, Passes, Score, register


class Insertion(Score):
    r"""$\int p_i\,dx$ of the probability with the most important share $x$ of the pixels on a blurred image.

    That is the LIF curve under the masking `blur`, read from its end.
    """

    name = "insertion"
    title = "area under the probability while the most important pixels return to a blurred image"
    source = "Petsiuk et al. 2018 (RISE)"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __init__(self, sigma: float | None = None) -> None:
        self.sigma = sigma
        """Of the Gaussian, in pixels; by default a sixteenth of the shorter side."""

    def passes(self, given: Given) -> Passes:  # noqa: D102
        inner = sum(0 < fraction < 1 for fraction in given.fractions)
        return Passes(forwards=len(given.estimators) * inner + (given.fractions[-1] == 1))

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        # The area from the blurred image up is the same as that from the image down.
        curves = block.curves_under(Blur(self.sigma), block.fractions, "probability", sides=("lif",))
        return {name: curve_area(curves, "lif", name) for name in block.maps}


register(Insertion())
