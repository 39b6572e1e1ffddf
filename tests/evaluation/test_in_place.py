"""Functions of the user's own that work in place: they give the right numbers, or are refused by name."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa import functional
from fpa.engine.outputs import OUTPUTS, output
from fpa.explanation import SmoothGrad
from fpa.masking import Fill, Masking
from fpa.training.transform import BatchMasking

QUICK = {"points": 5, "examples": 0, "progress": False, "ig_steps": 3, "sg_samples": 2}


@pytest.fixture
def images():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)).eval()
    nn.init.constant_(model[3].bias, 6.0)
    return model


def areas(net, images, estimators=("ig_sum", "vg_abs", "sg_abs"), **options):
    """A of every estimator; the images and the model given must not change."""
    before = images.clone()
    weights = copy.deepcopy(net.state_dict())
    result = fpa.evaluate(net, images, estimators, **QUICK | options)
    assert torch.equal(images, before)
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    return {name: fidelity.area for name, fidelity in result.fidelity.items()}


def in_place(images, mask):
    return images.masked_fill_(mask[:, None], 0)


def in_numpy(images, mask):
    pixels = images.numpy()
    pixels[np.broadcast_to(mask.numpy()[:, None], pixels.shape)] = 0
    return images


def all_at_once(images, mask):
    mask[:] = mask.clone()
    images *= ~mask[:, None]
    return images


class Object(Masking):
    def noise(self, images, generator=None):
        images.zero_()
        return images[:, :1].clone()

    def __call__(self, images, mask, noise=None):
        noise.fill_(3)
        return images.masked_fill_(mask[:, None], 0)


class Filling(Fill):
    def fill(self, images, noise=None):
        return images.zero_()


class Reusing(Masking):
    """Hands out the same memory at every call."""

    def __init__(self):
        self.room = torch.empty(4096, 3, 8, 8)

    def __call__(self, images, mask, noise=None):
        return torch.where(mask[:, None], torch.zeros(()), images, out=self.room[: len(images)])


@pytest.mark.parametrize(
    "masking",
    [in_place, in_numpy, all_at_once, Object(), Filling(), Reusing()],
    ids=lambda each: str(each)[:20],
)
def test_a_masking_in_place_scores_as_one_that_copies(net, images, masking):
    right = areas(net, images)
    assert areas(net, images, masking=masking) == right
    assert areas(net, images, maskings={"other": masking}) == right


def test_a_masking_in_place_in_every_other_call(net, images):
    before = images.clone()
    maps = fpa.explain(net, images, ["ig_sum"], settings=fpa.Settings(ig_steps=3), masking=in_place)
    right = fpa.explain(net, images, ["ig_sum"], settings=fpa.Settings(ig_steps=3))
    assert torch.equal(maps["ig_sum"], right["ig_sum"])
    curves, plain = (
        fpa.perturbation_curves(net, images, maps, points=3, masking=m) for m in (in_place, None)
    )
    assert torch.equal(curves.mif["ig_sum"], plain.mif["ig_sum"])
    mask = torch.rand(6, 8, 8) < 0.5
    asked = mask.clone()
    assert torch.equal(functional.remove(images, mask, in_place), images.masked_fill(mask[:, None], 0))
    assert torch.equal(mask, asked)
    fpa.FPA(p=1.0, masking=in_place)(images)
    assert torch.equal(images, before)
    audited = fpa.audit(net, images, ["vg_abs", "vgx_sum"], maskings=[in_place], points=5, progress=False)
    assert audited is not None
    assert torch.equal(images, before)


def test_fine_tuning_shows_the_teacher_whole_images(net, images, monkeypatch):
    """With a masking in place the network would learn what it says of masked images."""
    tuned = []
    for masking in (in_place, "constant"):
        augment = fpa.FPA(p=1.0, p1_max=0.9, masking=masking)
        data = (images.clone(), [0, 1, 2, 3, 0, 1])
        model = fpa.finetune(
            net, data, fpa=augment, epochs=2, batch_size=3, learning_rate=0.1, targets="model", device="cpu"
        )
        tuned.append(torch.cat([value.flatten().float() for value in model.state_dict().values()]))
        assert torch.equal(data[0], images)
    assert torch.equal(*tuned)


def spoiling(model, images, targets):
    raw = 2 * images
    images.zero_()
    targets.fill_(3)
    return raw


def from_arrays(model, inputs, targets):
    raw = 2 * inputs
    inputs[:] = 0
    targets[:] = 3
    return raw


class Attribution:
    """In the manner of Captum's objects."""

    def attribute(self, images, target):
        raw = 2 * images.detach()
        images.detach().zero_()
        target.fill_(3)
        return raw


_ROOM = torch.empty(6, 3, 8, 8)


def reusing(model, images, targets):
    return torch.mul(images, 2, out=_ROOM[: len(images)])


class Squared(SmoothGrad):
    family = "squared in place"

    def prepare(self, task):
        prepared = super().prepare(task)
        task.images.zero_()
        task.targets.fill_(3)
        return prepared

    def each(self, gradients):
        return gradients.square_()


@pytest.mark.parametrize(
    "mine", [spoiling, from_arrays, Attribution(), reusing], ids=lambda each: str(each)[:20]
)
def test_an_estimator_in_place_changes_nothing_for_the_others(net, images, mine):
    right = areas(net, images, {"mine": lambda model, images, targets: 2 * images, "vg_abs": "vg_abs"})
    assert areas(net, images, {"mine": mine, "vg_abs": "vg_abs"}, batch_size=2) == pytest.approx(right)


def test_a_family_of_ones_own_shares_points_but_not_tensors(net, images):
    right = areas(net, images, ["sg_sum", "vg_abs"])
    with_mine = areas(
        net, images, {"mine": Squared(2, 0.15), "sg_sum": SmoothGrad(2, 0.15), "vg_abs": "vg_abs"}
    )
    assert {name: with_mine[name] for name in right} == right


def training(model, images, targets):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return images


def putting_back(model, images, targets):
    state = copy.deepcopy(model.state_dict())
    training(model, images, targets)
    model.load_state_dict(state)
    return 2 * images


def test_an_estimator_that_changes_the_model_is_refused_by_name_unless_it_puts_it_back(net, images):
    with pytest.raises(fpa.InputError, match=r"estimator mine changes the model \(0.bias\)"):
        areas(net, images, {"mine": training, "vg_abs": "vg_abs"})
    right = areas(net, images, ["vg_abs"])
    assert areas(net, images, {"mine": putting_back, "vg_abs": "vg_abs"})["vg_abs"] == right["vg_abs"]
    with torch.inference_mode():
        frozen = copy.deepcopy(net)
        frozen.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    with pytest.raises(fpa.InputError, match="estimator mine changes the model"):
        fpa.evaluate(
            frozen, images, {"mine": lambda m, x, y: (m[3].bias.data.numpy().fill(0), x)[1]}, **QUICK
        )


def breaking_off(model, images, targets):
    training(model, images, targets)
    raise ZeroDivisionError


def test_a_model_that_an_estimator_changed_before_it_failed_is_put_back(net, images):
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ZeroDivisionError):
        areas(net, images, {"mine": breaking_off})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Spoiling(fpa.Score):
    name = "spoiling"
    title = "sets everything to 0"
    source = "here"
    higher_is_better = True
    needs = frozenset({"curves", "raw maps", "forwards"})

    def __call__(self, block):
        for by_name in (block.maps, block.raw_maps, block.curves["logit"].mif, block.curves["logit"].lif):
            for tensor in by_name.values():
                tensor.zero_()
        block.logits.zero_()
        block.task.images.zero_()
        block.task.targets.zero_()
        return {name: torch.zeros(len(block.labels)) for name in block.estimators}


class SpoilsShared(Spoiling):
    name = "spoils_shared"

    def __call__(self, block):
        for found in block._shared.values():
            for tensor in found.values() if isinstance(found, dict) else found:
                tensor.zero_()
        return {name: torch.zeros(len(block.labels)) for name in block.estimators}


def test_a_score_in_place_changes_nothing_for_the_others_or_is_refused(net, images):
    def scored(*scores):
        result = fpa.evaluate(net, images, ["vg_abs", "vgx_sum"], scores=scores, **QUICK)
        return {name: {key: each.tolist() for key, each in result.evaluation.values[name].items()}
                for name in ("A", "aopc", "infidelity")}  # fmt: skip

    assert scored(Spoiling(), "aopc", "infidelity") == scored("aopc", "infidelity")
    with pytest.raises(
        fpa.InputError, match="the score spoils_shared changes in place what other scores read"
    ):
        scored("infidelity", SpoilsShared(), "aopc")


def test_an_output_in_place_changes_nothing_for_the_others(net, images):
    @output()
    def spoiled(logits, targets, labels):
        values = logits.gather(1, targets[:, None])[:, 0].clone()
        logits.zero_()
        labels.zero_()
        return values

    try:
        both = fpa.evaluate(net, images, ["vg_abs"], outputs=["spoiled", "logit"], maps_of="logit", **QUICK)
        right = fpa.evaluate(net, images, ["vg_abs"], **QUICK).evaluation
        assert np.array_equal(both.evaluation.others["logit"].mif["vg_abs"], right.mif["vg_abs"])
        assert np.array_equal(both.evaluation.mif["vg_abs"], right.mif["vg_abs"])
    finally:
        OUTPUTS.pop("spoiled")


def test_fpas_own_maskings_are_not_slowed_down_by_copies():
    """Copies are for what is not fpa's own: in a training step they would cost."""
    assert not any(fpa.get_masking(name).is_users for name in ("constant", "blur", "mean", "uniform", "road"))
    assert issubclass(fpa.FPA, BatchMasking)
    assert fpa.get_masking(in_place).is_users
    assert Object().is_users
