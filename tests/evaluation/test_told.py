"""What is told before an evaluation begins: what it costs, and maskings that the model does not know."""

import warnings
from html import unescape

import pytest

import fpa
from fpa.notes import Kind, Note, Severity
from fpa.show.words import clause, sentence


@pytest.mark.parametrize(
    ("masking", "evaluated"),
    [
        (None, None),
        ({"name": "constant", "value": 0.0}, None),
        ("blur", {"name": "blur", "sigma": None}),
        ({"name": "constant", "value": 0.5}, {"name": "constant", "value": 0.5}),
    ],
)
def test_a_masking_that_the_model_was_not_trained_with_is_warned_of(masking, evaluated, tmp_path):
    model, how = fpa.load_model("shapes-fpa"), {"count": 3, "points": 3, "progress": False}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fpa.evaluate(model, "shapes", ["vg_abs", "vgx_sum"], masking=masking, **how)
    found = [str(each.message) for each in caught if "masking" in str(each.message)]
    values = {"trained": {"name": "constant", "value": 0.0}, "evaluated": evaluated}
    notes = [] if evaluated is None else [Note(Kind.OTHER_MASKING, Severity.WARNING, values)]
    assert list(result.noted) == notes
    assert found == [clause(note) for note in notes]
    page = unescape(result.report(tmp_path / "report.html").read_text())
    for note in notes:
        assert sentence(note) in page
        assert sentence(note) in " ".join(str(result).split())


def test_a_model_trained_without_masking_knows_none():
    other = fpa.load_model("shapes-none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fpa.evaluate(other, "shapes", ["vg_abs"], masking="blur", count=2, points=3, progress=False)


def test_the_passes_are_told_before_the_work_begins(capsys):
    model, how = fpa.load_model("shapes-fpa"), {"count": 3, "points": 6, "settings": fpa.Settings(ig_steps=7)}
    fpa.evaluate(model, "shapes", ["ig_sum", "vg_abs", "random"], **how)
    first = capsys.readouterr().err.splitlines()[0]
    # 7 steps and a gradient; 3 estimators, MIF and LIF, 4 points between the ends
    passes = Note(Kind.PASSES, values={"gradients": 8, "forwards": 24, "images": 3})
    assert first == f"evaluation: {clause(passes)}"


def test_passes_that_were_made_before_are_not_told(tmp_path, capsys):
    model, how = fpa.load_model("shapes-fpa"), {"points": 3, "folder": tmp_path}
    for _ in range(2):
        fpa.evaluate(model, "shapes", ["vg_abs"], count=3, **how)
    passes = Note(Kind.PASSES, values={"gradients": 1, "forwards": 2, "images": 3})
    assert capsys.readouterr().err.count(clause(passes)) == 1
