"""The world `cues`: what is drawn independently is, labels follow the rule, backgrounds look natural."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fpa import InputError
from fpa.worlds import Cues
from fpa.worlds.backgrounds import draw_backgrounds


@pytest.fixture(scope="module")
def scenes():
    return Cues().draw(3, range(1500))


def strengths(scenes):
    """[N, cues]: the opacity in the middle of a cue, 0 where it is not there."""
    return (scenes.opacity[:, None] * scenes.masks()).flatten(2).amax(2)


def evidence_by_hand(rule, first, second):
    """For a class, from the strengths of its two cues, each times the share of its parts."""
    if rule == "additive":
        return first - second
    if rule == "redundant":
        return max(first, second)
    return 2 * min(first, second)


@pytest.mark.parametrize("rule", ["additive", "redundant", "joint"])
def test_labels_follow_the_rule_but_not_always(rule):
    scenes = Cues(rule).draw(3, range(600))
    shares = (strengths(scenes) * scenes.present.float().mean(2)).tolist()
    right = 0
    for values, label in zip(shares, scenes.labels.tolist(), strict=True):
        evidence = [evidence_by_hand(rule, values[c], values[c + 3]) for c in range(3)]
        right += evidence[label] == max(evidence)
    assert 0.8 < right / 600 < 0.99
    assert scenes.labels.bincount(minlength=3).min() > 150  # no class is rare


def test_rules_share_the_pictures(scenes):
    other = Cues("joint").draw(3, range(100))
    assert other.render().equal(Cues().draw(3, range(100)).render())
    assert (other.labels != scenes.labels[:100]).any()


def test_every_setting_of_cues_occurs_as_often_as_chance_has_it(scenes):
    codes = (scenes.cues.long() * 2 ** torch.arange(6)).sum(1)
    counts = codes.bincount(minlength=64)
    # a cue is there half the time, unless it was to lose all its parts
    there = 0.5 * (1 - 0.3 / 8)
    sizes = torch.tensor([bin(code).count("1") for code in range(64)])
    expected = 1500 * there**sizes * (1 - there) ** (6 - sizes)
    assert counts.min() > 0
    deviation = ((counts - expected).square() / expected).sum()
    assert deviation < 103.4  # 99.9 % of chi-squared with 63 degrees of freedom


def test_strength_area_and_place_are_independent(scenes):
    masks = scenes.masks()
    strength = strengths(scenes)
    whole = scenes.present.all(2)
    pixels = torch.arange(32.0)
    area = masks.flatten(2).sum(2)
    down = (masks * pixels[:, None]).sum((2, 3)) / area
    across = (masks * pixels).sum((2, 3)) / area
    # A square of the same radius is larger than a disc: each kind is looked at alone.
    for cue in range(6):
        chosen = whole[:, cue]
        facts = (strength[chosen, cue], area[chosen, cue], down[chosen, cue], across[chosen, cue])
        correlation = np.abs(spearmanr(torch.stack(facts, 1)).statistic)
        assert correlation[np.triu_indices(4, 1)].max() < 0.15
    # Of the square in which cues are centred, the inner half by area: the rest is off-centre.
    centre = torch.stack([down[whole], across[whole]]).sub(15.5).abs().amax(0)
    inner = (centre < (16 - 32 * 0.125 - 0.5) * 0.5**0.5).float().mean()
    assert 0.47 < inner < 0.53
    assert area[whole].min() >= 8  # no cue hides another
    strong = strength[whole]
    assert 0.5 <= strong.min() < 0.55
    assert 0.95 < strong.max() <= 1


def test_backgrounds_have_the_spectrum_of_photos():
    images = draw_backgrounds(0, range(20), 128, "cpu").mean(1)
    power = torch.fft.fft2(images - images.mean((1, 2), keepdim=True)).abs().square().mean(0)
    frequency = torch.fft.fftfreq(128)
    radius = (frequency[:, None].square() + frequency.square()).sqrt()
    bands = [(radius >= low) & (radius < 2 * low) for low in (1 / 64, 1 / 32, 1 / 16, 1 / 8)]
    amplitude = torch.stack([power[band].mean().sqrt() for band in bands])
    slopes = (amplitude[1:] / amplitude[:-1]).log2()
    assert (slopes < -0.7).all()
    assert (slopes > -1.6).all()


def test_images_are_the_same_on_every_machine():
    images = Cues().draw(0, range(16)).render()
    assert hashlib.sha256(images.numpy().tobytes()).hexdigest()[:20] == "47a9db175387056e5e7e"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_images_are_the_same_on_cuda():
    on_cpu = Cues().draw(0, range(64))
    on_cuda = Cues().draw(0, range(64), "cuda")
    for background in (0, 1):
        assert on_cuda.render(background=background).cpu().equal(on_cpu.render(background=background))
    assert on_cuda.labels.cpu().equal(on_cpu.labels)
    assert on_cuda.part_at.cpu().equal(on_cpu.part_at)


@pytest.mark.parametrize("size", [16, 33, 64])
def test_cues_keep_their_share_of_images_of_any_size(size, scenes):
    drawn = Cues(size=size).draw(3, range(200))
    share = drawn.masks().float().mean((2, 3))
    expected = scenes.masks()[:200].float().mean((2, 3))
    assert drawn.labels.equal(scenes.labels[:200])
    assert share.mean() == pytest.approx(float(expected.mean()), rel=0.35)  # edges of a pixel count more


def test_four_cues_are_about_two_classes():
    drawn = Cues(cues=4).draw(0, range(200))
    assert drawn.present.shape == (200, 4, 3)
    assert drawn.labels.unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "or"}, "rule"),
        ({"cues": 5}, "4 or 6 cues, got 5"),
        ({"size": 8}, "at least 16 px, got 8"),
    ],
)
def test_settings_that_make_no_scenes_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Cues(**settings)


def test_backgrounds_have_the_contrast_of_small_photos_at_every_scale():
    """Root mean squares of brightness by cycles per image, of CIFAR-10: research/backgrounds.py has them."""
    photos = {(0.5, 1.5): 0.138, (1.5, 4): 0.109, (4, 8): 0.083, (8, 12): 0.047, (12, 23): 0.031}
    brightness = draw_backgrounds(3, range(300), 32, "cpu").mean(1)
    spectrum = torch.fft.fft2(brightness - brightness.mean((1, 2), keepdim=True)).abs().square() / 32**4
    frequency = torch.fft.fftfreq(32) * 32
    radius = (frequency[:, None].square() + frequency.square()).sqrt()
    for (low, high), wanted in photos.items():
        found = float(spectrum[:, (radius >= low) & (radius < high)].sum(1).mean().sqrt())
        assert found == pytest.approx(wanted, rel=0.15), (low, high)
