"""ROAD's masking: removed pixels are imputed from those that are left."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fpa.errors import InputError
from fpa.masking.imputation import harmonic
from fpa.masking.masking import Masking, check_mask, finite_number, floating, in_type_of


@dataclass(frozen=True)
class Road(Masking):
    r"""Masked pixels take weighted means of their neighbours, and noise: noisy linear imputation.

    That of ROAD (Rong et al., 2022). For every masked pixel, with weights w of 1/6 for the four nearest and
    of 1/12 for the four diagonal neighbours, of those that are in the image: $\sum_j w_j (x - x_j) = 0$, all
    equations of an image together (`fpa.masking.imputation`). The noise is normal, `sigma` times the range
    of each channel of the image. A pixel must be left: there is no fully masked image, curves end at 95 %,
    and 0 stands in where others use it (integrated gradients).
    """

    sigma: float = 0.01
    most = 0.95
    trains = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", finite_number("sigma", self.sigma, least=0))

    def noise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        device = images.device if generator is None else generator.device
        return torch.randn(images.shape, generator=generator, device=device).to(images.device)

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:  # noqa: D102
        check_mask(images, mask)
        if mask.flatten(1).all(1).any():
            raise InputError("road imputes pixels from those that are left: a mask must leave one or more")
        values = floating(images)
        noise = self.noise(images) if noise is None else noise
        deviation = self.sigma * (values.amax((2, 3), keepdim=True) - values.amin((2, 3), keepdim=True))
        # Imputed pixels alone are a smooth patch whose outline betrays the mask; the noise hides it.
        imputed = harmonic(values, mask) + deviation * noise.to(values.dtype)
        return torch.where(mask.unsqueeze(1), in_type_of(imputed, images), images)
