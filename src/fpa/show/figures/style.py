"""What all figures share: colours, lines, axes."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fpa.errors import InputError, unknown
from fpa.files import replacing, writable_folder
from fpa.progress import shortened
from fpa.show.names import augmentation_name, estimator_name
from fpa.study.results import ModelResult, Study

Floats = NDArray[np.float64]


_INK, _RED, _GREY, _PALE = "#333333", "#C8102E", "#8C8C8C", "#E3E3E3"


_STYLE = {
    "font.size": 9, "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "lines.linewidth": 1.4,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "legend.frameon": False,
    "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # fonts that every publisher takes
}  # fmt: skip


_styled = style.context(["default", _STYLE])


_MIF, _LIF = "#1B7837", "#762A83"  # the ends of the colour map below: MIF removes the positive scores first


_SIGNS = "PRGn"


_BEHIND = {"facecolor": "white", "edgecolor": "none", "boxstyle": "square,pad=0.15"}  # text on lines


class _Look(NamedTuple):
    colour: str
    dashes: Any
    marker: str


# The colours of Okabe and Ito, that colour-blind people can tell apart.
_AUGMENTATIONS = {
    "none": _Look("#000000", (0, (3.5, 1.6)), "s"),
    "rectangle": _Look("#E69F00", (0, (5, 1.5, 1, 1.5)), "^"),
    "fpa": _Look("#0072B2", "-", "o"),
}


_MOST = 16  # characters of the name of an estimator


_OTHERS = [
    _Look("#D55E00", "-", "o"),
    _Look("#0072B2", (0, (5, 1.5)), "s"),
    _Look("#009E73", (0, (5, 1.5, 1, 1.5)), "^"),
    _Look("#CC79A7", (0, (2, 1)), "D"),
    _Look("#56B4E9", "-", "v"),
    _Look("#E69F00", (0, (5, 1.5)), "P"),
    _Look("#000000", (0, (5, 1.5, 1, 1.5, 1, 1.5)), "X"),
]


_RANDOM = _Look("#777777", (0, (1, 1.2)), "")


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, each whole or not at all; the same figure gives the same bytes."""
    stem = Path(stem)
    writable_folder(stem.parent)
    metadata: dict[str, dict[str, Any]] = {
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    paths = []
    with style.context(["default", _STYLE]), _quiet_fonts():
        # Laid out once, so that both files and every later save agree.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for suffix, entries in metadata.items():
            path = stem.with_name(stem.name + suffix)
            # By way of memory: Matplotlib hides the error of a disk that is full while it writes a PDF.
            content = BytesIO()
            figure.savefig(content, format=suffix[1:], dpi=200, metadata=entries)
            with replacing(path) as temporary:
                temporary.write_bytes(content.getvalue())
            paths.append(path)
    return paths


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Without fontTools' warnings that the date of a bundled font looks odd."""
    logger = logging.getLogger("fontTools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _plain(text: str, most: int = 60) -> str:
    """Text from data on one line, shortened, and not read as mathematics."""
    return shortened(" ".join(text.split()), most).replace("$", r"\$")


def _estimator(name: str) -> str:
    return estimator_name(name, "mathtext", _MOST)


def _augmentation(name: str) -> str:
    return _plain(augmentation_name(name))


def _augmentation_looks(names: Iterable[str]) -> dict[str, _Look]:
    others = cycle(_OTHERS)
    return {name: _AUGMENTATIONS.get(name) or next(others) for name in names}


def _model(study: Study, augmentation: str) -> ModelResult:
    if augmentation not in study.models:
        raise unknown("augmentation", augmentation, study.models)
    return study.models[augmentation]


def _of_sign(study: Study, signed: bool) -> list[str]:
    return [name for name in study.estimators if study.signed.get(name) is signed]


def _group(study: Study, signed: bool) -> list[str]:
    names = _of_sign(study, signed)
    if not names:
        raise InputError(f"the study {study.name!r} has no {'signed' if signed else 'unsigned'} estimators")
    return [name for name in study.estimators if name == "random"] + names


def _output(study: Study) -> str:
    first = next(iter(next(iter(study.models.values())).fidelity.values()))
    return "Normalised logit" if first.normalise == "each" else "Output"


def _mean(model: ModelResult, side: str, estimator: str) -> tuple[Floats, Floats]:
    """The mean curve over the images kept and half the width of its 95 % interval, [K] each."""
    found, evaluation = model.fidelity[estimator], model.evaluation
    curves = np.asarray(getattr(evaluation, side)[estimator], dtype=np.float64)[found.kept]
    if found.normalise == "each":
        curves = curves / np.asarray(evaluation.unmasked, dtype=np.float64)[found.kept, None]
    spread = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
    return curves.mean(axis=0), 1.96 * spread / np.sqrt(len(curves))


def _show(axis: Axes, image: NDArray[Any]) -> None:
    """An image [C, H, W] as it is; in grey if it does not have the three channels of colour."""
    channels = image if len(image) == 3 else np.repeat(image.mean(axis=0, keepdims=True), 3, axis=0)
    axis.imshow(channels.astype(image.dtype).transpose(1, 2, 0))
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def _grid(rows: int, columns: int, label: str, sharey: Any = "row") -> tuple[Figure, NDArray[Any]]:
    wide = min(max(6.6 / columns, 1.15), 1.6)
    figure = Figure(figsize=(max(wide * columns + 0.7, 3.2), 1.45 * rows + 0.8))
    figure.supxlabel(label, fontsize=9)
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey)


def _draw(
    axis: Axes, model: ModelResult, side: str, estimator: str, look: _Look, *, markers: bool = False
) -> None:
    x = np.asarray(model.evaluation.fractions, dtype=np.float64)
    mean, half = _mean(model, side, estimator)
    axis.fill_between(x, mean - half, mean + half, color=look.colour, alpha=0.18, linewidth=0)
    axis.plot(
        x, mean, color=look.colour, linestyle=look.dashes, label=estimator if markers else model.augmentation,
        marker=look.marker if markers else "", markersize=3.5, markevery=(len(x) // 10, max(1, len(x) // 5)),
    )  # fmt: skip


def _axis(axis: Axes) -> None:
    """Percent below, few ticks, a light grid, and a line at 0 where there are both signs."""
    axis.set_xlim(0, 1)
    axis.set_xticks((0, 0.5, 1))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.grid(axis="y", color=_PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    low, high = axis.get_ylim()
    if low < 0 < high:
        axis.axhline(0, color="#B5B5B5", linewidth=0.8, zorder=1)


def _finish(axes: NDArray[Any]) -> None:
    for axis in axes.flat:
        _axis(axis)
    for axis in axes[-1]:  # so that the labels of neighbours do not touch
        axis.get_xticklabels()[0].set_horizontalalignment("left")
        axis.get_xticklabels()[-1].set_horizontalalignment("right")


def _mif_and_lif(axis: Axes, x: Floats, mif: Floats, lif: Floats) -> None:
    """The two curves, their names written on them where they are far apart."""
    for name, curve, colour, dashes in (("LIF", lif, _LIF, "-"), ("MIF", mif, _MIF, (0, (3.5, 1.6)))):
        axis.plot(x, curve, color=colour, linestyle=dashes, label=name)
    _axis(axis)
    gap = x[int(np.argmax(np.abs(lif - mif)))]
    for name, curve, colour, place in (("LIF", lif, _LIF, (gap + 1) / 2), ("MIF", mif, _MIF, gap / 2)):
        height = float(np.interp(place, x, curve))
        axis.text(place, height, name, color=colour, weight="bold", ha="center", va="center", bbox=_BEHIND)


def _legend(figure: Figure, title: str, looks: dict[str, _Look], markers: bool = False) -> None:
    """One legend above all panels."""
    handles = [
        Line2D([], [], color=colour, linestyle=dashes, marker=marker if markers else "", ms=4, label=name)
        for name, (colour, dashes, marker) in looks.items()
    ]
    columns = min(len(handles), 4)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=2.8, title=title)
