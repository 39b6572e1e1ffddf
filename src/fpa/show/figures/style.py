"""What all figures share: fonts, lines, axes, and how they are saved."""

import logging
import re
from collections.abc import Mapping
from contextlib import ExitStack
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fpa.evaluation.rankings import mean_curve
from fpa.evaluation.result import Result, Results
from fpa.files import writable_folder, write_bytes
from fpa.progress import clipped
from fpa.show.names import Look, estimator_names, model_name
from fpa.statistics.intervals import Floats

INK = "#333333"
RED = "#C8102E"
GREY = "#8C8C8C"
PALE = "#E3E3E3"

_STYLE = {
    "font.size": 9, "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "lines.linewidth": 1.4,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "legend.frameon": False,
    "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # fonts that every publisher takes
}  # fmt: skip

styled = style.context(["default", _STYLE])

# The ends of the colour map below: MIF removes the positive scores first.
MIF_COLOUR = "#1B7837"
LIF_COLOUR = "#762A83"
SIGNS = "PRGn"
BEHIND = {"facecolor": "white", "edgecolor": "none", "boxstyle": "square,pad=0.15"}  # text on lines
LONGEST = 16
"""Characters of the name of an estimator."""


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, each whole or not at all; the same figure gives the same bytes."""
    stem = Path(stem)
    writable_folder(stem.parent)
    metadata = {"png": {"Software": None}, "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer"))}
    paths = []
    fonts = logging.getLogger("fontTools")
    with style.context(["default", _STYLE]), ExitStack() as after:
        after.callback(fonts.setLevel, fonts.level)
        fonts.setLevel(logging.ERROR)  # no warnings that the date of a bundled font looks odd
        # Laid out once, so that both files and every later save agree.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for kind, entries in metadata.items():
            # By way of memory: Matplotlib hides the error of a disk that is full while it writes a PDF.
            content = BytesIO()
            figure.savefig(content, format=kind, dpi=200, metadata=entries)
            paths.append(stem.with_name(f"{stem.name}.{kind}"))
            write_bytes(paths[-1], content.getvalue())
    return paths


_CSS_COLOURS = {
    INK: "ink", "#000000": "ink", GREY: "soft", PALE: "edge", "#B5B5B5": "soft", "#FFFFFF": "paper",
    RED: "against", "#E69F00": "orange", "#0072B2": "blue", "#009E73": "green", "#CC79A7": "purple",
    "#D55E00": "red", "#56B4E9": "sky", "#777777": "grey",
}  # fmt: skip
"""The colours of figures by the names that report.css has for them, light and dark."""


def inline_svg(figure: Figure, spoken: str) -> str:
    """A figure as SVG for a page that includes report.css: its colours follow the page's, its text is text.

    `spoken` is what a screen reader says. The same figure gives the same characters.
    """
    settings = {
        **_STYLE,
        "svg.fonttype": "none",
        # Marks are named by their shape and this salt: the same names in two figures are the same shapes.
        "svg.hashsalt": "fpa",
        "font.family": "sans-serif",
        "mathtext.fontset": "dejavusans",
    }
    content = StringIO()
    with style.context(["default", settings]):
        figure.draw_without_rendering()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = content.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    for colour, name in _CSS_COLOURS.items():
        drawing = re.sub(rf"(: ?){colour}\b", rf"\1var(--{name})", drawing, flags=re.IGNORECASE)
    inches = figure.get_figwidth()
    # As wide as it was drawn, or a little wider; on a small screen it is scrolled before it gets too small.
    size = f"width: {inches * 108:.0f}px; max-width: max(100%, {inches * 76:.0f}px)"
    box = re.search(r'viewBox="[^"]*"', drawing)
    opening = f'<svg class="figure" role="img" aria-label="{escape(spoken)}" style="{size}" {box and box[0]}>'
    drawing = re.sub(r"<svg .*?>", lambda _: opening, drawing, count=1, flags=re.DOTALL)
    metadata = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
    return metadata.sub("", drawing).strip()


def plain(text: str, most: int = 60) -> str:
    """Text from data on one line, shortened, and not read as mathematics."""
    return clipped(" ".join(text.split()), most).replace("$", r"\$")


def plain_model(name: str) -> str:
    """The name of a model, likewise."""
    return plain(model_name(name))


def drawn_names(*several: Results) -> dict[str, str]:
    """Every estimator of these results, by name, as figures write it."""
    return estimator_names(*several, style="mathtext", most=LONGEST)


def show_image(axis: Axes, image: NDArray[Any]) -> None:
    """An image [C, H, W] as it is; in grey if it does not have the three channels of colour."""
    channels = image if len(image) == 3 else np.repeat(image.mean(axis=0, keepdims=True), 3, axis=0)
    axis.imshow(channels.astype(image.dtype).transpose(1, 2, 0))
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def grid(rows: int, columns: int, label: str, sharey: Any = "row") -> tuple[Figure, NDArray[Any]]:
    """Panels in rows and columns with one label below them all."""
    wide = min(max(6.6 / columns, 1.15), 1.6)
    figure = Figure(figsize=(max(wide * columns + 0.7, 3.2), 1.45 * rows + 0.8))
    figure.supxlabel(label, fontsize=9)
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey)


def draw_mean(
    axis: Axes, model: Result, side: str, estimator: str, *, look: Look, label: str, marker: str = ""
) -> None:
    """The mean "mif" or "lif" curve of an estimator, with its 95 % interval as a band."""
    x = np.asarray(model.evaluation.fractions, dtype=np.float64)
    mean, half = mean_curve(model, side, estimator)
    axis.fill_between(x, mean - half, mean + half, color=look.colour, alpha=0.18, linewidth=0)
    axis.plot(
        x,
        mean,
        color=look.colour,
        linestyle=look.dashes,
        label=label,
        marker=marker,
        markersize=3.5,
        markevery=(len(x) // 10, max(1, len(x) // 5)),
    )


def percent_axis(axis: Axes) -> None:
    """Percent below, few ticks, a light grid, and a line at 0 where there are both signs."""
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.grid(axis="y", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    low, high = axis.get_ylim()
    if low < 0 < high:
        axis.axhline(0, color="#B5B5B5", linewidth=0.8, zorder=1)


def finish(axes: NDArray[Any]) -> None:
    """The axes of a grid of curves."""
    for axis in axes.flat:
        percent_axis(axis)
    for axis in axes[-1]:  # so that the labels of neighbours do not touch
        axis.get_xticklabels()[0].set_horizontalalignment("left")
        axis.get_xticklabels()[-1].set_horizontalalignment("right")


def mif_and_lif(axis: Axes, x: Floats, mif: Floats, lif: Floats) -> None:
    """The two curves, each with its name beside it, on the far side of the other where they are flat."""
    fine = np.linspace(x[0], x[-1], 201)
    curves = {"MIF": np.interp(fine, x, mif), "LIF": np.interp(fine, x, lif)}
    gap = curves["LIF"] - curves["MIF"]
    reach = 15  # as wide as a name
    windows = [slice(at - reach, at + reach + 1) for at in range(reach, 201 - reach)]
    for name, values, colour, dashes in (
        ("LIF", lif, LIF_COLOUR, "-"),
        ("MIF", mif, MIF_COLOUR, (0, (3.5, 1.6))),
    ):
        axis.plot(x, values, color=colour, linestyle=dashes, label=name)
        curve = curves[name]
        # Where the curves are far apart all along the name, and this one is flat.
        at = max(windows, key=lambda each: np.abs(gap[each]).min() - np.ptp(curve[each]))
        above = (name == "LIF") == (gap[at].mean() >= 0)
        height = curve[at].max() if above else curve[at].min()
        axis.annotate(
            name,
            (float(fine[at].mean()), float(height)),
            (0, 3 if above else -3),
            textcoords="offset points",
            color=colour,
            weight="bold",
            ha="center",
            va="bottom" if above else "top",
        )
    axis.margins(y=0.16)  # room for the names
    percent_axis(axis)


def legend(figure: Figure, title: str, looks: Mapping[str, Look], markers: bool = False) -> None:
    """One legend above all panels."""
    handles = [
        Line2D([], [], color=colour, ls=dashes, marker=marker * markers, ms=4, label=name)
        for name, (colour, dashes, marker, _) in looks.items()
    ]
    columns = min(len(handles), 4)
    figure.set_figheight(figure.get_figheight() + 0.2 * ((len(handles) - 1) // columns))  # panels keep theirs
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=2.8, title=title)


def legend_title(results: Results) -> str:
    """What the models of a legend are: trainings of one study, or any models."""
    return "Trained with" if results.recipe is not None else "Model"
