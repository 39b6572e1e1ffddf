"""The figures of a study, a function each: they take results and return a matplotlib `Figure`.

`save` writes a figure as PNG and PDF, `save_study_figures` all of a study's. A colour never stands alone:
every augmentation and every estimator has its own line style and marker, so that figures can be read in grey.
Nothing here touches pyplot or the settings of the caller.
"""

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from fpa.augment import FPA, Rectangle
from fpa.errors import InputError, unknown
from fpa.names import augmentation_name, estimator_name, shortened
from fpa.results import ModelResult, Study
from fpa.store import replacing, writable_folder
from fpa.tables import opposite_pairs, study_titles

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


@_styled
def fpa_examples(
    images: NDArray[Any],
    perturbation: "NDArray[np.bool_] | FPA | Rectangle",
    *,
    fill: NDArray[Any] | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
) -> Figure:
    """Images above, the same images perturbed below, with the share of pixels that is masked.

    >>> images = np.zeros((4, 3, 32, 32), dtype=np.uint8)
    >>> figure = fpa_examples(images, FPA(p1_max=0.25, p2=0.1, s_max=3))

    - `images` [M, C, H, W]: bytes, or floats from 0 to 1.
    - `perturbation`: masks, bool [M, H, W], or an augmentation that draws one an image from `seed`, each as
      if it were a mini-batch that is perturbed.
    - `fill` [M, C, H, W]: what the fully masked images look like; default: mid-grey.
    - `names`: a title for every image.
    """
    masks = _masks(images, perturbation, seed)
    if fill is None:
        fill = np.full_like(images, 128 if images.dtype == np.uint8 else 0.5)
    count = len(images)
    figure = Figure(figsize=(max(0.95 * count + 0.3, 2.4), 2.4))
    axes = figure.subplots(2, count, squeeze=False)
    for column in range(count):
        _show(axes[0, column], images[column])
        _show(axes[1, column], np.where(masks[column], fill[column], images[column]))
        axes[1, column].set_xlabel(f"{masks[column].mean():.0%} masked", fontsize=8)
        if names:
            axes[0, column].set_title(_plain(names[column], 12), fontsize=8)
    axes[0, 0].set_ylabel("Original")
    axes[1, 0].set_ylabel("Perturbed")
    return figure


@_styled
def definition_of_area(fractions: ArrayLike, mif: ArrayLike, lif: ArrayLike, title: str = "") -> Figure:
    """The fidelity A: the area between a LIF and a MIF curve, shaded; hatched where it counts as negative.

    >>> figure = definition_of_area([0, 0.5, 1], mif=[1, 0.2, 0], lif=[1, 0.9, 0])
    >>> figure.axes[0].get_title()
    'Fidelity A = 35.0'
    """
    x, low, high = (np.asarray(values, dtype=np.float64) for values in (fractions, mif, lif))
    area = 100 * np.trapezoid(high - low, x)
    figure = Figure(figsize=(3.4, 2.7))
    axis = figure.subplots()
    axis.fill_between(x, low, high, where=high >= low, interpolate=True, color="#D6E6F2", lw=0)
    axis.fill_between(
        x, low, high, where=high < low, interpolate=True, fc=_PALE, ec=_GREY, hatch="////", lw=0
    )
    _mif_and_lif(axis, x, low, high)
    gap = int(np.argmax(np.abs(high - low)))
    if abs(high[gap] - low[gap]) > 0.2 * (max(high.max(), low.max()) - min(high.min(), low.min())):
        axis.text(x[gap], (high[gap] + low[gap]) / 2, "A", size=13, style="italic", ha="center", va="center")
    axis.set_title(f"Fidelity A = {area:.1f}" + (f"\n{title}" if title else ""))
    axis.set(xlabel="Pixels masked", ylabel="Normalised logit")
    return figure


@_styled
def perturbation_curves(study: Study, signed: bool | None = True) -> Figure:
    """Perturbation curves, MIF above LIF, an estimator a column (random first), an augmentation a line.

    Shown are the signed or the unsigned estimators, or with None all of them.
    Each image's curve is divided by its own unmasked logit; the mean over the images the study keeps, with
    its 95 % interval as a band.
    """
    names = study.estimators if signed is None else _group(study, signed)
    looks = _augmentation_looks(study.models)
    figure, axes = _grid(2, len(names), "Pixels masked")
    for row, side in zip(axes, ("mif", "lif"), strict=True):
        for axis, name in zip(row, names, strict=True):
            for augmentation, look in looks.items():
                _draw(axis, study.models[augmentation], side, name, look)
        row[0].set_ylabel(f"{side.upper()}\n{_output(study)}")
    _finish(axes)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(_estimator(name))
    what = "Augmentation" if study.recipe else "Model"
    _legend(figure, what, {_augmentation(name): look for name, look in looks.items()})
    return figure


@_styled
def lif_over_scores(
    study: Study, augmentation: str = "fpa", estimators: Sequence[str] | None = None
) -> Figure:
    """LIF curves above the importance scores of the pixels in the order they are masked, on the same x axis.

    The scores are the mean over images of each image's sorted scores; pixels with a negative mean are shaded
    in both. Default: the signed estimators. Scores have a scale of their own in every column.
    """
    model = _model(study, augmentation)
    chosen = list(estimators or [name for name, signed in study.signed.items() if signed] or study.signed)
    scores = model.evaluation.scores
    for name in chosen:
        if name not in scores:
            raise unknown("estimator with sorted scores", name, scores)
    figure, axes = _grid(2, len(chosen), "Pixels masked, in LIF order", sharey=False)
    look = _augmentation_looks(study.models)[augmentation]
    for (above, below), name in zip(axes.T, chosen, strict=True):
        above.sharey(axes[0, 0])
        _draw(above, model, "lif", name, look)
        sorted_scores = np.asarray(scores[name], dtype=np.float64)
        x = np.linspace(0, 1, len(sorted_scores))
        below.plot(x, sorted_scores, color="black", linewidth=1.2)
        below.fill_between(x, sorted_scores, where=sorted_scores >= 0, color=_MIF, alpha=0.25, linewidth=0)
        below.fill_between(x, sorted_scores, where=sorted_scores <= 0, color=_LIF, alpha=0.25, linewidth=0)
        negative = float(np.mean(sorted_scores < 0))
        if negative > 0:
            for axis in (above, below):
                axis.axvspan(0, negative, color=_PALE, alpha=0.5, linewidth=0, zorder=0)
            note = f"{negative:.0%} of the pixels\nnegative"
            below.text(0.04, 0.96, note, transform=below.transAxes, va="top", size=8)
        above.set_title(_estimator(name))
    _finish(axes)
    for axis in axes[0, 1:]:
        axis.tick_params(labelleft=False)
    axes[0, 0].set_ylabel(f"LIF, {_augmentation(augmentation)}\n{_output(study)}")
    axes[1, 0].set_ylabel("Importance score")
    figure.align_ylabels(axes[:, 0])
    return figure


@_styled
def sign_panel(
    image: NDArray[Any],
    scores: ArrayLike,
    fractions: ArrayLike,
    mif: ArrayLike,
    lif: ArrayLike,
    *,
    estimator: str = "",
    class_name: str = "",
) -> Figure:
    """What the signs of one image's scores are worth: the maps left, what masking does right.

    Left: the image; the scores, clipped at the 99th percentile of their size; those at or above its 98th
    percentile alone. Right: the MIF and LIF curves, and the negative and the positive scores in the order
    they are masked, with the share of all pixels that carries 90 % of either.

    - `image` [C, H, W], `scores` [H, W]: the image and its map.
    - `fractions`, `mif`, `lif` [K]: the curves of this image; they are divided by their first value.
    """
    values = np.asarray(scores, dtype=np.float64)
    x, falling, staying = (np.asarray(numbers, dtype=np.float64) for numbers in (fractions, mif, lif))
    if values.ndim != 2 or not np.isfinite(values).all():
        raise InputError(f"scores must be one map [H, W] of finite numbers, got shape {list(values.shape)}")
    if not (np.isfinite([falling, staying]).all() and falling[0] > 0):
        raise InputError(f"curves must be finite and start above 0, this one starts at {falling[0]:.3g}")
    figure = Figure(figsize=(6.6, 5.6))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.75), squeeze=False)[0]
    pictures, plots = left.subplots(3, 1), right.subplots(3, 1, sharex=True)

    _show(pictures[0], image)
    pictures[0].set_title(f"Explained class:\n{_plain(class_name, 32)}" if class_name else "Image")
    norm = CenteredNorm(0, float(np.percentile(np.abs(values), 99)) or 1.0)
    called = f"{_estimator(estimator)} scores" if estimator else "Scores"
    shown = {called: values, "The largest 2% by size": truncated(values)}
    for axis, (title, numbers) in zip(pictures[1:], shown.items(), strict=True):
        drawn = axis.imshow(numbers, cmap=_SIGNS, norm=norm)
        axis.set(title=title, xticks=[], yticks=[])
        axis.spines[:].set_visible(True)
    bar = left.colorbar(drawn, ax=pictures[2], location="bottom", extend="both", shrink=0.65, pad=0.04)
    bar.locator = MaxNLocator(3, symmetric=True)
    bar.update_ticks()

    plots[0].set_title("Normalised logit")
    _mif_and_lif(plots[0], x, falling / falling[0], staying / staying[0])
    positive, negative = share_carrying(values)
    flat = np.sort(values, axis=None)
    parts = (
        ("Negative scores, masked first by LIF", flat[flat < 0], negative, _LIF),
        ("Positive scores, masked first by MIF", flat[flat > 0][::-1], positive, _MIF),
    )
    for axis, (title, part, share, colour) in zip(plots[1:], parts, strict=True):
        masked = np.arange(len(part)) / flat.size
        axis.fill_between(masked, part, step="post", color=colour, alpha=0.35, linewidth=0)
        axis.step(masked, part, where="post", color=colour, linewidth=1.2)
        axis.set_title(title)
        sign = title.split()[0].lower()
        text = f"{share:.1%} of the pixels carry 90%\nof the {sign} score" if share else f"no {sign} scores"
        axis.axvline(share, color=_GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        height, side = (0.08, "bottom") if colour == _LIF else (0.92, "top")
        place = (min(share, 0.55) + 0.02, height)
        axis.text(*place, text, transform=axis.transAxes, va=side, size=8, bbox=_BEHIND)
        _axis(axis)
    plots[2].set_xlabel("Pixels masked")
    return figure


def sign_fluctuation(
    study: Study, which: int = 0, estimator: str = "ig_sum", augmentation: str = "fpa"
) -> Figure:
    """`sign_panel` for the example image number `which` of a study."""
    model = _model(study, augmentation)
    examples, evaluation = model.examples, model.evaluation
    if examples is None or not 0 <= which < len(examples.images):
        count = 0 if examples is None else len(examples.images)
        raise InputError(f"there is no example image {which}: the model {augmentation!r} has {count}")
    if estimator not in examples.maps:
        raise unknown("estimator", estimator, examples.maps)
    rows = np.flatnonzero(evaluation.indices == examples.indices[which])
    if len(rows) == 0:
        raise InputError(f"image {examples.indices[which]} of the test split has no curves in this study")
    return sign_panel(
        examples.images[which],
        examples.maps[estimator][which],
        evaluation.fractions,
        evaluation.mif[estimator][rows[0]],
        evaluation.lif[estimator][rows[0]],
        estimator=estimator,
        class_name=study.classes[examples.targets[which]],
    )


@_styled
def overview(
    studies: Sequence[Study], signed: bool = True, augmentations: Sequence[str] = ("none", "fpa")
) -> Figure:
    """Curves of several studies: a row a data set, MIF left and LIF right, an estimator a line.

    Every augmentation has a panel of its own: the lines of two would hide each other. A study without such
    estimators has no row.
    """
    titled = zip(studies, study_titles(studies), strict=True)
    rows = [(study, title) for study, title in titled if _of_sign(study, signed)]
    if not rows:
        raise InputError(f"none of the studies has {'signed' if signed else 'unsigned'} estimators")
    columns = [(side, name) for side in ("mif", "lif") for name in augmentations]
    shown = dict.fromkeys(name for study, _ in rows for name in _group(study, signed))
    others = [name for name in shown if name != "random"]
    looks = dict(zip(others, cycle(_OTHERS)))
    looks |= {"random": _RANDOM} if "random" in shown else {}
    figure, axes = _grid(len(rows), len(columns), "Pixels masked")
    for row, (study, (name, *more)) in zip(axes, rows, strict=True):
        for axis, (side, augmentation) in zip(row, columns, strict=True):
            if augmentation not in study.models:
                axis.text(0.5, 0.5, "not trained", transform=axis.transAxes, ha="center", color=_GREY)
                continue
            for estimator in _group(study, signed):
                _draw(axis, study.models[augmentation], side, estimator, looks[estimator], markers=True)
        # Of a long path the end tells more.
        said = [_plain(name, 16), *(_plain(part if len(part) <= 18 else f"…{part[-17:]}") for part in more)]
        row[0].set_ylabel("\n".join([*said, _output(study)]))
    _finish(axes)
    for axis, (side, augmentation) in zip(axes[0], columns, strict=True):
        axis.set_title(f"{side.upper()}\naugmentation: {_augmentation(augmentation)}")
    _legend(figure, "Estimator", {_estimator(name): look for name, look in looks.items()}, True)
    return figure


@_styled
def fidelity_dots(study: Study) -> Figure:
    """A with its 95 % interval for all estimators and augmentations; hollow: what the paper published."""
    rows: dict[str, float] = {"random": 0.0} if "random" in study.estimators else {}
    headings: dict[float, str] = {}
    place = float(len(rows))
    for heading, names in (("Signed", _of_sign(study, True)), ("Unsigned", _of_sign(study, False))):
        if names:
            headings[place] = heading
            rows |= {name: place + 0.8 + offset for offset, name in enumerate(names)}
            place += 0.8 + len(names)

    figure = Figure(figsize=(6.4, 1 + 0.29 * place))
    axis = figure.subplots()
    looks = _augmentation_looks(study.models)
    for row in rows.values():
        axis.axhline(row, color=_PALE, linewidth=0.7, zorder=0)
    axis.axvline(0, color=_GREY, linewidth=0.8, zorder=0)
    for number, (augmentation, look) in enumerate(looks.items()):
        found, published = study.models[augmentation].fidelity, study.published.get(augmentation, {})
        y = {name: row + 0.26 * (number - (len(looks) - 1) / 2) for name, row in rows.items()}
        known = [name for name in rows if name in published]
        axis.errorbar(
            [found[name].area for name in y], list(y.values()),
            xerr=np.nan_to_num([found[name].interval for name in y]), elinewidth=1.3,
            fmt=look.marker, color=look.colour, markersize=4.5, label=augmentation, zorder=3,
        )  # fmt: skip
        axis.plot(
            [published[name][0] for name in known], [y[name] for name in known], look.marker, markersize=7.5,
            markerfacecolor="none", color=look.colour, label=f"{augmentation}, published", zorder=2,
        )  # fmt: skip
    hollow = "; hollow: published" if any(study.published.values()) else ""
    ticks = {row: _estimator(name) for name, row in rows.items()} | headings
    axis.set_yticks(list(ticks), list(ticks.values()))
    for row, label in zip(ticks, axis.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if row in headings else "normal")
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.spines["left"].set_visible(False)
    axis.set(ylim=(place - 0.4, -0.6), xlabel=f"Fidelity A in percent, with 95% interval{hollow}")
    dots = {_augmentation(name): look._replace(dashes="none") for name, look in looks.items()}
    _legend(figure, "Augmentation", dots, markers=True)
    return figure


@_styled
def rank_slopes(study: Study) -> Figure:
    """The rank of every estimator by MIF and by LIF, joined by a line; a panel an augmentation.

    Two lines that cross are ordered oppositely. Where that is significant, a contradiction, the crossing has
    a red dot and both lines are red.
    """
    count = max(len(model.reliability.by_mif) for model in study.models.values())
    counts = opposite_pairs(study)
    wide = 1.3 + 0.145 * max(len(estimator_name(name, most=_MOST)) for name in study.signed)
    figure = Figure(figsize=(max(wide * len(study.models), 3.4), 1.05 + 0.24 * count))
    axes = figure.subplots(1, len(study.models), squeeze=False, gridspec_kw={"wspace": 0.12})[0]
    for axis, (augmentation, model) in zip(axes, study.models.items(), strict=True):
        found = model.reliability
        by_mif, by_lif = (
            {name: place for place, name in enumerate(names, 1)} for names in (found.by_mif, found.by_lif)
        )
        pairs = [(pair.first, pair.second) for pair in found.contradictions]
        red = {name for pair in pairs for name in pair}
        for name in found.by_mif:
            ends, marker = (by_mif[name], by_lif[name]), "o" if study.signed.get(name) else "s"
            axis.plot(
                (0, 1), ends, marker=marker, markersize=4.5, label=name,
                markerfacecolor=None if study.signed.get(name) else "white",
                color=_RED if name in red else _GREY, linewidth=1.4 if name in red else 0.9, clip_on=False,
            )  # fmt: skip
            for x, rank, align, gap in ((0, ends[0], "right", -6), (1, ends[1], "left", 6)):
                axis.annotate(
                    _estimator(name),
                    (x, rank),
                    (gap, 0),
                    textcoords="offset points",
                    ha=align,
                    va="center",
                    size=8,
                )
        for first, second in pairs:
            start, end = by_mif[first] - by_mif[second], by_lif[first] - by_lif[second]
            cross = start / (start - end)
            height = by_mif[first] + cross * (by_lif[first] - by_mif[first])
            axis.plot(cross, height, "o", color=_RED, markeredgecolor="white", markersize=4.5, zorder=4)
        plural = "" if len(pairs) == 1 else "s"
        title = (
            f"{_augmentation(augmentation)}: {len(pairs)} contradiction{plural}\nin {len(found.pairs)} pairs"
        )
        mixed, _, significant = counts[augmentation]  # what tables and report count
        axis.set_title(title + (f"\n(signed-unsigned: {significant} of {mixed})" if mixed else ""))
        axis.set(xlim=(-0.05, 1.05), ylim=(count + 0.5, 0.5), yticks=[])
        axis.set_xticks((0, 1), ("Rank by MIF", "Rank by LIF"))
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    handles = [
        Line2D([], [], color=_GREY, marker="o", linestyle="none", label="signed"),
        Line2D([], [], color=_GREY, marker="s", markerfacecolor="white", linestyle="none", label="unsigned"),
        Line2D([], [], color=_RED, marker="o", markersize=4.5, label="contradiction"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, columnspacing=1.2)
    return figure


def share_carrying(scores: ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """The smallest share of all pixels that carries `level` of the positive and of the negative score.

    >>> share_carrying([[9.0, 1.0], [0.0, -1.0]], 0.9)
    (0.25, 0.25)
    """
    flat = np.asarray(scores, dtype=np.float64).ravel()

    def share(sizes: Floats) -> float:
        carried = np.cumsum(np.sort(sizes)[::-1])
        if carried.size == 0:
            return 0.0
        # A sum that misses the level by rounding alone has reached it.
        return float(np.searchsorted(carried, level * carried[-1] * (1 - 1e-12)) + 1) / flat.size

    return share(flat[flat > 0]), share(-flat[flat < 0])


def truncated(scores: ArrayLike, percentile: float = 98) -> Floats:
    """The scores whose size is at or above a percentile of all sizes, the others set to 0.

    >>> truncated([[3.0, -4.0], [1.0, -1.0]], percentile=50)
    array([[ 3., -4.],
           [ 0.,  0.]])
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.where(np.abs(values) >= np.percentile(np.abs(values), percentile), values, 0.0)


def study_figures(study: Study) -> dict[str, Figure]:
    """All figures of a study by the names of their files; what a study has no results for is left out."""
    shown = "fpa" if "fpa" in study.models else list(study.models)[-1]
    model = study.models[shown]
    signed, examples = _of_sign(study, True), model.examples
    made: dict[str, Figure] = {}
    if examples is not None and shown == "fpa" and study.recipe is not None:
        augment, most = FPA(**asdict(study.recipe.fpa)), slice(0, 7)
        names = [study.classes[label] for label in examples.labels[most]]
        made["fpa-examples"] = fpa_examples(
            examples.images[most], augment, fill=examples.fill[most], names=names, seed=study.recipe.seed
        )
    best = model.reliability.by_area[0]
    made["definition-of-area"] = definition_of_area(
        model.evaluation.fractions,
        _mean(model, "mif", best)[0],
        _mean(model, "lif", best)[0],
        f"{_estimator(best)}, augmentation: {_augmentation(shown)}",
    )
    for sign, name in ((True, "signed"), (False, "unsigned")):
        if _of_sign(study, sign):
            made[f"curves-{name}"] = perturbation_curves(study, sign)
    scored = [name for name in signed or study.signed if name in model.evaluation.scores]
    if scored:
        made["lif-over-scores"] = lif_over_scores(study, shown, scored)
    if examples is not None and signed:
        estimator = "ig_sum" if "ig_sum" in signed else signed[0]
        usable = np.isin(examples.indices, model.evaluation.indices[model.fidelity[estimator].kept])
        usable &= np.isfinite(examples.maps[estimator]).all(axis=(1, 2))
        if usable.any():
            first = int(np.argmax(usable))
            made["sign-fluctuation"] = sign_fluctuation(study, first, estimator, shown)
    made["fidelity"] = fidelity_dots(study)
    made["ranks"] = rank_slopes(study)
    return made


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


def save_study_figures(study: Study, folder: str | Path) -> list[Path]:
    """Make all figures of a study and write them to `folder`, as PNG and PDF."""
    return [
        path for name, figure in study_figures(study).items() for path in save(figure, Path(folder) / name)
    ]


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


def _masks(
    images: NDArray[Any], perturbation: "NDArray[np.bool_] | FPA | Rectangle", seed: int
) -> NDArray[np.bool_]:
    if images.ndim != 4:
        raise InputError(f"images must be [M, C, H, W], got shape {list(images.shape)}")
    expected = (len(images), *images.shape[2:])
    if isinstance(perturbation, np.ndarray):
        masks = perturbation
    else:
        augment = copy.copy(perturbation)
        augment.p = 1.0
        source = torch.Generator().manual_seed(seed)
        blank = torch.zeros(1, *images.shape[1:])
        masks = np.concatenate([augment.mask(blank, source).numpy() for _ in images])
    if masks.dtype != np.bool_ or masks.shape != expected:
        raise InputError(f"masks must be bool {list(expected)}, got {masks.dtype} {list(masks.shape)}")
    return masks


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
