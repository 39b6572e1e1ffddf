"""Figures of single images."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fpa.errors import InputError, one_of
from fpa.evaluation.result import Result, Results
from fpa.show.figures import style
from fpa.statistics.intervals import Floats
from fpa.statistics.shares import share_carrying

if TYPE_CHECKING:
    from fpa.training.augment import FPA, Rectangle


@style.styled
def fpa_examples(
    images: NDArray[Any],
    perturbation: "NDArray[np.bool_] | FPA | Rectangle",
    *,
    fill: NDArray[Any] | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
) -> Figure:
    """Images above, the same images perturbed below, with the share of pixels that is masked.

    >>> from fpa import FPA
    >>> images = np.zeros((4, 3, 32, 32), dtype=np.uint8)
    >>> figure = fpa_examples(images, FPA(p1_max=0.25, p2=0.1, s_max=3))

    - `images` [M, C, H, W]: bytes, or floats from 0 to 1.
    - `perturbation`: masks, bool [M, H, W], or an augmentation that draws one for each image from `seed`, as
      if the image were a mini-batch that is perturbed.
    - `fill` [M, C, H, W]: what the fully masked images look like; default: mid-grey.
    - `names`: a title for every image.
    """
    if images.ndim != 4:
        raise InputError(f"images must be [M, C, H, W], got shape {list(images.shape)}")
    masks = perturbation if isinstance(perturbation, np.ndarray) else _masks(images, perturbation, seed)
    expected = (len(images), *images.shape[2:])
    if masks.dtype != np.bool_ or masks.shape != expected:
        raise InputError(f"masks must be bool {list(expected)}, got {masks.dtype} {list(masks.shape)}")
    if fill is None:
        fill = np.full_like(images, 128 if images.dtype == np.uint8 else 0.5)
    figure = Figure(figsize=(max(0.95 * len(images) + 0.3, 2.4), 2.4))
    axes = figure.subplots(2, len(images), squeeze=False)
    for column, (above, below) in enumerate(axes.T):
        style.show_image(above, images[column])
        style.show_image(below, np.where(masks[column], fill[column], images[column]))
        below.set_xlabel(f"{masks[column].mean():.0%} masked", fontsize=8)
        if names:
            above.set_title(style.plain(names[column], 12), fontsize=8)
    axes[0, 0].set_ylabel("Original")
    axes[1, 0].set_ylabel("Perturbed")
    return figure


@style.styled
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
    - `estimator`: its name, for a title; it may contain Matplotlib's mathtext.
    """
    values = np.asarray(scores, dtype=np.float64)
    x, falling, staying = (np.asarray(numbers, dtype=np.float64) for numbers in (fractions, mif, lif))
    if values.ndim != 2 or not np.isfinite(values).all():
        raise InputError(f"scores must be one map [H, W] of finite numbers, got shape {list(values.shape)}")
    if not (np.isfinite([falling, staying]).all() and falling[0] > 0):
        raise InputError(f"curves must be finite and start above 0, this one starts at {falling[0]:.3g}")
    figure = Figure(figsize=(6.6, 5.6))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.75), squeeze=False)[0]
    pictures = left.subplots(3, 1)
    plots = right.subplots(3, 1, sharex=True)

    style.show_image(pictures[0], image)
    pictures[0].set_title(f"Explained class:\n{style.plain(class_name, 24)}" if class_name else "Image")
    # A map of zeros has no range, and any will do. The size is clipped: one pixel would pale all others.
    norm = CenteredNorm(0, float(np.percentile(np.abs(values), 99)) or 1.0)
    titles = (f"{estimator} scores" if estimator else "Scores", "The largest 2% by size")
    for axis, title, numbers in zip(pictures[1:], titles, (values, truncated(values)), strict=True):
        drawn = axis.imshow(numbers, cmap=style.SIGNS, norm=norm)
        axis.set(title=title, xticks=[], yticks=[])
        axis.spines[:].set_visible(True)
    ticks = MaxNLocator(3, symmetric=True)
    left.colorbar(drawn, ax=pictures[2], location="bottom", extend="both", shrink=0.65, pad=0.04, ticks=ticks)

    plots[0].set_title("Normalised logit")
    style.mif_and_lif(plots[0], x, falling / falling[0], staying / staying[0])
    positive, negative = share_carrying(values)
    flat = np.sort(values, axis=None)
    falls = flat[flat < 0]
    rises = flat[flat > 0][::-1]
    _draw_scores(plots[1], falls, flat.size, sign="negative", side="LIF", share=negative)
    _draw_scores(plots[2], rises, flat.size, sign="positive", side="MIF", share=positive)
    plots[2].set_xlabel("Pixels masked")
    return figure


def _draw_scores(axis: Axes, scores: Floats, pixels: int, *, sign: str, side: str, share: float) -> None:
    """The scores of one sign in the order in which they are masked, with the share that carries most."""
    colour = style.LIF_COLOUR if side == "LIF" else style.MIF_COLOUR
    masked = np.arange(len(scores)) / pixels
    axis.fill_between(masked, scores, step="post", color=colour, alpha=0.35, linewidth=0)
    axis.step(masked, scores, where="post", color=colour, linewidth=1.2)
    axis.set_title(f"{sign.capitalize()} scores, masked first by {side}")
    axis.axvline(share, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    # The words stand right of the line, but not so far that they leave the axis.
    axis.text(
        min(share, 0.55) + 0.02,
        0.08 if sign == "negative" else 0.92,
        f"{share:.1%} of the pixels carry 90%\nof the {sign} score" if share else f"no {sign} scores",
        transform=axis.transAxes,
        va="bottom" if sign == "negative" else "top",
        size=8,
        bbox=style.BEHIND,
    )
    style.percent_axis(axis)


def sign_fluctuation(results: Results, model: str, which: int = 0, estimator: str = "ig_sum") -> Figure:
    """`sign_panel` for the example image number `which` of a model."""
    chosen = of_model(results, model)
    examples = chosen.examples
    evaluation = chosen.evaluation
    if examples is None or not 0 <= which < len(examples.images):
        count = 0 if examples is None else len(examples.images)
        raise InputError(f"there is no example image {which}: the model {model!r} has {count}")
    one_of("estimator", estimator, examples.maps)
    rows = np.flatnonzero(evaluation.indices == examples.indices[which])
    if len(rows) == 0:
        raise InputError(f"there are no curves of image {examples.indices[which]} in these results")
    return sign_panel(
        examples.images[which],
        examples.maps[estimator][which],
        evaluation.fractions,
        evaluation.mif[estimator][rows[0]],
        evaluation.lif[estimator][rows[0]],
        estimator=style.drawn_names(results)[estimator],
        class_name=results.classes[examples.targets[which]],
    )


def of_model(results: Results, name: str) -> Result:
    """A model by its name, or the error that names those there are."""
    one_of("model", name, results.models)
    return results.models[name]


def truncated(scores: ArrayLike, percentile: float = 98) -> Floats:
    """The scores whose size is at or above a percentile of all sizes, the others set to 0.

    >>> truncated([[3.0, -4.0], [1.0, -1.0]], percentile=50)
    array([[ 3., -4.],
           [ 0.,  0.]])
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.where(np.abs(values) >= np.percentile(np.abs(values), percentile), values, 0.0)


def _masks(images: NDArray[Any], augmentation: "FPA | Rectangle", seed: int) -> NDArray[np.bool_]:
    import torch

    always = copy.copy(augmentation)  # the user's own keeps its p
    always.p = 1.0
    source = torch.Generator().manual_seed(seed)
    # One image at a time: p1 is drawn once for a batch, and the figure is to show how the share varies.
    blank = torch.zeros(1, *images.shape[1:])
    return np.concatenate([always.mask(blank, source).numpy() for _ in images])
