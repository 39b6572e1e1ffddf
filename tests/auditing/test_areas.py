"""The values that an audit leaves of every image: those of its curves, and enough to judge it again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.auditing.areas import read_areas, write_areas
from fpa.auditing.rule import Evidence, judge
from fpa.errors import DamagedError
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.result import Result
from fpa.explanation import Settings
from fpa.notes import Kind

MEASURED = (
    "images", "used", "small", "accuracy", "labels", "chance", "change", "most_masked", "signed", "unsigned",
    "opposite", "contradictions", "correlation", "kept", "output",
)  # fmt: skip


class Classifier(nn.Module):
    """Two classes from a sum of pixels; the mean of their logits is not 0."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weights = nn.Parameter(1 + torch.randn(1, 8, 8, generator=generator))

    def forward(self, images):
        first = torch.tanh((images * self.weights).sum((1, 2, 3)) / 40) * 40
        return torch.stack([first, first / 3 - 1], 1)


@pytest.fixture(scope="module")
def audit():
    generator = torch.Generator().manual_seed(0)
    images = 1 + 0.5 * torch.randn(110, 1, 8, 8, generator=generator)
    images[3] = float("nan")  # cannot be used
    images[5] = 0.001  # its output is next to nothing: measured, not judged
    labels = torch.arange(110) % 2
    labels[:7] = -1
    quick = Settings(ig_steps=4, sg_samples=2)
    return fpa.audit(
        Classifier(), (images, labels), settings=quick, points=5, maskings=["constant"], progress=False
    )


def test_areas_are_those_under_the_curves_and_the_output_kept_is_that_of_random_masking(audit, tmp_path):
    stored = read_areas(audit.save_areas(tmp_path / "new" / "areas.parquet"))
    followed = {"centred": audit.result.evaluation, **audit.result.evaluation.others}
    assert list(stored.outputs) == ["centred", "logit"]
    for output, found in stored.outputs.items():
        curves = followed[output]
        fractions = curves.fractions
        assert list(found.areas) == list(curves.mif)
        np.testing.assert_allclose(found.unmasked, curves.unmasked, rtol=1e-6)
        for name, areas in found.areas.items():
            assert np.flatnonzero(~areas.kept).tolist() == [3]
            for side, stored_areas in (("mif", areas.mif_areas), ("lif", areas.lif_areas)):
                values = getattr(curves, side)[name].astype(np.float64) / curves.unmasked[:, None]
                steps = np.diff(fractions)
                by_hand = 100 * ((values[:, 1:] + values[:, :-1]) / 2 * steps).sum(axis=1)
                np.testing.assert_allclose(stored_areas, by_hand, rtol=1e-6, atol=1e-3)
        assert list(found.masked) == [10, 25, 50, 100]
        for share, masked in found.masked.items():
            for image in (0, 1, 109):
                draws = curves.mif["random"][image], curves.lif["random"][image]
                two = [np.interp(share / 100, fractions, draw) for draw in draws]
                assert masked[image] == pytest.approx(sum(two) / 2, rel=1e-5)


def test_an_image_with_an_output_next_to_0_is_measured_but_not_judged(audit, tmp_path):
    """Its areas can be many times those of the others, and one such image would carry their means."""
    evidence = audit.evidence
    assert (evidence.images, evidence.used, evidence.small) == (110, 108, 1)
    assert [note.values["small"] for note in audit.reasons if note.kind is Kind.SMALL_NOT_JUDGED] == [1]
    for fidelity in audit.result.fidelity.values():
        assert np.flatnonzero(~fidelity.kept).tolist() == [3, 5]
    stored = read_areas(audit.save_areas(tmp_path / "areas.parquet")).outputs["centred"]
    assert np.isfinite(stored.areas["ig_sum"].mif_areas[5])
    assert np.flatnonzero(~stored.usable).tolist() == [3, 5]


@pytest.mark.parametrize("output", ["centred", "logit"])
def test_what_is_stored_is_judged_like_the_audit(audit, tmp_path, output):
    stored = read_areas(audit.save_areas(tmp_path / "areas.parquet"))
    judged = audit.evidence if output == "centred" else audit.evidence.raw
    again = stored.evidence(output)
    assert isinstance(again, Evidence)
    assert judge(again)[0] == judge(judged)[0]
    for name in MEASURED:
        before, now = getattr(judged, name), getattr(again, name)
        if name == "kept":
            assert now.keys() == before.keys()
            for share in now:
                np.testing.assert_allclose(now[share], before[share], rtol=1e-5)
        elif isinstance(before, tuple):
            np.testing.assert_allclose(now, before, rtol=1e-5)
        else:
            assert now == before, name


def test_too_few_images_leave_no_areas_and_no_verdict(audit, tmp_path):
    evaluation = audit.result.evaluation
    negative = replace(evaluation, unmasked=-np.abs(evaluation.unmasked), others={})
    result = Result.unscored("model", negative, audit.result.description)
    stored = read_areas(write_areas(tmp_path / "areas.parquet", result, name="a model"))
    assert stored.name == "a model"
    assert stored.outputs["centred"].areas == {}
    assert (stored.evidence().used, stored.evidence().opposite) == (0, None)
    assert judge(stored.evidence())[0] == "cannot tell"


def test_2000_images_take_less_than_half_a_megabyte_and_damage_is_found(audit, tmp_path):
    drawn = np.random.default_rng(0)
    plan = audit.result.description.plan
    paper = [name for name in plan.estimators if name == "random" or name in plan.signed]
    points = len(plan.fractions)

    def curves():
        walks = drawn.normal(10, 3, (2000, points)).astype(np.float32)
        walks[:, 0] = 12
        return {name: walks + drawn.normal(0, 1, (2000, points)) * (np.arange(points) > 0) for name in paper}

    def evaluation(**others):
        return Evaluation(
            fractions=np.array(plan.fractions),
            indices=drawn.permutation(10_000)[:2000],
            labels=drawn.integers(0, 10, 2000),
            targets=drawn.integers(0, 10, 2000),
            unmasked=np.full(2000, 12.0),
            mif=curves(),
            lif=curves(),
            others=others,
        )

    result = Result.unscored("model", evaluation(logit=evaluation()), audit.result.description)
    path = write_areas(tmp_path / "areas.parquet", result)
    assert len(paper) == 10
    assert path.stat().st_size < 500_000
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"areas\.parquet"):
        read_areas(path)
