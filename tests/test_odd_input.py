"""What nobody should pass, and somebody does: one line, before the work where it can be known."""

import os
import shutil
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import fpa
from fpa import InputError
from fpa.cli.main import main
from fpa.errors import printable, without_controls
from fpa.masking import Blur, Bokeh, get_masking
from fpa.running import show_again
from fpa.scores.max_sensitivity import MaxSensitivity
from fpa.study.recipe import DataSettings
from fpa.training.settings import TrainingSettings

QUICK = {"settings": fpa.Settings(ig_steps=1, sg_samples=1), "points": 3, "progress": False}
TWO = ["vg_abs", "ig_sum"]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 3)).eval()
    nn.init.constant_(network[2].bias, 9.0)
    return network


@pytest.fixture(scope="module")
def images():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class TestMaskings:
    @pytest.mark.parametrize("name", ["mean", "blur", "road"])
    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (lambda images: images.to("meta"), "on the meta device"),
            (lambda images: images.to_sparse(), "sparse"),
            (lambda images: images.to(torch.complex64), "complex"),
        ],
    )
    def test_images_that_hold_no_plain_numbers(self, images, name, made, said):
        with pytest.raises(InputError, match=f"images must be a plain tensor .* got one that is {said}"):
            get_masking(name)(made(images), images[:, 0] > 0)


class TestNumbersThatBecomeMemory:
    @pytest.mark.parametrize("masking", [{"name": "blur", "sigma": 1e9}, {"name": "bokeh", "radius": 1e9}])
    def test_a_blur_is_no_wider_than_the_images(self, net, images, masking):
        with pytest.raises(
            InputError, match=r"(sigma|radius) must be at most 8, the longer side of the images"
        ):
            get_masking(masking)(images, images[:, 0] > 0)
        with pytest.raises(InputError, match="must be at most 8"):
            fpa.evaluate(net, images, TWO, masking=masking, folder="never", **QUICK)
        assert not Path("never").exists()
        with pytest.raises(InputError, match="must be at most 8"):
            fpa.FPA(p=1.0, masking=masking)(images, torch.zeros(4))
        with pytest.raises(InputError, match="must be at most 8"):
            fpa.evaluate(net, images, TWO, maskings={"wide": masking}, **QUICK)

    def test_up_to_the_images_it_may_be(self, images):
        mask = torch.ones(4, 8, 8, dtype=torch.bool)
        for masking in (Blur(8.0), Bokeh(8.0)):
            assert bool(masking(images, mask).isfinite().all())

    def test_a_recipe_is_refused_before_its_training(self, tmp_path):
        recipe = fpa.load_recipe("tiny", {"masking": {"name": "blur", "sigma": 1e9}})
        with pytest.raises(InputError, match="sigma must be at most 32"):
            fpa.run_study(recipe, tmp_path / "study", device="cpu")
        assert not (tmp_path / "study").exists()

    def test_a_twin_is_no_blurrier_than_that(self, net, images):
        with pytest.raises(InputError, match="the blur of a twin must be at most 8"):
            fpa.explain(net, images, ["vg_abs~1000000000"])

    @pytest.mark.parametrize(
        "fields", [{"data.size": 10**6}, {"data.workers": 10**6}, {"evaluation.examples": 10**9}]
    )
    def test_fields_of_a_recipe_have_a_largest_value(self, fields):
        with pytest.raises(InputError, match="must be at most"):
            fpa.load_recipe("tiny", fields)

    def test_so_have_arguments(self, net, images):
        with pytest.raises(InputError, match="the size of the images must be at most 4,096"):
            fpa.load_data("digits", size=10**6)
        with pytest.raises(InputError, match="examples must be at most 1,000"):
            fpa.evaluate(net, images, TWO, examples=10**9, **QUICK)
        with pytest.raises(InputError, match="workers must be at most"):
            fpa.finetune(net, (images, [0, 1, 2, 0]), workers=10**7)
        with pytest.raises(InputError, match="features must be"):
            fpa.make_plan(TWO, features=f"segments:{'9' * 5000}")
        with pytest.raises(InputError, match="samples must be at most 10,000"):
            MaxSensitivity(samples=10**9)

    @pytest.mark.parametrize("word", ["--data", "--masking", "--class_index"])
    def test_aliases_of_yaml_end_soon(self, tmp_path, capsys, word):
        lines = "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12))
        text = "a0: &a0 [1]\n" + lines
        (tmp_path / "y.yaml").write_text(text)
        flat = "{" + text.replace("\n", ", ") + "}"
        for given in (str(tmp_path / "y.yaml"), flat):
            assert main(["evaluate", "shapes-fpa", "--count", "2", word, given]) == 2
            told = capsys.readouterr().err
            assert told.count("\n") == 1
            assert len(told) < 3000


class TestNames:
    @pytest.mark.drawn
    def test_characters_that_are_obeyed_reach_no_file(self, net, images, tmp_path):
        odd = "\x1b[31mred\x07"
        names = {f"{odd}1": lambda model, x, y: x, f"{odd}2\u202e": lambda model, x, y: x.abs()}
        fpa.evaluate(
            net,
            images,
            names,
            name=odd,
            classes=[odd, "b\x9b", "c\u2028"],
            folder=tmp_path,
            examples=2,
            **QUICK,
        )
        show_again(tmp_path, tmp_path)
        for name in ("table.csv", "table.md", "table.tex", "report.html"):
            text = (tmp_path / name).read_text(encoding="utf-8")
            assert text == without_controls(text), name
            assert "x1b" in text

    def test_lines_and_tabs_of_a_page_stay(self):
        assert without_controls("a\tb\nc\x00\u202e") == r"a" + "\tb\n" + r"c\x00\u202e"
        obeyed = [chr(code) for code in (*range(9), *range(11, 32), 127, 155, 0x200E, 0x202E, 0x2066, 0xFEFF)]
        assert all(without_controls(each) == printable(each) != each for each in obeyed)

    @pytest.mark.parametrize("name", ["", " ", "\udce9"])
    def test_an_estimator_has_one(self, net, images, name):
        with pytest.raises(InputError, match="name"):
            fpa.evaluate(net, images, {name: lambda model, x, y: x, "b": "vg_abs"}, **QUICK)


class TestTypes:
    def test_a_fraction_is_a_number(self, net, images):
        tuned = fpa.finetune(
            net, (images, [0, 1, 2, 0]), learning_rate=Fraction(1, 128), epochs=1, batch_size=2, device="cpu"
        )
        assert isinstance(tuned, nn.Module)
        assert TrainingSettings(learning_rate=Fraction(1, 4)).learning_rate == 0.25
        assert fpa.Settings(sigma=np.float32(0.5)) == fpa.Settings(sigma=0.5)

    @pytest.mark.parametrize("rate", [Decimal("0.1"), Fraction(10**400), 10**400, "fast"])
    def test_what_is_none_is_refused(self, net, images, rate):
        with pytest.raises(InputError, match="learning_rate must be") as error:
            fpa.finetune(net, (images, [0, 1, 2, 0]), learning_rate=rate)
        assert len(str(error.value)) < 300

    def test_numbers_beyond_all_floats_in_a_recipe(self, tmp_path):
        values = fpa.load_recipe("tiny").to_dict()
        for field in ("momentum", "learning_rate", "weight_decay"):
            values["training"][field] = 10**400
            (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
            with pytest.raises(InputError, match=f"training.{field} must be a number"):
                fpa.load_recipe(str(tmp_path / "r.yaml"))
            values["training"][field] = 0.5
        with pytest.raises(InputError, match="must be at most"):
            DataSettings(size=2**62)

    @pytest.mark.parametrize(
        "odd",
        [{"reduction": np.ones(3)}, {"kind": np.ones(3)}, {"blur": torch.ones(2)}, {"times_input": "x"}],
    )
    def test_fields_of_an_estimator(self, odd):
        with pytest.raises(InputError, match=f"{next(iter(odd))} must be"):
            fpa.Estimator("vg", **odd)

    def test_parameters_of_a_masking(self):
        for name, parameter in (
            ("blur", "sigma"),
            ("bokeh", "radius"),
            ("road", "sigma"),
            ("constant", "value"),
        ):
            for value in (10**400, -(10**400)):
                with pytest.raises(InputError, match=f"{parameter} must be a finite number"):
                    get_masking({"name": name, parameter: value})

    def test_points_of_a_curve(self):
        with pytest.raises(InputError, match="must be an array of numbers"):
            fpa.Fidelity.from_curves([[1, 0]], [[1, 10**400]], [0, 1])

    def test_an_arithmetic_is_a_word(self):
        with pytest.raises(InputError, match="precision"):
            fpa.Precision(gradients=np.ones(3))

    def test_tensors_in_a_class_index(self, net, images):
        data = (images, [0, 1, 2, 0])
        for index in ([torch.tensor([0, 1]), 1, 2], {"a": torch.tensor([1, 2])}, {torch.tensor(0): 0}):
            with pytest.raises(InputError):
                fpa.evaluate(net, data, TWO, class_index=index, **QUICK)
            with pytest.raises(InputError):
                fpa.finetune(net, data, class_index=index, epochs=1, batch_size=2, device="cpu")


class TestModels:
    def test_nothing_is_computed_on_meta(self, net, images):
        with pytest.raises(InputError, match="the device 'meta' cannot be used here"):
            fpa.evaluate(net, images, TWO, device="meta", **QUICK)

    @pytest.mark.parametrize("shape", [(4, 1, 8, 8), (4, 3, 9, 9)])
    def test_an_engine_that_cannot_take_the_images(self, net, images, shape):
        engine = fpa.Engine(net)
        other = torch.randn(shape)
        for _ in range(2):  # the second time, the engine has been at work before
            with pytest.raises(InputError, match="the model cannot take images"):
                fpa.explain(engine, other, TWO)
            with pytest.raises(InputError, match="the model cannot take images"):
                fpa.perturbation_curves(engine, other, torch.rand(4, *shape[2:]), points=3)
            fpa.explain(engine, images, TWO, settings=fpa.Settings(ig_steps=1, sg_samples=1))
        with pytest.raises(InputError, match="the model cannot take images"):
            fpa.evaluate(engine, torch.randn(4, 3, 9, 9), TWO, **QUICK)

    def test_an_error_of_a_model_that_has_worked_stays_its_own(self, images):
        class Breaks(nn.Module):
            calls = 0

            def forward(self, x):
                if not x.isfinite().all():
                    raise RuntimeError("a pump failed")
                return x.flatten(1)[:, :3] + 9

        engine = fpa.Engine(Breaks())
        engine.predict(images)
        with pytest.raises(RuntimeError, match="a pump failed") as error:
            engine.predict(images * torch.inf)
        assert not isinstance(error.value, InputError)


class TestFolders:
    def test_one_whose_name_looks_like_an_address(self, net, images, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        one = fpa.evaluate(net, images, TWO, folder="run:1", **QUICK)
        again = fpa.load_result("run:1")
        assert one.fidelity["ig_sum"].area == again.fidelity["ig_sum"].area

    def test_one_that_is_deleted_meanwhile(self, net, images, tmp_path):
        def deletes(model, x, y):
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)
            return x

        with pytest.raises(InputError, match=r"the folder .*gone is gone: it was removed or renamed"):
            fpa.evaluate(net, images, {"a": deletes, "b": "vg_abs"}, folder=tmp_path / "gone", **QUICK)

    def test_a_lock_that_is_a_folder(self, net, images, tmp_path):
        os.mkdir(tmp_path / ".fpa-lock")
        with pytest.raises(InputError, match="is a folder; remove it first"):
            fpa.evaluate(net, images, TWO, folder=tmp_path, **QUICK)

    @pytest.mark.parametrize("name", ["a" * 300, "b" * 5000, "a\0b"])
    def test_paths_that_cannot_be(self, net, images, name):
        for call in (
            lambda: fpa.evaluate(net, images, TWO, folder=name, **QUICK),
            lambda: fpa.load_result(name),
            lambda: fpa.read_results(name),
            lambda: fpa.load_model(name),
            lambda: fpa.load_recipe(name),
            lambda: fpa.open_model(name),
            lambda: fpa.load_data("cifar10", name),
            lambda: fpa.load_data(f"folder:{name}"),
            lambda: fpa.get_estimators(f"maps:{name}"),
            lambda: fpa.finetune(
                net, (images, [0, 1, 2, 0]), folder=name, epochs=1, device="cpu", batch_size=2
            ),
        ):
            with pytest.raises(InputError) as error:
                call()
            assert "\n" not in str(error.value)
