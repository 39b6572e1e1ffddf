"""The attentions of vision transformers: a copy of the network that can be read, and one pass of it.

A network of one's own needs a method `attentions(images) -> (logits, [attention of each layer])`, each
[N, heads, T, T] as it was multiplied with the values, the class token first where there is one; and those
that `fpa.models.tokens` asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import VisionTransformer

from fpa.errors import InputError
from fpa.models.wrap import Logits


@dataclass(frozen=True)
class Attentions:
    """What a pass says, and how its tokens attended to each other."""

    logits: Tensor
    """[N, classes]."""
    layers: list[Tensor]
    """[N, heads, T, T] by layer: a row for each token that looks, a column for each that it looks at."""
    averages: bool
    """Whether the mean over the patches is read in the end, and not the class token."""


class ReadableAttention(nn.Module):
    """torch's `MultiheadAttention` of a sequence to itself, written out: the attention can be read."""

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        self.original = original
        self.attention: Tensor | None = None

    def forward(self, query: Tensor, *others: Any, **how: Any) -> tuple[Tensor, None]:
        """As the original is called by a vision transformer."""
        weights = self.original
        rows, tokens, width = query.shape
        packed = functional.linear(query, weights.in_proj_weight, weights.in_proj_bias)
        split = packed.view(rows, tokens, 3, weights.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = split.unbind(0)
        scale = queries.shape[-1] ** -0.5
        self.attention = (scale * queries @ keys.transpose(-2, -1)).softmax(-1)
        seen = (self.attention @ values).transpose(1, 2).reshape(rows, tokens, width)
        return weights.out_proj(seen), None


Pass = Callable[[Any, Tensor], Attentions]


def make_readable(model: nn.Module) -> Pass:
    """Change a private copy of a model so that its attentions can be read; returns one pass of it.

    Refused is a network whose attentions fpa does not know how to read.
    """
    network: Any = model.model if isinstance(model, Logits) else model
    if callable(getattr(network, "attentions", None)):
        return _pass_of_own
    if isinstance(network, VisionTransformer):
        for block in network.encoder.layers:
            block.self_attention = ReadableAttention(block.self_attention)
        return _pass_of_torchvision
    module = type(network).__module__
    if hasattr(network, "blocks") and all(_is_timms(block) for block in network.blocks):
        for block in network.blocks:
            block.attn.fused_attn = False  # the fused one never forms what is to be read
        return _pass_of_timm
    if module.startswith("transformers.models.") and hasattr(network, "set_attn_implementation"):
        network.set_attn_implementation("eager")
        return _pass_of_hugging_face
    known = "plain ViT and DeiT of timm, torchvision and Hugging Face"
    own = "a network of your own needs the method attentions"
    raise InputError(
        f"the attentions of {type(network).__name__} cannot be read: fpa knows how for {known}; {own}"
    )


def _is_timms(block: Any) -> bool:
    attention = getattr(block, "attn", None)
    return hasattr(attention, "fused_attn") and isinstance(getattr(attention, "attn_drop", None), nn.Module)


def attentions_of(model: nn.Module, run: Pass, images: Tensor) -> Attentions:
    """One pass of a model that `make_readable` has changed."""
    if not isinstance(model, Logits):
        return run(model, images)
    read = run(model.model, images)
    return Attentions(model.alone(read.logits), read.layers, read.averages)


def _pass_of_own(network: Any, images: Tensor) -> Attentions:
    logits, layers = network.attentions(images)
    return Attentions(logits, list(layers), averages=False)


def _pass_of_torchvision(network: Any, images: Tensor) -> Attentions:
    logits = network(images)
    return Attentions(logits, [block.self_attention.attention for block in network.encoder.layers], False)


def _pass_of_timm(network: Any, images: Tensor) -> Attentions:
    layers: list[Tensor] = []
    # What goes through the dropout is the attention itself, on its way to the values.
    hooks = [
        block.attn.attn_drop.register_forward_hook(lambda _, __, output: layers.append(output))
        for block in network.blocks
    ]
    try:
        logits = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    if network.global_pool not in ("token", "avg"):
        problem = f"it reads its tokens by the pooling {network.global_pool}, not by a class token or a mean"
        raise InputError(f"the attentions of {type(network).__name__} do not tell what it read: {problem}")
    return Attentions(logits, layers, averages=network.global_pool == "avg")


def _pass_of_hugging_face(network: Any, images: Tensor) -> Attentions:
    said = network(images, output_attentions=True)
    if not said.attentions or any(layer is None for layer in said.attentions):
        raise InputError(f"{type(network).__name__} of Hugging Face returns no attentions")
    return Attentions(said.logits, list(said.attentions), averages=False)


def rollout(layers: list[Tensor]) -> Tensor:
    r"""$\prod_l \tfrac12 (\bar A_l + I)$, the mean over heads of each layer, [N, T, T] (Abnar, Zuidema 2020).

    >>> even = torch.full((1, 2, 2, 2), 0.5)
    >>> rollout([even, even])[0].tolist()
    [[0.625, 0.375], [0.375, 0.625]]
    """
    total = torch.eye(layers[0].shape[-1], device=layers[0].device).expand(len(layers[0]), -1, -1)
    for attention in layers:
        # Half of what a token holds comes past the attention, through the skip connection.
        mixed = (attention.detach().float().mean(1) + torch.eye(total.shape[-1], device=total.device)) / 2
        total = mixed @ total
    return total


def relevance(layers: list[Tensor], gradients: list[Tensor]) -> Tensor:
    r"""$R \leftarrow R + \mathrm{mean}_h (\nabla A \odot A)^+ R$ from $R = I$ on, layer by layer, [N, T, T].

    The rule of Chefer, Gur and Wolf (2021) for attention of a sequence to itself.

    >>> attention = torch.tensor([[[[0.5, 0.5], [0.25, 0.75]]]])
    >>> relevance([attention], [torch.tensor([[[[2.0, -2.0], [4.0, 0.0]]]])])[0].tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    total = torch.eye(layers[0].shape[-1], device=layers[0].device).expand(len(layers[0]), -1, -1)
    for attention, gradient in zip(layers, gradients, strict=True):
        flow = (gradient.detach().float() * attention.detach().float()).clamp(min=0).mean(1)
        total = total + flow @ total
    return total
