"""How many rows make a batch: as many as fit the memory, up to where more are no faster."""

import torch
from torch import Tensor

from fpa.engine.arithmetic import PassKind, Runner

# Past these sizes a larger batch is no faster.
_MOST_ROWS = {"cuda": 4096, "cpu": 64}
_MOST_PIXELS = 1 << 25

# What autograd keeps of one CPU batch: beyond the caches more is not faster, only larger.
_CPU_KEPT_BYTES = 96 << 20
_CPU_FEWEST_ROWS = 4

_SHARE_OF_FREE_MEMORY = 0.6

# Copies of a row that building it and summing its result may hold at once.
_OWN_COPIES = 6


def fitting_batch_size(runner: Runner, kind: PassKind, row: Tensor, memory: int | None) -> int:
    """The largest power of two that fits the memory, up to where larger batches are no faster.

    On CUDA the record of the most memory held may be reset.
    """
    device = runner.device
    pixels = max(1, row.shape[-2] * row.shape[-1])  # a row without any token has none
    most = min(_MOST_ROWS.get(device.type, 64), max(1, _MOST_PIXELS // pixels))
    if device.type == "cuda":
        free = _free_bytes(device)
        room = _SHARE_OF_FREE_MEMORY * free if memory is None else min(memory, 0.9 * free)
        try:
            fits = _fitting_on_cuda(runner, kind, row, room, must_measure=memory is not None, most=most)
        except torch.OutOfMemoryError:
            return 1
    else:
        kept = _kept_bytes(runner, row)
        fits = (memory or max(_CPU_KEPT_BYTES, _CPU_FEWEST_ROWS * kept)) // kept
    # A power of two: when the memory turns out too small, halves of it are powers of two again, and few
    # different sizes are ever compiled.
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def _fitting_on_cuda(
    runner: Runner, kind: PassKind, row: Tensor, room: float, *, must_measure: bool, most: int
) -> int:
    """How many rows fit `room` bytes."""
    # A generous guess: a backward pass holds what autograd keeps, and as much again of its own. Where even
    # that leaves room for the most rows there is any use for, measuring would be time for nothing.
    fixed = 0.0
    each = 2.0 * _kept_bytes(runner, row) + _OWN_COPIES * row.nbytes
    if must_measure or most * each > room:
        fixed, each = _cuda_bytes(runner, kind, row)
    return int((room - fixed) / each)


def _free_bytes(device: torch.device) -> float:
    """What this process can still take of a GPU: what is free, what it may have at all, and its own cache."""
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, allowed - held) + held - torch.cuda.memory_allocated(device)


def _kept_bytes(runner: Runner, row: Tensor) -> int:
    """Bytes autograd keeps for the backward pass of one row: the scale of a row's working set."""
    seen: dict[int, int] = {}

    # By address: views of one storage, as ReLU's output and the next layer's input, are kept once.
    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    # Two rows, as in the probe of the forms: the kernels for them are loaded already.
    pair = row.expand(2, *row.shape[1:]).contiguous()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        runner.record(pair)
    weights = {p.untyped_storage().data_ptr() for p in runner.module.parameters()}
    return max(1, row.nbytes, sum(size for place, size in seen.items() if place not in weights) // 2)


def _cuda_bytes(runner: Runner, kind: PassKind, row: Tensor) -> tuple[float, float]:
    """Bytes of a batch on CUDA, measured: what does not grow with its rows, and what a row adds."""
    # Two sizes tell the slope from the offset: workspaces of convolutions do not grow with the rows.
    few = 2
    more = 8
    peaks = []
    for rows in (few, more):
        torch.cuda.reset_peak_memory_stats(runner.device)
        held = torch.cuda.memory_allocated(runner.device)
        batch = row.expand(rows, *row.shape[1:]).contiguous()
        if kind == "gradients":
            runner.gradients(batch, torch.zeros(rows, dtype=torch.int64, device=runner.device), eager=True)
        else:
            runner.logits(batch, eager=True)
        peaks.append(torch.cuda.max_memory_allocated(runner.device) - held)
    each = max((peaks[1] - peaks[0]) / (more - few), row.nbytes, 1) + _OWN_COPIES * row.nbytes
    return max(0.0, peaks[0] - few * each), each
