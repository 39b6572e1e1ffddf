"""Max-sensitivity: how much the map changes when the image hardly does."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fpa.errors import MOST_SAMPLES, at_least
from fpa.scores.explaining import Explaining, noisy, spans
from fpa.scores.score import Block, register


def relative_change(maps: Tensor, others: Tensor) -> Tensor:
    r"""$\lVert b - a \rVert_2 / \lVert a \rVert_2$ of maps $a$ and others $b$, [N, H, W] -> [N].

    NaN where $a$ is 0.

    >>> import torch
    >>> relative_change(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[3.0, 1.5]]])).item()
    0.5
    """
    difference = others - maps
    change = (difference * difference).sum((1, 2)).sqrt()
    norms = (maps * maps).sum((1, 2)).sqrt()
    return change / norms.where(norms > 0, float("nan"))


class MaxSensitivity(Explaining):
    r"""$\max_j \lVert a(x_j) - a(x) \rVert_2 / \lVert a(x) \rVert_2$ over copies $x_j$ near the image $x$.

    Every value of a copy differs from the image's by at most `radius` times the image's range (max - min),
    uniformly; the class explained, and what an estimator draws itself, stay the same. $a$ is the map reduced
    to one number a pixel; the source takes the attributions of all channels. It says nothing about whether a
    map is right: a map that is always the same has 0.
    """

    name = "max_sensitivity"
    title = "largest relative change of the map under small changes of the image"
    source = "Yeh et al. 2019"
    higher_is_better = False

    def __init__(self, radius: float = 0.02, samples: int = 10) -> None:
        at_least("samples", samples, 1, MOST_SAMPLES)
        self.radius = radius
        self.samples = samples

    @property
    def explanations(self) -> int:
        """One for each copy."""
        return self.samples

    def values(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        images = block.task.images
        size = self.radius * spans(images)
        largest = {name: images.new_zeros(len(images)) for name in block.maps}
        # One copy after the other: maps of all of them at once would be `samples` times as large.
        for offset in noisy(block, self.samples, "uniform"):
            for name, maps in block.explain(images + size * offset).items():
                change = relative_change(block.maps[name], maps)
                largest[name] = torch.maximum(largest[name], change.to(images.dtype))
        return largest


register(MaxSensitivity())
