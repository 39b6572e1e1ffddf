"""The pictures of docs/gallery.md that no other script makes, from models and images that ship with fpa.

    python research/gallery.py

Writes docs/images/gallery/*.png in a minute on a CPU.
"""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import fpa
from fpa.functional import ranks, remove
from fpa.masking import get_masking
from fpa.perturbation.features import features_of
from fpa.perturbation.protocols import get_protocols
from fpa.show.figures import fpa_examples
from fpa.show.figures.style import (
    LIF_COLOUR,
    MIF_COLOUR,
    SIGNS,
    mif_and_lif,
    percent_axis,
    show_image,
    styled,
)
from fpa.show.names import estimator_name

FOLDER = Path(__file__).parents[1] / "docs/images/gallery"
SHARES = (0.1, 0.25, 0.5, 0.75)
PROTOCOLS = {
    "pixels": "single pixels, grey\npixels (the usual test)",
    "pixels+blur": "single pixels, blurred\npixels+blur",
    "1/8": "patches, grey\n1/8",
    "1/8+blur": "patches, blurred\n1/8+blur (recommended)",
    "segments:50": "segments, grey\nsegments:50",
}


def as_bytes(images: Tensor) -> np.ndarray:
    """Images in [-1, 1] as they look."""
    return ((images.clamp(-1, 1) + 1) * 127.5).byte().numpy()


@styled
def removal(model: torch.nn.Module, images: Tensor) -> Figure:
    """What the test does: an image, its map, what is left of it in both orders, and the curves."""
    name = "ig_sum"
    maps = fpa.explain(model, images, [name])
    curves = fpa.perturbation_curves(model, images, maps)
    place = ranks(maps[name])
    pixels = place[0].numel()
    figure = Figure(figsize=(8.4, 2.9))
    left, right = figure.subfigures(1, 2, width_ratios=(2.6, 1))
    axes = left.subplots(2, 1 + len(SHARES))
    show_image(axes[0, 0], as_bytes(images)[0])
    axes[0, 0].set_title("image")
    largest = float(maps[name][0].abs().quantile(0.99))
    axes[1, 0].imshow(maps[name][0], cmap=SIGNS, norm=CenteredNorm(0, largest))
    axes[1, 0].set(xticks=[], yticks=[], xlabel="map")
    for column, share in enumerate(SHARES, start=1):
        removed = round(share * pixels)
        for row, mask in enumerate((place >= pixels - removed, place < removed)):
            show_image(axes[row, column], as_bytes(remove(images, mask))[0])
        axes[0, column].set_title(f"{share:.0%} removed")
    axes[0, 1].set_ylabel("most important\nfirst (MIF)", color=MIF_COLOUR)
    axes[1, 1].set_ylabel("least important\nfirst (LIF)", color=LIF_COLOUR)
    axis = right.subplots()
    mif, lif = (each[name][0].numpy() for each in (curves.mif, curves.lif))
    mif_and_lif(axis, np.asarray(curves.fractions), mif / mif[0], lif / lif[0])
    percent_axis(axis)
    axis.set(title="output for the class", xlabel="pixels removed")
    return figure


@styled
def maps(model: torch.nn.Module, images: Tensor) -> Figure:
    """The ten estimators of the paper on three images."""
    found = fpa.explain(model, images, "paper")
    figure = Figure(figsize=(8.4, 2.6))
    axes = figure.subplots(len(images), 1 + len(found))
    labels = {name: each.label(name) for name, each in fpa.get_estimators("paper").items()}
    for row, image in enumerate(as_bytes(images)):
        show_image(axes[row, 0], image)
        for axis, (name, values) in zip(axes[row, 1:], found.items(), strict=True):
            largest = float(values[row].abs().quantile(0.99))
            axis.imshow(values[row], cmap=SIGNS, norm=CenteredNorm(0, largest))
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(estimator_name(name, "mathtext", label=labels[name]), fontsize=8)
    axes[0, 0].set_title("image", fontsize=8)
    return figure


@styled
def protocols(model: torch.nn.Module, images: Tensor, share: float = 0.3) -> Figure:
    """The same share of the same images removed by several protocols, most important first."""
    found = fpa.explain(model, images, ["ig_sum"])["ig_sum"]
    figure = Figure(figsize=(8.4, 3.6))
    axes = figure.subplots(len(images), 1 + len(PROTOCOLS))
    for row, image in enumerate(as_bytes(images)):
        show_image(axes[row, 0], image)
    axes[0, 0].set_title("image\n", fontsize=8)
    for column, (name, protocol) in enumerate(
        get_protocols(list(PROTOCOLS), get_masking("constant")).items(), start=1
    ):
        parts = features_of(protocol.features, images)
        order = parts.random_order(images.device, 0, range(len(images)))
        place = parts.to_pixels(parts.ranks(found, order)[None])
        mask = place >= (1 - share) * (place.amax(dim=(1, 2), keepdim=True) + 1)
        for row, image in enumerate(as_bytes(remove(images, mask, protocol.masking))):
            show_image(axes[row, column], image)
        axes[0, column].set_title(PROTOCOLS[name], fontsize=8)
    return figure


@styled
def world() -> Figure:
    """Scenes of the world cues, and the same without one of their cues."""
    data = fpa.load_data("cues")
    scenes = data.world.test_scenes(range(40))
    rows = [row for row in range(40) if int(scenes.cues[row].sum()) == 4][:3]
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots(len(rows), 5)
    whole = scenes.render().numpy()
    for line, row in enumerate(rows):
        show_image(axes[line, 0], whole[row])
        for column, cue in enumerate(scenes.cues[row].nonzero().flatten(), start=1):
            left_out = torch.zeros_like(scenes.cues)
            left_out[row, cue] = True
            show_image(axes[line, column], scenes.render(scenes.without(left_out)).numpy()[row])
            axes[0, column].set_title(f"without cue {column}")
    axes[0, 0].set_title("image")
    return figure


def main() -> None:
    data = fpa.load_data("shapes")
    images = data.normalisation(data.test.images[:40])
    model = fpa.load_model("shapes-fpa")
    fpa_settings = fpa.FPA(p=1.0, p1_max=0.25, p2=0.1, s_max=3)
    drawn: dict[str, Callable[[], Figure]] = {
        "removal": lambda: removal(model, images[5:6]),
        "maps": lambda: maps(model, images[5:8]),
        "protocols": lambda: protocols(model, images[5:8]),
        "world": world,
        "fpa": lambda: fpa_examples(data.test.images[:8].numpy(), fpa_settings),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in drawn.items():
        save_small(draw(), FOLDER / f"{name}.png")


def save_small(figure: Figure, path: Path) -> None:
    """With 256 colours, which nobody sees: a third of the bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=110)
    Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
