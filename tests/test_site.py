import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location(
        "site_hooks", Path(__file__).parents[1] / "tools" / "site.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml_and_code_stays(site):
    html = site.on_page_content(
        "<p>$m_i$, $\\bar<em>n \\rho</em>{S}$</p><code>$PATH $HOME</code>$$A = \\frac1n$$"
    )
    assert html.count("<math") == 3
    assert "<msub><mi>m</mi><mi>i</mi></msub>" in html
    assert "<em>" not in html
    assert "<code>$PATH $HOME</code>" in html
    assert 'display="block"' in html


def test_examples_of_docstrings_become_code(site):
    assert site._fenced(">>> 1 + 1\n2") == "```pycon\n>>> 1 + 1\n2\n```"
    assert site._fenced("Text with >>> in it.") == "Text with >>> in it."
