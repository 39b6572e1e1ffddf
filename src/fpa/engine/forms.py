"""The form in which a model runs: its copy, the arithmetic, compiled or not; how many rows make a batch."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fpa.engine.devices import arithmetic_on, compiled
from fpa.engine.folding import bfloat16_copy, fold_batch_norm, private_copy
from fpa.engine.outputs import OUTPUTS, Output
from fpa.errors import InputError, unknown, warn
from fpa.models.wrap import untouched

Kind = Literal["gradients", "forwards", "exact"]
PrecisionName = Literal["float32", "tf32", "bfloat16"]

# Past these sizes a larger batch is no faster.
_MOST_ROWS = {"cuda": 4096, "cpu": 64}
_MOST_PIXELS = 1 << 25

# What autograd keeps of one CPU batch: beyond the caches more is not faster, only larger.
_CPU_KEPT_BYTES = 96 << 20
_CPU_FEWEST_ROWS = 4

_SHARE_OF_FREE_MEMORY = 0.6

# Copies of a row that building it and summing its result may hold at once.
_OWN_COPIES = 6


@dataclass(frozen=True)
class Precision:
    """The arithmetic of the gradient passes and of the forward passes along the curves.

    The explained class and the unmasked logit are float32 whatever is chosen here.

    >>> Precision("bfloat16", "bfloat16").gradients
    'bfloat16'
    """

    gradients: PrecisionName = "float32"
    forwards: PrecisionName = "float32"

    def __post_init__(self) -> None:
        for name in (self.gradients, self.forwards):
            if name not in get_args(PrecisionName):
                raise unknown("precision", name, get_args(PrecisionName))


# The fastest choice that keeps every A within 0.2 of float32; other kinds of device use float32.
DEFAULT_PRECISION = {"cuda": Precision("bfloat16", "bfloat16"), "cpu": Precision()}


@dataclass(eq=False)
class Runner:
    """One prepared form of the model: how its rows go in, in which arithmetic, compiled or not."""

    module: nn.Module
    device: torch.device
    dtype: torch.dtype
    borrowed: bool = False
    folded: bool = False
    tf32: bool = False
    autocast: bool = False
    channels_last: bool = False
    compiled: bool = field(default=False, init=False)
    compile_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._compiled_for: set[tuple[bool, torch.Size]] = set()
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)

    @property
    def described(self) -> str:
        """The arithmetic and what was done to the model, in words."""
        tf32 = self.tf32 and self.device.type == "cuda"
        arithmetic = "tf32" if tf32 else str(self.dtype).removeprefix("torch.")
        parts = {
            "bfloat16 by autocast": self.autocast,
            arithmetic: not self.autocast,
            "batch norms folded": self.folded,
            "channels last": self.channels_last,
            "compiled": self.compiled,
            "not copied": self.borrowed,
        }
        return ", ".join(part for part, used in parts.items() if used)

    def _eager(self, rows: Tensor) -> Tensor:
        # A copy, also where nothing is cast: a model may begin with an operation in place.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        logits: Tensor = self.module(rows.to(self.dtype, copy=True, memory_format=layout))
        return logits

    def compile_if(self, pays: bool) -> None:
        """Compile from the next call on, if that pays and the module is ours to compile."""
        if pays and not self.compiled and not self.borrowed:
            call = self._eager

            def own(rows: Tensor) -> Tensor:
                return call(rows)

            # Dynamo counts recompilations by code object; its own one keeps engines from sharing the limit.
            own.__code__ = own.__code__.replace()
            self._fast, self.compiled = compiled(own), True
            # Its advice to switch on TF32 is not for users: where float32 is exact, that was chosen.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)

    def logits(self, rows: Tensor, *, eager: bool = False) -> Tensor:
        """[N, classes] of the rows; `eager` without what is compiled."""
        with torch.no_grad(), self._context():
            return self._run(lambda call: call(rows), rows, eager)

    def gradients(
        self, rows: Tensor, targets: Tensor, output: Output = OUTPUTS["logit"], *, eager: bool = False
    ) -> Tensor:
        """The gradient of each row's output for its target, [N, C, H, W]."""
        rows = rows.detach().requires_grad_()
        with torch.enable_grad(), self._context():
            return self._run(lambda call: _gradient(call(rows), targets, rows, output), rows, eager)

    def record(self, rows: Tensor) -> None:
        """Run eagerly up to where a backward pass could begin."""
        with torch.enable_grad(), self._context():
            self._eager(rows.detach().requires_grad_())

    def _run(self, run: Callable[[Callable[[Tensor], Tensor]], Tensor], rows: Tensor, eager: bool) -> Tensor:
        if eager or not self.compiled:
            return run(self._eager)
        kind, began = (rows.requires_grad, rows.shape), time.monotonic()
        try:
            result = run(self._fast)
            if kind not in self._compiled_for:  # the first call of a kind compiles
                self.compile_seconds += time.monotonic() - began
                self._compiled_for.add(kind)
            return result
        except Exception as error:
            if isinstance(error, InputError) or out_of_memory(error):
                raise
            warn(f"the model could not be compiled and runs uncompiled: {error}")
        self.compiled = False
        return run(self._eager)

    @contextmanager
    def _context(self) -> Iterator[None]:
        lent = untouched(self.module, freeze=True) if self.borrowed else nullcontext()
        arithmetic = arithmetic_on(self.device, tf32=self.tf32, benchmark=self.compiled)
        with lent, torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast), arithmetic:
            yield


def fastest_form(plain: Runner, precision: PrecisionName, row: Tensor) -> Runner:
    """The fastest form of the model that runs and still says the same on a probe of two rows like `row`."""
    # Not the rows themselves: which form is chosen must not depend on where a run was resumed.
    probe = torch.randn((2, *row.shape[1:]), generator=torch.Generator().manual_seed(0)).to(row)
    expected = plain.logits(probe)
    check_logits(expected, 2)

    def agrees(runner: Runner, tolerance: float) -> bool:
        try:
            return same_logits(runner.logits(probe), expected, tolerance)
        except Exception as error:
            if out_of_memory(error):
                raise
        return False

    device, dtype, tf32 = plain.device, plain.dtype, precision == "tf32"
    half = precision == "bfloat16" and dtype == torch.float32
    for folded, channels_last in [(True, True), (True, False), (False, True)]:
        private = private_copy(plain.module)
        if private is None or (folded and not fold_batch_norm(private)):
            continue
        how = {"folded": folded, "channels_last": channels_last}
        if not agrees(Runner(private, device, dtype, **how), 1e-3):
            continue
        if half:
            cast = Runner(bfloat16_copy(private), device, torch.bfloat16, **how)
            if agrees(cast, 0.5):  # tells arithmetic that breaks from arithmetic that rounds
                return cast
        return Runner(private, device, dtype, tf32=tf32, autocast=half, **how)
    return Runner(plain.module, device, dtype, borrowed=plain.borrowed, tf32=tf32, autocast=half)


def _gradient(logits: Tensor, targets: Tensor, rows: Tensor, output: Output) -> Tensor:
    check_logits(logits, len(rows))
    if not logits.requires_grad:
        raise InputError("the logits cannot be differentiated: the model detaches them from its input")
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    (gradient,) = torch.autograd.grad(output(exact, targets, targets).sum(), rows)
    return gradient


def same_logits(logits: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether logits differ by no more than a share of the largest of those expected."""
    most = tolerance * expected.abs().max().clamp(min=1e-3)
    near = ((logits - expected).abs() <= most) | ~expected.isfinite()
    return logits.shape == expected.shape and bool(near.all())


def check_logits(logits: object, rows: int) -> None:
    """Refuse what a model must not return."""
    if not isinstance(logits, Tensor):
        raise InputError(f"the model must return logits [N, classes], got {type(logits).__name__}")
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        got = f"{logits.dtype} {list(logits.shape)} for {rows} images"
        raise InputError(f"the model must return floating point logits [N, classes], got {got}")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the CPU or of CUDA did not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def fitting_batch(runner: Runner, kind: Kind, row: Tensor, memory: int | None) -> int:
    """The largest power of two that fits the memory, up to where larger batches are no faster.

    On CUDA the record of the most memory held may be reset.
    """
    device = runner.device
    most = min(_MOST_ROWS.get(device.type, 64), max(1, _MOST_PIXELS // (row.shape[-2] * row.shape[-1])))
    if device.type == "cuda":
        free = _free_bytes(device)
        room = _SHARE_OF_FREE_MEMORY * free if memory is None else min(memory, 0.9 * free)
        try:
            fixed, each = 0.0, 2.0 * _kept_bytes(runner, row) + _OWN_COPIES * row.nbytes
            if memory is not None or most * each > room:  # else a generous guess saves the measuring
                fixed, each = _cuda_bytes(runner, kind, row)
            fits = int((room - fixed) / each)
        except torch.OutOfMemoryError:
            return 1
    else:
        kept = _kept_bytes(runner, row)
        fits = (memory or max(_CPU_KEPT_BYTES, _CPU_FEWEST_ROWS * kept)) // kept
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def _free_bytes(device: torch.device) -> float:
    """What this process can still take of a GPU: what is free, what it may have at all, and its own cache."""
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, allowed - held) + held - torch.cuda.memory_allocated(device)


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
    return max(row.nbytes, sum(size for place, size in seen.items() if place not in weights) // 2)


def _cuda_bytes(runner: Runner, kind: Kind, row: Tensor) -> tuple[float, float]:
    """Bytes of a batch on CUDA, measured: what does not grow with its rows, and what a row adds."""
    few, more = 2, 8
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
    each = max((peaks[1] - peaks[0]) / (more - few), row.nbytes) + _OWN_COPIES * row.nbytes
    return max(0.0, peaks[0] - few * each), each
