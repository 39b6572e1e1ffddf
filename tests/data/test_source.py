"""The images of an evaluation: any block, from whatever holds them, is the slice of the whole."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fpa.data import Normalisation, image_source, load_data, load_evaluation_data, same_images, sketches
from fpa.errors import InputError
from miniatures import write_class_folder

NORMALISATION = Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
BYTES = torch.randint(0, 256, (11, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
IMAGES = NORMALISATION(BYTES)
LABELS = torch.arange(11) % 4


class Items(Dataset):
    """PIL images with labels, which keeps count of what is read."""

    classes = ("ant", "bee", "cat", "dog")

    def __init__(self):
        self.read = []

    def __len__(self):
        return 11

    def __getitem__(self, index):
        self.read.append(index)
        return Image.fromarray(BYTES[index].permute(1, 2, 0).numpy()), int(LABELS[index])


class Stream(IterableDataset):
    def __iter__(self):
        return zip(BYTES, LABELS, strict=True)


def as_arrays(items):
    """A collate_fn of one's own: PIL images as one array."""
    return np.stack([np.array(image) for image, _ in items]), [label for _, label in items]


INDEXED = {
    "(images, labels)": lambda: (BYTES, LABELS),
    "a dict": lambda: {"image": BYTES, "label": LABELS},
    "a list of PIL images": lambda: [Items()[index][0] for index in range(11)],
    "a list of items": lambda: [Items()[index] for index in range(11)],
    "a data set": Items,
    "a loader": lambda: DataLoader(TensorDataset(BYTES, LABELS), 4),
    "a loader with one image a batch": lambda: DataLoader(TensorDataset(BYTES, LABELS)),
    "a loader with its own collate_fn": lambda: DataLoader(Items(), 3, collate_fn=as_arrays),
    "a loader with workers": lambda: DataLoader(Items(), 3, collate_fn=as_arrays, num_workers=1),
    "a loader with one batch": lambda: DataLoader(TensorDataset(BYTES, LABELS), 64),
}
STREAMS = {
    "a generator": lambda: ((BYTES[n : n + 3], LABELS[n : n + 3]) for n in range(0, 11, 3)),
    "an iterator with empty batches": lambda: iter(
        [(BYTES[a:b], LABELS[a:b]) for a, b in ((0, 5), (5, 5), (5, 11))]
    ),
    "a list of batches": lambda: [
        (BYTES[:1], LABELS[:1]),
        (BYTES[1:9], LABELS[1:9]),
        (BYTES[9:], LABELS[9:]),
    ],
    "a stream in a loader": lambda: DataLoader(Stream(), 4),
    "a loader with a sampler": lambda: DataLoader(TensorDataset(BYTES, LABELS), 4, sampler=list(range(11))),
    "a loader without batches": lambda: DataLoader(TensorDataset(BYTES, LABELS), batch_size=None),
}


def check(block, size, images=IMAGES, labels=LABELS):
    """A block is the slice of the whole that its number says."""
    part = slice(block.number * size, (block.number + 1) * size)
    torch.testing.assert_close(block.images, images[part])
    assert block.indices == list(range(len(images)))[part]
    assert block.labels.tolist() in (labels[part].tolist(), [-1] * len(block.labels))


@pytest.mark.parametrize("form", INDEXED | STREAMS)
@pytest.mark.parametrize("size", [1, 4, 5, 64])
def test_every_block_is_the_slice_of_the_whole(form, size):
    source = image_source((INDEXED | STREAMS)[form](), normalisation=NORMALISATION)
    assert source.indexed is (form in INDEXED)
    assert source.first.shape[1:] == (3, 8, 8)
    blocks = list(source.blocks(size))
    assert [block.number for block in blocks] == list(range(-(-11 // size)))
    for block in blocks:
        check(block, size)


@pytest.mark.parametrize("form", INDEXED | STREAMS)
@pytest.mark.parametrize("wanted", [(1, 3), (5,), (0, 1, 2), ()])
def test_blocks_that_are_skipped_change_none_of_the_others(form, wanted):
    source, asked = image_source((INDEXED | STREAMS)[form](), normalisation=NORMALISATION), []
    blocks = list(source.blocks(2, lambda number: asked.append(number) or number in wanted))
    assert [block.number for block in blocks] == list(wanted)
    assert asked == list(range(6))
    for block in blocks:
        check(block, 2)


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_only_the_batches_of_wanted_blocks_are_read(batch):
    items = Items()
    source = image_source(DataLoader(items, batch, collate_fn=as_arrays), normalisation=NORMALISATION)
    items.read.clear()
    (block,) = source.blocks(3, lambda number: number == 2)
    check(block, 3)
    assert set(items.read) == {
        n for k in {6 // batch, 7 // batch, 8 // batch} for n in range(11) if n // batch == k
    }
    assert len(items.read) == len(set(items.read))


def test_wanted_is_asked_when_the_block_is_due():
    source, done = image_source(IMAGES), set()
    for block in source.blocks(2, lambda number: number not in done):
        done.update((block.number, block.number + 1))  # another process has made the next one
    assert done == set(range(6))


def test_looking_at_the_first_images_takes_nothing_from_a_stream_which_is_read_once():
    source = image_source(iter([IMAGES[:4], IMAGES[4:]]))
    assert torch.equal(source.first[:4], IMAGES[:4])
    assert source.count is None
    assert sum(len(block.images) for block in source.blocks(3)) == 11
    with pytest.raises(InputError, match="cannot be read again"):
        list(source.blocks(3))


@pytest.mark.parametrize("form", STREAMS)
def test_count_takes_the_first_images_of_a_stream(form):
    source = image_source(STREAMS[form](), normalisation=NORMALISATION, count=7)
    blocks = list(source.blocks(4))
    assert [len(block.images) for block in blocks] == [4, 3]
    for block in blocks:
        check(block, 4, IMAGES[:7], LABELS[:7])
    assert source.count in (7, None)


def commands_choice(count, total):
    """The images that `fpa evaluate --count` takes: those with the smallest random numbers."""
    return sorted(np.argsort(np.random.PCG64(0).random_raw(total), kind="stable")[:count].tolist())


@pytest.mark.parametrize("form", INDEXED)
@pytest.mark.parametrize("size", [1, 4, 64])
def test_count_takes_the_images_that_the_commands_take(form, size):
    chosen = commands_choice(7, 11)
    assert chosen != list(range(7))
    source = image_source(INDEXED[form](), normalisation=NORMALISATION, count=7)
    assert (source.count, list(source.numbers)) == (7, chosen)
    blocks = list(source.blocks(size))
    assert [number for block in blocks for number in block.indices] == chosen
    torch.testing.assert_close(torch.cat([block.images for block in blocks]), IMAGES[chosen])
    labels = torch.cat([block.labels for block in blocks])
    assert labels.tolist() in (LABELS[chosen].tolist(), [-1] * 7)
    last = -(-7 // size) - 1  # any block can be read alone
    (alone,) = source.blocks(size, lambda number: number == last)
    assert alone.indices == chosen[last * size :]


def test_count_of_sorted_images_is_not_one_class_and_brings_its_masks():
    data = load_data("shapes")
    chosen = commands_choice(20, 1000)
    by_name, whole = image_source("shapes", count=20), image_source(data, count=20)
    assert by_name.numbers == whole.numbers == chosen
    part = replace(data, evaluation=data.evaluation[chosen])  # an earlier, larger choice has the same ones
    assert image_source(part, count=5).numbers == commands_choice(5, 1000)
    labels = torch.arange(1000) // 125
    images = torch.randn(1000, 1, 4, 4)
    masks = images[:, 0] > 0
    (block,) = image_source((images, labels), count=20, masks=masks).blocks(64)
    assert len(set(block.labels.tolist())) > 4
    assert torch.equal(block.images[:, 0] > 0, block.foreground)
    with pytest.raises(InputError, match=r"masks must be bool \[1000, 4, 4\]"):
        image_source((images, labels), count=20, masks=masks[:20])


def test_numbers_that_a_loader_brings_are_kept_by_count():
    loader = DataLoader(TensorDataset(IMAGES, LABELS, 100 + torch.arange(11)), 4)
    (block,) = image_source(loader, count=7).blocks(64)
    assert block.indices == [100 + number for number in commands_choice(7, 11)]


def test_more_images_than_are_usual_can_be_had_by_name(monkeypatch):
    data = load_data("shapes", evaluation_images=50)
    monkeypatch.setattr("fpa.data.source.load_evaluation_data", lambda name, size: data)
    assert image_source("shapes", count=60).numbers == commands_choice(60, 1000)


@pytest.mark.parametrize("name", ["folder:photos", "cifar10", "imagenet", "food101"])
def test_files_by_name_need_a_normalisation(name):
    with pytest.raises(InputError, match=r"pass normalisation=fpa.Normalisation\(mean, std\)"):
        image_source(name)


def test_a_stream_is_read_no_further_than_count():
    def stream():
        yield IMAGES[:4]
        yield IMAGES[4:8]
        raise AssertionError("read too far")

    assert [len(block.images) for block in image_source(stream(), count=6).blocks(3)] == [3, 3]


@pytest.mark.parametrize("count", [0, 12])
def test_a_count_that_cannot_be_had(count):
    with pytest.raises(InputError, match=f"number of images must be .*got {count}"):
        image_source(IMAGES, count=count)


def test_a_last_batch_that_the_loader_drops_is_dropped():
    source = image_source(DataLoader(TensorDataset(IMAGES), 4, drop_last=True))
    assert source.count == 8
    assert sum(len(block.images) for block in source.blocks(3)) == 8


def test_labels_become_outputs_of_the_model():
    (block,) = image_source((IMAGES, LABELS), labels=[7, 5, -1, 0]).blocks(64)
    assert block.labels.tolist() == [(7, 5, -1, 0)[label] for label in LABELS]
    with pytest.raises(InputError, match="label 3, but labels names outputs for 3 classes"):
        list(image_source((IMAGES, LABELS), labels=[7, 5, 2]).blocks(64))
    with pytest.raises(InputError, match="each of the 8 classes, got 3"):
        image_source("shapes", labels=[7, 5, 2])


def test_a_name_and_its_data_are_one_source():
    data = load_data("shapes", evaluation_images=40)
    chosen = data.evaluation
    source = image_source(data)
    assert (source.name, source.classes, source.count) == ("shapes", data.classes, 40)
    whole = data.normalisation(data.test.images[chosen])
    for block in source.blocks(16, lambda number: number != 1):
        part = slice(block.number * 16, block.number * 16 + 16)
        assert torch.equal(block.images, whole[part])
        assert torch.equal(block.labels, data.test.labels[chosen[part]])
        assert block.indices == chosen[part].tolist()
        assert torch.equal(block.foreground, data.test.foreground[chosen[part]])
    named = next(image_source("shapes").blocks(16))
    assert torch.equal(named.images, data.normalisation(data.test.images[:16]))
    assert image_source(source) is source
    with pytest.raises(InputError, match="its own labels, count and masks"):
        image_source(source, count=3)
    with pytest.raises(InputError, match="did you mean 'shapes'"):
        image_source("shape")


def test_a_model_may_take_the_images_of_a_data_set_otherwise_normalised():
    data = load_data("digits", evaluation_images=5)
    source = image_source(data, normalisation=NORMALISATION)
    (block,) = source.blocks(8)
    expected = NORMALISATION(data.test.images[data.evaluation].expand(-1, 3, -1, -1))
    assert torch.equal(block.images, expected)
    assert source.normalisation == NORMALISATION


@pytest.mark.parametrize("workers", [0, 1])
def test_files_that_cannot_be_read_leave_a_gap_and_are_noted(tmp_path, workers):
    folder = write_class_folder(tmp_path, ["cat", "dog"], 35)  # more than a worker decodes at a time
    data = load_evaluation_data(f"folder:{folder}", size=16)
    whole = torch.stack([data.normalisation(data.test.load(index)) for index in range(70)])
    broken = [data.test.paths[index] for index in (0, 1, 2, 3, 6)]
    for path in broken:
        path.write_bytes(b"no picture")
    source = image_source(data, workers=workers, labels=[3, 5])
    blocks = list(source.blocks(4))
    assert [block.number for block in blocks] == list(range(18))
    assert [len(block.images) for block in blocks[:3]] == [0, 3, 4]
    assert source.lost == set(broken)
    assert blocks[0].images.shape == (0, 3, 16, 16)
    assert blocks[1].indices == [4, 5, 7]
    for block in blocks:
        assert torch.equal(block.images, whole[block.indices])
        assert block.labels.tolist() == [3 if index < 35 else 5 for index in block.indices]
    (alone,) = source.blocks(4, lambda number: number == 1)
    assert torch.equal(alone.images, whole[[4, 5, 7]])
    large = list(source.blocks(64))
    assert [len(block.images) for block in large] == [59, 6]


def test_a_folder_without_one_readable_image(tmp_path):
    data = load_evaluation_data(f"folder:{write_class_folder(tmp_path, ['cat', 'dog'], 2)}", size=16)
    for path in data.test.paths:
        path.write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"none of the 4 images of folder:.* can be read"):
        image_source(data)


def test_images_without_labels_have_unknown_ones(tmp_path):
    folder = write_class_folder(tmp_path, ["cat"], 3) / "cat"
    (block,) = image_source(load_evaluation_data(f"folder:{folder}", size=16)).blocks(8)
    assert block.labels.tolist() == [-1] * 3


@pytest.mark.parametrize(("shuffle", "numbered"), [(False, False), (True, False), (True, True)])
def test_images_that_maps_belong_to_need_numbers(shuffle, numbered):
    parts = (IMAGES, LABELS, torch.arange(11)) if numbered else (IMAGES, LABELS)
    source = image_source(DataLoader(TensorDataset(*parts), 4, shuffle=shuffle))
    assert (source.drawn, source.indexed) == (shuffle, not shuffle)
    if shuffle and not numbered:
        with pytest.raises(InputError, match="the loader shuffles them"):
            source.check_numbers()
    else:
        source.check_numbers()
        for block in source.blocks(3):
            assert torch.equal(block.images, IMAGES[block.indices])


def test_numbers_that_come_with_the_images_are_theirs():
    numbers = torch.arange(30, 19, -1)
    source = image_source(DataLoader(TensorDataset(IMAGES, LABELS, numbers), 4))
    (block,) = source.blocks(3, lambda number: number == 2)
    assert block.indices == [24, 23, 22]
    repeated = image_source(DataLoader(TensorDataset(IMAGES, LABELS, torch.arange(11) % 6), 4))
    repeated.check_numbers()
    with pytest.raises(InputError, match="the number 0 belongs to two images"):
        list(repeated.blocks(3))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "no images: the loader yields nothing"),
        (7, "must be a tensor, an array, a list, or a loader"),
        (BYTES, "not normalised"),
        ([IMAGES, IMAGES[:, :, :4]], "different sizes: batch 1"),
        (DataLoader(TensorDataset(torch.cat([IMAGES.clamp(0, 1), IMAGES])), 11), "batch 1 ranges from"),
    ],
)
@pytest.mark.filterwarnings("ignore:the images lie in 0..1")
def test_one_sentence_says_what_is_wrong(data, said):
    with pytest.raises(InputError, match=said):
        list(image_source(data).blocks(4))


def test_a_block_without_images_is_refused():
    with pytest.raises(InputError, match="number of images in a block must be at least 1, got 0"):
        image_source(IMAGES).blocks(0)


def test_names_and_classes_of_what_people_bring():
    items = image_source(DataLoader(Items(), 3, collate_fn=as_arrays), normalisation=NORMALISATION)
    assert (items.name, items.classes) == ("Items", ["ant", "bee", "cat", "dog"])
    assert (image_source(IMAGES).name, image_source(IMAGES).classes) == ("images", None)


def test_pictures_are_the_bytes_the_images_came_from():
    source = image_source(BYTES, normalisation=NORMALISATION)
    (block,) = source.blocks(64)
    assert np.array_equal(source.pictures(block.images), BYTES.numpy())


def test_pictures_of_images_with_an_unknown_normalisation_reach_from_black_to_white():
    source = image_source(IMAGES)
    pictures = source.pictures(IMAGES)
    assert pictures.min((1, 2, 3)).tolist() == [0] * 11
    assert pictures.max((1, 2, 3)).tolist() == [255] * 11
    low, high = float(IMAGES[0].min()), float(IMAGES[0].max())
    fill = source.pictures(torch.zeros_like(IMAGES), like=IMAGES)
    assert set(fill[0].flatten().tolist()) == {round(-low / (high - low) * 255)}


def standardised(images):
    values = images.float()
    return (values - values.mean((1, 2, 3), keepdim=True)) / values.std((1, 2, 3), keepdim=True)


def photos(size=32):
    """Smooth images, as photos are: noise of several scales."""
    draw = torch.Generator().manual_seed(3)
    scales = [torch.rand(8, 3, side, side, generator=draw) for side in (2, 4, 8)]
    return sum(torch.nn.functional.interpolate(part, (size, size), mode="bilinear") for part in scales) / 3


def test_sketches_are_projections_on_signs():
    """Linear, of about the size of the image, and the same for an image whatever is beside it."""
    images = standardised(photos())
    signs = sketches(torch.eye(48).reshape(48, 3, 4, 4)) * 48**0.5
    assert set(signs.flatten().round(decimals=4).tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.15
    assert sketches(images).shape == (8, 16)
    torch.testing.assert_close(sketches(images[2:3]), sketches(images)[2:3])
    torch.testing.assert_close(
        sketches(images * 2 + 1), sketches(images) * 2 + sketches(torch.ones_like(images))
    )
    assert sketches(torch.full((1, 3, 4, 4), torch.nan)).abs().sum() == 0


def test_standardised_images_are_told_apart_though_mean_and_spread_are_equal():
    images = standardised(photos())
    for other in (images.roll(1, 0), images.flip(3), images.roll(1, 3), images.flip(1)):
        before, now = sketches(images), sketches(other)
        assert same_images(before, before)
        assert not any(same_images(a[None], b[None]) for a, b in zip(before, now, strict=True))
        assert not same_images(before, torch.cat([before[:7], now[7:]]))
    assert not same_images(sketches(images), sketches(images[:7]))


@pytest.mark.parametrize(
    "normalise", [Normalisation((0.5,) * 3, (0.5,) * 3), NORMALISATION, lambda images: images]
)
def test_the_last_bits_of_another_decoder_pass(normalise):
    images = photos().mul(255).round()
    noise = torch.randint(-1, 2, images.shape, generator=torch.Generator().manual_seed(1))
    one_up = (images + 1).clamp(0, 255)
    for again in ((images + noise).clamp(0, 255), one_up):
        assert same_images(sketches(normalise(images / 255)), sketches(normalise(again / 255)))
    shifted = sketches(normalise(images.roll(1, 2) / 255))
    assert not same_images(sketches(normalise(images / 255)), shifted)


def test_a_jpeg_compressed_harder_is_another_image_and_a_plain_list_is_fine_too():
    image = photos(64)[0].mul(255).byte().permute(1, 2, 0).numpy()

    def coded(quality):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        return sketches(NORMALISATION(torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None]))

    assert same_images(coded(98).tolist(), coded(98).numpy())
    assert not same_images(coded(98), coded(2))
