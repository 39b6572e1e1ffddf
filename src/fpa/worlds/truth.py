"""How true a map is: does it give cues and background what they really do?"""

import torch
from torch import Tensor

from fpa.worlds.scenes import Scenes

FEWEST = 3
"""Cues that a scene must have: with one or two, nearly every map points the right way."""


def region_sums(maps: Tensor, scenes: Scenes) -> Tensor:
    """Sums of maps [N, H, W] over the cues of each scene and, last, over the rest, float64 [N, cues + 1]."""
    masks = scenes.masks()
    # All that is no cue, so that importance outside of the cues costs a map something.
    rest = ~masks.any(1, keepdim=True)
    regions = torch.cat([masks, rest], 1)
    return torch.einsum("nrhw,nhw->nr", regions.double(), maps.double())


def part_sums(maps: Tensor, scenes: Scenes) -> Tensor:
    """Sums of maps [N, H, W] over the parts of each cue, float64 [N, cues, parts]; 0 for those not there."""
    return torch.einsum("ncphw,nhw->ncp", scenes.part_masks().double(), maps.double())


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of each two rows, [..., R] -> float64 [...]; NaN where one of them is 0.

    >>> cosine(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[6.0, 8.0], [1.0, 0.0]])).tolist()
    [1.0, nan]
    """
    a = first.double()
    b = second.double()
    lengths = a.square().sum(-1).sqrt() * b.square().sum(-1).sqrt()
    return ((a * b).sum(-1) / lengths.masked_fill(lengths == 0, torch.nan)).clamp(-1, 1)


def truth(
    maps: Tensor, scenes: Scenes, effects: Tensor, *, background: bool = True, signed: bool = True
) -> Tensor:
    """How true maps [N, H, W] are to effects [N, cues + 1], the background's last: cosines, float64 [N].

    Compared are the sums of a map over the cues and the rest with their effects. Without `background` the
    rest does not count; without `signed` the sizes of the effects do, whatever their signs. NaN for scenes
    with fewer than three cues, and where the map or the effects are 0.
    """
    # Cues that are not there have sum and effect 0, so that they change neither product nor lengths.
    sums = region_sums(maps, scenes)
    wanted = effects if signed else effects.abs()
    if not background:
        sums = sums[:, :-1]
        wanted = wanted[:, :-1]
    few = scenes.cues.sum(1) < FEWEST
    return cosine(sums, wanted).masked_fill(few, torch.nan)


def truth_of_parts(maps: Tensor, scenes: Scenes, effects: Tensor) -> Tensor:
    """The same inside of cues, for effects [N, cues, parts]: the mean over cues of two parts or more, [N]."""
    found = cosine(part_sums(maps, scenes), effects)
    # Of a single part every map with the right sign has cosine 1.
    several = scenes.present.sum(2) >= 2
    return found.masked_fill(~several, torch.nan).nanmean(1)
