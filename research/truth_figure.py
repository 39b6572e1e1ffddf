"""The figure of docs/results/truth.md: how often each evaluation prefers the worse of two maps."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fpa.show.figures.style import GREY, INK, PALE, styled

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
FILLS = {"": "grey", "+blur": "blurred"}
RULES = {"additive": "evidence adds up", "redundant": "redundant evidence", "joint": "joint evidence"}
COIN = 50
OFFSET = 0.22


def heights() -> dict[str, float]:
    """Where each protocol is drawn: grey and blurred of the same features close together."""
    at = {}
    for group, features in enumerate(FEATURES):
        for place, fill in enumerate(FILLS):
            at[features + fill] = -(2.35 * group + place)
    return at


def panel(axis: Axes, errors: pd.DataFrame, size: float) -> None:
    """The errors of one rule: a dot a seed, a bar for their mean."""
    for protocol, height in heights().items():
        axis.axhline(height, color=PALE, linewidth=0.6, zorder=0)
        for place, (row, (_, colour)) in enumerate(SHOWN.items()):
            chosen = errors[(errors["protocol"] == protocol) & (errors["row"] == row)]
            values = 100 * chosen["error"].to_numpy()
            at = height + OFFSET * (1 - place)
            axis.scatter(values, [at] * len(values), s=size, color=colour, alpha=0.45, linewidths=0, zorder=2)
            axis.scatter(values.mean(), at, s=9 * size, marker="|", color=colour, linewidths=2.2, zorder=3)
    axis.axvline(COIN, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
    axis.set(xlim=(0, COIN + 2), ylim=(min(heights().values()) - 0.7, 0.7))
    axis.set_xticks(range(0, COIN + 1, 10))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


@styled
def draw(errors: pd.DataFrame, path: Path) -> None:
    """All rules, the additive one large."""
    chosen = errors[
        (errors["truth"] == "truth")
        & (errors["pairs"] == "all")
        & (errors["over"] == "image")
        & (errors["side"] == "A")
    ]
    figure = Figure(figsize=(8.4, 4.6))
    axes = figure.subplots(1, 3, sharey=True, width_ratios=[2.1, 1, 1])
    for axis, (rule, title) in zip(axes, RULES.items(), strict=True):
        panel(axis, chosen[chosen["rule"] == rule], 16 if axis is axes[0] else 9)
        axis.set_title(title, loc="left", color=INK)
    labels = dict(zip(heights().values(), list(FILLS.values()) * len(FEATURES), strict=True))
    axes[0].set_yticks(list(labels), list(labels.values()))
    for group, words in enumerate(FEATURES.values()):
        axes[0].annotate(
            words,
            (0, -(2.35 * group) - 0.5),
            (-52, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
            weight="bold",
            color=INK,
            annotation_clip=False,
        )
    axes[0].annotate(
        "a coin", (COIN, 0.7), (-3, -2), textcoords="offset points", ha="right", va="top", color=GREY
    )
    figure.supxlabel("pairs in which the worse map is preferred, %  (lower is better)", fontsize=9)
    handles = [axes[0].scatter([], [], s=30, color=colour, label=words) for words, colour in SHOWN.values()]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, handletextpad=0.2, columnspacing=1.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, metadata={"Software": None})
