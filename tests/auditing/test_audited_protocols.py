"""Audits by several protocols: what each would find alone, in one table, with the same maps."""

import json
from dataclasses import replace
from html import unescape

import pytest
import torch
from rich.console import Console
from torch import nn

import fpa
from fpa.auditing.rule import FEWEST_IMAGES, judge
from fpa.cli.main import main
from fpa.notes import Kind
from fpa.show import protocols as shown
from fpa.statistics.intervals import Estimate

# Integrated gradients start at 0, whatever is removed: by default they would follow the masking.
SETTINGS = fpa.Settings(ig_steps=3, sg_samples=2, reference=0.0)
NAMES = ["ig_sum", "vgx_sum", "vg_abs", "ig_abs", "vgx_abs"]
HOW = {"estimators": NAMES, "settings": SETTINGS, "points": 11, "progress": False}
ALONE = {
    "1/4": {"features": 4},
    "1/4+blur": {"features": "1/4", "maskings": ["blur"]},
    "segments:30+mean": {"features": "segments:30", "maskings": ["mean"]},
}
"""Options of an audit that judges the protocol itself."""


class Wavy(nn.Module):
    """Two classes from a sum over pixels on a wavy line; a pixel that is 0 costs a little more."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weights = nn.Parameter(1 + torch.randn(3, 16, 16, generator=generator))

    def forward(self, images):
        gone = (images == 0).all(1).flatten(1).float().mean(1)
        first = ((images + 0.1 * torch.sin(6 * images)) * self.weights).sum((1, 2, 3))
        first = first * torch.exp(-gone)
        return torch.stack([first, first / 3 - 1], 1)


def pictures(count=FEWEST_IMAGES):
    """Smooth enough to have segments: 16 to 26 of the 30 asked for."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 4, 4, generator=generator)
    fine = torch.randn(count, 3, 16, 16, generator=generator)
    images = 1 + 0.5 * nn.functional.interpolate(coarse, size=16, mode="bilinear") + 0.1 * fine
    return images, torch.arange(count) % 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(scope="module")
def audit(folder):
    asked = ["pixels", *ALONE]
    return fpa.audit(Wavy(), pictures(), maskings=["constant", "mean"], protocols=asked, folder=folder, **HOW)


def test_the_one_judged_comes_first_and_stays_as_it_is(audit):
    without = fpa.audit(Wavy(), pictures(), maskings=["constant", "mean"], **HOW)
    assert list(without.protocols) == ["pixels", "pixels+mean"]
    assert list(audit.protocols) == ["pixels", "pixels+mean", *ALONE]
    assert (audit.verdict, audit.maskings) == (without.verdict, ("constant", "mean"))
    for fact in ("opposite", "kept", "change", "used", "pairs", "rise", "right", "raw"):
        assert getattr(audit.evidence, fact) == getattr(without.evidence, fact)
    judged = audit.protocols["pixels"]
    assert judged.evidence == replace(audit.evidence, raw=None)
    assert (judged.cost, judged.agreement, judged.ranking) == (1.0, None, None)


@pytest.mark.parametrize("protocol", ALONE)
def test_every_number_is_that_of_an_audit_by_this_protocol_alone(audit, protocol):
    alone = fpa.audit(Wavy(), pictures(), **{"maskings": ["constant"], **HOW, **ALONE[protocol]})
    found = audit.protocols[protocol]
    for fact in ("opposite", "contradictions", "pairs", "used", "images", "accuracy", "chance", "output"):
        assert getattr(found.evidence, fact) == getattr(alone.evidence, fact), fact
    assert found.evidence.opposite.high <= found.evidence.pairs == 6
    for percent, kept in alone.evidence.kept.items():
        assert found.evidence.kept[percent] == pytest.approx(kept)
    assert found.evidence.change == pytest.approx(alone.evidence.change)
    assert found.verdict == alone.verdict == judge(found.evidence)[0]
    key = next(key for key, name in audit.result.description.plan.protocol_names.items() if name == protocol)
    for name in NAMES:
        assert audit.areas[key][name] == pytest.approx(alone.areas[alone.maskings[0]][name])


@pytest.mark.parametrize(
    ("protocol", "forwards"),
    # 0.1, ..., 0.9 and 0.25 of 256 pixels; of 16 patches 2, 3, 4, 5, 6, 8, 10, 11, 13 and 14; all points of
    # segments, the first and the last included.
    [("pixels", 20), ("1/4", 20), ("segments:30+mean", 24)],
)
def test_passes_are_those_that_are_run(audit, protocol, forwards):
    found = audit.protocols[protocol]
    assert found.forwards == forwards
    assert found.cost == forwards / 20


def test_a_masking_that_must_leave_something_ends_only_its_own_curves():
    few = {**HOW, "points": 3, "estimators": ["vgx_sum", "vg_abs"]}
    found = fpa.audit(Wavy(), pictures(5), maskings=["constant"], protocols=["1/4+road"], **few)
    alone = fpa.audit(Wavy(), pictures(5), maskings=["road"], features="1/4", **few)
    by_road = found.protocols["1/4+road"]
    assert by_road.evidence.opposite == alone.evidence.opposite
    assert by_road.evidence.change.value == pytest.approx(alone.evidence.change.value)
    assert by_road.evidence.kept[50].value == pytest.approx(alone.evidence.kept[50].value)
    assert (found.evidence.most_masked, by_road.evidence.most_masked) == (1, 15 / 16)
    assert by_road.forwards == 8  # 2, 4, 8 and 15 of the 16 patches


def test_passes_are_counted_by_the_model(monkeypatch):
    """Two maps by 16 patches at 21 points: 15 numbers of patches, most and least important first."""
    seen = []

    class Counting(Wavy):
        def forward(self, images):
            seen.append(len(images))
            return super().forward(images)

    images = pictures(1)[0]
    engine = fpa.Engine(Counting())
    maps = {"one": torch.randn(1, 16, 16), "two": torch.randn(1, 16, 16)}
    rows = {}
    for features in ("pixels", "pixels", 4):  # once more: the first time the engine tries how much fits
        seen.clear()
        fpa.perturbation_curves(engine, images, maps, features=features)
        rows[features] = sum(seen)
    result = fpa.evaluate(Wavy(), images, ["vg_abs"], protocols=["1/4"], examples=0, progress=False)
    counted = {name: each.forwards for name, each in result.by_protocol.items()}
    # Besides, the whole image and the fully masked one, for all maps together.
    assert {name: 2 * each + 2 for name, each in counted.items()} == {
        "pixels": rows["pixels"],
        "1/4": rows[4],
    }


def test_the_folder_has_them_too(audit, folder):
    again = fpa.audit_result(folder)
    assert again.maskings == audit.maskings
    assert again.protocols == audit.protocols


def test_an_evaluation_with_protocols_is_audited_with_them(tmp_path):
    made = fpa.evaluate(
        Wavy(), pictures(), ["random", *NAMES], settings=SETTINGS, outputs="centred", protocols=["1/4"],
        examples=0, folder=tmp_path, progress=False,
    )  # fmt: skip
    audited = fpa.audit_result(tmp_path)
    alone = fpa.audit(
        Wavy(), pictures(), NAMES, settings=SETTINGS, maskings=["constant"], features="1/4", progress=False
    )
    assert list(audited.protocols) == ["pixels", "1/4"]
    assert audited.maskings == ("constant",)
    found = audited.protocols["1/4"].evidence
    assert (found.opposite, found.pairs) == (alone.evidence.opposite, alone.evidence.pairs)
    assert found.kept[10] == pytest.approx(alone.evidence.kept[10])
    assert audited.protocols["1/4"].verdict == alone.verdict
    assert made.by_protocol["1/4"].reliability.opposite["signed-unsigned"] == alone.evidence.opposite


def test_what_is_not_finite_by_one_protocol_changes_no_other(monkeypatch):
    """A masking that fails for some images, and one that fails for all: the verdict stays what it is."""

    def broken(images, mask):
        lost = (images[:, :1, :1, :1] > 1.5) & mask.any((1, 2))[:, None, None, None]
        return torch.where(lost, torch.nan, torch.where(mask[:, None], 0.0, images))

    def useless(images, mask):
        return torch.where(mask[:, None], torch.nan, images)

    images, labels = pictures()
    failing = int((images[:, 0, 0, 0] > 1.5).sum())
    assert 0 < failing < len(images)
    odd = {"broken": fpa.Protocol("1/4", broken), "useless": fpa.Protocol("1/4", useless)}
    found = fpa.audit(Wavy(), (images, labels), maskings=["constant"], protocols=odd, **HOW)
    usual = fpa.audit(Wavy(), (images, labels), maskings=["constant"], protocols=["1/4"], **HOW)
    assert found.evidence.opposite == usual.evidence.opposite
    assert found.evidence.used == len(images)
    assert found.protocols["broken"].evidence.used == len(images) - failing
    assert found.protocols["broken"].evidence.opposite is not None
    assert found.protocols["useless"].evidence.used == 0
    assert found.protocols["useless"].verdict == "cannot tell"
    rows = {row.name: row for row in shown.rows(found)}
    assert (rows["useless"].opposite, rows["useless"].kept, rows["useless"].ranking) == ("–", "–", "")
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("protocols", "message"),
    [
        (["1/2"], "at least 10; images of 16 x 16 pixels have 4 (features 1/2)"),
        (["1/8", "1/8"], "the protocol 1/8 is there twice"),
        (["1/8+blurr"], "unknown masking 'blurr': did you mean 'blur'"),
        ("sizes", "features must be"),
        ({"mean": "1/4"}, "mean is the name of a masking and of a protocol"),
    ],
)
def test_bad_names_are_refused(protocols, message):
    with pytest.raises(fpa.InputError) as refused:
        fpa.audit(Wavy(), pictures(4), maskings=["constant", "mean"], protocols=protocols, **HOW)
    assert message in str(refused.value)


def test_those_left_out_of_the_usual_list_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("fpa.perturbation.protocols.USUAL", ("pixels", "1/2", "1/4"))
    found = fpa.audit(Wavy(), pictures(20), maskings=["constant"], protocols="usual", **HOW)
    assert list(found.protocols) == ["pixels", "1/4"]
    (note,) = [note for note in found.reasons if note.kind is Kind.PROTOCOL_LEFT_OUT]
    assert note.values["protocol"] == "1/2"
    assert "Left out: the protocol 1/2" in found.because[-1]


class TestShown:
    def test_in_a_terminal_of_80_columns(self, audit, capsys):
        Console(width=80, force_terminal=False).print(audit)
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        lines = [" ".join(line.split()) for line in out.splitlines()]
        for name, found in audit.protocols.items():
            _, low, high = found.evidence.opposite
            pairs = f"{low:.0f} of 6" if low == high else f"{low:.0f} to {high:.0f} of 6"
            kept = f"{100 * found.evidence.kept[10].value:.1f} %"
            start = f"{name}, judged" if name == "pixels" else name
            (line,) = [line for line in lines if line.startswith(f"{start} {pairs} {found.verdict} {kept}")]
            assert line.endswith(f" {found.cost:.1f}")

    def test_on_the_page_and_in_a_notebook(self, audit, tmp_path):
        page = audit.report(tmp_path / "audit.html").read_text(encoding="utf-8")
        (sentence,) = shown.consistent(audit)
        for html in (page, audit._repr_html_()):
            text = unescape(html)
            assert sentence in text
            for row in shown.rows(audit):
                for fact in (row.name, row.opposite, row.kept, row.verdict, row.cost):
                    assert fact in text

    def test_in_json(self, audit, tmp_path):
        stored = json.loads(audit.save(tmp_path / "audit.json").read_text())
        assert stored["format"] == 3
        assert list(stored["protocols"]) == list(audit.protocols)
        for name, found in audit.protocols.items():
            values = stored["protocols"][name]
            assert values["verdict"] == found.verdict
            assert values["opposite"] == found.evidence.opposite._asdict()
            assert values["kept"]["10"]["value"] == found.evidence.kept[10].value
            assert (values["pairs"], values["forwards"]) == (6, found.forwards)
        assert stored["protocols"]["1/4+blur"]["masking"]["name"] == "blur"

    def test_the_sentence_names_the_fewest_that_cannot_be_excluded(self, audit):
        """Not the fewest that are sure: by a protocol that can order nothing, no pair surely contradicts."""
        counts = {"pixels": Estimate(5, 5, 6), "pixels+mean": Estimate(3, 0, 6), "1/4": Estimate(1, 0, 2)}
        changed = {
            name: replace(found, evidence=replace(found.evidence, opposite=counts[name]))
            for name, found in audit.protocols.items()
            if name in counts
        }
        (sentence,) = shown.consistent(replace(audit, protocols=changed))
        assert sentence.startswith("By patches of 1/4 of the side MIF and LIF rank 0 to 2 of 6 ")
        assert "by pixels 5 to 6;" in sentence

    def test_nothing_where_there_is_only_one(self):
        found = fpa.audit(Wavy(), pictures(20), maskings=["constant"], **HOW)
        assert list(shown.rows(found)) == shown.consistent(found) == []
        assert "the same maps by" not in repr(found)

    def test_figures_leave_out_other_features(self, audit):
        from fpa.show.figures.audits import areas_by_masking

        (axis,) = areas_by_masking(audit).axes
        assert [bars.get_label() for bars in axis.containers] == ["constant", "mean"]


class TestCommand:
    QUICK = (
        "--count", "4", "--estimators", "vg_abs,vgx_sum", "--maskings", "constant", "--points", "3",
        "--device", "cpu", "--quiet",
    )  # fmt: skip

    def found(self, folder):
        return list(json.loads((folder / "audit.json").read_text())["protocols"])

    def test_alone_or_with_a_list(self, tmp_path, capsys):
        command = ["audit", "shapes-fpa", *self.QUICK]
        assert main([*command, "--output", str(tmp_path / "usual"), "--protocols"]) == 4
        usual = ["pixels", "1/8", "1/4", "segments:50", "1/8+blur"]
        found = self.found(tmp_path / "usual")
        assert [name for name in usual if name in found] == found
        assert {"1/8", "1/4", "1/8+blur"} <= set(found)  # few segments are found in images of 32 pixels
        some = ["--protocols", "pixels,4,1/8+mean", "--output", str(tmp_path / "some")]
        assert main([*command, *some]) == 4
        assert self.found(tmp_path / "some") == ["pixels", "4", "1/8+mean"]
        assert main(["audit", str(tmp_path / "some"), "--quiet", "--protocols"]) == 2
        assert "judged as it was made" in capsys.readouterr().err
        assert main(["audit", str(tmp_path / "some"), "--quiet", "--output", str(tmp_path / "again")]) == 4
        assert self.found(tmp_path / "again") == ["pixels", "4", "1/8+mean"]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["shapes-fpa", "--protocols", "1/3"], "images of 32 x 32 pixels have 9 (features 1/3)"),
            (["shapes-fpa", "--protocols", "patches"], "features must be"),
            (["--protocols", "shapes-fpa"], "shapes-fpa was read as the value of --protocols: put it first"),
        ],
    )
    def test_bad_words(self, words, message, tmp_path, capsys):
        assert main(["audit", *words, *self.QUICK, "--output", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
