"""What a world is: a data set whose images can be made again with any of their cues left out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fpa.data.splits import ArraySplit, DataRequest, ImageData, array_data, fixed_choice
from fpa.errors import InputError
from fpa.seeds import derive
from fpa.worlds.effects import REDRAWS
from fpa.worlds.scenes import Scenes

TRAIN = 0
TEST = 1
"""The two splits, as keys of their seeds."""

_AT_ONCE = 128
"""Scenes that are drawn at a time for a data set: working arrays stay small."""

_TRIED = 16
"""Scenes with which a world is checked, if it has as many."""


class World(ABC):
    """Draws scenes; as a function of a `DataRequest` it is a data set like any other.

    A world of your own says which `classes` there are and how to `draw`; its name as a data set is
    `module:NAME` of an object of it.
    """

    classes: Sequence[str]
    seed: int = 0
    """Of all scenes of the data set."""
    train_images: int = 4000
    test_images: int = 1000
    flip: bool = False
    """Whether a mirrored scene is one of this world, so that training may mirror them."""
    redraws: int = REDRAWS
    """Backgrounds that stand for an absent one where true effects are measured; an even number."""
    judged_cues: tuple[int, int] | None = None
    """At least and at most so many cues have the test scenes to evaluate on; None: any number. With fewer
    than three, maps have no truth, and each further one doubles what a truth costs."""

    @abstractmethod
    def draw(self, seed: int, numbers: Sequence[int], device: torch.device | str = "cpu") -> Scenes:
        """The scenes of these numbers; each depends on the seed and its number alone, not on the others."""

    def asked(self, request: DataRequest) -> "World":
        """The world as it was asked for, say with images of that size."""
        return self

    def test_scenes(self, numbers: Sequence[int], device: torch.device | str = "cpu") -> Scenes:
        """The scenes of test images of the data set."""
        return self.draw(derive(self.seed, TEST), numbers, device)

    def __call__(self, request: DataRequest) -> ImageData:
        """The data set, once the world has been checked."""
        world = self.asked(request)
        # Before the images are drawn: a truth from a world that is wrong would look like any other.
        check_world(world)
        train = world._split(TRAIN, world.train_images)
        test = world._split(TEST, world.test_images)
        # Which images are evaluated is chosen here, among those with the right number of cues.
        every = replace(request, evaluation_images=None)
        data = array_data(every, train, test, world.classes, flip=world.flip)
        return replace(data, world=world, evaluation=world._judged(request))

    def _judged(self, request: DataRequest) -> Tensor:
        """The numbers [M] of the test scenes to evaluate on, of those with the right number of cues."""
        if self.judged_cues is None:
            return request.subset(self.test_images)
        least, most = self.judged_cues
        starts = range(0, self.test_images, _AT_ONCE)
        parts = [range(start, min(start + _AT_ONCE, self.test_images)) for start in starts]
        cues = torch.cat([self.test_scenes(numbers).cues.sum(1) for numbers in parts])
        enough = ((cues >= least) & (cues <= most)).nonzero()[:, 0]
        wanted = len(enough) if request.evaluation_images is None else request.evaluation_images
        if not 1 <= wanted <= len(enough):
            raise InputError(
                f"the number of evaluation images must be in 1..{len(enough)}, the test scenes of "
                f"{request.name} with {least} to {most} cues; got {wanted}"
            )
        return enough[fixed_choice(enough.tolist(), wanted)]

    def _split(self, key: int, count: int) -> ArraySplit:
        seed = derive(self.seed, key)
        starts = range(0, count, _AT_ONCE)
        parts = [self.draw(seed, range(start, min(start + _AT_ONCE, count))) for start in starts]
        return ArraySplit(
            torch.cat([scenes.render() for scenes in parts]), torch.cat([scenes.labels for scenes in parts])
        )


def check_world(world: World) -> None:
    """Refuse a world whose scenes vary with the batch, or whose cues cannot be left out."""
    scenes = world.test_scenes(range(min(_TRIED, world.test_images)))
    whole = scenes.render()
    for problem in _problems(world, scenes, whole):
        raise InputError(f"the world {type(world).__name__} {problem}")


def _problems(world: World, scenes: Scenes, whole: Tensor) -> Iterator[str]:
    count, cues = scenes.present.shape[:2]
    asked = len(scenes.numbers)
    if world.redraws < 2 or world.redraws % 2:
        yield f"must have an even number of redraws, as halves of them are compared, got {world.redraws}"
    if whole.dtype != torch.uint8 or whole.ndim != 4 or not len(whole) == count == asked:
        yield f"must render uint8 images [{asked}, C, H, W], got {whole.dtype} {list(whole.shape)}"
    # The last one: whatever is drawn in a row from one generator, the first one would get right.
    alone = world.test_scenes(scenes.numbers[-1:])
    if not (alone.render().equal(whole[-1:]) and alone.labels.equal(scenes.labels[-1:])):
        yield f"draws scene {scenes.numbers[-1]} alone otherwise than together with others"
    masks = scenes.masks()
    for cue in range(cues):
        there = scenes.cues[:, cue]
        left_out = torch.zeros_like(scenes.cues)
        left_out[:, cue] = True
        changed = (scenes.render(scenes.without(left_out)) != whole).any(1)
        # A cue that makes no difference has effect 0 on every model, and one that changes pixels elsewhere
        # has effects that no sum over its region can show.
        unseen = there & ~changed.flatten(1).any(1)
        if unseen.any():
            number = scenes.numbers[int(unseen.nonzero()[0])]
            yield f"cannot leave out cue {cue} of scene {number}: the image stays as it is"
        outside = (changed & ~masks[:, cue]).flatten(1).any(1)
        if outside.any():
            number = scenes.numbers[int(outside.nonzero()[0])]
            yield f"changes pixels outside the mask of cue {cue} of scene {number} when it is left out"
