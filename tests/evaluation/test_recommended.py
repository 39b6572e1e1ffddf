"""Evaluations and audits name the protocol that errs least where the truth is known."""

import pytest
import torch
from torch import nn

import fpa
from fpa.evaluation.recommended import ERRORS, RECOMMENDED, recommendation
from fpa.notes import Kind

NAMES = ["random", "vgx_sum", "vg_abs"]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3)).eval()


def evaluated(net, **options):
    return fpa.evaluate(net, torch.randn(6, 3, 16, 16), NAMES, points=5, progress=False, **options)


def test_no_measured_protocol_errs_less_than_the_recommended_one():
    for place in range(3):
        assert min(ERRORS, key=lambda name: ERRORS[name][place]) == RECOMMENDED


def test_the_recommended_protocol_is_named_with_its_errors_and_those_of_the_one_used(net):
    (note,) = recommendation(evaluated(net).description)
    assert note.kind is Kind.RECOMMENDED_PROTOCOL
    best = ERRORS[RECOMMENDED]
    own = ERRORS["pixels"]
    assert note.values["errors"] == [best.untouched, best.trained]
    assert note.values["own_errors"] == [own.untouched, own.trained]
    assert not note.values["shown"]


def test_a_twin_that_judges_has_its_own_errors(net):
    (note,) = recommendation(evaluated(net, judge=net).description)
    assert note.values["errors"] == [ERRORS[RECOMMENDED].untouched, ERRORS[RECOMMENDED].twin]


def test_what_was_not_measured_has_no_errors(net):
    (note,) = recommendation(evaluated(net, masking="uniform").description)
    assert note.values["own_errors"] is None


def test_it_says_where_it_is_shown_and_nothing_where_it_is_used(net):
    (note,) = recommendation(evaluated(net, protocols=[RECOMMENDED]).description)
    assert note.values["shown"]
    assert not recommendation(evaluated(net, features="1/8", masking="blur").description)


def test_evaluation_and_report_show_it(net, tmp_path):
    result = evaluated(net)
    assert RECOMMENDED in str(result)
    assert RECOMMENDED in result.report(tmp_path / "report.html").read_text()
