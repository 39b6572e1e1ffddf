"""What a stored evaluation can be continued with: the same model, judge, images, normalisation and masks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fpa
from fpa.data import digests
from fpa.evaluation.answers import GRADIENTS, LOGITS, Answers
from fpa.evaluation.probing import answers_now, fixed_images
from fpa.files import read_json, write_json

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
QUICK = {"estimators": ["vg_abs", "vgx_sum"], "points": 3, "examples": 0, "progress": False}
MASKS = torch.arange(8).lt(4)[None, :, None].expand(6, 8, 8).clone()


def net(activation=nn.ReLU):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Flatten(), nn.Linear(256, 4))
    nn.init.constant_(layers[3].bias, 6.0)
    return layers.eval()


def scaled_by(factor):
    model = net()
    model[0].register_forward_hook(lambda module, inputs, output: factor * output)
    return model


class Straight(torch.autograd.Function):
    """Says the same, with gradients of the opposite sign."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return -gradient


def turned(sign):
    model = net()
    if sign < 0:
        model.register_forward_hook(lambda module, inputs, output: Straight.apply(output))
    else:
        model.register_forward_hook(lambda module, inputs, output: output)
    return model


def stored(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*.parquet")}


def evaluate(folder, model=None, data=IMAGES, **options):
    return fpa.evaluate(model or net(), data, **QUICK | options, folder=folder)


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (net, nn.ReLU, nn.GELU),
        (net, lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.2)),
        (scaled_by, 1.0, 1.1),
        (turned, 1, -1),
    ],
    ids=["activation", "attribute of a layer", "value in a hook", "gradients alone"],
)
def test_a_model_of_the_same_weights_that_answers_otherwise_is_refused(tmp_path, make, before, after):
    options = [{"model": make(each)} for each in (before, after)]
    for name, (one, other) in {
        "model": options,
        "judge": [{"judge": each["model"]} for each in options],
    }.items():
        evaluate(tmp_path / name, **one)
        kept = stored(tmp_path / name)
        evaluate(tmp_path / name, **one)
        with pytest.raises(fpa.InputError, match=rf"of another {name}: the weights are the same|other code"):
            evaluate(tmp_path / name, **other)
        assert stored(tmp_path / name) == kept


def test_a_folder_without_answers_goes_on_and_gains_them(tmp_path):
    first = evaluate(tmp_path)
    file = tmp_path / "evaluation.json"
    about = read_json(file)
    answers = about.pop("answers")
    assert set(answers) == {"model"}
    write_json(file, about)
    next(tmp_path.glob("blocks/block-*")).unlink()
    result = evaluate(tmp_path)
    for name, values in first.evaluation.values["A"].items():
        assert np.array_equal(result.evaluation.values["A"][name], values)
    assert read_json(file)["answers"] == answers
    assert result.plan == about["plan"]
    with pytest.raises(fpa.InputError, match="of another model"):
        evaluate(tmp_path, net(nn.GELU))


def test_blocks_without_their_evaluation_json_know_what_their_models_answered(tmp_path):
    first = evaluate(tmp_path, judge=net())
    kept = stored(tmp_path)
    file = tmp_path / "evaluation.json"
    answers = read_json(file)["answers"]
    file.unlink()
    for other in ({"model": net(nn.GELU), "judge": net()}, {"judge": net(nn.GELU)}):
        with pytest.raises(fpa.InputError, match=r"holds an evaluation of another (model|judge)"):
            evaluate(tmp_path, **other)
        assert stored(tmp_path) == kept
        assert not file.exists()
    again = evaluate(tmp_path, judge=net())
    assert stored(tmp_path) == kept
    assert read_json(file)["answers"] == answers
    assert again.fidelity["vg_abs"].area == first.fidelity["vg_abs"].area


def test_answers_are_those_of_the_network_and_their_tolerance_is_that_of_the_arithmetic_stored():
    model = net()
    images = fixed_images(torch.Size([3, 8, 8]))
    answers = answers_now(fpa.Engine(model), torch.Size([3, 8, 8]))
    rows = images.clone().requires_grad_()
    logits = model(rows)
    (gradients,) = torch.autograd.grad((logits * torch.tensor([1.0, -1, 1, -1])).sum(), rows)
    for found, values in ((answers.logits, logits.detach()), (answers.gradients, gradients)):
        np.testing.assert_allclose(found, fpa.data.sketches(values).numpy(), rtol=1e-4, atol=1e-5)
    for arithmetic, most in LOGITS.items():
        before = Answers(arithmetic, [[1.0, -1.0]], [[1.0, 1.0]])
        assert before.is_like(Answers("float64", [[1 + 0.9 * most, -1 - 0.9 * most]]))
        assert not before.is_like(Answers("float64", [[1 + 1.1 * most, -1 - 1.1 * most]]))
        shifted = [[1 + 1.1 * GRADIENTS[arithmetic], 1 + 1.1 * GRADIENTS[arithmetic]]]
        assert not before.is_like(Answers("float64", [[1.0, -1.0]], shifted))
    detached = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    detached.register_forward_hook(lambda module, inputs, output: output.detach())
    assert answers_now(fpa.Engine(detached), torch.Size([3, 8, 8])).gradients is None


@pytest.mark.parametrize(
    "damage", [{"model": []}, {"model": {"arithmetic": "x", "logits": []}}, {"model": {"logits": "x"}}, 3]
)
def test_forged_answers_are_damage(tmp_path, damage):
    evaluate(tmp_path)
    file = tmp_path / "evaluation.json"
    write_json(file, read_json(file) | {"answers": damage})
    with pytest.raises(fpa.InputError, match=r"evaluation\.json"):
        evaluate(tmp_path)


@pytest.mark.parametrize(
    "form", [lambda x: x, lambda x: x.numpy(), lambda x: DataLoader(TensorDataset(x), 4)]
)
@pytest.mark.parametrize(
    "change", [lambda x: x + 0.01, lambda x: 1.02 * x, lambda x: x + 1e-5 * torch.eye(8)]
)
def test_tensors_are_compared_to_the_bit(tmp_path, form, change):
    evaluate(tmp_path, data=form(IMAGES))
    evaluate(tmp_path, data=form(IMAGES.clone()))
    with pytest.raises(fpa.InputError, match="of other images"):
        evaluate(tmp_path, data=form(change(IMAGES)))


def test_another_normalisation_is_refused(tmp_path):
    unit = torch.rand(6, 3, 8, 8)
    half = fpa.Normalisation((0.5,) * 3, (0.5,) * 3)
    near = fpa.Normalisation((0.499,) * 3, (0.5,) * 3)
    evaluate(tmp_path / "tensor", data=unit, normalisation=half)
    with pytest.raises(fpa.InputError, match="of other images"):
        evaluate(tmp_path / "tensor", data=unit, normalisation=near)
    photos = tmp_path / "photos" / "val" / "a"
    photos.mkdir(parents=True)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (224, 224, 3), np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(192, 4))
    nn.init.constant_(model[2].bias, 6.0)
    named = {"model": model, "data": f"folder:{tmp_path / 'photos'}", "estimators": ["random"]}
    evaluate(tmp_path / "files", **named, normalisation=half)
    evaluate(tmp_path / "files", **named, normalisation=half)
    with pytest.raises(fpa.InputError, match="of images normalised otherwise"):
        evaluate(tmp_path / "files", **named, normalisation=near)


def test_photos_are_compared_within_the_rounding_of_a_decoder(tmp_path):
    class Photos(torch.utils.data.Dataset):
        def __init__(self, change):
            self.change = change

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.change(IMAGES[index])

    evaluate(tmp_path, data=DataLoader(Photos(lambda x: x), 4))
    noise = 0.012 * torch.randint(-1, 2, (3, 8, 8), generator=torch.Generator().manual_seed(0))
    noise -= noise.mean((1, 2), keepdim=True)
    evaluate(tmp_path, data=DataLoader(Photos(lambda x: x + noise), 4))
    for change in (lambda x: x + 0.01, lambda x: x + 10 * noise):
        with pytest.raises(fpa.InputError, match="of other images"):
            evaluate(tmp_path, data=DataLoader(Photos(change), 4))


def test_other_masks_are_refused(tmp_path):
    evaluate(tmp_path, masks=MASKS, scores=["A", "pointing_game"])
    evaluate(tmp_path, masks=MASKS.numpy(), scores=["A", "pointing_game"])
    other = MASKS.clone()
    other[3, 0, 0] = False
    with pytest.raises(fpa.InputError, match="with other masks of the objects"):
        evaluate(tmp_path, masks=other, scores=["A", "pointing_game"])


def test_digests_tell_every_bit_and_the_shape():
    assert digests(IMAGES).tolist() == digests(IMAGES.clone()).tolist()
    assert len(set(digests(IMAGES).tolist())) == len(IMAGES)
    assert digests(IMAGES[:1]).tolist() != digests(IMAGES[:1].reshape(1, 3, 4, 16)).tolist()
    assert digests(torch.zeros(1, 2, 2)).tolist() != digests(-torch.zeros(1, 2, 2)).tolist()


class Grey(fpa.masking.Masking):
    def __init__(self, value):
        self._value = value

    def __call__(self, images, mask, noise=None):
        return images.masked_fill(mask[:, None], self._value)


class Middle(fpa.Score):
    name = "middle"
    title = "the curve in the middle"
    source = "here"
    higher_is_better = False

    def __init__(self, factor):
        self._factor = factor

    def __call__(self, block):
        return {name: self._factor * each[:, 1] for name, each in block.curves[block.output].mif.items()}


@pytest.mark.parametrize(
    "options", [lambda value: {"masking": Grey(value)}, lambda value: {"scores": [Middle(value)]}]
)
def test_private_attributes_of_maskings_and_scores_count(tmp_path, options):
    evaluate(tmp_path, **options(0.5))
    evaluate(tmp_path, **options(0.5))
    with pytest.raises(fpa.InputError, match="with other"):
        evaluate(tmp_path, **options(0.25))
