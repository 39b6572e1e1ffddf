"""Backgrounds that look natural: colour noise with as much contrast at every scale, as photos have it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fpa.seeds import uniform_by_index

_COARSEST = 4
"""Values across the coarsest noise; the finest has one for every pixel, with a border that is cut off."""
_AMPLITUDE = 0.6
_FINE = {0: 0.3, 1: 0.45}
"""Amplitudes at scales of 1 and 2 pixels: lenses blur these."""


def draw_backgrounds(seed: int, numbers: Sequence[int], size: int, device: torch.device | str) -> Tensor:
    """Coloured 1/f noise, float32 [N, 3, size, size] in 0..1; image n depends on seed and number alone.

    Equal amplitudes at scales of 1, 2, 4, ... pixels make a spectrum that falls like 1/f. There are only
    sums, products and roundings, which IEEE 754 rounds the same everywhere: no device changes an image.

    >>> draw_backgrounds(0, [5, 3], 32, "cpu")[1].equal(draw_backgrounds(0, [3], 32, "cpu")[0])
    True
    """
    sides = [_COARSEST]
    while sides[-1] < size + 2:
        sides.append(2 * sides[-1] - 2)
    counts = [3 * side * side for side in sides]
    drawn = uniform_by_index(seed, numbers, sum(counts) + 4).to(device)
    *grids, style = torch.split(2 * drawn - 1, [*counts, 4], dim=1)
    fields = torch.zeros(1, device=device)
    for level, (side, values) in enumerate(zip(sides, grids, strict=True)):
        coarser = _finer(_finer(fields).mT).mT if level else fields
        amplitude = _FINE.get(len(sides) - 1 - level, _AMPLITUDE)
        fields = coarser + amplitude * values.view(-1, 3, side, side)
    fields = fields[:, :, 1 : size + 1, 1 : size + 1]
    # In photos brightness varies more than colour does: two fields of colour, weaker, around a grey one.
    grey, warm, green = fields.unbind(1)
    colours = (grey + 0.5 * warm, grey - 0.25 * warm + 0.4 * green, grey - 0.25 * warm - 0.4 * green)
    contrast = 0.22 + 0.1 * style[:, :1, None, None]
    middle = 0.5 + 0.2 * style[:, 1:, None, None]
    return (middle + contrast * torch.stack(colours, 1)).clamp(0, 1)


def _finer(grid: Tensor) -> Tensor:
    """Rows [..., n, m] to twice as many, [..., 2 n - 2, m]: at a quarter and three quarters of each gap."""
    first = grid[..., :-1, :]
    second = grid[..., 1:, :]
    quarter = 0.75 * first + 0.25 * second
    three_quarters = 0.25 * first + 0.75 * second
    return torch.stack([quarter, three_quarters], -2).flatten(-3, -2)
