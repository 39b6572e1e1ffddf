"""How often protocols prefer the worse map: counted pair by pair from the curves."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import fpa
from fpa import InputError
from fpa.evaluation.truths import FEWEST_CUES, asked, error_change, judged_maps, truth_errors
from fpa.masking import Constant
from fpa.show.words import clause
from fpa.statistics.preferences import ladder_pairs
from fpa.worlds.truth import FEWEST
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


def test_an_error_is_the_mean_over_images_with_its_interval(result):
    found = truth_errors(result)
    assert list(found.errors) == ["pixels", "1/4", "segments:30+mean"]
    maps = judged_maps(result).errors()
    for protocol in found.errors:
        for side in ("A", "MIF", "LIF"):
            by_image = maps.by_image[asked(protocol, side)]
            known = by_image[~np.isnan(by_image)]
            value, interval = found.errors[protocol][side]
            assert value == pytest.approx(known.mean())
            expected = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known))
            assert interval == pytest.approx(expected)
    assert (found.pairs, found.close, found.missing) == (maps.pairs, maps.close, maps.missing)


def test_what_has_no_truth_is_counted_by_its_reason(result):
    evaluation = result.evaluation
    cues = evaluation.image_facts["cues"]
    few = int((cues < FEWEST_CUES).sum())
    whole = truth_errors(result)
    assert FEWEST_CUES == FEWEST
    assert (whole.images, whole.few_cues, whole.ignored) == (20, few, 0)
    assert whole.wrong == (evaluation.labels != evaluation.targets).sum()
    assert not whole.not_finite
    assert not whole.zero
    assert not whole.notes

    enough = np.flatnonzero(cues >= FEWEST_CUES)
    truths = {name: values.copy() for name, values in evaluation.values["truth"].items()}
    mif = {name: values.copy() for name, values in evaluation.mif.items()}
    truths["vg_abs"][enough[:2]] = np.nan  # a map of zeros has curves
    truths["ig_sum"][enough[2]] = np.nan  # one that is not finite has none
    mif["ig_sum"][enough[2]] = np.nan
    for values in truths.values():
        values[enough[3]] = np.nan  # a model that ignores the whole scene
    changed = replace(evaluation, values={**evaluation.values, "truth": truths}, mif=mif)
    found = truth_errors(replace(result, evaluation=changed))
    assert (found.zero, found.not_finite, found.ignored) == ({"vg_abs": 2}, {"ig_sum": 1}, 1)
    assert found.few_cues == few
    assert found.missing > whole.missing
    words = [clause(note) for note in found.notes]
    assert words == [
        "maps without truth, as they are not finite: 1 by ig_sum",
        "maps without truth, as they are 0 wherever something has an effect: 2 by vg_abs",
    ]


def test_two_models_are_compared_image_by_image(result):
    found = truth_errors(result)
    shares = {side: values * 0.5 for side, values in found.by_image["pixels"].items()}
    better = replace(found, by_image={"pixels": shares})
    change = error_change(found, better, "pixels")
    assert change.value == pytest.approx(found.errors["pixels"]["A"].value / 2)
    assert change.interval == pytest.approx(found.errors["pixels"]["A"].interval / 2)
    fewer = replace(found, by_image={"pixels": {"A": shares["A"][1:]}})
    with pytest.raises(InputError, match="same images, got 20 and 19"):
        error_change(found, fewer, "pixels")


def test_without_truth_there_are_no_errors(result):
    values = {"A": result.evaluation.values.get("A", {})}
    assert truth_errors(replace(result, evaluation=replace(result.evaluation, values=values))) is None
