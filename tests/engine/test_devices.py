"""Devices by name: those that this machine has, and no others."""

import pytest
import torch

from fpa import InputError
from fpa.engine.devices import check_device


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("device", [None, "cpu", "cuda", "cuda:0", "cuda:1"])
def test_devices_that_are_there(device, two_gpus):
    check_device(device)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:2", "device cuda:2 was asked for, but the last one here is cuda:1"),
        ("cuda:", "device must be cpu, cuda, cuda:N or mps, got 'cuda:'"),
        ("cuda:-1", "got 'cuda:-1'"),
        ("cpu:0", "got 'cpu:0'"),
        ("tpu", "got 'tpu'"),
    ],
)
def test_devices_that_are_not(device, message, two_gpus):
    with pytest.raises(InputError, match=message):
        check_device(device)
