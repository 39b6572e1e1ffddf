"""How often protocols prefer the worse map: counted pair by pair from the curves."""

from itertools import combinations

import numpy as np
import pytest

import fpa
from fpa import InputError
from fpa.evaluation.truths import asked, judged_maps
from fpa.masking import Constant
from fpa.statistics.preferences import ladder_pairs
from small_world import small_cues, untrained

NAMES = [
    "ig_sum",
    "vg_abs",
    "random",
    "true:flat",
    "true:noise-1",
    "true:noise-4",
    "true:vg",
    "true:sign_lost-1",
]


def evaluated(names, scores, protocols):
    return fpa.evaluate(
        untrained(),
        small_cues(20),
        names,
        settings=fpa.Settings(ig_steps=3),
        scores=scores,
        outputs=["centred"],
        protocols=protocols,
        points=5,
        examples=0,
        progress=False,
    )


@pytest.fixture(scope="module")
def result():
    return evaluated(NAMES, ["truth", "truth_parts"], ["1/4", "segments:30+mean"])


def counted(result, curves, side):
    """The error by loops over images and pairs."""
    evaluation = result.evaluation
    by_image = []
    for image, noise in enumerate(evaluation.image_facts["centred_noise"]):
        wrong = []
        for one, two in combinations(NAMES, 2):
            gap = evaluation.values["truth"][one][image] - evaluation.values["truth"][two][image]
            if not abs(gap) > noise:  # also where there is none
                continue
            scores = []
            for name in (one, two):
                x = [curves.fractions, curves.fractions]
                if curves.shares_mif:
                    x = [curves.shares_mif[name][image], curves.shares_lif[name][image]]
                mif = np.trapezoid(curves.mif[name][image].astype(float), x[0])
                lif = np.trapezoid(curves.lif[name][image].astype(float), x[1])
                scores.append({"A": lif - mif, "MIF": -mif, "LIF": lif}[side])
            preferred = scores[0] - scores[1]
            wrong.append(0.5 if preferred == 0 else float((preferred > 0) != (gap > 0)))
        if wrong:
            by_image.append(np.mean(wrong))
    return np.mean(by_image)


@pytest.mark.parametrize("side", ["A", "MIF", "LIF"])
def test_errors_are_those_of_loops(result, side):
    found = judged_maps(result).errors()
    evaluation = result.evaluation
    for protocol, curves in {"pixels": evaluation, **evaluation.under}.items():
        assert found.errors[asked(protocol, side)] == pytest.approx(counted(result, curves, side), abs=1e-12)


def test_ladders_and_signs_of_maps(result):
    maps = judged_maps(result)
    pairs = ladder_pairs(maps.ladders).tolist()
    named = [(maps.names[one], maps.names[two]) for one, two in pairs]
    assert named == [
        ("true:flat", "true:noise-1"),
        ("true:flat", "true:noise-4"),
        ("true:flat", "true:sign_lost-1"),
        ("true:noise-1", "true:noise-4"),
    ]
    unsigned = {name for name, signed in zip(maps.names, maps.signed, strict=True) if not signed}
    assert unsigned == {"vg_abs", "random", "true:sign_lost-1"}


def test_truth_of_parts_has_no_noise(result):
    assert not judged_maps(result, "truth_parts").noise.any()


def test_a_protocol_that_is_called_like_the_plans_own_is_judged_beside_it():
    patches = {"pixels": fpa.Protocol("1/4", Constant())}
    found = evaluated(["vg_abs", "true:flat"], ["truth"], patches)
    maps = judged_maps(found)
    own, further = found.by_protocol
    both = (own, further)
    assert maps.scores.keys() == {asked(name, side) for name in both for side in ("A", "MIF", "LIF")}
    mif = found.evaluation.mif["vg_abs"].astype(float)
    lif = found.evaluation.lif["vg_abs"].astype(float)
    expected = 100 * np.trapezoid(lif - mif, found.evaluation.fractions)
    np.testing.assert_allclose(maps.scores[asked(own, "A")][:, maps.names.index("vg_abs")], expected)


def test_truth_of_log_odds_has_the_noise_of_their_effects():
    found = evaluated(["vg_abs", "true:flat"], ["truth_log_odds"], [])
    noise = judged_maps(found, "truth_log_odds").noise
    np.testing.assert_array_equal(noise, found.evaluation.image_facts["log_odds_noise"])


def test_a_result_without_truth_is_refused(result):
    with pytest.raises(InputError, match="has no score truth_cues"):
        judged_maps(result, "truth_cues")
