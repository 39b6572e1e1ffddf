"""The loaders people bring, as normalised batches."""

import os
import signal
import warnings

import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.transforms import v2

from fpa.data import image_source
from fpa.data.loaders import ImageBatches, in_order
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.errors import InputError

NORMALISATION = Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
BYTES = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
NORMALISED = NORMALISATION(BYTES)
LABELS = torch.tensor([0, 1, 2, 3, 2, 1])


def joined(batches):
    return [torch.cat(part) for part in zip(*batches, strict=True)]


def pil(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def opaque(images):
    """[..., 3, H, W] as RGBA, channels last."""
    last = images.movedim(-3, -1)
    return torch.cat([last, torch.full_like(last[..., :1], 200)], -1)


class Items(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return pil(BYTES[index]), int(LABELS[index])


LOADERS = {
    "normalised": lambda: (NORMALISED, LABELS),
    "bytes": lambda: (BYTES, LABELS),
    "floats in 0..255": lambda: (BYTES.float(), LABELS),
    "floats in 0..1": lambda: (BYTES.float() / 255, LABELS),
    "lists": lambda: [[BYTES[:4], LABELS[:4]], [BYTES[4:], LABELS[4:]]],
    "batches of different sizes": lambda: [(BYTES[:1], LABELS[:1]), (BYTES[1:], LABELS[1:])],
    "tuples of three": lambda: [(BYTES, LABELS, torch.arange(6))],
    "tuples of three with paths": lambda: [(BYTES, LABELS, [f"{n}.png" for n in range(6)])],
    "a dict": lambda: {"image": BYTES, "label": LABELS},
    "dicts": lambda: [{"pixel_values": BYTES[:2], "labels": LABELS[:2]}, {"X": BYTES[2:], "y": LABELS[2:]}],
    "PIL images": lambda: [([pil(image) for image in BYTES], LABELS.tolist())],
    "items of PIL images": lambda: [
        (pil(image), int(label)) for image, label in zip(BYTES, LABELS, strict=True)
    ],
    "a data set": Items,
    "an array": lambda: (BYTES.numpy(), LABELS.numpy()),
    "an array with channels last": lambda: (BYTES.permute(0, 2, 3, 1).numpy(), LABELS.numpy()),
    "an array with opacity": lambda: (opaque(BYTES).numpy(), LABELS.numpy()),
    "items with opacity": lambda: [
        (opaque(image).numpy(), int(label)) for image, label in zip(BYTES, LABELS, strict=True)
    ],
    "double precision": lambda: (NORMALISED.double(), LABELS),
    "a loader": lambda: DataLoader(TensorDataset(BYTES, LABELS), 4),
    "a generator": lambda: iter([(BYTES[:4], LABELS[:4]), (BYTES[4:], LABELS[4:])]),
    "labels in a column": lambda: (BYTES, LABELS[:, None]),
}


@pytest.mark.parametrize("form", LOADERS)
def test_every_form_of_the_same_images_gives_the_same_batches(form):
    batches = ImageBatches(LOADERS[form](), NORMALISATION)
    _ = batches.first  # looking at the first batch takes nothing away
    images, labels, indices = joined(batches)
    assert torch.allclose(images.float(), NORMALISED, atol=1e-5)
    assert labels.tolist() == LABELS.tolist()
    assert indices.tolist() == list(range(6))


def test_labels_are_minus_one_where_there_are_none():
    for loader in (NORMALISED, [NORMALISED[:4], NORMALISED[4:]], [pil(image) for image in BYTES]):
        images, labels, _ = joined(ImageBatches(loader, NORMALISATION))
        assert torch.allclose(images, NORMALISED, atol=1e-5)
        assert labels.tolist() == [-1] * 6


def test_numbers_that_come_with_the_images_are_kept():
    _, _, indices = joined(ImageBatches([(BYTES, LABELS, [9, 7, 5, 3, 1, 0])], NORMALISATION))
    assert indices.tolist() == [9, 7, 5, 3, 1, 0]


def third_of(*values):
    """A loader, one image a batch, with something besides images and labels."""
    return [(BYTES[n : n + 1], LABELS[n : n + 1], [value]) for n, value in enumerate(values)]


def test_one_image_a_batch_can_be_numbered_too():
    for loader in (third_of(9, 7, 5, 3, 1, 0), iter(third_of(9, 7, 5, 3, 1, 0))):
        images, _, indices = joined(ImageBatches(loader, NORMALISATION))
        assert indices.tolist() == [9, 7, 5, 3, 1, 0]
        assert torch.allclose(images, NORMALISED, atol=1e-5)


def test_a_third_part_that_is_the_same_for_all_images_numbers_none():
    class WithConstant(Items):
        def __getitem__(self, index):
            return *super().__getitem__(index), 7

    for loader in (third_of(*[7] * 6), WithConstant(), [(BYTES, LABELS, [7] * 6)]):
        assert joined(ImageBatches(loader, NORMALISATION))[2].tolist() == list(range(6))


def test_a_number_that_comes_again_is_refused_where_numbers_are_needed():
    batches = ImageBatches(third_of(0, 1, 2, 1, 0, 2), NORMALISATION)
    batches.check_numbers()
    with pytest.raises(InputError, match=r"the number 1 belongs to two images.*leave it out, or give"):
        joined(batches)
    twice = ImageBatches(third_of(3, 2, 1, 0, 5, 4), NORMALISATION)
    assert joined(twice)[2].tolist() == joined(twice)[2].tolist()  # every pass begins anew


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, True),
        ({"batch_size": 4}, True),
        ({"batch_size": None}, True),
        ({"sampler": SequentialSampler(range(6))}, True),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(6)), 4, False)}, True),
        ({"shuffle": True}, False),
        ({"sampler": SubsetRandomSampler(range(6))}, False),
        ({"sampler": WeightedRandomSampler(torch.ones(6), 6)}, False),
        ({"sampler": [5, 4, 3, 2, 1, 0]}, False),
        ({"batch_sampler": BatchSampler(RandomSampler(range(6)), 4, False)}, False),
        ({"batch_sampler": [[0, 5], [1, 4], [2, 3]]}, False),
    ],
)
def test_only_a_loader_that_reads_its_data_one_after_the_other_is_in_order(arguments, expected):
    loader = DataLoader(TensorDataset(NORMALISED, torch.arange(6)), **arguments)
    assert in_order(loader) is expected
    assert ImageBatches(loader).shuffled is not expected


def test_what_is_only_iterated_is_in_order():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(NORMALISED)

    assert in_order(DataLoader(Stream(), 2))
    assert in_order([NORMALISED])


def test_grey_images_are_repeated_for_a_model_that_takes_three_channels():
    grey = BYTES[:, 0]
    expected = NORMALISATION(grey[:, None].expand(-1, 3, -1, -1))
    for form in (grey, grey[:, None], [Image.fromarray(image.numpy()) for image in grey], grey.numpy()):
        images, *_ = joined(ImageBatches(form, NORMALISATION))
        assert torch.allclose(images, expected, atol=1e-5)
    one = Normalisation((0.5,), (0.5,))
    images, *_ = joined(ImageBatches([Image.fromarray(image.numpy()) for image in grey], one))
    assert torch.allclose(images, one(grey[:, None]), atol=1e-5)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (BYTES, 6),
        ([BYTES], 6),
        (DataLoader(TensorDataset(BYTES), 4), 6),
        (DataLoader(TensorDataset(BYTES), 4, shuffle=True), 6),
        (DataLoader(TensorDataset(BYTES), 4, sampler=[3, 1]), 2),
        (Items(), 6),
        (iter([BYTES]), None),
    ],
)
def test_the_number_of_images_is_known_where_it_can_be(data, count):
    assert image_source(data, normalisation=NORMALISATION).count == count


@pytest.mark.parametrize(
    ("loader", "normalisation", "said"),
    [
        (BYTES, None, r"not normalised .*0 to 255.*normalisation=fpa.data.Normalisation"),
        (BYTES.float(), None, r"not normalised .*normalisation=fpa.data.Normalisation"),
        (BYTES.long() * 2, None, r"0\.\.255, but range from 0 to 510"),
        ([BYTES.float() / 255, NORMALISED], NORMALISATION, r"batch 1 ranges from .*looked like 0..1"),
        ([NORMALISED, NORMALISED[:, :, :4]], None, r"different sizes: batch 1 has \[3, 4, 8\].*one size"),
        ([[pil(BYTES[0]), pil(BYTES[1, :, :4])]], NORMALISATION, r"different sizes.*one size"),
        (torch.rand(2, 4, 8, 8), NORMALISATION, r"takes 3 channels, but the images have 4"),
        ({"photo": BYTES}, NORMALISATION, r"keys photo has no images: expected one of image, images"),
        ([("a.png", 0)], NORMALISATION, r"a batch must be images.*got tuple of 2"),
        ((NORMALISED, ["cat"] * 6), None, r"labels must be whole numbers.*cat"),
        ((NORMALISED, torch.rand(6, 4)), None, r"labels must be whole numbers \[6\].*\[6, 4\]"),
        ((NORMALISED, LABELS[:5]), None, r"labels must be whole numbers \[6\].*\[5\]"),
        ([], None, r"no images: the loader yields nothing"),
        (7, None, r"must be a tensor, an array, a list, or a loader.*int"),
        (torch.rand(5), None, r"must be \[N, C, H, W\], got \[5\]"),
    ],
)
def test_one_sentence_says_what_is_wrong_with_the_images(loader, normalisation, said):
    with pytest.raises(InputError, match=said) as raised:
        list(ImageBatches(loader, normalisation))
    assert "\n" not in str(raised.value)


def test_images_in_0_to_1_are_used_as_they_are_with_one_warning():
    unit = BYTES.float() / 255
    with pytest.warns(UserWarning, match="0..1 and are used as they are.*normalisation=") as said:
        images, *_ = joined(ImageBatches([unit[:3], unit[3:]]))
    assert len(said) == 1
    assert torch.equal(images, unit)


def test_normalised_images_raise_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(joined(ImageBatches(NORMALISED, channels=3))[0], NORMALISED)


def test_images_that_are_not_finite_are_left_for_the_evaluation_to_name():
    broken = NORMALISED.clone()
    broken[1, 0, 0, 0] = torch.nan
    images, *_ = joined(ImageBatches(broken, NORMALISATION))
    assert images[1].isnan().any()
    assert torch.equal(images[0], NORMALISED[0])


@pytest.mark.parametrize(
    "given",
    [((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)), [[0.5, 0.4, 0.3], [0.2, 0.2, 0.1]], "transform"],
)
def test_a_normalisation_in_the_forms_people_have(given):
    given = v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.1]) if given == "transform" else given
    assert as_normalisation(given) == Normalisation((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))


@pytest.mark.parametrize("given", ["cifar", (0.5, 0.2), 3])
def test_what_is_no_normalisation_is_told(given):
    with pytest.raises(InputError, match=r"normalisation must be \(mean, std\)"):
        as_normalisation(given)


def test_the_name_of_images_is_not_the_images():
    with pytest.raises(InputError, match="pass the images themselves, not their name 'folder:photos'"):
        ImageBatches("folder:photos")


@pytest.mark.parametrize("needed", [False, True])
def test_a_third_part_that_repeats_matters_only_where_numbers_are_needed(needed):
    data = TensorDataset(torch.randn(12, 3, 8, 8), torch.zeros(12, dtype=torch.int64), torch.arange(12) % 5)
    batches = ImageBatches(DataLoader(data, batch_size=4))
    if needed:
        batches.check_numbers()
        with pytest.raises(InputError, match="the number 0 belongs to two images"):
            list(batches)
    else:
        with pytest.warns(UserWarning, match="the number 0 belongs to two images"):
            assert sum(len(images) for images, _, _ in batches) == 12


@pytest.mark.parametrize(
    ("how", "drawn"),
    [
        ({"sampler": range(8)}, False),
        ({"batch_sampler": [[0, 1], [2, 3]]}, False),
        ({"sampler": SubsetRandomSampler(range(8))}, True),
        ({"batch_sampler": BatchSampler(RandomSampler(range(8)), 2, False)}, True),
    ],
)
def test_only_a_loader_that_draws_at_random_cannot_be_gone_on_with(how, drawn):
    assert ImageBatches(DataLoader(TensorDataset(torch.randn(8, 3, 8, 8)), **how)).drawn is drawn


def test_four_channels_at_the_end_stay_channels_where_the_model_says_nothing():
    image = torch.randn(10, 10, 4).numpy()
    assert next(iter(ImageBatches([image] * 3)))[0].shape == (3, 4, 10, 10)


class Dying(Dataset):
    """Data whose reading kills the process that reads, as the system does where the memory is full."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(3, 4, 4), 0


def test_a_killed_worker_is_one_line_and_what_to_do():
    loader = DataLoader(Dying(), batch_size=2, num_workers=1)
    for images in (image_source(loader), ImageBatches(loader)):
        batches = images.blocks(2) if hasattr(images, "blocks") else images
        with pytest.raises(InputError, match=r"be read: .*(killed|died|exited).*: try fewer workers"):
            list(batches)
