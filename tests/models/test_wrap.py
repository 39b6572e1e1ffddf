"""Models as people have them, as classifiers."""

import copy
import dataclasses
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fpa
from fpa.data.normalisation import Normalisation
from fpa.engine.engine import Engine
from fpa.errors import InputError
from fpa.models.wrap import check_head, classifier, input_channels

NORMALISATION = Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
BYTES = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
NORMALISED = NORMALISATION(BYTES)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(144, 4),
    )


@dataclasses.dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


class Returning(nn.Module):
    """A classifier that returns its logits inside something, as Hugging Face's do."""

    def __init__(self, form):
        super().__init__()
        self.inner, self.form = network(), form

    def forward(self, pixel_values):
        return self.form(self.inner(pixel_values))


def snapshot(model):
    state = {name: (value.dtype, value.clone()) for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    grads = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    return state, modes, hooks, grads


MODELS = {
    "in train mode, with dropout and an in-place ReLU": lambda: network().train(),
    "DataParallel": lambda: nn.DataParallel(network()),
    "compiled": lambda: torch.compile(network()),
    "compiled DataParallel": lambda: torch.compile(nn.DataParallel(network())),
    "returning an object": lambda: Returning(lambda logits: Output(None, logits)),
    "returning a dict": lambda: Returning(lambda logits: {"logits": logits}),
    "returning a tuple": lambda: Returning(lambda logits: (logits, None)),
    "float64": lambda: network().double(),
}


@pytest.mark.parametrize("form", MODELS)
def test_models_as_people_have_them_give_the_logits_of_the_plain_one_and_stay_as_they_were(form):
    model = MODELS[form]()
    before = snapshot(model)
    expected = network().eval()(NORMALISED)
    found = Engine(classifier(model, NORMALISED)).predict(NORMALISED)
    assert torch.allclose(found.float(), expected, atol=1e-5)
    after = snapshot(model)
    assert before[1:] == after[1:]
    assert all(dtype == after[0][name][0] for name, (dtype, _) in before[0].items())
    assert all(torch.equal(value, after[0][name][1]) for name, (_, value) in before[0].items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_is_evaluated_as_a_float32_copy(dtype):
    model = network().to(dtype)
    with pytest.warns(UserWarning, match="a float32 copy is evaluated"):
        found = classifier(model, NORMALISED)
    expected = copy.deepcopy(model).float().eval()(NORMALISED)
    assert torch.allclose(Engine(found).predict(NORMALISED), expected, atol=1e-6)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_a_plain_model_is_the_same_object_so_that_estimators_may_refer_to_its_layers():
    model = network()
    assert classifier(model, NORMALISED) is model


@pytest.mark.parametrize(
    ("model", "images", "said"),
    [
        (lambda images: images, NORMALISED, r"must be a torch.nn.Module, got function"),
        (network(), torch.rand(2, 1, 8, 8), r"cannot take images \[1, 8, 8\] \(channels, height, width\)"),
        (network(), torch.rand(2, 3, 9, 9), r"cannot take images \[3, 9, 9\]"),
        (Returning(lambda logits: "cat"), NORMALISED, r"must return logits .*it returned str"),
    ],
)
def test_one_sentence_says_what_is_wrong_with_the_model(model, images, said):
    with pytest.raises(InputError, match=said) as raised:
        classifier(model, images)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_torchscript_is_refused():
    with pytest.raises(InputError, match=r"is TorchScript.*give the module it was made from"):
        classifier(torch.jit.script(network()), NORMALISED)


def test_the_channels_of_a_model_are_those_of_its_first_convolution():
    assert input_channels(network()) == 3
    assert input_channels(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_model_on_another_device_than_the_images():
    model = network().cuda()
    found = Engine(classifier(model, NORMALISED)).predict(NORMALISED)
    assert torch.allclose(found.cpu(), network().eval()(NORMALISED), atol=1e-3)
    there = classifier(network(), NORMALISED, device="cuda")
    assert next(there.parameters()).is_cuda


def head(activation):
    """A linear classifier of four classes with something behind its logits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), activation)


def test_probabilities_and_their_logarithms_are_told_from_logits():
    def checked(activation):
        check_head(head(activation), NORMALISED)

    with pytest.warns(UserWarning, match="leave out its last softmax"):
        checked(nn.Softmax(1))
    with pytest.warns(UserWarning, match="look like log-probabilities.*or follow the output centred"):
        checked(nn.LogSoftmax(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked(nn.Identity())
        check_head(lambda images: 1e-3 + 1e-4 * head(nn.ReLU())(images), NORMALISED)  # small logits
        check_head(lambda images: torch.full((len(images), 3), 0.25), NORMALISED)  # no head at all


def test_sigmoids_of_several_labels_are_refused_before_any_work():
    with pytest.raises(InputError, match="as sigmoids do, which says that an image can have several labels"):
        fpa.evaluate(head(nn.Sigmoid()), NORMALISED, ["vg_abs", "vg_sum"], progress=False)
    labelled = head(nn.Identity())
    labelled.config = SimpleNamespace(problem_type="multi_label_classification")
    with pytest.raises(InputError, match="configuration says that an image can have several labels"):
        fpa.audit(labelled, NORMALISED, progress=False)


def test_a_single_logit_is_that_of_the_second_of_two_classes():
    torch.manual_seed(0)
    single = nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
    double = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with torch.no_grad():
        double[1].weight.copy_(torch.cat([torch.zeros(1, 192), single[1].weight]))
        double[1].bias.copy_(torch.cat([torch.zeros(1), single[1].bias]))
    with pytest.warns(UserWarning, match="a single logit: it counts as that of class 1 of two") as told:
        logits = classifier(single, NORMALISED)(NORMALISED)
    assert len(told) == 1
    torch.testing.assert_close(logits, double(NORMALISED))
    with pytest.warns(UserWarning, match="a single logit"):
        maps = fpa.explain(single, NORMALISED, ["vg_sum", "ig_abs"], output="centred")
    for name, expected in fpa.explain(double, NORMALISED, [*maps], output="centred").items():
        torch.testing.assert_close(maps[name], expected)
    with pytest.warns(UserWarning, match="a single logit"):
        result = fpa.evaluate(
            single, (NORMALISED, logits.argmax(1)), ["vgx_sum", "vg_abs"], outputs="centred"
        )
    assert result.accuracy == 1
    assert result.classes == ["class 0", "class 1"]


class Always(nn.Dropout):
    """Dropout that is on, whatever mode the model is in."""

    def forward(self, images):
        return nn.functional.dropout(images, self.p, training=True)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (nn.BatchNorm2d(4, track_running_stats=False), r"another batch.*without running statistics: 1"),
        (Always(0.5), "other logits each time"),
    ],
)
def test_a_model_whose_rows_depend_on_the_batch_or_on_chance_is_refused_by_name(part, message):
    model = network()
    model[1] = part
    for call in (
        lambda: fpa.evaluate(model, NORMALISED, ["vg_abs", "vg_sum"], progress=False),
        lambda: fpa.explain(model, NORMALISED, "vg_abs"),
        lambda: fpa.perturbation_curves(model, NORMALISED, NORMALISED[:, 0]),
    ):
        with pytest.raises(InputError, match=rf"the model \(Sequential\) .*{message}"):
            call()
    fpa.explain(network(), NORMALISED[:1], "vg_abs")  # a batch norm with running statistics is fine


@pytest.mark.parametrize(
    "call",
    [
        lambda model, batch: fpa.evaluate(model, batch, estimators=["vg_abs"], progress=False),
        lambda model, batch: fpa.audit(model, batch, estimators=["vg_abs", "vgx_sum"], progress=False),
    ],
)
def test_a_warning_is_told_of_the_line_that_called_fpa(call):
    batch = NORMALISED, torch.arange(6) % 4
    with pytest.warns(UserWarning, match="leave out its last softmax") as told:
        call(nn.Sequential(network(), nn.Softmax(1)).eval(), batch)
    assert {warning.filename for warning in told if "softmax" in str(warning.message)} == {__file__}
