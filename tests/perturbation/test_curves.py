"""Perturbation curves against a slow reference that removes pixels one by one."""

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import Task, explain
from fpa.masking import MASKINGS, Blur, Constant, Uniform, get_masking
from fpa.perturbation import OUTPUTS, curves_of, output, perturbation_curves, ranks


def some(count=3, channels=3, size=6, seed=0):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


class Total(nn.Module):
    """Logits: the sum of all pixels, and its half. A masked pixel takes its value away."""

    def forward(self, x):
        total = x.sum((1, 2, 3))
        return torch.stack([total, total / 2], 1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 5)).eval()


def slow_curve(model, image, scores, target, steps, masking, most_first):
    """Remove features one after the other in the order of their scores; no two scores may be equal."""
    order = sorted(
        range(scores.numel()), key=lambda place: float(scores.flatten()[place]), reverse=most_first
    )
    values = []
    for k in steps:
        mask = torch.zeros(image.shape[1:], dtype=torch.bool)
        for place in order[:k]:
            mask[place // mask.shape[1], place % mask.shape[1]] = True
        with torch.no_grad():
            values.append(float(model(masking(image[None], mask[None]))[0, target]))
    return torch.tensor(values)


def test_by_hand():
    """Scores 4 3 2 1 on values 1 2 3 4: MIF leaves 10 9 7 4 0, LIF 10 6 3 1 0."""
    images = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 2, 2)
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0]).view(1, 2, 2)
    curves = perturbation_curves(Total(), images, scores, points=5)
    assert curves.fractions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curves.mif["map"].tolist() == [[10, 9, 7, 4, 0]]
    assert curves.lif["map"].tolist() == [[10, 6, 3, 1, 0]]
    assert curves.unmasked.tolist() == [10]
    assert curves.targets.tolist() == [0]


@pytest.mark.parametrize("name", [name for name in MASKINGS if name not in ("uniform", "road", "drop")])
def test_any_masking_equals_the_slow_reference(net, name):
    masking = get_masking(name, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2))
    images, maps = some(), {"a": some(seed=1)[:, 0], "b": some(seed=2)[:, 0]}
    curves = perturbation_curves(net, images, maps, masking=masking, points=8)
    steps = [round(point / 7 * 36) for point in range(8)]
    assert curves.fractions.tolist() == [k / 36 for k in steps]
    targets = net(images).argmax(1)
    assert torch.equal(curves.targets, targets)
    for key, scores in maps.items():
        for found, most_first in [(curves.mif[key], True), (curves.lif[key], False)]:
            expected = torch.stack(
                [
                    slow_curve(net, images[i], scores[i], targets[i], steps, masking, most_first)
                    for i in range(len(images))
                ]
            )
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_plain_function_is_a_masking(net):
    images, maps = some(), some(seed=1)[:, 0]
    plain = perturbation_curves(net, images, maps, masking=lambda x, mask: x * ~mask[:, None])
    known = perturbation_curves(net, images, maps, masking=Constant())
    torch.testing.assert_close(plain.mif, known.mif)


def test_noise_stays_the_same_along_the_curve_and_in_any_batch():
    """Along the curves a pixel is either itself or its one noisy fill."""
    images, maps, seen = some(2), some(2, seed=1)[:, 0], []

    class Watching(nn.Module):
        def forward(self, x):
            seen.append(x.clone())
            return x.flatten(1)[:, :4]

    engine = Engine(Watching(), batch_size=7)
    perturbation_curves(engine, images[:1], maps[:1], points=5)
    seen.clear()
    perturbation_curves(engine, images[:1], maps[:1], points=5, masking=Uniform())
    rows = torch.cat(seen).unique(dim=0).flatten(1)
    assert all(len(pixel.unique()) == 2 for pixel in rows.T)
    one = perturbation_curves(Total(), images, maps, masking=Uniform())
    two = perturbation_curves(Total(), images[1:], maps[1:], masking=Uniform(), indices=[1])
    torch.testing.assert_close(one.mif["map"][1:], two.mif["map"])
    differences = {key: one.mif[key][:, -1] - one.lif[key][:, -1] for key in one.mif}
    assert (differences["map"] == 0).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=16, max_size=16), st.integers(0, 5), st.integers(0, 99))
def test_ranks_order_the_scores_and_break_ties_alike_in_any_company(values, seed, index):
    scores = torch.tensor(values, dtype=torch.float32).view(1, 4, 4)
    scores[scores == 0] *= -1  # both zeros are the same score
    found = ranks(scores, seed=seed, indices=[index])
    order = found.flatten().argsort()
    assert sorted(found.flatten().tolist()) == list(range(16))
    assert (scores.flatten()[order].diff() >= 0).all()
    company = torch.cat([torch.rand(2, 4, 4), scores, torch.rand(1, 4, 4)])
    assert torch.equal(ranks(company, seed=seed, indices=[500, 501, index, 502])[2], found[0])
    # Equal scores keep the image's own order, whatever the scores are.
    base = ranks(torch.zeros(1, 4, 4), seed=seed, indices=[index]).flatten()
    for value in set(values):
        tied = [place for place in range(16) if values[place] == value]
        assert sorted(tied, key=lambda p: found.flatten()[p]) == sorted(tied, key=lambda p: base[p])


@settings(max_examples=10, deadline=None)
@given(batch=st.integers(1, 50), points=st.integers(3, 12))
def test_masks_do_not_depend_on_the_batch_size(batch, points):
    """The model writes down each row it sees: the rows are bit-identical for any batch size."""
    images, maps = (
        some(3, 1, 5),
        {"tied": some(3, 1, 5, seed=1)[:, 0].round(), "b": some(3, 1, 5, seed=2)[:, 0]},
    )

    def rows(size):
        seen = []

        class Watching(nn.Module):
            def forward(self, x):
                seen.append(x.clone())
                return x.flatten(1)[:, :3]

        engine = Engine(Watching(), batch_size=size)
        engine.predict(images)
        seen.clear()
        curves = perturbation_curves(engine, images, maps, points=points)
        return {row.numpy().tobytes() for row in torch.cat(seen)}, curves

    seen, curves = rows(batch)
    expected_seen, expected = rows(64)
    assert seen == expected_seen
    for key in maps:
        assert torch.equal(curves.mif[key], expected.mif[key])


def test_mif_is_the_reverse_of_lif():
    """What MIF leaves at k is what LIF has removed at HW - k: with a sum as logit the two add up."""
    images, maps = some(4, 1, 8), some(4, 1, 8, seed=1)[:, 0].round()
    curves = perturbation_curves(Total(), images.abs(), maps, points=17)
    whole = curves.unmasked[:, None]
    torch.testing.assert_close(curves.mif["map"] + curves.lif["map"].flip(1), whole.expand(-1, 17))


def test_a_constant_map_says_nothing():
    """A = 0 within its interval for a constant map over many images: ties carry no order of the raster."""
    images = torch.rand(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images *= torch.linspace(0.1, 3, 64).view(8, 8)  # raster order would matter a lot here
    curves = perturbation_curves(Total(), images, torch.zeros(400, 8, 8))
    gaps = (curves.lif["map"] - curves.mif["map"]) / curves.unmasked[:, None]
    areas = np.trapezoid(gaps, curves.fractions, axis=1)
    assert abs(areas.mean()) < 3 * areas.std() / 20
    assert areas.std() > 0


def test_ends_are_scored_once_for_all_maps_and_orders():
    seen = []

    class Counting(Total):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    engine = Engine(Counting(), batch_size=8)
    images, maps = some(4, 1), {name: some(4, 1, seed=seed)[:, 0] for seed, name in enumerate("abc")}
    perturbation_curves(engine, images, maps, points=11)
    seen.clear()
    perturbation_curves(engine, images, maps, points=11)
    assert sum(seen) == 4 + 4 + 3 * 2 * 4 * 9


def test_fractions_given():
    images, maps = some(2, 1), some(2, 1, seed=1)[:, 0]
    curves = perturbation_curves(Total(), images, maps, fractions=[0.1, 0.5])
    every = perturbation_curves(Total(), images, maps, fractions=[k / 36 for k in range(37)])
    assert curves.fractions.tolist() == [4 / 36, 18 / 36]
    assert torch.equal(curves.mif["map"], every.mif["map"][:, [4, 18]])


def test_other_outputs(net):
    images, maps = some(4), some(4, seed=1)[:, 0]
    labels = torch.tensor([0, 1, 2, 3])
    names = ["probability", "margin", "accuracy", "centred", "log_odds"]
    curves = perturbation_curves(net, images, maps, points=3, outputs=names, labels=labels)
    order = maps.flatten(1).argsort(1)
    mask = torch.zeros(4, 36, dtype=torch.bool).scatter_(1, order[:, :18], True).view(4, 6, 6)
    with torch.no_grad():
        for column, rows in enumerate([images, Constant()(images, mask), torch.zeros_like(images)]):
            logits = net(rows)
            own = logits.gather(1, curves.targets[:, None])[:, 0]
            rest = logits.scatter(1, curves.targets[:, None], -torch.inf).amax(1)
            for name, expected in [
                ("probability", logits.softmax(1).gather(1, curves.targets[:, None])[:, 0]),
                ("margin", own - rest),
                ("accuracy", (logits.argmax(1) == labels).float()),
                ("centred", own - logits.mean(1)),
                ("log_odds", logits.softmax(1).gather(1, curves.targets[:, None])[:, 0].logit()),
            ]:
                torch.testing.assert_close(curves.others[name].lif["map"][:, column], expected)
    torch.testing.assert_close(curves.others["margin"].unmasked, curves.others["margin"].mif["map"][:, 0])


def test_an_output_from_outside(net):
    before = dict(OUTPUTS)

    @output()
    def entropy(logits, targets, labels):
        return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)

    try:
        images, maps = some(), some(seed=1)[:, 0]
        curves = perturbation_curves(net, images, maps, points=3, outputs=["entropy"])
        with torch.no_grad():
            chances = net(torch.zeros_like(images)).softmax(1)
        torch.testing.assert_close(
            curves.others["entropy"].mif["map"][:, -1], torch.special.entr(chances).sum(1)
        )
        task = Task(Engine(net), images, curves.targets, [0, 1, 2], 0, Constant())
        logits = net(images).detach()
        alone = curves_of(
            task, {"map": maps}, [0, 0.5, 1], logits=logits, labels=curves.targets, outputs=["entropy"]
        )
        assert list(alone) == ["entropy"]
        assert torch.equal(alone["entropy"].lif["map"], curves.others["entropy"].lif["map"])
        assert not OUTPUTS["entropy"].divided_by_start
    finally:
        OUTPUTS.clear()
        OUTPUTS.update(before)
    assert [name for name, known in OUTPUTS.items() if known.divided_by_start] == ["logit", "centred"]
    with pytest.raises(InputError, match="unknown output 'entropy'"):
        perturbation_curves(net, images, maps, outputs=["entropy"])


def test_ranks_of_patches_are_those_the_curves_remove():
    """A pixel's rank is that of its patch: the pixels below k are those that LIF has removed."""
    images = torch.arange(16.0).view(1, 1, 4, 4)
    places = ranks(images[:, 0], features=2)
    assert places[0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]


def test_patches():
    """Patches of 2 x 2 on a 4 x 4 image: each is worth its mean, and goes as a whole."""
    images = torch.arange(16.0).view(1, 1, 4, 4)
    curves = perturbation_curves(Total(), images, images[:, 0], features=2, points=5)
    patches = torch.tensor([0 + 1 + 4 + 5, 2 + 3 + 6 + 7, 8 + 9 + 12 + 13, 10 + 11 + 14 + 15.0])
    assert curves.fractions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curves.shares_mif is None
    assert curves.lif["map"].tolist() == [[120 - float(patches[:k].sum()) for k in range(5)]]
    assert curves.mif["map"].tolist() == [[float(patches[: 4 - k].sum()) for k in range(5)]]


def test_patches_that_do_not_divide_the_image_have_exact_shares():
    images = torch.ones(1, 1, 3, 3)
    scores = torch.arange(9.0).view(1, 3, 3)
    curves = perturbation_curves(Total(), images, scores, features=2, points=5)
    # Means: patch of 4 pixels 2, right pair 3.5, bottom pair 6.5, corner 8.
    assert curves.shares_lif["map"].tolist() == [[0, 4 / 9, 6 / 9, 8 / 9, 1]]
    assert curves.shares_mif["map"][0].tolist() == pytest.approx([0, 1 / 9, 3 / 9, 5 / 9, 1])
    assert curves.lif["map"].tolist() == [[9, 5, 3, 1, 0]]
    assert curves.mif["map"].tolist() == [[9, 8, 6, 4, 0]]


def test_segments_against_the_slow_reference(net):
    """Images with different numbers of segments, labels with holes in their numbering."""
    images, maps, steps = some(), some(seed=1)[:, 0], 6
    generator = torch.Generator().manual_seed(3)
    labels = torch.stack([torch.randint(0, most, (6, 6), generator=generator) * 3 for most in (3, 5, 9)])
    curves = perturbation_curves(net, images, maps, features=labels, points=steps)
    for row in range(3):
        numbers = labels[row].unique().tolist()
        means = {n: float(maps[row].double()[labels[row] == n].mean()) for n in numbers}
        for most_first, found, shares in [
            (True, curves.mif, curves.shares_mif),
            (False, curves.lif, curves.shares_lif),
        ]:
            order = sorted(numbers, key=means.get, reverse=most_first)
            for column in range(steps):
                gone = order[: round(column / (steps - 1) * len(numbers))]
                mask = torch.isin(labels[row], torch.tensor(gone, dtype=torch.int64))
                with torch.no_grad():
                    logit = net(Constant()(images[row : row + 1], mask[None]))[0, curves.targets[row]]
                torch.testing.assert_close(found["map"][row, column], logit, rtol=1e-5, atol=1e-5)
                assert shares["map"][row, column].item() == pytest.approx(mask.double().mean().item())


def test_single_pixels_as_segments_are_pixels(net):
    images, maps = some(), some(seed=1)[:, 0]
    labels = torch.arange(36).view(6, 6)
    one = perturbation_curves(net, images, maps, features=labels)
    two = perturbation_curves(net, images, maps)
    torch.testing.assert_close(one.mif, two.mif)
    assert torch.equal(one.fractions, two.fractions)


def test_equal_segments_tie_at_random():
    images = torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 3, 6)
    curves = perturbation_curves(Total(), images, torch.full((200, 6, 6), 0.1), features=2)
    gaps = (curves.lif["map"] - curves.mif["map"]).mean(1)
    assert abs(gaps.mean()) < 3 * gaps.std() / 200**0.5


def test_real_network_end_to_end():
    torch.manual_seed(0)
    model, images = torchvision.models.resnet18(num_classes=4), some(2, 3, 32)
    maps = explain(model, images, ["vg_abs", "random"])
    curves = perturbation_curves(model, images, maps, points=5, masking=Blur())
    assert all(torch.isfinite(curves.mif[name]).all() for name in maps)
    alone = perturbation_curves(Engine(model, batch_size=3), images, maps, points=5, masking=Blur())
    torch.testing.assert_close(alone.mif, curves.mif, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_is_named_and_the_rest_goes_on(net):
    images, maps = some(4), {"good": some(4, seed=1)[:, 0], "bad": some(4, seed=2)[:, 0]}
    clean = perturbation_curves(net, images, maps)
    images[3, 0, 0, 0], maps["bad"][1, 2, 2] = float("inf"), float("nan")
    with pytest.warns(UserWarning, match="not finite") as told:
        curves = perturbation_curves(net, images, maps, indices=[0, 1, 2, 3])
    assert [str(warning.message) for warning in told] == [
        "1 image (image 3) is not finite: left out (NaN)",
        "estimator bad: 1 map (image 1) is not finite: left out (NaN)",
    ]
    assert curves.mif["good"].isnan().any(1).tolist() == [False, False, False, True]
    assert curves.mif["bad"].isnan().any(1).tolist() == [False, True, False, True]
    assert curves.unmasked.isnan().tolist() == [False, False, False, True]
    torch.testing.assert_close(curves.lif["good"][:3], clean.lif["good"][:3])


def test_logits_that_are_not_finite_are_named():
    class Breaks(nn.Module):
        def forward(self, x):
            return torch.stack([x.sum((1, 2, 3)), 1 / x[:, 0, 0, 0]], 1)

    images = torch.ones(2, 1, 2, 2)
    with pytest.warns(UserWarning, match=r"estimator map: 2 curves \(images 0, 1\) are not finite"):
        perturbation_curves(Breaks(), images, torch.ones(2, 2, 2), targets=1)
    images[1, 0, 0, 0] = 0
    with pytest.warns(UserWarning, match=r"1 unmasked logit \(image 1\) is not finite"):
        perturbation_curves(Breaks(), images, torch.ones(2, 2, 2), targets=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"maps": {"vg": torch.zeros(3, 6, 5)}},
            r"map vg must be \[3, 6, 6\] for these images, got \[3, 6, 5\]",
        ),
        ({"maps": {}}, "no maps"),
        ({"fractions": [0, 0.5, 1.2]}, r"fractions must be in 0..1, got 1.2"),
        ({"fractions": [0, 0.5, 0.4]}, "fractions must rise, got 0.4 after 0.5"),
        ({"fractions": [float("nan")]}, r"fractions must be in 0..1, got nan"),
        ({"fractions": []}, "no fractions"),
        ({"points": 2}, "at least 3 points, got 2"),
        ({"targets": 9}, r"targets must be in 0..4; 9"),
        ({"outputs": ["logits"]}, "unknown output 'logits': did you mean 'logit'"),
        ({"features": "patches"}, "a patch size .*or a label map, got 'patches'"),
        ({"features": 0}, r"patch size must be in 1..6 pixels, got 0"),
        ({"features": torch.zeros(2, 2)}, r"label map must be whole numbers \[3, 6, 6\] or \[6, 6\], got"),
        ({"indices": [1]}, "3 images but 1 indices"),
    ],
)
def test_bad_input(net, arguments, message):
    with pytest.raises(InputError, match=message):
        perturbation_curves(net, **{"images": some(), "maps": some(seed=1)[:, 0], **arguments})
