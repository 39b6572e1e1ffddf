import importlib.util
import inspect
from pathlib import Path

import pytest

import fpa

SOURCE = Path(__file__).parents[1] / "src"


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


def test_the_options_of_an_evaluation_are_parameters_on_its_page(site):
    import griffe

    extensions = griffe.load_extensions("dataclasses", site.Options())
    package = griffe.load("fpa", search_paths=[str(SOURCE)], extensions=extensions)
    function = package["evaluation.evaluator.evaluate"]
    shown = [(each.name, str(each.kind.value), str(each.default)) for each in function.parameters]
    expected = [
        (each.name, each.kind.description, repr(each.default) if each.default is not each.empty else "None")
        for each in inspect.signature(fpa.evaluate).parameters.values()
    ]
    assert shown == expected
    (_, arguments, *_) = function.docstring.parse("google")
    assert [each.name for each in arguments.value] == [name for name, _, _ in expected]
    assert all(len(each.description) > 10 for each in arguments.value)
