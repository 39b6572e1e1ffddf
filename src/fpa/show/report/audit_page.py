"""The page of an audit: verdict, evidence and three figures in one HTML file that loads nothing."""

from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from fpa.auditing.rule import FEWEST_IMAGES, LEAST_KEPT, MASKED, MEANINGS
from fpa.auditing.verdict import Audit, Row
from fpa.files import writable_folder, write_text
from fpa.show.names import estimator_name
from fpa.show.report.page import page_environment

if TYPE_CHECKING:
    from markupsafe import Markup


# Figures are this wide in their own units, so that text stays readable where a phone shrinks nothing.
_WIDE = 360

_MARKS = ("circle", "square", "diamond", "triangle")
_COLOURS = ("c2", "c1", "c3", "c4", "c5", "c6")


def write_audit(audit: Audit, path: str | Path) -> Path:
    """Write the page of an audit to `path`, in one piece; the same audit gives the same bytes."""
    from markupsafe import Markup

    target = Path(path)
    writable_folder(target.parent)
    files = resources.files("fpa.show.report")
    css = "".join((files / name).read_text(encoding="utf-8") for name in ("report.css", "audit.css"))
    page = page_environment().get_template("audit.html.jinja")
    figures = {"decay": decay(audit), "slopes": slopes(audit), "dots": dots(audit)} if audit.kept else {}
    marks = [Markup(_mark(shape, 7, 5)) for shape in _MARKS]
    colours = [_COLOURS[place % len(_COLOURS)] for place in range(len(audit.maskings))]
    meaning = MEANINGS[audit.verdict]
    text = page.render(
        audit=audit,
        meaning=meaning[0].upper() + meaning[1:],
        groups=_groups(audit),
        names=_names(audit),
        figures=figures,
        marks=marks,
        colours=colours,
        fewest=FEWEST_IMAGES,
        css=Markup(css),
    )
    write_text(target, text)
    return target


def audit_fragment(audit: Audit) -> str:
    """The verdict with its evidence as HTML for a notebook, in the notebook's own style."""
    page = page_environment().get_template("audit-fragment.jinja")
    return page.render(audit=audit, groups=_groups(audit), names=_names(audit))


def decay(audit: Audit) -> "Markup":
    """How the logit and the accuracy fall under random masking, with the limit of the rule."""
    left, right, top, bottom = 46, 20, 12, 34
    high = max(1.0, *(estimate.high for estimate in (*audit.kept, *audit.right)))
    low = min(0.0, *(estimate.low for estimate in (*audit.kept, *audit.right)))
    tall = 230

    def x(share: float) -> float:
        return left + share * (_WIDE - left - right)

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * (tall - top - bottom)

    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line("grid", x(0), y(value), x(1), y(value)))
        parts.append(_text(left - 6, y(value) + 4, f"{100 * value:.0f} %", "end"))
    for percent in (0, *MASKED, 100):
        parts.append(_text(x(percent / 100), tall - bottom + 16, f"{percent} %", "middle"))
    for percent in MASKED:
        parts.append(_line("grid", x(percent / 100), y(high), x(percent / 100), y(low)))
    parts.append(_text(x(0.5), tall - 3, "pixels masked at random", "middle"))
    for line, estimates in (("c2 d0", audit.kept), ("c1 d1", audit.right)):
        if not estimates:  # too few labels
            continue
        middle, down, up = (
            [f"{x(at):.1f} {y(value):.1f}" for at, value in zip(audit.fractions, values, strict=True)]
            for values in zip(*estimates, strict=True)
        )
        parts.append(f'<path class="band {line}" d="M{"L".join([*up, *reversed(down)])}Z"/>')
        parts.append(f'<path class="line {line}" d="M{"L".join(middle)}"/>')
    at = x(MASKED[0] / 100)
    parts.append(_line("limit", at - 12, y(LEAST_KEPT), at + 12, y(LEAST_KEPT)))
    return _svg(tall, parts, "Logit and accuracy under random masking")


def slopes(audit: Audit) -> "Markup":
    """The rank of every estimator by MIF and by LIF; lines of signed-unsigned contradictions are red."""
    reliability = audit.reliability
    assert reliability is not None
    left, right, top, step = 104, _WIDE - 104, 26, 24
    places = {
        name: (
            top + step * reliability.by_mif.index(name) + 8,
            top + step * reliability.by_lif.index(name) + 8,
        )
        for name in reliability.by_mif
    }
    mixed = [pair for pair in reliability.contradictions if pair.kind == "signed-unsigned"]
    red = {name for pair in mixed for name in (pair.first, pair.second)}
    parts = [_text(left, 14, "rank by MIF", "middle"), _text(right, 14, "rank by LIF", "middle")]
    for name in sorted(places, key=lambda name: name in red):
        start, end = places[name]
        kind = "signed" if audit.signed[name] else "unsigned"
        against = " against" if name in red else ""
        parts.append(f'<g class="slope {kind}{against}">{_line("", left, start, right, end)}')
        parts.append(_mark("circle" if audit.signed[name] else "square", left, start))
        parts.append(_mark("circle" if audit.signed[name] else "square", right, end))
        shown = _estimator(audit, name)
        parts.append(_text(left - 10, start + 4, shown, "end") + _text(right + 10, end + 4, shown))
        parts.append("</g>")
    return _svg(top + step * len(places), parts, "The rank of every estimator by MIF and by LIF")


def dots(audit: Audit) -> "Markup":
    """A of every estimator under every masking, with its interval."""
    from matplotlib.ticker import MaxNLocator

    assert audit.reliability is not None
    left, right, top, bottom, step = 84, 12, 4, 34, 24
    names = audit.reliability.by_area
    ends = [end for areas in audit.areas.values() for name in names for end in areas[name][1:]]
    low, high = min(0.0, *ends), max(1.0, *ends)
    tall = top + step * len(names) + bottom

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (_WIDE - left - right)

    parts = []
    ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    for value in (tick for tick in ticks if low <= tick <= high):
        parts.append(_line("rule" if value == 0 else "grid", x(value), top, x(value), tall - bottom))
        parts.append(_text(x(value), tall - bottom + 16, f"{value:g}".replace("-", "−"), "middle"))
    parts.append(_text(x((low + high) / 2), tall - 3, "fidelity A in percent", "middle"))
    for row, name in enumerate(names):
        middle = top + step * (row + 0.5)
        parts.append(_text(left - 10, middle + 4, _estimator(audit, name), "end"))
        for place, areas in enumerate(audit.areas.values()):
            height = middle + (place - (len(audit.areas) - 1) / 2) * 4.5
            estimate = areas[name]
            parts.append(f'<g class="dots {_COLOURS[place % len(_COLOURS)]}">')
            parts.append(_line("", x(estimate.low), height, x(estimate.high), height))
            parts.append(_mark(_MARKS[place % len(_MARKS)], x(estimate.value), height, 3.4) + "</g>")
    return _svg(tall, parts, "A of every estimator under every masking")


def _groups(audit: Audit) -> dict[str, list[Row]]:
    return {title: list(rows) for title, rows in groupby(audit.rows, lambda row: row.group)}


def _svg(tall: float, parts: Sequence[str], label: str) -> "Markup":
    from markupsafe import Markup

    return Markup(
        f'<svg viewBox="0 0 {_WIDE} {tall:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _estimator(audit: Audit, name: str) -> str:
    """The name of an estimator in a figure, its reduction as a subscript; long names are cut."""
    shown = estimator_name(name, "html", label=audit.labels.get(name), most=14)
    return shown.replace("<sub>", '<tspan class="below" dy="3">').replace("</sub>", "</tspan>")


def _names(audit: Audit) -> "dict[str, Markup]":
    """The estimators as the table of the evidence shows them."""
    from markupsafe import Markup

    return {name: Markup(estimator_name(name, "html", label=audit.labels.get(name))) for name in audit.signed}


def _mark(shape: str, x: float, y: float, size: float = 4) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        "triangle": ((0, -1.2), (1.2, 0.9), (-1.2, 0.9)),
    }[shape]
    return f'<path d="M{"L".join(f"{x + size * a:.1f} {y + size * b:.1f}" for a, b in corners)}Z"/>'
