"""A world from outside the package, for the tests of that seam: a bar left, for the class, and one right."""

import torch

from fpa.seeds import uniform_by_index
from fpa.worlds import Scenes, World


class Bars(World):
    """Grey images of 8 x 12 px; a bar of two parts on the left half, one of two on the right half."""

    classes = ("dark", "bright")
    train_images = 40
    test_images = 20

    def draw(self, seed, numbers, device="cpu"):
        uniform = uniform_by_index(seed, numbers, 3).to(device)
        count = len(numbers)
        present = (uniform[:, :2] < 0.5)[:, :, None].expand(-1, -1, 2)
        part_at = torch.full((count, 8, 12), -1, device=device)
        for cue in range(2):
            for part in range(2):
                part_at[:, 2 + 2 * part : 4 + 2 * part, 1 + 6 * cue : 5 + 6 * cue] = 2 * cue + part

        def background(redraw):
            grey = uniform_by_index(seed + 1 + redraw, numbers, 1).to(device)
            return (0.4 + 0.2 * grey)[:, :, None, None].expand(-1, 1, 8, 12)

        return Scenes(
            numbers=numbers,
            labels=present[:, 0, 0].long(),
            present=present,
            paint=torch.ones(count, 1, 8, 12, device=device),
            opacity=(part_at >= 0).float(),
            part_at=part_at,
            background=background,
        )


class Painted(Bars):
    """A world that paints its first cue like the background: nothing changes when it is left out."""

    def draw(self, seed, numbers, device="cpu"):
        scenes = super().draw(seed, numbers, device)
        scenes.opacity[scenes.part_at < 2] = 0
        return scenes


class Spilt(Bars):
    """A world whose first cue takes its surroundings along when it is left out."""

    def draw(self, seed, numbers, device="cpu"):
        scenes = super().draw(seed, numbers, device)

        class Spilling(Scenes):
            def masks(self):
                masks = super().masks()
                masks[:, :, :3] = False
                return masks

        return Spilling(**vars(scenes))


class Crowded(Bars):
    """A world whose scenes depend on how many are drawn together."""

    def draw(self, seed, numbers, device="cpu"):
        return super().draw(seed + len(numbers), numbers, device)


BARS = Bars()
PAINTED = Painted()
SPILT = Spilt()
CROWDED = Crowded()
