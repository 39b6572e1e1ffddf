"""Which device to work on."""

import re

import torch

from fpa.errors import InputError


def chosen_device(device: str | None) -> str:
    """The device asked for, or the best there is."""
    if device is not None:
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(device: str | None) -> None:
    """Refuse a device that this machine does not have."""
    if device is None:
        return
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise InputError(f"device must be cpu, cuda, cuda:N or mps, got {device!r}")
    if device == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps was asked for, but PyTorch finds no Apple GPU here")
    if device.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InputError(f"device {device} was asked for, but PyTorch finds no CUDA device here")
        if int(device.partition(":")[2] or 0) >= count:
            raise InputError(f"device {device} was asked for, but the last one here is cuda:{count - 1}")
