"""The proofs of research/worlds.py in short: on images of 16 px, with fewer to train on."""

from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.parametrize("name", ["fresh", "masked"])
def test_left_out_cues_leave_no_trace_and_masked_ones_do(research, name):
    world = Cues(size=16)
    make = research.PROOFS[name][1]
    found = research.told_apart(make(world, 1, 600), make(world, 2, 1200), epochs=8)
    if name == "fresh":
        assert found.images >= 2000
        assert found.upper <= 0.55
    else:
        assert found.value >= 0.9
