"""Which device to work on."""

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
    if device not in (None, "cpu", "cuda", "mps"):
        raise InputError(f"device must be cpu, cuda or mps, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda was asked for, but PyTorch finds no CUDA device here")
    if device == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps was asked for, but PyTorch finds no Apple GPU here")
