"""Ranks by MIF and by LIF, joined by lines: where two cross, the two orders contradict each other."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fpa.evaluation.result import Results
from fpa.show import summary
from fpa.show.figures import style
from fpa.show.names import estimator_names
from fpa.statistics import Reliability


@style.styled
def rank_slopes(results: Results) -> Figure:
    """The rank of every estimator by MIF and by LIF, joined by a line; a panel per model.

    Two lines that cross are a pair that MIF and LIF rank in opposite order. Where that is significant, a
    contradiction, the crossing has a red dot and both lines are red.
    """
    counts = summary.opposite_pairs(results)
    shown = style.drawn_names(results)
    longest = max(map(len, estimator_names(results, most=style.LONGEST).values()))
    count = max(len(model.reliability.by_mif) for model in results.models.values())
    width = max((1.3 + 0.145 * longest) * len(results.models), 3.4)
    figure = Figure(figsize=(width, 1.05 + 0.24 * count))
    axes = figure.subplots(1, len(results.models), squeeze=False, gridspec_kw={"wspace": 0.12})[0]
    for axis, (name, model) in zip(axes, results.models.items(), strict=True):
        draw_slopes(axis, model.reliability, results.signed, shown)
        pairs = len(model.reliability.contradictions)
        title = f"{style.plain_model(name)}: {pairs} contradiction{'' if pairs == 1 else 's'}"
        title += f"\nin {len(model.reliability.pairs)} pairs"
        if counts[name].pairs:  # what tables and report count
            title += f"\n(signed-unsigned: {counts[name].significant} of {counts[name].pairs})"
        axis.set(title=title, ylim=(count + 0.5, 0.5))
    slopes_legend(figure)
    return figure


def draw_slopes(
    axis: Axes, reliability: Reliability, signed: Mapping[str, bool], shown: Mapping[str, str]
) -> None:
    """The ranks of one model's estimators by MIF, left, and by LIF, right; contradictions are red."""
    by_lif = {name: rank for rank, name in enumerate(reliability.by_lif, 1)}
    ranks = {name: (rank, by_lif[name]) for rank, name in enumerate(reliability.by_mif, 1)}
    pairs = [(pair.first, pair.second) for pair in reliability.contradictions]
    red = {estimator for pair in pairs for estimator in pair}
    for estimator, ends in ranks.items():
        is_signed = signed.get(estimator)
        axis.plot(
            (0, 1),
            ends,
            label=estimator,
            marker="o" if is_signed else "s",
            markersize=4.5,
            markerfacecolor=None if is_signed else "white",
            color=style.RED if estimator in red else style.GREY,
            linewidth=1.4 if estimator in red else 0.9,
            clip_on=False,
        )
        for x, rank, side, gap in ((0, ends[0], "right", -6), (1, ends[1], "left", 6)):
            axis.annotate(
                shown[estimator],
                (x, rank),
                (gap, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                size=8,
            )
    for first, second in pairs:
        start, end = ranks[first]
        other_start, other_end = ranks[second]
        # Where the two lines meet: the share of the way at which their heights are equal.
        cross = (start - other_start) / (start - other_start - end + other_end)
        height = start + cross * (end - start)
        axis.plot(cross, height, "o", color=style.RED, markeredgecolor="white", markersize=4.5, zorder=4)
    axis.set(xlim=(-0.05, 1.05), ylim=(len(ranks) + 0.5, 0.5), yticks=[])
    axis.set_xticks((0, 1), ("Rank by MIF", "Rank by LIF"))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def slopes_legend(figure: Figure) -> None:
    """What the marks and colours of `draw_slopes` mean."""
    handles = [
        Line2D([], [], color=style.GREY, marker="o", ls="none", label="signed"),
        Line2D([], [], color=style.GREY, marker="s", mfc="white", ls="none", label="unsigned"),
        Line2D([], [], color=style.RED, marker="o", markersize=4.5, label="contradiction"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, columnspacing=1.2)
