"""The front door: any model and images to a result, and what the result can do."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fpa
from fpa.data.sets import load_data
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import Estimator, Settings
from fpa.notes import Kind
from fpa.show import summary
from fpa.show.report import finding, verdict
from fpa.show.tables import headline
from fpa.statistics.contradictions import reliability

QUICK = {"settings": Settings(ig_steps=4, sg_samples=2), "points": 5, "progress": False}
NAMES = ["random", "ig_sum", "vgx_sum", "vg_abs"]


@pytest.fixture(scope="module")
def data():
    found = load_data("shapes", evaluation_images=12)
    return found.test.images[found.evaluation], found.test.labels[found.evaluation], found


@pytest.fixture(scope="module")
def result(data):
    images, labels, found = data
    model = fpa.load_model("shapes-fpa")
    return fpa.evaluate(model, (images, labels), NAMES, normalisation=found.normalisation, **QUICK)


def same_areas(first, second, tolerance=1e-3):
    assert first.fidelity.keys() == second.fidelity.keys()
    for name in first.fidelity:
        assert first.fidelity[name].area == pytest.approx(second.fidelity[name].area, abs=tolerance)


def test_the_areas_are_those_of_explain_and_perturbation_curves(data, result):
    images, labels, found = data
    model, normalised = fpa.load_model("shapes-fpa"), found.normalisation(images)
    maps = fpa.explain(model, normalised, NAMES, settings=QUICK["settings"])
    curves = fpa.perturbation_curves(model, normalised, maps, points=5)
    for name in NAMES:
        area = fpa.Fidelity.from_curves(curves.mif[name], curves.lif[name], curves.fractions).area
        assert result.fidelity[name].area == pytest.approx(area, abs=1e-3)
    with torch.no_grad():
        correct = (model(normalised).argmax(1) == labels).float().mean()
    assert result.accuracy == pytest.approx(float(correct))
    assert result.classes == model.card.classes
    pairs = {(pair.first, pair.second): pair.kind for pair in result.reliability.pairs}
    assert pairs[("ig_sum", "vg_abs")] == "signed-unsigned"


def test_it_prints_as_a_table_in_a_terminal_and_in_a_notebook(result):
    text = str(result)
    assert repr(result) == text
    assert "IG_sum" in text
    assert f"{100 * result.accuracy:.1f} %" in text
    assert max(map(len, text.splitlines())) <= 80
    area = result.fidelity["vg_abs"]
    cell = f"{area.area:.1f} ± {area.interval:.1f}"
    assert cell in text
    page = result._repr_html_()
    assert cell in page
    assert "VG<sub>abs</sub>" in page


def test_tables(result):
    table = result.table()
    assert sorted(table.index) == sorted(NAMES)
    assert table.loc["ig_sum", "area"] == result.fidelity["ig_sum"].area
    assert list(table.loc[["random", "ig_sum", "vg_abs"], "kind"]) == ["baseline", "signed", "unsigned"]
    rows = result.to_pandas()
    assert len(rows) == 12 * len(NAMES)
    means = rows.groupby("estimator")["area"].mean()
    for name in NAMES:
        assert means[name] == pytest.approx(result.fidelity[name].area)


def test_plot_and_report(result, tmp_path):
    figure = result.plot()
    assert figure.axes[0].get_title() == "Random"
    assert len(figure.axes) == 2 * len(NAMES)
    assert len(result.plot(signed=False).axes) == 2 * 2
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "SmallResNet" in page
    assert "FPA changes" not in page
    assert "Recipe" not in page.split("<script", maxsplit=1)[0].split("</style>")[1]
    held = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert len(held["explorer"]["examples"]) == 8


def test_saved_and_loaded_it_is_the_same(result, tmp_path):
    path = result.save(tmp_path / "mine")
    assert path == tmp_path / "mine"
    again = fpa.load_result(path)
    assert str(again) == str(result)
    assert again.table().equals(result.table())
    assert again.plan == result.plan
    for name in NAMES:
        assert np.array_equal(again.evaluation.mif[name], result.evaluation.mif[name])
        assert np.array_equal(again.examples.maps[name], result.examples.maps[name])
    again.report(tmp_path / "a.html")
    result.report(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_folder_that_holds_no_result_is_refused(result, tmp_path):
    with pytest.raises(InputError, match="holds no evaluation: run fpa evaluate"):
        fpa.load_result(tmp_path / "none")
    result.save(tmp_path / "mine")
    with pytest.raises(InputError, match="mine already holds an evaluation: choose another folder"):
        result.save(tmp_path / "mine")
    (tmp_path / "mine/evaluation.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match=r"evaluation.json was written by another version of fpa"):
        fpa.load_result(tmp_path / "mine")


def test_without_labels_only_the_accuracy_is_missing(data, result):
    images, _, found = data
    unlabelled = fpa.evaluate(
        fpa.load_model("shapes-fpa"), images, NAMES, normalisation=found.normalisation, **QUICK
    )
    assert unlabelled.accuracy is None
    assert "unknown" in str(unlabelled)
    same_areas(unlabelled, result)


def test_one_estimator_alone_is_scored_without_pairs(data, tmp_path):
    images, labels, found = data
    alone = fpa.evaluate(
        fpa.load_model("shapes-fpa"), (images, labels), "vg_abs", normalisation=found.normalisation, **QUICK
    )
    assert alone.reliability.pairs == ()
    assert headline(alone.results) in str(alone)
    alone.plot()
    assert finding(alone.results).pairs == 0
    assert verdict(alone.results) in alone.report(tmp_path / "one.html").read_text(encoding="utf-8")


def test_own_estimators_are_grouped_by_their_sign(data):
    images, labels, found = data

    def gradient(model, images, targets):
        images = images.requires_grad_()
        logits = model(images).gather(1, targets[:, None]).sum()
        return torch.autograd.grad(logits, images)[0]

    mine = fpa.evaluate(
        fpa.load_model("shapes-fpa"),
        (images, labels),
        {"mine": gradient, "mine, no sign": Estimator(gradient, "abs"), "vg_abs": "vg_abs"},
        normalisation=found.normalisation,
        **QUICK,
    )
    assert mine.signed == {"mine": True, "mine, no sign": False, "vg_abs": False}
    assert mine.fidelity["mine, no sign"].area == pytest.approx(mine.fidelity["vg_abs"].area, abs=1e-3)


def test_a_captum_object_is_an_estimator(data):
    attr = pytest.importorskip("captum.attr")
    images, labels, found = data
    model = fpa.load_model("shapes-fpa")
    captum = Estimator(attr.Saliency(model), "abs")
    mine = fpa.evaluate(
        model,
        (images, labels),
        {"captum": captum, "vg_abs": "vg_abs"},
        normalisation=found.normalisation,
        **QUICK,
    )
    assert mine.fidelity["captum"].area == pytest.approx(mine.fidelity["vg_abs"].area, abs=1e-3)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


class HuggingFace(nn.Module):
    """The form of a Hugging Face image classifier: `pixel_values` in, an object with `.logits` out."""

    def __init__(self, inner, names):
        super().__init__()
        self.inner = inner
        self.config = type("Config", (), {"id2label": dict(enumerate(names))})()

    def forward(self, pixel_values=None, labels=None):
        return Output(self.inner(pixel_values))


def test_a_hugging_face_model_with_a_loader_of_dicts(data, result):
    images, labels, found = data
    normalised = found.normalisation(images)
    batches = [{"pixel_values": normalised[i : i + 5], "labels": labels[i : i + 5]} for i in (0, 5, 10)]
    model = HuggingFace(fpa.load_model("shapes-fpa"), found.classes).train()
    mine = fpa.evaluate(model, batches, NAMES, **QUICK)
    same_areas(mine, result)
    assert mine.name == "HuggingFace"
    assert mine.classes == found.classes
    assert mine.accuracy == result.accuracy
    assert model.training


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model.train(),
        nn.DataParallel,
        torch.compile,
        lambda model: model.half(),
    ],
    ids=["train mode", "DataParallel", "compiled", "float16"],
)
@pytest.mark.filterwarnings("ignore:the model's weights are float16")
def test_wrapped_models_give_the_same_areas(wrap, data, result):
    images, labels, found = data
    model = wrap(fpa.load_model("shapes-fpa"))
    mine = fpa.evaluate(model, (images, labels), NAMES, normalisation=found.normalisation, **QUICK)
    same_areas(mine, result, tolerance=1.0 if next(model.parameters()).dtype == torch.float16 else 1e-3)


def test_a_vision_transformer_with_patches_as_features():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=6, depth=2)
    images = torch.randn(4, 3, 64, 64)
    mine = fpa.evaluate(model, images, ["ig_sum", "vg_abs"], features=16, **(QUICK | {"points": 17}))
    # Sixteen patches: at every point of the curve exactly one patch more is gone, so LIF ends where MIF does.
    assert np.allclose(mine.evaluation.fractions, np.arange(17) / 16)
    for name in ("ig_sum", "vg_abs"):
        mif, lif = mine.evaluation.mif[name], mine.evaluation.lif[name]
        assert np.isfinite(mif).all()
        assert np.allclose(mif[:, -1], lif[:, -1], atol=1e-4)
        assert not np.allclose(mif, lif)
    # Gradients through it agree with plain autograd.
    rows = images[:1].clone().requires_grad_()
    logits = model.eval()(rows)
    (gradient,) = torch.autograd.grad(logits.max(), rows)
    found = fpa.explain(model, images[:1], "vg_abs")["vg_abs"]
    assert torch.allclose(found, gradient.abs().sum(1), atol=1e-5)


def test_a_folder_makes_it_resumable(data, tmp_path):
    images, labels, found = data
    model = fpa.load_model("shapes-fpa")
    calls = []

    def counted(model, images, targets):
        calls.append(len(images))
        return images

    def run(loader):
        return fpa.evaluate(
            model,
            loader,
            {"counted": Estimator(counted, kind="signed"), "vg_abs": "vg_abs"},
            normalisation=found.normalisation,
            folder=tmp_path,
            examples=0,
            **QUICK,
        )

    first = run((images, labels))
    assert sum(calls) == 12
    again = run((images, labels))
    assert sum(calls) == 12
    same_areas(first, again, tolerance=0)
    with pytest.raises(InputError, match="other images, or of the same images at another size"):
        run((images.flip(0), labels))
    with pytest.raises(InputError, match="the loader shuffles"):
        run(DataLoader(TensorDataset(images, labels), 4, shuffle=True))


@pytest.mark.parametrize("key", [int, str])
def test_class_names_of_a_hugging_face_config_go_by_their_numbers(key):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    names = {key(2): "two", key(0): "zero", key(1): "one"}
    model.config = type("Config", (), {"id2label": names})()
    images = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    asked = {"examples": 0, **QUICK}
    assert fpa.evaluate(model, images, ["vg_abs"], **asked).classes == ["zero", "one", "two"]
    del names[key(1)]  # a config that names other classes is not guessed at
    assert fpa.evaluate(model, images, ["vg_abs"], **asked).classes == ["class 0", "class 1", "class 2"]


def test_a_generator_can_be_given(data, result):
    images, labels, found = data
    batches = ((images[i : i + 4], labels[i : i + 4]) for i in (0, 4, 8))
    mine = fpa.evaluate(
        fpa.load_model("shapes-fpa"), batches, NAMES, normalisation=found.normalisation, **QUICK
    )
    same_areas(mine, result)
    assert mine.examples.indices.tolist() == list(range(8))


def test_the_examples_are_the_pictures_and_the_maps_of_the_curves(data, result):
    images, labels, found = data
    chosen = result.examples.indices
    assert np.array_equal(result.examples.images, images[chosen].numpy())
    assert np.array_equal(result.examples.labels, labels[chosen].numpy())
    engine = Engine(fpa.load_model("shapes-fpa"))
    maps = fpa.explain(
        engine,
        found.normalisation(images[chosen]),
        NAMES,
        indices=chosen.tolist(),
        settings=QUICK["settings"],
    )
    for name in NAMES:
        assert np.allclose(result.examples.maps[name], maps[name], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"estimators": ["ig_sun"]}, "unknown estimator 'ig_sun'"),
        ({"masking": "blurr"}, "unknown masking 'blurr': did you mean 'blur'"),
        ({"normalisation": None, "masking": "black"}, "masking 'black' needs the mean and std"),
        ({"normalisation": None}, "the images are not normalised"),
        ({"classes": ["one", "two"]}, "the model has 8 outputs, but 2 classes are named"),
        ({"device": "abacus"}, "the device 'abacus' cannot be used here"),
        ({"examples": -1}, "examples must be at least 0"),
        ({"points": 1}, "points"),
        ({"features": 64}, "64"),
        (
            {"model": "resnet18"},
            "must be a torch.nn.Module or an Engine or what fpa.open_model returns, got 'resnet",
        ),
        (
            {"data": (torch.zeros(2, 3, 32, 32), torch.tensor([3, 8]))},
            r"labels must be in 0\.\.7; 8 of image 1",
        ),
        ({"data": torch.zeros(0, 3, 32, 32)}, "no images"),
    ],
)
def test_one_sentence_says_what_is_wrong_before_anything_is_computed(change, said, data):
    images, labels, found = data
    given = {"model": fpa.load_model("shapes-fpa"), "data": (images, labels)}
    given |= {"estimators": NAMES, "normalisation": found.normalisation, **QUICK} | change
    with pytest.raises(InputError, match=said) as raised:
        fpa.evaluate(**given)
    assert "\n" not in str(raised.value)


def test_nothing_stays_on_the_disk_without_a_folder(data, tmp_path, monkeypatch):
    images, _, found = data
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fpa.evaluate(
        fpa.load_model("shapes-fpa"), images[:2], "vg_abs", normalisation=found.normalisation, **QUICK
    )
    assert list(tmp_path.iterdir()) == []


def test_the_reliability_is_that_of_the_areas(result):
    expected = reliability({name: result.fidelity[name] for name in NAMES[1:]}, result.signed)
    assert result.reliability.pairs == expected.pairs


def test_maps_by_number_refuse_a_loader_that_shuffles():
    images = torch.randn(6, 3, 32, 32)
    loader = DataLoader(TensorDataset(images, torch.zeros(6, dtype=torch.int64)), batch_size=3, shuffle=True)
    maps = {"mine": torch.rand(6, 32, 32), "random": "random"}
    with pytest.raises(InputError, match="shuffles them: use shuffle=False"):
        fpa.evaluate(fpa.load_model("shapes-fpa"), loader, maps, points=3, progress=False)


def test_results_are_read_and_shown_without_torch(result, tmp_path):
    """The report too: only numpy, scipy, pyarrow, pandas and jinja2 are needed."""
    result.save(tmp_path / "mine")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None\n"
        "import fpa\n"
        f"again = fpa.read_results({str(tmp_path / 'mine')!r}).first\n"
        f"again.report({str(tmp_path / 'report.html')!r})\n"
        "print(again)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(result)
    assert (tmp_path / "report.html").stat().st_size > 10_000


class TestJudge:
    """Maps from one model, curves from another."""

    @pytest.fixture
    def photos(self):
        data = fpa.load_data("shapes")
        return data.normalisation(data.test.images[:24]), data.test.labels[:24]

    def test_maps_and_classes_are_of_the_model_and_curves_of_the_judge(self, photos):
        images, _ = photos
        model, judge = fpa.load_model("shapes-none"), fpa.load_model("shapes-fpa")
        result = fpa.evaluate(model, photos, ["ig_sum", "vg_abs"], judge=judge, **QUICK)
        maps = fpa.explain(model, images, ["ig_sum", "vg_abs"], settings=QUICK["settings"])
        targets = model(images).argmax(1)
        expected = fpa.perturbation_curves(judge, images, maps, points=5, targets=targets)
        for name in maps:
            np.testing.assert_allclose(result.evaluation.mif[name], expected.mif[name], atol=1e-4)
            np.testing.assert_allclose(result.evaluation.lif[name], expected.lif[name], atol=1e-4)
        assert result.evaluation.targets.tolist() == targets.tolist()
        assert result.accuracy == float((targets == photos[1]).float().mean())
        (line,) = summary.judges(result.results)
        assert line in " ".join(str(result).split())
        assert not np.allclose(
            result.evaluation.unmasked, fpa.evaluate(model, photos, ["vg_abs"], **QUICK).evaluation.unmasked
        )

    def test_a_model_that_judges_itself_changes_nothing(self, photos):
        model = fpa.load_model("shapes-fpa")
        alone = fpa.evaluate(model, photos, ["ig_sum", "vg_abs"], **QUICK)
        judged = fpa.evaluate(
            model, photos, ["ig_sum", "vg_abs"], judge=fpa.load_model("shapes-fpa"), **QUICK
        )
        for name in alone.fidelity:
            np.testing.assert_array_equal(alone.evaluation.mif[name], judged.evaluation.mif[name])

    def test_another_judge_is_another_evaluation(self, photos, tmp_path):
        model = fpa.load_model("shapes-none")
        fpa.evaluate(model, photos, ["vg_abs"], judge=fpa.load_model("shapes-fpa"), folder=tmp_path, **QUICK)
        with pytest.raises(InputError, match="holds an evaluation of another model"):
            fpa.evaluate(model, photos, ["vg_abs"], folder=tmp_path, **QUICK)

    def test_a_judge_of_other_classes_or_images_is_refused(self, photos, tmp_path):
        model = fpa.load_model("shapes-none")
        ten = fpa.models.build_model("resnet-small", 10, (3, 32, 32))
        with pytest.raises(
            InputError, match="SmallResNet cannot judge this model: its outputs differ: 10, not 8"
        ):
            fpa.evaluate(model, photos, ["vg_abs"], judge=ten, **QUICK)
        other = fpa.load_model("shapes-fpa")
        other.card = dataclasses.replace(other.card, mean=(0.4, 0.4, 0.4))
        with pytest.raises(InputError, match=r"its means differ: \[0.4, 0.4, 0.4\], not \[0.5, 0.5, 0.5\]"):
            fpa.evaluate(model, photos, ["vg_abs"], judge=other, **QUICK)


def test_a_finished_evaluation_keeps_the_form_of_its_arithmetic(tmp_path):
    images = load_data("shapes").test.images[:4].float() / 127.5 - 1
    forms = []
    for _ in range(2):
        result = fpa.evaluate(fpa.load_model("shapes-fpa"), images, ["vg_abs"], folder=tmp_path, **QUICK)
        forms.append(result.about["made_with"]["forms"])
    assert set(forms[0]) == {"exact", "forwards", "gradients"}
    assert forms[0] == forms[1]


class Sure(nn.Module):
    """Always says class 0 of three; surer with a larger scale."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, images):
        return images.flatten(1)[:, :1] * 0 + images.new_tensor([self.scale, 0, 0])


@pytest.mark.parametrize(
    ("right", "images", "scale", "noticed"),
    [
        (0, 6, 20.0, True),
        (0, 63, 20.0, True),
        (1, 10, 3.0, True),  # 91 % sure
        (3, 6, 20.0, False),
        (0, 6, 1.0, False),  # 58 % sure: that happens once in 180 times
        (0, 2, 3.0, False),
    ],
)
def test_a_sure_model_that_is_hardly_ever_right_is_noticed(right, images, scale, noticed):
    labels = torch.ones(images, dtype=torch.long)
    labels[:right] = 0
    data = torch.randn(images, 1, 4, 4), labels
    result = fpa.evaluate(Sure(scale), data, ["random", "edges"], points=3, progress=False)
    confidence = float(result.evaluation.confidence.mean())
    if images < 30:
        improbable = stats.binom.cdf(right, images, confidence) < 0.001
        assert noticed is bool(improbable and right / images < confidence / 5)
    assert [note.kind for note in result.evaluation.facts] == [Kind.DOUBTFUL_CLASSES] * noticed
    assert (result.evaluation.doubt() is not None) is noticed
