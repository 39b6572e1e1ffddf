"""The architectures of our own, for small images."""

from collections.abc import Callable

from torch import Tensor, nn
from torchvision import models as torchvision_models
from torchvision.models.resnet import BasicBlock


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


def cifar_resnet18(classes: int, channels: int) -> nn.Module:
    """ResNet-18 whose stem keeps 32 px images large: a 3x3 convolution of stride 1, no pooling."""
    model: nn.Module = torchvision_models.resnet18(num_classes=classes)
    stem = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


OWN: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet-small": SmallResNet,
    "resnet18-cifar": cifar_resnet18,
}
"""Architectures by name: functions of the numbers of classes and channels."""
