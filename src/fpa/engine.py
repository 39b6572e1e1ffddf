"""Runs a classifier, forward or to the gradient of its input, over a long list of rows.

A row is one image the classifier sees: a step of integrated gradients, a noisy copy, a masked image.
The list of rows is never held: a `Work` says how to build any stretch of it, the engine cuts the list
into batches, builds each batch on the device, runs it and hands the result back. The engine works on
private copies of the model, so the model itself stays exactly as it was found.
"""

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from fpa.compiling import compiled
from fpa.errors import InputError, unknown

PrecisionName = Literal["float32", "tf32", "bfloat16"]
Kind = Literal["gradients", "forwards", "exact"]
_Result = TypeVar("_Result")


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


class _Runner:
    """One prepared form of the model: how its rows go in, in which arithmetic, compiled or not."""

    def __init__(
        self,
        module: nn.Module | None,
        original: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tf32: bool = False,
        autocast: bool = False,
        channels_last: bool = False,
    ) -> None:
        self.borrowed = module is None
        self.module = original if module is None else module
        self.device, self.dtype = device, dtype
        self.tf32, self.autocast = tf32, autocast
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.compiled = False
        self.compile_seconds = 0.0
        self._compiled_for: set[tuple[bool, torch.Size]] = set()
        self._call = self._eager_call

    def _eager_call(self, rows: Tensor) -> Tensor:
        # A copy, also where nothing is cast: a model may begin with an operation in place.
        rows = rows.to(self.dtype, copy=True, memory_format=self.memory_format)
        logits: Tensor = self.module(rows)
        return logits

    def compile_if(self, pays: bool) -> None:
        if pays and not self.compiled and not self.borrowed:
            call = self._eager_call

            def own(rows: Tensor) -> Tensor:
                return call(rows)

            # Dynamo counts recompilations by code object; its own one keeps engines from sharing the limit.
            own.__code__ = own.__code__.replace()
            self._call = compiled(own)
            self.compiled = True

    def logits(self, rows: Tensor, *, eager: bool = False) -> Tensor:
        with torch.no_grad(), self._context():
            return self._eager_call(rows) if eager else self._or_eager(lambda: self._call(rows), rows)

    def gradients(self, rows: Tensor, targets: Tensor, *, eager: bool = False) -> Tensor:
        rows = rows.detach().requires_grad_()
        with torch.enable_grad(), self._context():
            if eager:
                return _gradient(self._eager_call(rows), targets, rows)
            return self._or_eager(lambda: _gradient(self._call(rows), targets, rows), rows)

    def record(self, rows: Tensor) -> None:
        """Run eagerly up to where a backward pass could begin."""
        with torch.enable_grad(), self._context():
            self._eager_call(rows.detach().requires_grad_())

    def _or_eager(self, run: Callable[[], Tensor], rows: Tensor) -> Tensor:
        if not self.compiled:
            return run()
        kind = (rows.requires_grad, rows.shape)
        try:
            if kind in self._compiled_for:
                return run()
            began = time.monotonic()
            result = run()  # the first call of a kind compiles
            self.compile_seconds += time.monotonic() - began
            self._compiled_for.add(kind)
            return result
        except InputError:
            raise
        except Exception as error:
            if isinstance(error, (RuntimeError, MemoryError)) and _out_of_memory(error):
                raise
            warnings.warn(f"the model could not be compiled, going on without: {error}", stacklevel=2)
        self._call, self.compiled = self._eager_call, False
        return run()

    @contextmanager
    def _context(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.borrowed:
                stack.enter_context(untouched(self.module, freeze=True))
            stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast))
            if self.device.type == "cuda":
                stack.enter_context(_cuda_arithmetic(self.tf32, benchmark=self.compiled))
            yield


@contextmanager
def untouched(model: nn.Module, *, freeze: bool = False) -> Iterator[None]:
    """Lend a model out in eval mode; its mode, gradients and requires_grad flags come back as they were."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _, _ in flags:
        parameter.grad = None
        if freeze:
            parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad, grad in flags:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


def fold_batch_norm(model: nn.Module) -> int:
    """Merge, in place, each batch norm into the convolution that alone feeds it; returns how many.

    The model must be in eval mode. Nothing is changed where its graph cannot be followed.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    >>> fold_batch_norm(net), type(net[1]).__name__
    (1, 'Identity')
    """
    modules = dict(model.named_modules())
    if not any(type(module) is nn.BatchNorm2d for module in modules.values()):
        return 0
    try:
        nodes = list(fx.Tracer().trace(model).nodes)
    except Exception:
        return 0
    uses: dict[str, int] = {}
    for node in nodes:
        if node.op in ("call_module", "get_attr"):
            name = str(node.target) if node.op == "call_module" else str(node.target).rpartition(".")[0]
            uses[name] = uses.get(name, 0) + 1
    folded = 0
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        norm_name, conv_name = str(node.target), str(before.target)
        norm, conv = modules.get(norm_name), modules.get(conv_name)
        if type(norm) is not nn.BatchNorm2d or type(conv) is not nn.Conv2d or norm.running_mean is None:
            continue
        if uses[norm_name] != 1 or uses[conv_name] != 1 or _hooked(norm) or _hooked(conv):
            continue
        _merge(conv, norm)
        parent, _, leaf = norm_name.rpartition(".")
        setattr(modules[parent], leaf, nn.Identity())
        folded += 1
    return folded


def _merge(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    def exact(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().double()

    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        conv.weight.detach().double(),
        exact(conv.bias),
        norm.running_mean.double(),
        norm.running_var.double(),
        norm.eps,
        exact(norm.weight),
        exact(norm.bias),
    )
    dtype = conv.weight.dtype
    conv.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    conv.bias = nn.Parameter(bias.detach().to(dtype), requires_grad=False)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _private_copy(model: nn.Module) -> nn.Module | None:
    """A frozen copy in eval mode; None where the model cannot be copied."""
    try:
        with torch.inference_mode(False):
            private = copy.deepcopy(model)
    except Exception:
        return None
    for parameter in private.parameters():
        parameter.grad = None
    return private.eval().requires_grad_(False)


def _bfloat16(module: nn.Module) -> nn.Module:
    """A bfloat16 copy; a linear layer that ends the model stays float32, so that logits keep their digits."""
    half = copy.deepcopy(module).to(torch.bfloat16)
    try:
        nodes = list(fx.Tracer().trace(module).nodes)
    except Exception:
        return half
    end = nodes[-1].args[0]
    if isinstance(end, fx.Node) and end.op == "call_module" and len(end.users) == 1:
        exact, head = module.get_submodule(str(end.target)), half.get_submodule(str(end.target))
        if type(head) is nn.Linear:
            head.load_state_dict(exact.state_dict(), assign=True)
            head.requires_grad_(False)
            head.register_forward_pre_hook(_to_float32)
    return half


def _to_float32(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].float(),)


def _gradient(logits: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
    _check_logits(logits, len(rows))
    if not logits.requires_grad:
        raise InputError("the logits cannot be differentiated: the model detaches them from its input")
    score = logits.gather(1, targets[:, None]).sum(dtype=torch.promote_types(logits.dtype, torch.float32))
    (gradient,) = torch.autograd.grad(score, rows)
    return gradient


def _check_logits(logits: object, rows: int) -> None:
    if not isinstance(logits, Tensor):
        raise InputError(f"the model must return logits [N, classes], got {type(logits).__name__}")
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        raise InputError(
            "the model must return floating point logits [N, classes], "
            f"got {logits.dtype} {list(logits.shape)} for {rows} images"
        )


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


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


@contextmanager
def _cuda_arithmetic(tf32: bool, benchmark: bool) -> Iterator[None]:
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
