"""ImageNet, as folders of classes."""

from dataclasses import replace
from pathlib import Path

from torchvision.models import ResNet50_Weights

from fpa.data.photos import _locate, _two_folders, _warn_if_unofficial
from fpa.data.splits import ImageData
from fpa.data.subset import _EVALUATION_IMAGES


def _imagenet(root: Path, evaluation_images: int | None, size: int, check: bool) -> ImageData:
    folder = _locate("imagenet", root, "imagenet", ("train", "val"))
    data = _two_folders(
        "imagenet", folder / "train", folder / "val", evaluation_images, size, check, usual=_EVALUATION_IMAGES
    )
    _warn_if_unofficial(data, folder, 1000)
    if (len(data.classes), data.classes[0], data.classes[-1]) != (1000, "n01440764", "n15075141"):
        return data
    # torchvision keeps the class names in the order of the sorted WordNet identifiers.
    return replace(data, classes=list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"]))
