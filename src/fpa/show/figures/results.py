"""The figures of results, a function each: they return a matplotlib `Figure`.

`save` writes a figure as PNG and PDF, `save_figures` all of them. A colour never stands alone: models differ
in their dashes and estimators in their markers, so that figures can be read in grey. Nothing here touches
pyplot or the settings of the caller.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fpa.errors import InputError, one_of
from fpa.evaluation.examples import Examples
from fpa.evaluation.rankings import best, mean_curve, rank_correlations, ranked_maps
from fpa.evaluation.result import Result, Results
from fpa.show import summary
from fpa.show.figures import style
from fpa.show.figures.images import fpa_examples, of_model, sign_fluctuation
from fpa.show.figures.ranks import rank_slopes
from fpa.show.names import estimator_looks, model_looks, model_name
from fpa.statistics.orders import FEWEST_RANKED

LABELS = ("Pixels masked", "Normalised logit")


@style.styled
def definition_of_area(
    fractions: ArrayLike, mif: ArrayLike, lif: ArrayLike, *, title: str = "", labels: Sequence[str] = LABELS
) -> Figure:
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
        x, low, high, where=high < low, interpolate=True, fc=style.PALE, ec=style.GREY, hatch="////", lw=0
    )
    style.mif_and_lif(axis, x, low, high)
    gap = int(np.argmax(np.abs(high - low)))
    if abs(high[gap] - low[gap]) > 0.2 * (max(high.max(), low.max()) - min(high.min(), low.min())):
        axis.text(x[gap], (high[gap] + low[gap]) / 2, "A", size=13, style="italic", ha="center", va="center")
    axis.set_title(f"Fidelity A = {area:.1f}" + (f"\n{title}" if title else ""))
    axis.set(xlabel=labels[0], ylabel=labels[1])
    return figure


@style.styled
def perturbation_curves(results: Results, signed: bool | None = True) -> Figure:
    """Perturbation curves, MIF above LIF: a column per estimator (baselines first), a line per model.

    Shown are the signed or the unsigned estimators, or with None all of them. Where the output is a logit,
    each image's curve is divided by its own unmasked logit. Lines are means over the images used, bands their
    95 % intervals.
    """
    names = results.estimators if signed is None else _with_baselines(results, signed)
    shown = style.drawn_names(results)
    looks = model_looks(results.models)
    figure, axes = style.grid(2, len(names), _x_label(results))
    for row, side in zip(axes, ("mif", "lif"), strict=True):
        for axis, name in zip(row, names, strict=True):
            axis.set_title(shown[name] if side == "mif" else "")
            for model, look in looks.items():
                style.draw_mean(axis, results.models[model], side, name, look=look, label=model)
        row[0].set_ylabel(f"{side.upper()}\n{_y_label(results)}")
    style.finish(axes)
    labelled = {style.plain_model(name): look for name, look in looks.items()}
    style.legend(figure, style.legend_title(results), labelled)
    return figure


@style.styled
def lif_over_scores(results: Results, model: str, estimators: Sequence[str] | None = None) -> Figure:
    """LIF curves above the importance of the pixels in the order they are masked, on the same x axis.

    The importance is the mean over images of each image's sorted scores; where it is negative, both are
    shaded. Default: the signed estimators. The importance has its own scale in every column.
    """
    chosen = of_model(results, model)
    look = model_looks(results.models)[model]
    importance = chosen.evaluation.importance
    names = list(estimators or summary.groups(results).get("Signed") or results.signed)
    for name in names:
        one_of("estimator with sorted scores", name, importance)
    shown = style.drawn_names(results)
    unit = summary.removed_unit(results)
    figure, axes = style.grid(2, len(names), f"{_x_label(results)}, in LIF order", sharey=False)
    for (above, below), name in zip(axes.T, names, strict=True):
        # Curves of all estimators have one scale; importance scores have no unit that they share.
        above.sharey(axes[0, 0])
        style.draw_mean(above, chosen, "lif", name, look=look, label=model)
        scores = np.asarray(importance[name], dtype=np.float64)
        x = np.linspace(0, 1, len(scores))
        below.plot(x, scores, color="black", linewidth=1.2)
        below.fill_between(x, scores, where=scores >= 0, color=style.MIF_COLOUR, alpha=0.25, linewidth=0)
        below.fill_between(x, scores, where=scores <= 0, color=style.LIF_COLOUR, alpha=0.25, linewidth=0)
        negative = float(np.mean(scores < 0))
        if negative > 0:
            for axis in (above, below):
                axis.axvspan(0, negative, color=style.PALE, alpha=0.5, linewidth=0, zorder=0)
            note = f"{negative:.0%} of the {unit}\nnegative"
            below.text(0.04, 0.96, note, transform=below.transAxes, va="top", size=8)
        above.set_title(shown[name])
        above.tick_params(labelleft=above is axes[0, 0])
    style.finish(axes)
    axes[0, 0].set_ylabel(f"LIF, {style.plain_model(model)}\n{_y_label(results)}")
    axes[1, 0].set_ylabel("Importance score")
    figure.align_ylabels(axes[:, 0])
    return figure


@style.styled
def overview(several: Sequence[Results], signed: bool = True) -> Figure:
    """Curves of several results: a row for each, MIF left and LIF right, a line per estimator.

    Every training (the variant of a study, or what a model evaluated alone was trained with) has a panel of
    its own: the lines of two would hide each other. These are "none" and "fpa" and those of models evaluated
    alone, or all where there are none of these. Results without such estimators have no row.
    """
    titled = zip(several, summary.titles(several), strict=True)
    rows = [(results, title) for results, title in titled if _of_sign(results, signed)]
    if not rows:
        raise InputError(f"there are no {'signed' if signed else 'unsigned'} estimators in these results")
    known = dict.fromkeys(key for results, _ in rows for key in summary.by_training(results))
    alone = {key for results, _ in rows if results.recipe is None for key in summary.by_training(results)}
    trainings = [key for key in known if key in alone or key in ("none", "fpa")] or list(known)
    columns = [(side, training) for side in ("mif", "lif") for training in trainings]
    drawn = {name for results, _ in rows for name in _with_baselines(results, signed)}
    looks = {name: look for name, look in estimator_looks(*several).items() if name in drawn}
    figure, axes = style.grid(len(rows), len(columns), _x_label(*(results for results, _ in rows)))
    for row, (results, (name, *more)) in zip(axes, rows, strict=True):
        models = summary.by_training(results)
        for axis, (side, training) in zip(row, columns, strict=True):
            if training not in models:
                axis.text(0.5, 0.5, "no model", transform=axis.transAxes, ha="center", color=style.GREY)
                continue
            for estimator in _with_baselines(results, signed):
                model = results.models[models[training]]
                look = looks[estimator]
                style.draw_mean(axis, model, side, estimator, look=look, label=estimator, marker=look.marker)
        # Of a long path the end tells more.
        ends = [style.plain(part if len(part) <= 18 else f"…{part[-17:]}") for part in more]
        row[0].set_ylabel("\n".join([style.plain(name, 16), *ends, _y_label(results)]))
    style.finish(axes)
    for axis, (side, training) in zip(axes[0], columns, strict=True):
        trained = "no augmentation" if training == "none" else f"with {style.plain(model_name(training), 12)}"
        axis.set_title(f"{side.upper()}\n{trained}" if training else side.upper())
    shown = style.drawn_names(*several)
    style.legend(figure, "Estimator", {shown[name]: look for name, look in looks.items()}, markers=True)
    return figure


@style.styled
def fidelity_dots(results: Results) -> Figure:
    """A with its 95 % interval for all estimators and models; hollow: what the paper published."""
    rows: dict[str, float] = {}
    headings: dict[float, str] = {}
    place = 0.0
    for heading, names in summary.groups(results).items():
        if heading != "Baseline":
            headings[place] = heading
            place += 0.8
        rows |= {name: place + offset for offset, name in enumerate(names)}
        place += len(names)

    figure = Figure(figsize=(6.4, 1 + 0.29 * place))
    axis = figure.subplots()
    looks = model_looks(results.models)
    for row in rows.values():
        axis.axhline(row, color=style.PALE, linewidth=0.7, zorder=0)
    axis.axvline(0, color=style.GREY, linewidth=0.8, zorder=0)
    for number, (model, look) in enumerate(looks.items()):
        fidelity = results.models[model].fidelity
        published = results.published.get(model, {})
        # The models of an estimator stand below each other, centred, and leave a gap to the next estimator.
        shift = 0.78 / max(3, len(looks)) * (number - (len(looks) - 1) / 2)
        y = {name: row + shift for name, row in rows.items()}
        known = [name for name in rows if name in published]
        axis.errorbar(
            [fidelity[name].area for name in rows], list(y.values()),
            xerr=[fidelity[name].interval for name in rows], fmt=look.marker, markersize=4.5,
            color=look.colour, elinewidth=1, capsize=0, label=model, zorder=3,
        )  # fmt: skip
        axis.plot(
            [published[name][0] for name in known], [y[name] for name in known], look.marker, markersize=7.5,
            markerfacecolor="none", color=look.colour, label=f"{model}, published", zorder=2,
        )  # fmt: skip
    hollow = "; hollow: published" if any(results.published.values()) else ""
    shown = style.drawn_names(results)
    ticks = {row: shown[name] for name, row in rows.items()} | headings
    axis.set_yticks(list(ticks), list(ticks.values()))
    for row, label in zip(ticks, axis.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if row in headings else "normal")
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.spines["left"].set_visible(False)
    # The axis points down: the first estimator of the table is on top here too.
    axis.set(ylim=(place - 0.4, -0.6), xlabel=f"Fidelity A in percent, with 95% interval{hollow}")
    dots = {style.plain_model(name): look._replace(dashes="none") for name, look in looks.items()}
    style.legend(figure, style.legend_title(results), dots, markers=True)
    return figure


@style.styled
def score_agreement(results: Results) -> Figure:
    """How far the scores agree: a panel per model, the rank correlation of every two scores in its cells.

    It is that of the orders in which the scores put the explanations, best to worst. Grey: there is none, or
    it is over so few explanations, whose number stands there, that any order may be chance.
    """
    matrices = {name: rank_correlations(model) for name, model in results.models.items()}
    count = max(len(names) for names, _ in matrices.values())
    side = 0.36 * count
    longest = 0.07 * max(len(name) for names, _ in matrices.values() for name in names)
    figure = Figure(figsize=((side + 0.4) * len(matrices) + longest + 1.2, side + longest + 0.8))
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axis, (model, (names, matrix)) in zip(axes, matrices.items(), strict=True):
        axis.set_facecolor(style.PALE)
        counts = ranked_maps(results.models[model])
        enough = np.where(counts < FEWEST_RANKED, np.nan, matrix)
        drawn = axis.imshow(enough, cmap=style.SIGNS, vmin=-1, vmax=1)
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value) and counts[row, column] < FEWEST_RANKED:
                few = f"n={counts[row, column]}"
                axis.text(column, row, few, ha="center", va="center", size=6, color=style.GREY)
            elif np.isfinite(value):
                # Dark ink cannot be read on the ends of the colour map.
                ink = "white" if abs(value) > 0.7 else style.INK
                axis.text(column, row, f"{value:.1f}", ha="center", va="center", size=6, color=ink)
        axis.set_xticks(range(len(names)), names, rotation=90, size=7)
        axis.set_yticks(range(len(names)), names if axis is axes[0] else [], size=7)
        axis.tick_params(length=0)
        axis.set_title(style.plain_model(model))
    figure.colorbar(drawn, ax=axes, shrink=0.6, label="Rank correlation")
    return figure


def all_figures(results: Results) -> dict[str, Figure]:
    """All figures by the names of their files; those that need what the results do not have are left out."""
    with_fpa = [name for name in results.models if summary.trained_with(results, name) == "fpa"]
    shown = next(iter(with_fpa), list(results.models)[-1])
    model = results.models[shown]
    signed = _of_sign(results, True)
    figures: dict[str, Figure] = {}
    if with_fpa and model.examples and model.description.subject.training:
        figures["fpa-examples"] = _fpa_on_examples(model, model.examples)
    figures["definition-of-area"] = _area_of_best(results, shown)
    for sign, group in ((True, "signed"), (False, "unsigned")):
        if _of_sign(results, sign):
            figures[f"curves-{group}"] = perturbation_curves(results, sign)
    if ranked := [name for name in signed or results.signed if name in model.evaluation.importance]:
        figures["lif-over-scores"] = lif_over_scores(results, shown, ranked)
    if signed and summary.removed_unit(results) == "pixels" and model.evaluation.divided:
        estimator = "ig_sum" if "ig_sum" in signed else signed[0]
        example = _finite_example(model, estimator)
        if example is not None:
            figures["sign-fluctuation"] = sign_fluctuation(results, shown, example, estimator)
    figures["fidelity"] = fidelity_dots(results)
    if model.reliability.pairs:
        figures["ranks"] = rank_slopes(results)
    if len(results.score_titles) > 1:
        figures["score-agreement"] = score_agreement(results)
    return figures


def _fpa_on_examples(model: Result, examples: Examples) -> Figure:
    """The first examples of a model, perturbed the way it was trained."""
    from fpa.training.augment import FPA
    from fpa.training.settings import FPASettings

    training = model.description.subject.training or {}
    usual = FPASettings()
    augmentation = FPA(
        p=training.get("p", usual.p),
        p1_max=training.get("p1_max", usual.p1_max),
        p2=training.get("p2", usual.p2),
        s_max=training.get("s_max", usual.s_max),
        squares=training.get("squares", usual.squares),
    )
    few = slice(0, 7)
    return fpa_examples(
        examples.images[few],
        augmentation,
        fill=examples.fill[few],
        names=[model.classes[label] if label >= 0 else "" for label in examples.labels[few]],
        seed=model.description.plan.seed,
    )


def _area_of_best(results: Results, name: str) -> Figure:
    """What A is, on the mean curves of a model's best explanation."""
    model = results.models[name]
    finest = best(model) or next(iter(model.fidelity))
    title = f"{style.drawn_names(results)[finest]}, {style.legend_title(results).lower()}: "
    return definition_of_area(
        model.evaluation.fractions,
        mean_curve(model, "mif", finest)[0],
        mean_curve(model, "lif", finest)[0],
        title=title + style.plain_model(name),
        labels=(_x_label(results), _y_label(results)),
    )


def _finite_example(model: Result, estimator: str) -> int | None:
    """The first example that has a score and a finite map of this estimator; None if there is none."""
    examples = model.examples
    if not examples:
        return None
    scored = model.evaluation.indices[model.fidelity[estimator].kept]
    finite = np.isfinite(examples.maps[estimator]).all(axis=(1, 2))
    usable = np.isin(examples.indices, scored) & finite
    return int(np.argmax(usable)) if usable.any() else None


def save_figures(results: Results, folder: str | Path) -> list[Path]:
    """Make all figures and write them to `folder`, as PNG and PDF."""
    figures = all_figures(results).items()
    return [path for name, figure in figures for path in style.save(figure, Path(folder) / name)]


def _of_sign(results: Results, signed: bool) -> list[str]:
    return summary.groups(results).get("Signed" if signed else "Unsigned", [])


def _with_baselines(results: Results, signed: bool) -> list[str]:
    names = _of_sign(results, signed)
    if not names:
        raise InputError(f"{results.name!r} has no {'signed' if signed else 'unsigned'} estimators")
    return summary.groups(results).get("Baseline", []) + names


def _x_label(*several: Results) -> str:
    units = sorted({summary.removed_unit(results) for results in several})
    return f"{' or '.join(units).capitalize()} masked"


def _y_label(results: Results) -> str:
    name = summary.output_name(results)
    return f"Normalised {name}" if results.first.evaluation.divided else name.capitalize()
