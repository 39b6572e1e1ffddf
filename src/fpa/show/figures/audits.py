"""The figures of an audit: random masking, ranks by MIF and by LIF, and A under every masking."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fpa.auditing import rule
from fpa.auditing.verdict import Audit
from fpa.show.figures import style
from fpa.show.figures.ranks import draw_slopes, slopes_legend
from fpa.show.names import COLOURS, estimator_name
from fpa.show.words.reader import output_name
from fpa.statistics import Estimate

_WIDTH = 4.4
"""Of a figure in inches: three stand side by side on a page."""
_MASKING_COLOURS = (2, 1, 3, 4, 5, 6)
_MASKING_MARKERS = ("o", "s", "D", "^")


def audit_figures(audit: Audit) -> dict[str, Figure]:
    """The figures of an audit by what they are about; none where too few images could be used."""
    if not audit.kept or audit.reliability is None:
        return {}
    return {
        "decay": random_masking(audit),
        "slopes": audited_ranks(audit),
        "areas": areas_by_masking(audit),
    }


@style.styled
def random_masking(audit: Audit) -> Figure:
    """How logit and accuracy fall under random masking, with the limit of the rule for what is kept."""
    figure = Figure(figsize=(_WIDTH, 3.0))
    axis = figure.subplots()
    kept = f"{output_name(audit.evidence.output)} kept"
    _draw_estimates(axis, audit.fractions, audit.kept, label=kept, colour=COLOURS[2], dashes="-")
    if audit.right:
        right = "same class" if audit.evidence.accuracy is None else "accuracy"
        dashes = (0, (3.5, 1.6))
        _draw_estimates(axis, audit.fractions, audit.right, label=right, colour=COLOURS[1], dashes=dashes)
    judged = rule.MASKED[0] / 100
    axis.plot(
        (judged - 0.04, judged + 0.04), (rule.LEAST_KEPT, rule.LEAST_KEPT), color="black", linewidth=2.2
    )
    axis.set(xlim=(0, 1), xticks=[0, *(share / 100 for share in rule.MASKED), 1])
    for numbers in (axis.xaxis, axis.yaxis):
        numbers.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.grid(color=style.PALE, linewidth=0.6)
    axis.set_xlabel("Pixels masked at random")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _draw_estimates(
    axis: Axes,
    fractions: Sequence[float],
    values: Sequence[Estimate],
    *,
    label: str,
    colour: str,
    dashes: object,
) -> None:
    """A line through estimates, with their intervals as a band."""
    low = [each.low for each in values]
    high = [each.high for each in values]
    axis.fill_between(fractions, low, high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(fractions, [each.value for each in values], color=colour, linestyle=dashes, label=label)


@style.styled
def audited_ranks(audit: Audit) -> Figure:
    """The rank of every estimator by MIF and by LIF."""
    assert audit.reliability is not None
    figure = Figure(figsize=(_WIDTH, 0.8 + 0.27 * len(audit.reliability.by_mif)))
    draw_slopes(figure.subplots(), audit.reliability, audit.signed, _names(audit))
    slopes_legend(figure)
    return figure


@style.styled
def areas_by_masking(audit: Audit) -> Figure:
    """A of every estimator under every masking, with its 95 % interval; sorted under the masking judged."""
    assert audit.reliability is not None
    names = audit.reliability.by_area
    shown = _names(audit)
    figure = Figure(figsize=(_WIDTH, 0.9 + 0.27 * len(names)))
    axis = figure.subplots()
    axis.axvline(0, color=style.GREY, linewidth=0.8, zorder=0)
    # More than other maskings would hide each other: what other features change, the table says.
    shown_areas = {masking: audit.areas[masking] for masking in audit.maskings if masking in audit.areas}
    for place, (masking, areas) in enumerate(shown_areas.items()):
        shift = (place - (len(shown_areas) - 1) / 2) * 0.19
        places = [row for row, name in enumerate(names) if name in areas]
        values = [areas[names[row]] for row in places]
        below = [each.value - each.low for each in values]
        above = [each.high - each.value for each in values]
        axis.errorbar(
            [each.value for each in values],
            [row + shift for row in places],
            xerr=[below, above],
            fmt=_MASKING_MARKERS[place % len(_MASKING_MARKERS)],
            color=COLOURS[_MASKING_COLOURS[place % len(_MASKING_COLOURS)]],
            markersize=4,
            elinewidth=1,
            label=style.plain(masking, 24),
        )
    axis.set_yticks(range(len(names)), [shown[name] for name in names])
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color=style.PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set(ylim=(len(names) - 0.5, -0.5), xlabel="Fidelity A in percent")
    figure.legend(loc="outside upper center", ncols=min(len(shown_areas), 4), fontsize=8, columnspacing=1)
    return figure


def _names(audit: Audit) -> dict[str, str]:
    return {
        name: estimator_name(name, "mathtext", label=audit.labels.get(name), most=style.LONGEST)
        for name in audit.signed
    }
