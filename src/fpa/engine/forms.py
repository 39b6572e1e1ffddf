"""The forms of a model that run fast: batch norms folded, bfloat16, compiled."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from fpa.engine.compiling import compiled
from fpa.errors import InputError
from fpa.models.wrap import untouched

_Result = TypeVar("_Result")


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
