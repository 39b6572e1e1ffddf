"""A network whose weights give the true effects: a second truth, without training and without settings."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fpa.worlds.effects import REDRAWS
from fpa.worlds.scenes import Scenes


class PixelNetwork(nn.Module):
    """Adds up what every pixel says by itself: logit c is the sum over pixels of ReLU(colour c - threshold).

    Colour c is how far red, green or blue is above the mean of the other two, for images in -1..1. So the
    first cues of the three classes of `cues` are seen, and whatever else is red, green or blue enough.

    >>> image = torch.full((1, 3, 2, 2), -1.0)
    >>> image[0, 0, 0, 0] = 1  # one red pixel
    >>> PixelNetwork()(image).tolist()
    [[1.5, 0.0, 0.0]]
    """

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.colour = nn.Conv2d(3, 3, 1)
        with torch.no_grad():
            self.colour.weight.copy_((1.5 * torch.eye(3) - 0.5)[:, :, None, None])
            self.colour.bias.fill_(-threshold)  # type: ignore[union-attr]

    def evidence(self, images: Tensor) -> Tensor:
        """What every pixel says for each class, [N, 3, H, W] -> [N, classes, H, W]."""
        return self.colour(images).relu()  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        return self.evidence(images).sum((2, 3))


class PixelEffects(NamedTuple):
    """Exact Shapley effects on the centred logit, pixel by pixel, float64 [N, H, W]."""

    of_cues: Tensor
    """Of the cue that a pixel belongs to; 0 elsewhere."""
    of_background: Tensor
    of_parts: Tensor
    """Of the part that a pixel belongs to, while all else stays."""

    def by_player(self, scenes: Scenes) -> Tensor:
        """Effects of the cues and, last, of the background, [N, cues + 1]."""
        cues = torch.einsum("nchw,nhw->nc", scenes.masks().double(), self.of_cues)
        return torch.cat([cues, self.of_background.sum((1, 2))[:, None]], 1)

    def by_part(self, scenes: Scenes) -> Tensor:
        """Effects of the parts, [N, cues, parts]."""
        return torch.einsum("ncphw,nhw->ncp", scenes.part_masks().double(), self.of_parts)


def exact_effects(
    network: PixelNetwork,
    scenes: Scenes,
    targets: Tensor,
    normalised: Callable[[Tensor], Tensor],
    *,
    redraws: int = REDRAWS,
) -> PixelEffects:
    r"""Effects of cues and background on the centred logits of the classes `targets` [N], in closed form.

    Every pixel adds to the logits alone, and has two players at most: the cue it belongs to, and the
    background. Of two players, Shapley's effect is the mean of what the one adds with and without the other.
    """

    def values(present: Tensor, background: int) -> Tensor:
        """What every pixel says for its image's class, less the mean over classes."""
        images = normalised(scenes.render(present, background=background))
        with torch.no_grad():
            evidence = network.evidence(images.to(network.colour.weight)).double()
        own = evidence[torch.arange(len(targets), device=targets.device), targets]
        return own - evidence.mean(1)

    everything = scenes.present
    nothing = torch.zeros_like(everything)
    again = range(1, redraws + 1)
    both = values(everything, 0)
    background = values(nothing, 0)
    cues = torch.stack([values(everything, number) for number in again]).mean(0)
    neither = torch.stack([values(nothing, number) for number in again]).mean(0)
    return PixelEffects(
        of_cues=((both - background) + (cues - neither)) / 2,
        of_background=((both - cues) + (background - neither)) / 2,
        of_parts=both - background,
    )
