"""Class activation maps: Grad-CAM, Grad-CAM++ and LayerCAM of convolutional networks and of transformers.

They weight the channels of a layer by the gradient of the explained output. Tokens of a transformer are put
back on their grid first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from fpa.engine.tasks import Task
from fpa.errors import unknown
from fpa.explanation.facts import Reduction
from fpa.explanation.grids import Grids, first_of
from fpa.explanation.hookable import hookable_model
from fpa.explanation.raw_maps import RawMap, in_parts, register


def _gradcam(values: Tensor, gradients: Tensor) -> Tensor:
    return (gradients.mean((2, 3), keepdim=True) * values).sum(1, keepdim=True)


def _gradcam_plus_plus(values: Tensor, gradients: Tensor) -> Tensor:
    # The paper takes the exponential of the score: its higher derivatives are powers of the gradient.
    below = 2 * gradients**2 + values.sum((2, 3), keepdim=True) * gradients**3
    alpha = gradients**2 / below.where(below != 0, 1)
    return ((alpha * gradients.relu()).sum((2, 3), keepdim=True) * values).sum(1, keepdim=True)


def _layercam(values: Tensor, gradients: Tensor) -> Tensor:
    return (gradients.relu() * values).sum(1, keepdim=True)


METHODS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "gradcam": ("GradCAM", _gradcam),
    "gradcam++": ("GradCAM++", _gradcam_plus_plus),
    "layercam": ("LayerCAM", _layercam),
}
"""By name: the name for people, and the map before ReLU from values and gradients [N, channels, h, w]."""


@register
@dataclass(frozen=True)
class CAM(RawMap):
    r"""A class activation map of a layer with values $a_{kp}$ (channel k, place p) and gradients $g_{kp}$.

    `gradcam`: $\mathrm{ReLU}(\sum_k a_{kp} \, \mathrm{mean}_q g_{kq})$ (Selvaraju et al., 2017).
    `gradcam++`: the mean becomes $\sum_q \alpha_{kq} \mathrm{ReLU}(g_{kq})$ with
    $\alpha_{kq} = g_{kq}^2 / (2 g_{kq}^2 + g_{kq}^3 \sum_r a_{kr})$ (Chattopadhay et al., 2018).
    `layercam`: $\mathrm{ReLU}(\sum_k a_{kp} \mathrm{ReLU}(g_{kp}))$ (Jiang et al., 2021).

    The map is brought to image size bilinearly. Without a `layer` it is the last one whose places still
    matter: of a ResNet the last block, of a vision transformer that only reads its class token the
    normalisation before the last attention.
    """

    method: str = "gradcam"
    layer: str | None = None
    family = "cam"
    nonnegative = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("class activation map", self.method, METHODS)

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """`cam:METHOD[@LAYER]`."""
        method, _, layer = argument.partition("@")
        return cls(method.lower().replace("-", ""), layer or None), None

    @property
    def label(self) -> str:
        """The method, and its layer if one is named."""
        return METHODS[self.method][0] + (f"@{self.layer}" if self.layer else "")

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, 1, H, W], from one gradient pass on a copy of the model."""
        model = hookable_model(task.engine, task.images)
        grids = Grids.of(model, task.images[:1].to(task.engine.dtype))
        layer = grids.layer(name, model, self.layer)

        def run(rows: Tensor, at: slice) -> Tensor:
            kept: list[Any] = []
            hook = layer.register_forward_hook(lambda _, __, output: kept.append(first_of(output)))
            try:
                outputs = model(rows.requires_grad_(), task.targets[at], task.output)
            finally:
                hook.remove()
            # The last time, where a layer runs more than once: what is left of the pass depends on that.
            layer_output = kept[-1]
            (gradients,) = torch.autograd.grad(outputs.sum(), layer_output)
            values = grids.on_grid(layer_output.detach().float())
            slopes = grids.on_grid(gradients.detach().float())
            assert values is not None  # `Grids.layer` refuses layers without places
            assert slopes is not None
            cam = METHODS[self.method][1](values, slopes).relu()
            return functional.interpolate(cam, rows.shape[2:], mode="bilinear")

        return in_parts(task, name, run, memory_factor=2)
