"""Evaluations and audits that leave tokens out: the same curves, what they say, and what they refuse."""

import json

import pytest
import torch
from torchvision.models import resnet18

import fpa
from fpa.cli.main import main
from fpa.errors import InputError
from fpa.evaluation.loop import suited
from fpa.evaluation.plan import make_plan
from fpa.notes import Kind
from fpa.perturbation import perturbation_curves
from miniatures import write_class_folder
from transformers_by_hand import CLASSES, PATCH, SIDE, some_images, timm_vit, torchvision_vit

HOW = {"points": 5, "ig_steps": 3, "sg_samples": 2, "progress": False, "features": PATCH}


def labels(count):
    return torch.arange(count) % CLASSES


def evaluated(net, images, estimators=("ig_sum", "vg_abs"), **options):
    return fpa.evaluate(net, (images, labels(len(images))), list(estimators), **(HOW | options))


def test_an_evaluation_has_the_curves_of_its_maps_without_the_tokens():
    net = timm_vit()
    images = some_images(6)
    result = evaluated(net, images, masking="drop")
    maps = fpa.explain(net, images, ["ig_sum", "vg_abs"], settings=fpa.Settings(3, 2))
    curves = perturbation_curves(net, images, maps, masking="drop", features=PATCH, points=5)
    for name in maps:
        torch.testing.assert_close(torch.from_numpy(result.evaluation.mif[name]), curves.mif[name])
        torch.testing.assert_close(torch.from_numpy(result.evaluation.lif[name]), curves.lif[name])


def test_integrated_gradients_start_at_zero():
    """Nothing is filled, so there is no fully masked image to start from: the maps are those of masking 0."""
    net = timm_vit()
    images = some_images()
    ours = fpa.explain(net, images, "ig_sum", masking="drop")["ig_sum"]
    assert torch.equal(ours, fpa.explain(net, images, "ig_sum", masking="constant")["ig_sum"])


def test_the_report_says_what_is_given_and_where_explanations_start(tmp_path):
    result = evaluated(timm_vit(), some_images(6), masking="drop")
    (note,) = [note for note in result.noted if note.kind is Kind.TOKENS_LEFT_OUT]
    # 12, 8, 4 and none of 16 patches at the points after the first
    assert note.values == {"patch": PATCH, "share": 24 / 64, "class_token": True}
    page = result.report(tmp_path / "report.html").read_text()
    assert "it gets 37.5 % of the tokens of whole images" in page
    assert "Integrated gradients start from 0." in page
    assert "where explanations need a reference, as integrated gradients do, it is 0" in page


def test_a_judge_is_the_one_whose_tokens_are_left_out():
    """The maps may be those of a network that has no tokens."""
    torch.manual_seed(0)
    model = resnet18(num_classes=CLASSES).eval()
    result = evaluated(
        model, some_images(4), masking="drop", judge=torchvision_vit(), outputs=("probability",)
    )
    assert result.noted[0].values["patch"] == PATCH
    with pytest.raises(InputError, match="tokens of ResNet cannot be dropped"):
        evaluated(torchvision_vit(), some_images(4), masking="drop", judge=model)


def test_dropping_and_filling_beside_each_other():
    net = timm_vit()
    images = some_images(6)
    dropped = evaluated(net, images, masking="drop").evaluation
    both = evaluated(net, images, protocols=f"{PATCH}+drop").evaluation
    other = evaluated(net, images, masking="drop", protocols=f"{PATCH}+constant").evaluation
    for name in dropped.mif:
        assert (both.under[f"{PATCH}+drop"].mif[name] == dropped.mif[name]).all()
        assert (other.under[f"{PATCH}+constant"].mif[name] == both.mif[name]).all()
        assert (both.mif[name] != dropped.mif[name]).any()


@pytest.mark.parametrize("score", ["road", "insertion", "faithfulness_correlation", "infidelity", "sds"])
def test_scores_that_need_filled_images_are_refused_by_name(score):
    with pytest.raises(InputError, match=f"the score {score} needs filled images"):
        evaluated(timm_vit(), some_images(4), masking="drop", scores=[score])


def test_all_scores_are_those_that_need_none():
    result = evaluated(timm_vit(), some_images(4), masking="drop", scores="all", points=21)
    assert {"A", "deletion", "aopc"} <= set(result.evaluation.values)
    assert "needs filled images" in result.description.scores_left_out["road"]


def test_maskings_that_fill_are_refused_by_name_beside_dropping():
    with pytest.raises(InputError, match="beside the masking drop, mean, blur would need filled images"):
        fpa.audit(timm_vit(), some_images(4), maskings=["drop", "mean", "blur"], features=PATCH)


def test_an_audit_judges_dropping(tmp_path):
    found = fpa.audit(timm_vit(), some_images(8), maskings=["drop"], **HOW | {"points": 11})
    assert found.maskings == ("drop",)
    assert any(note.kind is Kind.TOKENS_LEFT_OUT for note in found.reasons)
    assert "it is 0" in found.report(tmp_path / "audit.html").read_text()


def test_usual_protocols_that_are_no_patches_are_left_out():
    """Patches of 8 px: a quarter of 32 px is one, an eighth is not, and pixels are none."""
    plan = make_plan(["ig_sum"], masking="drop", features=PATCH, protocols="usual")
    source = fpa.image_source(some_images(4))
    found = suited(plan, source, fpa.Engine(timm_vit()))
    left_out = {note.values["protocol"]: note.values["why"] for note in found.protocols_left_out}
    assert left_out["pixels"] == left_out["1/8"] == "no patches"
    assert "1/8+blur" in found.protocols
    assert "1/4" in found.protocols


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_class_folder(tmp_path / "photos", ["cat", "dog"], 3)
    (tmp_path / "nets_here.py").write_text(
        "from torchvision.models import resnet18, VisionTransformer\n"
        "def vit():\n"
        "    return VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=2)\n"
        "def resnet():\n"
        "    return resnet18(num_classes=2)\n"
    )
    return tmp_path


def run(capsys, model, *arguments):
    half = ("--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5", "--workers", "0", "--device", "cpu")
    images = ("--data", "folder:photos", "--size", str(SIDE), *half)
    small = (
        "--outputs",
        "probability",
        "--estimators",
        "ig_sum,vg_abs",
        "--points",
        "5",
        "--ig_steps",
        "2",
        "--output",
        "out",
    )
    code = main(["evaluate", f"nets_here:{model}", *images, *small, "--masking", "drop", *arguments])
    return code, *capsys.readouterr()


def test_the_command(here, capsys):
    code, out, err = run(capsys, "vit", "--features", "8")
    assert code == 0, err
    assert "removed patches, 8 pixels a side, are not given to the network" in out + err
    assert json.loads((here / "out" / "evaluation.json").read_text())["plan"]["masking"] == {"name": "drop"}


@pytest.mark.parametrize(
    ("model", "arguments", "sentence"),
    [
        ("resnet", ("--features", "8"), "tokens of ResNet cannot be dropped: fpa knows how for plain ViT"),
        ("vit", (), "use features of 8, 16 pixels"),
        ("vit", ("--features", "segments:20"), "use features of 8, 16 pixels"),
    ],
)
def test_one_sentence_before_the_work(here, capsys, model, arguments, sentence):
    code, _, err = run(capsys, model, *arguments)
    assert code != 0
    assert sentence in " ".join(err.split())
    assert not (here / "out").exists()
