"""Values that cannot be meant: one line says so, before any work."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.training.settings import RectangleSettings

IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
QUICK = {"points": 3, "examples": 0, "progress": False}
CARD = fpa.ModelCard("resnet-small", ["a", "b"], (3, 8, 8), (0.5,) * 3, (0.5,) * 3)


def net():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
    nn.init.constant_(layers[1].bias, 6.0)
    return layers


def areas(indices=None):
    mif = np.array([[2, 1, 0], [2, 1.5, 0], [2, 0.5, 0]])
    return fpa.Fidelity.from_curves(mif, mif + np.array([0, 0.5, 0]), [0, 0.5, 1], indices=indices)


def evaluate(data=IMAGES, estimators=("vg_abs",), **options):
    return fpa.evaluate(net(), data, list(estimators) if isinstance(estimators, tuple) else estimators,
                        **QUICK | options)  # fmt: skip


MASKS = torch.ones(60, 8, 8, dtype=torch.bool)


def in_batches():
    """A stream: nobody knows how long it is."""
    return ((images, [0] * len(images)) for images in IMAGES.split(5))


@pytest.mark.parametrize(
    ("call", "said"),
    {
        "masks": (
            lambda: evaluate(masks=torch.zeros(50, 8, 8, dtype=torch.bool), scores=["pointing_game"]),
            r"masks must be bool \[12, 8, 8\], a mask for each image, got torch.bool \[50, 8, 8\]",
        ),
        "maps": (
            lambda: evaluate(estimators={"mine": torch.rand(50, 8, 8)}),
            "estimator mine: the maps are 50, one for each image .*, but there are 12 images",
        ),
        "maps of explain": (
            lambda: fpa.explain(net(), IMAGES, {"mine": torch.rand(50, 8, 8)}),
            "estimator mine: the maps are 50, one for each image .*, but there are 12 images",
        ),
        "masks of a stream": (
            lambda: evaluate(in_batches(), masks=MASKS[:50], scores=["pointing_game"]),
            "masks must be one for each image: there are 50 for 12 images",
        ),
        "maps of a stream": (
            lambda: evaluate(in_batches(), {"mine": torch.rand(50, 8, 8)}),
            "estimator mine: the maps are 50, one for each image .*, but there are 12 images",
        ),
        "few masks of a stream": (
            lambda: evaluate(in_batches(), masks=MASKS[:9], scores=["pointing_game"]),
            "masks must be one for each image: there are 9 for at least 10 images",
        ),
        "masks of no shape": (lambda: evaluate(masks=np.float32(1)), r"masks must be bool \[12, 8, 8\]"),
        "labels": (
            lambda: evaluate((IMAGES, [0, 1, -1, -2] * 3)),
            "labels must be numbers of classes, or -1 for an unknown one; got -2 of image 3",
        ),
        "labels of a loader": (
            lambda: evaluate([(IMAGES[:6], [0] * 6), (IMAGES[6:], [0, -7, 0, 0, 0, 0])]),
            "got -7 of image 7",
        ),
        "seed of explain": (lambda: fpa.explain(net(), IMAGES, ["random"], seed=-1), "seed must be at least"),
        "seed of curves": (
            lambda: fpa.perturbation_curves(net(), IMAGES, torch.rand(12, 8, 8), seed=-1),
            "seed must be at least 0",
        ),
        "signed": (
            lambda: fpa.reliability({"a": areas(), "b": areas()}, {}),
            r"signed names none of the estimators \(a, b\)",
        ),
        "reference": (lambda: fpa.Settings(reference=True), "reference must be masked, black, .*, got True"),
        "references": (lambda: fpa.Settings(reference=torch.ones(3) > 0), "got Tensor torch.bool"),
        "reference of no float": (lambda: fpa.Settings(reference=-(10**400)), "must be a finite number"),
        "scores": (lambda: evaluate(scores=torch.tensor(3)), "scores must be .*, got"),
        "class as an estimator": (
            lambda: evaluate(estimators={"mine": type}),
            "estimator mine cannot be called: ",
        ),
        "layer as an estimator": (
            lambda: evaluate(estimators={"mine": nn.Conv2d(3, 2, 3)}),
            "estimator mine cannot be called: Conv2d.* takes 2 positional arguments but 4 were given",
        ),
        "normalise": (
            lambda: fpa.Fidelity.from_curves([[1, 0]], [[1, 0]], [0, 1], normalise=np.ones(3)),
            "unknown normalisation",
        ),
        "mean": (lambda: fpa.Normalisation((123,), (58,)), "divide those for 0..255 by 255"),
        "std": (lambda: fpa.Normalisation((0.5,), (58,)), "is for pixels in 0..1"),
        "p": (lambda: fpa.FPASettings(p=-math.inf), r"fpa.p must be a probability in \[0, 1\], got -inf"),
        "p2": (lambda: fpa.FPASettings(p2=math.nan), "fpa.p2 must be a probability"),
        "s_max": (lambda: fpa.FPASettings(s_max=0), "fpa.s_max must be at least 1"),
        "area": (lambda: RectangleSettings(area=(0.5, 0.1)), "rectangle.area must be two rising shares"),
        "aspect": (lambda: RectangleSettings(aspect=(1, math.inf)), "aspect must be two rising positive"),
        "accuracy": (
            lambda: fpa.ModelCard("resnet-small", ["a"], (3, 8, 8), (0.5,) * 3, (0.5,) * 3, accuracy=7),
            "accuracy must be a share in 0..1, got 7",
        ),
        "paired": (
            lambda: fpa.paired_test(areas([1, 2, 3]), areas([1, 2, 4])),
            "needs the same images in all, got image 3 in first, but 4 in second",
        ),
        "reliability": (
            lambda: fpa.reliability({"a": areas([0, 1, 2]), "b": areas([5, 1, 2])}, {"a": True, "b": False}),
            "needs the same images in all, got image 0 in a, but 5 in b",
        ),
        "indices": (lambda: areas([0.5, 1, 2]), r"indices must be whole numbers \[3\]"),
    }.values(),
)  # fmt: skip
def test_refused_in_one_line(call, said):
    with pytest.raises(fpa.InputError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_model_is_not_saved_with_the_card_of_another_architecture(tmp_path):
    with pytest.raises(fpa.InputError, match="does not hold weights of the architecture 'resnet-small'"):
        fpa.save_model(net(), CARD, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_results_of_other_images_are_not_compared():
    """The areas of a result know the numbers of its images; those made by hand may not."""
    first = evaluate([(IMAGES, [0] * 12, list(range(12)))])
    second = evaluate([(IMAGES, [0] * 12, list(range(100, 112)))])
    same = evaluate([(IMAGES, [0] * 12, list(range(12)))])
    with pytest.raises(fpa.InputError, match="got image 0 in first, but 100 in second"):
        fpa.paired_test(first.fidelity["vg_abs"], second.fidelity["vg_abs"])
    assert fpa.paired_test(first.fidelity["vg_abs"], same.fidelity["vg_abs"]).difference == 0
    assert fpa.paired_test(areas([1, 2, 3]), areas()).used == 3


def test_few_maps_of_many_images_and_masks_of_all_of_them_are_fine():
    few = evaluate(estimators={"mine": torch.rand(12, 8, 8)}, count=5)
    assert len(few.evaluation.indices) == 5
    masks = torch.ones(12, 8, 8, dtype=torch.bool)
    assert len(evaluate(masks=masks, scores=["pointing_game"], count=5).evaluation.indices) == 5
    for stream in ({"masks": masks}, {"masks": MASKS, "count": 7}):
        assert evaluate(in_batches(), scores=["pointing_game"], **stream).evaluation.values["pointing_game"]
    maps = fpa.explain(net(), IMAGES[:2], {"mine": torch.arange(12.0).expand(8, 8, 12).T}, indices=[7, 3])
    assert maps["mine"].mean((1, 2)).tolist() == [7, 3]
    assert evaluate(estimators=("random",)).fidelity  # no explanation at all, so none is signed or not
