"""The world `pets`: cards are as said, the photo shows where one is left out, labels follow the rule."""

import hashlib
import math

import pytest
import torch
from scipy.stats import chisquare, kstest

from fpa import InputError
from fpa.data.sets import load_data
from fpa.data.splits import first_images
from fpa.running import run_study
from fpa.study.recipe import load_recipe
from fpa.worlds import Pets, check_world
from fpa.worlds.cards import KINDS, draw_cards
from fpa.worlds.effects import true_effects
from miniatures import write_pets


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_pets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def cards():
    return draw_cards(3, range(3000), 4)


class TestCards:
    def test_every_setting_occurs_as_often_as_said(self, cards):
        there = cards.present.any(2)
        # a photo is bare in 15 of 100; else a card is there by 0.7, unless it then loses all parts
        share = 0.7 * (1 - 0.25 / 8)
        codes = (there.long() << torch.arange(4)).sum(1).bincount(minlength=16)
        sizes = [bin(code).count("1") for code in range(16)]
        expected = [3000 * 0.85 * share**size * (1 - share) ** (4 - size) for size in sizes]
        expected[0] += 3000 * 0.15
        assert chisquare(codes.numpy(), expected).pvalue > 0.001
        assert cards.present[there].all(1).float().mean() == pytest.approx(0.806, abs=0.01)
        assert chisquare(cards.kind.flatten().bincount(minlength=9).numpy()).pvalue > 0.001

    def test_all_places_are_equally_likely_and_independent_of_kind_and_size(self, cards):
        margin = 1.23 * 0.1 + 0.0105
        places = (cards.centre - margin) / (1 - 2 * margin)
        for card in range(4):
            for axis in range(2):
                assert kstest(places[:, card, axis].numpy(), "uniform").pvalue > 0.001
        facts = torch.stack([places[..., 0], places[..., 1], cards.half, cards.kind.float(), cards.turn])
        correlation = torch.corrcoef(facts.flatten(1)) - torch.eye(5)
        assert correlation.abs().max() < 0.04

    def test_cards_do_not_overlap_and_have_the_area_said(self, cards):
        def corners(photo, card):
            """By an angle, not by its half's tangent."""
            angle = 2 * math.atan(float(cards.turn[photo, card]))
            x, y = cards.centre[photo, card].tolist()
            half = float(cards.half[photo, card])
            turned = [(math.cos(angle) * a - math.sin(angle) * b, math.sin(angle) * a + math.cos(angle) * b)
                      for a in (-half, half) for b in (-half, half)]  # fmt: skip
            return [(x + across, y + down) for across, down in turned]

        for photo in range(300):
            boxes = []
            for card in range(4):
                across, down = zip(*corners(photo, card), strict=True)
                boxes.append((min(across), max(across), min(down), max(down)))
                assert min(across) > 0 < min(down)
                assert max(across) < 1 > max(down)
            for first in range(4):
                for second in range(first):
                    a, b = boxes[first], boxes[second]
                    assert a[0] > b[1] or b[0] > a[1] or a[2] > b[3] or b[2] > a[3]
        area = 4 * cards.half.square()
        assert 0.0148 < area.min() < 0.0155
        assert 0.0395 < area.max() < 0.0401

    def test_even_six_cards_find_room(self):
        _, opacity, part_at = draw_cards(1, range(200), 6).painted(64)
        sizes = torch.stack([(part_at == part).sum((1, 2)) for part in range(18)], 1)
        assert sizes.min() > 0
        assert (opacity > 0).equal(part_at >= 0)

    @pytest.mark.parametrize("size", [48, 112, 224])
    def test_bands_are_thirds_of_a_card(self, size):
        cards = draw_cards(0, range(20), 4)
        *_, part_at = cards.painted(size)
        for card in range(4):
            shares = [(part_at == 3 * card + band).float().mean((1, 2)) for band in range(3)]
            whole = torch.stack(shares).sum(0)
            assert torch.allclose(whole, 4 * cards.half[:, card].square(), rtol=0.5 if size == 48 else 0.2)
            assert all((share / whole - 1 / 3).abs().max() < 0.15 for share in shares)

    def test_mirrored_cards_are_cards_of_the_same_kind(self):
        x, y = torch.rand(2, 500) * 2 - 1
        assert all(kind.glyph(x, y).equal(kind.glyph(-x, y)) for kind in KINDS)
        looks = torch.stack([(kind.glyph(x, y) > 0).float() for kind in KINDS])
        assert (torch.cdist(looks, looks, p=1) + 500 * torch.eye(9)).min() > 20
        evidence = [kind.evidence for kind in KINDS]
        assert sorted(evidence) == [-1.5, -1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5]

    def test_cards_are_the_same_on_every_machine(self):
        paint, opacity, part_at = draw_cards(0, range(16), 4).painted(64)
        content = b"".join(
            values.numpy().tobytes() for values in ((paint * opacity[:, None] * 255).round().byte(), part_at)
        )
        assert hashlib.sha256(content).hexdigest()[:20] == "ef641462ef72fbc14088"

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_cards_are_the_same_on_cuda(self):
        here = draw_cards(0, range(64), 4).painted(224)
        there = draw_cards(0, range(64), 4, "cuda").painted(224)
        assert all(first.equal(second.cpu()) for first, second in zip(here, there, strict=True))


@pytest.mark.parametrize("size", [48, 64])
def test_it_is_a_world(root, size):
    check_world(Pets(root, size))
    check_world(Pets(root, size, cards=2, seed=4))


def test_a_photo_is_the_same_in_every_batch_and_other_seeds_give_it_other_cards(root):
    world = Pets(root, 64)
    together = world.test_scenes(range(20))
    some = world.test_scenes([17, 3])
    for background in (0, 1, 2):
        assert some.render(background=background).equal(together.render(background=background)[[17, 3]])
    assert some.labels.equal(together.labels[[17, 3]])
    other = Pets(root, 64, seed=1).test_scenes(range(20))
    assert not other.present.equal(together.present)
    assert other.background(0).equal(together.background(0))


def test_without_cards_the_photo_is_there_byte_for_byte(root):
    world = Pets(root, 64)
    scenes = world.test_scenes(range(20))
    bare = scenes.render(torch.zeros_like(scenes.present))
    photos = torch.stack([world.photos.test.load(number) for number in range(20)])
    assert bare.equal(photos)
    without = scenes.render(scenes.without(scenes.cues))
    assert without.equal(photos)
    # one band of every card left out: the photo shows there, and nothing else changes
    kept = scenes.present.clone()
    kept[:, :, 1] = False
    image = scenes.render(kept)
    band = scenes.part_masks()[:, :, 1].any(1)[:, None].expand_as(image)
    assert image[band].equal(photos[band])
    assert image[~band].equal(scenes.render()[~band])


def test_labels_are_what_animal_and_cards_speak_for(root):
    world = Pets(root, 48)
    scenes = world.test_scenes(range(20))
    agreed = 0
    for seed in range(20):
        scenes = world.draw(seed, range(20))
        cards = world._cards(seed, range(20), "cpu")
        for number in range(20):
            total = -1.0 if (number + 12) % 3 == 0 else 1.0
            for card in range(4):
                total += (
                    KINDS[int(cards.kind[number, card])].evidence
                    * int(scenes.present[number, card].sum())
                    / 3
                )
            right = int(scenes.labels[number]) == int(total > 0)
            assert right or abs(total) <= 0.5  # where little speaks for either, noise decides
            agreed += right
    assert 0.9 < agreed / 400 < 1


def test_neither_the_animal_nor_the_cards_are_enough(cards):
    """The shares that docs/howto/worlds.md gives for the test photos, of which 32 % are cats."""
    animal = torch.ones(3000)
    animal[:967] = -1
    evidence = torch.tensor([kind.evidence for kind in KINDS])[cards.kind]
    said = (evidence * cards.present.float().mean(2)).sum(1)
    labels = animal + said + cards.noise > 0

    def right(guess):
        return float((guess == labels).float().mean())

    assert right(animal > 0) == pytest.approx(0.804, abs=0.025)
    assert max(right(said > limit / 10) for limit in range(-20, 20)) == pytest.approx(0.794, abs=0.025)
    assert right(animal + said > 0) == pytest.approx(0.965, abs=0.01)
    assert float(labels.float().mean()) == pytest.approx(0.61, abs=0.025)


def test_the_data_set_has_the_images_of_the_scenes(root):
    data = load_data("pets", root, size=48, evaluation_images=5)
    assert data.classes == ["cat", "dog"]
    assert data.input_shape == (3, 48, 48)
    assert data.normalisation.mean == (0.485, 0.456, 0.406)
    scenes = data.world.test_scenes(range(20))
    images = scenes.render()
    assert all(data.test.load(number, seed=3, epoch=2).equal(images[number]) for number in range(20))
    assert data.test.labels.equal(scenes.labels)
    scenes = data.world.train_scenes(range(12))
    images = scenes.render()
    assert data.train.labels.equal(scenes.labels)
    mirrored = []
    for epoch in range(10):
        for number in range(12):
            image = data.train.load(number, seed=0, epoch=epoch)
            mirrored.append(image.equal(images[number].flip(2)))
            assert mirrored[-1] or image.equal(images[number])
    assert 0.35 < sum(mirrored) / 120 < 0.65


def test_a_smaller_training_set_keeps_photos_and_cards_together(root):
    data = load_data("pets", root, size=48)
    fewer = first_images(data.train, 5)
    places = [data.train.paths.index(path) for path in fewer.paths]
    assert len(places) == 5 < max(places) + 1
    assert fewer.labels.equal(data.train.labels[places])
    assert all(fewer.load(row).equal(data.train.load(place)) for row, place in enumerate(places))


def test_a_background_drawn_again_is_another_photo_of_either_species(root):
    world = Pets(root, 48)
    photos = [world.photos.test.load(number) for number in range(20)]
    species = world.photos.test.labels
    scenes = world.test_scenes(range(20))
    taken = set()
    for redraw in range(1, 9):
        images = scenes.render(torch.zeros_like(scenes.present), background=redraw)
        for number, image in enumerate(images):
            (found,) = [other for other, photo in enumerate(photos) if photo.equal(image)]
            assert found != number
            assert species[found] == redraw % 2  # four cats and four dogs
            taken.add(found)
    assert len(taken) == 20


def test_effects_of_the_background_are_those_of_the_other_photos(root):
    world = Pets(root, 48)
    scenes = world.test_scenes(range(20))
    bare = (~scenes.cues.any(1)).nonzero()[:, 0].tolist()
    assert bare
    run = lambda scene, rows: rows(0, len(scene)).double().mean((1, 2, 3))[:, None]  # noqa: E731
    effects = true_effects(scenes, run)
    for number in bare:
        own = world.photos.test.load(number).double().mean()
        others = [scenes.background(redraw)[number].double().mean() * 255 for redraw in range(1, 9)]
        assert float(effects.shapley[number, -1, 0]) == pytest.approx(float(own - sum(others) / 8), abs=1e-3)


def test_scenes_of_a_few_photos_read_those_alone(root, tmp_path, monkeypatch):
    world = Pets(root, 48)
    read = []
    usual = type(world.photos.test).load
    monkeypatch.setattr(
        type(world.photos.test), "load", lambda *given: read.append(given[1]) or usual(*given)
    )
    world.test_scenes([7, 2]).render()
    assert sorted(read) == [2, 7]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 47}, "pets needs photos of at least 48 px, for the cards on them; got 47"),
        ({"cards": 7}, "the number of cards on a photo must be at most 6, got 7"),
        ({"cards": 0}, "the number of cards on a photo must be at least 1, got 0"),
    ],
)
def test_settings_that_leave_no_room_are_refused(settings, words, root):
    with pytest.raises(InputError, match=words):
        Pets(root, **settings)


def test_a_photo_that_is_gone_is_named(tmp_path):
    world = Pets(write_pets(tmp_path), 48)
    gone = world.photos.test.paths[3]
    gone.unlink()
    with pytest.raises(InputError, match=f"cannot read the image .*{gone.name}"):
        world.test_scenes([3]).render()


def test_a_study_of_pets_knows_the_truth(root, tmp_path):
    fields = {"data.root": str(root), "data.size": 48, "data.workers": 0, "data.evaluation_images": 12}
    fields |= {"model": "resnet-small", "weights": None, "augmentations": ["none", "fpa"]}
    fields |= {"training.epochs": 1, "training.batch_size": 4, "evaluation.estimators": ["ig_sum", "vg_abs"]}
    fields |= {"evaluation.ig_steps": 2, "evaluation.points": 3, "evaluation.examples": 2}
    recipe = load_recipe("pets", fields)
    study = run_study(recipe, tmp_path / "out", device="cpu")
    assert (tmp_path / "out/report.html").exists()
    for result in study.models.values():
        scenes = Pets(root, 48).test_scenes(result.evaluation.indices.tolist())
        values = torch.from_numpy(result.evaluation.values["truth"]["ig_sum"])
        assert values.isfinite().equal(scenes.cues.sum(1) >= 3)
        assert values.nan_to_num().abs().max() <= 1
        assert 2 <= values.isfinite().sum() < 12
