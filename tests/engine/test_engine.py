"""The engine: any model, left as found; batches that fit; other arithmetic, the same answers."""

import copy

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from fpa.engine import Engine, Precision, Work
from fpa.engine.devices import cuda_arithmetic
from fpa.engine.folding import fold_batch_norm
from fpa.errors import InputError
from fpa.explanation import Settings, explain

FEW = Settings(ig_steps=4, sg_samples=3)


def images(count=3, size=16, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def trained_statistics(model, seed=0):
    """Batch norms with statistics and weights worth folding."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in [
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.3, 0.3),
            ]:
                tensor.uniform_(low, high, generator=generator)
    return model


def small(classes=5):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers += [nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)]
    return trained_statistics(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))
    )


def gradients(engine, rows, targets):
    """Plain use of the engine: the gradient of every row."""
    found = torch.empty_like(rows)

    def take(start, stop, part):
        found[start:stop] = part

    engine.gradients([Work(len(rows), lambda a, b: rows[a:b], take, lambda a, b: targets[a:b])])
    return found


def plain_gradients(model, rows, targets):
    model = copy.deepcopy(model).eval()
    found = []
    for row, target in zip(rows, targets, strict=True):
        row = row[None].clone().requires_grad_()
        found.append(torch.autograd.grad(model(row.clone())[0, target], row)[0])
    return torch.cat(found)


def test_model_is_left_as_it_was_found():
    model = small()
    model.train()
    model[3].eval()
    model[0].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    handle = model[0].register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    grad = model[3].weight.grad
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    layers = list(model.modules())

    def rude(model, rows, targets):
        rows.requires_grad_()
        model(rows).sum().backward()
        return rows.grad

    explain(model, images(), {"ig": "ig_sum", "rude": rude}, settings=FEW)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert model[3].weight.grad is grad
    assert (grad == 1).all()
    assert all(p.grad is None for p in model.parameters() if p is not model[3].weight)
    assert list(model.modules()) == layers
    assert list(model[0]._forward_hooks) == [handle.id]
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_dropout_and_batch_norm_run_in_eval_mode_though_the_model_trains():
    model = small().train()
    rows, targets = images(), torch.tensor([0, 1, 2])
    torch.testing.assert_close(Engine(model).predict(rows), copy.deepcopy(model).eval()(rows))
    torch.testing.assert_close(
        gradients(Engine(model), rows, targets), plain_gradients(model, rows, targets), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    "make", [small, lambda: trained_statistics(torchvision.models.resnet18(num_classes=7))]
)
def test_folding_changes_nothing_but_rounding(make):
    torch.manual_seed(0)
    model = make().eval()
    folded = copy.deepcopy(model)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert fold_batch_norm(folded) == norms
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    rows = images(2, 32)
    with torch.no_grad():
        torch.testing.assert_close(folded(rows), model(rows), rtol=1e-4, atol=1e-4)


class Shared(nn.Module):
    """One convolution feeds two batch norms, and one batch norm two places: none may be folded."""

    def __init__(self):
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return (self.one(y) + self.two(y) + self.one(self.conv(y))).mean((2, 3))


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x.mean((2, 3)) if x.mean() > 1e6 else x.amax((2, 3))


class Functional(nn.Module):
    """Functional batch norm, a view that needs contiguous memory, an operation in place on the input."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 14 * 14, 4)
        self.register_buffer("mean", torch.rand(4))
        self.register_buffer("var", 1 + torch.rand(4))

    def forward(self, x):
        x = x.mul_(2)
        x = functional.relu_(functional.batch_norm(self.conv(x), self.mean, self.var))
        return self.head(x.view(len(x), -1))


class Uncopyable(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small(4)

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("make", [Shared, Untraceable, Functional])
def test_any_module_runs(make):
    torch.manual_seed(1)
    model = trained_statistics(make())
    rows, targets = images(), torch.tensor([0, 2, 1])
    before = rows.clone()
    found = gradients(Engine(model, batch_size=2), rows, targets)
    torch.testing.assert_close(found, plain_gradients(model, rows, targets), rtol=1e-4, atol=1e-5)
    assert torch.equal(rows, before)


def test_a_model_that_cannot_be_copied_is_borrowed():
    model = Uncopyable().train()
    rows, targets = images(), torch.tensor([0, 2, 1])
    found = gradients(Engine(model), rows, targets)
    torch.testing.assert_close(found, plain_gradients(model.inner, rows, targets), rtol=1e-4, atol=1e-6)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_works_inside_inference_mode():
    names = ["ig_sum", "sg_abs", "vgx_sum"]
    expected = explain(small(), images(), names, settings=FEW)
    with torch.inference_mode():
        found = explain(small(), images(), names, settings=FEW)
    torch.testing.assert_close(found, expected)


class Tight(nn.Module):
    """A device with room for `most` rows."""

    def __init__(self, most):
        super().__init__()
        self.net, self.most, self.seen = small(), most, []

    def forward(self, x):
        self.seen.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.net(x)


def test_out_of_memory_halves_the_batch_and_tells():
    rows, targets = images(21), torch.arange(21) % 5
    engine = Engine(Tight(3), batch_size=16)
    with pytest.warns(
        UserWarning, match=r"out of memory at 4 rows per batch \(gradients\): continuing with 2"
    ):
        found = gradients(engine, rows, targets)
    torch.testing.assert_close(found, plain_gradients(small(), rows, targets), rtol=1e-4, atol=1e-6)
    assert engine.batch_size("gradients", rows[:1]) == 2


def test_one_row_too_many_for_the_memory_is_said():
    class Full(nn.Flatten):
        def forward(self, x):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(InputError, match="not enough memory for one row"):
        Engine(Full(), batch_size=4).predict(images(8))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_precisions_agree(precision, compiled):
    model, rows = small(), images(5)
    targets = torch.arange(5)
    engine = Engine(model, precision=Precision(precision, precision), batch_size=4, compile=compiled)
    found, expected = gradients(engine, rows, targets), plain_gradients(model, rows, targets)
    # In bfloat16 a ReLU near 0 may fall on the other side, so gradients agree on the whole only.
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= (0.15 if precision == "bfloat16" else 1e-4) * expected.norm()
    logits = []
    engine.logits([Work(5, lambda a, b: rows[a:b], lambda a, b, part: logits.append(part))])
    exact = engine.predict(rows)
    torch.testing.assert_close(exact, copy.deepcopy(model).eval()(rows).detach())
    tolerance = 0.02 if precision == "bfloat16" else 1e-4
    assert (torch.cat(logits) - exact).abs().max() <= tolerance * exact.abs().max()


def test_bfloat16_logits_keep_the_digits_of_float32():
    """The last linear layer stays float32: logits are not rounded to three digits."""
    engine = Engine(small(), precision=Precision("bfloat16", "bfloat16"))
    logits = []
    engine.logits([Work(9, lambda a, b: images(9)[a:b], lambda a, b, part: logits.append(part))])
    assert not torch.equal(logits[0], logits[0].bfloat16().float())


def test_float64_models_stay_float64():
    model, rows = small().double(), images().double()
    assert Engine(model, precision=Precision("bfloat16", "bfloat16")).predict(rows).dtype == torch.float64
    found = gradients(Engine(model), rows, torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(found, plain_gradients(model, rows, [0, 0, 0]), rtol=1e-9, atol=1e-12)


def test_batches_fit_the_memory_given():
    row = images(1, 32)
    loose, tight = (
        Engine(torchvision.models.resnet18()),
        Engine(torchvision.models.resnet18(), memory=8 << 20),
    )
    assert tight.batch_size("gradients", row) < loose.batch_size("gradients", row)
    assert loose.peak_memory > 0


def test_vision_transformer():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4)
    rows, targets = images(2, 32), torch.tensor([0, 3])
    found = gradients(Engine(model), rows, targets)
    torch.testing.assert_close(found, plain_gradients(model, rows, targets), rtol=1e-3, atol=1e-6)
    half = gradients(Engine(model, precision=Precision("bfloat16", "bfloat16")), rows, targets)
    assert (half - found).norm() < 0.1 * found.norm()


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (
            nn.Conv2d(3, 4, 3),
            images(),
            r"logits \[N, classes\], got torch.float32 \[3, 4, 14, 14\] for 3 images",
        ),
        (nn.Flatten(0), images(), r"logits \[N, classes\], got torch.float32 \[2304\]"),
        (small(), images()[0], r"images must be a tensor \[N, C, H, W\], got \[3, 16, 16\]"),
        (small(), images()[:0], "empty batch"),
        (small(), images().byte(), "must be floating point"),
        (lambda x: x, images(), "must be a torch.nn.Module, got <function"),
    ],
)
def test_bad_input(model, given, message):
    with pytest.raises(InputError, match=message):
        Engine(model).predict(given)


def test_a_model_that_returns_a_tuple():
    class Pair(nn.Module):
        def forward(self, x):
            return x.flatten(1), x

    with pytest.raises(InputError, match=r"must return logits \[N, classes\], got tuple"):
        Engine(Pair()).predict(images())


def test_a_model_that_cannot_be_differentiated():
    class Detached(nn.Module):
        def forward(self, x):
            return x.detach().flatten(1)

    with pytest.raises(InputError, match="cannot be differentiated"):
        explain(Detached(), images(), "vg_abs")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 5, -1]), r"in 0..4; 5 of image 1 is not \(and 1 more\)"),
        (torch.tensor([0, 1]), r"whole numbers \[3\]"),
        (torch.tensor([0.0, 1.0, 2.0]), r"whole numbers \[3\]"),
        (7, "7 of image 0 is not"),
    ],
)
def test_bad_targets(targets, message):
    with pytest.raises(InputError, match=message):
        explain(small(), images(), "vg_abs", targets=targets)


def test_bad_precision():
    with pytest.raises(InputError, match="unknown precision 'bfloat': did you mean 'bfloat16'"):
        Precision("bfloat")


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("before", ["highest", "high"])
def test_switches_of_tf32_come_back_as_they_were(before, tf32):
    def state():
        backends = torch.backends
        parts = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
        newer = [part.fp32_precision for part in parts]
        return (
            newer,
            torch.get_float32_matmul_precision(),
            backends.cudnn.allow_tf32,
            backends.cudnn.benchmark,
        )

    start = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(before)
        found = state()
        with cuda_arithmetic(tf32, benchmark=True):
            assert torch.backends.cuda.matmul.allow_tf32 == tf32
            assert torch.backends.cudnn.allow_tf32 == tf32
            assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert state() == found
    finally:
        torch.set_float32_matmul_precision(start)


def test_the_forms_used_are_told():
    rows, targets = images(2), torch.tensor([0, 1])
    engine = Engine(small(), precision=Precision("bfloat16", "float32"))
    assert engine.forms_used == {}
    gradients(engine, rows, targets)
    assert engine.forms_used == {"gradients": "bfloat16, batch norms folded, channels last"}
    engine.predict(rows)
    engine.logits([Work(2, lambda a, b: rows[a:b], lambda a, b, logits: None)])
    assert engine.forms_used["forwards"] == "float32, batch norms folded, channels last"
    assert engine.forms_used["exact"] == "float32"


def test_a_form_that_breaks_is_not_the_one_told():
    """In bfloat16 this model fails: it runs in the arithmetic that works, and that is what is said."""

    class OnlyFloat32(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3 * 16 * 16, 4)

        def forward(self, x):
            if self.head.weight.dtype != torch.float32:
                raise RuntimeError("not in this arithmetic")
            return self.head(x.flatten(1))

    engine = Engine(OnlyFloat32(), precision=Precision("bfloat16", "bfloat16"))
    gradients(engine, images(2), torch.tensor([0, 1]))
    assert engine.forms_used == {"gradients": "bfloat16 by autocast, channels last"}


def test_a_model_that_cannot_be_copied_is_said_to_be_borrowed():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3 * 16 * 16, 4)

        def __deepcopy__(self, memo):
            raise TypeError("there is only one")

        def forward(self, x):
            return self.head(x.flatten(1))

    engine = Engine(Single())
    gradients(engine, images(2), torch.tensor([0, 1]))
    assert engine.forms_used == {"gradients": "float32, not copied"}
