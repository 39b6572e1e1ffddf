"""Segments of each image as features, against label maps that scikit-image makes here."""

import sys

import numpy as np
import pytest
import torch

import fpa
from fpa.errors import InputError
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.shards import read_evaluation
from fpa.perturbation import features_of, ranks
from fpa.show import summary

segmentation = pytest.importorskip("skimage.segmentation")

NAMES = ["vg_abs", "vgx_sum", "random"]


@pytest.fixture(scope="module")
def images():
    data = fpa.load_data("shapes")
    chosen = data.normalisation(data.test.images[:5])
    chosen[3] = 0.5  # one colour: all its segments are alike
    return chosen


@pytest.fixture(scope="module")
def labels(images):
    """SLIC of the colours of each image, scaled to 0..1."""
    found = []
    for image in images.double().permute(0, 2, 3, 1).numpy():
        spread = image.max() - image.min()
        unit = (image - image.min()) / (spread or 1)
        found.append(segmentation.slic(unit, 30, start_label=0))
    return torch.from_numpy(np.stack(found))


@pytest.fixture(scope="module")
def result(images, tmp_path_factory):
    how = {"features": "segments:30", "points": 5, "scores": ["A", "insertion"], "progress": False}
    folder = tmp_path_factory.mktemp("segments") / "stored"
    return fpa.evaluate(fpa.load_model("shapes-fpa"), images, NAMES, folder=folder, **how)


def test_an_evaluation_removes_the_segments_of_each_image(images, labels, result):
    assert labels.flatten(1).amax(1).unique().numel() > 1  # images differ in the number of segments
    model = fpa.load_model("shapes-fpa")
    maps = fpa.explain(model, images, NAMES)
    curves = fpa.perturbation_curves(model, images, maps, features=labels, points=5)
    evaluation = result.evaluation
    for name in NAMES:
        for side in ("mif", "lif"):
            np.testing.assert_allclose(
                getattr(evaluation, side)[name], getattr(curves, side)[name], rtol=1e-4, atol=1e-4
            )
            stored = getattr(evaluation, f"shares_{side}")[name]
            np.testing.assert_allclose(stored, getattr(curves, f"shares_{side}")[name])
    assert evaluation.fractions.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_segments_do_not_depend_on_the_other_images_of_a_block(images, result, tmp_path):
    engine, plan = (
        fpa.Engine(fpa.load_model("shapes-fpa")),
        fpa.make_plan(NAMES, features="segments:30", points=5),
    )
    subject = SubjectFacts(name="alone")
    evaluate_blocks(
        engine, fpa.image_source(images), plan, tmp_path, block_size=1, subject=subject, progress=False
    )
    alone, _ = read_evaluation(tmp_path)
    for name in NAMES:
        np.testing.assert_allclose(alone.lif[name], result.evaluation.lif[name], rtol=1e-4, atol=1e-4)


def test_examples_report_and_table_show_segments(labels, result, tmp_path):
    for row, index in enumerate(result.examples.indices):
        places = result.examples.ranks["vg_abs"][row]
        for segment in labels[index].unique():
            assert len(np.unique(places[labels[index] == segment])) == 1
    page = result.report(tmp_path / "report.html").read_text()
    (line,) = summary.removed(result.results)
    assert "30 segments" in line
    assert line in page
    assert '"unit":"segments"' in page
    assert result.plan["features"] == "segments:30"
    assert result.plan["segmentation"].startswith("scikit-image ")


def test_images_without_colours_have_segments_too():
    grey = torch.linspace(-1, 1, 32).expand(2, 1, 32, 32)
    assert (features_of("segments", grey).counts > 10).all()


def test_some_of_the_images_keep_their_segments(images):
    every = features_of("segments:30", images)
    some = every.at([4, 1])
    assert torch.equal(some.labels, every.labels[[4, 1]])
    assert some.counts.tolist() == every.counts[[4, 1]].tolist()


@pytest.mark.parametrize(
    ("features", "said"),
    [("segments:1", "the number of segments must be at least 2"), ("segments:few", "features must be")],
)
def test_numbers_of_segments_that_mean_nothing(features, said):
    with pytest.raises(InputError, match=said):
        fpa.make_plan(features=features)


def test_maps_alone_have_no_segments_and_the_package_is_named(monkeypatch):
    with pytest.raises(InputError, match="segments are found in images, not in maps"):
        ranks(torch.zeros(1, 8, 8), features="segments")
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(InputError, match=r"segments need scikit-image: pip install 'fpa\[segments\]'"):
        features_of("segments", torch.zeros(1, 3, 8, 8))
