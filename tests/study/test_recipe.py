"""Recipes: the paper's settings, YAML and back, and every data set of the paper end to end in miniature."""

import copy
import dataclasses
import json
import random
from typing import ClassVar, get_args

import pytest
import torch
from safetensors.torch import load_file

from fpa import FPA, InputError, load_model, make_plan
from fpa.data.splits import FileSplit
from fpa.running import run_study
from fpa.study.recipe import DataSettings, EvaluationSettings, Recipe, load_recipe, recipe_names
from fpa.study.trainings import load_recipe_data, train
from fpa.training.settings import FPASettings, RectangleSettings, TrainingSettings, suggested_fpa
from miniatures import write_cifar10_binary, write_food101, write_image_folder, write_imagenet

PAPER = {
    "cifar10": ("resnet18-cifar", 40, 64, 0.01, 5e-4, "steps", [30], (0.5, 0.25, 0.1, 3)),
    "cifar10-small": ("resnet20-cifar", 40, 64, 0.01, 5e-4, "steps", [30], (0.5, 0.25, 0.1, 3)),
    "food101": ("resnet50", 68, 256, 0.1, 5e-4, "cosine", [], (0.5, 0.3, 0.01, 10)),
    "food101-64": ("resnet50-64px", 30, 256, 0.1, 5e-4, "cosine", [], (0.5, 0.268, 0.044, 5)),
    "imagenet": ("resnet50", 90, 256, 0.1, 1e-4, "steps", [30, 60], (0.5, 0.3, 0.01, 10)),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name):
    recipe = load_recipe(name)
    training, fpa = recipe.training, recipe.fpa
    found = (
        recipe.model,
        training.epochs,
        training.batch_size,
        training.learning_rate,
        training.weight_decay,
    )
    found += (training.schedule, training.milestones, (fpa.p, fpa.p1_max, fpa.p2, fpa.s_max))
    assert found == PAPER[name]
    assert training.momentum == 0.9
    assert fpa.squares == "selected"
    assert recipe.augmentations == ["none", "rectangle", "fpa"]
    last = training.learning_rate_at(training.epochs - 1)
    if training.schedule == "cosine":
        assert 0 < last < 3e-3
        assert training.learning_rate_at(training.epochs) == pytest.approx(0, abs=1e-12)
        assert training.learning_rate_at(training.epochs / 2) == pytest.approx(0.05)
    else:
        assert last == pytest.approx(training.learning_rate / 10 ** len(training.milestones))


@pytest.mark.parametrize("name", recipe_names())
def test_yaml_and_back(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / "again.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(str(path)) == recipe


def miniature(name, root):
    writers = {"cifar10": write_cifar10_binary, "food101": write_food101, "imagenet": write_imagenet}
    writers[name.removesuffix("-64").removesuffix("-small")](root)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_runs_end_to_end_on_a_miniature(name, tmp_path):
    """The official layout on disk, from the files to the report, and a saved model that classifies."""
    miniature(name, tmp_path / "data")
    fields = {"data.root": str(tmp_path / "data"), "data.workers": 2, "training.epochs": 2}
    steps = load_recipe(name).training.schedule == "steps"
    fields |= {"training.batch_size": 4, "training.milestones": [1] if steps else []}
    fields |= {"evaluation.ig_steps": 2, "evaluation.sg_samples": 1, "evaluation.points": 3}
    fields |= {"augmentations": ["none", "fpa"], "data.evaluation_images": 6, "evaluation.examples": 2}
    fields |= {"data.train_images": 16} if name.startswith("cifar10") else {"data.size": 32}
    if name != "cifar10-small":  # the smallest network has all estimators of the paper, the others two
        fields |= {"evaluation.estimators": ["ig_sum", "vg_abs"]}
    recipe = load_recipe(name, fields)
    data = load_recipe_data(recipe)
    assert data.evaluation.tolist() == sorted(set(data.evaluation.tolist()))
    study = run_study(recipe, tmp_path / "out", device="cpu")
    assert (tmp_path / "out" / "report.html").exists()
    assert study.published == {}  # a miniature is not the paper's study
    for augmentation, result in study.models.items():
        assert result.evaluation.indices.tolist() == data.evaluation.tolist()
        model = load_model(tmp_path / "out" / augmentation / "model.safetensors")
        card = model.card
        assert card.classes == data.classes
        assert card.input_shape == data.input_shape
        assert card.recipe == recipe.description(recipe.trainings()[augmentation])
        assert (card.augmentation, card.variant) == (augmentation, augmentation)
        if name.startswith("food101"):
            assert card.mean == data.normalisation.mean
            assert len(set(card.mean)) == 3
        else:
            assert card.mean == card.std == (0.5, 0.5, 0.5)
        assert model(torch.zeros(2, *card.input_shape)).shape == (2, len(card.classes))
        first, second = recipe.training.learning_rate_at(0), recipe.training.learning_rate_at(1)
        assert result.history["learning_rate"] == pytest.approx([first, second], rel=1e-4)
        assert second < first


def test_an_unreadable_image_met_in_training_is_named_and_counted(tmp_path, capsys):
    from fpa.progress import Display

    write_image_folder(tmp_path / "photos")
    recipe = load_recipe(
        "imagenet",
        {
            "data.name": f"folder:{tmp_path / 'photos'}",
            "data.size": 48,
            "data.workers": 0,
            "model": "resnet18",
            "training.batch_size": 2,
            "training.epochs": 1,
            "training.milestones": [],
            "fpa.s_max": 3,
        },
    )
    data = load_recipe_data(recipe)
    assert isinstance(data.train, FileSplit)
    data.train.paths[1].write_bytes(b"\xff\xd8 no longer an image")
    with Display() as display:
        train(recipe, tmp_path / "out", data=data, device="cpu", variants=["fpa"], display=display)
    told = capsys.readouterr().err
    assert "1 unreadable" in told
    assert str(data.train.paths[1]) in told


@pytest.mark.parametrize("way", ["kept", "decoded by workers", "decoded by the device"])
def test_files_continue_bit_for_bit_in_the_middle_of_an_epoch(way, tmp_path, monkeypatch):
    from fpa.training.batches import DeviceFileBatches, FileBatches, PhotoBatches

    if way != "kept":
        monkeypatch.setattr("fpa.training.photos_on_device.MEMORY_SHARE", 0.0)
    if way == "decoded by the device":
        monkeypatch.setattr("fpa.training.jpegs.SMALLEST", {"cpu": 1})
    write_image_folder(tmp_path / "photos")
    recipe = load_recipe(
        "tiny",
        {
            "data.name": f"folder:{tmp_path / 'photos'}",
            "data.size": 32,
            "data.workers": 0,
            "data.train_images": None,
            "data.evaluation_images": 2,
            "training.batch_size": 2,
            "training.epochs": 2,
            "training.milestones": [],
        },
    )
    data = load_recipe_data(recipe)
    steps = len(data.train) // 2
    assert steps >= 2
    train(recipe, tmp_path / "whole", data=data, device="cpu", variants=["fpa"])
    calls = iter(range(1000))

    ways = {"kept": PhotoBatches, "decoded by workers": FileBatches}
    batches = ways.get(way, DeviceFileBatches)

    def stops(self, usual=batches.advance):
        if next(calls) == steps + 1:
            raise KeyboardInterrupt
        return usual(self)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "advance", stops)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "cut", data=data, device="cpu", variants=["fpa"])
    train(recipe, tmp_path / "cut", data=data, device="cpu", variants=["fpa"])
    one, two = (load_file(tmp_path / name / "fpa" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "side"), [("cifar10", 32), ("food101-64", 64), ("food101", 224), ("imagenet", 224)]
)
def test_settings_suggested_for_an_image_size_are_the_papers_where_it_has_them(name, side):
    assert suggested_fpa(side, side) == load_recipe(name).fpa


@pytest.mark.parametrize(("name", "side", "share"), [("cifar10", 32, 0.25), ("imagenet", 224, 0.5)])
def test_a_model_that_learns_its_own_predictions_sees_more_masks(name, side, share):
    assert suggested_fpa(side, side, "model") == dataclasses.replace(
        load_recipe(name).fpa, p=1.0, p1_max=share
    )


@pytest.mark.parametrize("targets", ["labels", "model"])
def test_settings_suggested_for_other_sizes_lie_between_and_always_fit(targets):
    sides = [4, 8, 16, 28, 32, 48, 64, 96, 128, 160, 224, 299, 384, 512]
    found = [suggested_fpa(side, side, targets) for side in sides]
    assert [one.s_max for one in found] == sorted(one.s_max for one in found)
    assert [one.p2 for one in found] == sorted((one.p2 for one in found), reverse=True)
    assert [one.p1_max for one in found] == sorted(one.p1_max for one in found)
    assert found[0].p1_max == 0.25
    assert found[-1].p1_max == suggested_fpa(224, 224, targets).p1_max
    for side, one in zip(sides, found, strict=True):
        FPA(one.p, one.p1_max, one.p2, one.s_max).check(torch.empty(1, 3, side, side))
    narrow = suggested_fpa(4, 400, targets)
    FPA(narrow.p, narrow.p1_max, narrow.p2, narrow.s_max).check(torch.empty(1, 3, 4, 400))
    # The share that squares add, p2 times the mean area of a square, hardly changes with the size.
    shares = [
        one.p2 * sum(s * s for s in range(1, one.s_max + 1)) / one.s_max
        for side, one in zip(sides, found, strict=True)
        if side >= 28
    ]
    assert max(shares) / min(shares) < 1.6
    with pytest.raises(InputError, match="height must be at least 2, got 1"):
        suggested_fpa(1, 32)
    with pytest.raises(InputError, match="targets must be one of labels, model, got 'logits'"):
        suggested_fpa(32, 32, "logits")


class TestVariants:
    VARIANTS: ClassVar = {
        "many-pixels": {"augmentation": "fpa", "fpa": {"p": 1.0, "p1_max": 0.5}},
        "fpa-seed1": {"augmentation": "fpa", "seed": 1},
        "plain-seed1": {"augmentation": "none", "seed": 1},
    }
    FIELDS: ClassVar = {"training.epochs": 1, "training.milestones": [], "data.train_images": 64}

    def test_a_recipe_trains_them_beside_its_augmentations(self, tmp_path):
        recipe = load_recipe("tiny", {**self.FIELDS, "augmentations": ["fpa"], "variants": self.VARIANTS})
        assert list(recipe.trainings()) == ["fpa", *self.VARIANTS]
        (tmp_path / "mine.yaml").write_text(recipe.to_yaml())
        assert load_recipe(str(tmp_path / "mine.yaml")) == recipe
        trained = train(recipe, tmp_path / "out", device="cpu")
        assert [(one.name, one.seed) for one in trained] == [
            ("fpa", 0), ("many-pixels", 0), ("fpa-seed1", 1), ("plain-seed1", 1)
        ]  # fmt: skip
        cards = {one.name: load_model(one.path).card for one in trained}
        assert [(card.augmentation, card.variant) for card in cards.values()] == [
            ("fpa", "fpa"), ("fpa", "many-pixels"), ("fpa", "fpa-seed1"), ("none", "plain-seed1")
        ]  # fmt: skip
        assert cards["many-pixels"].recipe["fpa"] == {
            "p": 1.0, "p1_max": 0.5, "p2": 0.1, "s_max": 3, "squares": "selected"
        }  # fmt: skip
        assert cards["plain-seed1"].recipe["seed"] == 1

        def weights(folder, name):
            return load_file(tmp_path / folder / name / "model.safetensors")

        # Each equals the one training of a recipe with these settings.
        for name, fields in {
            "many-pixels": {"fpa.p": 1.0, "fpa.p1_max": 0.5},
            "fpa-seed1": {"seed": 1},
        }.items():
            train(load_recipe("tiny", self.FIELDS | fields), tmp_path / name, variants=["fpa"], device="cpu")
            alone, beside = weights(name, "fpa"), weights("out", name)
            assert all(torch.equal(alone[key], beside[key]) for key in alone)
        first = weights("out", "fpa")
        assert all(
            any(not torch.equal(first[key], value) for key, value in weights("out", name).items())
            for name in self.VARIANTS
        )

    def test_only_some_are_trained_when_named(self, tmp_path):
        recipe = load_recipe("tiny", {**self.FIELDS, "variants": self.VARIANTS})
        train(recipe, tmp_path, variants=["plain-seed1"], device="cpu")
        assert [path.name for path in tmp_path.iterdir()] == ["plain-seed1"]
        with pytest.raises(InputError, match="unknown training 'plain': did you mean 'plain-seed1'"):
            train(recipe, tmp_path, variants=["plain"], device="cpu")

    @pytest.mark.parametrize(
        ("variants", "message"),
        [
            ({"a/b": {}}, "a variant's name is also that of its folder: .*got 'a/b'"),
            ({"..": {}}, "got '..'"),
            ({"Figures": {}}, "none of curves, figures.*got 'Figures'"),
            ({"FPA": {}}, "two trainings are called 'FPA'"),
            ({"mine": {"augmentation": "cutout"}}, "cutout"),
            ({"mine": {"fpa": {"p3": 1}}}, "unknown recipe field 'variants.mine.fpa.p3'"),
            ({"mine": 3}, "recipe field variants.mine must be a mapping, got 3"),
            ({"mine": {"seed": -1}}, "seed must be at least 0, got -1"),
            (
                {"mine": {"fpas": {}}},
                "unknown recipe field .* did you mean 'variants.mine.fpa'",
            ),
        ],
    )
    def test_bad_ones(self, variants, message):
        with pytest.raises(InputError, match=message):
            load_recipe("tiny", {"variants": variants})


def test_a_masking_may_be_a_mapping(tmp_path):
    recipe = load_recipe("tiny", {"masking": {"name": "blur", "sigma": 4}})
    assert recipe.masking == {"name": "blur", "sigma": 4}
    (tmp_path / "mine.yaml").write_text(recipe.to_yaml())
    assert load_recipe(str(tmp_path / "mine.yaml")) == recipe
    assert load_recipe("tiny", {"masking": "mean"}).masking == "mean"


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"training.epoch": 3}, "unknown recipe field 'training.epoch': did you mean 'training.epochs'"),
            ({"trainig.epochs": 3}, "unknown recipe field 'trainig': did you mean 'training'"),
            ({"training": 3}, "recipe field training must be a mapping, got 3"),
            ({"training.epochs": "many"}, "training.epochs.*many"),
            ({"training.epochs": 0}, "training.epochs must be at least 1, got 0"),
            ({"training.learning_rate": -1.0}, "training.learning_rate must be positive"),
            ({"training.milestones": [30, 10]}, r"training.milestones must rise, got \[30, 10\]"),
            ({"training.schedule": "cosine", "training.milestones": [3]}, "belong to the schedule 'steps'"),
            (
                {"name": "../elsewhere"},
                "name must be printable and not a path, got '../elsewhere'",
            ),
            ({"augmentations": ["fpa", "cutout"]}, "unknown augmentation 'cutout'"),
            ({"augmentations": []}, "augmentations must be one or more different names"),
            ({"data.size": 1}, "data.size must be at least 8, got 1"),
            ({"evaluation.points": 2}, "points must be at least 3, got 2"),
        ],
    )
    def test_fields(self, fields, message):
        with pytest.raises(InputError, match=message):
            load_recipe("tiny", fields)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"training.milestones": [2, 3]}, r"milestones \[2, 3\] must be below training.epochs 3"),
            ({"training.warmup_epochs": 3}, "training.warmup_epochs 3 must be below training.epochs 3"),
            ({"data.size": 64}, "data.size is for data sets of files: the images of shapes are 32 px"),
        ],
    )
    def test_fields_that_contradict_each_other(self, fields, message, tmp_path):
        with pytest.raises(InputError, match=message):
            train(load_recipe("tiny", fields), tmp_path, device="cpu")

    def test_fewer_epochs_than_the_warm_up_or_the_milestones_of_a_recipe(self):
        short = load_recipe("shapes", {"training.epochs": 1})
        short.training.check()
        assert (load_recipe("shapes").training.warmup_epochs, short.training.warmup_epochs) == (3, 0)
        assert load_recipe("shapes", {"training.epochs": 8}).training.warmup_epochs == 3  # it still fits
        short = load_recipe("cifar10", {"training.epochs": 4})
        short.training.check()
        assert (load_recipe("cifar10").training.milestones, short.training.milestones) == ([30], [3])

    def test_unknown_recipe(self):
        with pytest.raises(InputError, match="unknown recipe 'cifar': did you mean 'cifar10'"):
            load_recipe("cifar")

    def test_a_file_that_is_not_there_or_no_recipe(self, tmp_path):
        with pytest.raises(InputError, match=r"there is no recipe file .*mine.yaml"):
            load_recipe(str(tmp_path / "mine.yaml"))
        (tmp_path / "mine.yaml").write_text("a: [1")
        with pytest.raises(InputError, match="is not valid YAML"):
            load_recipe(str(tmp_path / "mine.yaml"))
        (tmp_path / "mine.yaml").write_text("seed: 1\ntraining:\n  epochs: 3\n  epochs: 4\n")
        with pytest.raises(InputError, match="epochs is given twice"):
            load_recipe(str(tmp_path / "mine.yaml"))
        (tmp_path / "mine.yaml").write_text(json.dumps([1]))
        with pytest.raises(InputError, match="must be a mapping of recipe fields, got list"):
            load_recipe(str(tmp_path / "mine.yaml"))


def mutated(values, chance):
    """A recipe with one or two fields that were replaced, removed or renamed."""
    odd = [None, True, "", "x", "a:b", -1, 0, 1.5, float("nan"), 10**30, [], [None], [[]], ["x"], {}, {1: 2}]
    odd += [{"name": "blur", 1: 2}, {"name": []}, "1", "captum:X", "math:pi", "\0", "A" * 5000, 1e300]
    values = copy.deepcopy(values)
    for _ in range(chance.choice([1, 1, 2])):
        inner = values
        while True:
            key = chance.choice([*inner])
            if not isinstance(inner[key], dict) or not inner[key] or chance.random() < 0.1:
                break
            inner = inner[key]
        kind = chance.random()
        if kind < 0.9:
            inner[key] = chance.choice(odd)
        elif kind < 0.95:
            del inner[key]
        else:
            inner[f"{key}x"] = chance.choice(odd)
    return values


class TestHostileFiles:
    """Whatever a file holds, it ends in one line that is no longer than a screen, before any work."""

    @staticmethod
    def refused(path, content):
        path.write_text(content, encoding="utf-8")
        try:
            load_recipe(str(path))
            told = None
        except InputError as error:
            told = str(error)
        assert told is None or len(told) < 1500
        return told

    def test_null_for_every_field(self, tmp_path):
        values = load_recipe("tiny").to_dict()
        kinds = [Recipe, DataSettings, TrainingSettings, FPASettings, RectangleSettings, EvaluationSettings]
        items = (item for kind in kinds for item in dataclasses.fields(kind))
        nullable = {item.name for item in items if type(None) in get_args(item.type)}
        assert {"train_images", "evaluation_images"} <= nullable
        for group in (values, *(part for part in values.values() if isinstance(part, dict))):
            for key, value in group.items():
                group[key] = None
                told = self.refused(tmp_path / "mine.yaml", json.dumps(values))
                assert (told is None) == (key in nullable), (key, told)
                assert told is None or key in told
                group[key] = value

    def test_mutated_recipes(self, tmp_path):
        values, chance = load_recipe("tiny").to_dict(), random.Random(0)
        told = [self.refused(tmp_path / "mine.yaml", json.dumps(mutated(values, chance))) for _ in range(60)]
        assert 2 < told.count(None) < 50

    @pytest.mark.parametrize(
        "fields",
        [
            {"model": "A" * 5000},
            {"data.name": "A" * 5000},
            {"data.name": "folder:" + "A" * 5000},
            {"data.name": "folder:~nobody/photos"},
            {"masking": "math:pi"},
            {"masking": "builtins:max"},
        ],
    )
    def test_odd_names_are_refused_before_any_work(self, tmp_path, fields):
        with pytest.raises(InputError) as told:
            run_study(load_recipe("tiny", fields), tmp_path / "study")
        assert len(str(told.value)) < 2100
        assert not (tmp_path / "study").exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (
                "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 9)),
                "its aliases stand for too much",
            ),
            ("a: &a [*a]", "nested too deeply"),
            ("[" * 20000, "nested too deeply"),
            ("".join(f"key{n}: 1\n" for n in range(20000)), "at most 100,000 characters"),
            ("".join(f"key{n}: 1\n" for n in range(5000)), "unknown recipe field 'key0'"),
            ("masking: {name: blur, sigma: " + "[" * 200 + "]" * 200 + "}", "masking"),
            ("seed: 2001-99-99", "month must be in 1..12"),
            ("seed: !!python/object/apply:os.system [exit]", "could not determine a constructor"),
        ],
    )
    def test_files_that_exhaust(self, tmp_path, content, message):
        told = self.refused(tmp_path / "mine.yaml", content)
        if message == "masking":  # the masking is looked at when the study is planned
            with pytest.raises(InputError, match="sigma must be a finite number"):
                make_plan(masking=load_recipe(str(tmp_path / "mine.yaml")).masking)
        else:
            assert message in told
