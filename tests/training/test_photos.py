"""Training on photo files: decoded once and kept where they fit, else once a step for all models."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import dataloader

from fpa.cli.main import main
from fpa.data import splits
from fpa.data.sets import load_data
from fpa.errors import InputError
from fpa.study.recipe import load_recipe
from fpa.study.trainings import load_recipe_data, train
from fpa.training import jpegs
from fpa.training.batches import DeviceFileBatches, FileBatches, PhotoBatches, training_batches
from fpa.training.photos_on_device import photos_on_device
from fpa.training.trainer import accuracy
from miniatures import make_odd, make_unreadable, write_image_folder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_image_folder(tmp_path_factory.mktemp("photos"), train=8, val=8)


def recipe_of(photos, **changes):
    fields = {"data.name": f"folder:{photos}", "data.size": 32, "data.workers": 0, "data.train_images": None}
    fields |= {"data.evaluation_images": 4, "training.batch_size": 4, "training.epochs": 2}
    fields |= {"training.milestones": [], **changes}
    return load_recipe("tiny", fields)


def trained(photos, output, variants=None, **changes):
    recipe = recipe_of(photos, **changes)
    train(recipe, output, data=load_recipe_data(recipe), device="cpu", variants=variants)
    return {path.parent.name: load_file(path) for path in output.glob("*/model.safetensors")}


@pytest.fixture
def decoded(monkeypatch):
    """How often each file was decoded."""
    counts = Counter()
    usual = splits.decode

    def counted(path):
        counts[path.name] += 1
        return usual(path)

    monkeypatch.setattr(splits, "decode", counted)
    monkeypatch.setattr("fpa.training.photos_on_device.decode", counted)
    return counts


@pytest.mark.parametrize("mine", [slice(None), slice(2, 5)])
def test_kept_photos_make_the_batches_that_files_make(photos, mine):
    data = load_data(f"folder:{photos}", size=24)
    kept = PhotoBatches(photos_on_device(data.train, CPU), 5, 3, mine)
    files = FileBatches(data, 5, 3, mine=mine, device=CPU, workers=0)
    seen = []
    for epoch, step in ((0, 0), (1, 0), (1, 2)):
        for batches in (kept, files):
            batches.start(epoch, step)
            batches.advance()
        (ours, labels), (theirs, expected) = (batches.batch(torch.Generator()) for batches in (kept, files))
        assert torch.equal(labels, expected)
        assert (ours.int() - theirs.int()).abs().max() <= 1
        seen.append(ours)
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize(("workers", "size", "mine"), [(0, 20, slice(None)), (2, 8, slice(1, 7))])
def test_files_decoded_by_the_device_make_the_batches_that_workers_make(
    workers, size, mine, tmp_path, monkeypatch
):
    monkeypatch.setattr(jpegs, "_TOGETHER", 20000)  # several parts of a batch
    monkeypatch.setattr(jpegs, "_RESIZED", 8000)
    data = load_data(f"folder:{write_image_folder(tmp_path, train=10)}", size=24)
    odd = make_odd(data.train.paths)
    how = {"mine": mine, "device": CPU, "workers": workers}
    usual, ours = (kind(data, size, 3, **how) for kind in (FileBatches, DeviceFileBatches))
    seen = {}
    for start in ((0, 0), (1, 0), (1, usual.steps - 1)):
        for batches in (usual, ours):
            batches.start(*start)
        for step in range(start[1], usual.steps):
            assert usual.advance()
            assert ours.advance()
            (expected, labels), (images, same) = (each.batch(torch.Generator()) for each in (usual, ours))
            assert torch.equal(labels, same)
            assert (images.int() - expected.int()).abs().max() <= 3
            again = seen.setdefault((start[0], step), images.clone())
            assert torch.equal(images, again)
    assert usual.unreadable == ours.unreadable
    if size == 20:  # an epoch of one step
        assert usual.unreadable == {odd["cut off"], odd["text"], odd["no table"]}
    usual.close()
    ours.close()
    assert not multiprocessing.active_children()


def test_only_whole_usual_jpeg_files_go_to_the_device(tmp_path, monkeypatch):
    data = load_data(f"folder:{write_image_folder(tmp_path, train=5)}", size=24)
    odd = make_odd(data.train.paths)
    packed = jpegs.ReadImages(data.train).__getitems__([(0, index) for index in range(len(odd))])
    sent = {kind for kind, length in zip(odd, packed.lengths, strict=True) if length}
    assert sent == {"usual", "padded", "progressive", "grey", "no table"}
    monkeypatch.setattr(jpegs, "_LARGEST", 0)  # all of them are too large to be handed on
    packed = jpegs.ReadImages(data.train).__getitems__([(0, 0)])
    assert (packed.lengths.tolist(), packed.images.shape) == ([0], (1, 3, 24, 24))


@pytest.mark.parametrize(
    ("smallest", "expected"),
    [({"cpu": 24}, DeviceFileBatches), ({"cpu": 25}, FileBatches), ({}, FileBatches)],
)
def test_who_decodes_depends_on_the_device_and_the_size(photos, smallest, expected, monkeypatch):
    monkeypatch.setattr(jpegs, "SMALLEST", smallest)
    data = load_data(f"folder:{photos}", size=24)
    assert type(training_batches(data, 4, 0, CPU)) is expected


def test_without_a_decoder_workers_decode(photos, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(jpegs, "SMALLEST", {"cpu": 1})
    monkeypatch.setattr("torchvision.io.decode_jpeg", fails)
    jpegs._can_decode.cache_clear()
    assert type(training_batches(load_data(f"folder:{photos}", size=24), 4, 0, CPU)) is FileBatches
    jpegs._can_decode.cache_clear()


def _fails(*_):
    raise RuntimeError("no such colour")


def _dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does it when memory is short


@pytest.mark.parametrize(
    ("place", "happens", "error", "message"),
    [
        ("fpa.training.jpegs._usual_jpeg", _fails, InputError, "images cannot be read: .*no such colour"),
        ("fpa.training.jpegs._usual_jpeg", _dies, InputError, "images cannot be read: .* fewer workers$"),
        ("fpa.training.batches.decoded_crops", _fails, RuntimeError, "no such colour"),
    ],
)
def test_what_goes_wrong_while_the_device_decodes_ends_the_training(
    place, happens, error, message, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    monkeypatch.setattr(jpegs, "SMALLEST", {"cpu": 1})
    monkeypatch.setattr(place, happens)
    looks = dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(looks, "__defaults__", (0.2,))  # for workers that have died, else every 5 s
    threads = threading.active_count()
    with pytest.raises(error, match=message) as raised:
        trained(photos, tmp_path, ["none"], **{"data.workers": 1})
    assert "\n" not in str(raised.value)
    assert not multiprocessing.active_children()
    for _ in range(50):  # queues of workers that are gone take a moment to close
        if threading.active_count() <= threads:
            break
        time.sleep(0.1)
    assert threading.active_count() <= threads


def test_photos_are_kept_with_as_many_workers_as_are_asked_for(photos, tmp_path, monkeypatch):
    """What they hand on fills the shared memory, so that there may have to be fewer, or none."""
    seen = []

    class Seen(dataloader.DataLoader):
        def __init__(self, *arguments, num_workers, **how):
            seen.append((num_workers, how["collate_fn"].args[0].func.__name__))
            super().__init__(*arguments, num_workers=num_workers, **how)

    monkeypatch.setattr("fpa.data.photos._WORTH_PROCESSES", 1)
    monkeypatch.setattr("fpa.data.photos.DataLoader", Seen)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for workers in (0, 1):
        trained(photos, tmp_path / str(workers), ["none"], **{"data.workers": workers})
    assert [count for count, what in seen if what == "_padded"] == [0, 1]


def test_photos_that_do_not_fit_are_not_kept(photos, monkeypatch):
    data = load_data(f"folder:{photos}", size=24)
    largest = 3 * 16 * photos_on_device(data.train, CPU).images[0, 0].numel()
    monkeypatch.setattr("fpa.training.photos_on_device._memory", lambda device: 4 * largest)
    assert photos_on_device(data.train, CPU) is not None
    monkeypatch.setattr("fpa.training.photos_on_device._memory", lambda device: 4 * largest - 4)
    assert photos_on_device(data.train, CPU) is None


def test_a_transform_of_ones_own_is_applied_by_the_loader(photos):
    from dataclasses import replace

    from torchvision.transforms import v2

    data = load_data(f"folder:{photos}", size=24)
    flat = v2.Compose([v2.Resize((24, 24)), v2.PILToTensor()])
    own = replace(data, train=replace(data.train, transform=flat))
    assert photos_on_device(own.train, CPU) is None
    batches = training_batches(own, 4, 0, CPU)
    batches.start(0, 0)
    batches.advance()
    images, _ = batches.batch(torch.Generator())
    every = torch.stack([own.train.load(index) for index in range(16)])
    assert all(any(torch.equal(image, other) for other in every) for image in images)


@pytest.mark.parametrize("kept", [True, False])
def test_photos_are_decoded_once_for_all_models(photos, kept, decoded, tmp_path, monkeypatch):
    if not kept:
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    recipe = recipe_of(photos, **{"training.test_every": 2})
    data = load_recipe_data(recipe)
    decoded.clear()
    train(recipe, tmp_path, data=data, device="cpu")
    training = Counter({path.name: decoded[path.name] for path in data.train.paths})
    # Both splits have files of the same names; the four to test on are read once, or once a model.
    tested = Counter(data.test.paths[index].name for index in data.evaluation.tolist())
    for name, count in tested.items():
        training[name] -= count * (1 if kept else 3)
    assert set(training.values()) == {1 if kept else 2}  # two epochs


@pytest.mark.parametrize("kept", [True, False])
def test_together_or_alone_a_model_gets_the_same_weights(photos, kept, tmp_path, monkeypatch):
    if not kept:
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    changes = {"model": "mobilenet_v2"}  # which has dropout
    together = trained(photos, tmp_path / "three", **changes)
    for name in ("none", "fpa"):
        alone = trained(photos, tmp_path / name, [name], **changes)[name]
        assert all(torch.equal(value, alone[key]) for key, value in together[name].items())
    assert not all(torch.equal(value, together["fpa"][key]) for key, value in together["none"].items())


@pytest.mark.parametrize("smallest", [{}, {"cpu": 32}])
def test_the_number_of_workers_changes_nothing(photos, smallest, tmp_path, monkeypatch):
    monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    monkeypatch.setattr(jpegs, "SMALLEST", smallest)
    models = [trained(photos, tmp_path / str(n), ["fpa"], **{"data.workers": n})["fpa"] for n in (0, 2)]
    assert all(torch.equal(value, models[1][key]) for key, value in models[0].items())
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("share", "smallest"), [(1.0, {}), (0.0, {}), (0.0, {"cpu": 1})])
def test_an_unreadable_photo_is_left_out_and_named(photos, share, smallest, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", share)
    monkeypatch.setattr(jpegs, "SMALLEST", smallest)
    recipe = recipe_of(photos)
    data = load_recipe_data(recipe)
    bad = data.train.paths[3]
    make_unreadable(monkeypatch, bad)
    from fpa.progress import Display

    train(recipe, tmp_path, data=data, device="cpu", variants=["none"], display=Display())
    told = capsys.readouterr().err
    assert "left out: 1 unreadable image file" in told
    assert str(bad) in told


class _Dies:
    """A transform whose worker is killed."""

    def __call__(self, image):
        _dies()


class _Fails:
    def __call__(self, image):
        raise ArithmeticError("no such colour")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (_Dies(), "worker .*; the memory, or the shared memory .* fewer workers$"),
        (_Fails(), "no such colour"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_said_in_one_line_and_no_process_is_left(
    transform, message, photos, tmp_path
):
    from dataclasses import replace

    recipe = recipe_of(photos, **{"data.workers": 1})
    data = load_recipe_data(recipe)
    data = replace(data, train=replace(data.train, transform=transform))
    with pytest.raises(InputError, match=message) as raised:
        train(recipe, tmp_path, data=data, device="cpu", variants=["none"])
    assert "\n" not in str(raised.value)
    del raised
    assert not multiprocessing.active_children()


def test_an_error_in_a_step_is_one_line(photos, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("the device is on fire\nmore about it")

    monkeypatch.setattr("fpa.training.steps.logits_for", broken)
    command = ["train", "tiny", "--data.name", f"folder:{photos}", "--data.size", "32", "--device", "cpu"]
    command += ["--training.batch_size", "4", "--output", str(tmp_path / "out"), "--data.workers", "0"]
    assert main([*command, "--data.train_images", "null", "--data.evaluation_images", "null"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "fpa: RuntimeError: the device is on fire (--debug shows where)"
    assert not any(line.startswith("Traceback") for line in told)


@pytest.mark.parametrize("kept", [True, False])
def test_a_batch_that_cannot_be_read_at_all_is_no_matter_of_the_learning_rate(photos, kept, monkeypatch):
    data = load_data(f"folder:{photos}", size=32, evaluation_images=4)

    def gone(path):
        raise splits.UnreadableImage(path, OSError("gone"))

    monkeypatch.setattr(splits, "decode", gone)
    monkeypatch.setattr("fpa.training.photos_on_device.decode", gone)
    how = {"photos": photos_on_device(data.train, CPU) if kept else None}
    batches = training_batches(data, 4, 0, CPU, **how)

    def first():
        batches.start(0, 0)
        batches.advance()

    with pytest.raises(InputError, match=r"none of the 4 images of a batch can be read, one is .*run again"):
        first()
    with pytest.raises(InputError, match="none of the 4 test images can be read"):
        accuracy(torch.nn.Flatten(), data, CPU)
