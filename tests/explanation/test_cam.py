"""Class activation maps against plain loops, on convolutional networks and on transformers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torchvision.models import SwinTransformer, VisionTransformer, resnet18

import fpa
from fpa.explanation import get_estimators

METHODS = ["cam:gradcam", "cam:gradcam++", "cam:layercam"]


def some_images(side=32, count=3):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def random_weights(model):
    """Weights that leave nothing at 0, as the heads of new transformers are."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(inplace=True))
    return nn.Sequential(
        features, nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32, "num_classes": 5}
    return random_weights(VisionTransformer(image_size=32, patch_size=8, **sizes))


def by_loops(method, values, gradients):
    """One image: values and gradients [channels, h, w] to a map [h, w], place by place."""
    channels, height, width = values.shape
    places = [(row, column) for row in range(height) for column in range(width)]
    cam = torch.zeros(height, width)
    for k in range(channels):
        a, g = values[k], gradients[k]
        weight = sum(g[p] for p in places) / len(places)
        if method == "cam:gradcam++":
            total = sum(a[p] for p in places)
            below = {p: 2 * g[p] ** 2 + total * g[p] ** 3 for p in places}
            weight = sum(g[p] ** 2 / below[p] * max(g[p], 0) for p in places if below[p] != 0)
        for p in places:
            cam[p] += a[p] * (max(g[p], 0) if method == "cam:layercam" else weight)
    return cam.clamp(min=0)


def expected(method, model, layer, images, placed=lambda output: output):
    kept = []
    hook = model.get_submodule(layer).register_forward_hook(lambda _, __, output: kept.append(output))
    best = model(images.clone().requires_grad_()).max(1).values.sum()
    hook.remove()
    (gradients,) = torch.autograd.grad(best, kept)
    pairs = zip(placed(kept[0].detach()), placed(gradients), strict=True)
    maps = torch.stack([by_loops(method, *pair) for pair in pairs])
    return functional.interpolate(maps[:, None], images.shape[2:], mode="bilinear")[:, 0]


@pytest.mark.parametrize("method", METHODS)
def test_on_a_convolutional_network(net, method):
    images = some_images()
    for layer, name in (
        ("1", method),
        ("0", f"{method}@0"),
    ):  # the last with more than one place, or one named
        maps = fpa.explain(net, images, [name])[name]
        torch.testing.assert_close(maps, expected(method, net, layer, images), rtol=1e-4, atol=1e-5)
        assert maps.max() > 0


def test_of_a_resnet_it_is_the_last_block():
    torch.manual_seed(0)
    model, images = resnet18(num_classes=5).eval(), some_images(64, 2)
    maps = fpa.explain(model, images, ["cam", "cam:gradcam@layer4", "cam:gradcam@layer3"])
    assert list(maps) == [*METHODS, "cam:gradcam@layer4", "cam:gradcam@layer3"]
    assert torch.equal(maps["cam:gradcam"], maps["cam:gradcam@layer4"])
    assert not torch.equal(maps["cam:gradcam"], maps["cam:gradcam@layer3"])


@pytest.mark.parametrize("method", METHODS)
def test_the_tokens_of_a_transformer_are_put_back_on_their_grid(vit, method):
    images, layer = some_images(), "encoder.layers.encoder_layer_1.ln_1"

    def placed(output):  # a class token, then the rows of the grid one after the other
        rows = [output[:, 1 + 4 * row : 5 + 4 * row] for row in range(4)]
        return torch.stack(rows, 1).permute(0, 3, 1, 2)

    maps = fpa.explain(vit, images, [method])[method]
    torch.testing.assert_close(maps, expected(method, vit, layer, images, placed), rtol=1e-4, atol=1e-6)


def test_a_model_is_looked_at_once_for_images_of_a_shape(net):
    engine, single = fpa.Engine(net), []
    for _ in range(2):
        with register_module_forward_hook(lambda module, _, output: single.append(len(output) == 1)):
            fpa.explain(engine, some_images(), METHODS)
        single.append(None)
    first, second = single[: single.index(None)], single[single.index(None) + 1 : -1]
    assert any(first)  # the look is a pass of one image
    assert not any(second)


def test_channels_may_come_last():
    torch.manual_seed(0)
    sizes = {
        "patch_size": [4, 4],
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "window_size": [2, 2],
    }
    model, images = random_weights(SwinTransformer(**sizes, num_classes=5)), some_images()
    maps = fpa.explain(model, images, ["cam:gradcam@norm"])["cam:gradcam@norm"]
    reference = expected("cam:gradcam", model, "norm", images, lambda output: output.permute(0, 3, 1, 2))
    torch.testing.assert_close(maps, reference, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(fpa.explain(model, images, ["cam:gradcam"])["cam:gradcam"], maps)
    pytest.importorskip("captum")
    with pytest.raises(fpa.InputError, match="cuts the image into patches"):
        fpa.explain(model, images, ["captum:LayerGradCam"])


def test_captums_methods_do_not_take_the_patch_embedding_by_themselves(vit):
    pytest.importorskip("captum")
    with pytest.raises(fpa.InputError, match=r"cuts the image into patches.*cam:gradcam finds the layer"):
        fpa.explain(vit, some_images(), ["captum:LayerGradCam"])
    assert fpa.explain(vit, some_images(), ["captum:LayerGradCam@conv_proj"])  # who asks for it gets it


def test_gradcam_is_captums_without_its_negative_values(net):
    pytest.importorskip("captum")
    maps = fpa.explain(net, some_images(), ["cam:gradcam@0", "captum:LayerGradCam@0"])
    small = [functional.interpolate(each[:, None], (8, 8), mode="area")[:, 0] for each in maps.values()]
    assert (small[0] >= small[1] - 1e-5).all()  # ReLU comes before the enlargement
    unchanged = small[1] > small[1].amax() / 2
    assert unchanged.any()
    assert torch.corrcoef(torch.stack([each[unchanged] for each in small]))[0, 1] > 0.9


def test_they_explain_the_output_asked_for_in_any_batch(net):
    images = some_images()
    centred = fpa.explain(net, images, ["cam:gradcam"], output="centred")["cam:gradcam"]
    assert not torch.allclose(centred, fpa.explain(net, images, ["cam:gradcam"])["cam:gradcam"])
    alone = [fpa.explain(net, images[i : i + 1], ["cam:gradcam"], output="centred") for i in range(3)]
    torch.testing.assert_close(centred, torch.cat([each["cam:gradcam"] for each in alone]))


def test_they_are_unsigned_and_have_names():
    named = get_estimators(["cam", "cam:Grad-CAM@layer4"])
    assert {each.sign for each in named.values()} == {"unsigned"}
    assert [each.shown.text for each in named.values()] == [
        "GradCAM",
        "GradCAM++",
        "LayerCAM",
        "GradCAM@layer4",
    ]


@pytest.mark.parametrize("name", ["gradcam", "GradCAM", "grad-cam", "gradcam++"])
def test_what_people_type_leads_there(name):
    with pytest.raises(fpa.InputError, match=r"did you mean .*'cam:gradcam"):
        get_estimators([name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cam:scorecam", "unknown class activation map 'scorecam'.*gradcam"),
        ("cam:gradcam@encoder.layers.encoder_layer_1", "do not reach the logits"),
        ("cam:gradcam@heads", "the output of layer heads has no places"),
        ("cam:gradcam@encoder.layers.encoder_layer_3", "unknown layer"),
    ],
)
def test_bad_names_and_layers(vit, name, message):
    with pytest.raises(fpa.InputError, match=message):
        fpa.explain(vit, some_images(), [name])


def test_a_model_without_places():
    with pytest.raises(fpa.InputError, match="no layer whose output has places"):
        fpa.explain(nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)), some_images(), ["cam:gradcam"])


def test_maps_of_captums_layer_objects_are_those_of_the_same_method_by_name():
    attr = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    model = resnet18(num_classes=4).eval()
    images = torch.randn(3, 3, 48, 64)
    for kind in (attr.LayerGradCam, attr.LayerGradientXActivation):
        (by_name,) = fpa.explain(model, images, [f"captum:{kind.__name__}@layer3"]).values()
        maps = fpa.explain(model, images, {"mine": kind(model, model.layer3)})
        assert maps["mine"].shape == (3, 48, 64)
        torch.testing.assert_close(maps["mine"], by_name, rtol=1e-4, atol=1e-6)
