"""Vision transformers that are given some of their tokens: one small adapter a family of networks.

A *token* is what a transformer makes of one patch of the image: its embedding, with the position embedding
added. `tokens` makes those of whole images, `from_tokens` goes on with any choice of them to the logits. The
class token (and a distillation or register token) belongs to no patch, and always stays.

A network of one's own needs no adapter but these two methods, and `forward` as before:

- `tokens(images [N, C, H, W]) -> [N, T, D]`: the tokens of the patches, row by row, positions included;
- `from_tokens(tokens [N, any, D]) -> [N, classes]`: the logits when only these are given.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from fpa.errors import InputError, first_line
from fpa.models.wrap import Logits


class TokenAdapter(Protocol):
    """How the networks of one family make tokens, and go on with some of them.

    The network is an argument: what is asked for may be a copy of it in another arithmetic.
    """

    def tokens(self, network: Any, images: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, T, D], row by row, positions included."""

    def from_tokens(self, network: Any, tokens: Tensor) -> Tensor:
        """[N, any, D] -> the logits [N, classes] with these tokens and the class token."""


class _Own:
    """A network with methods of its own."""

    def tokens(self, network: Any, images: Tensor) -> Tensor:
        made: Tensor = network.tokens(images)
        return made

    def from_tokens(self, network: Any, tokens: Tensor) -> Tensor:
        logits: Tensor = network.from_tokens(tokens)
        return logits


class _Torchvision:
    """`torchvision.models.VisionTransformer`."""

    def tokens(self, network: Any, images: Tensor) -> Tensor:
        embedded: Tensor = network._process_input(images) + network.encoder.pos_embedding[:, 1:]
        return embedded

    def from_tokens(self, network: Any, tokens: Tensor) -> Tensor:
        encoder = network.encoder
        first = network.class_token + encoder.pos_embedding[:, :1]
        given = torch.cat([first.expand(len(tokens), -1, -1), tokens], 1)
        encoded = encoder.ln(encoder.layers(encoder.dropout(given)))
        logits: Tensor = network.heads(encoded[:, 0])
        return logits


class _Timm:
    """timm's `VisionTransformer`, ViT and DeiT alike, with a class token, without one, or with more."""

    def tokens(self, network: Any, images: Tensor) -> Tensor:
        embedded: Tensor = network._pos_embed(network.patch_embed(images))
        return embedded[:, network.num_prefix_tokens :]

    def from_tokens(self, network: Any, tokens: Tensor) -> Tensor:
        names = ("cls_token", "dist_token", "reg_token")
        extra = [token for name in names if (token := getattr(network, name, None)) is not None]
        if not tokens.shape[1] and (not extra or network.global_pool == "map"):
            raise InputError("attention over nothing may pass for an answer: one patch must stay")
        given = tokens
        if extra:
            first = torch.cat(extra, 1)
            if network.pos_embed is not None and not network.no_embed_class:
                first = first + network.pos_embed[:, : first.shape[1]]
            given = torch.cat([first.expand(len(tokens), -1, -1), tokens], 1)
        encoded = network.norm(network.blocks(network.norm_pre(given)))
        logits: Tensor = network.forward_head(encoded)
        return logits


class _HuggingFace:
    """ViT and DeiT of Hugging Face transformers, with their heads for classification."""

    def tokens(self, network: Any, images: Tensor) -> Tensor:
        embeddings = network.base_model.embeddings
        embedded: Tensor = embeddings(images)
        return embedded[:, self._extra(embeddings).shape[1] :]

    def from_tokens(self, network: Any, tokens: Tensor) -> Tensor:
        base = network.base_model
        first = self._extra(base.embeddings)
        first = first + base.embeddings.position_embeddings[:, : first.shape[1]]
        encoded: Any = torch.cat([first.expand(len(tokens), -1, -1), tokens], 1)
        layers = base.layers if hasattr(base, "layers") else base.encoder.layer  # from version 5 on, before
        for layer in layers:
            encoded = layer(encoded)
            encoded = encoded if isinstance(encoded, Tensor) else encoded[0]
        encoded = base.layernorm(encoded)
        if hasattr(network, "distillation_classifier"):
            of_class = network.cls_classifier(encoded[:, 0])
            mean: Tensor = (of_class + network.distillation_classifier(encoded[:, 1])) / 2
            return mean
        logits: Tensor = network.classifier(encoded[:, 0])
        return logits

    def _extra(self, embeddings: Any) -> Tensor:
        distillation = getattr(embeddings, "distillation_token", None)
        first: Tensor = embeddings.cls_token
        return first if distillation is None else torch.cat([first, distillation], 1)


_BY_CLASS: dict[str, TokenAdapter] = {
    "timm.models.vision_transformer.VisionTransformer": _Timm(),
    "transformers.models.vit.modeling_vit.ViTForImageClassification": _HuggingFace(),
    "transformers.models.deit.modeling_deit.DeiTForImageClassification": _HuggingFace(),
    "transformers.models.deit.modeling_deit.DeiTForImageClassificationWithTeacher": _HuggingFace(),
}
"""By the full name of a class, so that no package has to be imported to look."""


def adapter_of(network: nn.Module) -> TokenAdapter | None:
    """The adapter for a network; None where its tokens cannot be told apart.

    >>> adapter_of(nn.Flatten()) is None
    True
    """
    if callable(getattr(network, "tokens", None)) and callable(getattr(network, "from_tokens", None)):
        return _Own()
    if isinstance(network, VisionTransformer):
        return _Torchvision()
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(network).__mro__]
    return next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)


def tokens_of(model: nn.Module, images: Tensor) -> Tensor:
    """The tokens of the patches of images, [N, C, H, W] -> [N, T, D], row by row, positions included."""
    network = model.model if isinstance(model, Logits) else model
    return _adapter(network).tokens(network, images)


def logits_from(model: nn.Module, tokens: Tensor) -> Tensor:
    """The logits [N, classes] of a model that is given these tokens [N, any, D] alone."""
    if isinstance(model, Logits):
        return model.alone(logits_from(model.model, tokens))
    return _adapter(model).from_tokens(model, tokens)


def _adapter(network: nn.Module) -> TokenAdapter:
    found = adapter_of(network)
    if found is None:
        known = "plain ViT and DeiT of timm, torchvision and Hugging Face"
        own = "a network of your own needs the methods tokens and from_tokens"
        kind = type(network).__name__
        raise InputError(f"tokens of {kind} cannot be dropped: fpa knows how for {known}; {own}")
    return found


@dataclass(frozen=True)
class TokenGrid:
    """Where the tokens of an image lie: one for each square patch, row by row."""

    patch: int
    """The side of a patch, in pixels."""
    rows: int
    columns: int
    fewest: int
    """Tokens of patches that the network must be given: 0, or 1 where it has no class token to read."""

    @property
    def count(self) -> int:
        """How many tokens a whole image has."""
        return self.rows * self.columns


def token_grid(model: nn.Module, images: Tensor) -> TokenGrid:
    """Where the tokens of images [N, C, H, W] lie, found out with the first of them.

    Refused is a model whose tokens cannot be dropped: one of another kind, one whose patches are no squares
    that divide the image, and one that says something else of all its tokens than of the image.
    """
    with torch.no_grad():
        image = images[:1]
        try:
            tokens = tokens_of(model, image)
            all_given = logits_from(model, tokens)
            expected = model(image)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the tokens of {_kind(model)} cannot be read: {first_line(error)}") from error
        patch = _patch_side(model, image, tokens)
        tolerance = 1e-3 * float(expected.abs().max().clamp(min=1e-3))
        if all_given.shape != expected.shape or not bool(((all_given - expected).abs() <= tolerance).all()):
            differs = "given all its tokens it does not say what it says of the image"
            raise InputError(f"tokens of {_kind(model)} cannot be dropped: {differs}")
        return TokenGrid(
            patch=patch,
            rows=image.shape[2] // patch,
            columns=image.shape[3] // patch,
            fewest=_fewest(model, tokens),
        )


def _fewest(model: nn.Module, tokens: Tensor) -> int:
    """0 where the class token alone gives logits; else 1."""
    try:
        alone = logits_from(model, tokens[:, :0])
    except Exception:  # a mean, maximum or attention over nothing, in whatever way it fails
        return 1
    return 0 if bool(alone.isfinite().all()) else 1


def _patch_side(model: nn.Module, image: Tensor, tokens: Tensor) -> int:
    height, width = image.shape[2:]
    if tokens.ndim != 3 or len(tokens) != 1 or not tokens.shape[1]:
        got = f"got {list(tokens.shape)} for one image"
        raise InputError(f"tokens of {_kind(model)} must be [N, T, D], one for each patch: {got}")
    count = tokens.shape[1]
    side = math.isqrt(height * width // count)
    if side * side * count != height * width or height % side or width % side:
        problem = (
            f"its {count} tokens are no square patches that divide an image of {height} x {width} pixels"
        )
        raise InputError(f"tokens of {_kind(model)} cannot be dropped: {problem}")
    return side


def _kind(model: nn.Module) -> str:
    return type(model.model if isinstance(model, Logits) else model).__name__
