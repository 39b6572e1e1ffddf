"""What an explanation must beat: maps that know no model, and the Gaussian blur that makes a map's twin."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fpa.engine.devices import sent
from fpa.engine.tasks import Task
from fpa.explanation.paper import reference_images
from fpa.explanation.raw_maps import RawMap, register
from fpa.masking import gaussian
from fpa.masking.fills import within_image

SIDE_16 = "side/16"
"""The sigma of a twin that names none: a sixteenth of the shorter side of the image."""


class ModelFree(RawMap):
    """Base of the maps [N, 1, H, W] that know no model."""

    baseline = True
    nonnegative = True


@register
@dataclass(frozen=True)
class Centre(ModelFree):
    r"""A bump in the middle of the image, the same for all images.

    $\exp(-8 (y^2 + x^2))$ with y and x from -1/2 to 1/2 across the image: sigma is a quarter of a side.
    """

    family = "centre"
    label = "Centre"

    def raw_map(self, name: str, task: Task) -> Tensor:  # noqa: D102
        images = task.images
        y, x = ((torch.arange(side) + 0.5) / side - 0.5 for side in images.shape[2:])
        bump = torch.exp(-8 * (y[:, None] ** 2 + x**2))
        return sent(bump, images.device).to(images.dtype).expand(len(images), 1, -1, -1)


@register
@dataclass(frozen=True)
class Edges(ModelFree):
    r"""How much the image changes: $\sqrt{\sum_c g_y^2 + g_x^2}$ over channels c, by Sobel's filters.

    $g_x$ is the difference of the columns to the right and to the left, each the mean of its three pixels
    with weights 1, 2, 1; $g_y$ the same of rows. The border is repeated.
    """

    family = "edges"
    label = "Edges"

    def raw_map(self, name: str, task: Task) -> Tensor:  # noqa: D102
        padded = functional.pad(task.images, (1, 1, 1, 1), mode="replicate")
        across = padded[..., 2:] - padded[..., :-2]
        down = padded[..., 2:, :] - padded[..., :-2, :]
        gx = (across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]) / 4
        gy = (down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]) / 4
        return (gx.square() + gy.square()).sum(1, keepdim=True).sqrt()


@register
@dataclass(frozen=True)
class Input(ModelFree):
    r"""How far a pixel is from what removing it leaves: $\sqrt{\sum_c (x_c - m_c)^2}$, m fully masked."""

    family = "input"
    label = "Input"

    def raw_map(self, name: str, task: Task) -> Tensor:  # noqa: D102
        return (task.images - reference_images("masked", task)).square().sum(1, keepdim=True).sqrt()


def blurred(maps: Tensor, sigma: float | str) -> Tensor:
    """The maps [N, C, H, W] blurred as by the masking `blur`: a Gaussian of `sigma` pixels, or `SIDE_16`.

    >>> line = torch.zeros(1, 1, 5, 5, dtype=torch.float64).index_fill(2, torch.tensor([2]), 1)
    >>> blurred(line, 1)[0, 0, :, 0].round(decimals=2).tolist()
    [0.05, 0.24, 0.4, 0.24, 0.05]
    """
    width = min(maps.shape[-2:]) / 16 if isinstance(sigma, str) else sigma
    within_image("the blur of a twin", width, maps)
    # Ranks follow the last digits: not in TF32, and float64 gives the same float32 in every batch.
    values = maps.double() if maps.device.type != "mps" else maps
    down, across = (sent(_matrix(side, width), maps.device).to(values.dtype) for side in maps.shape[-2:])
    return (down @ values @ across.T).to(maps.dtype)


def _matrix(side: int, sigma: float) -> Tensor:
    """What blurs a line of `side` pixels whose ends are repeated, [side, side]."""
    weights = gaussian(sigma, torch.zeros(0, dtype=torch.float64))
    reach = len(weights) // 2
    places = (torch.arange(side)[:, None] + torch.arange(-reach, reach + 1)).clamp(0, side - 1)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(1, places, weights.expand(side, -1))
