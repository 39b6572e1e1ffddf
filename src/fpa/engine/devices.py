"""Which device to work on, and how it computes: in TF32 or not, compiled or not."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fpa.errors import InputError
from fpa.files import launch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def chosen_device(device: str | None) -> str:
    """The device asked for, or the best there is; of several GPUs the processes of a job take one each."""
    if device not in (None, "cuda"):
        return device
    if device == "cuda" or torch.cuda.is_available():
        found = launch()
        return "cuda" if found.size == 1 else f"cuda:{found.local % max(torch.cuda.device_count(), 1)}"
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


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the CPU or of CUDA did not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


@contextmanager
def cuda_arithmetic(tf32: bool, benchmark: bool) -> Iterator[None]:
    """TF32 on or off, and convolutions tuned for fixed shapes; as it was afterwards.

    Set through the older switches: torch.compile reads them and fails where only the newer ones were set.
    """
    known: Any = torch.backends
    # Both generations of switches are put back: setting an older one changes what the newer ones say.
    newer = [(part, part.fp32_precision) for part in (known.cuda.matmul, known.cudnn.conv, known.cudnn.rnn)]
    matmul = _unless_mixed(torch.get_float32_matmul_precision)
    convolution = _unless_mixed(lambda: known.cudnn.allow_tf32)
    tuned = known.cudnn.benchmark
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        known.cudnn.allow_tf32 = tf32
        known.cudnn.benchmark = benchmark or tuned
        yield
    finally:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        if convolution is not None:
            known.cudnn.allow_tf32 = convolution
        for part, value in newer:
            part.fp32_precision = value
        known.cudnn.benchmark = tuned


def arithmetic_on(device: torch.device, tf32: bool, benchmark: bool = False) -> AbstractContextManager[None]:
    """`cuda_arithmetic` where the device is CUDA; nothing anywhere else."""
    return cuda_arithmetic(tf32, benchmark) if device.type == "cuda" else nullcontext()


def _unless_mixed(read: Callable[[], _R]) -> _R | None:
    """An older switch; None where the user has set only the newer one, which torch refuses to translate."""
    try:
        return read()
    except RuntimeError:
        return None


def sent(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Values on their way to a device; from pinned memory, so that CUDA's queue is not waited for."""
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, dtype or values.dtype, non_blocking=True)


def peak_memory(device: torch.device) -> int:
    """Bytes: the most held so far on a CUDA device; elsewhere by the process (0 where unknown)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    # In bytes on macOS, in kilobytes elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def time_when_done(device: torch.device) -> float:
    """The seconds of a clock when all that is queued on a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.monotonic()


def compiled(function: Callable[_P, _R], *, repeatable: bool = False) -> Callable[_P, _R]:
    """`torch.compile` for fixed shapes; with `repeatable`, no timing decides how a sum is computed.

    Elementwise kernels are not tuned: timing their variants takes long, and the chosen ones are no faster.
    """
    options: Any = {"triton.autotune_pointwise": False} | ({"deterministic": True} if repeatable else {})
    return torch.compile(function, dynamic=False, options=options)
