"""Imputing removed pixels (ROAD) against a direct solver, along curves, and where it is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import spsolve
from torch import nn

import fpa
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation.baselines import blurred
from fpa.masking import Road, fully_masked, noise_by_image
from fpa.masking.imputation import harmonic
from fpa.show import summary

WEIGHTS = {
    (a, b): 1 / 6 if a * b == 0 else 1 / 12 for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)
}


def solved(image, mask):
    """ROAD's equations, one by one, by SciPy's direct solver; image [C, H, W], mask [H, W]."""
    gone = [tuple(place) for place in np.argwhere(mask)]
    number = {place: row for row, place in enumerate(gone)}
    matrix, right = sparse.lil_matrix((len(gone), len(gone))), np.zeros((len(gone), len(image)))
    for (y, x), row in number.items():
        for (down, across), weight in WEIGHTS.items():
            other = (y + down, x + across)
            if 0 <= other[0] < mask.shape[0] and 0 <= other[1] < mask.shape[1]:
                matrix[row, row] += weight
                if other in number:
                    matrix[row, number[other]] -= weight
                else:
                    right[row] += weight * image[:, other[0], other[1]]
    out = image.copy()
    if gone:
        out[:, mask] = np.reshape(spsolve(matrix.tocsc(), right), (len(gone), -1)).T
    return out


def smooth(*shape, seed=0):
    """Scores that fall into blobs, as those of many maps do."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(values, 5, stride=1, padding=2)


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(2, 19), width=st.integers(2, 19), share=st.floats(0, 0.97), blobs=st.booleans(),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_equals_a_direct_solver(height, width, share, blobs, seed):
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(3, 2, height, width, generator=source)
    scores = smooth(3, height, width, seed=seed) if blobs else torch.rand(3, height, width, generator=source)
    limit = scores.flatten(1).sort().values[:, int(share * height * width)]
    mask = scores < limit[:, None, None]
    found = harmonic(images, mask)
    for image, removed, got in zip(images, mask, found, strict=True):
        expected = torch.from_numpy(solved(image.double().numpy(), removed.numpy()))
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(harmonic(images[1:2], mask[1:2]), found[1:2], rtol=0, atol=1e-6)


def test_a_large_hole_with_little_left():
    image = smooth(1, 3, 96, 96).double()
    mask = torch.ones(1, 96, 96, dtype=torch.bool)
    mask[0, 40:52, 30:70] = False
    expected = solved(image[0].numpy(), mask[0].numpy())
    np.testing.assert_allclose(
        harmonic(image, mask)[0].numpy(), expected, atol=1e-4 * float(image.abs().max())
    )


def test_values_by_hand():
    """A plane is the mean of its neighbours wherever these are all there; noise is of the channel's range."""
    plane = torch.arange(9.0)[:, None] + 2 * torch.arange(9.0)
    mask = torch.zeros(1, 9, 9, dtype=torch.bool)
    mask[0, 2:7, 3:6] = True
    torch.testing.assert_close(Road(0)(plane.expand(1, 2, 9, 9), mask)[0, 1], plane, atol=1e-3, rtol=0)
    images, noise = plane.expand(1, 1, 9, 9), torch.full((1, 1, 9, 9), 2.0)
    noisy = Road(0.5)(images, mask, noise) - Road(0)(images, mask)
    torch.testing.assert_close(noisy[0, 0], torch.where(mask[0], 0.5 * 2.0 * 24, 0.0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4)).eval()


def test_along_curves(model):
    """Against the direct solver at every point, with the noise of the image, in every batch size."""
    images, scores, numbers = smooth(3, 3, 8, 8, seed=1), smooth(3, 8, 8, seed=2), [7, 2, 90]
    asked = {"masking": "road", "points": 5, "indices": numbers, "seed": 3}
    curves = fpa.perturbation_curves(Engine(model, batch_size=64), images, scores, **asked)
    assert curves.fractions.tolist() == [0, 16 / 64, 32 / 64, 48 / 64, 61 / 64]
    noise = noise_by_image(Road(), images, 3, numbers)
    spread = 0.01 * (images.amax((2, 3), keepdim=True) - images.amin((2, 3), keepdim=True)) * noise
    for row in range(3):
        order = scores[row].flatten().argsort()
        for column, k in enumerate((0, 16, 32, 48, 61)):
            for side, first in (("lif", order[:k]), ("mif", order[64 - k :])):
                mask = torch.zeros(64, dtype=torch.bool)
                mask[first] = True
                imputed = torch.from_numpy(solved(images[row].numpy(), mask.view(8, 8).numpy()))
                imputed = torch.where(mask.view(8, 8), imputed + spread[row], imputed)
                with torch.no_grad():
                    logit = model(imputed[None].float())[0, curves.targets[row]]
                found = getattr(curves, side)["map"][row, column]
                torch.testing.assert_close(found, logit, rtol=0, atol=1e-4)
    for batch in (1, 5):
        other = fpa.perturbation_curves(Engine(model, batch_size=batch), images, scores, **asked)
        torch.testing.assert_close(other.mif, curves.mif)


def test_an_evaluation_ends_at_95_percent_and_says_so(model, tmp_path):
    images = smooth(6, 3, 8, 8)
    result = fpa.evaluate(model, images, ["ig_sum", "vg_abs"], masking="road", points=21, progress=False,
                          settings=fpa.Settings(ig_steps=2))  # fmt: skip
    assert result.evaluation.fractions[-1] == 61 / 64
    assert len(result.evaluation.fractions) == 20
    shown = " ".join(str(result).split())
    part = summary.up_to(result.results)
    assert " 95.3 %" in part
    assert part in shown
    (start,) = summary.references(result.results)
    assert start.endswith(" 0.")  # there is no fully masked image
    assert start in result.report(tmp_path / "shown" / "report.html").read_text()
    # A model that gives a constant 1 has the area of its range under both curves.
    constant = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2))
    nn.init.zeros_(constant[1].weight)
    nn.init.ones_(constant[1].bias)
    ones = fpa.perturbation_curves(constant, images, images[:, 0], masking="road")
    fidelity = fpa.Fidelity.from_curves(ones.mif["map"], ones.lif["map"], ones.fractions)
    assert fidelity.area_mif == pytest.approx(100 * 61 / 64)


def test_integrated_gradients_start_from_0(model):
    images = smooth(2, 3, 8, 8)
    assert (fully_masked("road", images) == 0).all()
    how = {"settings": fpa.Settings(ig_steps=3), "targets": 1}
    found = fpa.explain(model, images, "ig_sum", masking="road", **how)
    torch.testing.assert_close(found, fpa.explain(model, images, "ig_sum", **how))


def test_what_cannot_be_imputed_is_refused(model):
    images = smooth(2, 3, 8, 8)
    with pytest.raises(InputError, match="a mask must leave one or more"):
        Road()(images, torch.ones(2, 8, 8, dtype=torch.bool))
    with pytest.raises(InputError, match=r"fractions must be in 0..0.95, got 1"):
        fpa.make_plan(masking="road", fractions=[0, 0.5, 1])
    with pytest.raises(InputError, match="removing 95 % of 4 features removes all of them"):
        fpa.perturbation_curves(model, images, images[:, 0], masking="road", features=4)
    with pytest.raises(InputError, match="sigma must be a finite number of at least 0, got -1"):
        Road(-1)


def test_training_with_it_is_refused():
    with pytest.raises(InputError, match="the masking road is for evaluations only"):
        fpa.FPA(masking="road")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_equals_the_cpu():
    """Imputation, and the blur of twins, which TF32 would make rough."""
    images, scores = smooth(64, 3, 48, 64), smooth(64, 48, 64, seed=2)
    mask = scores < scores.flatten(1).quantile(0.9, 1)[:, None, None]
    found = harmonic(images.cuda(), mask.cuda()).cpu()
    torch.testing.assert_close(found, harmonic(images, mask), rtol=0, atol=1e-4)
    blur = blurred(images.cuda(), 3.0).cpu()
    torch.testing.assert_close(blur, blurred(images, 3.0), rtol=1e-6, atol=1e-7)
