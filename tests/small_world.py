"""A world of small images and a network for them that nobody trained."""

import torch
from torch import nn

import fpa
from fpa.data import ImageData
from fpa.worlds import Cues


def untrained() -> nn.Module:
    """A small classifier of three classes, the same every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3)).eval()


def small_cues(test_images: int) -> ImageData:
    """The world cues at 16 px, with so many test images."""
    return Cues(size=16, train_images=8, test_images=test_images)(fpa.data.DataRequest("small"))
