"""What a score is: a number for every image and estimator, from one block of an evaluation.

A score is a class in a file of its own and one line in `SCORES`. It says what it needs, and the evaluation
supplies that; scores that only read the curves cost no passes.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fpa.engine.engine import Engine
from fpa.engine.tasks import Model, Task
from fpa.errors import InputError, unknown
from fpa.explanation.estimator import Estimator
from fpa.explanation.explainer import maps_of, raw_maps_of
from fpa.masking import Masking
from fpa.perturbation.curves import Curves, curves_of
from fpa.plugins import load_object
from fpa.values import as_json

Need = Literal["curves", "forwards", "raw maps", "explain", "masks", "labels", "world"]


class Passes(NamedTuple):
    """What a score costs for each image, besides the maps and the curves that are there."""

    forwards: int = 0
    explanations: int = 0
    """How often every estimator explains again."""
    gradients: int = 0
    """Of these explanations, without what functions and Captum's methods do themselves."""
    shared: Any = None
    """Says which passes these are, where several scores read the same ones; they are made once."""


@dataclass(frozen=True)
class Given:
    """What an evaluation has to offer its scores; known before any work."""

    estimators: Mapping[str, Estimator]
    fractions: Sequence[float]
    masking: Masking
    data: str = "the data"
    """What the images are called."""
    masks: bool = True
    """Whether the pixels of the objects are known."""
    labels: bool = True
    """Whether the true classes are known."""
    world: bool = False
    """Whether the images can be made again with cues left out."""
    augmentation: str = ""
    """What the model was trained with, in the words of its card."""


@dataclass(frozen=True)
class Block:
    """Some images on their way through an evaluation, and all that is known of them by then."""

    task: Task
    """The engine that judges, images [N, C, H, W], explained classes [N], their numbers, seed, masking."""
    labels: Tensor
    """[N]: true classes, -1 where unknown."""
    logits: Tensor
    """[N, classes] of the unmasked images."""
    estimators: Mapping[str, Estimator]
    maps: Mapping[str, Tensor]
    """[N, H, W] of every estimator."""
    curves: Mapping[str, Curves]
    """By output ("logit", ...): what the model said while pixels were removed."""
    masks: Tensor | None = None
    """[N, H, W], True on the pixels of the object, where they are known."""
    fractions: Sequence[float] = ()
    """[K]: of the features, as they were asked for; those of the curves are exact."""
    features: Any = "pixels"
    """What is removed together along the curves."""
    explained: Task | None = None
    """The same with the engine that is explained, where that is another one."""
    known_raw_maps: dict[str, Tensor] | None = None
    _shared: dict[Any, Any] = field(default_factory=dict, repr=False)

    def at(self, rows: Sequence[int]) -> "Block":
        """Some of its images, with all that is known of them."""

        def some(values: Any) -> Any:
            return values[torch.tensor(rows, dtype=torch.long, device=values.device)]

        def of_task(task: Task) -> Task:
            numbers = [task.indices[row] for row in rows]
            return replace(task, images=some(task.images), targets=some(task.targets), indices=numbers)

        raws = self.known_raw_maps
        return replace(
            self,
            task=of_task(self.task),
            labels=some(self.labels),
            logits=some(self.logits),
            maps={name: some(values) for name, values in self.maps.items()},
            curves={output: curves.at(rows) for output, curves in self.curves.items()},
            masks=None if self.masks is None else some(self.masks),
            features=self.features.at(rows) if hasattr(self.features, "at") else self.features,
            explained=None if self.explained is None else of_task(self.explained),
            known_raw_maps=None if raws is None else {name: some(raw) for name, raw in raws.items()},
            _shared={},  # what was made for all images does not fit some of them
        )

    def lent(self) -> "Block":
        """A copy for a score that is not fpa's own: it may change in place what the other scores read."""
        tasks = [task for task in (self.task, self.explained) if task is not None]
        kept = [
            self.estimators,
            self._shared,
            *(each for task in tasks for each in (task.engine, task.masking, task.maker, task._found)),
        ]
        return copy.deepcopy(self, {id(each): each for each in kept})

    @property
    def output(self) -> str:
        """The output that is scored: the first of the curves."""
        return next(iter(self.curves))

    @cached_property
    def truth(self) -> Tensor:
        """[N], where the images are: the true classes, those explained where they are unknown."""
        labels = self.labels.to(self.task.targets)
        return labels.where(labels >= 0, self.task.targets)

    @cached_property
    def raw_maps(self) -> dict[str, Tensor]:
        """[N, C, H, W] of every estimator, before the channels are reduced."""
        return self.known_raw_maps or raw_maps_of(self.explained or self.task, self.estimators)

    def shared(self, key: Any, make: Callable[[], Any]) -> Any:
        """What several scores need, made for the first of them."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def explain(self, images: Tensor | None = None, model: Model | None = None) -> dict[str, Tensor]:
        """Maps [N, H, W] of other images of the same shape, or by another model, for the same classes."""
        engine = (self.explained or self.task).engine if model is None else Engine.of(model)
        other = self.task.images if images is None else engine.images(images)
        return maps_of(replace(self.task, engine=engine, images=other), self.estimators)

    def curves_under(
        self, masking: Masking, fractions: Sequence[float], output: str, sides: Sequence[str] = ("mif", "lif")
    ) -> Curves:
        """The curves of an output along the same maps with another masking."""
        curves = curves_of(
            replace(self.task, masking=masking),
            self.maps,
            fractions,
            logits=self.logits,
            labels=self.truth,
            features=self.features,
            outputs=(output,),
            sides=sides,
        )
        return curves[output]

    def all_of(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values [N] of every estimator, NaN for those that have none."""
        nothing = self.logits.new_full((len(self.labels),), torch.nan)
        return {name: values.get(name, nothing) for name in self.estimators}


class Score(ABC):
    """A number an image for every estimator; subclasses say which."""

    name: ClassVar[str]
    """What it is called by in commands, files and tables."""
    title: ClassVar[str]
    """What it is, in a line."""
    source: ClassVar[str]
    """Where it was published."""
    higher_is_better: ClassVar[bool]
    unit_title: ClassVar[str] = ""
    """What `unit` is, for people; empty where there is none."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """What its curves must follow, besides what is followed anyway; it costs no passes."""
    needs: ClassVar[frozenset[Need]] = frozenset({"curves"})
    """What the evaluation must supply: curves, further forward passes (by the block's engine), raw maps, a
    way to explain other images or another model, known masks, true classes, the world of the images."""

    @property
    def masking(self) -> Any:
        """The masking of curves of its own, if it makes some under another than the plan's."""
        return None

    def named(self, name: str) -> Self:
        """The same score by another name, so that it can stand beside one of its kind."""
        score: Any = copy.copy(self)
        score.name = name
        return score  # type: ignore[no-any-return]

    @abstractmethod
    def __call__(self, block: Block) -> Mapping[str, Tensor]:
        """The values [N] of every estimator; NaN where there is none for an image."""

    def unit(self, block: Block) -> Tensor | None:
        """What the values are in, [N], where that differs between models: these compare means over its mean.

        It is asked for after the values; None where values of different models can be compared as they are.
        """
        return None

    def image_facts(self, block: Block) -> Mapping[str, Tensor]:
        """What it knows of the images besides the values, [N] by name; stored beside them, once an image.

        It is asked for after the values.
        """
        return {}

    def missing(self, given: Given) -> str | None:
        """Why it cannot be computed, as the end of a sentence that begins with its name; None if it can."""
        if "masks" in self.needs and not given.masks:
            return f"needs known masks of the objects: {given.data} has none"
        if "labels" in self.needs and not given.labels:
            return f"needs the true classes of the images: {given.data} has none"
        if "world" in self.needs and not given.world:
            return f"needs images that can be made again with cues left out: {given.data} is no world"
        return None

    def only_by_name(self, given: Given) -> str | None:
        """Why `all` leaves it out although it can be computed, likewise."""
        return "explains again, so it is computed only when it is named" if "explain" in self.needs else None

    def passes(self, given: Given) -> Passes:
        """What it costs for each image."""
        return Passes()

    def described(self) -> dict[str, Any]:
        """What tables and reports say about it; read back without the score."""
        facts = {name: getattr(self, name) for name in ("title", "source", "higher_is_better")}
        if self.unit_title:
            facts["unit"] = self.unit_title
        return facts | {key: as_json(value) for key, value in vars(self).items() if not key.startswith("_")}

    def settings_for(self, given: Given) -> dict[str, Any]:
        """What its values depend on besides its attributes where this is given; stored with the plan."""
        return {}


_REQUIRED = ("name", "title", "source", "higher_is_better")

SCORES: dict[str, Score] = {}
"""The scores by name."""

ALIASES = {"srg": "A", "abpc": "A", "aopc_morf": "aopc"}
"""Other names that are in use for some of them."""

ALL = "all"
"""Stands for all scores that can be computed without explaining again."""


def register(score: Score) -> Score:
    """Make a score known by its name; a class decorator would hide its settings, so it takes an object."""
    SCORES[score.name] = score
    return score


def get_scores(scores: "str | Score | Iterable[str | Score]" = ("A",)) -> tuple[Score, ...]:
    """Scores by name, `all` of them, `module:NAME` for one's own, or themselves; each once.

    Two of one kind with different settings need two names, see `Score.named`.

    >>> [score.name for score in get_scores(["srg", "deletion"])]
    ['A', 'deletion']
    """
    import fpa.scores as room

    room.SCORES  # noqa: B018 (all scores that come with fpa are known from here on)
    chosen: dict[str, Score] = {}
    asked: dict[
        str, Score
    ] = {}  # without those that `all` stands for, of which one may be given in its place
    for entry in [scores] if isinstance(scores, (str, Score)) else scores:
        if isinstance(entry, str) and entry == ALL:
            chosen = SCORES | chosen
            continue
        name = ALIASES.get(entry, entry) if isinstance(entry, str) else entry
        score: Any = SCORES.get(name, name) if isinstance(name, str) else name
        if isinstance(score, str):
            if ":" not in score:
                raise unknown("score", score, [*SCORES, *ALIASES, ALL, "module:NAME"])
            score = load_object(score, "score")
            score = score() if isinstance(score, type) else score
        if not isinstance(score, Score):
            raise InputError(f"a score must be a name or an fpa.scores.Score, got {type(score).__name__}")
        if missing := [name for name in _REQUIRED if not hasattr(score, name)]:
            raise InputError(f"the score {type(score).__name__} does not define its {', '.join(missing)}")
        _check_name(score, asked.setdefault(score.name, score))
        chosen[score.name] = score
    if not chosen:
        raise InputError("no scores were given")
    return tuple(chosen.values())


def _check_name(score: Score, other: Score) -> None:
    """Refuse two different scores of one name: the numbers of one would take the place of the other's."""
    if type(score) is type(other) and score.described() == other.described():
        return
    kinds = " and ".join(dict.fromkeys(type(each).__name__ for each in (other, score)))
    remedy = f"give one another name: {type(score).__name__}(...).named('{score.name} 2')"
    raise InputError(f"two different scores are called {score.name} ({kinds}): {remedy}")
