"""What tables and reports of an evaluation say about further protocols."""

import re
from html import unescape

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

import fpa
from fpa.show import protocols, show_all
from fpa.show.tables import latex, markdown, results_table, terminal

# Integrated gradients start at 0, whatever is removed: by default they would follow the masking.
SETTINGS = fpa.Settings(ig_steps=3, reference=0.0)
NAMES = ["random", "centre", "ig_sum", "vg_abs", "vgx_abs"]
HOW = {"settings": SETTINGS, "points": 5, "examples": 0, "progress": False}
FURTHER = {"1/4": {"features": 4}, "1/4+blur": {"features": 4, "masking": "blur"}}


@pytest.fixture(scope="module")
def images():
    return torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(1)) - 1


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 5)).eval()


@pytest.fixture(scope="module")
def result(net, images):
    return fpa.evaluate(net, images, NAMES, protocols=list(FURTHER), name="net", **HOW)


@pytest.fixture(scope="module")
def alone(net, images):
    return {name: fpa.evaluate(net, images, NAMES, **how, **HOW) for name, how in FURTHER.items()}


def test_what_a_protocol_says_is_what_it_says_alone(result, alone):
    assert list(result.by_protocol) == ["pixels", *FURTHER]
    own = result.by_protocol["pixels"]
    assert (own.fidelity, own.reliability) == (result.fidelity, result.reliability)
    for name, single in alone.items():
        found = result.by_protocol[name]
        assert set(found.fidelity) == set(NAMES) - {"centre"}  # model-free maps rank nothing
        for estimator, fidelity in found.fidelity.items():
            assert fidelity.area == single.fidelity[estimator].area
            assert fidelity.interval == single.fidelity[estimator].interval
        assert found.reliability.opposite == single.reliability.opposite
        assert found.features == "1/4"


def test_a_stored_result_says_the_same(result, tmp_path):
    again = fpa.load_result(result.save(tmp_path / "saved"))
    for name, found in result.by_protocol.items():
        assert again.by_protocol[name].opposite == found.opposite
        assert again.by_protocol[name].fidelity["ig_sum"].area == found.fidelity["ig_sum"].area


def test_the_csv_has_a_and_the_pairs_in_opposite_order(result, alone, tmp_path):
    show_all(result.results, tmp_path, only=["tables"])
    table = pd.read_csv(tmp_path / "table.csv").set_index("estimator")
    for name, single in alone.items():
        counts = single.reliability.counts("signed-unsigned")
        assert set(table[f"contradictions_by_{name}"]) == {counts.significant}
        assert set(table[f"ordered_oppositely_by_{name}"]) == {counts.opposite}
        assert set(table[f"signed_unsigned_pairs_by_{name}"]) == {counts.pairs} == {2}
        for estimator in ("ig_sum", "vg_abs"):
            fidelity = single.fidelity[estimator]
            assert table.loc[estimator, f"area_by_{name}"] == pytest.approx(fidelity.area, rel=1e-5)
            assert table.loc[estimator, f"interval_by_{name}"] == pytest.approx(fidelity.interval, rel=1e-5)
        assert pd.isna(table.loc["centre", f"area_by_{name}"])


def cells(alone):
    """A as tables show it, by protocol and estimator."""
    for single in alone.values():
        for estimator in ("ig_sum", "vg_abs", "vgx_abs"):
            fidelity = single.fidelity[estimator]
            yield f"{fidelity.area:.1f} ± {fidelity.interval:.1f}"


def test_a_terminal_of_80_columns_shows_one_table(result, alone, capsys):
    Console(width=80, force_terminal=False).print(terminal(result.results))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    _, header, counted, *_ = out[out.index(protocols.HEADING) :].splitlines()
    assert header.split() == ["estimator", "pixels", *FURTHER]
    found = " ".join(counted.split()[2:])
    ranges = [each.reliability.opposite["signed-unsigned"] for each in (result, *alone.values())]
    shown = [f"{low:.0f} to {high:.0f}" if low < high else f"{low:.0f}" for _, low, high in ranges]
    assert found == " ".join(f"{each} of 2" for each in shown)
    for cell in cells(alone):
        assert cell in out
    (sentence,) = protocols.sentences(result.results)
    assert sentence in " ".join(out.split())


def test_markdown_latex_and_report_show_it(result, alone, tmp_path):
    page = unescape(result.report(tmp_path / "report.html").read_text(encoding="utf-8"))
    section = page[page.index('id="by-protocol"') :]
    end = section.index("</p>", section.index("</table>"))  # the sentence stands beside the table
    text = " ".join(re.sub(r"<[^>]+>", " ", section[:end]).split())
    for cell in cells(alone):
        assert cell.replace("-", "−") in text
        assert cell in markdown(result.results)
        assert cell.split(" ")[0] in latex(result.results)
    assert protocols.sentences(result.results)[0] in text


def test_one_protocol_has_no_such_table(net, images):
    single = fpa.evaluate(net, images, NAMES, **HOW)
    assert protocols.HEADING not in str(single)
    assert not [column for column in results_table(single.results) if "_by_" in column]


def test_names_say_what_is_removed_and_how(net, images):
    """The usual masking goes without saying; one beside the plan's own removes the same features."""
    how = {"points": 3, "examples": 0, "progress": False}
    further = {"1/4": "1/4", "plain": fpa.Protocol("1/4", fpa.get_masking("constant"))}
    found = fpa.evaluate(
        net, images[:2], ["vg_abs"], masking="blur", maskings={"mean": "mean"}, protocols=further, **how
    )
    assert list(found.by_protocol) == ["pixels+blur", "pixels+mean", "1/4+blur", "plain"]
