"""VG, the vanilla gradient: how the logit responds to a small change of each value of the image."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fpa.explanation.raw import GradientMap, register
from fpa.explanation.task import Task


@register
@dataclass(frozen=True)
class VanillaGradient(GradientMap):
    """The gradient of the logit with respect to the image (Simonyan et al., 2014)."""

    family = "vg"
    label = "VG"
    gradients = 1

    def rows(self, task: Task, prepared: Any, at: slice, image: Tensor) -> Tensor:
        """The images."""
        return task.images[at]
