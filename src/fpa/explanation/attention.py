"""Attention as an explanation of vision transformers: rollout, and relevance weighted by gradients."""

import weakref
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fpa.engine import Engine, same_logits
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import Task
from fpa.errors import InputError, unknown
from fpa.explanation.facts import Reduction
from fpa.explanation.raw_maps import RawMap, in_parts, register
from fpa.models.attention import Attentions, Pass, attentions_of, make_readable, relevance, rollout
from fpa.models.tokens import TokenGrid

METHODS = {"rollout": "Attention rollout", "relevance": "Attention relevance"}
"""By name, the name for people."""


@register
@dataclass(frozen=True)
class Attention(RawMap):
    r"""How much the output of a vision transformer looks at every patch, through all layers.

    `rollout`: $\prod_l \tfrac12 (\bar A_l + I)$, with the attention $\bar A_l$ of layer l averaged over its
    heads (Abnar and Zuidema, 2020). It is the same for every class.
    `relevance`: $R \leftarrow R + \mathrm{mean}_h (\nabla A \odot A)^+ R$, layer by layer from $R = I$ on,
    with the gradient of the explained output (Chefer, Gur and Wolf, 2021).

    The map is the row of the class token, or the mean row where the network reads the mean of its patches;
    all pixels of a patch have its value.
    """

    method: str = "relevance"
    family = "attention"
    nonnegative = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("attention", self.method, METHODS)

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """`attention:METHOD`."""
        return cls(argument.lower()), None

    @property
    def label(self) -> str:
        """The method."""
        return METHODS[self.method]

    def check_model(self, name: str, engine: Engine, images: Tensor) -> None:
        """Refuse a network whose attentions, or whose patches, are unknown."""
        _readable(engine, images)
        engine.token_grid(images)

    def raw_map(self, name: str, task: Task) -> Tensor:
        """[N, 1, H, W], from one pass on a copy of the model; relevance takes its gradient too."""
        readable = _readable(task.engine, task.images)
        grid = task.engine.token_grid(task.images)

        def run(rows: Tensor, at: slice) -> Tensor:
            with torch.set_grad_enabled(self.method == "relevance"):
                read = readable(rows.requires_grad_(self.method == "relevance"))
                if self.method == "rollout":
                    total = rollout(read.layers)
                else:
                    targets = task.targets[at]
                    outputs = OUTPUTS[task.output](read.logits.float(), targets, targets)
                    gradients = torch.autograd.grad(outputs.sum(), read.layers)
                    total = relevance(read.layers, list(gradients))
            return _on_image(total, read, grid)

        return in_parts(task, name, run, memory_factor=4)


class _Readable:
    """A copy of a model whose attentions can be read."""

    def __init__(self, model: nn.Module, run: Pass) -> None:
        self.model = model
        self.run = run

    def __call__(self, images: Tensor) -> Attentions:
        return attentions_of(self.model, self.run, images)


_READABLE: "weakref.WeakKeyDictionary[Engine, _Readable]" = weakref.WeakKeyDictionary()


def _readable(engine: Engine, images: Tensor) -> _Readable:
    """The copy of an engine's model; it is checked to give the same logits."""
    if engine not in _READABLE:
        model = engine.copy()
        readable = _Readable(model, make_readable(model))
        expected = engine.predict(images[:1])
        with torch.no_grad():
            logits = readable(engine.images(images[:1]).to(engine.dtype)).logits
        # Wide enough for half precision and TF32: what is looked for is an attention that was misread.
        if not same_logits(logits.to(expected), expected, 1e-2):
            kind = type(engine.model).__name__
            raise InputError(f"the attentions of {kind} cannot be read: reading them changes what it says")
        _READABLE[engine] = readable
    return _READABLE[engine]


def _on_image(total: Tensor, read: Attentions, grid: TokenGrid) -> Tensor:
    """The row of what is read in the end, on the pixels of the patches, [N, T, T] -> [N, 1, H, W]."""
    extra = total.shape[-1] - grid.count  # the class token and its like, which come first
    row = total[:, extra:, extra:].mean(1) if read.averages or not extra else total[:, 0, extra:]
    on_grid = row.view(len(row), 1, grid.rows, grid.columns)
    return on_grid.repeat_interleave(grid.patch, 2).repeat_interleave(grid.patch, 3)
