"""The arithmetic a model runs in: float32, TF32 or bfloat16, batch norms folded or not, compiled or not.

Each combination is a *form* of the model. The faster ones are held against the model as it was given, on a
probe, and the first that still says the same is used.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fpa.engine.devices import arithmetic_on, compiled, out_of_memory
from fpa.engine.folding import bfloat16_copy, fold_batch_norm, private_copy
from fpa.engine.outputs import OUTPUTS, Output
from fpa.errors import InputError, unknown, warn
from fpa.models.tokens import TokenGrid, logits_from, token_grid, tokens_of
from fpa.models.wrap import untouched
from fpa.values import check_type, name_of

PassKind = Literal["gradients", "forwards", "exact"]
"""What a pass is for: a gradient, a point of a curve, or the unmasked logits, which are never rounded."""
PrecisionName = Literal["float32", "tf32", "bfloat16"]


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
            check_type("precision", name, str)
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
    def in_words(self) -> str:
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
        if rows.ndim == 3:
            return logits_from(self.module, rows.to(self.dtype, copy=True))
        # A copy, also where nothing is cast: a model may begin with an operation in place.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        logits: Tensor = self.module(rows.to(self.dtype, copy=True, memory_format=layout))
        return logits

    def compile_if(self, pays: bool) -> None:
        """Compile from the next call on, if that pays and the module is ours to compile."""
        if pays and not self.compiled and not self.borrowed:
            call = self._eager

            def own_code(rows: Tensor) -> Tensor:
                return call(rows)

            # Dynamo counts recompilations by code object; its own one keeps engines from sharing the limit.
            own_code.__code__ = own_code.__code__.replace()
            self._compiled_call = compiled(own_code)
            self.compiled = True
            # Its advice to switch on TF32 is not for users: where float32 is exact, that was chosen.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)

    def logits(self, rows: Tensor, *, eager: bool = False) -> Tensor:
        """[N, classes] of the rows; `eager` without what is compiled."""
        with torch.no_grad(), self._context():
            return self._run(lambda call: call(rows), rows, eager)

    def tokens(self, images: Tensor) -> Tensor:
        """The tokens of the images, [N, T, D]; see `fpa.models.tokens`."""
        with torch.no_grad(), self._context():
            return tokens_of(self.module, images.to(self.dtype, copy=True))

    def token_grid(self, images: Tensor) -> TokenGrid:
        """Where the tokens of images lie; refuses a model whose tokens cannot be dropped."""
        with torch.no_grad(), self._context():
            return token_grid(self.module, images[:1].to(self.dtype, copy=True))

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
        # torch.compile works at the first call with these: its seconds are not those of a pass.
        variant = (rows.requires_grad, rows.shape)
        began = time.monotonic()
        try:
            result = run(self._compiled_call)
            if variant not in self._compiled_for:
                self.compile_seconds += time.monotonic() - began
                self._compiled_for.add(variant)
            return result
        except Exception as error:
            if isinstance(error, InputError) or out_of_memory(error):
                raise
            warn(f"the model could not be compiled and runs uncompiled: {error}")
        # Outside of the handler, so that what the failed call held is freed before the call is repeated.
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

    tf32 = precision == "tf32"
    half = precision == "bfloat16" and plain.dtype == torch.float32
    # The fastest first. What is done to the model is checked in its own arithmetic, where folding and layout
    # change no more than the last digits: a graph that was misread shows, and is not taken for rounding.
    # Tokens have no channels to lay out, and come after what could be folded.
    changes = [(True, True), (True, False), (False, True)] if row.ndim == 4 else [(False, False)]
    for folded, channels_last in changes:
        private = private_copy(plain.module)
        if private is None or (folded and not fold_batch_norm(private)):
            continue
        changed = Runner(private, plain.device, plain.dtype, folded=folded, channels_last=channels_last)
        if not agrees(changed, 1e-3):
            continue
        if half:
            rounded = replace(changed, module=bfloat16_copy(private), dtype=torch.bfloat16)
            # Half of the largest logit tells arithmetic that breaks from arithmetic that rounds.
            if agrees(rounded, 0.5):
                return rounded
        # Where bfloat16 weights break, autocast keeps the delicate operations in float32.
        return replace(changed, tf32=tf32, autocast=half)
    return replace(plain, tf32=tf32, autocast=half)


def _gradient(logits: Tensor, targets: Tensor, rows: Tensor, output: Output) -> Tensor:
    check_logits(logits, len(rows))
    if not logits.requires_grad:
        raise InputError("the logits cannot be differentiated: the model detaches them from its input")
    # Outputs such as log_odds are differences of nearly equal numbers: not in bfloat16.
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    try:
        # Rows do not see each other, so the gradient of the sum holds the gradient of every row.
        (gradient,) = torch.autograd.grad(output(exact, targets, targets).sum(), rows)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        which = f"the model, or the output {name_of(output.function)},"
        raise InputError(f"{which} changes in place what its gradient is made of: use a copy") from error
    return gradient


def same_logits(logits: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether logits differ by no more than a share of the largest of those expected."""
    most = tolerance * expected.abs().max().clamp(min=1e-3)
    # A model that overflows on the probe says nothing about a form.
    near = ((logits - expected).abs() <= most) | ~expected.isfinite()
    return logits.shape == expected.shape and bool(near.all())


def check_logits(logits: object, rows: int) -> None:
    """Refuse what a model must not return."""
    if not isinstance(logits, Tensor):
        raise InputError(f"the model must return logits [N, classes], got {type(logits).__name__}")
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        got = f"{logits.dtype} {list(logits.shape)} for {rows} images"
        raise InputError(f"the model must return floating point logits [N, classes], got {got}")
