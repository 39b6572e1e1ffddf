"""Backgrounds that look natural: colour noise with the contrast and the spectrum of small photos."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fpa.seeds import uniform_by_index

_COARSEST = 4
"""Values across the coarsest noise; the finest has one for every pixel, with a border that is cut off."""
_AMPLITUDES = (0.05, 0.275, 0.275, 0.43)
"""Of brightness in 0..1, at scales of 1, 2, 4 and 8 pixels; coarser ones have the last. Fitted by
research/backgrounds.py to 3,000 photos of CIFAR-10: the contrast in seven bands agrees within 9 %. Photos
are smooth from pixel to pixel, so a masked pixel stands out."""
_COLOUR = 0.25
"""Of colour, as a share of that of brightness."""
_CONTRAST = 0.4
"""How much less or more contrast an image has, at most."""


def draw_backgrounds(seed: int, numbers: Sequence[int], size: int, device: torch.device | str) -> Tensor:
    """Noise in colour, float32 [N, 3, size, size] in 0..1; image n depends on seed and number alone.

    There are only sums, products and roundings, which IEEE 754 rounds the same everywhere: no device changes
    an image.

    >>> draw_backgrounds(0, [5, 3], 32, "cpu")[1].equal(draw_backgrounds(0, [3], 32, "cpu")[0])
    True
    """
    sides = grid_sides(size)
    counts = [3 * side * side for side in sides]
    drawn = uniform_by_index(seed, numbers, sum(counts) + 4).to(device)
    *grids, style = torch.split(2 * drawn - 1, [*counts, 4], dim=1)
    fields = torch.zeros(1, device=device)
    for level, (side, values) in enumerate(zip(sides, grids, strict=True)):
        coarser = finer(finer(fields).mT).mT if level else fields
        octaves = len(sides) - 1 - level
        amplitude = _AMPLITUDES[min(octaves, len(_AMPLITUDES) - 1)]
        fields = coarser + amplitude * values.view(-1, 3, side, side)
    fields = fields[:, :, 1 : size + 1, 1 : size + 1]
    # In photos brightness varies more than colour does: two fields of colour, weaker, around a grey one.
    contrast = 1 + _CONTRAST * style[:, :1, None, None]
    middle = 0.5 + 0.2 * style[:, 1:2, None, None]
    hue = 0.08 * style[:, 2:, None, None]
    grey, warm, green = (contrast * fields).unbind(1)
    brightness = middle[:, 0] + grey
    redness = hue[:, 0] + _COLOUR * warm
    greenness = hue[:, 1] + _COLOUR * green
    colours = (
        brightness + redness,
        brightness - 0.5 * redness + greenness,
        brightness - 0.5 * redness - greenness,
    )
    return torch.stack(colours, 1).clamp(0, 1)


def grid_sides(size: int) -> list[int]:
    """Values across the noise of each scale, the coarsest first; the finest has a border that is cut off.

    >>> grid_sides(32)
    [4, 6, 10, 18, 34]
    """
    sides = [_COARSEST]
    while sides[-1] < size + 2:
        sides.append(2 * sides[-1] - 2)
    return sides


def finer(grid: Tensor) -> Tensor:
    """Rows [..., n, m] to twice as many, [..., 2 n - 2, m]: at a quarter and three quarters of each gap."""
    first = grid[..., :-1, :]
    second = grid[..., 1:, :]
    quarter = 0.75 * first + 0.25 * second
    three_quarters = 0.25 * first + 0.75 * second
    return torch.stack([quarter, three_quarters], -2).flatten(-3, -2)
