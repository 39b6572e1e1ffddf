"""A masking from outside the package, for the tests of that seam."""

from dataclasses import dataclass

import torch

from fpa.masking import Masking


@dataclass(frozen=True)
class Speckle(Masking):
    """Noise, stronger the more of the image is removed: it depends on the whole mask, seed and image."""

    strength: float = 1.0

    def noise(self, images, generator=None):
        return torch.rand(images.shape, generator=generator)

    def __call__(self, images, mask, noise=None):
        noise = self.noise(images) if noise is None else noise
        share = mask.float().mean((1, 2))[:, None, None, None]
        return torch.where(mask[:, None], self.strength * share * noise.to(images), images)
