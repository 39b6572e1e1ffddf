"""The figure of docs/results/truth.md: how often each evaluation prefers the worse of two maps."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fpa.show.figures.style import GREY, INK, PALE, styled
from truth_predictors import counted, whole

SHOWN = {
    "none": ("ordinary model", "#777777"),
    "judge": ("ordinary model, judged by its FPA twin", "#0072B2"),
    "fpa": ("model trained with FPA", "#D55E00"),
}
FEATURES = {
    "pixels": "single pixels",
    "1/8": "patches, ⅛ of the side",
    "1/4": "patches, ¼ of the side",
    "segments:60": "60 segments",
}
FILLS = {"": "→ grey", "+blur": "→ blurred"}
RULES = {"additive": "evidence adds up", "redundant": "redundant evidence", "joint": "joint evidence"}
COIN = 50
APART = 0.29
"""Of the three colours of a protocol, where the rows of a group are 1 apart."""
GROUPS = 2.5


def heights() -> dict[str, float]:
    """Where each protocol is drawn: grey and blurred of the same features close together."""
    at = {}
    for group, features in enumerate(FEATURES):
        for place, fill in enumerate(FILLS):
            at[features + fill] = -(GROUPS * group + place)
    return at


def panel(axis: Axes, errors: pd.DataFrame, *, large: bool) -> None:
    """The errors of one rule: a dot a seed, a bar for their mean."""
    for protocol, height in heights().items():
        for place, (row, (_, colour)) in enumerate(SHOWN.items()):
            chosen = errors[(errors["protocol"] == protocol) & (errors["row"] == row)]
            values = 100 * chosen["error"].to_numpy()
            at = height + APART * (1 - place)
            size = 14 if large else 8
            axis.scatter(values, [at] * len(values), s=size, color=colour, alpha=0.4, linewidths=0, zorder=2)
            axis.scatter(values.mean(), at, s=46, marker="|", color=colour, linewidths=2, zorder=3)
            if large:
                axis.annotate(
                    f"{values.mean():.0f} %",
                    (values.max(), at),
                    (5, 0),
                    textcoords="offset points",
                    color=colour,
                    fontsize=7,
                    va="center",
                )
    axis.axvline(COIN, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
    axis.set(xlim=(0, COIN + 2), ylim=(min(heights().values()) - 0.6, 0.6))
    axis.set_xticks(range(0, COIN + 1, 10 if large else 25))
    axis.grid(axis="x", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


def name_rows(axis: Axes) -> None:
    """What is removed, in bold, and what it becomes."""
    axis.set_yticks(list(heights().values()), list(FILLS.values()) * len(FEATURES))
    for group, words in enumerate(FEATURES.values()):
        axis.annotate(
            words,
            (0, 0.5 - GROUPS * group - 1),
            (-56, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
            weight="bold",
            color=INK,
            annotation_clip=False,
        )


@styled
def draw(errors: pd.DataFrame, path: Path) -> None:
    """All rules, the additive one large."""
    chosen = whole(counted(errors, ["A"]))
    figure = Figure(figsize=(8.4, 5.0))
    axes = figure.subplots(1, 3, sharey=True, width_ratios=[2.6, 1, 1])
    for axis, (rule, title) in zip(axes, RULES.items(), strict=True):
        of_rule = chosen[chosen["rule"] == rule]
        seeds = of_rule["seed"].nunique()
        panel(axis, of_rule, large=axis is axes[0])
        axis.set_title(f"{title}\n{seeds} seed{'s' * (seeds != 1)}", loc="left", color=INK)
    name_rows(axes[0])
    axes[0].annotate(
        "a coin", (COIN, 0.6), (-3, -1), textcoords="offset points", ha="right", va="top", color=GREY
    )
    figure.supxlabel("pairs of maps in which the worse one is preferred, %  (lower is better)", fontsize=9)
    handles = [
        Line2D([], [], color=colour, ls="", marker="o", ms=5, label=words) for words, colour in SHOWN.values()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, handletextpad=0.1, columnspacing=1.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        figure.savefig(file, format="png", dpi=200, metadata={"Software": None})
