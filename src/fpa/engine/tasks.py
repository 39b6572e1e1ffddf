"""The task of explaining or perturbing images: all that the results depend on, in one place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from fpa.data.blocks import Maker
from fpa.engine.engine import Engine
from fpa.engine.outputs import explained_output
from fpa.errors import InputError, at_least
from fpa.masking import Masking, MaskingLike, get_masking
from fpa.models.hubs import Opened
from fpa.notes import Kind, Note, Plain, Severity

Model = nn.Module | Engine | Opened
"""A classifier, or what `open_model` returned; an engine has it ready for many passes."""

T = TypeVar("T")

Targets = Tensor | Sequence[int] | int | None
"""The classes to explain: [N], one for all images, or those predicted."""


@dataclass(frozen=True)
class Task:
    """All that a map or a curve may depend on besides its own settings."""

    engine: Engine
    images: Tensor
    """[N, C, H, W], on the engine's device."""
    targets: Tensor
    """[N], on the engine's device: the classes explained."""
    indices: Sequence[int]
    """[N]: the numbers of the images in their data set."""
    seed: int
    masking: Masking
    output: str = "logit"
    """What the maps explain, a name in `OUTPUTS`."""
    maker: Maker | None = None
    """What made the images, where a world did."""
    # Not passed on by `replace`: what was found for these images may be wrong for others.
    _found: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def once(self, key: str, find: Callable[[], T]) -> T:
        """What several maps or scores of these images need, found for the first of them."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]  # type: ignore[no-any-return]


def make_task(
    model: Model,
    images: Tensor,
    targets: Targets = None,
    *,
    masking: MaskingLike | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    output: str = "logit",
) -> tuple[Task, Tensor]:
    """The task of arguments that a user gave, and the logits [N, classes] of the images."""
    engine = Engine.of(model, images)
    output = explained_output(output, ())
    images = engine.images(images)
    # Everything is checked before the first pass.
    at_least("seed", seed, 0)
    numbers = check_indices(indices, len(images))
    removal = get_masking(masking)
    logits = engine.predict(images)
    classes = engine.explained_classes(logits, targets)
    return Task(engine, images, classes, numbers, seed=seed, masking=removal, output=output), logits


def check_indices(indices: Sequence[int] | Tensor | None, count: int) -> list[int]:
    """The numbers of the images in their data set: those given, or 0, 1, ..."""
    numbers = list(range(count)) if indices is None else [int(index) for index in indices]
    if len(numbers) != count:
        raise InputError(f"there are {count} images but {len(numbers)} indices")
    return numbers


def problems(not_finite: Mapping[tuple[str, str], Tensor], indices: Sequence[int]) -> list[Note]:
    """What is not finite, bool [N] by (what, estimator): how many of what, and the first of the images.

    >>> import torch
    >>> (found,) = problems({("map", "vg_sum"): torch.tensor([True, False, True])}, [3, 4, 5])
    >>> found.values
    {'what': 'map', 'estimator': 'vg_sum', 'count': 2, 'images': [3, 5]}
    """
    notes = []
    for (what, estimator), bad in not_finite.items():
        if rows := bad.nonzero().flatten().tolist():
            first = [int(indices[row]) for row in rows[:5]]
            values: dict[str, Plain] = {
                "what": what,
                "estimator": estimator,
                "count": len(rows),
                "images": first,
            }
            notes.append(Note(Kind.NOT_FINITE, Severity.WARNING, values))
    return notes
