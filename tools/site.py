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


class Options(griffe.Extension):
    """The fields of options as parameters of the functions whose keywords they are.

    `@with_options(EvaluateOptions)` does it at run time; the pages are made without running anything. The
    extension that knows the fields of dataclasses must stand before this one.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when all modules are known."""
        for room in ("evaluation", "auditing"):
            for module in pkg[room].modules.values():
                for function in module.functions.values():
                    for decorator in function.decorators:
                        kind, _, options = str(decorator.value).rstrip(")").partition("(")
                        if kind in ("with_options", "with_keywords"):
                            _document(function, module[options].final_target)


def _document(function: griffe.Function, options: griffe.Class) -> None:
    """Give a function the fields of a class, and what its docstring and those of its bases say of them."""
    helps = {}
    for kind in [*reversed(options.mro()), options]:
        for section in kind.docstring.parse("google") if kind.docstring else ():
            if section.kind is griffe.DocstringSectionKind.attributes:
                helps |= {each.name: " ".join(each.description.split()) for each in section.value}
    fields = [each for each in options.parameters if each.name != "self"]
    fields[0].kind = griffe.ParameterKind.positional_or_keyword  # which only running the dataclass would tell
    leading = [each for each in function.parameters if each.name != "options"]
    function.parameters = griffe.Parameters(*leading, *fields)
    lines = [f"{each.name}: {helps[each.name]}" for each in fields]
    text = function.docstring.value
    function.docstring.value = text.replace("options: Each is a keyword.", "\n    ".join(lines))
