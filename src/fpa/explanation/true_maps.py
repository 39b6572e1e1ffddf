"""Maps of the truth, and damaged ones: what an evaluation should prefer is then known.

`true:flat` is the truth of an image of a world: the effects of its cues and its background, each spread
evenly over its pixels; in `true:vg` they are spread like |VG|. `true:noise-0.5` and `true:vg/noise-0.5` are
the same on the rung 0.5 of the ladder `noise`: see `fpa.worlds.ladder`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fpa.engine import Work
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import Task
from fpa.errors import InputError, unknown
from fpa.explanation.facts import Reduction
from fpa.explanation.paper import VanillaGradient
from fpa.explanation.raw_maps import RawMap, gradient_maps, register
from fpa.worlds.effects import Effects, part_effects, true_effects
from fpa.worlds.ladder import LADDERS, RUNGS, KnownTruth, Rung, check_rung, ladder_maps, other_numbers
from fpa.worlds.scenes import Scenes

EFFECTS_ON = ("centred", "log_odds")
"""What effects are of, in the order of their last dimension."""

Spread = Literal["flat", "vg"]

NAMES = (
    "true:flat",
    *(f"true:{rung.name}" for rung in RUNGS),
    "true:vg",
    *(f"true:vg/{rung.name}" for rung in RUNGS),
)
"""All of them by name, those of the usual sizes of damage."""


def scenes_of(task: Task) -> Scenes:
    """The scenes that the images of a task are of, once they have been made again."""
    return task.once("scenes", lambda: _made_again(task))


def effects_of(task: Task) -> Effects:
    """The true effects of cues and background on the model of a task, for the classes explained."""
    return task.once("effects", lambda: _all_effects(task))


def centred_effects_of(task: Task) -> Tensor:
    """Those on the centred logit, [N, cues + 1], the background's last."""
    return effects_of(task).shapley[..., EFFECTS_ON.index("centred")]


def regions_of(task: Task) -> Tensor:
    """The cue that each pixel belongs to, int16 [N, H, W]; -1 for the background's."""
    masks = scenes_of(task).masks()
    cue = masks.to(torch.uint8).argmax(1).to(torch.int16)
    return torch.where(masks.any(1), cue, -1)


def part_effects_of(task: Task) -> Tensor:
    """Those of the parts of each cue while all else stays, [N, cues, parts, O]."""
    return task.once("effects of parts", lambda: part_effects(scenes_of(task), _passes(task)))


@register
@dataclass(frozen=True)
class TrueMap(RawMap):
    """The true effects of cues and background as a map, undamaged or on a rung of a ladder."""

    ladder: str | None = None
    """The kind of damage; None: there is none."""
    size: float = 0.0
    """How large it is."""
    spread: Spread = "flat"
    """How an effect is divided among the pixels of its region: evenly, or in proportion to |VG|."""

    family = "true"
    baseline = True
    knows_truth = True
    needs_numbers = True

    @property
    def rung(self) -> Rung | None:
        """Kind and size of the damage; None where there is none."""
        return None if self.ladder is None else Rung(self.ladder, self.size)

    @property
    def nonnegative(self) -> bool:
        """Whether the sign is lost."""
        return self.rung is not None and not self.rung.signed

    @property
    def label(self) -> str:  # noqa: D102
        like = " like |VG|" if self.spread == "vg" else ""
        damage = "" if self.ladder is None else f", {self.ladder.replace('_', ' ')} {self.size:g}"
        return f"truth{like}{damage}"

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """The map named `true:flat`, `true:vg`, `true:LADDER-SIZE` or `true:vg/LADDER-SIZE`."""
        if argument in ("flat", "vg"):
            return cls(spread="vg" if argument == "vg" else "flat"), None
        spread: Spread = "vg" if argument.startswith("vg/") else "flat"
        damage = argument.removeprefix("vg/")
        for rung in RUNGS:
            if damage == rung.name:
                return cls(rung.ladder, rung.size, spread), None
        ladder, _, size = damage.rpartition("-")
        try:
            named = Rung(_known_ladder(ladder), float(size))
        except ValueError as error:
            known = ["flat", "vg", *(f"{name}-{sizes[0]:g}" for name, sizes in LADDERS.items())]
            raise unknown("map of the truth", argument, known) from error
        check_rung(named)
        return cls(named.ladder, named.size, spread), None

    def described(self) -> dict[str, Any]:
        """With what can be known of its sign without the map."""
        return {**super().described(), "signed": not self.nonnegative}

    def raw_map(self, name: str, task: Task) -> Tensor:  # noqa: D102
        known = _known_truth(task, self.spread)
        rung = self.rung
        if rung is None:
            maps = known.spread(known.effects)
        else:
            other = _known_truth(_other_task(task), self.spread) if rung.ladder == "another" else None
            maps = ladder_maps(rung, known, another=other, seed=task.seed)
        return maps.to(task.images.dtype)[:, None]


def _known_ladder(ladder: str) -> str:
    if ladder not in LADDERS:
        raise ValueError(ladder)
    return ladder


def _made_again(task: Task) -> Scenes:
    if task.maker is None:
        raise InputError("the truth is known only of images that a world made: see fpa.worlds")
    world = task.maker.world
    scenes: Scenes = world.test_scenes(task.indices, task.images.device)
    again = task.maker.normalised(scenes.render()).to(task.images)
    # Normalised images of one device and another differ by roundings; other images do by far more.
    other = (again - task.images).abs().flatten(1).amax(1) > 1e-3
    if other.any():
        number = task.indices[int(other.nonzero()[0])]
        name = type(world).__name__
        raise InputError(f"the world {name} does not make image {number} again as it is: has it changed?")
    return scenes


def _all_effects(task: Task) -> Effects:
    scenes = scenes_of(task)
    assert task.maker is not None
    return true_effects(scenes, _passes(task), redraws=task.maker.world.redraws)


def _passes(task: Task) -> Callable[[Tensor, Callable[[int, int], Tensor]], Tensor]:
    """Runs images of scenes through the model of the task, for `fpa.worlds.effects`.

    What comes back are outputs of the class explained, float64 [M, 2], in the order of `EFFECTS_ON`.
    """
    assert task.maker is not None
    normalised = task.maker.normalised

    def run(scene: Tensor, rows: Callable[[int, int], Tensor]) -> Tensor:
        shape = (len(scene), len(EFFECTS_ON))
        values = torch.empty(shape, dtype=torch.float64, device=task.images.device)

        def images(start: int, stop: int) -> Tensor:
            return task.engine.images(normalised(rows(start, stop)))

        def take(start: int, stop: int, logits: Tensor) -> None:
            targets = task.targets[scene[start:stop]]
            for place, output in enumerate(EFFECTS_ON):
                values[start:stop, place] = OUTPUTS[output](logits, targets, targets)

        task.engine.logits([Work(len(scene), images, take, name=lambda start: "truth")])
        return values

    return run


def _known_truth(task: Task, spread: Spread) -> KnownTruth:
    def known() -> KnownTruth:
        effects = centred_effects_of(task)
        return KnownTruth(scenes_of(task), effects, _gradient_sizes(task) if spread == "vg" else None)

    return task.once(f"truth, {spread}", known)


def _gradient_sizes(task: Task) -> Tensor:
    """|VG| of the images, [N, H, W]."""
    family = VanillaGradient()
    return task.once("|VG|", lambda: gradient_maps(task, [family])[family].abs().sum(1))


def _other_task(task: Task) -> Task:
    """The same of other images of the world, one for each: for the classes predicted there."""
    return task.once("other images", lambda: _of_other_images(task))


def _of_other_images(task: Task) -> Task:
    assert task.maker is not None
    world: Any = task.maker.world
    numbers = other_numbers(task.seed, task.indices, world.test_images)
    scenes: Scenes = world.test_scenes(numbers, task.images.device)
    images = task.engine.images(task.maker.normalised(scenes.render()))
    return replace(task, images=images, targets=task.engine.predict(images).argmax(1), indices=numbers)
