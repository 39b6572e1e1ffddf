"""The audit: its rule on made-up evidence, its measurements on models whose answers are known."""

import itertools
import json
import re
import shlex
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from scipy.stats import spearmanr
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import fpa
from browsers import open_page
from fpa.auditing import rule
from fpa.auditing.auditor import REMEDIES, _in_all
from fpa.auditing.rule import (
    FEWEST_IMAGES,
    LEAST_KEPT,
    Evidence,
    agreeing_by_chance,
    judge,
    most_opposite,
    stops,
)
from fpa.cli.main import main
from fpa.data.sets import load_data
from fpa.evaluation import computing
from fpa.explanation import PAPER, Label, Settings
from fpa.masking import Blur, Constant
from fpa.models.architectures import build_model
from fpa.notes import Kind, Note, Severity
from fpa.show import rivals
from fpa.show.audits import estimator_names
from fpa.show.figures import style
from fpa.show.figures.audits import areas_by_masking, audited_ranks
from fpa.show.words import sentence
from fpa.show.words.reader import output_name
from fpa.statistics.chance import opposite_by_chance
from fpa.statistics.intervals import Estimate
from studies import described

QUICK = {"settings": Settings(ig_steps=4, sg_samples=2), "points": 5, "progress": False}


@pytest.mark.parametrize(
    ("opposite", "common"),
    [("ac bc", "c"), ("ac bd", None), ("ac", None), ("", None)],
)
def test_an_estimator_that_all_pairs_in_opposite_order_have_in_common_is_named(opposite, common):
    pairs = [
        SimpleNamespace(first=first, second=second, kind=kind, opposite=first + second in opposite.split())
        for first, second, kind in (
            *((first, second, "signed-unsigned") for first in "ab" for second in "cd"),
            ("a", "b", "signed-signed"),
        )
    ]
    notes = _in_all(SimpleNamespace(pairs=pairs))
    assert [note.kind for note in notes] == ([] if common is None else [Kind.IN_ALL_OPPOSITE])
    assert all(note.values == {"estimator": common, "pairs": 2} for note in notes)


class Linear(nn.Module):
    """Logits that are linear in the pixels: class 0 is their weighted sum, class 1 a constant."""

    def __init__(self, weights, other=0.0):
        super().__init__()
        self.weights, self.other = nn.Parameter(weights), other

    def forward(self, images):
        first = (images * self.weights).sum((1, 2, 3))
        return torch.stack([first, torch.full_like(first, self.other)], 1)


class Bent(Linear):
    """The same of pixels on a wavy line: still a sum over pixels, but its nine maps differ."""

    def forward(self, images):
        return super().forward(images + 0.1 * torch.sin(6 * images))


class Fragile(Bent):
    """The same, but any pixel that is exactly 0 costs a part of the logits."""

    def forward(self, images):
        gone = (images == 0).all(1).flatten(1).double().mean(1)
        return super().forward(images) * torch.exp(-5 * gone)[:, None].to(images.dtype)


def pictures(count=120, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 1 + 0.3 * torch.randn(count, 1, size, size, generator=generator)


def weights(size=8):
    """Mostly evidence, some counter-evidence."""
    generator = torch.Generator().manual_seed(5)
    return 1 + torch.randn(1, size, size, generator=generator)


@pytest.fixture(scope="module")
def sound():
    """An audit of a sum over pixels: masking tells exactly what a pixel is worth."""
    return fpa.audit(Bent(weights()), (pictures(), torch.zeros(120, dtype=torch.int64)), **QUICK)


@pytest.fixture(scope="module")
def fragile():
    return fpa.audit(Fragile(weights()), (pictures(), torch.zeros(120, dtype=torch.int64)), **QUICK)


def evidence(**changes):
    fine = Evidence(
        images=500, used=500, accuracy=0.9, labels=500, chance=0.1, change=Estimate(0.9, 0.8, 1.0),
        signed=3, unsigned=6, opposite=Estimate(1, 0, 2), contradictions=0,
        kept={10: Estimate(0.95, 0.94, 0.96), 25: Estimate(0.8, 0.8, 0.8), 50: Estimate(0.4, 0.4, 0.4)},
    )  # fmt: skip
    return replace(fine, **changes)


def kept(*estimate):
    return {10: Estimate(*estimate)}


class TestRule:
    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ({}, "reliable"),
            ({"opposite": Estimate(16, 15, 17)}, "unreliable"),
            ({"kept": kept(0.5, 0.4, 0.6)}, "unreliable"),
            ({"opposite": Estimate(16, 15, 17), "kept": kept(0.5, 0.4, 0.6)}, "unreliable"),
            # One bad criterion is enough, even where the other cannot be told.
            ({"opposite": Estimate(16, 15, 17), "kept": kept(0.8, 0.7, 0.9)}, "unreliable"),
            # The limits themselves: 3 of 18 pairs, 80 % of the centred logit.
            ({"opposite": Estimate(3, 2, 3)}, "reliable"),
            ({"opposite": Estimate(3, 2, 4)}, "cannot tell"),
            ({"opposite": Estimate(4, 4, 5)}, "unreliable"),
            # Other numbers of pairs: a sixth of them, rounded down.
            ({"unsigned": 9, "opposite": Estimate(4, 3, 4)}, "reliable"),
            ({"unsigned": 9, "opposite": Estimate(4, 3, 5)}, "cannot tell"),
            ({"unsigned": 9, "opposite": Estimate(5, 5, 6)}, "unreliable"),
            ({"signed": 2, "opposite": Estimate(2, 1, 2)}, "reliable"),
            ({"signed": 2, "opposite": Estimate(3, 3, 3)}, "unreliable"),
            ({"kept": kept(0.82, 0.801, 0.84)}, "reliable"),
            ({"kept": kept(0.82, 0.80, 0.84)}, "cannot tell"),
            ({"kept": kept(0.79, 0.78, 0.80)}, "cannot tell"),
            ({"kept": kept(0.79, 0.78, 0.799)}, "unreliable"),
            ({"kept": kept(float("nan"), float("nan"), float("nan"))}, "cannot tell"),
            # Too little to go by, whatever the numbers say.
            ({"used": FEWEST_IMAGES}, "reliable"),
            ({"used": FEWEST_IMAGES - 1}, "cannot tell"),
            ({"used": FEWEST_IMAGES - 1, "opposite": Estimate(17, 17, 17)}, "cannot tell"),
            ({"signed": 3, "unsigned": 3, "opposite": Estimate(0, 0, 0)}, "reliable"),
            ({"signed": 1, "unsigned": 3, "opposite": Estimate(0, 0, 0)}, "cannot tell"),
            ({"used": 0, "signed": 0, "change": None, "opposite": None, "kept": {}}, "cannot tell"),
            # Nothing to explain.
            ({"accuracy": 0.1, "labels": 500}, "cannot tell"),
            ({"accuracy": 0.12, "labels": 500}, "cannot tell"),
            ({"accuracy": 0.14, "labels": 500}, "reliable"),
            ({"accuracy": None, "labels": 0, "chance": None}, "reliable"),
            ({"accuracy": 0.6, "chance": 0.6}, "cannot tell"),  # always the commonest label
            ({"accuracy": 0.1, "chance": None}, "reliable"),  # labels of one class say nothing
            ({"change": Estimate(0.2, 0.1, 0.3)}, "cannot tell"),
            ({"change": Estimate(0.2, 0.11, 0.3)}, "reliable"),
            ({"change": Estimate(-0.9, -1, -0.8)}, "cannot tell"),
        ],
    )
    def test_follows_from_the_evidence(self, changes, verdict):
        assert judge(evidence(**changes))[0] == verdict

    def test_thresholds_are_those_of_the_documentation(self):
        page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
        row = r"\| `{}` \| ([^|]+?) \|"
        told = {
            name: re.search(row.format(name), page)[1]
            for name in (
                "FEWEST_IMAGES",
                "ERROR_RATE",
                "OPPOSITE_SHARE",
                "BY_CHANCE",
                "LEAST_KEPT",
                "LEAST_CHANGE",
            )
        }
        assert told == {name: f"{getattr(rule, name):g}" for name in told}

    @pytest.mark.parametrize(("signed", "unsigned"), [(1, 2), (2, 2), (2, 3)])
    def test_agreement_by_chance_is_that_of_all_pairs_of_rankings(self, signed, unsigned):
        """Counted over all orders of a few estimators, those by MIF against those by LIF."""
        orders, counts = list(itertools.permutations(range(signed + unsigned))), []
        for by_mif, by_lif in itertools.product(orders, orders):
            pairs = itertools.product(range(signed), range(signed, signed + unsigned))
            counts.append(sum((by_mif[i] < by_mif[j]) != (by_lif[i] < by_lif[j]) for i, j in pairs))
        exact = np.cumsum(np.bincount(counts)) / len(counts)
        np.testing.assert_allclose(opposite_by_chance(signed, unsigned), exact, atol=0.005)
        rate = agreeing_by_chance(signed, unsigned)
        assert rate == pytest.approx(exact[signed * unsigned // 6], abs=0.005)
        # With all estimators in two points, each ranking puts one of the two first: they agree half the time.
        far = agreeing_by_chance(signed, unsigned, group_effect=1e6)
        assert far == pytest.approx(0.5, abs=0.01)

    @pytest.mark.parametrize(("pairs", "allowed"), [(18, 3), (17, 2), (12, 2), (9, 1), (5, 0), (27, 4)])
    def test_a_sixth_of_the_pairs_may_be_in_opposite_order(self, pairs, allowed):
        assert most_opposite(pairs) == allowed

    def test_what_no_number_of_images_excludes_stands_beside_a_good_verdict(self):
        told = [note for note in judge(evidence())[1] if note.kind is Kind.AGREEING_BY_CHANCE]
        assert [note.values["alike"] for note in told] == [pytest.approx(0.024, abs=0.001)]
        assert [note.values["groups"] for note in told] == [pytest.approx(0.30, abs=0.01)]
        bad = judge(evidence(opposite=Estimate(16, 15, 17)))[1]
        assert Kind.AGREEING_BY_CHANCE not in [note.kind for note in bad]

    def test_says_why(self):
        pairs, kept = judge(evidence(opposite=Estimate(16, 15, 17), contradictions=14))[1]
        assert (pairs.kind, pairs.severity) == (Kind.OPPOSITE_PAIRS, Severity.WARNING)
        assert pairs.values == {"opposite": (16, 15, 17), "pairs": 18, "allowed": 3, "side": "above"}
        assert (kept.kind, kept.severity) == (Kind.OUTPUT_KEPT, Severity.INFO)
        assert kept.values == {
            "output": "centred", "masked": 10, "kept": (0.95, 0.94, 0.96), "side": "above", "limit": 0.8,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("changes", "kind", "values"),
        [
            ({"accuracy": 0.1}, Kind.NOT_ABOVE_CHANCE, {"accuracy": 0.1, "labels": 500, "chance": 0.1}),
            (
                {"change": Estimate(0.05, 0.02, 0.08)},
                Kind.LITTLE_CHANGE,
                {"output": "centred", "change": (0.05, 0.02, 0.08), "needed": 0.1, "masked": 1.0},
            ),
            ({"used": 80}, Kind.TOO_FEW_IMAGES, {"images": 500, "used": 80, "needed": 100}),
        ],
    )
    def test_says_first_why_there_is_no_verdict(self, changes, kind, values):
        assert judge(evidence(**changes))[1][0] == Note(kind, Severity.BLOCKING, values)

    def test_says_last_that_the_accuracy_was_not_compared(self):
        last = judge(evidence(chance=None))[1][-1]
        assert last == Note(Kind.CHANCE_UNKNOWN, Severity.INFO, {"labels": 500})

    def test_every_reason_to_give_no_verdict_has_a_remedy(self):
        few = evidence(accuracy=0.1, change=Estimate(0, 0, 0), used=5, signed=1, unsigned=1)
        assert [note.kind for note in stops(few)] == list(REMEDIES)


class TestMeasurement:
    def test_a_sum_over_pixels_keeps_what_is_not_masked(self, sound):
        for percent, found in sound.evidence.kept.items():
            assert found.value == pytest.approx(1 - percent / 100, abs=0.02)
            assert found.low <= found.value <= found.high
        assert sound.verdict == "reliable"
        assert sound.exit_code == 0
        assert sound.evidence.opposite.value == 0

    def test_a_model_that_masking_as_such_hurts_is_unreliable(self, fragile):
        for percent, found in fragile.evidence.kept.items():
            gone = percent / 100
            assert found.value == pytest.approx((1 - gone) * np.exp(-5 * gone), abs=0.03)
        assert fragile.verdict == "unreliable"
        assert fragile.exit_code == 3

    def test_accuracy_falls_where_the_other_class_wins(self):
        # On images of ones class 0 has 1 - share of the pixels masked, class 1 always 0.6.
        model = Linear(torch.full((1, 8, 8), 1 / 64), other=0.6)
        labels = torch.tensor([0] * 15 + [1] * 5)
        found = fpa.audit(model, (torch.ones(20, 1, 8, 8), labels), maskings=["constant"], **QUICK)
        assert {percent: value.value for percent, value in found.evidence.right.items()} == {
            0: 0.75, 10: 0.75, 25: 0.75, 50: 0.25,
        }  # fmt: skip
        without = fpa.audit(model, torch.ones(20, 1, 8, 8), maskings=["constant"], **QUICK).evidence
        assert without.accuracy is None
        assert {percent: value.value for percent, value in without.right.items()} == {
            0: 1.0, 10: 1.0, 25: 1.0, 50: 0.0,
        }  # fmt: skip

    def test_accuracy_is_that_of_the_labelled_images(self, tmp_path):
        # As above, with labels that are wrong for all of the few images that have one.
        model = Linear(torch.full((1, 8, 8), 1 / 64), other=0.6)
        labels = torch.tensor([1] * 5 + [-1] * 15)
        found = fpa.audit(model, (torch.ones(20, 1, 8, 8), labels), maskings=["constant"], **QUICK)
        assert found.evidence.accuracy == 0
        assert {percent: value.value for percent, value in found.evidence.right.items()} == {
            0: 0.0, 10: 0.0, 25: 0.0, 50: 1.0,
        }  # fmt: skip
        labels[1:] = -1
        single = fpa.audit(model, (torch.ones(20, 1, 8, 8), labels), maskings=["constant"], **QUICK)
        assert (single.evidence.accuracy, single.evidence.right) == (0, {})
        assert "<svg" in single.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        assert not any("accuracy" in row.what for row in single.rows)

    def test_lif_rises_by_the_counter_evidence_it_removes(self, sound):
        linear = fpa.audit(Linear(weights()), pictures(), maskings=["constant"], **QUICK)
        scores = (pictures() * weights()).flatten(1).double()
        total, ordered = scores.sum(1), scores.sort(1).values
        # The only point up to 10 % of a curve of 5 points, between those with 6 and 16 pixels removed.
        left = [(total - ordered[:, :removed].sum(1)).mean().item() for removed in (6, 16)]
        expected = np.interp(0.1, [6 / 64, 16 / 64], left) / total.mean().item() - 1
        assert expected > 0
        for name in ("ig_sum", "vgx_sum"):  # both exact for a linear model
            assert linear.evidence.rise[name].value == pytest.approx(expected, rel=1e-4)
        assert set(sound.evidence.rise) == {"ig_sum", "vgx_sum", "sgx_sum"}

    def test_other_maskings_perturb_the_same_maps(self, sound):
        images, model = pictures(), Bent(weights())
        maps = fpa.explain(model, images, settings=QUICK["settings"])
        fractions = sorted({0, 0.1, 0.25, 0.5, 0.75, 1})
        areas = {}
        for name, masking in (("constant", None), ("blur", Blur())):
            curves = fpa.perturbation_curves(model, images, maps, fractions=fractions, masking=masking)
            areas[name] = [
                fpa.Fidelity.from_curves(curves.mif[one], curves.lif[one], curves.fractions).area
                for one in PAPER
                if one != "random"
            ]
        measured = [sound.areas["blur"][one].value for one in PAPER if one != "random"]
        np.testing.assert_allclose(measured, areas["blur"], rtol=1e-4, atol=1e-3)
        expected = spearmanr(areas["constant"], areas["blur"]).statistic
        assert sound.evidence.agreement["blur"].value == pytest.approx(expected, abs=1e-6)
        assert list(sound.evidence.agreement) == ["mean", "blur", "uniform"]
        assert sound.evidence.kept_by_masking["blur"].value > 0.95  # blur keeps the mean of smooth weights

    @pytest.mark.parametrize("size", [12, 11])
    def test_patches_as_features_are_those_of_an_evaluation(self, size):
        """Patches of 3 pixels divide images of 12; those at the border of images of 11 are smaller."""
        names, model, images = ["random", "ig_sum", "vg_abs"], Linear(weights(size)), pictures(20, size)
        found = fpa.audit(
            model, images, estimators=names, maskings=["constant"], **{**QUICK, "points": 11}, features=3
        )
        maps = fpa.explain(model, images, names, settings=QUICK["settings"])
        fractions = sorted({*(step / 10 for step in range(11)), 0.25})
        curves = fpa.perturbation_curves(model, images, maps, fractions=fractions, features=3)
        assert (curves.shares_mif is None) == (size == 12)
        for name in names:
            x, x_lif = (
                (sides or {}).get(name, curves.fractions) for sides in (curves.shares_mif, curves.shares_lif)
            )
            area = fpa.Fidelity.from_curves(curves.mif[name], curves.lif[name], x, fractions_lif=x_lif).area
            assert found.areas["constant"][name].value == pytest.approx(area, abs=1e-3)
        assert found.made_with["features"] == 3

    def test_ten_percent_are_ten_percent_of_patches_too(self):
        """Of 16 patches 2 are masked, 12.5 % of the pixels: a linear model keeps 90 % of what 10 % would."""
        model, names = Linear(torch.ones(1, 12, 12)), ["ig_sum", "vg_abs"]
        how = {**QUICK, "estimators": names, "maskings": ["constant"], "features": 3}
        found = fpa.audit(model, torch.ones(4, 1, 12, 12), **how)
        assert found.fractions[1] == 0.1
        assert found.evidence.kept[10].value == pytest.approx(0.9, abs=1e-5)

    def test_a_number_added_to_all_logits_changes_no_verdict(self, fragile):
        class Shifted(Fragile):
            def forward(self, images):
                return super().forward(images) + 500

        found = fpa.audit(Shifted(weights()), (pictures(), torch.zeros(120, dtype=torch.int64)), **QUICK)
        assert found.verdict == fragile.verdict == "unreliable"
        assert found.evidence.opposite == fragile.evidence.opposite
        for name, area in fragile.areas["constant"].items():
            assert found.areas["constant"][name].value == pytest.approx(area.value, rel=1e-2, abs=1e-2)
        # The raw logit keeps nearly all of itself then: it would not have been judged alike.
        assert found.evidence.offset > 5
        assert found.evidence.raw.kept[10].value > 0.9 > fragile.evidence.raw.kept[10].value
        (differs,) = [note for note in found.reasons if note.kind is Kind.RAW_LOGIT_DIFFERS]
        assert differs.values == {"verdict": judge(found.evidence.raw)[0], "offset": found.evidence.offset}

    def test_another_output_is_judged_if_asked_for_and_the_centred_logit_stands_beside(self):
        """Estimators that explain no particular output: what the two audits find is the same, exchanged."""
        names = {
            "plain": lambda model, images, targets: images - 1,
            "size": lambda model, images, targets: images**2,
        }
        model, how = Linear(weights(), other=9.0), {**QUICK, "maskings": ["constant"], "estimators": names}
        usual, other = (
            fpa.audit(model, pictures(100), outputs=output, **how)
            for output in ("centred", ["logit", "margin"])
        )
        assert (usual.evidence.output, usual.evidence.raw.output) == ("centred", "logit")
        assert (other.evidence.output, other.evidence.raw.output) == ("logit", "centred")
        for one, two in ((usual, other), (other, usual)):
            for fact in ("opposite", "kept", "change", "rise"):
                assert getattr(one.evidence, fact) == getattr(two.evidence.raw, fact)
        assert other.evidence.offset == usual.evidence.offset != 0
        assert [note.kind for note in usual.reasons].count(Kind.OTHER_OUTPUT) == 0
        (judged,) = [note for note in other.reasons if note.kind is Kind.OTHER_OUTPUT]
        assert judged.values == {"output": "logit", "centred_verdict": usual.verdict}
        assert {"verdict_of_centred_logit"} == {
            key for key in other.to_dict() if key.startswith("verdict_of")
        }
        rule_group, beside, *_ = dict.fromkeys(row.group for row in other.rows)
        assert rule_group.endswith(output_name("logit"))
        assert beside.endswith(output_name("centred"))

    def test_an_evaluation_that_was_made_is_judged_without_new_passes(self, sound, tmp_path):
        """With the plan of the audit it finds the same; with the usual one it judges the logit."""
        data = (pictures(), torch.zeros(120, dtype=torch.int64))
        how = {"settings": QUICK["settings"], "fractions": sound.fractions, "progress": False}
        names = ["paper", "baselines", "twins"]
        outputs = ["centred", "logit", "accuracy"]
        made = fpa.evaluate(Bent(weights()), data, names, outputs=outputs, folder=tmp_path, **how)
        for given in (made, tmp_path):
            again = fpa.audit_result(given)
            for one, two in ((again.evidence, sound.evidence), (again.evidence.raw, sound.evidence.raw)):
                for fact in ("opposite", "kept", "change", "rise", "right", "correlation", "used", "offset"):
                    assert getattr(one, fact) == getattr(two, fact)
            assert (again.verdict, again.maskings) == (sound.verdict, ("constant",))
        next(tmp_path.glob("blocks/block-000003*")).unlink()
        assert fpa.audit_result(tmp_path).reasons[-1].kind is Kind.INCOMPLETE
        made = fpa.evaluate(Bent(weights()), data, "paper", **how)
        usual = fpa.audit_result(made)
        assert usual.result is made  # scored over all images already
        assert (usual.reliability, usual.beats) == (made.reliability, made.beats)
        assert (usual.evidence.output, usual.evidence.right) == ("logit", {})
        assert usual.report(tmp_path / "audit.html").exists()
        assert usual.verdict == sound.verdict

    def test_an_evaluation_that_cannot_be_judged(self):
        data, how = pictures(4), {"settings": QUICK["settings"], "progress": False}
        for names, points, said in (
            (["vg_abs", "vgx_sum"], 21, "an audit needs random, a signed and an unsigned estimator"),
            (["vg_abs", "random"], 21, "an audit needs random, a signed and an unsigned estimator"),
            (["random~", "vgx_sum", "vg_abs"], 21, "an audit needs random, a signed and an unsigned"),
            (["vg_abs", "vgx_sum", "random"], 5, "an audit needs points at 10 % of the features"),
        ):
            made = fpa.evaluate(Bent(weights()), data, names, points=points, **how)
            with pytest.raises(fpa.InputError, match=said):
                fpa.audit_result(made)

    def test_random_masking_is_found_beside_a_blurred_random_map(self):
        how = {"settings": QUICK["settings"], "progress": False}
        names = ["random", "vgx_sum", "vg_abs"]
        plain = fpa.evaluate(Bent(weights()), pictures(), names, **how)
        beside = fpa.evaluate(Bent(weights()), pictures(), ["random~", *names], **how)
        assert fpa.audit_result(beside).evidence == fpa.audit_result(plain).evidence

    def test_an_estimator_without_a_finite_map_is_named_and_the_rest_is_judged(self):
        def broken(model, images, targets):
            return torch.full_like(images, torch.nan)

        labels, names = torch.zeros(120, dtype=torch.int64), {name: name for name in PAPER}
        with pytest.warns(UserWarning, match="estimator broken: "):
            found = fpa.audit(
                Bent(weights()), (pictures(), labels), estimators={"broken": broken, **names}, **QUICK
            )
        assert Note(Kind.NEVER_FINITE, Severity.WARNING, {"estimator": "broken"}) in found.reasons
        assert found.evidence.used == 120
        assert found.evidence.pairs == 18
        assert "broken" not in found.signed

    def test_stopped_it_continues_and_finds_the_same(self, sound, tmp_path, monkeypatch):
        images, calls = (pictures(), torch.zeros(120, dtype=torch.int64)), []
        real = computing.curves_of

        def stops(*arguments, **named):
            calls.append(1)
            if len(calls) == 9:  # four maskings a block: the first block is done
                raise KeyboardInterrupt
            return real(*arguments, **named)

        monkeypatch.setattr(computing, "curves_of", stops)
        with pytest.raises(KeyboardInterrupt):
            fpa.audit(Bent(weights()), images, folder=tmp_path, **QUICK)
        done = len(list(tmp_path.glob("blocks/block-*.parquet")))
        assert done >= 1
        again = fpa.audit(Bent(weights()), images, folder=tmp_path, **QUICK)
        assert again.evidence == sound.evidence
        assert len(calls) == 9 + 4 * (4 - done)  # 120 images are four blocks

    def test_what_is_not_finite_is_named(self):
        images = pictures()
        images[7, 0, 0, 0] = torch.nan
        with pytest.warns(UserWarning, match=r"\(image 7\)"):
            found = fpa.audit(Bent(weights()), images, **QUICK)
        assert found.evidence.used == 119

    def test_a_masking_that_must_leave_something(self):
        images = (pictures(40), torch.zeros(40, dtype=torch.int64))
        quick = QUICK | {"estimators": ["vg_abs", "vgx_sum"]}
        judged = fpa.audit(Bent(weights()), images, maskings=["road"], **quick)
        assert judged.fractions[-1] == 0.95
        assert judged.evidence.most_masked == judged.fractions[-1]
        beside = fpa.audit(Bent(weights()), images, maskings=["constant", "road"], **quick)
        assert beside.fractions[-1] == beside.evidence.most_masked == 1
        alone = fpa.audit(Bent(weights()), images, maskings=["constant"], **quick)
        assert beside.areas["constant"] == alone.areas["constant"]
        assert "road" in beside.evidence.agreement

    def test_says_what_beats_model_free_maps_and_twins(self, sound, tmp_path):
        """Against a map that is perfect on a linear model, and one that is known to be nothing."""
        assert sound.model_free == ("random", "centre", "edges", "input")
        assert set(sound.beats.model_free) == set(sound.beats.twin) == set(sound.signed)
        assert sound.beats.model_free["ig_sum"].beaten
        assert sound.beats.twin["ig_sum"].beaten
        assert "centre" not in sound.areas["mean"]
        lines = rivals.outcomes(sound.beats, sound.model_free, estimator_names(sound))
        assert sound.rivals[:2] == lines
        page = sound.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        for shown in (repr(sound), page, sound._repr_html_()):
            assert all(line in " ".join(unescape(shown).split()) for line in lines)
        stored = sound.to_dict()["beats"]["model_free"]["ig_sum"]
        assert stored == sound.beats.model_free["ig_sum"]._asdict()

    def test_a_random_map_is_a_baseline_under_any_name(self):
        images = (pictures(), torch.zeros(120, dtype=torch.int64))
        usual = fpa.audit(Bent(weights()), images, **QUICK)
        renamed = {"noise": "random", **{name: name for name in PAPER if name != "random"}}
        found = fpa.audit(Bent(weights()), images, **QUICK | {"estimators": renamed})
        assert "noise" not in found.signed
        assert found.evidence.pairs == usual.evidence.pairs == 18
        assert found.evidence.kept == usual.evidence.kept

    def test_too_few_patches_are_refused(self):
        with pytest.raises(fpa.InputError, match="at least 10; images of 8 x 8 pixels have 4 "):
            fpa.audit(Bent(weights()), pictures(20), features=4, **QUICK)

    def test_is_the_same_again_and_in_other_batches(self, sound):
        labels = torch.zeros(120, dtype=torch.int64)
        loader = DataLoader(TensorDataset(pictures(), labels), batch_size=50)
        again = fpa.audit(Bent(weights()), loader, **QUICK)
        assert again.to_dict() == sound.to_dict()

    def test_takes_the_same_images_of_a_loader_as_of_a_tensor(self):
        labels = torch.zeros(40, dtype=torch.int64)
        loader = DataLoader(TensorDataset(pictures(40), labels), batch_size=16)
        some = fpa.audit(Bent(weights()), loader, count=20, **QUICK)
        same = fpa.audit(Bent(weights()), (pictures(40), labels), count=20, **QUICK)
        assert some.to_dict() == same.to_dict()
        assert some.verdict == "cannot tell"

    def test_sees_only_the_outputs_never_the_metadata(self):
        """A shipped model, and its weights in a module that knows nothing about its training."""
        data = load_data("shapes")
        images, labels = data.normalisation(data.test.images[:10]), data.test.labels[:10]
        for name in ("shapes-none", "shapes-fpa"):
            shipped = fpa.load_model(name)
            plain = build_model("resnet-small", 8, (3, 32, 32))
            plain.load_state_dict(shipped.state_dict())
            assert not hasattr(plain, "card")
            found, bare = (fpa.audit(model, (images, labels), **QUICK) for model in (shipped, plain))
            assert found.to_dict() == bare.to_dict()
        shipped.card = replace(shipped.card, augmentation="none", recipe={})
        assert fpa.audit(shipped, (images, labels), **QUICK).to_dict() == bare.to_dict()


class TestNothingToExplain:
    def test_few_images_are_called_too_few_and_nothing_else(self):
        found = fpa.audit(Bent(weights()), (pictures(5), torch.tensor([0, 0, 0, 0, 1])), **QUICK)
        assert found.reasons[0].kind is Kind.TOO_FEW_IMAGES
        assert found.reasons[0].values["used"] == 5
        assert not {Kind.NOT_ABOVE_CHANCE, Kind.CHANCE_UNKNOWN} & {note.kind for note in found.reasons}

    def test_a_model_that_ignores_its_input(self, tmp_path):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        nn.init.zeros_(model[1].weight)
        nn.init.constant_(model[1].bias, 2.0)
        found = fpa.audit(model, (pictures(), torch.arange(120) % 3), **QUICK)
        assert found.verdict == "cannot tell"
        assert [note.kind for note in found.reasons[:2]] == [Kind.NOT_ABOVE_CHANCE, Kind.LITTLE_CHANGE]
        assert found.reasons[0].values["accuracy"] == pytest.approx(1 / 3)
        assert found.reasons[1].values["change"] == (0, 0, 0)
        advised = [note.kind for note in found.advised]
        assert advised == [Kind.CHECK_LABELS, Kind.CHECK_MASKING, Kind.ENOUGH_IMAGES]

    def test_labels_that_have_nothing_to_do_with_the_images(self):
        labels = torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(0))
        found = fpa.audit(Bent(weights()), (pictures(), labels), **QUICK)
        assert found.verdict == "cannot tell"
        assert found.reasons[0].kind is Kind.NOT_ABOVE_CHANCE
        assert found.reasons[0].values["chance"] == 0.525

    def test_a_model_that_always_says_the_commonest_class(self):
        labels = torch.tensor([0] * 90 + [1] * 30)
        found = fpa.audit(Bent(weights()), (pictures(), labels), **QUICK)
        assert (found.evidence.accuracy, found.evidence.chance) == (0.75, 0.75)
        assert found.verdict == "cannot tell"

    def test_labels_of_one_class_are_not_compared_with_chance(self, sound):
        assert sound.evidence.chance is None
        assert Note(Kind.CHANCE_UNKNOWN, Severity.INFO, {"labels": 120}) in sound.reasons

    def test_without_a_positive_logit_everything_still_shows(self, tmp_path):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        nn.init.zeros_(model[1].weight)
        nn.init.zeros_(model[1].bias)
        found = fpa.audit(model, pictures(30), **QUICK)
        assert found.verdict == "cannot tell"
        assert found.evidence.used == 0
        few = Note(Kind.TOO_FEW_IMAGES, Severity.BLOCKING, {"images": 30, "used": 0, "needed": 100})
        assert few in found.reasons
        assert sentence(few) in " ".join(repr(found).split())
        html = found.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        assert found.verdict.capitalize() in html
        assert "<svg" not in html
        assert json.loads(found.save(tmp_path / "audit.json").read_text())["evidence"]["opposite"] is None


class Dark(fpa.masking.Constant):
    """Zero, under another name."""


class TestAdvice:
    def test_to_fine_tune_with_the_masking_that_was_judged(self, fragile):
        advised = [note.kind for note in fragile.advised]
        assert advised == [Kind.DO_NOT_CHOOSE, Kind.FINE_TUNE, Kind.RECOMMENDED_PROTOCOL]
        assert fragile.command == "tuned = fpa.finetune(model, data)"
        images, labels = pictures(100, 32), torch.zeros(100, dtype=torch.int64)
        other = fpa.audit(Fragile(weights(32)), (images, labels), maskings=[Dark()], **QUICK)
        masking = {"name": f"{__name__}:Dark", "value": 0.0}
        assert other.command == f"tuned = fpa.finetune(model, data, masking={masking})"

    def test_says_how_far_the_verdict_reaches(self, sound):
        differ = [f"pixels+{name}" for name, found in sound.evidence.agreement.items() if not found.low > 0.7]
        found = [note for note in sound.reasons if note.kind is Kind.OTHER_PROTOCOLS_DIFFER]
        assert [note.values for note in found] == [{"judged": "pixels", "others": differ}] * bool(differ)


def dimmed(images, mask, by=1.0):
    return torch.where(mask[:, None], images - by, images)


@pytest.mark.parametrize(
    ("maskings", "names"),
    [
        (["constant", Blur(1.0), Blur(4.0)], ("constant", "blur sigma=1", "blur sigma=4")),
        (["constant", "blur", Blur(1.5)], ("constant", "blur", "blur sigma=1.5")),
        ([Blur(1.0), {"name": "blur", "sigma": 4}], ("blur", "blur sigma=4")),
        ([Constant(), Constant(1.0)], ("constant value=0", "constant value=1")),
        ([partial(dimmed, by=1.0), partial(dimmed, by=2.0)], ("dimmed by=1", "dimmed by=2")),
        (
            [lambda images, mask: dimmed(images, mask), lambda images, mask: dimmed(images, mask, 2.0)],
            ("<lambda>", "<lambda> (2)"),
        ),
    ],
)
def test_maskings_that_differ_in_their_settings_are_different(maskings, names):
    """Each gives under its own name what it gives alone."""
    how = {"estimators": ["vgx_sum", "vg_abs"], **QUICK}
    model, data = Bent(weights()), pictures(20)
    audit = fpa.audit(model, data, maskings=maskings, **how)
    assert audit.maskings == names
    for name, masking in zip(names[1:], maskings[1:], strict=True):
        pair = fpa.audit(model, data, maskings=[maskings[0], masking], **how)
        assert audit.areas[name] == pair.areas[pair.maskings[1]]
    assert len({str(areas) for areas in audit.areas.values()}) == len(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimators": ["ig_sum", "vgx_sum"]}, "at least one signed and one unsigned"),
        ({"estimators": ["random"]}, "none besides random"),
        (
            {"estimators": {"random": lambda *_: None, "ig_sum": "ig_sum"}},
            "rename the estimator",
        ),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"maskings": []}, "one or more, all different, got none"),
        ({"maskings": ["blur", "blur"]}, "got blur, blur"),
        ({"maskings": ["constant", "zero"]}, "all different, got constant, zero"),
        ({"maskings": [Blur(2), {"name": "blur", "sigma": 2}]}, "all different, got blur, blur sigma=2"),
        ({"maskings": [partial(dimmed, by=2.0), partial(dimmed, by=2.0)]}, "got dimmed, dimmed"),
        ({"maskings": ["blurr"]}, "did you mean 'blur'"),
        ({"points": 2}, "points must be at least 3"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments, message):
    def no_images():
        raise AssertionError("the loader was touched")
        yield

    with pytest.raises(fpa.InputError, match=re.escape(message)):
        fpa.audit(Bent(weights()), no_images(), **arguments)


def test_precomputed_maps_need_to_know_which_image_is_which():
    images, numbers = pictures(20), torch.arange(20)
    right = images[:, 0] * weights()[0]
    asked = {"estimators": {"mine": right, "vg_abs": "vg_abs"}, "maskings": ["constant"], **QUICK}

    def area(*parts, **order):
        loader = DataLoader(TensorDataset(*parts), 8, **order)
        return fpa.audit(Bent(weights()), loader, **asked).areas["constant"]["mine"].value

    labels = torch.zeros(20, dtype=torch.int64)
    for order in ({"shuffle": True}, {"sampler": SubsetRandomSampler(range(20))}):
        with pytest.raises(fpa.InputError, match="maps are matched to images by number"):
            area(images, labels, **order)
        assert area(images, labels, numbers, **order) == pytest.approx(area(images, labels), abs=1e-3)


def test_a_model_that_is_none_is_named():
    with pytest.raises(
        fpa.InputError,
        match=r"must be a torch.nn.Module or an Engine or what fpa.open_model returns, got 'resnet",
    ):
        fpa.audit("resnet", pictures(4), **QUICK)
    with pytest.raises(
        fpa.InputError,
        match=r"must be a torch.nn.Module or an Engine or what fpa.open_model returns, got 'resnet",
    ):
        fpa.evaluate("resnet", pictures(4), **QUICK)


class TestShown:
    @pytest.mark.drawn
    def test_names_in_figures_are_readable_before_they_are_cut(self, tmp_path):
        gradcam, cam = "captum:LayerGradCam_abs", "maps:outputs/of/mine.npz#cam"
        estimators = {
            gradcam: replace(PAPER["vg_abs"], shown=Label(gradcam, "LayerGradCam", False, "abs")),
            cam: replace(PAPER["ig_sum"], shown=Label(cam, "mine#cam")),
        }
        found = fpa.audit(
            Bent(weights()), pictures(20), estimators=estimators, maskings=["constant"], **QUICK
        )
        page = found.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        assert ">mine#cam</text>" in page
        drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
        assert "LayerGradCam" in drawn
        assert "…" not in page
        assert "<code>fpa.audit</code>" in page  # it was not made by a command
        plan = found.result.plan
        plan["estimators"][cam]["label"]["name"] = "another <map> of a distant layer"
        longer = replace(found, result=described(found.result, plan=plan))
        page = longer.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        assert ">another &lt;map&gt; o…</text>" in page
        # Whole in the table, and in the answer above it.
        assert page.count("another &lt;map&gt; of a distant layer") == 2

    def test_fits_a_terminal_of_80_columns(self, sound, fragile, capsys):
        for found, word in ((sound, "Reliable"), (fragile, "Unreliable")):
            Console(width=80, force_terminal=False).print(found)
            out = capsys.readouterr().out
            assert max(map(len, out.splitlines())) <= 80
            assert out.startswith(f"{word}: ")
            assert out.rstrip().endswith(repr(found).splitlines()[-1].strip())
            names = estimator_names(found)
            for row in found.rows:
                assert row.group in out
                assert names.get(row.what, row.what) in out

    def test_json_holds_everything(self, fragile, tmp_path):
        values = json.loads(fragile.save(tmp_path / "new" / "audit.json").read_text())
        assert values["verdict"] == "unreliable"
        assert values["exit_code"] == 3
        assert values["evidence"]["kept"]["10"]["value"] == fragile.evidence.kept[10].value
        assert values["thresholds"]["least_kept"] == LEAST_KEPT
        assert values["made_with"]["seed"] == 0
        assert len(values["pairs"]) == 36

    @pytest.mark.drawn
    def test_the_page_refers_to_nothing_outside_and_shows_text_as_text(self, fragile, tmp_path):
        nasty = "</style><script>alert(1)</script>"
        html = replace(fragile, name=nasty).report(tmp_path / "audit.html").read_text(encoding="utf-8")
        assert not re.search(r"https?:|src=|@import|url\((?!#)", html)
        assert "<script" not in html
        assert "alert(1)" in html
        assert html.count("<svg") == 3
        assert fragile.command in html
        assert replace(fragile, name=nasty).report(tmp_path / "again.html").read_text() == html

    def test_ranks_are_drawn_as_in_the_figure_of_results(self, fragile):
        pairs = [*fragile.reliability.pairs]
        pairs[:2] = [replace(pair, contradiction=True) for pair in pairs[:2]]
        turned = fragile.reliability.by_mif[::-1]  # all lines cross
        crossed = replace(fragile.reliability, pairs=tuple(pairs), by_lif=turned)
        found = replace(fragile, result=replace(fragile.result, reliability=crossed))
        (axis,) = audited_ranks(found).axes
        red = {name for pair in found.reliability.contradictions for name in (pair.first, pair.second)}
        assert len(red) > 2
        lines = {line.get_label(): line for line in axis.get_lines() if line.get_label() in found.signed}
        for name, line in lines.items():
            ranks = [found.reliability.by_mif.index(name) + 1, turned.index(name) + 1]
            assert list(line.get_ydata()) == ranks
            assert (line.get_color() == style.RED) == (name in red)
        crossings = [line for line in axis.get_lines() if line.get_label() not in found.signed]
        assert len(crossings) == len(found.reliability.contradictions)

    def test_areas_are_drawn_with_their_intervals(self, fragile):
        (axis,) = areas_by_masking(fragile).axes
        drawn = {bars.get_label(): bars for bars in axis.containers}
        assert list(drawn) == list(fragile.maskings)
        for masking, bars in drawn.items():
            points, _, (intervals,) = bars
            for place, name in enumerate(fragile.reliability.by_area):
                area = fragile.areas[masking][name]
                assert points.get_xdata()[place] == area.value
                (low, _), (high, _) = intervals.get_segments()[place]
                assert (low, high) == pytest.approx((area.low, area.high))

    def test_a_notebook_shows_it(self, fragile):
        html = fragile._repr_html_()
        assert fragile.headline in html
        assert "IG<sub>sum</sub>" in html

    def test_too_few_pairs_have_no_limit(self, fragile):
        few = replace(fragile, evidence=replace(fragile.evidence, signed=1, unsigned=2, raw=None))
        assert few.rows[0][2:] == ("2 of 2", "2 to 2", "too few", "unclear")

    @pytest.mark.drawn
    def test_a_phone_shows_limits_and_intervals(self, browser, fragile, tmp_path):
        open_page(browser, fragile.report(tmp_path / "audit.html"), 360)
        pairs = browser.find_element("css selector", ".evidence tbody tr:not(.group)")
        cells = [pairs.find_element("css selector", name).text for name in (".value", ".interval")]
        assert cells == [fragile.rows[0].value, fragile.rows[0].interval]
        assert pairs.find_element("css selector", ".limit-value").text == fragile.rows[0].limit
        wide = "return document.querySelector('.evidence').scrollWidth"
        assert browser.execute_script(wide) <= 360

    @pytest.mark.drawn
    @pytest.mark.parametrize("width", [400, 1200])
    def test_the_page_fits_its_window_and_asks_for_nothing(self, browser, fragile, tmp_path, width):
        page = fragile.report(tmp_path / "audit.html")
        open_page(browser, page, width)
        browser.get_log("performance")
        open_page(browser, page, width)
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }
        assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        assert browser.get_log("browser") == []


class TestCommand:
    def test_the_folder_of_an_evaluation_is_audited_as_it_is(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        quick = ["--count", "4", "--ig_steps", "2", "--sg_samples", "2", "--device", "cpu"]
        assert main(["evaluate", "shapes-fpa", *quick, "--quiet"]) == 0
        (folder,) = Path("runs").iterdir()
        before = {path.name for path in folder.iterdir()}
        assert main(["audit", str(folder)]) == 4
        assert json.loads((folder / "audit.json").read_text())["evidence"]["output"] == "logit"
        assert output_name("logit") in capsys.readouterr().out
        assert {path.name for path in folder.iterdir()} - before == {
            "audit.json",
            "audit.html",
            "areas.parquet",
        }
        assert before <= {path.name for path in folder.iterdir()}
        for other in (["--count", "3"], ["--device", "cpu"], ["--overwrite"]):
            assert main(["audit", str(folder), *other]) == 2
            assert "judged as it was made" in capsys.readouterr().err
        assert main(["audit", str(folder), "--output", "elsewhere", "--quiet"]) == 4
        assert {path.name for path in Path("elsewhere").iterdir()} == {
            "audit.json",
            "audit.html",
            "areas.parquet",
        }
        few = ["--estimators", "vg_abs,vgx_sum", "--points", "3", "--maskings", "constant"]
        assert main(["audit", "shapes-fpa", *quick, *few]) == 4
        assert f"fpa audit {folder}" in capsys.readouterr().err
        assert main(["audit", "shapes-fpa", *quick, *few, "--count", "5"]) == 4  # more images: its own folder
        Path("study").mkdir()
        Path("study/recipe.yaml").touch()
        kept = {path.name for path in folder.rename("study/fpa").iterdir()}
        assert main(["audit", "study/fpa", "--quiet"]) == 4
        assert {path.name for path in Path("study/fpa").iterdir()} == kept  # what a study holds is its own
        assert Path("runs/audit-study-fpa/audit.json").exists()
        assert main(["evaluate", "shapes-fpa", *quick, "--points", "3", "--quiet"]) == 0
        capsys.readouterr()
        assert main(["audit", "shapes-fpa", *quick, *few]) == 4
        assert "fpa audit runs/" not in capsys.readouterr().err  # three points do not do for an audit

    def test_a_study_has_all_its_models_judged_side_by_side(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        fields = {"augmentations": ["none", "fpa"], "evaluation.points": 21, "data.evaluation_images": 8}
        fpa.run_study(fpa.load_recipe("tiny", fields), "study", device="cpu", progress=False)
        before = sorted(Path("study").rglob("*"))
        assert main(["audit", "study"]) == 4
        out = capsys.readouterr().out
        assert re.search(r"audit +none +fpa *\n", out)
        assert re.search(r"verdict +cannot tell +cannot tell", out)
        for name in ("none", "fpa"):
            assert f"page: runs/audit-study-{name}/audit.html" in out
            together = json.loads(Path(f"runs/audit-study-{name}/audit.json").read_text())
            assert main(["audit", f"study/{name}", "--quiet", "--output", f"alone/{name}"]) == 4
            alone = json.loads(Path(f"alone/{name}/audit.json").read_text())
            assert alone["evidence"] == together["evidence"]
        assert sorted(Path("study").rglob("*")) == before
        assert main(["audit", "study", "--points", "3"]) == 2
        assert "study is a study, judged as it was made" in capsys.readouterr().err
        # The exit code is that of the worst model.
        real = fpa.audit_result
        for said, code in ({"fpa": "reliable"}, 4), ({"fpa": "reliable", "none": "unreliable"}, 3):

            def judged(path, said=said):
                return replace(real(path), verdict=said.get(path.name, "cannot tell"))

            monkeypatch.setattr(fpa, "audit_result", judged, raising=False)
            assert main(["audit", "study", "--quiet"]) == code

    def test_leaves_a_page_and_json_and_says_it_with_the_exit_code(self, capsys, tmp_path):
        command = [
            "audit", "shapes-fpa", "--count", "6", "--ig_steps", "2", "--points", "3",
            "--maskings", "[constant]", "--device", "cpu", "--output", str(tmp_path),
        ]  # fmt: skip
        assert main(command) == 4
        out = " ".join(capsys.readouterr().out.split())
        stored = json.loads((tmp_path / "audit.json").read_text())
        assert (stored["verdict"], stored["evidence"]["used"]) == ("cannot tell", 6)
        assert out.startswith(stored["headline"])
        assert stored["because"][0] in out
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == ["areas.parquet", "audit.html", "audit.json", "blocks", "evaluation.json"]
        page = (tmp_path / "audit.html").read_text(encoding="utf-8")
        assert unescape(re.search(r'id="made-title".*?<pre[^>]*>(.*?)</pre>', page, re.S)[1]) == shlex.join(
            ["fpa", *command]
        )
        (block,) = (tmp_path / "blocks").glob("block-*")
        written = block.stat().st_mtime_ns
        assert main([*command, "--quiet"]) == 4
        assert capsys.readouterr() == ("", "")
        assert block.stat().st_mtime_ns == written  # it continues with what is there
        assert main([*command, "--quiet", "--features", "4"]) == 2
        assert "holds an evaluation with other features" in capsys.readouterr().err
        assert main([*command, "--quiet", "--features", "4", "--overwrite"]) == 4
        assert json.loads((tmp_path / "audit.json").read_text())["made_with"]["features"] == 4
        assert main([*command, "--features", "16", "--overwrite"]) == 2
        assert "use smaller patches" in capsys.readouterr().err

    def test_a_model_of_ones_own_with_photos_of_ones_own(self, capsys, tmp_path, monkeypatch):
        """Photos without labels, and models that only a function knows how to build."""
        monkeypatch.chdir(tmp_path)
        Path("audited_models.py").write_text(
            "import torch\n"
            "from test_audit import Bent, Fragile\n"
            "weights = 1 + torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))\n"
            "def sound(): return Bent(weights)\n"
            "def fragile(): return Fragile(weights)\n"
        )
        rng = np.random.default_rng(0)
        Path("photos").mkdir()
        for number in range(100):
            pixels = rng.integers(140, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"photos/{number}.png")
        command = [
            "audit", "--data", "folder:photos", "--mean", "[0.5,0.5,0.5]", "--std", "[0.5,0.5,0.5]",
            "--size", "16", "--points", "3", "--ig_steps", "2", "--device", "cpu", "--maskings", "[constant]",
        ]  # fmt: skip
        assert main([*command, "--model", "audited_models:sound"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("Reliable: ")
        assert "same class, 50 % masked" in out
        assert main([*command, "--model", "audited_models:fragile"]) == 3
        out = capsys.readouterr().out
        assert out.startswith("Unreliable: ")
        assert "tuned = fpa.finetune(model, data)" in out
        (audited,) = Path("runs").glob("audit-fragile-*/audit.json")
        assert json.loads(audited.read_text())["exit_code"] == 3
        assert main([*command, "--model", "audited_models:sound", "shapes-none"]) == 2
        assert "name one model" in capsys.readouterr().err

    def test_says_how_to_fine_tune_a_model_that_has_a_name(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr("fpa.auditing.rule.FEWEST_IMAGES", 2)
        monkeypatch.setattr("fpa.statistics.intervals.FEWEST_RESAMPLED", 2)
        monkeypatch.setattr("fpa.auditing.rule.LEAST_KEPT", 1.5)  # nothing is reliable then
        monkeypatch.chdir(tmp_path)
        quick = ["--count", "6", "--ig_steps", "2", "--points", "3", "--device", "cpu", "--output", "here"]
        assert main(["audit", "shapes-none", "--maskings", "[blur]", *quick]) == 3
        said = "fpa finetune shapes-none --data shapes --masking blur"
        assert said in capsys.readouterr().out
        assert said in Path("here/audit.html").read_text(encoding="utf-8")
        four = ["--maskings", "[{name: blur, sigma: 4}]", *quick, "--overwrite", "--quiet"]
        assert main(["audit", "shapes-none", *four]) == 3
        command = json.loads(Path("here/audit.json").read_text())["command"]
        assert command == "fpa finetune shapes-none --data shapes --masking.name blur --masking.sigma 4"
        own = ["--model", "shapes-none", "--mean", "[0.5,0.5,0.5]", "--std", "[0.5,0.5,0.5]"]
        assert main(["audit", *own, "--maskings", "constant", *quick, "--quiet", "--overwrite"]) == 3
        command = json.loads(Path("here/audit.json").read_text())["command"]
        assert command == ("fpa finetune shapes-none --data shapes --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5")
        # It is a command: with a device that does not exist it gets as far as the device.
        assert main([*shlex.split(command)[1:], "--device", "tpu"]) == 2
        assert "device must be cpu, cuda, cuda:N or mps" in capsys.readouterr().err

    def test_says_how_to_fine_tune_only_where_the_command_can_run(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr("fpa.auditing.rule.FEWEST_IMAGES", 2)
        monkeypatch.setattr("fpa.statistics.intervals.FEWEST_RESAMPLED", 2)
        monkeypatch.setattr("fpa.auditing.rule.LEAST_KEPT", 1.5)
        monkeypatch.chdir(tmp_path)
        images = load_data("shapes").test.images[:8].permute(0, 2, 3, 1).numpy()
        for folder in ("photos", "held/val"):
            Path(folder).mkdir(parents=True)
            for number, image in enumerate(images):
                Image.fromarray(image).save(f"{folder}/{number}.png")
        quick = ["--ig_steps", "2", "--points", "3", "--device", "cpu", "--quiet", "--maskings", "[constant]"]
        found = {}
        for name in ("held", "photos"):
            main(["audit", "shapes-none", "--data", f"folder:{name}", *quick, "--output", name + "-audit"])
            found[name] = json.loads(Path(f"{name}-audit/audit.json").read_text())
            assert found[name]["verdict"] == "unreliable", found[name]
        assert found["held"]["command"].startswith("tuned = fpa.finetune(model, data")
        assert found["held"]["advice"][-1] == sentence(Note(Kind.OTHER_TRAINING_IMAGES))
        command = shlex.split(found["photos"]["command"])[1:]
        assert command == ["finetune", "shapes-none", "--data", "folder:photos"]
        assert main([*command, "--epochs", "1", "--workers", "0", "--device", "cpu", "--quiet"]) == 0

    def test_weights_without_metadata_give_the_same(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        save_file(fpa.load_model("shapes-none").state_dict(), "weights.safetensors")
        Path("bare_models.py").write_text(
            "from fpa.models import build_model\n"
            "def small(): return build_model('resnet-small', 8, (3, 32, 32))\n"
        )
        quick = ["--count", "6", "--ig_steps", "2", "--points", "3", "--device", "cpu", "--quiet"]
        half = "[0.5,0.5,0.5]"
        assert main(["audit", "shapes-none", *quick, "--output", "known"]) == 4
        bare = ["audit", "--model", "bare_models:small", "--weights", "weights.safetensors"]
        bare += ["--data", "shapes", "--mean", half, "--std", half, *quick, "--output", "bare"]
        assert main(bare) == 4
        known, plain = (json.loads(Path(f"{one}/audit.json").read_text()) for one in ("known", "bare"))
        for told in ("name", "repeat"):
            assert known.pop(told) != plain.pop(told)
        assert known == plain

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nothing.safetensors"], "there is no model file nothing.safetensors"),
            (["shapes-none", "--maskings", "[blurr]"], "unknown masking 'blurr': did you mean 'blur'"),
            (["shapes-none", "--count", "0"], "count must be at least 1, got 0"),
            (["shapes-none", "--device", "tpu"], "device must be cpu, cuda, cuda:N or mps"),
        ],
    )
    def test_bad_input_has_exit_code_2(self, capsys, tmp_path, arguments, message):
        assert main(["audit", *arguments, "--output", str(tmp_path), "--quiet"]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
