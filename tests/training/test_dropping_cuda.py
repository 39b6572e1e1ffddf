"""Leaving tokens out on CUDA: the same curves as on the CPU, and other trainings of a study stay captured."""

import pytest
import torch

from fpa.engine import Engine, Precision
from fpa.perturbation import perturbation_curves
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from transformers_by_hand import PATCH, some_images, some_maps, timm_vit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

HOW = {"masking": "drop", "features": PATCH, "points": 5}


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_curves_on_cuda_are_those_of_the_cpu(precision, tolerance):
    net = timm_vit()
    expected = perturbation_curves(net, some_images(), some_maps(), **HOW)
    engine = Engine(net.to("cuda"), precision=Precision(precision, precision))
    found = perturbation_curves(engine, some_images(), some_maps(), **HOW)
    for ours, theirs in ((found.mif, expected.mif), (found.lif, expected.lif)):
        torch.testing.assert_close(ours["map"].cpu(), theirs["map"], rtol=tolerance, atol=tolerance)


def test_trainings_on_cuda_beside_one_that_drops_end_as_they_would_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cuda_nets.py").write_text(
        "from torchvision.models import VisionTransformer\n"
        "def vit(classes=8, channels=3):\n"
        "    return VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=classes)\n"
    )
    dropped = {"dropped": {"augmentation": "fpa", "masking": "drop", "fpa": {"p": 1.0, "p1_max": 0.875}}}

    def trained(folder, **changes):
        fields = {"model": "cuda_nets:vit", "training.epochs": 1, "training.precision": "float32"}
        recipe = load_recipe("tiny", fields | changes)
        return {each.name: each.state() for each in train(recipe, tmp_path / folder, device="cuda")}

    both = trained("both", augmentations=["none"], variants=dropped)
    alone = trained("alone", augmentations=["none"], variants={})
    single = trained("single", augmentations=[], variants=dropped)
    for name, weight in both["none"].items():
        torch.testing.assert_close(weight, alone["none"][name])
        torch.testing.assert_close(both["dropped"][name], single["dropped"][name])
    assert any(not torch.equal(both["dropped"][name], both["none"][name]) for name in both["none"])
