"""True effects against loops over all settings, and maps against effects that are known."""

from itertools import permutations

import pytest
import torch

from fpa import InputError
from fpa.worlds import Cues
from fpa.worlds.effects import part_effects, true_effects
from fpa.worlds.shapley import interaction_share, shapley_effects
from fpa.worlds.truth import cosine, truth, truth_of_parts


def model(images):
    """Two outputs [M, 2] of bytes [M, C, H, W], in which cues and background interact."""
    values = images.double() / 255
    red, green, blue = values.mean((2, 3)).unbind(1)
    edges = values.diff(dim=3).abs().mean((1, 2, 3))
    return torch.stack([10 * red * edges + green, (5 * blue - edges).tanh()], 1)


def run(scene, rows):
    """In batches of odd sizes, as an engine may ask for them."""
    starts = range(0, len(scene), 37)
    return torch.cat([model(rows(start, min(start + 37, len(scene)))) for start in starts])


def values_by_hand(scenes, row, redraws):
    """{set of players: outputs}, every image rendered alone; "background" is the player beside the cues."""
    cues = scenes.cues[row].nonzero()[:, 0].tolist()

    def value(chosen):
        present = torch.zeros_like(scenes.present)
        present[row, [cue for cue in chosen if cue != "background"]] = True
        drawn = [0] if "background" in chosen else redraws
        images = [scenes.render(present, background=number)[row : row + 1] for number in drawn]
        return torch.stack([model(image)[0] for image in images]).mean(0)

    return [*cues, "background"], value


def shapley_by_hand(players, value):
    """What each adds, over all orders."""
    known = {}

    def at(chosen):
        if chosen not in known:
            known[chosen] = value(chosen)
        return known[chosen]

    effects = dict.fromkeys(players, 0)
    orders = list(permutations(players))
    for order in orders:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            effects[player] = effects[player] + (at(before | {player}) - at(before)) / len(orders)
    return effects


@pytest.fixture(scope="module")
def scenes():
    return Cues().test_scenes([0, 5, 9, 21])


def test_effects_are_those_of_a_loop_over_all_orders(scenes):
    effects = true_effects(scenes, run, redraws=4)
    assert effects.players[:, :-1].equal(scenes.cues)
    for row in range(len(scenes)):
        for found, redraws in (
            (effects.shapley, [1, 2, 3, 4]),
            (effects.halves[0], [1, 2]),
            (effects.halves[1], [3, 4]),
        ):
            players, value = values_by_hand(scenes, row, redraws)
            by_hand = shapley_by_hand(players, value)
            for player in players:
                place = 6 if player == "background" else player
                assert found[row, place].tolist() == pytest.approx(by_hand[player].tolist(), abs=1e-12)
        players, value = values_by_hand(scenes, row, [1, 2, 3, 4])
        everybody = frozenset(players)
        for player in players:
            place = 6 if player == "background" else player
            fall = value(everybody) - value(everybody - {player})
            assert effects.alone[row, place].tolist() == pytest.approx(fall.tolist(), abs=1e-12)
        # effects add up to the whole, and nobody else has any
        whole = value(everybody) - value(frozenset())
        assert effects.shapley[row].sum(0).tolist() == pytest.approx(whole.tolist(), abs=1e-12)
        assert not effects.shapley[row][~effects.players[row]].any()
    assert not effects.error.any()


def test_effects_do_not_depend_on_the_batch(scenes):
    together = true_effects(scenes, run, redraws=2)
    alone = true_effects(Cues().test_scenes([9]), run, redraws=2)
    assert torch.allclose(alone.shapley[0], together.shapley[2], rtol=0, atol=1e-12)
    assert torch.allclose(alone.interaction[0], together.interaction[2], rtol=0, atol=1e-12)


def test_sampled_orders_are_right_within_their_error(scenes, monkeypatch):
    exact = true_effects(scenes, run, redraws=2)
    monkeypatch.setattr("fpa.worlds.effects.EXACT", 3)
    sampled = true_effects(scenes, run, redraws=2, orders=200)
    few = exact.players.sum(1) <= 3
    assert few.any()
    assert not few.all()
    assert torch.allclose(sampled.shapley[few], exact.shapley[few], rtol=0, atol=1e-12)
    assert torch.allclose(sampled.alone, exact.alone, rtol=0, atol=1e-12)
    error = sampled.error[~few]
    distance = (sampled.shapley - exact.shapley)[~few].abs()
    assert (distance <= 4.5 * error + 1e-12).all()
    assert error.max() > 0
    assert not sampled.shapley[~sampled.players].any()


def test_effects_of_parts_are_those_of_a_loop_over_all_orders(scenes):
    found = part_effects(scenes, run)
    for row in range(len(scenes)):
        for cue in range(6):
            parts = scenes.present[row, cue].nonzero()[:, 0].tolist()

            def value(chosen, row=row, cue=cue):
                present = scenes.present.clone()
                present[row, cue] = False
                present[row, cue, list(chosen)] = True
                return model(scenes.render(present)[row : row + 1])[0]

            by_hand = shapley_by_hand(parts, value) if parts else {}
            for part in range(3):
                wanted = by_hand.get(part, torch.zeros(2))
                assert found[row, cue, part].tolist() == pytest.approx(wanted.tolist(), abs=1e-12)


def test_share_of_interaction_is_what_the_best_sum_leaves():
    table = torch.rand(16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = torch.arange(16)[:, None] >> torch.arange(4) & 1
    design = torch.cat([torch.ones(16, 1), settings], 1).double()
    fitted = design @ torch.linalg.lstsq(design, table).solution
    share = (table - fitted).square().sum() / (table - table.mean()).square().sum()
    assert interaction_share(table).item() == pytest.approx(share.item(), abs=1e-12)
    assert torch.isnan(interaction_share(torch.full((16, 1), 1e6))).all()
    assert shapley_effects(table).sum().item() == pytest.approx((table[15] - table[0]).item())


def test_impossible_numbers_of_redraws_are_refused(scenes):
    with pytest.raises(InputError, match="redraws must be even"):
        true_effects(scenes, run, redraws=3)


def test_a_map_made_of_the_effects_is_true(scenes):
    effects = true_effects(scenes, run, redraws=2).shapley[..., 0]
    masks = scenes.masks()
    regions = torch.cat([masks, ~masks.any(1, keepdim=True)], 1).double()
    share = regions / regions.sum((2, 3), keepdim=True).clamp(min=1)
    made = (share * effects[:, :, None, None]).sum(1)
    many = scenes.cues.sum(1) >= 3
    assert many.any()
    assert not many.all()
    for settings in ({}, {"background": False}):
        found = truth(made, scenes, effects, **settings)
        assert torch.allclose(found[many], torch.ones(()).double())
        assert found[~many].isnan().all()
        assert torch.allclose(truth(-made, scenes, effects, **settings)[many], -torch.ones(()).double())
    absolute = truth(made, scenes, effects, signed=False)[many]
    assert torch.allclose(absolute, cosine(effects, effects.abs())[many])
    assert truth(torch.zeros_like(made), scenes, effects).isnan().all()


def test_a_map_made_of_the_effects_of_parts_is_true(scenes):
    effects = part_effects(scenes, run)[..., 0]
    masks = scenes.part_masks().double()
    share = masks / masks.sum((3, 4), keepdim=True).clamp(min=1)
    made = (share * effects[..., None, None]).sum((1, 2))
    several = (scenes.present.sum(2) >= 2).any(1)
    found = truth_of_parts(made, scenes, effects)
    assert torch.allclose(found[several], torch.ones(()).double())
    assert found[~several].isnan().all()


def test_noise_bounds_how_far_the_halves_move_the_truth_of_a_map_from_their_middle(scenes):
    effects = true_effects(scenes, run, redraws=2)
    noise = effects.noise()[:, 0]
    assert noise.median() > 0
    maps = torch.randn(50, len(scenes), 7, generator=torch.Generator().manual_seed(0)).double()
    first, second = (half[..., 0] for half in effects.halves)
    moved = (cosine(maps, first) - cosine(maps, second)).abs() / 2
    assert (moved <= noise + 1e-12).all()
    apart = first / first.norm(dim=1, keepdim=True) - second / second.norm(dim=1, keepdim=True)
    assert noise.tolist() == pytest.approx((apart.norm(dim=1) / 2).tolist(), abs=1e-9)
