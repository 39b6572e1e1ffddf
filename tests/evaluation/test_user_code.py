"""Edit and run again: what is stored was made by the code that would continue it, or it is not continued."""

import functools
import importlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.cli.main import main
from fpa.engine.outputs import OUTPUTS
from fpa.evaluation.description import Origin
from fpa.explanation import IntegratedGradients, SmoothGrad, from_quantus
from own_modules import edit, forget

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
QUICK = {"points": 3, "examples": 0, "progress": False}

FILES = {
    "my_estimator": '''
from my_tools import turned


def mine(model, images, targets):
    return turned(images)
''',
    "my_tools": '''
def turned(images):
    return 2 * images
''',
    "my_masking": '''
from fpa.masking import Masking


class Grey(Masking):
    def __init__(self, value=0.5):
        self.value = value
        self.calls = 0

    def __call__(self, images, mask, noise=None):
        self.calls += 1
        return images.masked_fill(mask[:, None], self.value)
''',
    "my_score": '''
from fpa.scores import Score


class Half(Score):
    name = "half"
    title = "the curve in the middle"
    source = "here"
    higher_is_better = False

    def __call__(self, block):
        curves = block.curves[block.output].mif
        return {name: each[:, each.shape[1] // 2] for name, each in curves.items()}
''',
    "my_output": '''
from fpa.engine.outputs import output


@output()
def squared(logits, targets, labels):
    return logits.gather(1, targets[:, None])[:, 0] ** 2
''',
    "my_model": '''
import torch
from torch import nn
import my_output


class Net(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.body = nn.Linear(3 * side * side, 8)

    def forward(self, images):
        return self.body(images.flatten(1))


def small():
    torch.manual_seed(0)
    return Net(8)


def large():
    torch.manual_seed(0)
    return Net(32)


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.Softplus(beta=1))
''',
}  # fmt: skip
"""A file for each kind of code."""

EDITS = {
    "estimator": ("my_estimator", "turned(images)", "-turned(images)"),
    "helper of the estimator": ("my_tools", "2 * images", "-2 * images"),
    "masking": ("my_masking", "self.value)", "2 * self.value)"),
    "score": ("my_score", "// 2]", "// 3]"),
    "output": ("my_output", "** 2", "** 4"),
    "model": ("my_model", "return self.body(images.flatten(1))", "return 2 * self.body(images.flatten(1))"),
}
"""By kind: the file, what is in it, and what takes its place."""

SAID = {"masking": "the masking", "score": "half", "output": "squared and the model", "model": "the model"}
"""What is said to have changed; the model imports the output."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with all files; `edit` changes some and forgets all modules, as a new process would have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one size and second look alike
    for name, text in FILES.items():
        Path(f"{name}.py").write_text(text)
    yield tmp_path
    forget(FILES)
    OUTPUTS.pop("squared", None)


def loaded(monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    return [importlib.import_module(name) for name in FILES]


def evaluate(monkeypatch, folder="stored", **changed):
    """All kinds of code at once, imported anew."""
    estimator, _, masking, score, _, model = loaded(monkeypatch)
    given = {
        "model": model.small(),
        "data": IMAGES,
        "estimators": {"mine": estimator.mine, "vg_abs": "vg_abs"},
        "masking": masking.Grey(),
        "scores": ["A", score.Half()],
        "outputs": ["squared", "logit"],
        **QUICK,
    }
    return fpa.evaluate(**given | changed, folder=folder)


def stored(folder="stored"):
    """The blocks, and when they were written: what is continued is not computed again."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path(folder).rglob("*.parquet")}


def test_every_kind_of_code_is_refused_when_it_was_edited(here, monkeypatch):
    first = evaluate(monkeypatch)
    before = stored()
    code = first.plan["code"]
    assert set(code) == {"estimators", "masking", "scores", "outputs", "networks"}
    assert set(code["estimators"]) == {"mine"}
    for kind, (file, old, new) in EDITS.items():
        edit(file, old, new)
        changed = f"the code of {SAID.get(kind, 'mine')} has changed"
        with pytest.raises(fpa.InputError, match=rf"stored holds an evaluation with other code .*{changed}"):
            evaluate(monkeypatch)
        assert stored() == before
        edit(file, new, old)
    for file in FILES:
        edit(file, FILES[file], f'"""Says what it is."""\n{FILES[file]}\n# the end\n')
    again = evaluate(monkeypatch)
    assert again.plan == first.plan
    assert stored() == before


def test_a_reload_in_one_process_counts(here, monkeypatch):
    first = evaluate(monkeypatch)
    tools = sys.modules["my_tools"]
    Path("my_tools.py").write_text(FILES["my_tools"].replace("2 *", "-2 *"))
    evaluate(monkeypatch)  # not loaded yet: the code is the one that was stored
    importlib.reload(tools)
    importlib.reload(sys.modules["my_estimator"])
    with pytest.raises(fpa.InputError, match="the code of mine has changed"):
        evaluate(monkeypatch)
    turned = evaluate(monkeypatch, folder="other")
    # The other order of the same pixels: what was removed first is removed last.
    lif, mif = (each.evaluation.values["A"]["mine"] for each in (first, turned))
    np.testing.assert_allclose(lif, -mif, rtol=1e-4, atol=1e-5)


SHAPES = (
    "--data", "shapes", "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5", "--count", "4", "--points", "3",
    "--device", "cpu", "--quiet",
)  # fmt: skip
OWN = (
    "--estimators", "my_estimator:mine,vg_abs", "--masking", "my_masking:Grey", "--scores", "my_score:Half",
    "--outputs", "squared,logit", "--examples", "0",
)  # fmt: skip


def run(capsys, *more):
    forget(FILES)
    code = main(["evaluate", "--model", "my_model:large", *SHAPES, *OWN, *more])
    return code, capsys.readouterr().err


def test_the_command_refuses_every_kind_of_code_that_was_edited(here, capsys):
    assert run(capsys) == (0, "")
    (folder,) = Path("runs").iterdir()
    before = stored(folder)
    for kind, (file, old, new) in EDITS.items():
        edit(file, old, new)
        code, said = run(capsys)
        name = SAID.get(kind, "my_estimator:mine")
        assert code == 2
        assert f"the code of {name} has changed" in said
        assert "--output" in said
        assert "--overwrite" in said
        edit(file, new, old)
    for file in FILES:
        edit(file, FILES[file], f"# a comment\n{FILES[file]}")
    assert run(capsys) == (0, "")
    assert stored(folder) == before
    edit("my_tools", "2 * images", "-2 * images")
    assert run(capsys, "--output", "turned") == (0, "")
    both = [fpa.load_result(each).evaluation.values["A"] for each in (folder, "turned")]
    here, there = (each["my_estimator:mine"] for each in both)
    assert np.array_equal(np.sign(here), -np.sign(there))  # but for ties, the opposite order
    assert run(capsys, "--overwrite") == (0, "")
    assert stored(folder) != before


def test_a_function_that_makes_a_model_of_ready_layers_counts(here, capsys):
    plain = ("--estimators", "vg_abs,ig_sum", "--ig_steps", "2", "--output", "layers", "--examples", "0")

    def evaluated():
        forget(FILES)
        return main(["evaluate", "--model", "my_model:layers", *SHAPES, *plain]), capsys.readouterr().err

    assert evaluated() == (0, "")
    edit("my_model", "Softplus(beta=1)", "Softplus(beta=2)")  # neither weights nor classes tell
    code, said = evaluated()
    assert code == 2
    assert "the code of the model has changed" in said


NET = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


def refused(now, before, match):
    """What is stored with one estimator is not continued with the other, and the other way round."""
    with pytest.raises(fpa.InputError, match=match):
        fpa.evaluate(NET, IMAGES, {"mine": now, "vg_abs": "vg_abs"}, folder="stored", **QUICK)
    fpa.evaluate(NET, IMAGES, {"mine": before, "vg_abs": "vg_abs"}, folder="stored", **QUICK)


class Weighted:
    """An explanation that keeps what it saw."""

    def __init__(self, weight):
        self.weight = weight
        self.calls = 0
        self.activations = None
        self.generator = torch.Generator()

    def __call__(self, model, images, targets):
        self.calls += 1
        self.activations = model(images)
        return self.weight * images * torch.rand(1, generator=self.generator)


def closed(weight):
    return lambda model, images, targets: weight * images


def as_quantus(model, inputs, targets, weight=1):
    return weight * inputs


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Weighted, "attribute weight of mine: 2 -> 3"),
        (closed, "closure value weight of mine: 2 -> 3"),
        (lambda weight: functools.partial(closed, weight)(), "closure value weight of mine: 2 -> 3"),
        (lambda weight: functools.partial(Weighted.__call__, Weighted(weight)), "mine"),
        (lambda weight: from_quantus(as_quantus, weight=weight), "arguments.weight of mine: 2 -> 3"),
    ],
)
def test_values_of_functions_and_objects_count(tmp_path, monkeypatch, made, said):
    monkeypatch.chdir(tmp_path)
    fpa.evaluate(NET, IMAGES, {"mine": made(2), "vg_abs": "vg_abs"}, folder="stored", **QUICK)
    refused(made(3), made(2), match=rf"with other (code|estimators) \(.*{said}")


def test_an_object_counts_as_it_was_before_its_first_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weighted = Weighted(2)
    for _ in range(2):
        fpa.evaluate(NET, IMAGES, {"mine": weighted, "vg_abs": "vg_abs"}, folder="stored", **QUICK)
    assert weighted.calls > 1
    assert fpa.load_result("stored").plan["code"]["estimators"]["mine"]["attributes"]["calls"] == 0
    weighted.weight = 3
    refused(weighted, Weighted(2), match="attribute weight of mine: 2 -> 3")
    weighted.weight = 2
    bound = weighted.__call__
    fpa.evaluate(NET, IMAGES, {"mine": bound, "vg_abs": "vg_abs"}, folder="bound", **QUICK)
    fpa.evaluate(NET, IMAGES, {"mine": weighted.__call__, "vg_abs": "vg_abs"}, folder="bound", **QUICK)


def test_captums_objects_count_with_their_model_and_layer(tmp_path, monkeypatch):
    from captum.attr import LayerGradCam, Saliency

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.ReLU(), nn.Flatten(), nn.Linear(192, 4))
    torch.manual_seed(1)
    second = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.ReLU(), nn.Flatten(), nn.Linear(192, 4))
    found = [fpa.make_plan({"mine": Saliency(each)}).code["estimators"]["mine"] for each in (first, second)]
    assert found[0] != found[1]
    assert list(found[0]["packages"]) == ["captum"]
    layers = [LayerGradCam(first, first[place]) for place in (1, 2)]
    found = [fpa.make_plan({"mine": each}).code["estimators"]["mine"] for each in layers]
    assert found[0] != found[1]


class Spoken(Weighted):
    def identity(self):
        return {"version": self.version}


def test_identity_is_for_the_user_to_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, third = (Spoken(weight) for weight in (1, 2, 3))
    first.version = second.version = 1
    third.version = 2
    for each in (first, second):
        fpa.evaluate(NET, IMAGES, {"mine": each, "vg_abs": "vg_abs"}, folder="stored", **QUICK)
    refused(third, second, match="identity version of mine: 1 -> 2")
    third.version = object()
    with pytest.raises(fpa.InputError, match=r"identity\(\) of .*:Spoken must return JSON"):
        fpa.make_plan({"mine": third})


def test_scores_and_maskings_may_say_it_too(here, monkeypatch):
    for file, name in (("my_masking", "Grey(Masking)"), ("my_score", "Half(Score)")):
        edit(file, f"class {name}:\n", f"class {name}:\n    def identity(self):\n        return 1\n\n")
    first = evaluate(monkeypatch)
    assert first.plan["code"]["scores"]["half"] == {"name": "my_score:Half", "identity": 1}
    edit("my_score", "// 2]", "// 3]")
    edit("my_masking", "value=0.5", "value=0.7")
    assert evaluate(monkeypatch).plan == first.plan


@dataclass(frozen=True)
class AbsoluteSmoothGrad(SmoothGrad):
    family = "abssg"

    def each(self, gradients):
        return gradients.abs()


def test_a_family_and_a_reference_of_ones_own_count(here, monkeypatch):
    grey = loaded(monkeypatch)[2].Grey(0.5)
    sources = {"own": AbsoluteSmoothGrad(), "ours": IntegratedGradients(reference=grey)}
    engine = fpa.Engine(NET)
    plan = fpa.make_plan(sources, settings=fpa.Settings(sg_samples=7)).stored(engine)
    open_plan = fpa.make_plan(sources).stored(engine)
    assert [each.estimators["own"].raw["samples"] for each in (plan, open_plan)] == [7, 15]
    assert set(plan.code["estimators"]) == {"own", "ours"}
    edit("my_masking", "self.value)", "-self.value)")
    grey = loaded(monkeypatch)[2].Grey(0.5)
    again = fpa.make_plan(sources | {"ours": IntegratedGradients(reference=grey)}).stored(engine)
    assert again.code["estimators"]["own"] == open_plan.code["estimators"]["own"]
    assert again.code["estimators"]["ours"] != open_plan.code["estimators"]["ours"]


def test_what_was_typed_into_an_interpreter_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec("mine = lambda model, images, targets: images", namespace)
    given = {"mine": namespace["mine"], "vg_abs": "vg_abs"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = fpa.evaluate(NET, IMAGES, given, **QUICK)  # nothing is stored, so nothing is said
    with pytest.warns(UserWarning, match="what is stored cannot be continued with .*its source") as said:
        fpa.evaluate(NET, IMAGES, given, folder="stored", **QUICK)
    assert len(said) == 1
    before = stored()
    again = pytest.raises(fpa.InputError, match="stored holds blocks that cannot be continued with")
    with again, pytest.warns(UserWarning, match="cannot be continued"):
        fpa.evaluate(NET, IMAGES, given, folder="stored", **QUICK)
    assert stored() == before
    read = fpa.load_result("stored")
    np.testing.assert_array_equal(read.evaluation.mif["mine"], kept.evaluation.mif["mine"])


def test_one_stored_with_code_before_it_counted_can_be_read_but_not_continued(here, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("fpa.evaluation.plan.with_code", lambda stored, plan, engines: stored)
        first = evaluate(monkeypatch)
    assert "code" not in first.plan
    before = stored()
    with pytest.raises(fpa.InputError, match=r"the code of mine, the masking, half, .* was not stored"):
        evaluate(monkeypatch)
    assert stored() == before
    read = fpa.load_result("stored")
    np.testing.assert_array_equal(read.evaluation.mif["mine"], first.evaluation.mif["mine"])


@pytest.mark.parametrize(
    ("score", "key"),
    [
        ("insertion", "d875945c29e2808a"),
        ("infidelity", None),  # its numbers are others, so blocks of that version are not continued
    ],
)
def test_a_plan_without_user_code_is_what_it_was(score, key):
    plan = fpa.make_plan(
        ["ig_sum", "vg_abs~", "random", "cam:gradcam"],
        settings=fpa.Settings(ig_steps=5, reference=torch.zeros(3, 1, 1)),
        masking=fpa.masking.Blur(2.0),
        maskings={"mean": "mean"},
        points=3,
        scores=["A", "deletion", score],
        outputs=["margin"],
    )
    told = plan.stored(fpa.Engine(NET))
    # as version 0.1.0 marks its blocks
    assert Origin(told, "x").key == key if key else Origin(told, "x").key != "f5a056ef68a262c4"
