"""What `mkdocs build` adds to pages and docstrings: formulas become MathML, examples become code.

Both work without a script from elsewhere, and offline.
"""

import re
from html import unescape
from typing import Any

import griffe
from latex2mathml.converter import convert

CODE = re.compile(r"(<pre.*?</pre>|<code.*?</code>)", re.S)
FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$")


def on_page_content(html: str, **_: Any) -> str:
    """The HTML of a page with its formulas as MathML; called by MkDocs."""
    parts = CODE.split(html)
    parts[::2] = [FORMULA.sub(_mathml, part) for part in parts[::2]]
    return "".join(parts)


def _mathml(found: re.Match[str]) -> str:
    formula = re.sub(r"</?em>", "_", found[1] or found[2])  # Markdown takes two underscores for emphasis
    mathml = str(convert(unescape(formula), display="block" if found[1] else "inline"))
    return mathml.replace("<mi>&#x029F5;</mi>", "<mo>\\</mo>")  # the minus of sets is in few fonts


class Examples(griffe.Extension):
    """Examples of docstrings, `>>> ...`, as blocks of code: Markdown takes them for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object with its docstring."""
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(_fenced, paragraphs))


def _fenced(paragraph: str) -> str:
    return f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph
