"""Scenes: images that can be made again with any of their cues, or parts of cues, left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scenes:
    """N drawn scenes, kept as backgrounds and what lies on them, so that any setting of cues can be rendered.

    Every scene has places for the same number of cues, each of the same number of parts, painted whether they
    are there or not: what is left out, and what never was there, leave nothing behind.
    """

    numbers: Sequence[int]
    """[N]: which scenes these are."""
    labels: Tensor
    """int64 [N]: their classes, with the cues that they have."""
    present: Tensor
    """bool [N, cues, parts]: the parts that are there."""
    paint: Tensor
    """[N, C, H, W] in 0..1: what the cues look like."""
    opacity: Tensor
    """[N, H, W] in 0..1: how much of the paint is seen over the background."""
    part_at: Tensor
    """int64 [N, H, W]: whose pixel it is, cue * parts + part; -1 for nobody's."""
    background: Callable[[int], Tensor]
    """(0) -> the backgrounds [N, C, H, W] in 0..1; (1), (2), ... -> others, drawn again."""

    def __len__(self) -> int:
        return len(self.labels)

    def render(
        self, present: Tensor | None = None, *, background: int = 0, rows: Tensor | None = None
    ) -> Tensor:
        """The images, uint8 [N, C, H, W], with these parts, bool [N, cues, parts]; as drawn without it.

        `rows` [M] are the scenes to be rendered, each as often as it occurs; then `present` has M rows.
        `background` n > 0 puts all on the backgrounds that were drawn again for the n-th time. A part that
        was never there is not shown, whatever `present` says of it.
        """
        chosen = torch.arange(len(self), device=self.labels.device) if rows is None else rows
        # Parts that never were there are painted too, but belong to no setting of this scene.
        shown = self.present[chosen]
        if present is not None:
            shown = shown & present
        under = self.background(background)[chosen]
        owner = self.part_at[chosen].flatten(1)
        # Nobody's pixels look up part 0, and are switched off afterwards.
        seen = shown.flatten(1).gather(1, owner.clamp(min=0)) & (owner >= 0)
        opacity = self.opacity[chosen] * seen.view(len(chosen), *self.opacity.shape[1:])
        # One operation after the other, as IEEE 754 rounds each: fused, images would differ by device.
        change = (self.paint[chosen] - under) * opacity[:, None]
        values = (under + change).clamp(0, 1) * 255 + 0.5
        return values.floor().to(torch.uint8)

    def without(self, cues: Tensor) -> Tensor:
        """The parts that stay, bool [N, cues, parts], where these cues are left out, bool [N, cues]."""
        return self.present & ~cues[:, :, None]

    @property
    def cues(self) -> Tensor:
        """The cues of which anything is there, bool [N, cues]."""
        return self.present.any(2)

    def part_masks(self) -> Tensor:
        """The pixels of the parts that are there, bool [N, cues, parts, H, W]."""
        count, cues, parts = self.present.shape
        numbers = torch.arange(cues * parts, device=self.part_at.device)[:, None, None]
        masks = (self.part_at[:, None] == numbers).view(count, cues, parts, *self.part_at.shape[1:])
        return masks & self.present[..., None, None]

    def masks(self) -> Tensor:
        """The pixels of the cues that are there, bool [N, cues, H, W]."""
        return self.part_masks().any(2)
