"""Colours, dashes and markers: the same in figures and reports, and never a colour alone."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from fpa.evaluation.result import Results
from fpa.show.summary import groups

# The colours of Okabe and Ito, which colour-blind people can tell apart; their order is that of report.css.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777")
_DASHES = ("-", (0, (3.5, 1.6)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))  # likewise


class Look(NamedTuple):
    """How a line is drawn."""

    colour: str
    dashes: Any
    marker: str
    css: str
    """The classes of report.css that draw it alike."""


def _look(colour: int, dashes: int, marker: str) -> Look:
    return Look(_COLOURS[colour], _DASHES[dashes], marker, f"c{colour} d{dashes}")


_VARIANTS = {"none": _look(0, 1, "s"), "rectangle": _look(1, 3, "^"), "fpa": _look(2, 0, "o")}
_ORDER = ((5, "o"), (2, "s"), (3, "^"), (4, "D"), (6, "v"), (1, "P"), (0, "X"))


def model_looks(names: Iterable[str]) -> dict[str, Look]:
    """The paper's three variants have looks of their own; the others differ for 28 models.

    >>> [look.css for look in model_looks(["none", "mine", "another"]).values()]
    ['c0 d1', 'c5 d0', 'c2 d1']
    """
    looks, others = {}, 0
    for name in names:
        if name in _VARIANTS:
            looks[name] = _VARIANTS[name]
            continue
        colour, marker = _ORDER[others % len(_ORDER)]
        looks[name] = _look(colour, others % len(_DASHES), marker)
        others += 1
    return looks


def estimator_looks(*several: Results) -> dict[str, Look]:
    """Signed estimators have solid lines, unsigned ones dashed, baselines dotted."""
    looks: dict[str, Look] = {}
    for title, dashes in (("Baseline", 2), ("Signed", 0), ("Unsigned", 1)):
        names = dict.fromkeys(name for results in several for name in groups(results).get(title, []))
        order = ((7, ""), *_ORDER) if title == "Baseline" else _ORDER
        for place, name in enumerate(names):
            colour, marker = order[place % len(order)]
            looks[name] = _look(colour, dashes, marker)
    return looks
