"""Truth: does a map give the cues and the background of a scene what they really do?

Only for images of a world, which can be made again with cues left out: see `fpa.worlds`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fpa.engine import Work
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import Task
from fpa.errors import InputError
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.worlds.effects import REDRAWS, part_effects, true_effects
from fpa.worlds.scenes import Scenes
from fpa.worlds.truth import truth, truth_of_parts

_SETTINGS = 12
"""Of the cues of a scene: their mean over scenes of `cues`, (3/2)^6, rounded up."""
_OUTPUTS = ("centred", "log_odds")
"""What effects are of, in the order of their last dimension."""


def scenes_of(block: Block) -> Scenes:
    """The scenes that the images of a block are of, once they have been made again."""
    assert block.maker is not None
    task = block.task
    scenes: Scenes = block.maker.world.test_scenes(task.indices, task.images.device)
    again = block.maker.normalised(scenes.render()).to(task.images)
    # Normalised images of one device and another differ by roundings; other images do by far more.
    other = (again - task.images).abs().flatten(1).amax(1) > 1e-3
    if other.any():
        number = task.indices[int(other.nonzero()[0])]
        world = type(block.maker.world).__name__
        raise InputError(f"the world {world} does not make image {number} again as it is: has it changed?")
    return scenes


def passes_through(block: Block, name: str) -> Callable[[Tensor, Callable[[int, int], Tensor]], Tensor]:
    """Runs images of scenes through the model that is explained, for `fpa.worlds.effects`.

    What comes back are outputs of the class explained, float64 [M, 2], in the order of `_OUTPUTS`.
    """
    assert block.maker is not None
    normalised = block.maker.normalised
    task: Task = block.explained or block.task
    labels = block.truth

    def run(scene: Tensor, rows: Callable[[int, int], Tensor]) -> Tensor:
        shape = (len(scene), len(_OUTPUTS))
        values = torch.empty(shape, dtype=torch.float64, device=task.images.device)

        def images(start: int, stop: int) -> Tensor:
            return task.engine.images(normalised(rows(start, stop)))

        def take(start: int, stop: int, logits: Tensor) -> None:
            which = scene[start:stop]
            for place, output in enumerate(_OUTPUTS):
                values[start:stop, place] = OUTPUTS[output](logits, task.targets[which], labels[which])

        task.engine.logits([Work(len(scene), images, take, name=lambda start: name)])
        return values

    return run


class OfScenes(Score):
    """Base of the scores that hold maps against true effects."""

    source = "fpa"
    higher_is_better = True
    needs = frozenset({"world", "forwards"})

    @abstractmethod
    def value(self, block: Block, maps: Tensor, scenes: Scenes) -> Tensor:
        """The values [N] of maps [N, H, W]."""

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        scenes: Scenes = block.shared("scenes", lambda: scenes_of(block))
        return {name: self.value(block, maps, scenes) for name, maps in block.maps.items()}


class Truth(OfScenes):
    r"""$\cos(\sum_R a, \phi_R)$ over the regions $R$ of a scene: its cues, and the background.

    $\phi$ are the signed Shapley effects of cues and background on the centred logit of the class explained,
    of the model that is explained. An image has no value if it has fewer than three cues, or if the map's
    sums or the effects are all 0.
    """

    name = "truth"
    title = "cosine of the map's sums over cues and background with their true effects"
    background = True
    signed = True
    output = "centred"

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=_SETTINGS * (1 + REDRAWS), shared="effects")

    def value(self, block: Block, maps: Tensor, scenes: Scenes) -> Tensor:  # noqa: D102
        effects = block.shared("effects", lambda: true_effects(scenes, passes_through(block, self.name)))
        wanted = effects.shapley[..., _OUTPUTS.index(self.output)]
        return truth(maps, scenes, wanted, background=self.background, signed=self.signed)


class TruthOfCues(Truth):
    """The same over the cues alone: a complete map rightly gives the background what it adds to the fill."""

    name = "truth_cues"
    title = "cosine of the map's sums over the cues with their true effects"
    background = False


class TruthOfSizes(Truth):
    """The same with the sizes of the effects, whatever their signs: what an unsigned map can give."""

    name = "truth_unsigned"
    title = "cosine of the map's sums over cues and background with the sizes of their true effects"
    signed = False


class TruthOfLogOdds(Truth):
    """The same with the effects on the log-odds of the class: what changes its probability."""

    name = "truth_log_odds"
    title = "cosine of the map's sums over cues and background with their true effects on the log-odds"
    output = "log_odds"


class TruthOfParts(OfScenes):
    """Inside of cues: their parts against the parts' effects while all else stays; the mean over cues."""

    name = "truth_parts"
    title = "cosine of the map's sums over the parts of a cue with their true effects"

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=2 * _SETTINGS, shared="effects of parts")

    def value(self, block: Block, maps: Tensor, scenes: Scenes) -> Tensor:  # noqa: D102
        effects = block.shared("parts", lambda: part_effects(scenes, passes_through(block, self.name)))
        return truth_of_parts(maps, scenes, effects[..., 0])


register(Truth())
register(TruthOfCues())
register(TruthOfSizes())
register(TruthOfLogOdds())
register(TruthOfParts())
