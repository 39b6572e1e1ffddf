"""What a score is: a number for every image and estimator, from one block of an evaluation.

A score is a class in a file of its own and one line in `SCORES`. It says what it needs, and the evaluation
supplies that; scores that only read the curves cost no passes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fpa.described import described
from fpa.errors import InputError, unknown
from fpa.files import load_object

if TYPE_CHECKING:
    from torch import Tensor

    from fpa.explanation.estimator import Estimator
    from fpa.explanation.raw import Model, Task
    from fpa.perturbation.curves import Curves

Need = Literal["curves", "forwards", "raw maps", "explain", "masks"]


@dataclass(frozen=True)
class Block:
    """Some images on their way through an evaluation, and all that is known of them by then."""

    task: "Task"
    """The engine that judges, images [N, C, H, W], explained classes [N], their numbers, seed, masking."""
    labels: "Tensor"
    """[N]: true classes, -1 where unknown."""
    logits: "Tensor"
    """[N, classes] of the unmasked images."""
    estimators: "Mapping[str, Estimator]"
    maps: "Mapping[str, Tensor]"
    """[N, H, W] of every estimator."""
    curves: "Mapping[str, Curves]"
    """By output ("logit", ...): what the model said while pixels were removed."""
    masks: "Tensor | None" = None
    """[N, H, W], True on the pixels of the object, where they are known."""
    explained: "Task | None" = None
    """The same with the engine that is explained, where that is another one."""

    @cached_property
    def raw_maps(self) -> "dict[str, Tensor]":
        """[N, C, H, W] of every estimator, before the channels are reduced; explained again for it."""
        from fpa.explanation.explainer import raw_maps_of

        return raw_maps_of(self.explained or self.task, self.estimators)

    def explain(self, images: "Tensor | None" = None, model: "Model | None" = None) -> "dict[str, Tensor]":
        """Maps [N, H, W] of other images of the same shape, or by another model, for the same classes."""
        from fpa.engine.engine import Engine
        from fpa.explanation.explainer import maps_of

        engine = (self.explained or self.task).engine if model is None else Engine.of(model)
        other = self.task.images if images is None else engine.images(images)
        return maps_of(replace(self.task, engine=engine, images=other), self.estimators)


class Score(ABC):
    """A number an image for every estimator; subclasses say which."""

    name: ClassVar[str]
    """What it is called by in commands, files and tables."""
    title: ClassVar[str]
    """What it is, in a line."""
    source: ClassVar[str]
    """Where it was published."""
    higher_is_better: ClassVar[bool]
    needs: ClassVar[frozenset[Need]] = frozenset({"curves"})
    """What the evaluation must supply: curves, further forward passes (by the block's engine), raw maps, a
    way to explain other images or another model, known masks."""

    @abstractmethod
    def __call__(self, block: Block) -> "Mapping[str, Tensor]":
        """The values [N] of every estimator; NaN where there is none for an image."""

    def check(self, estimators: "Mapping[str, Estimator]") -> None:  # noqa: B027
        """Refuse, before any work, estimators that cannot be scored."""

    def described(self) -> dict[str, Any]:
        """What tables and reports say about it; read back without the score."""
        facts = {name: getattr(self, name) for name in ("title", "source", "higher_is_better")}
        return facts | {key: described(value) for key, value in vars(self).items() if not key.startswith("_")}


_SAYS = ("name", "title", "source", "higher_is_better")

SCORES: dict[str, Score] = {}
"""The scores by name."""


def register(score: Score) -> Score:
    """Make a score known by its name; a class decorator would hide its settings, so it takes an object."""
    SCORES[score.name] = score
    return score


def get_scores(scores: "str | Score | Iterable[str | Score]" = ("A",)) -> tuple[Score, ...]:
    """Scores by name, `module:NAME` for one's own, or themselves; each once.

    >>> [score.name for score in get_scores("A")]
    ['A']
    """
    chosen: dict[str, Score] = {}
    for entry in [scores] if isinstance(scores, (str, Score)) else scores:
        score: Any = SCORES.get(entry, entry) if isinstance(entry, str) else entry
        if isinstance(score, str):
            if ":" not in score:
                raise unknown("score", score, [*SCORES, "module:NAME"])
            score = load_object(score, "score")
            score = score() if isinstance(score, type) else score
        if not isinstance(score, Score):
            raise InputError(f"a score must be a name or an fpa.scores.Score, got {type(score).__name__}")
        if missing := [name for name in _SAYS if not hasattr(score, name)]:
            raise InputError(f"the score {type(score).__name__} does not define its {', '.join(missing)}")
        chosen[score.name] = score
    if not chosen:
        raise InputError("no scores were given")
    return tuple(chosen.values())
