"""Trainings that start from trained weights: what is taken over, what is new, what is refused."""

import pytest
import torch
import torchvision

from fpa import InputError
from fpa.data import load_data
from fpa.models import build_model
from fpa.models.starting import start_from, starting_weights
from fpa.study.recipe import load_recipe
from fpa.study.trainings import check_data, recipe_jobs, train


def write_weights(path, seed=0, classes=7):
    """Of a small classifier of torchvision with other classes than the data will have."""
    torch.manual_seed(seed)
    model = torchvision.models.squeezenet1_1(weights=None, num_classes=classes)
    torch.save(model.state_dict(), path)
    return model.state_dict()


def recipe_with(weights, **fields):
    changed = {"model": "torchvision:squeezenet1_1", "weights": str(weights), "augmentations": ["none"]}
    return load_recipe("tiny", changed | fields)


def test_all_but_the_layer_of_the_classes_is_taken_over(tmp_path):
    trained = write_weights(tmp_path / "weights.pth")
    data = load_data("shapes")
    (job,) = recipe_jobs(recipe_with(tmp_path / "weights.pth"), tmp_path, data)
    started = job.model().state_dict()
    new = {name for name, value in started.items() if value.shape != trained[name].shape}
    assert new == {"classifier.1.weight", "classifier.1.bias"}
    assert all(started[name].equal(trained[name]) for name in started.keys() - new)
    (other,) = recipe_jobs(recipe_with(tmp_path / "weights.pth", seed=1), tmp_path, data)
    assert not other.model().state_dict()["classifier.1.weight"].equal(started["classifier.1.weight"])


def test_as_many_classes_are_taken_over_whole(tmp_path):
    trained = write_weights(tmp_path / "weights.pth", classes=8)
    model = build_model("squeezenet1_1", 8, (3, 32, 32))
    start_from(model, starting_weights("squeezenet1_1", tmp_path / "weights.pth"), "squeezenet1_1")
    assert all(value.equal(trained[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "weights", "words"),
    [
        ("torchvision:squeezenet1_1", "gone.pth", r"gone\.pth"),
        (
            "torchvision:mobilenet_v2",
            "weights.pth",
            "does not hold weights of the architecture .*mobilenet_v2",
        ),
        ("resnet-small", "DEFAULT", "resnet-small has no published weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_work(model, weights, words, tmp_path):
    write_weights(tmp_path / "weights.pth")
    place = weights if weights == "DEFAULT" else tmp_path / weights
    with pytest.raises(InputError, match=words):
        check_data(recipe_with(place, model=model), load_data("shapes"))


def test_weights_for_other_channels_are_refused(tmp_path):
    torch.save(build_model("resnet-small", 5, (1, 32, 32)).state_dict(), tmp_path / "grey.pth")
    words = "does not hold weights of the architecture 'resnet-small': of another shape: stem.0.weight"
    with pytest.raises(InputError, match=words):
        check_data(recipe_with(tmp_path / "grey.pth", model="resnet-small"), load_data("shapes"))


def test_a_training_goes_on_only_from_the_same_weights(tmp_path):
    torch.save(build_model("resnet-small", 5, (3, 32, 32)).state_dict(), tmp_path / "weights.pth")
    recipe = recipe_with(tmp_path / "weights.pth", model="resnet-small")
    (trained,) = train(recipe, tmp_path / "out", device="cpu")
    (again,) = train(recipe, tmp_path / "out", device="cpu")
    assert again.accuracy == trained.accuracy
    torch.save(build_model("resnet-small", 5, (3, 32, 32), seed=1).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=r"weights\.pth holds other weights than it did"):
        train(recipe, tmp_path / "out", device="cpu")
