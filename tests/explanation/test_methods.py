"""Other people's methods against those people's own code, closed forms and nets written the way they want."""

import copy
import functools
import resource
import sys
import warnings

import numpy as np
import pytest
import torch
import torchvision
from captum import attr
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fpa
from fpa.engine import Engine
from fpa.engine.outputs import OUTPUTS
from fpa.errors import InputError
from fpa.explanation import Estimator, Settings, explain, get_estimators
from fpa.explanation.captum import Captum, captum_methods
from fpa.explanation.maps import Maps, from_quantus
from fpa.masking import Constant
from fpa.running import run_study
from fpa.show.names import estimator_name
from fpa.study.read import read_study
from fpa.study.recipe import load_recipe

FEW = Settings(ig_steps=6)
NOT_FINITE = "ignore:.*not finite"


def some_images(count=3, size=16, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """A residual net; how its ReLUs are written is the only difference between the kinds."""

    def __init__(self, kind="modules"):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6 * 8 * 8, 5)
        self.pool = nn.MaxPool2d(2)
        self.kind = kind
        if kind == "modules":
            self.relus = nn.ModuleList(nn.ReLU() for _ in range(3))
        elif kind != "functions":
            self.relu = nn.ReLU(inplace=kind == "in place")

    def relu_number(self, number, x):
        if self.kind == "functions":
            return [functional.relu, torch.relu, torch.relu_][number](x)
        return self.relus[number](x) if self.kind == "modules" else self.relu(x)

    def forward(self, x):
        x = self.relu_number(0, self.first(x))
        y = self.relu_number(1, self.norm(self.second(x)))
        return self.head(self.pool(self.relu_number(2, x - y)).flatten(1))


@pytest.fixture(scope="module")
def net():
    return Net().eval()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def directly(net, method, images, targets):
    """Captum as its documentation says, for a net that suits it, with the settings that ours says."""
    zeros, window = torch.zeros_like(images), {"sliding_window_shapes": (3, 2, 2), "strides": (3, 1, 1)}
    settings = {
        "DeepLift": {"baselines": zeros},
        "IntegratedGradients": {"baselines": zeros, "n_steps": 6},
        "Occlusion": {"baselines": zeros, **window},
        "Saliency": {"abs": False},
        "GuidedGradCam": {"interpolate_mode": "bilinear"},
        "LayerDeepLift": {"baselines": zeros},
    }.get(method, {})
    layer = [net.second] if method in ("LayerGradCam", "GuidedGradCam", "LayerDeepLift") else []
    found = getattr(attr, method)(net, *layer).attribute(images, target=targets, **settings)
    if method.startswith("Layer"):
        found = found.sum(1, keepdim=True)
        found = attr.LayerAttribution.interpolate(found, (16, 16), "bilinear")
    return found.detach()


METHODS = [
    "DeepLift", "InputXGradient", "GuidedBackprop", "Deconvolution", "Occlusion", "LayerGradCam", "Saliency",
    "IntegratedGradients", "GuidedGradCam", "LayerDeepLift",
]  # fmt: skip


class Outputs(nn.Module):
    """A net whose logits are another net's outputs, one for every class."""

    def __init__(self, net, name):
        super().__init__()
        self.net, self.name = net, name

    def forward(self, images):
        logits = self.net(images)
        classes = [torch.full((len(logits),), number) for number in range(logits.shape[1])]
        return torch.stack([OUTPUTS[self.name](logits, each, each) for each in classes], 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["centred", "margin", "log_odds", "probability"])
def test_maps_of_an_output_are_those_of_a_model_that_returns_it(net, name):
    images, targets = some_images(2), torch.tensor([1, 3])
    names = ["paper", *(f"captum:{method}" for method in ("DeepLift", "Occlusion", "GuidedBackprop"))]
    found = explain(net, images, names, targets=targets, settings=FEW, output=name)
    expected = explain(Outputs(net, name), images, names, targets=targets, settings=FEW)
    usual = explain(net, images, names, targets=targets, settings=FEW)
    for key in found:
        close(found[key], expected[key])
        assert key == "random" or not torch.allclose(found[key], usual[key])


def test_a_shift_of_all_logits_changes_maps_of_the_logit_alone(net):
    """One that depends on the image, as a head may add it: no probability is another."""

    class Shifted(Net):
        def forward(self, x):
            return super().forward(x) + 92 * x.mean((1, 2, 3))[:, None]

    images, shifted = some_images(2), Shifted().eval()
    for name in ("centred", "log_odds"):
        close(*(explain(each, images, "vg_sum", output=name)["vg_sum"] for each in (shifted, net)))
    logit, usual = (explain(each, images, "vg_sum")["vg_sum"] for each in (shifted, net))
    assert (logit - usual).abs().min() > 0.1


def test_an_output_without_a_gradient_has_no_maps(net):
    with pytest.raises(InputError, match="no maps of the output accuracy: it has no gradient"):
        explain(net, some_images(), "vg_abs", output="accuracy")
    with pytest.raises(InputError, match="did you mean 'margin'"):
        explain(net, some_images(), "vg_abs", output="margn")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS)
def test_it_is_captums(net, method):
    images, targets = some_images(), torch.tensor([0, 3, 1])
    expected = directly(copy.deepcopy(net), method, images, targets)
    names = [f"captum:{method}", f"captum:{method}_sum", f"captum:{method}_abs"]
    maps = explain(net, images, names, targets=targets, settings=FEW)
    for name in names[:2]:
        close(maps[name], expected.sum(1))
    close(maps[names[2]], expected.abs().sum(1))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["used twice", "in place", "functions"])
@pytest.mark.parametrize("method", ["DeepLift", "GuidedBackprop", "Deconvolution", "LayerGradCam"])
def test_relus_may_be_written_in_any_way(net, kind, method):
    """Captum itself fails on these nets, or takes no notice of the ReLUs."""
    images, targets = some_images(), torch.tensor([0, 3, 1])
    expected = directly(copy.deepcopy(net), method, images, targets).sum(1)
    other = Net(kind).eval()
    other.load_state_dict(net.state_dict())
    found = explain(other, images, f"captum:{method}", targets=targets)[f"captum:{method}"]
    close(found, expected)


def test_a_layer_whose_output_the_model_overwrites(net):
    """Captum puts points of its own in the place of the layer's output, which nothing may overwrite."""
    images, targets = some_images(), torch.tensor([0, 3, 1])
    captums = attr.LayerIntegratedGradients(net, net.first)
    expected = captums.attribute(images, torch.zeros_like(images), target=targets, n_steps=6).sum(1).detach()
    other = Net("in place").eval()
    other.load_state_dict(net.state_dict())
    name = "captum:LayerIntegratedGradients@first"
    close(explain(other, images, name, targets=targets, settings=FEW)[name], expected)


def test_a_torchvision_resnet_and_the_sum_of_deeplift():
    """Its blocks use one in-place ReLU twice; DeepLift's scores add up to the difference of the logits."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=7).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.bias, -0.5, 0.5)
    images, targets = some_images(2, 32), torch.tensor([2, 5])
    model.double()
    found = explain(model, images, "captum:DeepLift", targets=targets)["captum:DeepLift"]
    ends = model(images.double()) - model(torch.zeros_like(images).double())
    expected = ends.gather(1, targets[:, None])[:, 0].detach()
    torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "method", "told"),
    [
        (nn.ReLU6, "DeepLift", "Captum's DeepLift has no rule for ReLU6: captum:DeepLift is no more than a"),
        (nn.Tanh, "GuidedBackprop", "has no rule for Tanh"),
        (nn.Tanh, "DeepLift", None),
        (nn.ReLU6, "Saliency", None),
    ],
)
def test_activations_that_a_method_has_no_rule_for_are_named(activation, method, told):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), activation(), nn.Flatten(), nn.Linear(4 * 16, 3)).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explain(model, some_images(1, 6), f"captum:{method}")
    said = [str(each.message) for each in caught if "has no rule for" in str(each.message)]
    assert (told in said[0]) if told else not said


def test_the_model_is_left_alone(net):
    model = Net("in place").train()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = [f"captum:{method}" for method in METHODS]
    explain(model, some_images(), names, settings=FEW)
    assert model.training
    assert model.relu.inplace
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


def linear(weight):
    layer = nn.Linear(weight[0].numel(), len(weight), bias=False)
    layer.weight.data = weight.flatten(1)
    return nn.Sequential(nn.Flatten(), layer)


def test_linear_model_in_closed_form():
    """Each score is the weight times the distance from the masked image."""
    weight, images, targets = some_images(4, 8, 1), some_images(3, 8), torch.tensor([2, 0, 3])
    scores = (images - 0.5) * weight[targets]
    names = ["captum:DeepLift_sum", "captum:DeepLift_abs", "captum:IntegratedGradients", "captum:Occlusion"]
    maps = explain(linear(weight), images, names, targets=targets, masking=Constant(0.5), settings=FEW)
    close(maps["captum:DeepLift_sum"], scores.sum(1))
    close(maps["captum:DeepLift_abs"], scores.abs().sum(1))
    close(maps["captum:IntegratedGradients"], scores.sum(1))
    # At 8 px the window is one pixel; each of its three channels gets what all three together lose.
    close(maps["captum:Occlusion"], 3 * scores.sum(1))


@pytest.mark.filterwarnings("ignore:the model returns a single logit")
def test_occlusion_by_hand():
    """At 16 px a window of two pixels, moved by one: a pixel gets the mean loss of the windows over it."""
    weight, image = some_images(1, 16, 1), some_images(1, 16)
    loss, expected, count = (image * weight).sum(1)[0], torch.zeros(16, 16), torch.zeros(16, 16)
    for y in range(15):
        for x in range(15):
            expected[y : y + 2, x : x + 2] += loss[y : y + 2, x : x + 2].sum()
            count[y : y + 2, x : x + 2] += 1
    found = explain(linear(weight), image, "captum:Occlusion", targets=1)["captum:Occlusion"]
    close(found[0], 3 * expected / count)


@pytest.mark.filterwarnings("ignore:the model returns a single logit")
def test_patches_are_removed_as_one():
    weight, image = some_images(1, 16, 1), some_images(1, 16)
    loss = (image * weight).sum(1)
    by_patch = functional.avg_pool2d(loss, 2) * 4
    expected = 3 * by_patch.repeat_interleave(2, 1).repeat_interleave(2, 2)
    names = ["captum:FeatureAblation", "captum:ShapleyValueSampling"]
    maps = explain(linear(weight), image, names, targets=1)
    for name in names:  # on a linear model the order of removal does not matter
        close(maps[name], expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["DeepLift", "IntegratedGradients", "LayerConductance", "KernelShap"])
def test_the_batch_does_not_matter(net, method):
    images, name = some_images(5), f"captum:{method}"
    together = explain(net, images, name, settings=FEW, seed=4)[name]
    one_by_one = explain(Engine(net, batch_size=1), images, name, settings=FEW, seed=4)[name]
    last = explain(net, images[4:], name, settings=FEW, seed=4, indices=[4])[name]
    close(one_by_one, together)
    close(last, together[4:])


def test_random_methods_leave_the_global_random_numbers_alone(net):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    explain(net, some_images(2), "captum:GradientShap")
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


class Squeezed(nn.Module):
    """Ends, as squeeze-and-excitation does, in a convolution of a single pixel."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2))
        self.squeeze, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        x = self.body(x)
        gate = self.squeeze(x.mean((2, 3), keepdim=True)).sigmoid()
        return self.head((x * gate).mean((2, 3)))


def test_the_layer_is_the_last_convolution_that_sees_places():
    torch.manual_seed(0)
    model, images = Squeezed(), some_images()
    names = ["captum:LayerGradCam", "captum:LayerGradCam@body.2", "captum:LayerGradCam@body.0"]
    maps = explain(model, images, names)
    close(maps[names[0]], maps[names[1]])
    assert not torch.allclose(maps[names[0]], maps[names[2]])
    small = attr.LayerGradCam(model, model.body[2]).attribute(images, target=model(images).argmax(1))
    assert small.shape[2:] == (6, 6)
    close(maps[names[0]], attr.LayerAttribution.interpolate(small, (16, 16), "bilinear")[:, 0].detach())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("captum:LayerGradCam@bdy.2", r"unknown layer 'bdy.2': did you mean 'body.2'"),
        (
            "captum:LayerGradCam@head",
            r"the layer gives \[3, 1\] for 3 images, not \[N, channels, h, w\]: name a convolution",
        ),
    ],
)
def test_bad_layers(name, message):
    with pytest.raises(InputError, match=message):
        explain(Squeezed(), some_images(), name)


def test_a_layer_used_twice_and_a_model_without_convolutions():
    with pytest.raises(InputError, match="layer relu is used 3 times in a pass"):
        explain(Net("used twice"), some_images(), "captum:LayerGradCam@relu")
    with pytest.raises(InputError, match="no convolution whose output is larger than one pixel"):
        explain(linear(some_images(2)), some_images(), "captum:LayerGradCam")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deeplift", r"unknown estimator 'deeplift': did you mean 'captum:DeepLift'\?"),
        ("captum:DeepLif", "unknown Captum method 'DeepLif': did you mean 'DeepLift'"),
        ("captum:DeepLift_max", "unknown Captum method 'DeepLift_max': did you mean 'DeepLift'"),
        ("captum:DeepLift@layer4", "captum:DeepLift takes no layer, got @layer4"),
        ("captum:ShapleyValues", "cannot be used by name: .*captum:ShapleyValueSampling"),
        ("captum:NoiseTunnel", "unknown Captum method 'NoiseTunnel'"),
        ("maps:nowhere.npy", "there is no file of maps nowhere.npy"),
        ("maps:maps.csv", "maps are read from .npy, .npz, .safetensors, .pt, .pth files, got maps.csv"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(InputError, match=message):
        get_estimators(name)


def test_without_captum(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(InputError, match="need the package captum: pip install captum"):
        get_estimators(["captum:DeepLift"])


def test_what_captum_cannot_do_is_said_in_one_sentence():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3))
    message = "estimator captum:LRP: Captum cannot explain this model: Module of type .*GELU"
    with pytest.raises(InputError, match=message):
        explain(model, some_images(), "captum:LRP")


def test_methods_that_need_more_are_not_offered():
    known = captum_methods()
    assert not {"NeuronGradient", "NoiseTunnel", "LLMAttribution", "LayerActivation", "DeepLiftShap"} & set(
        known
    )


def written(folder, values, kind):
    path = folder / f"mine.{kind}"
    if kind == "npy":
        np.save(path, values.numpy())
    elif kind == "npz":
        np.savez(path, values.numpy())
    elif kind == "safetensors":
        save_file({"cam": values}, path)
    else:
        torch.save(values, path)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "pt", "array", "tensor"])
@pytest.mark.parametrize("shape", [(9, 16, 16), (9, 1, 16, 16), (9, 3, 16, 16)])
def test_precomputed_maps_follow_the_numbers_of_the_images(net, tmp_path, kind, shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    if kind in ("array", "tensor"):
        given = {"mine": values.numpy() if kind == "array" else values}
    else:
        given = {"mine": f"maps:{written(tmp_path, values, kind)}"}
    maps = explain(net, some_images(), given, indices=[7, 0, 4])
    expected = values[[7, 0, 4]] if len(shape) == 3 else values[[7, 0, 4]].sum(1)
    close(maps["mine"], expected)


def test_one_of_several_arrays(net, tmp_path):
    values, path = some_images(2)[:, 0], tmp_path / "many.npz"
    np.savez(path, cam=values.numpy(), gradient=2 * values.numpy())
    maps = explain(net, some_images(2), [f"maps:{path}#cam", f"maps:{path}#gradient"])
    close(maps[f"maps:{path}#gradient"], 2 * maps[f"maps:{path}#cam"])
    with pytest.raises(InputError, match=r"holds 2 arrays \(cam, gradient\): name one as in maps:"):
        get_estimators(f"maps:{path}")
    with pytest.raises(InputError, match=r"unknown array of .*'cm': did you mean 'cam'"):
        get_estimators(f"maps:{path}#cm")


def test_a_file_that_would_execute_code_is_refused(tmp_path):
    torch.save({"maps": print}, tmp_path / "bad.pt")
    np.save(tmp_path / "bad.npy", np.array([{}]), allow_pickle=True)
    for name, problem in (("bad.pt", "was not loaded: .* could execute code"), ("bad.npy", "cannot be read")):
        with pytest.raises(InputError, match=f"{name} {problem}"):
            get_estimators(f"maps:{tmp_path / name}")


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "pt"])
def test_a_file_that_was_never_fetched_is_not_called_dangerous(tmp_path, suffix):
    path = tmp_path / f"maps.{suffix}"
    for content, said in (
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "it is a Git LFS pointer"),
        (b"<html>404</html>", "it is a web page"),
        (b"", "it is empty"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"is not a file of maps: {said}"):
            get_estimators(f"maps:{path}")
    (tmp_path / "maps.pt").write_text("numbers")
    with pytest.raises(InputError, match="is not a file of maps: it begins with b'numbers'"):
        get_estimators(f"maps:{tmp_path / 'maps.pt'}")


def test_maps_of_another_byte_order(net):
    values = some_images(2)[:, 0].numpy()
    maps = explain(net, some_images(2), {"mine": values.astype(">f8"), "same": values})
    close(maps["mine"], maps["same"])


def test_a_file_larger_than_one_would_hold_in_memory(net, tmp_path):
    path = tmp_path / "large.npy"
    values = np.lib.format.open_memmap(path, "w+", np.float32, (1 << 21, 32, 32))  # 8 GiB of holes
    values[1234567] = 5
    del values
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    maps = explain(model, some_images(2, 32), f"maps:{path}", indices=[1234567, 3])[f"maps:{path}"]
    assert maps.sum((1, 2)).tolist() == [5 * 32 * 32, 0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (3, 8, 8),
            r"estimator mine: the maps must be \[16, 16\] or \[3, 16, 16\] for an image, got \[8, 8\]",
        ),
        ((3, 2, 16, 16), r"got \[2, 16, 16\]"),
        ((2, 16, 16), r"the maps are 2, .* there is an image number 2"),
        ((16, 16), r"must be real numbers \[N, H, W\] or \[N, C, H, W\], got torch.float32 \[16, 16\]"),
    ],
)
def test_maps_that_do_not_fit(net, shape, message):
    with pytest.raises(InputError, match=message):
        explain(net, some_images(), {"mine": torch.ones(shape)})


def evaluated(net, data, estimators, folder=None, points=3):
    result = fpa.evaluate(net, data, estimators, folder=folder, points=points, examples=0, progress=False)
    return result.evaluation


def test_too_few_maps_are_told_before_any_work(net, tmp_path):
    def never(model, images, targets):
        raise AssertionError("work was done")

    data = DataLoader(TensorDataset(some_images(5), torch.zeros(5, dtype=torch.int64)), batch_size=2)
    asked = {"first": never, "mine": torch.ones(4, 16, 16)}
    with pytest.raises(InputError, match="estimator mine: the maps are 4"):
        evaluated(net, data, asked, tmp_path)


@pytest.mark.filterwarnings(NOT_FINITE)
def test_a_map_that_is_not_finite_is_left_out_and_counted(net, tmp_path):
    maps = some_images(4)[:, 0]
    maps[2, 3, 3] = float("nan")
    found = evaluated(net, some_images(4), {"mine": maps, "vg_abs": "vg_abs"}, tmp_path)
    assert {name: found.fidelity(name).non_finite for name in found.mif} == {"mine": 1, "vg_abs": 0}
    assert np.isnan(found.mif["mine"][2, 1])


def test_a_shuffled_loader_must_number_its_images(net, tmp_path):
    images, maps = some_images(6), {"mine": some_images(6, seed=5)[:, 0]}
    labels, numbers = torch.zeros(6, dtype=torch.int64), torch.arange(6)
    blind = DataLoader(TensorDataset(images, labels), batch_size=2, shuffle=True)
    with pytest.raises(InputError, match="the loader shuffles them: use shuffle=False, without"):
        evaluated(net, blind, maps)
    ordered = evaluated(net, images, maps, points=4)
    seeing = DataLoader(TensorDataset(images, labels, numbers), batch_size=2, shuffle=True)
    shuffled = evaluated(net, seeing, maps, points=4)
    assert shuffled.indices.tolist() != ordered.indices.tolist()
    back = np.argsort(shuffled.indices)
    np.testing.assert_allclose(shuffled.mif["mine"][back], ordered.mif["mine"], rtol=1e-5)


def test_signed_or_not():
    positive = torch.rand(2, 4, 4)
    assert not Estimator(positive).signed
    assert Estimator(positive - 0.5).signed
    assert not Estimator(positive - 0.5, "abs").signed
    assert Estimator(positive, times_input=True).signed
    assert Estimator(positive, kind="signed").signed
    assert not Estimator(Captum("DeepLift"), kind="unsigned").signed
    named = get_estimators(["captum:DeepLift", "captum:DeepLift_sum", "captum:DeepLift_abs"])
    assert [one.signed for one in named.values()] == [True, True, False]
    with pytest.raises(InputError, match="unknown kind of estimator 'sgned'"):
        Estimator(positive, kind="sgned")


def test_another_method_layer_or_map_is_another_evaluation(net, tmp_path):
    maps = some_images(2)[:, 0]

    def run(given, folder):
        return evaluated(net, some_images(2), {"it": given}, tmp_path / folder)

    others = {
        "captum:DeepLift": ["captum:DeepLift_abs", "captum:InputXGradient", maps],
        "captum:LayerGradCam@first": ["captum:LayerGradCam@second", "captum:LayerGradCam"],
        "maps": [maps + 1, maps.double(), from_quantus(quantus_style)],
        "quantus": [from_quantus(quantus_style, scale=3)],
    }
    first = {"maps": maps, "quantus": from_quantus(quantus_style, scale=2)}
    for number, (name, different) in enumerate(others.items()):
        run(first.get(name, name), f"{number}")
        for other in different:
            with pytest.raises(InputError, match="holds an evaluation with other estimators"):
                run(other, f"{number}")
    np.save(tmp_path / "moved.npy", maps.numpy())
    run(f"maps:{tmp_path / 'moved.npy'}", "2")  # the same values from elsewhere are the same


def quantus_style(model, inputs, targets, **kwargs):
    assert isinstance(inputs, np.ndarray)
    assert isinstance(targets, np.ndarray)
    assert not model.training
    rows = torch.from_numpy(inputs).requires_grad_()
    score = model(rows).gather(1, torch.from_numpy(targets)[:, None]).sum()
    gradient = torch.autograd.grad(score, rows)[0].numpy() * kwargs.get("scale", 1)
    return gradient.sum(1, keepdims=True) if kwargs.get("flat") else gradient


def test_quantus_style_functions(net):
    images = some_images()
    maps = explain(
        net,
        images,
        {
            "as it is": quantus_style,
            "partial": functools.partial(quantus_style, scale=2),
            "explicit": from_quantus(quantus_style, scale=3, flat=True),
            "unsigned": Estimator(quantus_style, "abs"),
            "vg_sum": "vg_sum",
            "vg_abs": "vg_abs",
        },
    )
    close(maps["as it is"], maps["vg_sum"])
    close(maps["partial"], 2 * maps["vg_sum"])
    close(maps["explicit"], 3 * maps["vg_sum"])
    close(maps["unsigned"], maps["vg_abs"])


@pytest.mark.filterwarnings("ignore")
def test_quantus_own_function(net):
    quantus = pytest.importorskip("quantus")
    maps = explain(
        net,
        some_images(),
        {"theirs": from_quantus(quantus.explain, method="Saliency"), "vg_abs": "vg_abs"},
    )
    close(maps["theirs"], maps["vg_abs"])


def test_names_in_front_of_people():
    def shown(name, style="text", most=None):
        label = get_estimators([name])[name].label(name)
        return estimator_name(name, style, label=label, most=most)

    assert shown("captum:DeepLift_sum") == "DeepLift_sum"
    assert shown("captum:DeepLift_sum", "latex") == r"DeepLift\textsubscript{sum}"
    assert shown("captum:LayerGradCam@layer4.0_x", "latex") == r"LayerGradCam@layer4.0\_x"
    assert shown("captum:DeepLift_abs", "mathtext", 16) == r"DeepLift$_\mathrm{abs}$"
    assert shown("vgx_sum", "html") == "VG′<sub>sum</sub>"


def test_a_study_of_other_peoples_methods(tmp_path):
    recipe = load_recipe(
        "tiny",
        {
            "augmentations": ["fpa"],
            "data.train_images": 64,
            "data.evaluation_images": 6,
            "training.epochs": 1,
            "training.milestones": [],
        },
    )
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).random((1000, 32, 32), dtype=np.float32))
    mine = f"maps:{tmp_path / 'mine.npy'}"
    recipe.evaluation.estimators = ["captum:DeepLift_sum", "captum:LayerGradCam", mine, "vg_abs"]
    recipe.evaluation.examples = 2
    run_study(recipe, tmp_path / "study", device="cpu")
    study = read_study(tmp_path / "study")
    assert study.signed == {
        "captum:DeepLift_sum": True, "captum:LayerGradCam": True, mine: False, "vg_abs": False,
    }  # fmt: skip
    table = (tmp_path / "study" / "table.md").read_text()
    assert "| DeepLift_sum |" in table
    assert "| mine |" in table
    assert "DeepLift<sub>sum</sub>" in (tmp_path / "study" / "report.html").read_text()
    values = np.load(tmp_path / "mine.npy")
    shown = study.models["fpa"].examples
    np.testing.assert_array_equal(shown.maps[mine], values[shown.indices])


def test_a_study_refuses_too_few_maps_before_training(tmp_path):
    np.save(tmp_path / "few.npy", np.ones((10, 32, 32), np.float32))
    recipe = load_recipe("tiny")
    recipe.evaluation.estimators = [f"maps:{tmp_path / 'few.npy'}", "vg_abs"]
    with pytest.raises(InputError, match=r"few.npy are 10, one for each image of the data set"):
        run_study(recipe, tmp_path / "study", device="cpu")
    assert not (tmp_path / "study").exists()


def test_maps_hold_a_path_or_a_string(tmp_path):
    path = written(tmp_path, torch.ones(2, 4, 4), "npy")
    for given in (path, str(path)):
        assert torch.equal(Maps(given).values, torch.ones(2, 4, 4))


def test_a_relu_in_place_whose_result_is_not_used_is_refused():
    class Careless(Net):
        def forward(self, x):
            x = self.first(x)
            functional.relu(x, inplace=True)
            return self.head(self.pool(x).flatten(1))

    with pytest.raises(InputError, match="an in-place call of relu whose result is not used"):
        explain(Careless(), some_images(), "captum:GuidedBackprop")
