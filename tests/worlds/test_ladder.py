"""Maps made from the truth: their truth falls rung by rung, and each damage is what it says it is."""

import math

import pytest
import torch

from fpa import InputError
from fpa.seeds import by_image
from fpa.worlds import Cues
from fpa.worlds.ladder import LADDERS, RUNGS, KnownTruth, Rung, ladder_maps, other_numbers
from fpa.worlds.truth import region_sums, truth

COUNT = 120
FORMS = ["flat", "weighted"]


def truth_of(numbers, form="flat"):
    """Effects of both signs, those of backgrounds half as large; weighted by how colourful a pixel is."""
    scenes = Cues().test_scenes(numbers)
    sizes = torch.tensor([1.0] * 6 + [0.5])
    effects = by_image((7,), 5, numbers, stream=1).double() * sizes * players_of(scenes)
    colourful = scenes.render().double().std(1)
    return KnownTruth(scenes, effects, colourful if form == "weighted" else None)


def players_of(scenes):
    there = scenes.cues
    return torch.cat([there, torch.ones_like(there[:, :1])], 1)


@pytest.fixture(scope="module")
def known():
    return {form: truth_of(range(COUNT), form) for form in FORMS}


@pytest.fixture(scope="module")
def another():
    return {form: truth_of(other_numbers(0, range(COUNT), COUNT), form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ladder", LADDERS)
def test_mean_truth_falls_along_each_ladder(ladder, form, known, another):
    rungs = [Rung(ladder, size) for size in (0.0, *LADDERS[ladder])]
    this = known[form]
    maps = [ladder_maps(rung, this, another=another[form]) for rung in rungs]
    truths = torch.stack([truth(each, this.scenes, this.effects) for each in maps])
    valued = ~truths.isnan().any(0)
    assert valued.sum() > 40
    means = truths[:, valued].mean(1)
    assert means[0].item() == pytest.approx(1)
    assert (means.diff() < -0.01).all(), means
    assert means[-1] < 0.85  # the last rung is clearly wrong


@pytest.mark.parametrize("form", FORMS)
def test_without_damage_sums_are_the_effects_and_weights_show_inside(form, known):
    this = known[form]
    made = this.spread(this.effects)
    assert torch.allclose(region_sums(made, this.scenes), this.effects, atol=1e-9)
    masks = this.scenes.masks()
    for row in range(20):
        for cue in this.scenes.cues[row].nonzero()[:, 0].tolist():
            inside = made[row][masks[row, cue]]
            effect = this.effects[row, cue]
            weights = torch.ones_like(inside)
            if this.weights is not None:
                weights = this.weights[row][masks[row, cue]]
            assert torch.allclose(inside, effect * weights / weights.sum(), atol=1e-12)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_map_depends_on_seed_and_number_alone(rung, known, another):
    numbers = [7, 40]
    whole = ladder_maps(rung, known["flat"], another=another["flat"], seed=0)
    others = truth_of(other_numbers(0, numbers, COUNT))
    few = ladder_maps(rung, truth_of(numbers), another=others, seed=0)
    assert torch.allclose(few, whole[numbers], rtol=0, atol=1e-12)
    drawn = rung.ladder in {"noise", "shift", "forgotten"}
    again = ladder_maps(rung, known["flat"], another=another["flat"], seed=1)
    assert again.equal(whole) != drawn


def test_shift_is_a_roll_of_the_size_it_says(known):
    this = known["flat"]
    made = this.spread(this.effects)
    for size in (1 / 16, 1 / 4):
        moved = ladder_maps(Rung("shift", size), this)
        steps = set()
        for row in range(12):
            rolls = [(down, across) for down in range(-8, 9) for across in range(-8, 9)]
            found = [roll for roll in rolls if made[row].roll(roll, (0, 1)).equal(moved[row])]
            assert any(abs(math.hypot(*roll) - 32 * size) < 1 for roll in found)
            steps.update(found)
        assert len(steps) > 4  # in several directions


def test_blur_is_a_gaussian_mean_around_the_image(known):
    this = known["flat"]
    made = this.spread(this.effects)[:2]
    width = 2
    offsets = range(-15, 17)
    weights = {offset: math.exp(-(offset**2) / (2 * width**2)) for offset in offsets}
    expected = torch.zeros_like(made)
    for down in offsets:
        for across in offsets:
            expected += weights[down] * weights[across] * made.roll((down, across), (1, 2))
    expected /= sum(weights.values()) ** 2
    blurred = ladder_maps(Rung("blur", width / 32), this)[:2]
    assert torch.allclose(blurred, expected, atol=1e-9)


def test_what_is_done_to_effects_is_what_a_loop_does(known):
    this = known["flat"]

    def sums(ladder, size):
        return region_sums(ladder_maps(Rung(ladder, size), this), this.scenes)

    weakest_flipped = sums("sign_flipped", 2)
    sizes = sums("sign_lost", 1)
    positive = sums("sign_lost", 0.5)
    forgotten = {size: sums("forgotten", size) for size in (1, 2, 3)}
    for row in range(COUNT):
        effects = this.effects[row].tolist()
        cues = this.scenes.cues[row].nonzero()[:, 0].tolist()
        flipped = list(effects)
        for cue in sorted(cues, key=lambda cue: abs(effects[cue]))[: max(min(2, len(cues) - 1), 0)]:
            flipped[cue] = -effects[cue]
        assert weakest_flipped[row].tolist() == pytest.approx(flipped, abs=1e-9)
        assert sizes[row].tolist() == pytest.approx([abs(effect) for effect in effects], abs=1e-9)
        assert positive[row].tolist() == pytest.approx([max(effect, 0) for effect in effects], abs=1e-9)
        before = set()
        for found in forgotten.values():
            kept = [place for place in range(7) if abs(found[row, place]) > 1e-9]
            assert found[row, kept].tolist() == pytest.approx([effects[place] for place in kept])
            lost = set(cues) - set(kept)
            assert before <= lost  # what one rung forgets, the next one forgets too
            before = lost


def test_forgotten_cues_are_so_many():
    scenes = Cues().test_scenes(range(60))
    known = KnownTruth(scenes, players_of(scenes).double())
    for size in (1, 2, 3):
        left = region_sums(ladder_maps(Rung("forgotten", size), known), scenes)
        expected = [count - max(min(size, count - 1), 0) for count in scenes.cues.sum(1).tolist()]
        assert left[:, :-1].sum(1).tolist() == pytest.approx(expected)


def test_noise_has_the_size_it_says(known):
    this = known["flat"]
    damaged = region_sums(ladder_maps(Rung("noise", 2.0), this), this.scenes)
    players = players_of(this.scenes)
    rms = (this.effects.square().sum(1) / players.sum(1)).sqrt()
    noise = ((damaged - this.effects) / rms[:, None])[players]
    assert noise.mean().abs() < 0.35
    assert noise.std().item() == pytest.approx(2, rel=0.12)
    assert not damaged[~players].any()


def test_the_last_rung_of_another_is_the_other_images_map(known, another):
    this = known["flat"]
    other = another["flat"]
    scale = this.effects.norm(dim=1) / other.effects.norm(dim=1)
    expected = other.spread(other.effects) * scale[:, None, None]
    made = ladder_maps(Rung("another", 1.0), this, another=other)
    assert torch.allclose(made, expected, atol=1e-9)


def test_others_are_others_and_all_of_them():
    drawn = other_numbers(0, range(2000), 5)
    assert all(other != number for number, other in enumerate(drawn[:5]))
    assert set(drawn) == set(range(5))
    for number in range(5):
        following = set(other_numbers(3, [number + 5 * step for step in range(100)], 500))
        assert len(following) > 80


def test_only_maps_that_can_be_negative_are_signed(known, another):
    for rung in RUNGS:
        made = ladder_maps(rung, known["flat"], another=another["flat"])
        assert rung.signed == bool((made < -1e-9).any()), rung


@pytest.mark.parametrize(
    ("rung", "others", "words"),
    [
        (Rung("nois", 1.0), None, "nois"),
        (Rung("blur", -1.0), None, "blur must be at least 0, got -1"),
        (Rung("sign_lost", 1.5), None, "sign_lost must be at most 1"),
        (Rung("another", 1.0), None, "needs what is known of other images"),
        (Rung("another", 1.0), [1, 0], "one other image for each, got 2 for 3"),
        (Rung("another", 1.0), [1, 0, 2], "scene 2 got itself"),
    ],
)
def test_impossible_rungs_are_refused(rung, others, words):
    another = None if others is None else truth_of(others)
    with pytest.raises(InputError, match=words):
        ladder_maps(rung, truth_of([0, 1, 2]), another=another)


def test_effects_and_weights_that_make_no_map_are_refused():
    scenes = Cues().test_scenes([3, 4])
    effects = torch.zeros(2, 7)
    with pytest.raises(InputError, match=r"effects must be \[2, 7\]"):
        KnownTruth(scenes, effects[:, :6])
    with pytest.raises(InputError, match=r"weights must be \[2, 32, 32\]"):
        KnownTruth(scenes, effects, torch.ones(2, 32, 31))
    effects[1, 2] = math.nan
    with pytest.raises(InputError, match="effects must be finite; those of scene 4 are not"):
        KnownTruth(scenes, effects)
    weights = torch.ones(2, 32, 32)
    weights[0, 0, 0] = -1
    with pytest.raises(InputError, match="0 or more; those of scene 3 are not"):
        KnownTruth(scenes, torch.zeros(2, 7), weights)
