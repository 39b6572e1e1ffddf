"""FPA and the rectangle: exact against plain loops on the same draws, and in distribution."""

import math

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from fpa import FPA, Cell, InputError, Rectangle
from fpa.masking import Constant, Mean, Uniform
from fpa.training.augment import _grow_squares, perturbation_mask

CIFAR = {"p1_max": 0.25, "p2": 0.1, "s_max": 3}
IMAGENET = {"p1_max": 0.3, "p2": 0.01, "s_max": 10}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def papers_loop(uniform, p1, p2, s_max, squares):
    """Algorithm 1, pixel by pixel, with one uniform number a pixel deciding everything."""
    images, height, width = uniform.shape
    f = np.float32
    p1, p2 = f(p1), f(p2)
    mask = torch.zeros(uniform.shape, dtype=torch.bool)
    for k in range(images):
        for h in range(height):
            for w in range(width):
                u = f(uniform[k, h, w])
                if squares == "selected":
                    q, masked = p1 * p2, u < p1
                else:
                    q, masked = p2, u < p2 + (f(1) - p2) * p1
                if masked:
                    mask[k, h, w] = True
                if u < q:
                    side = min(s_max, 1 + math.floor(f(f(s_max) * u) / q))
                    for y in range(h, min(h + side, height)):
                        for x in range(w, min(w + side, width)):
                            mask[k, y, x] = True
    return mask


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 13), st.integers(2, 13)),
    p1_max=st.floats(0, 1),
    p2=st.floats(0, 1),
    squares=st.sampled_from(["selected", "everywhere"]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_mask_equals_the_papers_loop_on_the_same_draws(shape, p1_max, p2, squares, seed, data):
    s_max = data.draw(st.integers(1, min(shape[1:]) - 1))
    fpa = FPA(1.0, p1_max, p2, s_max, squares)
    draws = fpa.draw(shape, generator=generator(seed))
    expected = papers_loop(draws["uniform"], draws["p1"], p2, s_max, squares)
    assert torch.equal(fpa.mask_of(draws, shape), expected)
    if squares == "selected":  # the form used on accelerators, of fixed shape
        p1 = draws["p1"]
        dense = _grow_squares(draws["uniform"] < p1, draws["uniform"], p1 * p2, s_max)
        assert torch.equal(dense, expected)


@pytest.mark.parametrize("squares", ["selected", "everywhere"])
def test_dense_and_sparse_squares_agree_at_a_realistic_size(squares):
    fpa = FPA(1.0, 0.3, 0.05, 10, squares)
    for seed in range(3):
        draws = fpa.draw((3, 96, 130), generator=generator(seed))
        p1 = draws["p1"]
        q, masked = (p1 * 0.05, p1) if squares == "selected" else (torch.tensor(0.05), 0.05 + 0.95 * p1)
        dense = _grow_squares(draws["uniform"] < masked, draws["uniform"], q, 10)
        assert torch.equal(dense, fpa.mask_of(draws, (3, 96, 130)))


def test_large_squares_fit():
    fpa = FPA(1.0, 0.01, 0.02, 200)
    draws = fpa.draw((2, 224, 230), generator=generator(3))
    p1 = draws["p1"]
    dense = _grow_squares(draws["uniform"] < p1, draws["uniform"], p1 * 0.02, 200)
    assert torch.equal(dense, fpa.mask_of(draws, (2, 224, 230)))


def kept_probability(height, width, p1, p2, s_max, squares):
    """P(pixel stays), closed form: not masked itself, and no square above and to the left reaches it."""
    q = p1 * p2 if squares == "selected" else p2
    masked = p1 if squares == "selected" else p2 + (1 - p2) * p1
    kept = np.full((height, width), 1 - masked)
    for down in range(s_max):
        for right in range(s_max):
            if (down, right) != (0, 0):
                # A square from (h - down, w - right) reaches (h, w) if its side exceeds the larger offset.
                reaches = q * (s_max - max(down, right)) / s_max
                kept[down:, right:] *= 1 - reaches
    return kept


@pytest.mark.parametrize("squares", ["selected", "everywhere"])
@pytest.mark.parametrize(("setting", "size"), [(CIFAR, (32, 32)), (IMAGENET, (40, 56))])
def test_masked_fraction_at_fixed_p1_has_its_closed_form(squares, setting, size):
    images, p1 = 3000, 0.17
    fpa = FPA(1.0, **setting, squares=squares)
    draws = fpa.draw((images, *size), generator=generator(5)) | {"p1": torch.tensor(p1)}
    masked = fpa.mask_of(draws, (images, *size)).double().mean((1, 2))
    expected = 1 - kept_probability(*size, p1, setting["p2"], setting["s_max"], squares).mean()
    standard_error = masked.std() / math.sqrt(images)
    assert abs(masked.mean() - expected) < 4 * standard_error


@pytest.mark.parametrize(
    ("setting", "size", "squares", "published"),
    [
        (CIFAR, 32, "selected", 0.160),
        (CIFAR, 32, "everywhere", 0.446),
        (IMAGENET, 224, "selected", 0.192),
        (IMAGENET, 224, "everywhere", 0.415),
    ],
)
def test_mean_masked_fraction_over_p1(setting, size, squares, published):
    fpa = FPA(1.0, **setting, squares=squares)
    p1 = (np.arange(200) + 0.5) / 200 * setting["p1_max"]
    exact = np.mean([1 - kept_probability(size, size, v, fpa.p2, fpa.s_max, squares).mean() for v in p1])
    assert exact == pytest.approx(published, abs=6e-4)
    batches = 400 if size == 32 else 60
    images = torch.ones(2, 1, size, size)
    seeded = generator(1)
    shares = torch.stack([fpa.mask(images, seeded).double().mean() for _ in range(batches)])
    assert abs(shares.mean() - exact) < 4 * shares.std() / math.sqrt(batches)


def test_the_coin_is_per_mini_batch():
    images = torch.ones(16, 1, 12, 12)
    fpa = FPA(0.3, generator=generator(2))
    touched = torch.stack([fpa.mask(images).flatten(1).any(1) for _ in range(1500)])
    perturbed = touched.any(1)
    # In a perturbed batch nearly all images are touched (p1 is seldom tiny); in the others none is.
    assert touched[perturbed].double().mean() > 0.95
    assert abs(perturbed.double().mean() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 1500)


@pytest.mark.parametrize(
    "make", [lambda: FPA(1.0, generator=generator(7)), lambda: Rectangle(1.0, generator=generator(7))]
)
def test_same_seed_same_masks_and_fresh_ones_every_batch(make):
    images = torch.ones(4, 3, 20, 30)
    one, two = make(), make()
    first, second = one.mask(images), one.mask(images)
    assert torch.equal(first, two.mask(images))
    assert torch.equal(second, two.mask(images))
    assert not torch.equal(first, second)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.ones(1, 16, 16), index


class Collate:
    def __init__(self, augment):
        self.augment = augment

    def __call__(self, samples):
        return self.augment(*default_collate(samples))


@pytest.mark.parametrize(
    ("kind", "own", "persistent", "context"),
    [
        (FPA, True, False, "fork"),
        (FPA, False, False, "fork"),
        (FPA, True, True, "fork"),
        (FPA, True, True, "spawn"),
        (Rectangle, True, False, "fork"),
    ],
)
def test_no_two_batches_share_masks_over_workers_and_epochs(kind, own, persistent, context):
    def two_epochs():
        torch.manual_seed(11)
        collate = Collate(kind(1.0, generator=generator(3) if own else None))
        loader = DataLoader(
            Pictures(),
            4,
            num_workers=2,
            collate_fn=collate,
            persistent_workers=persistent,
            multiprocessing_context=context,
        )
        return [images for _ in range(2) for images, _ in loader]

    batches = two_epochs()
    assert len(batches) == 16
    for i, a in enumerate(batches):
        assert not any(torch.equal(a, b) for b in batches[:i])
    assert all(torch.equal(a, b) for a, b in zip(batches, two_epochs(), strict=True))


def rectangle_loop(draws, height, width, area, aspect):
    mask = torch.zeros(draws["place"].shape[1], height, width, dtype=torch.bool)
    for n in range(mask.shape[0]):
        for a, r in draws["sizes"][:, n].T.numpy():
            size = np.float32((area[0] + a * np.float32(area[1] - area[0])) * np.float32(height * width))
            ratio = np.float32(aspect[0] + r * np.float32(aspect[1] - aspect[0]))
            tall, wide = round(float(np.sqrt(size * ratio))), round(float(np.sqrt(size / ratio)))
            if 1 <= tall < height and 1 <= wide < width:
                top = min(int(float(draws["place"][0, n]) * (height - tall + 1)), height - tall)
                left = min(int(float(draws["place"][1, n]) * (width - wide + 1)), width - wide)
                mask[n, top : top + tall, left : left + wide] = True
                break
    return mask


@settings(max_examples=40, deadline=None)
@given(height=st.integers(2, 40), width=st.integers(2, 40), seed=st.integers(0, 10**6))
def test_rectangle_equals_the_plain_loop_on_the_same_draws(height, width, seed):
    rectangle = Rectangle(1.0)
    draws = rectangle.draw((6, height, width), generator=generator(seed))
    expected = rectangle_loop(draws, height, width, rectangle.area, rectangle.aspect)
    assert torch.equal(rectangle.mask_of(draws, (6, height, width)), expected)


def test_rectangle_is_one_box_an_image_with_the_area_asked_for():
    masks = Rectangle(1.0, generator=generator(0)).mask(torch.ones(4000, 1, 64, 64))
    rows, columns = masks.any(2).sum(1), masks.any(1).sum(1)
    assert torch.equal(masks.flatten(1).sum(1), rows * columns)
    share = masks.double().mean((1, 2))
    assert share.min() > 0.015
    assert share.max() < 0.41


def test_rectangle_that_never_fits_leaves_the_image_alone():
    assert not Rectangle(1.0, area=(1.0, 1.0)).mask(torch.ones(5, 1, 9, 9)).any()


def test_rectangle_coins():
    images = torch.ones(50, 1, 16, 16)
    per_image = Rectangle(0.5, coin="image", generator=generator(1)).mask(images).flatten(1).any(1)
    assert 10 < per_image.sum() < 40
    seeded = Rectangle(0.5, generator=generator(1))
    touched = torch.stack([seeded.mask(images).flatten(1).any(1) for _ in range(200)])
    assert (touched.all(1) | ~touched.any(1)).all()
    assert 70 < touched.all(1).sum() < 130


@pytest.mark.parametrize("augment", [FPA(1.0), Rectangle(1.0)])
def test_is_a_transform_of_torchvision(augment):
    torch.manual_seed(0)
    image = tv_tensors.Image(torch.randint(1, 255, (3, 24, 40), dtype=torch.uint8))
    box = tv_tensors.BoundingBoxes([[1, 1, 5, 5]], format="XYXY", canvas_size=(24, 40))
    normalised = v2.Normalize([0.5] * 3, [0.5] * 3)
    compose = v2.Compose([v2.ToDtype(torch.float32, scale=True), normalised, augment])
    out, out_box, label = compose(image, box, 7)
    assert isinstance(out, tv_tensors.Image)
    assert out.shape == image.shape
    assert label == 7
    assert torch.equal(out_box, box)
    assert (out == 0).any()
    batch = {"pixel_values": torch.ones(2, 3, 24, 40), "labels": torch.tensor([1, 2]), "name": "x"}
    masked = augment(batch)
    assert (masked["pixel_values"] == 0).any()
    assert (batch["pixel_values"] == 1).all()
    assert torch.equal(masked["labels"], batch["labels"])
    assert masked["name"] == "x"


@pytest.mark.parametrize("make", [FPA, Rectangle, Cell])
def test_images_before_their_normalisation_are_noticed_once(make):
    pixels = torch.rand(2, 3, 8, 8, generator=generator(0))
    augment = make()
    with pytest.warns(UserWarning, match=rf"given to {make.__name__} lie in 0..1.* put it after v2") as told:
        v2.Compose([augment, augment, v2.Normalize([0.5] * 3, [0.5] * 3)])(pixels)
    assert len(told) == 1
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="lie in 0..1"):
        make()(pixels[0])


@pytest.mark.parametrize(
    ("images", "masking"),
    [
        (torch.randn(2, 3, 8, 8), None),
        (2 * torch.rand(2, 3, 8, 8) - 1, None),
        (torch.ones(2, 3, 8, 8), None),
        (torch.zeros(0, 3, 8, 8), None),
        (torch.rand(2, 3, 8, 8), Constant(0.5)),
        (torch.rand(2, 3, 8, 8), "mean"),
    ],
    ids=["normalised", "in -1..1", "a single value", "no images", "a value for 0..1", "the mean of an image"],
)
def test_other_images_and_maskings_pass_without_a_word(images, masking, recwarn):
    FPA(masking=masking)(images)
    assert [str(each.message) for each in recwarn] == []


def test_a_compiled_augmentation_does_not_look_at_its_images(recwarn):
    augment = FPA(1.0)
    compiled = torch.compile(augment, backend="eager")
    compiled(torch.rand(2, 3, 8, 8))
    assert not [each for each in recwarn if "lie in 0..1" in str(each.message)]


def test_any_masking_and_its_noise_follow_the_generator():
    images = torch.randn(4, 3, 16, 16, generator=generator(0))
    one = FPA(1.0, masking=Uniform(), generator=generator(1))(images)
    two = FPA(1.0, masking=Uniform(), generator=generator(1))(images)
    assert torch.equal(one, two)
    mask = FPA(1.0, generator=generator(1)).mask(images)
    assert torch.equal(FPA(1.0, masking=Mean(), generator=generator(1))(images), Mean()(images, mask))
    doubled = FPA(1.0, masking=lambda x, m: torch.where(m[:, None], 5.0, x), generator=generator(1))(images)
    assert torch.equal(doubled == 5.0, mask[:, None].expand_as(images))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_do_not_depend_on_the_dtype_of_the_images(dtype):
    images = torch.ones(4, 3, 16, 16)
    expected = FPA(1.0, generator=generator(4))(images)
    assert torch.equal(FPA(1.0, generator=generator(4))(images.to(dtype)), expected.to(dtype))


def test_p2_zero_makes_no_squares_and_p_zero_no_masks():
    u = torch.rand(2, 9, 9)
    assert torch.equal(perturbation_mask(u, torch.tensor(0.3), torch.tensor(0.0), 4), u < 0.3)
    assert not FPA(0.0).mask(torch.ones(4, 1, 8, 8)).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FPA(p=1.5), r"p must be a probability in \[0, 1\], got 1.5"),
        (lambda: FPA(p1_max=-0.1), "p1_max must be a probability"),
        (lambda: FPA(p2=float("nan")), "p2 must be a probability"),
        (lambda: FPA(s_max=0), "s_max must be at least 1, got 0"),
        (lambda: FPA(s_max=2.5), "s_max must be a whole number"),
        (lambda: FPA(squares="some"), "one of selected, everywhere, got 'some'"),
        (lambda: FPA(s_max=8)(torch.ones(1, 3, 8, 20)), r"s_max must be in 1..7 for images of 8x20, got 8"),
        (lambda: FPA()(torch.ones(8, 8)), r"\[C, H, W\], got shape \[8, 8\]"),
        (lambda: FPA()(torch.ones(1, 1, 3, 8, 8)), "got shape"),
        (lambda: FPA()(torch.ones(1, 3, 8, 8, dtype=torch.uint8)), "floating-point images, got torch.uint8"),
        (lambda: FPA()(PIL.Image.new("RGB", (8, 8))), "got a PIL image: put it after"),
        (lambda: Rectangle(p=2), "p must be a probability"),
        (lambda: Rectangle(area=(0.5, 0.1)), "area must be two rising shares"),
        (lambda: Rectangle(aspect=(0, 1)), "aspect must be two rising positive numbers"),
        (lambda: Rectangle(coin="pixel"), "coin must be one of batch, image"),
    ],
)
def test_bad_settings_are_explained(make, message):
    with pytest.raises(InputError, match=message):
        make()
