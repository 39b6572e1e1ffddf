"""What scores of localisation share: the known pixels of the object that is explained."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fpa.scores.score import Block, Score


class Localisation(Score):
    """Base of the scores that ask how far a map lies on the object.

    An image has no value if nothing is known of its object, or if another class than the true one is
    explained: then the object is not what the map should lie on. Where the true class is unknown, the object
    counts.
    """

    higher_is_better = True
    needs = frozenset({"masks"})

    @abstractmethod
    def value(self, block: Block, maps: Tensor, masks: Tensor) -> Tensor:
        """The values [N] of maps [N, H, W] for objects [N, H, W]."""

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        assert block.masks is not None
        masks = block.masks.to(block.task.images.device)
        unknown = ~masks.flatten(1).any(1) | (block.truth != block.task.targets)
        values = {name: self.value(block, maps, masks).double() for name, maps in block.maps.items()}
        return {name: each.masked_fill(unknown, torch.nan) for name, each in values.items()}
