"""The embedded data set `digits`: scikit-learn's handwritten digits."""

import numpy as np
import torch

from fpa.data.splits import ArraySplit, ImageData
from fpa.data.subset import _array_data


def _digits(evaluation_images: int | None) -> ImageData:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    values = torch.from_numpy(bunch.images).float().unsqueeze(1) * (255 / 16)
    larger = torch.nn.functional.interpolate(values, (32, 32), mode="bilinear", align_corners=False)
    images, labels = larger.round().to(torch.uint8), torch.from_numpy(bunch.target).long()
    parts = train_test_split(np.arange(len(labels)), test_size=360, stratify=bunch.target, random_state=0)
    train, test = (ArraySplit(images[part], labels[part]) for part in map(np.sort, parts))
    classes = [str(digit) for digit in range(10)]
    return _array_data("digits", classes, train, test, evaluation_images, crop_padding=2, flip=False)
