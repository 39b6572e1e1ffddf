"""The embedded data set `digits`: scikit-learn's handwritten digits."""

import numpy as np
import torch

from fpa.data.splits import ArraySplit, DataRequest, ImageData, array_data


def load(request: DataRequest) -> ImageData:
    """1,797 digits, 8 x 8 pixels enlarged to 32 x 32: 1,437 to train on and 360 to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    values = torch.from_numpy(bunch.images).float().unsqueeze(1) * (255 / 16)
    larger = torch.nn.functional.interpolate(values, (32, 32), mode="bilinear", align_corners=False)
    images = larger.round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    parts = train_test_split(np.arange(len(labels)), test_size=360, stratify=bunch.target, random_state=0)
    train, test = (ArraySplit(images[part], labels[part]) for part in map(np.sort, parts))
    return array_data(request, train, test, crop_padding=2)
