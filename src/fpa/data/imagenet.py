"""ImageNet, as folders of classes."""

from dataclasses import replace

from torchvision.models import ResNet50_Weights

from fpa.data.photos import locate, two_folders
from fpa.data.splits import DataRequest, ImageData


def load(request: DataRequest) -> ImageData:
    """`train/` and `val/` with a folder for each of the 1,000 classes, named by their WordNet identifiers."""
    folder = locate(request, "imagenet", ("train", "val"))
    data = two_folders(request, folder / "train", folder / "val", official=1000)
    if (len(data.classes), data.classes[0], data.classes[-1]) != (1000, "n01440764", "n15075141"):
        return data
    # torchvision keeps the class names in the order of the sorted WordNet identifiers.
    return replace(data, classes=list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"]))
