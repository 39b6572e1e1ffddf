"""What fine-tuning does to images beside masking them: crops and flips, and how they are turned off."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fpa
from fpa.cli.main import main
from fpa.data import load_data
from fpa.data.crops import RandomCrop
from fpa.errors import InputError
from fpa.training.tuning_images import DataSetImages, LoaderImages, Variation
from miniatures import write_class_folder


def linear(side=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 4))


class Recorded(nn.Module):
    """Remembers the images that it was shown while its weights could change."""

    def __init__(self, side=16):
        super().__init__()
        self.inner = linear(side)
        self.seen = []

    def forward(self, images):
        if torch.is_grad_enabled():
            self.seen.append(images.detach().clone())
        return self.inner(images)

    def __deepcopy__(self, memo):
        other = Recorded()
        other.inner.load_state_dict(self.inner.state_dict())
        other.seen = self.seen
        return other


def shown(data, **how):
    """The images of a training without masks, as the network saw them."""
    model = Recorded()
    how = {"batch_size": 8, "epochs": 4, "device": "cpu", "progress": False} | how
    fpa.finetune(model, data, fpa={"p": 0.0, "s_max": 1}, targets="labels", **how)
    return torch.cat(model.seen)


IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 4


def shifts_and_flips(seen):
    """By which of all moves of up to four pixels, and flips, each image came from one of IMAGES."""
    wide = nn.functional.pad(IMAGES, (4, 4, 4, 4), mode="reflect")
    moves = {
        (down - 4, right - 4, flipped): torch.flip(cut, [3]) if flipped else cut
        for down in range(9)
        for right in range(9)
        for cut in [wide[:, :, down : down + 16, right : right + 16]]
        for flipped in (False, True)
    }
    found = []
    for image in seen:
        (move,) = [name for name, made in moves.items() if (made == image).all((1, 2, 3)).any()]
        found.append(move)
    return found


FORMS = [
    (IMAGES, LABELS),
    TensorDataset(IMAGES, LABELS),
    DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8),
]


@pytest.mark.parametrize("data", FORMS, ids=["tensors", "dataset", "loader"])
def test_tensors_are_moved_by_up_to_an_eighth_and_flipped(data):
    moves = shifts_and_flips(shown(data))
    down, right, flipped = zip(*moves, strict=True)
    assert set(down) == set(right) == {-2, -1, 0, 1, 2}
    assert set(flipped) == {False, True}
    assert len(set(moves)) > 16  # each on its own


@pytest.mark.parametrize("data", FORMS, ids=["tensors", "dataset", "loader"])
def test_what_is_turned_off_is_not_done(data):
    still = {(0, 0, False)}
    assert {flipped for _, _, flipped in shifts_and_flips(shown(data, flip=False))} == {False}
    assert {move[:2] for move in shifts_and_flips(shown(data, crop=False))} == {(0, 0)}
    assert set(shifts_and_flips(shown(data, crop=False, flip=False))) == still


def test_images_smaller_than_eight_pixels_are_not_moved():
    images = LoaderImages((torch.randn(4, 3, 7, 7), torch.arange(4)), 4, None, None, seed=0, device="cpu",
                          variation=Variation())  # fmt: skip
    assert images.shift == 0
    assert images.variation == Variation(crop=False, flip=True)


def test_a_data_set_says_itself_what_is_done_to_it():
    def done(name, **allowed):
        return DataSetImages(load_data(name), 8, root="", workers=0, variation=Variation(**allowed)).variation

    assert done("digits") == Variation(crop=True, flip=False)
    assert done("shapes") == Variation(crop=False, flip=True)
    assert done("shapes", flip=False) == Variation(crop=False, flip=False)
    assert done("digits", crop=False) == Variation(crop=False, flip=False)


def test_a_training_is_not_continued_with_other_crops_or_flips(tmp_path):
    model = fpa.load_model("shapes-none")
    few = load_data("shapes")
    few = (few.normalisation(few.train.images[:16]), few.train.labels[:16])
    how = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False, "folder": tmp_path}
    tuned = fpa.finetune(model, few, **how)
    assert (tuned.card.recipe["data"]["crop"], tuned.card.recipe["data"]["flip"]) == (4, True)
    with pytest.raises(InputError, match=r"other settings \(data.flip: True -> False\)"):
        fpa.finetune(model, few, flip=False, **how)
    with pytest.raises(InputError, match=r"other settings \(data.crop: 4 -> 0\)"):
        fpa.finetune(model, few, crop=False, **how)


class TestPhotos:
    @pytest.fixture
    def folder(self, tmp_path):
        write_class_folder(tmp_path / "photos", ["a", "b", "c", "d"], 4)
        return load_data_for_tuning(tmp_path / "photos")

    def test_the_transform_of_the_files_is_told(self, folder):
        usual = DataSetImages(folder, 4, root="", workers=0, variation=Variation())
        assert usual.data.train.transform == RandomCrop(16)
        still = DataSetImages(folder, 4, root="", workers=0, variation=Variation(crop=False, flip=False))
        assert still.data.train.transform == RandomCrop(16, crop=False, flip=False)
        assert still.origin | {"crop": None, "flip": None} == usual.origin | {"crop": None, "flip": None}
        assert (still.origin["crop"], still.origin["flip"]) == (False, False)

    def test_a_transform_of_the_users_own_cannot_be_turned_off(self, folder):
        own = replace(folder, train=replace(folder.train, transform=lambda image: None))
        with pytest.raises(InputError, match=r"flip=False has no effect .* a transform of their own"):
            DataSetImages(own, 4, root="", workers=0, variation=Variation(flip=False))
        assert DataSetImages(own, 4, root="", workers=0, variation=Variation()).variation == Variation(
            crop=False, flip=False
        )


def load_data_for_tuning(path):
    from fpa.data.sets import tuning_data

    return tuning_data(f"folder:{path}", size=16)


def test_the_centre_is_cut_as_large_as_in_a_test():
    """The middle 224 of 256 pixels along the shorter side, whatever the random numbers are."""
    heights, widths = torch.tensor([256, 512, 300]), torch.tensor([512, 256, 300])
    uniform = torch.rand(3, RandomCrop.draws)
    boxes = RandomCrop(224, crop=False).boxes(uniform, heights, widths)
    assert boxes[:2, :4].tolist() == [[16, 144, 224, 224], [144, 16, 224, 224]]
    assert boxes[2, 2:4].tolist() == [round(300 * 224 / 256)] * 2
    assert boxes[:, 4].tolist() == (uniform[:, -1] < 0.5).long().tolist()
    usual = RandomCrop(224).boxes(uniform, heights, widths)
    never = RandomCrop(224, flip=False).boxes(uniform, heights, widths)
    assert torch.equal(never[:, :4], usual[:, :4])
    assert not never[:, 4].any()


def test_the_command_has_both(tmp_path, capsys):
    command = ["finetune", "shapes-none", "--epochs", "1", "--audit_images", "0", "--device", "cpu"]
    command += ["--batch_size", "4000", "--output", str(tmp_path)]
    assert main([*command, "--no_flip"]) == 0
    assert "learning the model's own predictions, 1 epoch\n" in capsys.readouterr().err
    assert fpa.load_model(tmp_path / "model.safetensors").card.recipe["data"]["flip"] is False
