"""Insertion: the area under the probability while a blurred image gets its most important pixels back."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fpa.masking import Blur, Masking
from fpa.scores.area import curve_area
from fpa.scores.score import Block, Given, Passes, Score, register


class Insertion(Score):
    r"""$\int p_i\,dx$ of the probability with the most important share $x$ of the pixels on a blurred image.

    That is the LIF curve under the masking `blur`, read from its end. RISE blurs with a kernel of 11 pixels
    and a sigma of 5, zeros around the image; here nothing is cut off, sigma is a sixteenth of the shorter
    side (14 at 224 px, 2 at 32 px) and the border is repeated.
    """

    name = "insertion"
    title = "area under the probability while the most important pixels return to a blurred image"
    source = "Petsiuk et al. 2018 (RISE)"
    higher_is_better = True
    needs = frozenset({"forwards"})

    def __init__(self, sigma: float | None = None) -> None:
        self.sigma = sigma
        """Of the Gaussian, in pixels; by default a sixteenth of the shorter side."""

    def fractions(self, masking: Masking, fractions: Sequence[float]) -> list[float]:
        """Those of a curve, to the end where only its masking, which is not used here, ends it earlier."""
        cut = masking.most < 1 and fractions[-1] == masking.most
        return [*fractions, 1.0] if cut else [*fractions]

    def settings_for(self, given: Given) -> dict[str, Any]:
        """Where its curves go on: an earlier version ended them with the plan's, and gave other values."""
        fractions = self.fractions(given.masking, given.fractions)
        return {} if fractions == [*given.fractions] else {"until": fractions[-1]}

    def passes(self, given: Given) -> Passes:  # noqa: D102
        fractions = self.fractions(given.masking, given.fractions)
        inner = sum(0 < fraction < 1 for fraction in fractions)
        return Passes(forwards=len(given.estimators) * inner + (fractions[-1] == 1))

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        # The area from the blurred image up is the same as that from the image down.
        fractions = self.fractions(block.task.masking, block.fractions)
        curves = block.curves_under(Blur(self.sigma), fractions, "probability", sides=("lif",))
        return {name: curve_area(curves, "lif", name) for name in block.maps}


register(Insertion())
