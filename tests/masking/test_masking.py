"""The one definition of removing pixels, against slow references."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fpa
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import Settings
from fpa.masking import (
    MASKINGS,
    Blur,
    Bokeh,
    Constant,
    Uniform,
    fully_masked,
    get_masking,
    masking_json,
    noise_by_image,
)
from fpa.seeds import Stream, generator
from speckle import Speckle

MEAN, STD = (0.5, 0.4, 0.3), (0.5, 0.25, 0.2)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8]


def masking(name):
    return get_masking(name, MEAN, STD)


def some(dtype=torch.float32, shape=(3, 3, 7, 9)):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    return images.mul(20).clamp(0, 255).to(dtype) if dtype == torch.uint8 else images.to(dtype)


@pytest.mark.parametrize("name", [n for n in MASKINGS if n != "drop"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_input_unchanged_and_unmasked_pixels_bit_identical(name, dtype):
    if name == "black" and dtype == torch.uint8:
        pytest.skip("a normalised black is negative: it has no meaning in bytes")
    images = some(dtype)
    images[0, 0, 0, 0] = 0 if dtype == torch.uint8 else -0.0
    before = images.clone()
    mask = torch.rand(3, 7, 9) < 0.4
    mask[0, 0, 0] = False
    masked = masking(name)(images, mask)
    assert masked.dtype == dtype
    assert masked.data_ptr() != images.data_ptr()
    assert torch.equal(images.view(torch.uint8), before.view(torch.uint8))
    keep = ~mask.unsqueeze(1).expand_as(images)
    assert torch.equal(masked[keep].view(torch.uint8), before[keep].view(torch.uint8))


@pytest.mark.parametrize("name", [n for n in MASKINGS if n not in ("uniform", "road", "drop")])
def test_masked_pixels_are_the_fully_masked_image(name):
    images, mask = some(), torch.rand(3, 7, 9) < 0.5
    everything = fully_masked(masking(name), images)
    assert torch.equal(masking(name)(images, torch.ones_like(mask)), everything)
    chosen = mask.unsqueeze(1).expand_as(images)
    assert torch.equal(masking(name)(images, mask)[chosen], everything[chosen])


def test_values():
    images = some()
    assert (fully_masked(masking("constant"), images) == 0).all()
    black = fully_masked(masking("black"), images)
    # What a black pixel, 0, becomes under the normalisation.
    for channel in range(3):
        assert black[:, channel].unique().item() == pytest.approx((0 - MEAN[channel]) / STD[channel])
    for name, of in [("mean", torch.mean), ("minimum", torch.amin), ("maximum", torch.amax)]:
        for n in range(3):
            for c in range(3):
                got = fully_masked(masking(name), images)[n, c].unique()
                torch.testing.assert_close(got, of(images[n, c], (0, 1)).reshape(1))


def test_uniform_stays_in_the_range_of_each_channel_and_follows_its_generator():
    images = some(shape=(2, 3, 40, 40))
    noise = Uniform().noise(images, torch.Generator().manual_seed(3))
    again = Uniform().noise(images, torch.Generator().manual_seed(3))
    fill = Uniform().fill(images, noise)
    assert torch.equal(fill, Uniform().fill(images, again))
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    assert ((fill >= low) & (fill <= high)).all()
    share = ((fill - low) / (high - low)).mean().item()
    assert abs(share - 0.5) < 4 * math.sqrt(1 / 12 / fill.numel())


def reference_average(image, weights, reach):
    """Weighted mean over a window, border repeated: four plain loops."""
    height, width = image.shape
    out = torch.zeros(height, width, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            total = weight = 0.0
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    w = weights(dy, dx)
                    yy, xx = min(max(y + dy, 0), height - 1), min(max(x + dx, 0), width - 1)
                    total += w * float(image[yy, xx])
                    weight += w
            out[y, x] = total / weight
    return out


@settings(max_examples=10, deadline=None)
@given(radius=st.floats(0.3, 4), height=st.integers(4, 9), width=st.integers(4, 9))
def test_blurs_equal_the_plain_loops(radius, height, width):
    image = torch.randn(1, 1, height, width, dtype=torch.float64)
    disc = reference_average(image[0, 0], lambda y, x: float(y * y + x * x <= radius**2), math.floor(radius))
    torch.testing.assert_close(Bokeh(radius).fill(image)[0, 0], disc)
    reach = max(1, math.ceil(3 * radius))
    bell = reference_average(image[0, 0], lambda y, x: math.exp(-(y * y + x * x) / 2 / radius**2), reach)
    torch.testing.assert_close(Blur(radius).fill(image)[0, 0], bell)


def test_any_callable_is_a_masking():
    images = some()
    white = fully_masked(lambda x, mask: torch.where(mask.unsqueeze(1), 9.0, x), images)
    assert (white == 9).all()


def test_bad_input_is_explained():
    images = some()
    with pytest.raises(InputError, match=r"bool \[3, 7, 9\], got torch.float32 \[3, 7, 9\]"):
        Constant()(images, torch.zeros(3, 7, 9))
    with pytest.raises(InputError, match=r"\[N, C, H, W\], got shape \[3, 7, 9\]"):
        Constant()(images[0], torch.zeros(3, 7, 9, dtype=torch.bool))
    with pytest.raises(InputError, match="2 channel values"):
        fully_masked(Constant((0.0, 1.0)), images)
    with pytest.raises(InputError, match="did you mean 'blur'"):
        get_masking("blurr")
    with pytest.raises(InputError, match="needs the mean and std"):
        get_masking("black")


def inverted(images, mask, factor=1.0):
    return torch.where(mask[:, None], -factor * images, images)


def test_parameters():
    assert get_masking({"name": "blur", "sigma": 4}) == Blur(4.0)
    assert get_masking({"name": "zero", "value": [0, 1, 2]}) == Constant((0.0, 1.0, 2.0))
    assert get_masking({"name": "black"}, MEAN, STD) == get_masking("black", MEAN, STD)
    assert get_masking({"name": "black", "mean": [0.5], "std": [0.5]}) == Constant((-1.0,))
    assert get_masking(None) == Constant()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"name": "blur", "radius": 4}, "the masking blur takes sigma, got radius"),
        ({"name": "mean", "sigma": 4}, "the masking mean takes no parameters, got sigma"),
        ({"name": "blur", "sigma": -1}, r"the masking blur \(sigma\): sigma must be a finite number above 0"),
        ({"name": "bokeh", "radius": "wide"}, "radius must be a finite number above 0, got 'wide'"),
        ({"sigma": 4}, "a masking must have a name, got {'sigma': 4}"),
        (f"{__name__}:Nothing", "Nothing"),
        ({"name": f"{__name__}:inverted", "power": 2}, "takes factor, got power"),
    ],
)
def test_bad_parameters_name_the_accepted_ones(bad, message):
    with pytest.raises(InputError, match=message):
        get_masking(bad)


@pytest.mark.parametrize(
    "spec",
    ["constant", "mean", "uniform", "bokeh", "road", {"name": "blur", "sigma": 4}, "speckle:Speckle",
     {"name": "speckle:Speckle", "strength": 2.5}, f"{__name__}:inverted",
     {"name": f"{__name__}:inverted", "factor": 3.0}],
)  # fmt: skip
def test_the_json_form_is_read_again(spec):
    masking = get_masking(spec)
    stored = json.loads(json.dumps(masking_json(masking)))
    assert masking_json(get_masking(stored)) == stored
    images, mask = some(), torch.rand(3, 7, 9) < 0.5
    noise = noise_by_image(masking, images, 0, [0, 1, 2])
    assert torch.equal(get_masking(stored)(images, mask, noise), masking(images, mask, noise))


def test_json_forms():
    assert masking_json("blur") == {"name": "blur", "sigma": None}
    assert masking_json(Blur(4)) == {"name": "blur", "sigma": 4.0}
    assert masking_json(inverted) == {"name": f"{__name__}:inverted"}
    assert masking_json(Speckle(2.0)) == {"name": "speckle:Speckle", "strength": 2.0}


def test_a_masking_registered_from_outside(monkeypatch):
    monkeypatch.setitem(MASKINGS, "speckle", Speckle)
    assert get_masking({"name": "speckle", "strength": 3}) == Speckle(3)
    assert masking_json(Speckle(3.0)) == {"name": "speckle", "strength": 3.0}


def test_a_masking_that_depends_on_mask_and_noise_along_curves():
    """Against a loop over images and points, and equal for every batch size."""
    images, scores = some(shape=(3, 3, 6, 6)), some(shape=(3, 3, 6, 6)).flip(0)[:, 0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).eval()
    numbers = [7, 2, 90]
    curves = fpa.perturbation_curves(
        Engine(model, batch_size=64), images, scores, masking=Speckle(2.0), points=4, indices=numbers, seed=3
    )
    for row, number in enumerate(numbers):
        noise = Speckle().noise(images[:1], generator("cpu", 3, number, Stream.MASKING))
        for column, k in enumerate((0, 12, 24, 36)):
            mask = torch.zeros(36, dtype=torch.bool)
            mask[scores[row].flatten().argsort()[:k]] = True
            with torch.no_grad():
                masked = Speckle(2.0)(images[row : row + 1], mask.view(1, 6, 6), noise)
                logit = model(masked)[0, curves.targets[row]]
            torch.testing.assert_close(curves.lif["map"][row, column], logit, rtol=1e-5, atol=1e-5)
    for batch in (1, 5):
        other = fpa.perturbation_curves(
            Engine(model, batch_size=batch),
            images,
            scores,
            masking={"name": "speckle:Speckle", "strength": 2.0},
            points=4,
            indices=numbers,
            seed=3,
        )
        torch.testing.assert_close(other.mif, curves.mif)


def test_a_masking_that_depends_on_mask_and_noise_in_training():
    augment = fpa.FPA(
        p=1.0, p1_max=0.5, p2=0.1, s_max=3, masking=Speckle(), generator=torch.Generator().manual_seed(5)
    )
    images = some(shape=(4, 3, 8, 8))
    source = torch.Generator().manual_seed(5)
    mask = augment.mask_of(augment.draw((4, 8, 8), images.device, source), (4, 8, 8))
    noise = Speckle().noise(images, source)
    assert mask.any()
    torch.testing.assert_close(augment(images), Speckle()(images, mask, noise))


def test_integrated_gradients_start_at_the_fully_masked_image_of_any_masking():
    images = some(shape=(2, 3, 6, 6))
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).eval()
    found = fpa.explain(
        model, images, "ig_sum", targets=1, masking=Speckle(2.0), settings=Settings(ig_steps=3)
    )
    start = fully_masked(Speckle(2.0), images, noise_by_image(Speckle(2.0), images, 0, [0, 1]))
    expected = (images - start) * model[1].weight[1].detach().view(1, 3, 6, 6)
    torch.testing.assert_close(found["ig_sum"], expected.sum(1), rtol=1e-4, atol=1e-5)
