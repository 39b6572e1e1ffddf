"""How many rows make a batch: as many as fit the memory, up to where more are no faster."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fpa.engine.forms import Runner

Kind = Literal["gradients", "forwards", "exact"]


# Past these sizes a larger batch is no faster.
_MOST_ROWS = {"cuda": 4096, "cpu": 64}


_MOST_PIXELS = 1 << 24


# What autograd keeps of one CPU batch: beyond the caches more is not faster, only larger.
_CPU_KEPT_BYTES = 96 << 20


_CPU_FEWEST_ROWS = 4


_SHARE_OF_FREE_MEMORY = 0.6


# Copies of a row that building it and summing its result may hold at once.
_OWN_COPIES = 6


def fitting_batch(
    runner: Runner, kind: Kind, row: Tensor, memory: int | None, before_measuring: Callable[[], None]
) -> int:
    """The largest power of two that fits the memory, up to where larger batches are no faster.

    `before_measuring` is called before the record of the most memory held is reset.
    """
    device = runner.device
    most = min(_MOST_ROWS.get(device.type, 64), max(1, _MOST_PIXELS // (row.shape[-2] * row.shape[-1])))
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = _SHARE_OF_FREE_MEMORY * free if memory is None else min(memory, 0.9 * free)
        try:
            fixed, each = 0.0, 2.0 * _kept_bytes(runner, row) + _OWN_COPIES * row.nbytes
            if memory is not None or most * each > room:  # else a generous guess saves the measuring
                fixed, each = _cuda_bytes(runner, kind, row, before_measuring)
            fits = int((room - fixed) / each)
        except torch.OutOfMemoryError:
            return 1
    else:
        kept = _kept_bytes(runner, row)
        fits = (memory or max(_CPU_KEPT_BYTES, _CPU_FEWEST_ROWS * kept)) // kept
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def _kept_bytes(runner: Runner, row: Tensor) -> int:
    """Bytes autograd keeps for the backward pass of one row: the scale of a row's working set."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    pair = row.expand(2, *row.shape[1:]).contiguous()  # two, as in the probe: its kernels are loaded
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        runner.record(pair)
    weights = {p.untyped_storage().data_ptr() for p in runner.module.parameters()}
    kept = sum(size for place, size in seen.items() if place not in weights)
    return max(row.nbytes, kept // 2)


def _cuda_bytes(
    runner: Runner, kind: Kind, row: Tensor, before_measuring: Callable[[], None]
) -> tuple[float, float]:
    """Bytes of a batch on CUDA, measured: what does not grow with its rows, and what a row adds."""
    few, more = 2, 8
    peaks = []
    for rows in (few, more):
        before_measuring()
        torch.cuda.reset_peak_memory_stats(runner.device)
        before = torch.cuda.memory_allocated(runner.device)
        batch = row.expand(rows, *row.shape[1:]).contiguous()
        if kind == "gradients":
            runner.gradients(batch, torch.zeros(rows, dtype=torch.int64, device=runner.device), eager=True)
        else:
            runner.logits(batch, eager=True)
        peaks.append(torch.cuda.max_memory_allocated(runner.device) - before)
    each = max((peaks[1] - peaks[0]) / (more - few), row.nbytes) + _OWN_COPIES * row.nbytes
    return max(0.0, peaks[0] - few * each), each
