"""Runs a classifier, forward or to the gradient of its input, over a long list of rows.

A row is one image the classifier sees: a step of integrated gradients, a noisy copy, a masked image.
The list of rows is never held: a `Work` says how to build any stretch of it, the engine cuts the list
into batches, builds each batch on the device, runs it and hands the result back. The engine works on
private copies of the model, so the model itself stays exactly as it was found.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fpa.engine.forms import (
    _bfloat16,
    _check_logits,
    _cuda_arithmetic,
    _out_of_memory,
    _private_copy,
    _Result,
    _Runner,
    fold_batch_norm,
)
from fpa.errors import InputError, unknown

PrecisionName = Literal["float32", "tf32", "bfloat16"]


Kind = Literal["gradients", "forwards", "exact"]


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


# Past these sizes a larger batch is no faster.
_MOST_ROWS = {"cuda": 4096, "cpu": 64}


_MOST_PIXELS = 1 << 24


# What autograd keeps of one CPU batch: beyond the caches more is not faster, only larger.
_CPU_KEPT_BYTES = 96 << 20


_CPU_FEWEST_ROWS = 4


_SHARE_OF_FREE_MEMORY = 0.6


# Copies of a row that building it and summing its result may hold at once.
_OWN_COPIES = 6


# Compiling costs the better part of a minute: it pays from about 2 million rows of 32 x 32 pixels.
_COMPILE_FROM_PIXELS = 2e9


@dataclass(frozen=True)
class Work:
    """`count` rows, of which any stretch `start:stop` can be built when its turn comes."""

    count: int
    rows: Callable[[int, int], Tensor]
    """(start, stop) -> the rows [stop - start, C, H, W], on the device of the engine."""
    take: Callable[[int, int, Tensor], None]
    """(start, stop, result): gets the gradients [stop - start, C, H, W] or logits [stop - start, classes]."""
    targets: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> the class [stop - start] whose logit is differentiated; gradients only."""
    name: Callable[[int], str] = lambda start: ""
    """(start) -> what the rows from there on are for, in words, for whoever watches."""


class Engine:
    """A classifier made ready for many passes; the model given is copied and never changed.

    `batch_size` and `memory` (bytes) bound the work; by default both follow from the memory there is.
    `compile=None` compiles on CUDA when at least `expected_rows` rows (or those of one call) make it pay.
    `fold` merges each batch norm into the convolution before it. The copy is taken when the engine is
    made: later changes of the model's weights are not seen.

    >>> engine = Engine(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))
    >>> engine.predict(torch.zeros(2, 3, 2, 2)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: Precision | None = None,
        batch_size: int | None = None,
        memory: int | None = None,
        compile: bool | None = None,  # noqa: A002
        fold: bool = True,
        expected_rows: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        floating = [t for t in tensors if t.is_floating_point()]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.dtype = floating[0].dtype if floating else torch.float32
        self.precision = precision or DEFAULT_PRECISION.get(self.device.type, Precision())
        self.memory = memory
        self.compile = compile
        self.fold = fold
        self.expected_rows = expected_rows
        self._given_batch_size = batch_size
        self._batch_sizes: dict[tuple[Kind, torch.Size], int] = {}
        self._runners: dict[tuple[PrecisionName, torch.Size], _Runner] = {}
        self._plain = _private_copy(self.model)
        self._peak = 0
        self.watch: Callable[[str], None] = lambda name: None
        """Told what is being run, before every batch."""

    @classmethod
    def of(cls, model: "nn.Module | Engine") -> "Engine":
        """The engine itself, or a new one with default settings for a model."""
        return model if isinstance(model, Engine) else cls(model)

    def copy(self) -> nn.Module:
        """A frozen copy of the model in eval mode, to do with as one likes."""
        private = None if self._plain is None else _private_copy(self._plain)
        if private is None:
            raise InputError(f"the model ({type(self.model).__name__}) cannot be copied")
        return private

    @property
    def accumulate(self) -> torch.dtype:
        """The precision of images, sums and results: float32, or float64 for a float64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def peak_memory(self) -> int:
        """Bytes: the most held so far on the CUDA device; on the CPU, by the process (0 where unknown)."""
        if self.device.type == "cuda":
            return max(self._peak, torch.cuda.max_memory_allocated(self.device))
        try:
            import resource
        except ImportError:  # not on Windows
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    @property
    def compile_seconds(self) -> float:
        """Seconds that first calls of compiled passes took so far."""
        return sum(runner.compile_seconds for runner in self._runners.values())

    def images(self, images: Tensor) -> Tensor:
        """The images on the engine's device in its precision, detached, after a look at their shape."""
        if not isinstance(images, Tensor) or images.ndim != 4:
            shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images must be a tensor [N, C, H, W], got {shape}")
        if len(images) == 0:
            raise InputError("there are no images: got an empty batch")
        if not images.is_floating_point():
            raise InputError(
                f"images must be floating point, normalised as the model takes them, got {images.dtype}"
            )
        images = images.clone() if images.is_inference() else images.detach()
        return images.to(self.device, self.accumulate, non_blocking=True)

    def predict(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of the model as it was given, in float32 (float64 for a float64 model)."""
        images = self.images(images)
        parts: list[Tensor] = []
        work = Work(len(images), lambda a, b: images[a:b], lambda a, b, logits: parts.append(logits))
        self._run("exact", [work])
        return torch.cat(parts)

    def explained(self, logits: Tensor, targets: Tensor | int | None = None, name: str = "targets") -> Tensor:
        """The classes [N] to explain: those predicted, or `targets` once checked against the classes."""
        if targets is None:
            return logits.argmax(1)
        count, classes = logits.shape
        given = torch.as_tensor(targets)
        if given.ndim == 0:
            given = given.expand(count)
        if given.shape != (count,) or given.is_floating_point() or given.dtype == torch.bool:
            raise InputError(
                f"{name} must be whole numbers [{count}], one class an image, "
                f"got {given.dtype} {list(given.shape)}"
            )
        outside = ((given < 0) | (given >= classes)).nonzero().flatten().tolist()
        if outside:
            raise InputError(
                f"{name} must be in 0..{classes - 1}; {int(given[outside[0]])} of image {outside[0]} "
                "is not" + (f" (and {len(outside) - 1} more)" if len(outside) > 1 else "")
            )
        return given.to(self.device, torch.int64)

    def gradients(self, works: Sequence[Work]) -> None:
        """Run every row and hand out the gradient of its target's logit with respect to the row."""
        self._run("gradients", works)

    def logits(self, works: Sequence[Work]) -> None:
        """Run every row forward and hand out its logits."""
        self._run("forwards", works)

    def batch_size(self, kind: Kind, row: Tensor) -> int:
        """Rows in a batch of passes of this kind over rows like `row` [1, C, H, W]."""
        key = (kind, row.shape)
        if key not in self._batch_sizes:
            self._batch_sizes[key] = self._given_batch_size or self._fitting(kind, row)
        return self._batch_sizes[key]

    def _run(self, kind: Kind, works: Sequence[Work]) -> None:
        works = [work for work in works if work.count]
        total = sum(work.count for work in works)
        if total == 0:
            return
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            if self.device.type == "cuda":  # the sums over rows are float32, whatever the passes are
                stack.enter_context(_cuda_arithmetic(tf32=False, benchmark=False))
            row = works[0].rows(0, 1)
            runner = self._runner(kind, row)
            if kind != "exact":
                runner.compile_if(self._pays(max(total, self.expected_rows), row))
            start = 0
            while start < total:

                def run(batch: int, start: int = start) -> list[tuple[Work, int, int, Tensor]]:
                    stretches = _stretches(works, start, min(start + batch, total))
                    work, first, _ = stretches[0]
                    self.watch(work.name(first))
                    return self._batch(kind, runner, stretches, batch)

                for work, a, b, result in self.attempt(kind, row, run) or []:
                    work.take(a, b, result)
                    start += b - a

    def attempt(self, kind: Kind, row: Tensor, run: Callable[[int], _Result]) -> _Result | None:
        """`run(batch_size)`; None, with the batch size halved, where the memory did not suffice."""
        batch = self.batch_size(kind, row)
        try:
            return run(batch)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            if batch == 1:
                raise InputError(
                    f"the {self.device} device has not enough memory for one row of shape "
                    f"{list(row.shape[1:])}: free some of it, or use smaller images or another device"
                ) from error
        self._batch_sizes[kind, row.shape] = batch // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        warnings.warn(
            f"out of memory at {batch} rows a batch ({kind}): going on with {batch // 2}", stacklevel=2
        )
        return None

    def _batch(
        self, kind: Kind, runner: "_Runner", stretches: list[tuple[Work, int, int]], batch: int
    ) -> list[tuple[Work, int, int, Tensor]]:
        rows = _joined([work.rows(a, b) for work, a, b in stretches])
        padding = batch - len(rows) if runner.compiled else 0
        if padding:
            rows = torch.cat([rows, rows.new_zeros(padding, *rows.shape[1:])])
        if kind == "gradients":
            targets = _joined([work.targets(a, b) for work, a, b in stretches if work.targets])
            if padding:
                targets = torch.cat([targets, targets.new_zeros(padding)])
            result = runner.gradients(rows, targets)
        else:
            result = runner.logits(rows)
            _check_logits(result, len(rows))
            result = result.to(self.accumulate)
        parts = torch.split(result, [b - a for _, a, b in stretches] + ([padding] if padding else []))
        return [(work, a, b, part) for (work, a, b), part in zip(stretches, parts, strict=False)]

    def _pays(self, rows: int, row: Tensor) -> bool:
        if self.compile is not None:
            return self.compile
        pixels = rows * row.shape[-2] * row.shape[-1]
        return self.device.type == "cuda" and pixels >= _COMPILE_FROM_PIXELS

    def _runner(self, kind: Kind, row: Tensor) -> "_Runner":
        if kind == "exact":
            return _Runner(self._plain, self.model, self.device, self.dtype)
        name = self.precision.gradients if kind == "gradients" else self.precision.forwards
        key = (name, row.shape)
        if key not in self._runners:
            self._runners[key] = self._prepare(name, row)
        return self._runners[key]

    def _prepare(self, name: PrecisionName, row: Tensor) -> "_Runner":
        """The fastest form of the model that runs and still says the same on a probe of two rows."""
        # Not the rows themselves: which form is chosen must not depend on where a run was resumed.
        probe = torch.randn((2, *row.shape[1:]), generator=torch.Generator().manual_seed(0)).to(row)
        expected = self._runner("exact", row).logits(probe)
        _check_logits(expected, 2)

        def agrees(runner: _Runner, tolerance: float) -> bool:
            try:
                found = runner.logits(probe)
            except Exception as error:
                if isinstance(error, (RuntimeError, MemoryError)) and _out_of_memory(error):
                    raise
                return False
            most = tolerance * expected.abs().max().clamp(min=1e-3)
            near = ((found - expected).abs() <= most) | ~expected.isfinite()
            return found.shape == expected.shape and bool(near.all())

        def runner(module: nn.Module | None, dtype: torch.dtype, **how: bool) -> _Runner:
            return _Runner(module, self.model, self.device, dtype, **how)

        half = name == "bfloat16" and self.dtype == torch.float32
        tf32 = name == "tf32"
        for fold, channels_last in [(True, True), (True, False), (False, True)]:
            private = _private_copy(self.model) if self.fold or not fold else None
            if private is None or (fold and not fold_batch_norm(private)):
                continue
            if not agrees(runner(private, self.dtype, channels_last=channels_last), 1e-3):
                continue
            if half:
                cast = runner(_bfloat16(private), torch.bfloat16, channels_last=channels_last)
                if agrees(cast, 0.5):  # tells arithmetic that breaks from arithmetic that rounds
                    return cast
            return runner(private, self.dtype, tf32=tf32, autocast=half, channels_last=channels_last)
        return runner(self._plain, self.dtype, tf32=tf32, autocast=half)

    def _fitting(self, kind: Kind, row: Tensor) -> int:
        """The largest power of two that fits the memory, up to where larger batches are no faster."""
        pixels = row.shape[-2] * row.shape[-1]
        most = min(_MOST_ROWS.get(self.device.type, 64), max(1, _MOST_PIXELS // pixels))
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            room = _SHARE_OF_FREE_MEMORY * free if self.memory is None else min(self.memory, 0.9 * free)
            try:
                fixed, each = 0.0, 2.0 * self._kept_bytes(kind, row) + _OWN_COPIES * row.nbytes
                if self.memory is not None or most * each > room:  # else a generous guess saves the measuring
                    fixed, each = self._cuda_bytes(kind, row)
                fits = int((room - fixed) / each)
            except torch.OutOfMemoryError:
                return 1
        else:
            each = self._kept_bytes(kind, row)
            room = self.memory or max(_CPU_KEPT_BYTES, _CPU_FEWEST_ROWS * each)
            fits = room // each
        return 1 << (max(1, min(most, fits)).bit_length() - 1)

    def _kept_bytes(self, kind: Kind, row: Tensor) -> int:
        """Bytes autograd keeps for the backward pass of one row: the scale of a row's working set."""
        seen: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        runner = self._runner(kind, row)
        pair = row.expand(2, *row.shape[1:]).contiguous()  # two, as in the probe: its kernels are loaded
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            runner.record(pair)
        weights = {p.untyped_storage().data_ptr() for p in runner.module.parameters()}
        kept = sum(size for place, size in seen.items() if place not in weights)
        return max(row.nbytes, kept // 2)

    def _cuda_bytes(self, kind: Kind, row: Tensor) -> tuple[float, float]:
        """Bytes of a batch on CUDA, measured: what does not grow with its rows, and what a row adds."""
        few, more = 2, 8
        peaks = []
        for rows in (few, more):
            self._peak = self.peak_memory
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            batch = row.expand(rows, *row.shape[1:]).contiguous()
            runner = self._runner(kind, row)
            if kind == "gradients":
                runner.gradients(batch, torch.zeros(rows, dtype=torch.int64, device=self.device), eager=True)
            else:
                runner.logits(batch, eager=True)
            peaks.append(torch.cuda.max_memory_allocated(self.device) - before)
        each = max((peaks[1] - peaks[0]) / (more - few), row.nbytes) + _OWN_COPIES * row.nbytes
        return max(0.0, peaks[0] - few * each), each


def _stretches(works: Sequence[Work], start: int, stop: int) -> list[tuple[Work, int, int]]:
    """The rows start:stop of the whole list as stretches of single works."""
    found, first = [], 0
    for work in works:
        a, b = max(start - first, 0), min(stop - first, work.count)
        if a < b:
            found.append((work, a, b))
        first += work.count
    return found


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
