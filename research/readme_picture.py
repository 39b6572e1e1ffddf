"""The picture of the README: curves of two estimators without and with FPA, from stored CIFAR-10 results.

    python research/readme_picture.py

Reads docs/results/cifar10/seed-0/curves.csv, writes docs/images/curves.png.
"""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fpa.show.figures.style import GREY, INK, styled

ROOT = Path(__file__).parents[1]
MAPS = {
    "ig_sum": ("map 1: integrated gradients", "#0072B2"),
    "sqsg_sum": ("map 2: squared SmoothGrad", "#D55E00"),
}
ORDERS = {"lif": ("least important first (LIF)", "-"), "mif": ("most important first (MIF)", "--")}
MODELS = {"none": "Ordinary model: the two orders disagree", "fpa": "Trained with FPA: they agree"}
BETTER = {"lif": max, "mif": min}
"""Of two curves: least important first, the output should last; most important first, it should fall."""


def panel(axis: Axes, curves: pd.DataFrame) -> None:
    """The four curves of a model, and at each order which map is better by it."""
    areas = {}
    for order, (_, dashes) in ORDERS.items():
        for name, (_, colour) in MAPS.items():
            chosen = curves[(curves.estimator == name) & (curves.order == order)].sort_values("fraction")
            axis.plot(100 * chosen["fraction"], 100 * chosen["mean"], color=colour, lw=1.8, ls=dashes)
            areas[order, name] = chosen["mean"].mean()
    for place, order in enumerate(ORDERS):
        best = BETTER[order](MAPS, key=lambda name, order=order: areas[order, name])
        words = f"{ORDERS[order][0]} prefers {MAPS[best][0].partition(':')[0]}"
        axis.text(
            0.98, 0.97 - 0.075 * place, words, color=MAPS[best][1], transform=axis.transAxes,
            ha="right", va="top", fontsize=9, fontweight="bold",
        )  # fmt: skip
    axis.set_xlabel("pixels removed, %")
    axis.set_xlim(0, 100)
    axis.set_ylim(-6, 154)
    axis.axhline(0, color=GREY, lw=0.7)
    axis.spines[["top", "right"]].set_visible(False)


@styled
def draw() -> Figure:
    curves = pd.read_csv(ROOT / "docs/results/cifar10/seed-0/curves.csv")
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (training, title) in zip(axes, MODELS.items(), strict=True):
        panel(axis, curves[curves.augmentation == training])
        axis.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes[0].set_ylabel("output for the predicted class, %")
    handles = [Line2D([], [], color=colour, lw=1.8, label=label) for label, colour in MAPS.values()]
    handles += [Line2D([], [], color=INK, lw=1.8, ls=dashes, label=name) for name, dashes in ORDERS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


if __name__ == "__main__":
    draw().savefig(ROOT / "docs/images/curves.png", dpi=150)
