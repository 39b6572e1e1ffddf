"""The picture of the README: curves of two estimators without and with FPA, from stored CIFAR-10 results.

    python research/readme_picture.py

Reads docs/results/cifar10/seed-0/curves.csv, writes docs/images/curves.png.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
SHOWN = {
    "ig_sum": ("Integrated gradients, signed", "#0072B2"),
    "sqsg_sum": ("Squared SmoothGrad, unsigned", "#D55E00"),
}
TRAININGS = {"none": "trained as usual", "fpa": "trained with FPA"}


def main() -> None:
    curves = pd.read_csv(ROOT / "docs/results/cifar10/seed-0/curves.csv")
    figure = Figure(figsize=(8.4, 3.5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (training, title) in zip(axes, TRAININGS.items(), strict=True):
        for place, (estimator, (label, colour)) in enumerate(SHOWN.items()):
            chosen = curves[(curves.augmentation == training) & (curves.estimator == estimator)]
            mif, lif = (chosen[chosen.order == order].sort_values("fraction") for order in ("mif", "lif"))
            x = 100 * mif["fraction"].to_numpy()
            low = mif["mean"].to_numpy()
            high = lif["mean"].to_numpy()
            axis.plot(x, 100 * high, color=colour, lw=1.8, label=f"{label}: least important first (LIF)")
            axis.plot(x, 100 * low, color=colour, lw=1.8, ls="--", label="most important first (MIF)")
            area = np.trapezoid(high - low, x)
            axis.text(
                0.97, 0.93 - 0.085 * place, f"A = {area:.0f}", color=colour, transform=axis.transAxes,
                ha="right", va="top", fontsize=11, fontweight="bold",
            )  # fmt: skip
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("pixels masked, %")
        axis.set_xlim(0, 100)
        axis.axhline(0, color="#999999", lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("logit of the predicted class,\n% of the unmasked one")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(ROOT / "docs/images/curves.png", dpi=150)


if __name__ == "__main__":
    main()
