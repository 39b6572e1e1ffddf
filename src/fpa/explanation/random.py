"""Random scores: what every explanation must do better than."""

from dataclasses import dataclass

from torch import Tensor

from fpa.explanation.raw import RawMap, register
from fpa.explanation.task import Task
from fpa.seeds import Stream, by_image


@register
@dataclass(frozen=True)
class Random(RawMap):
    """Scores uniform in [0, 1), drawn from the seed and the number of the image."""

    family = "random"
    label = "Random"
    baseline = True
    nonnegative = True

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, 1, H, W]."""
        shape, device = (1, *task.images.shape[2:]), task.images.device
        return by_image(shape, task.seed, task.indices, Stream.RANDOM_MAP, device=device, draw="uniform")
