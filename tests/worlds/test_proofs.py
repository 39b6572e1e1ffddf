"""The proofs of research/worlds.py in short: on images of 16 px, with fewer to train on."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fpa.worlds import Cues


@pytest.fixture
def research(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "research"))
    import worlds

    return worlds


def test_auc_counts_pairs_and_its_interval_covers(research):
    generator = np.random.default_rng(0)
    first = generator.integers(0, 5, 30)
    second = generator.integers(0, 4, 20)
    pairs = [(a > b) + (a == b) / 2 for a in first for b in second]
    assert research.Auc.of(first, second).value == pytest.approx(np.mean(pairs))
    found = [research.Auc.of(generator.normal(size=60), generator.normal(size=80)) for _ in range(300)]
    assert np.mean([abs(each.value - 0.5) <= each.interval for each in found]) == pytest.approx(
        0.95, abs=0.03
    )


def test_fresh_scenes_have_the_cues_that_were_left(research):
    left_out, fresh = research.left_out_and_fresh(Cues(size=16), 3, 40)
    assert left_out.shape == fresh.shape
    assert 20 <= len(fresh) <= 40
    assert not (left_out == fresh).flatten(1).all(1).any()


def features(images):
    """[N, 11]: how many neighbours are exactly equal, and deciles of how much neighbours differ."""
    right = images[:, :, :, 1:].int()
    steps = (right - images[:, :, :, :-1].int()).abs().sum(1)
    # Backgrounds are cut off at black and white: neighbours there are equal without having been filled.
    inside = ((right > 0) & (right < 255)).all(1)
    filled = ((steps == 0) & inside).flatten(1).double().mean(1, keepdim=True)
    levels = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    deciles = steps.flatten(1).double().quantile(levels, dim=1).T / 255
    return torch.cat([filled, deciles], 1)


@pytest.mark.parametrize("name", ["fresh", "masked"])
def test_left_out_cues_leave_no_trace_and_masked_ones_do(research, name):
    """With features and a linear classifier instead of a network: what is filled has equal neighbours."""
    world = Cues(size=16)
    make = research.PROOFS[name][1]
    train = [features(images) for images in make(world, 1, 500)]
    labels = np.repeat([0, 1], [len(part) for part in train])
    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(torch.cat(train), labels)
    first, second = (classifier.decision_function(features(images)) for images in make(world, 2, 1150))
    found = research.Auc.of(second, first)
    assert found.images >= 2000
    if name == "fresh":
        assert found.upper <= 0.55
    else:
        assert found.value >= 0.95
