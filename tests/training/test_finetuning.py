"""Fine-tuning: the effect it is for, against a plain loop, through a stop, with bad input."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scipy import stats
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fpa
from fpa import FPA, InputError, finetune, load_model
from fpa.cli.main import main
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import first_images
from fpa.masking import Mean
from fpa.models.architectures import build_model
from fpa.models.saved import ModelCard, save_model
from fpa.seeds import Stream, derive
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from fpa.training.batches import ArrayBatches
from fpa.training.run import TrainingError
from fpa.training.settings import TrainingSettings, suggested_fpa
from miniatures import write_class_folder, write_image_folder


@pytest.fixture(scope="module")
def shapes():
    return load_data("shapes")


@pytest.fixture(scope="module")
def few(shapes):
    return replace(shapes, train=first_images(shapes.train, 96), evaluation=shapes.evaluation[:40])


@pytest.fixture
def loader():
    images = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(images, torch.arange(20) % 4), batch_size=6)


class Folders(Dataset):
    """As torchvision's ImageFolder: its labels number its own classes."""

    def __init__(self, classes):
        self.classes = classes

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index)), index % len(self.classes)


class TestLabelsOfALoader:
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_of_other_classes_than_the_models_are_refused(self, wrapped):
        data = Folders(["cat", "dog", "eel"])
        data = DataLoader(data, batch_size=6) if wrapped else data
        with pytest.raises(InputError, match=r"the 3 classes of the data .*cat, dog, eel.* give class_index"):
            finetune(linear(outputs=10), data, targets="labels", epochs=1)

    def test_are_those_that_class_index_says(self):
        def run(data, **how):
            return finetune(linear(outputs=10), data, epochs=1, device="cpu", **how)[1].weight

        pairs = [
            (image, [7, 2, 5][label]) for image, label in map(Folders(list("abc")).__getitem__, range(12))
        ]
        expected = run(DataLoader(pairs, batch_size=6), targets="labels")
        loader = DataLoader(Folders(["cat", "dog", "eel"]), batch_size=6)
        assert torch.equal(run(loader, class_index=[7, 2, 5]), expected)
        assert torch.equal(run(loader, class_index={"dog": 2, "cat": 7, "eel": 5}), expected)
        numbered = DataLoader(Folders(["7", "2", "5"]), batch_size=6)  # named by the outputs themselves
        assert torch.equal(run(numbered, targets="labels"), expected)

    def test_count_as_outputs_where_they_are_the_users_own_or_as_many(self):
        changed = Folders(["cat", "dog", "eel"])
        changed.target_transform = lambda label: label + 4
        for data, outputs in ((changed, 10), (Folders(["cat", "dog", "eel"]), 3)):
            finetune(linear(outputs=outputs), data, targets="labels", epochs=1, device="cpu")


def test_suggested_settings_are_taken_as_they_are(loader):
    suggested = replace(suggested_fpa(8, 8), p=0.7)
    given = {"p": 0.7, "p1_max": suggested.p1_max, "p2": suggested.p2, "s_max": suggested.s_max}
    runs = [
        finetune(linear(), loader, fpa=each, epochs=1, device="cpu")[1].weight for each in (suggested, given)
    ]
    assert torch.equal(*runs)


def linear(outputs=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, outputs))


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def logit_kept(model, data, share):
    """For every test image the share of its logit that is left when a random share of pixels is masked."""
    images = data.normalisation(data.test.images)
    mask = torch.rand(len(images), 1, 32, 32, generator=torch.Generator().manual_seed(1)) < share
    with torch.no_grad():
        whole, masked = model(images), model(images * ~mask)
    chosen = whole.argmax(1, keepdim=True)
    return (masked.gather(1, chosen) / whole.gather(1, chosen))[:, 0].numpy()


def test_an_epoch_makes_a_model_keep_more_of_the_logit_under_random_masking(shapes):
    model = load_model("shapes-none")
    tuned = finetune(model, shapes, epochs=1, learning_rate=0.03, targets="labels", device="cpu")
    before, after = (logit_kept(one, shapes, 0.25) for one in (model, tuned))
    # How large the gain is depends on the order of sums, so on the number of threads: p moved around 1e-6.
    assert stats.ttest_rel(after, before, alternative="greater").pvalue < 1e-3
    assert tuned.card.augmentation == "fpa"
    assert tuned.card.accuracy > 0.95


@pytest.mark.parametrize("kind", ["data", "loader"])
def test_the_seed_decides_the_weights_and_the_original_stays_as_it_was(kind, few):
    if kind == "data":
        model, data = load_model("shapes-none").requires_grad_(False), few
    else:
        model = linear().train()
        images = torch.randn(20, 3, 8, 8)
        data = DataLoader(TensorDataset(images, torch.arange(20) % 4), batch_size=6, shuffle=True)
    before, training = copy.deepcopy(model), model.training
    torch.manual_seed(7)
    state = torch.get_rng_state()
    run = partial(finetune, model, data, epochs=1, batch_size=32, device="cpu")
    first, second, other = run(seed=3), run(seed=3), run(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(first, second)
    assert not same(first, other)
    assert not same(first, model)
    assert same(model, before)
    assert model.training is training
    assert not first.training
    flags = [parameter.requires_grad for parameter in model.parameters()]
    assert [parameter.requires_grad for parameter in first.parameters()] == flags


def normed():
    """A linear model behind a batch norm whose statistics are not those of the images."""
    torch.manual_seed(3)
    norm = torch.nn.BatchNorm2d(3)
    norm.running_mean.fill_(0.3)
    norm.running_var.fill_(2.0)
    return torch.nn.Sequential(norm, *linear()).eval()


def moved_and_flipped(images, draws):
    """Images of 8 x 8 pixels, cut out of themselves with a mirrored border, half of them flipped."""
    down, right = torch.randint(0, 3, (2, len(images)), generator=draws).tolist()
    flipped = (torch.rand(len(images), generator=draws) < 0.5).tolist()
    wide = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    cut = [each[:, top : top + 8, left : left + 8] for each, top, left in zip(wide, down, right, strict=True)]
    return torch.stack([each.flip(2) if turn else each for each, turn in zip(cut, flipped, strict=True)])


@pytest.mark.parametrize(
    ("varied", "clean", "way"), [(True, 0.0, 1.0), (False, 0.0, 1.0), (True, 0.25, 1.0), (False, 0.25, 0.6)]
)
@pytest.mark.parametrize("targets", ["labels", "model"])
def test_equals_a_plain_loop(targets, varied, clean, way, loader):
    """The optimiser, the schedule and the perturbation written down once more with PyTorch's own parts."""
    how = {"epochs": 2, "learning_rate": 0.1, "seed": 5, "device": "cpu", "crop": varied, "flip": varied}
    tuned = finetune(normed(), loader, targets=targets, clean=clean, way=way, **how)
    model, teacher, own = normed(), normed(), targets == "model"
    if own:
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, eps=1e-6, weight_decay=0)
    else:
        optimizer = torch.optim.SGD(model.train().parameters(), 0.1, momentum=0.9)
    augment = FPA(p=1.0 if own else 0.5, p1_max=0.25, p2=0.1, s_max=1)
    moments = [(step + 0.5) / 8 for step in range(8)]  # shares of the two epochs of four batches
    rates = [
        0.1 * (m / 0.1 if m < 0.1 else (1 + torch.cos(torch.tensor(torch.pi * (m - 0.1) / 0.9))) / 2)
        for m in moments
    ]
    for epoch in range(2):
        draws = torch.Generator().manual_seed(derive(5, Stream.AUGMENT, epoch))
        for images, labels in loader:
            optimizer.param_groups[0]["lr"] = float(rates.pop(0))
            images = moved_and_flipped(images, draws) if varied else images
            mask = augment.mask(images, draws)
            optimizer.zero_grad()
            wanted = teacher(images).softmax(1).detach() if own else labels
            loss = (1 - clean) * functional.cross_entropy(model(images * ~mask[:, None]), wanted)
            if clean:
                loss = loss + clean * functional.cross_entropy(model(images), wanted)
            loss.backward()
            optimizer.step()
    for key, value in tuned.state_dict().items():
        learned = model.state_dict()[key]
        if value.is_floating_point():
            learned = way * learned + (1 - way) * teacher.state_dict()[key]
        torch.testing.assert_close(value, learned)
    assert own is torch.equal(tuned[0].running_mean, teacher[0].running_mean)


def test_settings_follow_the_image_size_unless_given(few, tmp_path):
    model = load_model("shapes-none")
    tuned = finetune(model, few, epochs=1, batch_size=32, targets="labels", device="cpu")
    expected = suggested_fpa(32, 32)
    assert tuned.card.recipe["fpa"] == {
        name: getattr(expected, name) for name in ("p", "p1_max", "p2", "s_max", "squares")
    }
    own = finetune(model, few, epochs=1, batch_size=32, targets="model", fpa={"p2": 0.2}, device="cpu")
    assert own.card.recipe["fpa"] == tuned.card.recipe["fpa"] | {"p": 1.0, "p2": 0.2}
    large = (torch.rand(8, 3, 64, 64), torch.arange(8) % 4)
    share = finetune(model, large, epochs=1, batch_size=8, device="cpu").card.recipe["fpa"]["p1_max"]
    assert share == suggested_fpa(64, 64, "model").p1_max > suggested_fpa(64, 64).p1_max
    mine = FPA(p=1.0, p1_max=0.4, p2=0.2, s_max=2, masking=Mean())
    other = finetune(model, few, epochs=1, batch_size=32, fpa=mine, device="cpu", folder=tmp_path)
    assert other.card.recipe["masking"] == {"name": "mean"}
    assert other.card.recipe["fpa"]["p1_max"] == 0.4
    assert not same(tuned, other)


@pytest.mark.parametrize("targets", ["labels", "model"])
def test_stopped_and_continued_it_ends_with_the_same_weights(targets, few, tmp_path, monkeypatch):
    model = load_model("shapes-none")
    monkeypatch.setattr(
        "fpa.training.tuning.TrainingSettings", partial(TrainingSettings, checkpoint_seconds=0.0)
    )
    run = partial(finetune, model, few, epochs=2, batch_size=16, targets=targets, device="cpu")
    whole = run()
    calls, usual = iter(range(100)), ArrayBatches.batch

    def stops(self, draws):
        if next(calls) == 8:
            raise KeyboardInterrupt
        return usual(self, draws)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayBatches, "batch", stops)
        with pytest.raises(KeyboardInterrupt):
            run(folder=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").exists()
    torch.manual_seed(99)
    assert same(run(folder=tmp_path), whole)
    assert same(load_model(tmp_path / "model.safetensors"), whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "training.csv"]
    written = (tmp_path / "model.safetensors").stat().st_mtime_ns
    run(folder=tmp_path)  # done already: nothing happens
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"other settings \(training.epochs: 2 -> 1\)"):
        run(folder=tmp_path, epochs=1)
    how = {"epochs": 2, "batch_size": 16, "targets": targets, "device": "cpu"}
    with pytest.raises(InputError, match=r"other settings \(start: "):
        finetune(load_model("shapes-fpa"), few, **how, folder=tmp_path)
    short = run(folder=tmp_path, epochs=1, overwrite=True)
    assert same(load_model(tmp_path / "model.safetensors"), short)
    assert not same(short, whole)


def test_with_more_photos_than_before_nothing_is_continued(tmp_path):
    write_class_folder(tmp_path / "photos", ["disc", "square"], 4)
    how = {"epochs": 1, "batch_size": 4, "workers": 0, "device": "cpu", "folder": tmp_path / "tuned"}
    run = partial(finetune, load_model("shapes-none"), f"folder:{tmp_path / 'photos'}", **how)
    run()
    photo = tmp_path / "photos" / "disc" / "disc_0.jpg"
    photo.with_name("another.jpg").write_bytes(photo.read_bytes())
    with pytest.raises(InputError, match=r"other settings \(data.images: 8 -> 9\)"):
        run()


class TestLoaderWithOutput:
    """A loader of one's own has checkpoints, a history and a model file like a data set."""

    @pytest.fixture
    def run(self, few, monkeypatch):
        monkeypatch.setattr(
            "fpa.training.tuning.TrainingSettings", partial(TrainingSettings, checkpoint_seconds=0.0)
        )
        images = few.normalisation(few.train.images[:90])
        data = TensorDataset(images, few.train.labels[:90])
        self.taken = 0

        def run(stop=None, shuffle=True, **options):
            class Counted(DataLoader):
                def __iter__(loader):  # noqa: N805
                    for batch in super().__iter__():
                        if stop is not None and self.taken == stop:
                            raise KeyboardInterrupt
                        self.taken += 1
                        yield batch

            loader = Counted(data, batch_size=16, shuffle=shuffle)
            model = load_model("shapes-none")
            return finetune(model, loader, **{"epochs": 2, "device": "cpu", **options})

        return run

    @pytest.mark.parametrize("targets", ["labels", "model"])
    def test_stopped_inside_an_epoch_it_ends_with_the_same_weights(self, run, targets, tmp_path):
        whole = run(targets=targets)
        self.taken = 0
        with pytest.raises(KeyboardInterrupt):
            run(stop=1 + 6 + 3, targets=targets, folder=tmp_path)  # one batch is looked at before
        assert (tmp_path / "checkpoint.safetensors").exists()
        torch.manual_seed(99)
        assert same(run(targets=targets, folder=tmp_path), whole)
        assert same(load_model(tmp_path / "model.safetensors"), whole)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "training.csv"]
        history = pd.read_csv(tmp_path / "training.csv")
        assert history["epoch"].tolist() == [1, 2]
        assert history["test_accuracy"].isna().all()
        card = load_model(tmp_path / "model.safetensors").card
        assert (card.augmentation, card.accuracy) == ("fpa", None)
        assert (card.recipe["data"]["name"], card.recipe["targets"]) == (None, targets)

    def test_other_settings_are_refused_unless_to_be_overwritten(self, run, tmp_path):
        run(folder=tmp_path, epochs=1)
        with pytest.raises(InputError, match=r"other settings \(seed: 0 -> 1\)"):
            run(folder=tmp_path, epochs=1, seed=1)
        other = run(folder=tmp_path, epochs=1, seed=1, overwrite=True)
        assert same(load_model(tmp_path / "model.safetensors"), other)


def test_a_folder_in_use_is_refused_and_left_alone(few, tmp_path):
    folder_of_another = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from fpa.files import folder_lock\n"
            "with folder_lock(Path(sys.argv[1])):\n    print(1, flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with folder_of_another as process:
        process.stdout.readline()
        (tmp_path / "model.safetensors").write_bytes(b"of the other run")
        with pytest.raises(InputError, match=f"in use by process {process.pid}"):
            finetune(load_model("shapes-none"), few, folder=tmp_path, overwrite=True, device="cpu")
        with pytest.raises(InputError, match=f"in use by process {process.pid}"):
            train(load_recipe("tiny"), tmp_path, device="cpu", overwrite=True)
        assert (tmp_path / "model.safetensors").read_bytes() == b"of the other run"
        assert sorted(path.name for path in tmp_path.iterdir()) == [".fpa-lock", "model.safetensors"]
        process.stdin.close()


class TestTargets:
    def test_a_model_that_sees_no_masks_learns_nothing_from_itself(self, loader):
        model = linear()
        run = partial(finetune, epochs=10, targets="model", crop=False, flip=False, device="cpu")
        still = run(model, loader, fpa={"p": 0.0, "s_max": 1})
        for key, value in still.state_dict().items():
            torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-3)
        moved = run(model, loader, fpa={"p1_max": 0.5, "s_max": 1})
        assert (moved[1].weight - model[1].weight).abs().max() > 4e-3

    def test_labels_do_not_matter_when_the_model_teaches(self, few, shapes):
        model = load_model("shapes-none")
        labels = torch.zeros_like(few.train.labels)
        blank = replace(few, train=replace(few.train, labels=labels))
        run = partial(finetune, model, epochs=1, batch_size=32, targets="model", device="cpu")
        first, second = run(few), run(blank)
        assert same(first, second)
        with torch.no_grad():
            images = shapes.normalisation(shapes.test.images[few.evaluation])
            agreement = (first(images).argmax(1) == model(images).argmax(1)).float().mean()
        assert first.card.accuracy == pytest.approx(float(agreement))

    def test_images_without_labels_are_enough(self):
        images = torch.randn(12, 3, 8, 8)
        tuned = finetune(linear(), DataLoader(images, batch_size=4), device="cpu")
        assert not same(tuned, linear())

    def test_class_index_is_the_same_as_the_labels_it_leads_to(self):
        images, labels = torch.randn(12, 3, 8, 8), torch.arange(12) % 2
        index = torch.tensor([3, 1])
        run = partial(finetune, linear(), device="cpu")
        direct = run(DataLoader(TensorDataset(images, index[labels]), batch_size=4), targets="labels")
        for given in ([3, 1], list(index.numpy()), index):
            mapped = run(DataLoader(TensorDataset(images, labels), batch_size=4), class_index=given)
            assert same(mapped, direct)

    def test_classes_of_a_data_set_are_found_by_name_by_index_or_not_at_all(self, tmp_path):
        folder = write_image_folder(tmp_path / "photos", ("sea_lion", "dog"), train=4, val=2)
        model = build_model("resnet-small", 4, (3, 32, 32))
        names = ["cat", "Dog", "Sea lion", "owl"]
        model.card = ModelCard("resnet-small", names, (3, 32, 32), (0.5,) * 3, (0.5,) * 3)
        run = partial(finetune, model, f"folder:{folder}", epochs=1, batch_size=4, workers=0, device="cpu")
        by_name, by_index = run(targets="labels"), run(class_index={"dog": 1, "sea_lion": 2})
        assert by_name.card.recipe["class_index"] == [1, 2]  # in the order of the folders: dog, sea_lion
        assert same(by_name, by_index)
        assert by_name.card.classes == names
        assert not same(by_name, run(class_index=[0, 3]))
        # Two of four classes: with labels the model would forget the other two.
        assert run().card.recipe["targets"] == "model"
        assert same(run(), run(targets="model"))

        model.card = replace(model.card, classes=["dog", "wolf"])
        model.head = nn.Linear(64, 2)
        # As many classes, but others: learning them as the model's own would spoil it.
        assert run().card.recipe["targets"] == "model"
        with pytest.raises(InputError, match=r"2 classes of the data \(dog, sea_lion\) are not the 2 of"):
            run(targets="labels")
        model.head = nn.Linear(64, 4)
        model.card = replace(model.card, classes=["a", "b", "c", "d"])
        with pytest.raises(InputError, match=r"2 classes of the data \(dog, sea_lion\) are not the 4 of"):
            run(targets="labels")


class TestModelsOfEveryKind:
    def test_a_model_that_returns_an_object(self, loader):
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = linear()

            def forward(self, images):
                return SimpleNamespace(logits=self.inner(images))

        tuned = finetune(Wrapped(), loader, device="cpu")
        assert isinstance(tuned, Wrapped)
        assert same(tuned.inner, finetune(linear(), loader, device="cpu"))

    def test_wrapped_models_and_changing_the_model_itself(self, loader):
        model = linear()
        expected = finetune(model, loader, device="cpu")
        assert same(finetune(nn.DataParallel(model), loader, device="cpu"), expected)
        assert finetune(model, loader, device="cpu", inplace=True) is model
        assert same(model, expected)

    @pytest.mark.parametrize(
        "form",
        [
            lambda images, labels: (images, labels),
            lambda images, labels: (images.numpy(), labels.tolist()),
            lambda images, labels: {"pixel_values": images, "labels": labels},
            lambda images, labels: (list(images), labels),
        ],
    )
    def test_images_in_every_form_are_shuffled_into_batches_as_a_dataset_is(self, form, loader):
        run = partial(finetune, linear(), batch_size=6, targets="labels", device="cpu")
        assert same(run(form(*loader.dataset.tensors)), run(loader.dataset))

    def test_images_alone_are_batches_too(self):
        images = torch.randn(24, 3, 8, 8)
        run = partial(finetune, linear(), batch_size=6, targets="model", device="cpu")
        assert same(run(images), run(TensorDataset(images)))
        assert not same(run(images), run(images, batch_size=24))

    @pytest.mark.parametrize("base", [Dataset, object])
    def test_a_dataset_of_pil_images(self, base):
        class Photos(base):
            def __len__(self):
                return 12

            def __getitem__(self, number):
                return Image.fromarray(pixels[number]), number % 4

        pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
        half = Normalisation((0.5,) * 3, (0.5,) * 3)
        run = partial(finetune, linear(), batch_size=4, normalisation=half, targets="labels", device="cpu")
        assert same(run(Photos()), run((pixels, torch.arange(12) % 4)))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
    def test_weights_that_are_not_float32_are_trained_so_and_keep_their_kind(self, dtype, loader, few):
        model = linear().to(dtype)
        expected = finetune(copy.deepcopy(model).float(), loader, device="cpu").to(dtype)
        tuned = finetune(model, loader, device="cpu")
        assert tuned[1].weight.dtype == dtype
        assert same(tuned, expected)
        assert not same(tuned, model)
        assert finetune(model, loader, device="cpu", inplace=True) is model
        assert same(model, expected)
        larger = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8)).to(dtype)
        for targets in ("labels", "model"):
            run = partial(finetune, larger, few, epochs=1, batch_size=32, targets=targets, device="cpu")
            assert not same(run(), larger)

    def test_frozen_weights_stay_as_they_are_unless_all_are_frozen(self, loader, few):
        model = linear()
        model[1].bias.requires_grad_(False)
        tuned = finetune(model, loader, device="cpu")
        assert torch.equal(tuned[1].bias, model[1].bias)
        assert not torch.equal(tuned[1].weight, model[1].weight)
        assert [one.requires_grad for one in tuned.parameters()] == [True, False]
        tuned = finetune(model.requires_grad_(False), loader, device="cpu")
        assert not torch.equal(tuned[1].bias, model[1].bias)
        assert not any(one.requires_grad for one in tuned.parameters())
        whole = load_model("shapes-none").requires_grad_(False)
        whole.head.requires_grad_(True)
        tuned = finetune(whole, few, epochs=1, batch_size=32, device="cpu")
        before = dict(whole.named_parameters())
        moved = {name for name, value in tuned.named_parameters() if not torch.equal(value, before[name])}
        assert moved == {"head.weight", "head.bias"}

    def test_a_model_changed_itself_gets_the_new_card(self, few):
        model = load_model("shapes-none")
        finetune(model, few, epochs=1, batch_size=32, device="cpu", inplace=True)
        assert model.card.augmentation == "fpa"

    def test_a_batch_without_any_label_is_passed_over(self):
        images, labels = torch.randn(18, 3, 8, 8), torch.arange(18) % 4
        labels[6:12] = -1
        known = DataLoader(TensorDataset(images, labels), batch_size=6)
        tuned = finetune(linear(), known, epochs=1, targets="labels", device="cpu")
        assert all(bool(value.isfinite().all()) for value in tuned.state_dict().values())
        assert not same(tuned, linear())
        with pytest.raises(InputError, match=r"no batch has labels .* try targets='model'"):
            finetune(linear(), (images, torch.full((18,), -1)), targets="labels", device="cpu")

    def test_a_model_that_teaches_itself_learns_from_single_images(self):
        images = torch.randn(3, 3, 8, 8)
        for data in (DataLoader(images, batch_size=1), (images, torch.zeros(3, dtype=torch.int64))):
            assert not same(finetune(linear(), data, batch_size=1, epochs=1, device="cpu"), linear())

    def test_a_batch_of_one_at_the_end_is_passed_over(self):
        """Batch norms refuse a single value a channel, and one image has no more after pooling."""
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4)
        )
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            copy.deepcopy(model).train()(torch.randn(1, 3, 8, 8))
        images, labels = torch.randn(5, 3, 8, 8), torch.arange(5) % 4
        run = partial(finetune, model, epochs=1, learning_rate=0.1, targets="labels", device="cpu")
        tuned = run(DataLoader(TensorDataset(images, labels), batch_size=4))
        assert tuned[2].num_batches_tracked == 1
        other = images.clone()
        other[4] = 7.0  # the image that is passed over changes nothing
        assert same(tuned, run(DataLoader(TensorDataset(other, labels), batch_size=4)))
        assert not same(tuned, model)

    def test_a_convolutional_model_that_takes_views_of_its_tensors(self, few):
        """As many do: `view` needs the usual order in memory, which is not the fastest for convolutions."""

        class Viewing(nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(4 * 15 * 15, 8)

            def forward(self, images):
                features = self.convolution(images)
                return self.head(features.view(len(features), -1))

        images = few.normalisation(few.train.images)
        for data in (few, DataLoader(TensorDataset(images, few.train.labels), batch_size=32)):
            model = Viewing()
            assert not same(finetune(model, data, epochs=1, batch_size=32, device="cpu"), model)


def test_the_command_writes_a_model_that_evaluates(tmp_path, capsys):
    folder = write_image_folder(tmp_path / "photos", ("cat", "dog"), train=6, val=4)
    model = build_model("resnet-small", 2, (3, 32, 32))
    nn.init.constant_(model.head.bias, 5)  # logits above 0, so that there is something to score
    card = ModelCard("resnet-small", ["cat", "dog"], (3, 32, 32), (0.5,) * 3, (0.5,) * 3, accuracy=0.75)
    save_model(model, card, tmp_path / "plain.safetensors")
    command = ["finetune", str(tmp_path / "plain.safetensors"), "--data", f"folder:{folder}"]
    command += ["--epochs", "1", "--batch_size", "4", "--p1_max", "0.4", "--workers", "0", "--device", "cpu"]
    command += ["--audit_images", "0", "--output", str(tmp_path / "tuned")]
    assert main(command) == 0
    path = tmp_path / "tuned" / "model.safetensors"
    out = capsys.readouterr().out
    assert str(path) in out
    assert "before" not in out  # the model does not say on which data it had its accuracy
    tuned = load_model(path)
    assert (tuned.card.augmentation, tuned.card.recipe["fpa"]["p1_max"]) == ("fpa", 0.4)
    assert (tmp_path / "tuned" / "training.csv").read_text().startswith("epoch,learning_rate,loss,")
    first = load_file(path)
    assert main([*command, "--epochs", "2"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--seed", "1", "--overwrite", "--quiet"]) == 0
    assert not all(torch.equal(first[key], value) for key, value in load_file(path).items())
    again = ["finetune", str(path), *command[2:-2], "--targets", "labels", "--output"]
    assert main([*again, str(tmp_path / "again")]) == 0
    assert "(before: " not in capsys.readouterr().out  # the model says how often it agrees with another
    again[1] = str(tmp_path / "again" / "model.safetensors")
    assert main([*again, str(tmp_path / "third")]) == 0
    assert "(before: " in capsys.readouterr().out  # the same data, and their labels
    other = write_image_folder(tmp_path / "other", ("cat", "dog"), train=6, val=4)
    again[3] = f"folder:{other}"
    assert main([*again, str(tmp_path / "fourth")]) == 0
    assert "(before: " not in capsys.readouterr().out
    evaluate = ["evaluate", str(path), "--ig_steps", "2", "--device", "cpu", "--quiet"]
    assert main([*evaluate, "--output", str(tmp_path / "scores")]) == 0
    assert (tmp_path / "scores" / "table.csv").exists()


def test_of_several_processes_the_first_one_tells_and_audits(tmp_path, monkeypatch, capsys):
    folder = write_image_folder(tmp_path / "photos", ("disc", "square"), train=4, val=2)
    command = ["finetune", "shapes-none", "--data", f"folder:{folder}", "--epochs", "1", "--workers", "0"]
    monkeypatch.setattr("fpa.cli.finetuning.is_main_process", lambda: False)
    assert main([*command, "--device", "cpu", "--output", str(tmp_path / "tuned")]) == 0
    assert capsys.readouterr() == ("", "")
    assert not list((tmp_path / "tuned").glob("audit-*"))


def test_a_folder_of_photos_is_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_class_folder(tmp_path / "train-only" / "train", ["disc", "square"], 3)
    write_class_folder(tmp_path / "val-only" / "val", ["disc", "square"], 3)
    write_class_folder(tmp_path / "classes", ["disc", "square"], 3)
    (tmp_path / "photos").mkdir()
    for file in (tmp_path / "classes").glob("*/*.jpg"):
        (tmp_path / "photos" / file.name).write_bytes(file.read_bytes())
    command = ["finetune", "shapes-none", "--epochs", "1", "--workers", "0", "--device", "cpu"]
    command += ["--audit_images", "0"]
    weights = []
    for name in ("train-only", "classes", "photos"):
        assert main([*command, "--data", f"folder:{name}", "--output", f"tuned-{name}"]) == 0
        told = capsys.readouterr()
        assert "agreement with the original on the training images" in told.out
        weights.append(load_file(f"tuned-{name}/model.safetensors"))
    assert all(torch.equal(weights[0][key], value) for key, value in weights[1].items())
    assert main([*command, "--data", "folder:classes", "--targets", "labels", "--output", "labelled"]) == 0
    assert "accuracy on the training images" in capsys.readouterr().out
    assert main([*command, "--data", "folder:photos", "--targets", "labels", "--output", "no"]) == 2
    told = capsys.readouterr().err
    assert "no labels (they are not in one folder per class): give class_index, or targets" in told
    assert main([*command, "--data", "folder:val-only", "--output", "no"]) == 2
    assert "does not hold both train/ and val/" in capsys.readouterr().err


def test_the_command_takes_published_architectures_and_functions(tmp_path, monkeypatch, capsys):
    from torchvision.models import squeezenet1_1

    folder = write_image_folder(tmp_path / "photos", ("golf_ball", "tench"), train=4, val=2)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(squeezenet1_1().state_dict(), "weights.pth")
    common = ["--data", f"folder:{folder}", "--size", "32", "--epochs", "1", "--batch_size", "4"]
    common += ["--workers", "0", "--device", "cpu"]
    command = ["finetune", "--model", "torchvision:squeezenet1_1", "--weights", "weights.pth", *common]
    command += ["--audit_images", "0"]
    assert main([*command, "--output", "tuned"]) == 0
    told = capsys.readouterr()
    assert "agreement with the original" in told.out
    tuned = load_model("tuned/model.safetensors")
    assert tuned.card.mean == (0.485, 0.456, 0.406)
    assert len(tuned.card.classes) == 1000
    assert main([*command, "--class_index", "[574,0]", "--output", "labelled", "--quiet"]) == 0
    assert load_model("labelled/model.safetensors").card.recipe["class_index"] == [574, 0]

    Path("tuned_net.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 2))\n\n\n"
        "class Telling(nn.Sequential):\n    def forward(self, images):\n"
        "        return {'logits': super().forward(images)}\n\n\n"
        "def telling():\n    return Telling(*net())\n"
    )
    half = "[0.5,0.5,0.5]"
    command = ["finetune", "--model", "tuned_net:net", "--mean", half, "--std", half, *common]
    assert main([*command, "--output", "own"]) == 0
    assert set(load_file("own/model.safetensors")) == {"1.weight", "1.bias"}
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["audit", "of", "4", "images", "before", "after"] in shown
    assert ["verdict", "cannot", "tell", "cannot", "tell"] in shown  # too few images
    before, after = (
        json.loads(Path(f"own/audit-{when}-4/audit.json").read_text())["evidence"]
        for when in ("before", "after")
    )
    accuracies = [f"{100 * found['accuracy']:.1f}" for found in (before, after)]
    assert ["accuracy", accuracies[0], "%", accuracies[1], "%"] in shown
    assert before["kept"] != after["kept"]
    assert main([*command, "--output", "own", "--quiet"]) == 0  # nothing is done again
    own = load_model("own/model.safetensors", architecture="tuned_net:net")
    command[2] = "tuned_net:telling"
    assert main([*command, "--output", "telling", "--audit_images", "0", "--quiet"]) == 0
    telling = load_model("telling/model.safetensors", architecture="tuned_net:telling")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(telling(images)["logits"], own(images))
    assert main(["finetune"]) == 2
    assert "name one model" in capsys.readouterr().err


@pytest.mark.parametrize(("images", "epochs"), [(6, 60), (4000, 4), (7800, 2), (7798, 3), (40000, 1)])
def test_small_sets_are_seen_more_often(images, epochs, monkeypatch):
    """7,800 steps of two images, but no more than 60 epochs."""
    asked = []

    def stop(jobs, *_, **__):
        asked.append(jobs[0].settings.epochs)
        raise KeyboardInterrupt

    monkeypatch.setattr("fpa.training.finetuning.train_jobs", stop)
    data = torch.randn(images, 1, 2, 2), torch.zeros(images, dtype=torch.int64)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    with pytest.raises(KeyboardInterrupt):
        finetune(model, data, batch_size=2, fpa={"s_max": 1}, device="cpu")
    assert asked == [epochs]


def test_the_rate_depends_on_what_is_learned(few):
    model = load_model("shapes-none")
    for targets, rate, share in (("labels", 0.01, 0.5), ("model", 0.0003, 1.0)):
        tuned = finetune(model, few, epochs=1, batch_size=48, targets=targets, device="cpu")
        assert tuned.card.recipe["training"]["learning_rate"] == rate
        assert tuned.card.recipe["fpa"]["p"] == share
    tuned = finetune(model, few, epochs=1, batch_size=48, learning_rate=0.02, device="cpu")
    assert tuned.card.recipe["training"]["learning_rate"] == 0.02


class TestExperiments:
    """The scripts that measure fine-tuning, tiny, from arguments to files."""

    @pytest.fixture(autouse=True)
    def _scripts(self, monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "research"))

    def test_cifar10(self, tmp_path):
        import finetune_cifar10

        arguments = ["--tiny", "--epochs", "1", "--device", "cpu", "--output", str(tmp_path)]
        finetune_cifar10.main(arguments)
        table = pd.read_csv(tmp_path / "table.csv").set_index("model")
        assert list(table.index) == ["untouched", "1 epoch", "FPA from scratch"]
        assert table["Spearman of A with FPA from scratch"].iloc[-1] == 1
        assert (table["pairs"] == 18).all()
        assert (tmp_path / "finetune.png").exists()
        before = table.drop(columns="seconds")
        finetune_cifar10.main(arguments)  # goes on with what is there
        again = pd.read_csv(tmp_path / "table.csv").set_index("model")
        assert before.equals(again.drop(columns="seconds"))

    def test_imagenet(self, tmp_path, monkeypatch):
        from torchvision.models import mobilenet_v2

        import finetune_imagenet

        torch.manual_seed(0)
        model = mobilenet_v2()
        nn.init.constant_(model.classifier[1].bias, 5)  # logits above 0, so that there is something to score
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # the statistics of one batch: else the signal fades on its way
        model(torch.randn(16, 3, 32, 32))
        torch.save(model.state_dict(), tmp_path / "weights.pth")
        ids = ("n01440764", "n01443537", "n15075141")
        write_class_folder(tmp_path / "photos", list(ids), 4, ".jpg", seed=0)
        arguments = ["mobilenet_v2", "--tiny", "--epochs", "1", "--twin", "1", "--workers", "0"]
        arguments += ["--weights", str(tmp_path / "weights.pth"), "--photos", str(tmp_path / "photos")]
        arguments += ["--device", "cpu", "--output", str(tmp_path / "out")]
        finetune_imagenet.main(arguments)
        table = pd.read_csv(tmp_path / "out" / "mobilenet_v2" / "table.csv")
        assert list(table["model"]) == ["untouched", "1 epoch"]
        assert table["A ig_sum"].notna().all()
        assert set(table["audit"]) == {"cannot tell"}  # three photos
        judges = pd.read_csv(tmp_path / "out" / "mobilenet_v2" / "judges.csv")
        assert len(judges) == 4 * 9
        one = judges[judges.estimator == "ig_sum"].set_index(["maps of", "judged on"])["A"]
        assert len(set(one)) == 4
        monkeypatch.setattr("fpa.finetune", None)  # goes on with what is there
        (tmp_path / "out" / "mobilenet_v2" / "judges.md").unlink()
        table.iloc[1:].to_csv(tmp_path / "out" / "mobilenet_v2" / "table.csv", index=False)
        finetune_imagenet.main(arguments)
        assert table.equals(pd.read_csv(tmp_path / "out" / "mobilenet_v2" / "table.csv"))
        again = pd.read_csv(tmp_path / "out" / "mobilenet_v2" / "judges.csv")
        pd.testing.assert_frame_equal(again, judges)
        with pytest.raises(SystemExit):
            finetune_imagenet.main([*arguments, "--p1-max", "0.1"])


class TestBadInput:
    @pytest.mark.parametrize("targets", ["labels", "model"])
    def test_a_loss_that_is_not_a_number(self, targets, loader, few):
        run = partial(finetune, device="cpu")
        with pytest.raises(TrainingError, match=r"not finite at step \d of epoch 1 .*smaller learning_rate"):
            run(nn.Sequential(*linear(9), nn.Linear(9, 4)), loader, learning_rate=1e30, targets=targets)
        with pytest.raises(TrainingError, match=r"not finite at step \d+ of epoch 1 .*learning_rate"):
            run(load_model("shapes-none"), few, learning_rate=1e18, batch_size=16, targets=targets)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "there are no images: the loader yields nothing"),
            (3, "data must be a data set's name, folder:PATH, .* a Dataset, or images and labels, got int"),
            ([torch.randn(3, 8, 8), torch.randn(3, 9, 9)], "images of different sizes"),
            ((batch for batch in [1]), "depends on the length of the loader"),
            ("shape", "unknown data set 'shape'"),
            ([(torch.randn(4, 3, 9, 9), torch.arange(4))], r"cannot take images \[3, 9, 9\]"),
            ([(torch.randn(4, 3, 8, 8), torch.full((4,), 4))], r"labels must be in 0..3, found 4"),
            ([(torch.randint(0, 255, (4, 3, 8, 8)), torch.arange(4))], "the images are not normalised"),
        ],
    )
    def test_data(self, data, message):
        with pytest.raises(InputError, match=message):
            finetune(linear(), data, targets="labels", device="cpu")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"targets": "teacher"}, "targets must be one of auto, labels, model, got 'teacher'"),
            ({"epochs": 0}, "epochs must be at least 1"),
            ({"fpa": {"p3": 0.5}}, "unknown setting of fpa 'p3'"),
            ({"learning_rate": -1.0}, "learning_rate must be positive"),
            ({"learning_rate": 1e38}, "learning_rate must be positive, and no more than 1e30"),
            (
                {"class_index": [0, 0]},
                r"class_index must be different whole numbers in 0..3, got one of them",
            ),
            ({"class_index": [0, 4]}, r"class_index must be different whole numbers in 0..3, got 4"),
            ({"class_index": {"cat": 0}}, "with a loader, class_index must be a list"),
            ({"folder": "somewhere"}, "not for a Sequential: leave out folder"),
            ({"fpa": FPA(s_max=8)}, r"s_max must be in 1..7"),
            ({"device": "tpu"}, "cpu, cuda, cuda:N or mps, got 'tpu'"),
        ],
    )
    def test_arguments(self, loader, arguments, message):
        with pytest.raises(InputError, match=message):
            finetune(linear(), loader, **{"device": "cpu", **arguments})

    def test_what_cannot_be_written_is_said_before_training(self, few, tmp_path):
        own = build_model("resnet-small", 8, (3, 32, 32))
        with pytest.raises(InputError, match=r"not for a SmallResNet: leave out folder"):
            finetune(own, few, folder=tmp_path, device="cpu")
        odd = FPA(masking=lambda images, mask: images)
        with pytest.raises(InputError, match=r"masking .*<lambda>.* cannot be imported"):
            finetune(load_model("shapes-none"), few, fpa=odd, folder=tmp_path, device="cpu")
        assert not list(tmp_path.iterdir())

    def test_no_model(self, loader):
        with pytest.raises(
            InputError,
            match=r"must be a torch.nn.Module or an Engine or what fpa.open_model returns, got 'shapes-none'",
        ):
            fpa.finetune("shapes-none", loader)
        with pytest.raises(InputError, match="no weights to fine-tune"):
            finetune(nn.Flatten(), loader, device="cpu")


class Streamed(IterableDataset):
    def __len__(self):
        return 12

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        return iter([(torch.randn(3, 8, 8, generator=generator), number % 4) for number in range(12)])


@pytest.mark.parametrize("data", [Streamed(), list(Streamed())])
def test_items_that_are_only_iterated_or_listed_are_batched(data):
    model = linear()
    tuned = finetune(model, data, epochs=1, batch_size=4, learning_rate=0.1, device="cpu")
    assert not same(tuned, model)


def test_an_engine_is_accepted_in_place_of_its_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4))
    data = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    tuned = [
        finetune(each, data, epochs=1, batch_size=8, device="cpu") for each in (model, fpa.Engine(model))
    ]
    assert torch.equal(tuned[0][1].weight, tuned[1][1].weight)
    assert not torch.equal(tuned[0][1].weight, model[1].weight)


def test_folders_named_by_numbers_are_not_learned_in_an_order_that_is_a_guess(tmp_path, capsys):
    names = [str(number) for number in range(12)]
    for split in ("train", "val"):
        write_class_folder(tmp_path / "photos" / split, names, 1)
    model = fpa.models.build_model("resnet-small", 12, (3, 32, 32))
    fpa.save_model(
        model,
        fpa.ModelCard("resnet-small", names, (3, 32, 32), (0.5,) * 3, (0.5,) * 3),
        tmp_path / "m.safetensors",
    )
    command = [
        "finetune",
        str(tmp_path / "m.safetensors"),
        "--data",
        f"folder:{tmp_path / 'photos'}",
        "--epochs",
        "1",
    ]
    command += ["--batch_size", "4", "--workers", "0", "--device", "cpu", "--output", str(tmp_path / "out")]
    assert main([*command, "--targets", "labels"]) == 2
    assert "the 12 classes of the data (0, 1, 10, ...) are not the 12 of the model" in capsys.readouterr().err
    assert main([*command, "--audit_images", "0"]) == 0
    told = capsys.readouterr()
    assert "learning the model's own predictions, 1 epoch, images cropped and flipped at random\n" in told.err
    assert "agreement with the original" in told.out


class Seen(nn.Module):
    """A small classifier that notes, for itself and its copies, how many images each pass has."""

    passes: ClassVar[list[int]] = []

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3 * 32 * 32, 8)

    def forward(self, images):
        self.passes.append(len(images))
        return self.inner(images.flatten(1))


@pytest.mark.parametrize("targets", ["labels", "model"])
def test_a_model_is_tried_once_by_each_who_must_know(few, targets):
    """As it is, in the faster order of memory, and by the trainer: passes of large models take seconds."""
    Seen.passes.clear()
    finetune(Seen(), few, epochs=1, batch_size=32, targets=targets, device="cpu")
    assert Seen.passes.count(1) == 3
