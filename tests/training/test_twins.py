"""How far a twin has moved from its original, against scipy and PyTorch's own parts."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import nn

import fpa
from fpa.data.splits import first_images
from fpa.errors import InputError
from fpa.training.twins import TwinDistance, read_distance, twin_distance

IMAGES = torch.randn(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(30) % 4


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))


def test_equals_the_same_one_image_at_a_time():
    before, after = network(0), network(1)
    old, new = ([model(image[None])[0] for image in IMAGES] for model in (before, after))
    same = [int(first.argmax()) == int(second.argmax()) for first, second in zip(old, new, strict=True)]
    centred = [torch.cat([each - each.mean() for each in logits]).detach().numpy() for logits in (old, new)]
    similar = []
    for image, logits in zip(IMAGES, old, strict=True):
        maps = []
        for model in (before, after):
            row = image[None].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(row)[0, int(logits.argmax())], row)
            maps.append((gradient * image).sum(1).flatten().numpy())
        similar.append(spearmanr(*maps).statistic)
    found = twin_distance(before, after, IMAGES)
    assert (found.images, found.learned_from) == (30, False)
    assert found.agreement == pytest.approx(sum(same) / 30)
    assert found.logits == pytest.approx(pearsonr(*centred).statistic, abs=1e-6)
    assert found.maps == pytest.approx(sum(similar) / 30, abs=1e-6)


def test_the_models_stay_as_they_were():
    before, after = network(0), network(1).train()
    twin_distance(before, after, IMAGES)
    assert after.training
    assert all(weight.requires_grad and weight.grad is None for weight in after.parameters())


def test_maps_without_a_gradient_are_not_known():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network(0)

        def forward(self, images):
            return self.inner(images.detach())

    found = twin_distance(Detached(), Detached(), IMAGES)
    assert (found.agreement, found.logits, found.maps) == (1.0, 1.0, None)


@pytest.mark.parametrize(
    ("rate", "low"), [(1e-6, False), (3.0, True)], ids=["hardly trained", "trained to pieces"]
)
def test_finetuning_says_how_far_it_went(rate, low, capsys, recwarn):
    tuned = fpa.finetune(
        network(0),
        (IMAGES, LABELS),
        epochs=2,
        learning_rate=rate,
        batch_size=6,
        fpa={"s_max": 1},
        device="cpu",
    )
    found = twin_distance(network(0), tuned, IMAGES)
    assert found.is_low is low
    assert "compared with the original on 30 images without masks, among those it" in capsys.readouterr().err
    forgot = [str(each.message) for each in recwarn if "as before: it says little" in str(each.message)]
    assert len(forgot) == low


def test_the_card_keeps_it_and_a_finished_training_tells_it_again(tmp_path, capsys):
    data = fpa.load_data("shapes")
    few = (data.normalisation(data.train.images[:16]), data.train.labels[:16])
    how = {"epochs": 1, "batch_size": 8, "device": "cpu", "folder": tmp_path}
    model = fpa.load_model("shapes-none")
    tuned = fpa.finetune(model, few, **how)
    expected = twin_distance(model, tuned, few[0], learned_from=True)
    assert tuned.card.distance == pytest.approx(expected.to_json())
    stored = fpa.load_model(tmp_path / "model.safetensors").card
    assert read_distance(stored.distance) == TwinDistance(**tuned.card.distance)
    capsys.readouterr()
    assert fpa.finetune(model, few, **how).card.distance == stored.distance
    assert str(TwinDistance(**stored.distance)) in capsys.readouterr().err


@pytest.mark.parametrize("stored", [{}, {"images": 3}, {"far": 1}])
def test_a_forged_distance_is_refused(stored):
    with pytest.raises(InputError, match="the distance of a card has no"):
        read_distance(stored)


@pytest.mark.parametrize(("name", "value"), [("clean", 1.0), ("clean", -0.1), ("way", 0.0), ("way", 1.5)])
def test_shares_that_mean_nothing_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} must be a share in"):
        fpa.finetune(network(0), (IMAGES, LABELS), device="cpu", **{name: value})


def test_the_accuracy_and_the_card_are_those_of_the_weights_between(tmp_path):
    data = fpa.load_data("shapes")
    few = replace(data, train=first_images(data.train, 32), evaluation=data.evaluation[:40])
    model = fpa.load_model("shapes-none")
    how = {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "progress": False}
    tuned = fpa.finetune(model, few, way=0.5, clean=0.5, folder=tmp_path, **how)
    images = data.normalisation(data.test.images[few.evaluation])
    same = model(images).argmax(1) == tuned(images).argmax(1)
    assert (
        tuned.card.accuracy == tuned.card.distance["agreement"] == pytest.approx(float(same.float().mean()))
    )
    assert (tuned.card.recipe["way"], tuned.card.recipe["clean"]) == (0.5, 0.5)
    with pytest.raises(InputError, match=r"other settings \(way: 0.5 -> None\)"):
        fpa.finetune(model, few, clean=0.5, folder=tmp_path, **how)
