"""Truth: does a map give the cues and the background of a scene what they really do?

Only for images of a world, which can be made again with cues left out: see `fpa.worlds`.
"""

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor

from fpa.engine.tasks import Task
from fpa.explanation.true_maps import EFFECTS_ON, effects_of, part_effects_of, scenes_of
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.worlds.effects import REDRAWS
from fpa.worlds.truth import truth, truth_of_parts

_SETTINGS = 12
"""Of the cues of a scene: their mean over scenes of `cues`, (3/2)^6, rounded up."""


class OfScenes(Score):
    """Base of the scores that hold maps against true effects."""

    source = "fpa"
    higher_is_better = True
    needs = frozenset({"world", "forwards"})

    @abstractmethod
    def value(self, task: Task, maps: Tensor) -> Tensor:
        """The values [N] of maps [N, H, W] of the images of a task."""

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        # Of the model that is explained, whoever judges.
        task = block.explained or block.task
        return {name: self.value(task, maps) for name, maps in block.maps.items()}


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

    def value(self, task: Task, maps: Tensor) -> Tensor:  # noqa: D102
        wanted = effects_of(task).shapley[..., EFFECTS_ON.index(self.output)]
        return truth(maps, scenes_of(task), wanted, background=self.background, signed=self.signed)

    def image_facts(self, block: Block) -> Mapping[str, Tensor]:
        """How many cues there are, how far a truth may be off, and what no sum of effects explains."""
        task = block.explained or block.task
        effects = effects_of(task)
        place = EFFECTS_ON.index(self.output)
        return {
            "cues": scenes_of(task).cues.sum(1),
            f"{self.output}_noise": effects.noise()[:, place],
            f"{self.output}_interaction": effects.interaction[:, place],
        }


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

    def value(self, task: Task, maps: Tensor) -> Tensor:  # noqa: D102
        effects = part_effects_of(task)[..., EFFECTS_ON.index("centred")]
        return truth_of_parts(maps, scenes_of(task), effects)


register(Truth())
register(TruthOfCues())
register(TruthOfSizes())
register(TruthOfLogOdds())
register(TruthOfParts())
