"""Curves without the tokens of removed patches, against transformers written out by hand."""

import pytest
import torch
from torch import nn
from torchvision.models import SwinTransformer, resnet18

from fpa.engine import Engine, Precision
from fpa.errors import InputError
from fpa.perturbation import perturbation_curves
from fpa.perturbation.dropping import share_given
from fpa.perturbation.features import features_of
from transformers_by_hand import (
    CLASSES,
    PATCH,
    SIDE,
    by_hand_timm,
    by_hand_torchvision,
    hugging_face,
    some_images,
    some_maps,
    timm_deit,
    timm_vit,
    torchvision_vit,
)

ACROSS = SIDE // PATCH


def kept_patches(scores, removed, most_first, union=1, fewest=0):
    """The patches that are left of an image when so many features are removed, one after the other."""
    wide = ACROSS // union
    features = scores.view(wide, union * PATCH, wide, union * PATCH).mean((1, 3)).flatten().tolist()
    order = sorted(range(len(features)), key=features.__getitem__, reverse=most_first)
    left = []
    for place in range(ACROSS**2):
        row, column = divmod(place, ACROSS)
        if row // union * wide + column // union in order[removed:]:
            left.append(place)
    if fewest and not left:
        left = [
            place
            for place in range(ACROSS**2)
            if place // ACROSS // union * wide + place % ACROSS // union == order[-1]
        ][:1]
    return left


def slow_curve(network, image, scores, target, steps, most_first, **how):
    kept = [kept_patches(scores, removed, most_first, **how) for removed in steps]
    return torch.stack([network(image, each)[target] for each in kept])


NETWORKS = {
    "timm": lambda: (timm_vit(), by_hand_timm),
    "timm with registers": lambda: (timm_vit(reg_tokens=2), by_hand_timm),
    "timm DeiT with distillation token": lambda: (timm_deit(), by_hand_timm),
    "timm without class token": lambda: (timm_vit(class_token=False, global_pool="avg"), by_hand_timm),
    "torchvision": lambda: (torchvision_vit(), by_hand_torchvision),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_curves_equal_a_loop_over_single_images_given_the_tokens_that_are_left(name):
    net, written_out = NETWORKS[name]()
    by_hand = written_out(net)
    images = some_images()
    maps = {"a": some_maps(), "b": some_maps(seed=2)}
    curves = perturbation_curves(net, images, maps, masking="drop", features=PATCH, points=6)
    steps = [round(point / 5 * ACROSS**2) for point in range(6)]
    assert curves.fractions.tolist() == [k / ACROSS**2 for k in steps]
    fewest = 0 if len(by_hand.extra) else 1
    for key, scores in maps.items():
        for found, most_first in ((curves.mif[key], True), (curves.lif[key], False)):
            for i, image in enumerate(images):
                target = int(net(image[None]).argmax())
                expected = slow_curve(by_hand, image, scores[i], target, steps, most_first, fewest=fewest)
                torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-4)


def test_features_may_be_unions_of_patches():
    net = timm_vit()
    by_hand = by_hand_timm(net)
    images = some_images()
    scores = some_maps()
    curves = perturbation_curves(net, images, scores, masking="drop", features=2 * PATCH, points=5)
    for found, most_first in ((curves.mif["map"], True), (curves.lif["map"], False)):
        for i, image in enumerate(images):
            target = int(net(image[None]).argmax())
            expected = slow_curve(by_hand, image, scores[i], target, range(5), most_first, union=2)
            torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-4)


def test_nothing_removed_is_the_ordinary_network_and_everything_the_class_token_alone():
    net = torchvision_vit()
    by_hand = by_hand_torchvision(net)
    images = some_images()
    curves = perturbation_curves(net, images, some_maps(), masking="drop", features=PATCH, points=3)
    logits = net(images).amax(1)
    for side in (curves.mif["map"], curves.lif["map"]):
        torch.testing.assert_close(side[:, 0], logits)
        alone = by_hand(images[0], [])[curves.targets]
        torch.testing.assert_close(side[:, -1], alone, rtol=1e-4, atol=1e-4)


def test_batches_change_nothing():
    net = timm_vit()
    images = some_images(5)
    maps = {"a": some_maps(5), "b": some_maps(5, seed=3)}

    def curves(size):
        engine = Engine(net, batch_size=size)
        return perturbation_curves(engine, images, maps, masking="drop", features=PATCH, points=5)

    whole = curves(64)
    parts = curves(3)
    for name in maps:
        torch.testing.assert_close(parts.mif[name], whole.mif[name])
        torch.testing.assert_close(parts.lif[name], whole.lif[name])


def test_bfloat16_is_near_float32():
    net = timm_vit()
    images = some_images()
    half = Engine(net, precision=Precision("bfloat16", "bfloat16"))
    how = {"masking": "drop", "features": PATCH, "points": 5}
    rounded = perturbation_curves(half, images, some_maps(), **how).mif["map"]
    exact = perturbation_curves(net, images, some_maps(), **how).mif["map"]
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


class Mine(nn.Module):
    """A network of one's own: the sum of the tokens, read by a linear layer; it needs no class token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 4, PATCH, stride=PATCH)
        self.head = nn.Linear(4, CLASSES)

    def tokens(self, images):
        return self.embed(images).flatten(2).transpose(1, 2).tanh()

    def from_tokens(self, tokens):
        return self.head(tokens.sum(1))

    def forward(self, images):
        return self.from_tokens(self.tokens(images))


def test_a_network_of_ones_own_has_two_methods():
    net = Mine()
    images = some_images()
    scores = some_maps()
    curves = perturbation_curves(net, images, scores, masking="drop", features=PATCH, points=5)
    for i in range(len(images)):
        target = int(curves.targets[i])
        for point, removed in enumerate([0, 4, 8, 12, 16]):
            left = kept_patches(scores[i], removed, most_first=True)
            given = net.tokens(images[i : i + 1])[:, left]
            expected = net.head(given.sum(1))[0, target]
            torch.testing.assert_close(curves.mif["map"][i, point], expected)


@pytest.mark.parametrize(
    "kind",
    ["ViTForImageClassification", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"],
)
def test_hugging_face(kind):
    """Left-out tokens are those that its own attention mask hides: the library's way to the same logits."""
    net = hugging_face(kind)
    images = some_images()
    scores = some_maps()
    curves = perturbation_curves(net, images, scores, masking="drop", features=PATCH, points=5)
    embeddings = net.base_model.embeddings
    with torch.no_grad():
        whole = embeddings(images)
    extra = whole.shape[1] - ACROSS**2
    target = net(images).logits.argmax(1)
    for i in range(len(images)):
        for point, removed in enumerate([0, 4, 8, 12, 16]):
            left = kept_patches(scores[i], removed, most_first=False)
            given = torch.cat([whole[i : i + 1, :extra], whole[i : i + 1, extra:][:, left]], 1)
            hook = embeddings.register_forward_hook(lambda *_, given=given: given)
            with torch.no_grad():
                expected = net(images[i : i + 1]).logits[0, target[i]]
            hook.remove()
            torch.testing.assert_close(curves.lif["map"][i, point], expected, rtol=1e-4, atol=1e-4)


def test_how_many_tokens_are_given():
    """4 x 4 patches in quarters: 12, 8, 4 and none of 16 where the class token stays."""
    grid = Engine(timm_vit()).token_grid(some_images())
    patches = features_of(PATCH, some_images())
    assert (grid.patch, grid.rows, grid.columns, grid.fewest) == (PATCH, 4, 4, 0)
    assert share_given(grid, patches, [0, 0.25, 0.5, 0.75, 1]) == (12 + 8 + 4 + 0) / (4 * 16)
    pooled = Engine(timm_vit(class_token=False, global_pool="avg")).token_grid(some_images())
    assert share_given(pooled, patches, [0, 0.25, 0.5, 0.75, 1]) == (12 + 8 + 4 + 1) / (4 * 16)


def swin():
    return SwinTransformer([2, 2], 8, [2], [2], [4, 4], num_classes=CLASSES)


@pytest.mark.parametrize("net", [resnet18(num_classes=CLASSES), swin()], ids=["ResNet", "Swin"])
def test_other_networks_are_refused(net):
    with pytest.raises(InputError, match=r"tokens of .* cannot be dropped: fpa knows how for plain ViT"):
        perturbation_curves(net.eval(), some_images(), some_maps(), masking="drop", features=PATCH)


@pytest.mark.parametrize(
    ("features", "why"),
    [("pixels", "cut through them"), (12, "cut through them"), (24, "different numbers"), ("1/8", "cut")],
)
def test_features_that_are_no_unions_of_patches_are_refused(features, why):
    with pytest.raises(InputError, match=f"8 pixels a side.*{why}.*use features of 8, 16 pixels"):
        perturbation_curves(timm_vit(), some_images(), some_maps(), masking="drop", features=features)


def test_patches_that_do_not_divide_the_image_are_refused():
    net = timm_vit(dynamic_img_size=True, dynamic_img_pad=True)
    images = torch.randn(2, 3, 36, 36)
    with pytest.raises(InputError, match="no square patches that divide an image of 36 x 36"):
        perturbation_curves(net, images, torch.randn(2, 36, 36), masking="drop", features=9)


def test_a_network_that_says_something_else_of_its_tokens_is_refused():
    class Odd(Mine):
        def forward(self, images):
            return 2 * super().forward(images)

    with pytest.raises(InputError, match="given all its tokens it does not say what it says of the image"):
        perturbation_curves(Odd(), some_images(), some_maps(), masking="drop", features=PATCH)
