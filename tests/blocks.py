"""Blocks to call scores on, without an evaluation around them."""

import torch
from torch import nn

import fpa
from fpa.explanation import get_estimators, make_task, maps_of
from fpa.perturbation import curves_of
from fpa.scores import SCORES, Block


def linear(channels=1, side=4, classes=3, seed=0):
    """A linear classifier without a bias: what removing a pixel costs is known exactly."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, classes, bias=False)).eval()
    return net.double()


def images(count=5, channels=1, side=4, seed=1):
    """Random images, float64."""
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(seed)).double()


def block_of(
    net, batch, maps=None, estimators=("ig_sum",), *, points=5, masks=None, labels=None, fractions=None, **how
):
    """A block of these images, with maps [N, H, W] by name or those of estimators."""
    named = get_estimators(
        list(estimators) if maps is None else dict.fromkeys(maps, "ig_sum"), fpa.Settings(5, 2)
    )
    task, logits = make_task(net, batch, **how)
    maps = (
        maps_of(task, named) if maps is None else {name: each.to(task.images) for name, each in maps.items()}
    )
    truth = task.targets if labels is None else labels
    shares = [step / (points - 1) for step in range(points)] if fractions is None else fractions
    curves = curves_of(task, maps, shares, logits=logits, labels=truth, outputs=("logit", "probability"))
    more = {"masks": masks, "fractions": shares}
    return Block(task, truth.cpu(), logits, named, maps, curves=curves, **more)


def scored(name, block):
    """The values of a score by map, as lists."""
    return {key: values.tolist() for key, values in SCORES[name](block).items()}
