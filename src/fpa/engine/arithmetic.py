"""In which arithmetic CUDA works: TF32 or not, for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

_Result = TypeVar("_Result")


@contextmanager
def cuda_arithmetic(tf32: bool, benchmark: bool) -> Iterator[None]:
    """TF32 on or off, and convolutions tuned for fixed shapes; as it was afterwards.

    Set through the older switches: torch.compile reads them and fails where only the newer ones were set.
    """
    known: Any = torch.backends
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


def _unless_mixed(read: Callable[[], _Result]) -> _Result | None:
    """An older switch; None where the user has set only the newer one, which torch refuses to translate."""
    try:
        return read()
    except RuntimeError:
        return None
