"""FPA by dropping: which tokens a step gives, against a loop written out, in recipes and in fine-tuning."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fpa
from fpa.cli.main import main
from fpa.errors import InputError
from fpa.models.saved import read_card
from fpa.models.tokens import logits_from, tokens_of
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from fpa.training.tokens import DropTokens, TokenNetwork, chosen_tokens
from transformers_by_hand import CLASSES, by_hand_timm, some_images, timm_vit, torchvision_vit


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small_nets.py").write_text(
        "from torchvision.models import VisionTransformer\n"
        "def vit(classes=8, channels=3):\n"
        "    return VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=classes)\n"
    )
    return tmp_path


def labels(count):
    return torch.arange(count) % CLASSES


def test_a_batch_is_given_one_of_eight_numbers_of_tokens():
    augment = DropTokens(p=0.5, p1_max=0.875)
    kept = Counter(
        augment.kept(16, augment.level(3, epoch, step)) for epoch in range(20) for step in range(200)
    )
    assert sorted(kept) == [2, 4, 6, 8, 10, 12, 14, 16]
    # Half of the batches are whole; the others share seven numbers evenly. Five deviations of a binomial.
    assert abs(kept[16] - 2000) < 5 * (4000 * 0.25) ** 0.5
    for number in range(2, 16, 2):
        assert abs(kept[number] - 2000 / 7) < 5 * (4000 / 14) ** 0.5


def test_a_token_always_stays():
    assert DropTokens(p=1.0, p1_max=1.0).kept(16, DropTokens.LEVELS) == 1


def test_which_tokens_is_drawn_for_every_image_alike():
    """Of 4 tokens 2 stay: each of the six pairs as often as the others."""
    uniform = torch.rand(6000, 4, generator=torch.Generator().manual_seed(0))
    pairs = Counter(map(tuple, chosen_tokens(uniform, 2).tolist()))
    assert len(pairs) == 6
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in pairs.values())


def test_the_network_says_what_it_says_of_these_tokens_alone():
    net = timm_vit()
    by_hand = by_hand_timm(net)
    images = some_images(3)
    uniform = torch.rand(3, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = TokenNetwork(net)(images, uniform, 5)
    for image, numbers, found in zip(images, uniform, logits, strict=True):
        left = sorted(range(16), key=numbers.tolist().__getitem__)[:5]
        torch.testing.assert_close(found, by_hand(image, left), rtol=1e-4, atol=1e-4)


def test_fine_tuning_equals_a_loop_over_the_same_draws():
    """One epoch on labels: SGD with the warm cosine, written out."""
    from fpa.seeds import Stream, derive
    from fpa.training.settings import TrainingSettings

    net = timm_vit()
    images = some_images(12)
    batches = DataLoader(TensorDataset(images, labels(12)), batch_size=4)
    augment = DropTokens(p=1.0, p1_max=0.5)
    how = {"epochs": 1, "learning_rate": 0.05, "targets": "labels", "crop": False, "flip": False}
    tuned = fpa.finetune(net, batches, fpa=augment, device="cpu", seed=7, **how)
    ours = timm_vit()
    ours.train()
    settings = TrainingSettings(epochs=1, learning_rate=0.05, schedule="warm-cosine")
    draws = torch.Generator().manual_seed(derive(7, Stream.AUGMENT, 0))
    momentum = {name: torch.zeros_like(each) for name, each in ours.named_parameters()}
    counts = []
    for step, (batch, classes) in enumerate(batches):
        level = 1 + derive(7, Stream.AUGMENT, 0, step, 1) % 7
        kept = 16 - round(0.5 * level / 7 * 16)
        counts.append(kept)
        order = torch.rand(4, 16, generator=draws).argsort(1)
        tokens = tokens_of(ours, batch)
        given = torch.stack([tokens[i, sorted(order[i, :kept].tolist())] for i in range(4)])
        loss = functional.cross_entropy(logits_from(ours, given), classes)
        ours.zero_grad()
        loss.backward()
        rate = settings.learning_rate_at((step + 0.5) / 3)
        with torch.no_grad():
            for name, weight in ours.named_parameters():
                momentum[name] = 0.9 * momentum[name] + weight.grad
                weight -= rate * momentum[name]
    assert len(set(counts)) > 1, "the draws of this seed must leave out different numbers"
    for name, weight in tuned.named_parameters():
        torch.testing.assert_close(weight, dict(ours.named_parameters())[name], rtol=1e-4, atol=1e-5)


def test_the_masking_drop_is_fpa_by_dropping():
    net = torchvision_vit()
    data = (some_images(8), labels(8))
    how = {"epochs": 1, "batch_size": 4, "device": "cpu"}
    by_masking = fpa.finetune(net, data, fpa={"masking": "drop"}, **how)
    itself = fpa.finetune(net, data, fpa=DropTokens(p=1.0, p1_max=0.875), **how)
    painted = fpa.finetune(net, data, **how)
    weights = torch.cat([each.flatten() for each in by_masking.parameters()])
    assert torch.equal(weights, torch.cat([each.flatten() for each in itself.parameters()]))
    assert not torch.equal(weights, torch.cat([each.flatten() for each in painted.parameters()]))


@pytest.mark.parametrize(
    ("net", "how", "sentence"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)), {}, "tokens of Sequential cannot be dropped"),
        (timm_vit(), {"s_max": 3}, "s_max is for masks of pixels"),
        (timm_vit(), {"p1_max": 0.01}, "p1_max 0.01 of 16 tokens is none of them"),
    ],
)
def test_refused_before_the_training(net, how, sentence):
    with pytest.raises(InputError, match=sentence):
        fpa.finetune(net, (some_images(8), labels(8)), fpa={"masking": "drop", **how}, device="cpu")


@pytest.mark.parametrize("kind", [fpa.FPA, fpa.Rectangle, fpa.Cell])
def test_masks_of_pixels_need_a_masking_that_fills(kind):
    with pytest.raises(InputError, match=r"drop fills nothing: FPA by dropping is fpa.DropTokens"):
        kind(masking="drop")


def small_recipe(**fields):
    changes = {
        "model": "small_nets:vit",
        "data.train_images": 64,
        "data.evaluation_images": 8,
        "training.epochs": 1,
        "training.batch_size": 16,
        "augmentations": ["none"],
        "evaluation.features": 8,
    }
    return load_recipe("shapes", changes | fields)


def test_a_variant_trains_by_dropping_beside_painting(here):
    variants = {"dropped": {"augmentation": "fpa", "masking": "drop", "fpa": {"p": 1.0, "p1_max": 0.875}}}
    recipe = small_recipe(augmentations=["fpa"], variants=variants)
    train(recipe, here, device="cpu")
    painted = read_card(here / "fpa" / "model.safetensors")
    dropped = read_card(here / "dropped" / "model.safetensors")
    assert (painted.recipe["masking"], painted.augmentation) == ("constant", "fpa")
    assert (dropped.recipe["masking"], dropped.augmentation) == ("drop", "fpa")
    again = train(recipe, here, device="cpu")  # finished: read, and the same
    assert [each.accuracy for each in again] == [painted.accuracy, dropped.accuracy]


def test_recipes_that_cannot_drop_are_refused_before_any_training(here):
    with pytest.raises(InputError, match="Rectangle needs a masking that fills"):
        fpa.run_study(small_recipe(masking="drop", augmentations=["rectangle"]), here / "a", device="cpu")
    with pytest.raises(InputError, match=r"tokens of .* cannot be dropped"):
        fpa.run_study(
            small_recipe(model="resnet-small", masking="drop", augmentations=["none", "fpa"]),
            here / "b",
            device="cpu",
        )
    with pytest.raises(InputError, match="use features of"):
        fpa.run_study(small_recipe(masking="drop", **{"evaluation.features": "pixels"}), here / "c")
    assert not any((here / name / "none").exists() for name in "abc")


def test_a_study_by_dropping(here):
    changes = {"augmentations": ["none", "fpa"], "evaluation.estimators": ["attention:rollout", "vg_abs"]}
    changes["evaluation.scores"] = ["A"]
    recipe = small_recipe(masking="drop", **changes, **{"evaluation.points": 5})
    results = fpa.run_study(recipe, here / "study", device="cpu")
    assert [*results.models] == ["none", "fpa"]
    assert all(each.description.plan.masking == {"name": "drop"} for each in results.models.values())


def test_a_killed_training_ends_with_the_weights_it_would_have_had(here, monkeypatch):
    recipe = small_recipe(masking="drop", augmentations=["fpa"], **{"training.epochs": 2})
    (whole,) = train(recipe, here / "whole", device="cpu")
    steps = Counter()
    usual = DropTokens.level

    def dying(self, seed, epoch, step):
        steps["taken"] += 1
        if steps["taken"] == 6:
            raise KeyboardInterrupt
        return usual(self, seed, epoch, step)

    saving = {"training.checkpoint_seconds": 0.0}
    stopped = small_recipe(masking="drop", augmentations=["fpa"], **{"training.epochs": 2}, **saving)
    monkeypatch.setattr(DropTokens, "level", dying)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, here / "parts", device="cpu")
    assert (here / "parts" / "fpa" / "checkpoint.safetensors").exists()
    (continued,) = train(stopped, here / "parts", device="cpu")
    for name, weight in whole.state().items():
        assert torch.equal(continued.state()[name], weight), name


def test_the_command_trains_and_audits_by_dropping(here, capsys):
    (here / "fine.py").write_text(
        "import torch\n"
        "from torchvision.models import VisionTransformer\n"
        "def vit():\n"
        "    torch.manual_seed(0)\n"
        "    net = VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=8)\n"
        "    torch.nn.init.normal_(net.heads.head.weight)\n"
        "    return net\n"
    )
    words = (
        "--data",
        "shapes",
        "--masking",
        "drop",
        "--epochs",
        "1",
        "--batch_size",
        "512",
        "--workers",
        "0",
    )
    half = ("--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5", "--audit_images", "4", "--device", "cpu")
    code = main(["finetune", "fine:vit", *words, *half, "--output", "out"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "pairs in opposite order" in out
    assert read_card(Path("out/model.safetensors")).recipe["fpa"] == {"p": 1.0, "p1_max": 0.875}


@pytest.mark.parametrize(("name", "value"), [("p2", 0.5), ("s_max", 9), ("squares", "everywhere")])
def test_a_recipe_that_drops_has_no_squares(name, value):
    """What would change nothing is refused before any work; the defaults are no such wish."""
    from fpa.data.normalisation import minus_one_to_one
    from fpa.study.recipe import Recipe, Variant
    from fpa.study.trainings import make_augment
    from fpa.training.settings import FPASettings

    recipe = Recipe(masking="drop", fpa=FPASettings(**{name: value}))
    with pytest.raises(InputError, match=rf"fpa\.{name} is for masks of pixels"):
        make_augment(recipe, Variant("fpa"), minus_one_to_one(3))
    own = Variant("fpa", fpa=FPASettings(p=1.0, p1_max=0.5))
    made = make_augment(recipe, own, minus_one_to_one(3))
    assert isinstance(made, DropTokens)
    assert (made.p, made.p1_max) == (1.0, 0.5)
