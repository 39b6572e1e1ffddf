"""The figures of a study, a function each: they take results and return a matplotlib `Figure`.

`save` writes a figure as PNG and PDF, `save_study_figures` all of a study's. A colour never stands alone:
every augmentation and every estimator has its own line style and marker, so that figures can be read in grey.
Nothing here touches pyplot or the settings of the caller.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from fpa.errors import InputError, unknown
from fpa.show.figures.images import fpa_examples, sign_fluctuation
from fpa.show.figures.style import (
    _GREY,
    _LIF,
    _MIF,
    _MOST,
    _OTHERS,
    _PALE,
    _RANDOM,
    _RED,
    _augmentation,
    _augmentation_looks,
    _draw,
    _estimator,
    _finish,
    _grid,
    _group,
    _legend,
    _mean,
    _mif_and_lif,
    _model,
    _of_sign,
    _output,
    _plain,
    _styled,
    save,
)
from fpa.show.names import estimator_name
from fpa.show.tables import opposite_pairs, study_titles
from fpa.study.results import Study
from fpa.training.augment import FPA


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


def save_study_figures(study: Study, folder: str | Path) -> list[Path]:
    """Make all figures of a study and write them to `folder`, as PNG and PDF."""
    return [
        path for name, figure in study_figures(study).items() for path in save(figure, Path(folder) / name)
    ]
