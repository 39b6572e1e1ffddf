"""Attention rollout and relevance, against loops over single images of transformers written out by hand."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

import fpa
from fpa.errors import InputError
from transformers_by_hand import (
    CLASSES,
    HEADS,
    PATCH,
    SIDE,
    by_hand_timm,
    by_hand_torchvision,
    hugging_face,
    some_images,
    timm_deit,
    timm_vit,
    torchvision_vit,
)

NETWORKS = {
    "timm": lambda: (timm_vit(), by_hand_timm),
    "timm with registers": lambda: (timm_vit(reg_tokens=2), by_hand_timm),
    "timm DeiT with distillation token": lambda: (timm_deit(), by_hand_timm),
    "timm without class token": lambda: (timm_vit(class_token=False, global_pool="avg"), by_hand_timm),
    "torchvision": lambda: (torchvision_vit(), by_hand_torchvision),
}
ACROSS = SIDE // PATCH


def slow_rollout(layers):
    """How much each token holds of each, from a walk through the layers: [T, T] as lists of floats."""
    count = len(layers[0][0])
    held = [[float(i == j) for j in range(count)] for i in range(count)]
    for heads in layers:
        mean = [
            [sum(float(head[i, j]) for head in heads) / len(heads) for j in range(count)]
            for i in range(count)
        ]
        held = [
            [
                0.5 * held[i][j] + 0.5 * sum(mean[i][k] * held[k][j] for k in range(count))
                for j in range(count)
            ]
            for i in range(count)
        ]
    return torch.tensor(held)


def slow_relevance(layers, gradients):
    """The rule as it is written, entry by entry."""
    count = len(layers[0][0])
    relevance = torch.eye(count)
    for heads, slopes in zip(layers, gradients, strict=True):
        flow = torch.zeros(count, count)
        for i in range(count):
            for j in range(count):
                products = [float(g[i, j] * a[i, j]) for a, g in zip(heads, slopes, strict=True)]
                flow[i, j] = sum(max(product, 0.0) for product in products) / HEADS
        relevance = relevance + flow @ relevance
    return relevance


def by_hand_maps(by_hand, image, target):
    """Rollout and relevance of one image, a value a patch."""
    logits, layers = by_hand.attentions(image.clone().requires_grad_())
    flat = [head for heads in layers for head in heads]
    slopes = torch.autograd.grad(logits[target], flat)
    gradients = [slopes[place : place + HEADS] for place in range(0, len(slopes), HEADS)]
    layers = [[head.detach() for head in heads] for heads in layers]
    extra = len(by_hand.extra)
    maps = {
        "attention:rollout": slow_rollout(layers),
        "attention:relevance": slow_relevance(layers, gradients),
    }
    return {name: each[0, extra:] if extra else each.mean(0) for name, each in maps.items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_maps_equal_a_walk_through_the_layers_by_hand(name):
    net, written_out = NETWORKS[name]()
    by_hand = written_out(net)
    images = some_images(2)
    maps = fpa.explain(net, images, "attention", targets=[1, 3])
    assert set(maps) == {"attention:rollout", "attention:relevance"}
    for i, target in enumerate([1, 3]):
        for kind, expected in by_hand_maps(by_hand, images[i], target).items():
            found = maps[kind][i]
            # All pixels of a patch have its value.
            blocks = found.view(ACROSS, PATCH, ACROSS, PATCH)
            assert torch.equal(blocks, blocks[:, :1, :, :1].expand_as(blocks))
            torch.testing.assert_close(blocks[:, 0, :, 0].flatten(), expected, rtol=1e-4, atol=1e-6)


def test_relevance_explains_the_class_and_rollout_none():
    net = timm_vit()
    images = some_images(2)
    one, other = (fpa.explain(net, images, "attention", targets=target) for target in (0, 1))
    assert torch.equal(one["attention:rollout"], other["attention:rollout"])
    assert not torch.equal(one["attention:relevance"], other["attention:relevance"])


def test_hugging_face_returns_its_own_attentions():
    net = hugging_face()
    images = some_images(2)
    found = fpa.explain(net, images, "attention:rollout")["attention:rollout"]
    net.set_attn_implementation("eager")
    layers = net(images, output_attentions=True).attentions
    for i in range(len(images)):
        expected = slow_rollout([layer[i] for layer in layers])[0, 1:]
        torch.testing.assert_close(found[i, ::PATCH, ::PATCH].flatten(), expected, rtol=1e-4, atol=1e-6)


class Mine(nn.Module):
    """One layer of attention of the tokens to each other, and their mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 4, PATCH, stride=PATCH)
        self.head = nn.Linear(4, CLASSES)

    def tokens(self, images):
        return self.embed(images).flatten(2).transpose(1, 2)

    def attended(self, tokens):
        attention = (tokens @ tokens.transpose(1, 2)).softmax(-1)[:, None]
        return self.head((attention[:, 0] @ tokens).mean(1)), [attention]

    def from_tokens(self, tokens):
        return self.attended(tokens)[0]

    def attentions(self, images):
        return self.attended(self.tokens(images))

    def forward(self, images):
        return self.from_tokens(self.tokens(images))


def test_a_network_of_ones_own_has_a_method():
    net = Mine()
    images = some_images(2)
    found = fpa.explain(net, images, "attention:rollout")["attention:rollout"]
    _, (attention,) = net.attentions(images)
    for i in range(2):
        expected = slow_rollout([[attention[i, 0]]]).mean(0)
        torch.testing.assert_close(found[i, ::PATCH, ::PATCH].flatten(), expected)


def test_the_model_stays_as_it_was():
    net = timm_vit()
    for block in net.blocks:
        block.attn.fused_attn = True
    fpa.explain(net, some_images(1), "attention")
    assert all(block.attn.fused_attn for block in net.blocks)
    assert not any(block.attn.attn_drop._forward_hooks for block in net.blocks)


def test_networks_without_attention_are_refused_before_any_work(tmp_path):
    folder = tmp_path / "out"
    images = some_images(2)
    with pytest.raises(InputError, match="the attentions of ResNet cannot be read: fpa knows how for plain"):
        fpa.evaluate(resnet18(num_classes=CLASSES), images, ["attention:rollout", "vg_abs"], folder=folder)
    assert not folder.exists()


def test_attention_is_unsigned_and_can_be_evaluated():
    result = fpa.evaluate(
        timm_vit(), some_images(4), ["attention", "ig_sum"], masking="drop", features=PATCH, points=5,
        ig_steps=2, progress=False, outputs="probability",
    )  # fmt: skip
    assert result.signed == {"attention:rollout": False, "attention:relevance": False, "ig_sum": True}
