"""Devices by name: those that this machine has, and no others."""

import pytest
import torch

from fpa import InputError
from fpa.engine import batch_size
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


@pytest.mark.parametrize(("share", "expected"), [(1.0, 70), (0.5, 50), (0.3, 30)])
def test_a_process_takes_no_more_of_a_gpu_than_it_may(share, expected, monkeypatch):
    # 100 bytes, 40 of them free; this process holds 30 in its cache, of which it uses none, or may have less.
    values = {"mem_get_info": (40, 100), "memory_reserved": 30, "memory_allocated": 0}
    for name, value in (values | {"get_per_process_memory_fraction": share}).items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert batch_size._free_bytes(torch.device("cuda")) == expected
