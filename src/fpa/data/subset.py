"""Which test images an evaluation is over: always the same ones."""

import numpy as np
import torch
from torch import Tensor

from fpa.data.normalisation import minus_one_to_one
from fpa.data.splits import ArraySplit, ImageData
from fpa.errors import InputError

_EVALUATION_SEED = 0


_EVALUATION_IMAGES = 5000  # of Food-101 and ImageNet, as in the paper


def _evaluation_subset(count: int, wanted: int | None) -> Tensor:
    """`wanted` of `count` indices (None: all), always the same ones, in rising order."""
    if wanted is None:
        return torch.arange(count)
    if not 1 <= wanted <= count:
        raise InputError(f"the number of evaluation images must be in 1..{count}, got {wanted}")
    order = np.argsort(np.random.PCG64(_EVALUATION_SEED).random_raw(count), kind="stable")
    return torch.from_numpy(np.sort(order[:wanted]))


def _array_data(
    name: str,
    classes: list[str],
    train: ArraySplit,
    test: ArraySplit,
    evaluation_images: int | None,
    *,
    crop_padding: int,
    flip: bool,
) -> ImageData:
    channels, height, width = train.images.shape[1:]
    return ImageData(
        name=name,
        classes=classes,
        normalisation=minus_one_to_one(channels),
        input_shape=(channels, height, width),
        train=train,
        test=test,
        evaluation=_evaluation_subset(len(test), evaluation_images),
        crop_padding=crop_padding,
        flip=flip,
    )
