"""Vision transformers written out from their weights, image by image: what the fast ways are held against."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional
from torchvision.models import VisionTransformer

SIDE = 32
PATCH = 8
WIDTH = 16
HEADS = 2
CLASSES = 5


def some_images(count=3, seed=0):
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def some_maps(count=3, seed=1):
    return torch.randn(count, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def random_weights(model):
    """Weights that leave nothing at 0 or 1, as the heads and norms of new transformers are."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        weight.data = around + 0.2 * torch.randn(weight.shape, generator=generator)
    return model.eval()


def timm_vit(**settings):
    from timm.models.vision_transformer import VisionTransformer as Timm

    sizes = {"embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "num_classes": CLASSES}
    return random_weights(Timm(img_size=SIDE, patch_size=PATCH, **(sizes | settings)))


def timm_deit():
    from timm.models.deit import VisionTransformerDistilled

    sizes = {"embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "num_classes": CLASSES}
    return random_weights(VisionTransformerDistilled(img_size=SIDE, patch_size=PATCH, **sizes))


def torchvision_vit():
    sizes = {"num_layers": 2, "num_heads": HEADS, "hidden_dim": WIDTH, "mlp_dim": 32, "num_classes": CLASSES}
    return random_weights(VisionTransformer(image_size=SIDE, patch_size=PATCH, **sizes))


def hugging_face(kind="ViTForImageClassification"):
    transformers = pytest.importorskip("transformers")
    config = {"ViT": transformers.ViTConfig, "DeiT": transformers.DeiTConfig}[kind.partition("For")[0]]
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape = {"image_size": SIDE, "patch_size": PATCH, "num_labels": CLASSES, "intermediate_size": 32}
    return random_weights(getattr(transformers, kind)(config(**sizes, **shape)))


@dataclass
class Layer:
    norm1: tuple
    qkv: tuple
    proj: tuple
    norm2: tuple
    fc1: tuple
    fc2: tuple


@dataclass
class ByHand:
    """A vision transformer as its weights."""

    patch: tuple
    extra: torch.Tensor  # [E, D]: the class token and its like, with their positions
    positions: torch.Tensor  # [T, D]
    layers: list
    norm: tuple
    heads: list  # (weight, bias) by extra token that is read; one for the mean where there is none
    eps: float

    def attentions(self, image, kept=None):
        """The logits of one image [C, H, W] given the patches `kept` alone, and [heads, T, T] by layer."""
        tokens = []
        across = SIDE // PATCH
        for place in range(across**2):
            if kept is not None and place not in kept:
                continue
            top = place // across * PATCH
            left = place % across * PATCH
            pixels = image[:, top : top + PATCH, left : left + PATCH].reshape(-1)
            weight = self.patch[0].reshape(self.patch[0].shape[0], -1)
            tokens.append(weight @ pixels + self.patch[1] + self.positions[place])
        x = torch.stack([*self.extra, *tokens])
        found = []
        for layer in self.layers:
            normed = functional.layer_norm(x, x.shape[1:], *layer.norm1, self.eps)
            queries, keys, values = functional.linear(normed, *layer.qkv).chunk(3, 1)
            parts = []
            heads = []
            size = x.shape[1] // HEADS
            for head in range(HEADS):
                at = slice(head * size, (head + 1) * size)
                attention = (queries[:, at] @ keys[:, at].T / math.sqrt(size)).softmax(1)
                heads.append(attention)
                parts.append(attention @ values[:, at])
            found.append(heads)
            x = x + functional.linear(torch.cat(parts, 1), *layer.proj)
            normed = functional.layer_norm(x, x.shape[1:], *layer.norm2, self.eps)
            x = x + functional.linear(functional.gelu(functional.linear(normed, *layer.fc1)), *layer.fc2)
        if len(self.extra):
            x = functional.layer_norm(x, x.shape[1:], *self.norm, self.eps)
            read = x[: len(self.heads)]
        else:  # timm puts the norm after the mean
            read = functional.layer_norm(x.mean(0), x.shape[1:], *self.norm, self.eps)[None]
        logits = [functional.linear(each, *head) for each, head in zip(read, self.heads, strict=True)]
        return sum(logits) / len(logits), found

    def __call__(self, image, kept=None):
        return self.attentions(image, kept)[0]


def of(module):
    return module.weight.detach(), module.bias.detach()


def by_hand_timm(net):
    names = ("cls_token", "dist_token", "reg_token")
    extra = [getattr(net, name) for name in names if getattr(net, name, None) is not None]
    first = torch.cat(extra, 1)[0].detach() if extra else torch.zeros(0, WIDTH)
    positions = net.pos_embed[0].detach()
    heads = [of(net.head), of(net.head_dist)] if hasattr(net, "head_dist") else [of(net.head)]
    return ByHand(
        patch=of(net.patch_embed.proj),
        extra=first + positions[: len(first)],
        positions=positions[len(first) :],
        layers=[
            Layer(
                *map(of, (each.norm1, each.attn.qkv, each.attn.proj, each.norm2, each.mlp.fc1, each.mlp.fc2))
            )
            for each in net.blocks
        ],
        norm=of(net.norm if extra else net.fc_norm),
        heads=heads,
        eps=1e-6,
    )


def by_hand_torchvision(net):
    def layer(each):
        attention = each.self_attention
        qkv = (attention.in_proj_weight.detach(), attention.in_proj_bias.detach())
        others = (attention.out_proj, each.ln_2, each.mlp[0], each.mlp[3])
        return Layer(of(each.ln_1), qkv, *map(of, others))

    positions = net.encoder.pos_embedding[0].detach()
    return ByHand(
        patch=of(net.conv_proj),
        extra=net.class_token[0].detach() + positions[:1],
        positions=positions[1:],
        layers=[layer(each) for each in net.encoder.layers],
        norm=of(net.encoder.ln),
        heads=[of(net.heads.head)],
        eps=1e-6,
    )
