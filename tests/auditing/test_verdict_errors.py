"""How often a verdict on the contradictions is wrong: a short form of research/verdict_errors.py."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.auditing.areas import read_areas
from fpa.auditing.rule import Evidence, judge
from fpa.explanation import Settings
from fpa.notes import Kind
from fpa.scores.fidelity import Fidelity
from fpa.statistics import reliability
from fpa.statistics.intervals import Estimate
from fpa.statistics.orders import orders

SIGNED = {f"signed-{place}": True for place in range(3)} | {f"unsigned-{place}": False for place in range(6)}
KEPT = {10: Estimate(0.95, 0.94, 0.96)}
AUDITS = 40


def as_fidelity(mif, lif):
    """Straight lines that have these areas in percent."""
    lines = (np.stack([np.ones(len(side)), 2 * side / 100 - 1], axis=1) for side in (mif, lif))
    return Fidelity.from_curves(*lines, [0, 1], normalise="none")


def verdicts(means, *, images=100, correlation=0.0, skewed=False):
    """The verdicts of audits whose nine estimators have these mean areas [2, 9], in sd of their noise."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(AUDITS):
        noise = rng.normal(size=(2, 9, images))
        noise[1] = correlation * noise[0] + np.sqrt(1 - correlation**2) * noise[1]
        if skewed:
            noise = (np.exp(noise) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
        mif, lif = 50 + 5 * (np.asarray(means)[..., None] + noise)
        nine = {name: as_fidelity(mif[place], lif[place]) for place, name in enumerate(SIGNED)}
        agreement = reliability(nine, SIGNED, draws=100)
        evidence = Evidence(
            images=images, used=images, accuracy=0.9, labels=images, chance=0.1,
            change=Estimate(0.9, 0.8, 1.0), signed=3, unsigned=6,
            opposite=agreement.opposite["signed-unsigned"],
            contradictions=agreement.counts().significant, kept=KEPT,
        )  # fmt: skip
        found.append(judge(evidence)[0])
    return found


def ladder(step):
    """Signed and unsigned estimators in turn, each a step better than the next by both."""
    place = step * np.array([1, 4, 7, 0, 2, 3, 5, 6, 8])
    return [place, -place]


@pytest.mark.parametrize("correlation", [0, 0.38, 0.7])
def test_estimators_that_are_equally_good_are_no_contradiction(correlation):
    assert verdicts(np.zeros((2, 9)), correlation=correlation) == ["cannot tell"] * AUDITS
    assert verdicts(np.zeros((2, 9)), correlation=correlation, skewed=True) == ["cannot tell"] * AUDITS


@pytest.mark.parametrize("correlation", [0, 0.7])
def test_estimators_that_mif_and_lif_order_alike_are_never_called_unreliable_for_being_close(correlation):
    assert "unreliable" not in verdicts(ladder(0.05), correlation=correlation)
    assert verdicts(ladder(1.0), correlation=correlation) == ["reliable"] * AUDITS


def test_where_one_false_claim_decides_it_is_rare():
    """Three pairs surely opposite, nine tied by MIF: one of these taken for opposite would be a fourth."""
    mif = [0, 0, 0, 3, 3, 3, 0, 0, 0]
    lif = [-3, 3, 3, 0, 0, 0, -9, -9, -9]
    assert verdicts([mif, lif]).count("unreliable") <= 4  # 5 % of 40 are 2; 4 are within chance
    four = [-3, -3, 3, 0, 0, 0, -9, -9, -9]
    assert verdicts([mif, four]) == ["unreliable"] * AUDITS  # six pairs


def test_a_wrong_reliable_is_rare_where_one_false_claim_decides():
    """Fourteen pairs surely agreeing, four tied by MIF: one of these taken for agreeing would be enough."""
    mif = [0, -3, -3, 0, 0, 0, 0, 3, 3]
    lif = [3, 6, 6, 0, 0, 0, 0, -3, -3]
    assert verdicts([mif, lif]).count("reliable") <= 4
    five = [-3, -3, -3, 0, 0, 0, 0, 3, 3]
    assert verdicts([five, lif]) == ["reliable"] * AUDITS


DOCS = Path(__file__).parents[2] / "docs"
AREAS = DOCS / "results/areas"
NINE = ("ig_sum", "vgx_sum", "sgx_sum", "ig_abs", "vg_abs", "vgx_abs", "sg_abs", "sgx_abs", "sqsg_sum")


@pytest.mark.parametrize("model", ["shapes-fpa", "shapes-none-tuned-model"])
def test_outputs_next_to_0_do_not_make_wrong_verdicts(model):
    """Measured areas, one image in a thousand with nine times the others', moved: one false claim decides.

    Fourteen pairs surely agree and four are tied by MIF, so that *reliable* is wrong.
    """
    found = read_areas(AREAS / f"{model}.parquet").outputs["centred"]
    means = np.array([[0, 3, 3, 0, 0, 0, 0, -3, -3], [-3, -6, -6, 0, 0, 0, 0, 3, 3]])
    left, right = (place.ravel() for place in np.meshgrid(range(3), range(3, 9), indexing="ij"))
    wrong = {}
    for told, images in (("judged", found.usable), ("all", found.measured)):
        sides = [
            [getattr(found.areas[name], side)[images] for name in NINE] for side in ("mif_areas", "lif_areas")
        ]
        areas = np.array(sides)
        moved = areas - areas.mean(axis=-1, keepdims=True) + means[..., None] * areas.std()
        rows = np.random.default_rng(0).integers(areas.shape[-1], size=(1000, 100))
        samples = np.moveaxis(moved[:, :, rows], 2, 0)
        wrong[told] = (orders(samples, left, right).bounds()[1] <= 3).mean()
    assert wrong["judged"] < 0.05 < wrong["all"]


class Homogeneous(nn.Module):
    """A ReLU network without biases: twice the image, twice the logits."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(64, 24, bias=False)
            self.last = nn.Linear(24, 3, bias=False)

    def forward(self, images):
        return self.last(torch.relu(self.first(images.flatten(1))))


def test_two_families_that_are_one_map_are_counted_once():
    """Without biases the gradient is the same all along the path from 0: IG is gradient times input."""
    images = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    how = {"settings": Settings(ig_steps=4, sg_samples=4), "points": 5, "progress": False}
    result = fpa.evaluate(Homogeneous(), images, "paper", **how)
    assert result.reliability.duplicates == {"vgx_sum": "ig_sum", "vgx_abs": "ig_abs"}
    left = result.reliability.counts().pairs
    assert f"Of 18 pairs {left} are then left" in (DOCS / "audit.md").read_text(encoding="utf-8")


def copies(of, noise, seed):
    """Nine copies of a map with noise of their own: three signed, six moved so that none is negative."""
    generator = torch.Generator().manual_seed(seed)
    spread = of.flatten(1).std(dim=1)[:, None, None]
    made = {name: of / spread + noise * torch.randn(of.shape, generator=generator) for name in SIGNED}
    return {name: map_ if SIGNED[name] else map_ - map_.amin((1, 2), True) for name, map_ in made.items()}


def test_copies_of_one_map_with_noise_are_neither_reliable_nor_unreliable():
    model = fpa.load_model("shapes-fpa")
    data = fpa.load_data("shapes")
    images = data.normalisation(data.test.images[:100])
    maps = copies(fpa.explain(model, images, ["vgx_sum"])["vgx_sum"], 0.5, seed=1)
    labelled = (images, data.test.labels[:100])
    found = fpa.audit(model, labelled, maps, maskings=["constant"], points=5, progress=False)
    assert found.evidence.pairs == 18
    assert found.evidence.opposite.value > 3  # by chance, and not surely
    assert found.evidence.contradictions == 0
    assert found.verdict == "cannot tell"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_that_are_all_near_duplicates_are_too_few_estimators(seed, tmp_path):
    images = 1 + 0.3 * torch.randn(120, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    maps = copies(images[:, 0], 0.005, seed)
    found = fpa.audit(Homogeneous(), images, maps, maskings=["constant"], points=5, progress=False)
    again = read_areas(found.save_areas(tmp_path / "areas.parquet")).evidence()
    for evidence in (found.evidence, again):
        assert evidence.pairs == 0
        assert judge(evidence)[0] == "cannot tell"
        assert Kind.TOO_FEW_ESTIMATORS in {note.kind for note in judge(evidence)[1]}
