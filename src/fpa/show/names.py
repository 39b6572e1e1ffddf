"""How estimators and models are called and drawn, never by a colour alone."""

import html
from collections import Counter
from collections.abc import Callable, Collection
from itertools import cycle
from typing import Any, NamedTuple

from fpa.errors import printable
from fpa.evaluation.result import Results
from fpa.explanation.facts import Label
from fpa.progress import clipped
from fpa.show.families import family_of
from fpa.show.summary import TRUTH, groups

_VARIANTS = {"none": "None", "rectangle": "Rectangle", "fpa": "FPA"}

_TEX: dict[str, str | int | None] = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$",
    "\n": " ",
}  # fmt: skip
_MARKDOWN: dict[str, str | int | None] = {
    "|": "\\|", "<": "&lt;", ">": "&gt;", "`": "\\`", "[": "\\[", "\n": " ",
}  # fmt: skip


def tex(text: str) -> str:
    r"""A text for LaTeX, none of which is a command.

    >>> tex(r"50 % of \input{x}")
    '50\\,\\% of \\textbackslash{}input\\{x\\}'
    """
    return text.translate(str.maketrans(_TEX)).replace(" \\%", "\\,\\%")


def markdown_text(text: str) -> str:
    r"""A text for a cell of a table in Markdown, without HTML, links or further cells.

    >>> markdown_text("<b>|")
    '&lt;b&gt;\\|'
    """
    return text.translate(str.maketrans(_MARKDOWN))


_FORMS: dict[str, tuple[str, str, Callable[[str], str]]] = {  # the prime, the reduction, what escapes names
    "text": ("'", "_{}", str),
    "mathtext": ("′", "$_\\mathrm{{{}}}$", lambda text: text.replace("$", "\\$")),
    "html": ("′", "<sub>{}</sub>", html.escape),
    "latex": ("$'$", "\\textsubscript{{{}}}", tex),
}


def estimator_name(
    name: str, style: str = "text", *, label: Label | None = None, most: int | None = None
) -> str:
    r"""An estimator the way the paper writes it: as "text", "mathtext" (figures), "html" or "latex".

    `label` has the parts of the name; without it the name is shown as it is. Both are
    escaped where the style needs it, and clipped to `most` characters.

    >>> estimator_name("vgx_sum", label=Label("vgx_sum", "VG", True, "sum"))
    "VG'_sum"
    >>> estimator_name("sqsg_sum", "html", label=Label("sqsg_sum", "SQ-SG", reduction="sum"))
    'SQ-SG<sub>sum</sub>'
    >>> estimator_name("my_map<1>", "html"), estimator_name("my_map", "latex")
    ('my_map&lt;1&gt;', 'my\\_map')
    """
    prime, below, escaped = _FORMS[style]
    label = label or Label(name, name)
    text = escaped(clipped(printable(label.name), most)) + (prime if label.prime else "")
    return text + (below.format(label.reduction) if label.reduction else "")


def estimator_names(*several: Results, style: str = "text", most: int | None = None) -> dict[str, str]:
    """Every estimator of these results, by name, as people see it."""
    return {
        name: estimator_name(name, style, label=facts.label, most=most)
        for results in several
        for name, facts in results.first.description.plan.estimators.items()
    }


def model_name(name: str) -> str:
    """A variant of a study, an augmentation, or any other model, as people see it.

    >>> model_name("fpa"), model_name("mine")
    ('FPA', 'mine')
    """
    return _VARIANTS.get(name, printable(name))


# The colours of Okabe and Ito, which colour-blind people can tell apart; their order is that of report.css.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777")
_DASHES: tuple[Any, ...] = (  # likewise; solid, dashed, dotted and dash-dotted lines in four variations
    "-", (0, (3.5, 1.6)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)),
    (0, (9, 1.2)), (0, (1.8, 1.4)), (0, (1, 2.4)), (0, (2.5, 1.5, 1, 1.5)),
    (0, (9, 1.2, 2, 1.2)), (0, (6, 1.6)), (0, (1, 1.2, 1, 3)), (0, (5, 1.5, 1, 1.5, 1, 1.5)),
    (0, (14, 1.2, 1, 1.2)), (0, (3.5, 1.2, 1.2, 1.2)), (0, (1, 1.2, 1, 1.2, 1, 3.5)), (0, (9, 1.5, 1, 1.5)),
)  # fmt: skip


class Look(NamedTuple):
    """How a line is drawn."""

    colour: str
    dashes: Any
    marker: str
    css: str
    """The classes of report.css that draw it alike."""


def _look(colour: int, marker: str, dashes: int) -> Look:
    return Look(COLOURS[colour], _DASHES[dashes], marker, f"c{colour} d{dashes}")


_VARIANT_LOOKS = {"none": _look(0, "s", 1), "rectangle": _look(1, "^", 3), "fpa": _look(2, "o", 0)}
_ORDER = ((5, "o"), (2, "s"), (3, "^"), (4, "D"), (6, "v"), (1, "P"), (0, "X"))


_FAMILIES = {"ig": 5, "vg": 2, "sg": 3, "sqsg": 4, "cam": 6, "model-free": 7}


def model_looks(names: Collection[str]) -> dict[str, Look]:
    """The paper's three variants have looks of their own; the others differ for 28 models.

    >>> [look.css for look in model_looks(["none", "mine", "another"]).values()]
    ['c0 d1', 'c5 d0', 'c2 d1']
    """
    looks = dict(_VARIANT_LOOKS)
    # 7 colours and 4 dashes have no common divisor: counted together, they repeat after 28 models only.
    for place, name in enumerate(name for name in names if name not in _VARIANT_LOOKS):
        looks[name] = _look(*_ORDER[place % len(_ORDER)], place % 4)
    return {name: looks[name] for name in names}


def estimator_looks(*several: Results) -> dict[str, Look]:
    """A colour for each family; signed ones are solid, unsigned dashed, baselines dotted, twins dash-dotted.

    Where a family has several estimators of a kind, their dashes differ; markers differ within a kind. The
    families of the paper have the same colours in all results.
    """
    kinds = {"Signed": 0, "Unsigned": 1, "Baseline": 2, "Blurred twin": 3, TRUTH: 0}
    facts = {name: own for each in several for name, own in each.first.description.plan.estimators.items()}
    colours = dict(_FAMILIES)
    looks: dict[str, Look] = {}
    free = [colour for colour, _ in _ORDER if colour not in colours.values()]
    of_kind = Counter[tuple[str, str]]()
    for title, names in groups(*several).items():
        for name, (_, marker) in zip(names, cycle(_ORDER), strict=False):
            family = family_of(name, facts[name])
            colour = colours.setdefault(family, free[(len(colours) - len(_FAMILIES)) % len(free)])
            dashes = kinds[title] + 4 * (of_kind[family, title] % 4)
            looks[name] = _look(colour, "" if title == "Baseline" else marker, dashes)
            of_kind[family, title] += 1
    return looks
