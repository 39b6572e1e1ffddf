"""Architectures by name."""

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models
from torchvision.models.resnet import BasicBlock

from fpa.errors import InputError, unknown


class SmallResNet(nn.Module):
    """Three residual blocks of 16, 32 and 64 channels: for 32 px images on a CPU (77,000 weights)."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(_block(16, 16, 1), _block(16, 32, 2), _block(32, 64, 2))
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    shortcut = None
    if inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    block: nn.Module = BasicBlock(inputs, outputs, stride, shortcut)
    return block


def _cifar_resnet18(classes: int, channels: int) -> nn.Module:
    """ResNet-18 whose stem keeps 32 px images large: a 3x3 convolution of stride 1, no pooling."""
    model: nn.Module = torchvision_models.resnet18(num_classes=classes)
    stem = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


OWN = {"resnet-small": SmallResNet, "resnet18-cifar": _cifar_resnet18}


def build_model(
    architecture: str, classes: int, input_shape: tuple[int, int, int], seed: int = 0
) -> nn.Module:
    """A new model with random weights that depend only on the seed.

    `architecture` is "resnet-small", "resnet18-cifar", any classifier of torchvision ("resnet50",
    "mobilenet_v2", ...) or, with timm installed, "timm:NAME".

    >>> model = build_model("resnet-small", classes=8, input_shape=(3, 32, 32))
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(architecture, classes, input_shape)


def _build(architecture: str, classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    channels = input_shape[0]
    if architecture in OWN:
        return OWN[architecture](classes, channels)
    if architecture.startswith("timm:"):
        try:
            import timm
        except ImportError as error:
            raise InputError(f"model {architecture!r} needs timm: pip install 'fpa[timm]'") from error
        name = architecture.removeprefix("timm:")
        if not timm.is_model(name):
            raise unknown("timm model", name, timm.list_models())
        model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=channels)
        return model
    name = architecture.removeprefix("torchvision:")
    known = torchvision_models.list_models(module=torchvision_models)
    if name not in known:
        raise unknown("model", architecture, [*OWN, *known])
    if channels != 3:
        raise InputError(
            f"model {architecture!r} takes images of 3 channels, these have {channels}: "
            f"use one of {', '.join(OWN)} or a timm model"
        )
    return torchvision_models.get_model(name, weights=None, num_classes=classes)  # type: ignore[no-any-return]
