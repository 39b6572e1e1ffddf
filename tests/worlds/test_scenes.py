"""Worlds: scenes are the same however they are drawn, and what is left out shows the background."""

import pytest
import torch

import fpa
from fpa import InputError
from fpa.data import image_source
from fpa.worlds import Cues
from striped import Bars


def rendered_by_hand(scenes, row, parts, background=0):
    """One image [C, H, W] as bytes, pixel after pixel."""
    under = scenes.background(background)[row]
    image = torch.empty(under.shape, dtype=torch.uint8)
    count = scenes.present.shape[2]
    for y in range(under.shape[1]):
        for x in range(under.shape[2]):
            owner = int(scenes.part_at[row, y, x])
            shown = (
                owner >= 0
                and scenes.present[row].flatten()[owner]
                and (owner // count, owner % count) in parts
            )
            share = float(scenes.opacity[row, y, x]) if shown else 0.0
            for channel in range(len(under)):
                value = float(under[channel, y, x])
                value += share * (float(scenes.paint[row, channel, y, x]) - value)
                image[channel, y, x] = int(value * 255 + 0.5)
    return image


@pytest.mark.parametrize("world", [Cues(), Bars()])
@pytest.mark.parametrize("background", [0, 3])
def test_images_are_as_rendered_pixel_by_pixel(world, background):
    scenes = world.test_scenes(range(4))
    cues, parts = scenes.present.shape[1:]
    chosen = torch.rand(4, cues, parts, generator=torch.Generator().manual_seed(0)) < 0.6
    images = scenes.render(chosen, background=background)
    for row in range(4):
        kept = [(cue, part) for cue in range(cues) for part in range(parts) if chosen[row, cue, part]]
        by_hand = rendered_by_hand(scenes, row, kept, background)
        assert (images[row].int() - by_hand.int()).abs().max() <= 1  # float32 and float64 round differently
        assert (images[row] != by_hand).float().mean() < 0.001


@pytest.mark.parametrize("world", [Cues(), Cues(size=48), Bars()])
def test_a_scene_is_the_same_in_every_batch(world):
    together = world.test_scenes(range(20))
    some = world.test_scenes([17, 3])
    for background in (0, 1, 2):
        images = together.render(background=background)[[17, 3]]
        assert some.render(background=background).equal(images)
    assert some.labels.equal(together.labels[[17, 3]])
    assert some.present.equal(together.present[[17, 3]])
    assert some.part_masks().equal(together.part_masks()[[17, 3]])
    assert not world.draw(5, [17]).render().equal(world.draw(6, [17]).render())


def test_rows_are_rendered_as_often_as_asked():
    scenes = Cues().test_scenes(range(5))
    rows = torch.tensor([4, 1, 4])
    present = scenes.present[rows].clone()
    present[2] = False
    images = scenes.render(present, rows=rows)
    assert images[:2].equal(scenes.render()[[4, 1]])
    assert images[2].equal(scenes.render(torch.zeros_like(scenes.present))[4])


def test_masks_are_of_what_is_there_and_disjoint():
    scenes = Cues().test_scenes(range(50))
    parts = scenes.part_masks()
    assert parts.flatten(3).any(3).equal(scenes.present)
    assert parts.flatten(1, 2).sum(1).max() == 1
    assert scenes.masks().equal(parts.any(2))
    # leaving out one part of every cue changes its pixels and no others
    kept = scenes.present.clone()
    kept[:, :, 1] = False
    changed = (scenes.render(kept) != scenes.render()).any(1)
    assert not (changed & ~parts[:, :, 1].any(1)).any()
    assert (changed & parts[:, :, 1].any(1)).sum() > 0.95 * parts[:, :, 1].sum()


def test_a_world_of_ones_own_is_a_data_set():
    data = fpa.load_data("striped:BARS", evaluation_images=10)
    assert data.classes == ["dark", "bright"]
    assert data.input_shape == (1, 8, 12)
    assert (len(data.train), len(data.test), len(data.evaluation)) == (40, 20, 10)
    scenes = data.world.test_scenes(range(20))
    assert data.test.images.equal(scenes.render())
    assert data.test.labels.equal(scenes.labels)
    assert not data.train.images[:20].equal(data.test.images)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PAINTED", r"the world Painted cannot leave out cue 0 of scene \d+: the image stays as it is"),
        ("SPILT", r"the world Spilt changes pixels outside the mask of cue \d of scene \d+"),
        ("CROWDED", r"the world Crowded draws scene 15 alone otherwise than together with others"),
    ],
)
def test_a_world_whose_cues_cannot_be_left_out_is_refused(name, words):
    with pytest.raises(InputError, match=words):
        fpa.load_data(f"striped:{name}")


@pytest.mark.parametrize("name", ["cues", "cues-redundant", "cues-joint", "cues-small"])
def test_cues_are_a_data_set_by_name(name):
    data = fpa.load_data(name, evaluation_images=7, size=16)
    assert data.input_shape == (3, 16, 16)
    assert data.classes == ["A", "B", "C"]
    first = next(image_source(data).blocks(7))
    made = data.world.test_scenes(first.indices)
    assert first.images.equal(data.normalisation(made.render()))


def test_scenes_to_evaluate_on_have_the_right_number_of_cues():
    world = Cues(size=16, train_images=4, test_images=60, judged_cues=(3, 4))
    counts = world.test_scenes(range(60)).cues.sum(1)
    right = [number for number, count in enumerate(counts.tolist()) if 3 <= count <= 4]
    every = world(fpa.data.DataRequest("few"))
    assert every.evaluation.tolist() == right
    some = world(fpa.data.DataRequest("few", evaluation_images=5)).evaluation.tolist()
    assert len(some) == 5
    assert set(some) < set(right)
    with pytest.raises(InputError, match=rf"in 1..{len(right)}, .* few with 3 to 4 cues; got 60"):
        world(fpa.data.DataRequest("few", evaluation_images=60))


@pytest.mark.parametrize("redraws", [0, 3])
def test_halves_of_the_redraws_can_be_compared(redraws):
    world = Cues(size=16, train_images=4, test_images=4, redraws=redraws)
    with pytest.raises(InputError, match=f"the world Cues must have an even number of redraws.*{redraws}"):
        world(fpa.data.DataRequest("odd"))
