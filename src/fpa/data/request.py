"""What is asked of a data set, and what is made of its images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fpa.data.normalisation import minus_one_to_one
from fpa.data.splits import ArraySplit, ImageData
from fpa.errors import InputError, at_least

USUAL_IMAGES = 5000  # evaluation images of Food-101 and ImageNet, as in the paper

_EVALUATION_SEED = 0


@dataclass(frozen=True)
class DataRequest:
    """What `load_data` asks a data set for."""

    name: str
    """The name the data set was asked for by: `cifar10`, `folder:PATH`, `module:function`."""
    root: Path = Path("data")
    """The folder where the files of data sets are."""
    size: int = 224
    """The side of the images of sets that are files."""
    evaluation_images: int | None = None
    """How many test images to evaluate on; None: as many as is usual for the set."""
    check: bool = True
    """Whether to look at all files before anything else happens."""

    def __post_init__(self) -> None:
        at_least("the size of the images", self.size, 1)

    def subset(self, count: int, usual: int | None = None) -> Tensor:
        """The numbers of the evaluation images among `count`: always the same ones, in rising order.

        Without a wish there are `usual` ones, or all where there are fewer or nothing is usual.
        """
        wanted = self.evaluation_images
        if wanted is None and (usual is None or usual >= count):
            return torch.arange(count)
        wanted = usual if wanted is None else wanted
        if wanted is None or not 1 <= wanted <= count:
            raise InputError(f"the number of evaluation images must be in 1..{count}, got {wanted}")
        order = np.argsort(np.random.PCG64(_EVALUATION_SEED).random_raw(count), kind="stable")
        return torch.from_numpy(np.sort(order[:wanted]))


def array_data(
    request: DataRequest,
    train: ArraySplit,
    test: ArraySplit,
    classes: Sequence[str] | None = None,
    *,
    crop_padding: int = 0,
    flip: bool = False,
) -> ImageData:
    """The data set of two splits held whole, scaled to [-1, 1]; classes without names are called by number.

    `crop_padding` and `flip` are how training varies its images: random crops after padding, mirroring.
    """
    channels, height, width = train.images.shape[1:]
    if classes is None:
        classes = [str(number) for number in range(int(max(train.labels.max(), test.labels.max())) + 1)]
    return ImageData(
        name=request.name,
        classes=list(classes),
        normalisation=minus_one_to_one(channels),
        input_shape=(channels, height, width),
        train=train,
        test=test,
        evaluation=request.subset(len(test)),
        crop_padding=crop_padding,
        flip=flip,
    )
