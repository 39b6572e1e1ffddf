"""Runs a classifier, forward or to the gradient of its input, over a long list of rows.

A row is one image the classifier sees: a step of integrated gradients, a noisy copy, a masked image; or, for
a vision transformer, those of its tokens that are not left out.
The list of rows is never held: a `Work` says how to build any stretch of it, the engine cuts the list
into batches, builds each batch on the device, runs it and hands the result back. The engine works on
private copies of the model, so the model itself stays exactly as it was found.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fpa.data.loaders import whole_numbers
from fpa.engine.arithmetic import (
    DEFAULT_PRECISION,
    PassKind,
    Precision,
    Runner,
    check_logits,
    fastest_form,
    same_logits,
)
from fpa.engine.batch_size import fitting_batch_size
from fpa.engine.devices import arithmetic_on, out_of_memory, peak_memory, sent
from fpa.engine.folding import private_copy
from fpa.engine.outputs import Output
from fpa.engine.works import Work
from fpa.errors import InputError, at_least, warn
from fpa.models.hubs import Opened
from fpa.models.tokens import TokenGrid
from fpa.models.wrap import classifier, unfit_images, unwrapped
from fpa.values import check_plain, checked, shape_or_type

_Result = TypeVar("_Result")


# Compiling costs up to a minute: it pays from about 2 million rows of 32 x 32 pixels on, or 300,000 of
# 224 x 224, whose passes gain less. The number of rows decides, not a clock: the form must not vary.
_COMPILE_FROM = 2e6 * 32


class _Stretch(NamedTuple):
    """The rows `start:stop` of a work."""

    work: Work
    start: int
    stop: int


class Engine:
    """A classifier made ready for many passes; the model given is copied and never changed.

    `batch_size` and `memory` (bytes) bound the work; by default both follow from the memory there is.
    `compile=None` compiles on CUDA when at least `expected_rows` rows (or those of one call) make it pay.
    The copy is taken when the engine is made: later changes of the model's weights are not seen.

    >>> engine = Engine(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))
    >>> engine.predict(torch.zeros(2, 3, 2, 2)).shape
    torch.Size([2, 5])
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        *,
        precision: Precision | None = None,
        batch_size: int | None = None,
        memory: int | None = None,
        compile: bool | None = None,  # noqa: A002
        expected_rows: int = 0,
    ) -> None:
        at_least("batch_size", batch_size, 1)
        self.model = unwrapped(model)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        self.precision = precision or DEFAULT_PRECISION.get(self.device.type, Precision())
        self.memory = memory
        self.compile = compile
        self.expected_rows = expected_rows
        self._fixed_batch_size = batch_size
        self._batch_sizes: dict[tuple[PassKind, torch.Size], int] = {}
        self._runners: dict[tuple[str, torch.Size], Runner] = {}
        private = private_copy(self.model)
        self._plain = Runner(
            self.model if private is None else private,
            self.device,
            self.dtype,
            borrowed=private is None,
        )
        self._last_used: dict[PassKind, Runner] = {}
        self._probed = False
        self._taken: set[torch.Size] = set()
        """Shapes [C, H, W] of images that the model has taken."""
        self._grids: dict[torch.Size, TokenGrid] = {}
        """By the shape of an image."""
        self._peak = 0
        self.watch: Callable[[str], None] = lambda name: None
        """Told what is being run, before every batch."""

    @classmethod
    def of(cls, model: "nn.Module | Engine | Opened", images: Tensor | None = None) -> "Engine":
        """The engine itself, or a new one with default settings for a model that takes such images."""
        if isinstance(model, Engine):
            return model
        model = model.model if isinstance(model, Opened) else model
        return cls(unwrapped(model) if images is None else classifier(model, _checked_images(images)))

    def copy(self) -> nn.Module:
        """A frozen copy of the model in eval mode, free to be changed."""
        private = private_copy(self._plain.module)
        if private is None:
            raise InputError(f"the model ({type(self.model).__name__}) cannot be copied")
        return private

    @property
    def weights_when_made(self) -> dict[str, Tensor]:
        """The parameters and buffers that the model had when the engine was made; {} if it has no copy."""
        own = self._plain.module
        return {} if self._plain.borrowed else dict(own.named_parameters()) | dict(own.named_buffers())

    @property
    def accumulate(self) -> torch.dtype:
        """The precision of images, sums and results: float32, or float64 for a float64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def peak_memory(self) -> int:
        """Bytes: the most held so far on the CUDA device; on the CPU, by the process (0 where unknown)."""
        return max(self._peak, peak_memory(self.device))

    @property
    def forms_used(self) -> dict[str, str]:
        """The form in which the model last ran, by kind of pass: "gradients", "forwards", "exact".

        >>> engine = Engine(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))
        >>> logits = engine.predict(torch.zeros(2, 3, 2, 2))
        >>> engine.forms_used
        {'exact': 'float32'}
        """
        return {str(kind): runner.in_words for kind, runner in sorted(self._last_used.items())}

    @property
    def compile_seconds(self) -> float:
        """Seconds that first calls of compiled passes took so far."""
        return sum(runner.compile_seconds for runner in self._runners.values())

    def images(self, images: Tensor) -> Tensor:
        """The images on the engine's device in its precision, detached, after a look at their shape."""
        images = _checked_images(images)
        # Inference tensors cannot enter autograd, not even as inputs: a copy can.
        images = images.clone() if images.is_inference() else images.detach()
        return sent(images, self.device, self.accumulate)

    def predict(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of the model as it was given, in float32 (float64 for a float64 model).

        The first call probes the model: an image must get the same logits alone, in a batch, and again.
        """
        images = self.images(images)
        parts: list[Tensor] = []
        work = Work(len(images), lambda a, b: images[a:b], lambda a, b, logits: parts.append(logits))
        shape = images.shape[1:]
        try:
            # Every map and curve begins with a prediction: here a model is seen before any work is done.
            if not self._probed:
                self._probed = True
                self._probe(images[:1])
            self._run("exact", [work])
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            # A shape that the model has taken before is not what is wrong now.
            if isinstance(error, InputError) or out_of_memory(error) or shape in self._taken:
                raise
            raise unfit_images(shape, error) from error
        self._taken.add(shape)
        return torch.cat(parts)

    def answers(self, images: Tensor, output: Output) -> tuple[Tensor, Tensor | None]:
        """Logits [N, classes], and gradients of an output [N, C, H, W], of the model as it was given.

        They are never computed in a faster form, so that they tell what model it is. The gradients are None
        where it has none.
        """
        images = self.images(images)
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        gradients: list[Tensor] = []
        with torch.inference_mode(False), arithmetic_on(self.device, tf32=False):
            # One by one: more may not fit, and a batch of one is what every model takes.
            logits = [self._plain.logits(image) for image in torch.split(images, 1)]
            try:
                gradients = [self._plain.gradients(image, first, output) for image in torch.split(images, 1)]
            except (RuntimeError, InputError):  # it is detached, or an operation has no derivative
                return torch.cat(logits), None
        return torch.cat(logits), torch.cat(gradients)

    def token_grid(self, images: Tensor) -> TokenGrid:
        """Where the tokens of images [N, C, H, W] lie; refuses a model whose tokens cannot be dropped."""
        shape = images.shape[1:]
        if shape not in self._grids:
            with torch.inference_mode(False), arithmetic_on(self.device, tf32=False):
                self._grids[shape] = self._plain.token_grid(self.images(images[:1]))
        return self._grids[shape]

    def tokens(self, images: Tensor) -> Tensor:
        """The tokens [N, T, D] of images [N, C, H, W], as the model makes them as it was given."""
        images = self.images(images)
        with torch.inference_mode(False), arithmetic_on(self.device, tf32=False):
            parts = torch.split(images, self.batch_size("exact", images[:1]))
            return torch.cat([self._plain.tokens(part).to(self.accumulate) for part in parts])

    def explained_classes(
        self, logits: Tensor, targets: Tensor | Sequence[int] | int | None = None, name: str = "targets"
    ) -> Tensor:
        """The classes [N] to explain: those predicted, or `targets` once checked against the classes."""
        if targets is None:
            return logits.argmax(1)
        count, outputs = logits.shape
        # One class for all images; a list of a single class is a list, and must have as many as images.
        alone = isinstance(targets, int) or getattr(targets, "ndim", 1) == 0
        classes = whole_numbers(name, targets, 1 if alone else count).expand(count)
        outside = ((classes < 0) | (classes >= outputs)).nonzero().flatten().tolist()
        if outside:
            more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
            wrong = f"{int(classes[outside[0]])} of image {outside[0]} is not{more}"
            raise InputError(f"{name} must be in 0..{outputs - 1}; {wrong}")
        return sent(classes, self.device, torch.int64)

    def gradients(self, works: Sequence[Work]) -> None:
        """Run every row and hand out the gradient of its target's output with respect to the row."""
        self._run("gradients", works)

    def logits(self, works: Sequence[Work]) -> None:
        """Run every row forward and hand out its logits."""
        self._run("forwards", works)

    def batch_size(self, kind: PassKind, row: Tensor) -> int:
        """Rows in a batch of passes of this kind over rows like `row` [1, C, H, W]."""
        key = (kind, row.shape)
        size = self._batch_sizes.get(key, self._fixed_batch_size)
        if size is None:
            runner = self._runner(kind, row)
            self._peak = self.peak_memory  # measuring resets CUDA's own record
            size = self._batch_sizes[key] = fitting_batch_size(runner, kind, row, self.memory)
        return size

    def _run(self, kind: PassKind, works: Sequence[Work]) -> None:
        """Run the rows of all works, one list after the other, in batches that reach across works."""
        works = [work for work in works if work.count]
        if not works:
            return
        total = sum(work.count for work in works)
        # The sums over rows are float32, whatever the passes are.
        with torch.inference_mode(False), torch.no_grad(), arithmetic_on(self.device, tf32=False):
            row = works[0].rows(0, 1)
            runner = self._runner(kind, row)
            self._last_used[kind] = runner
            runner.compile_if(kind != "exact" and self.compiles(row, total))
            start = 0
            while start < total:
                batch = partial(self._batch, kind, runner, works, start)
                # Results are taken only when a whole batch has them: one that ran out of memory is run again
                # from its first row, in smaller parts, and no row is counted twice.
                for stretch, result in self.attempt(kind, row, batch) or []:
                    stretch.work.take(stretch.start, stretch.stop, result)
                    start += stretch.stop - stretch.start

    def compiles(self, row: Tensor, total: int) -> bool:
        """Whether a list of so many rows is worth compiling."""
        if row.ndim != 4:  # every number of tokens would be compiled anew
            return False
        size = max(total, self.expected_rows) * row.shape[-2:].numel() ** 0.5
        pays = self.device.type == "cuda" and size >= _COMPILE_FROM
        return pays if self.compile is None else self.compile

    def attempt(self, kind: PassKind, row: Tensor, run: Callable[[int], _Result]) -> _Result | None:
        """`run(batch_size)`; None, with the batch size halved, where the memory did not suffice."""
        batch = self.batch_size(kind, row)
        try:
            return run(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if batch == 1:
                full = f"not enough memory for one row of shape {list(row.shape[1:])} on {self.device}"
                remedy = "free some of it, or use smaller images or another device"
                raise InputError(f"there is {full}: {remedy}") from error
        # Outside of the handler: the error holds the frames, and with them the tensors, of what failed.
        self._batch_sizes[kind, row.shape] = batch // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        smaller = f"continuing with {batch // 2}"
        warn(f"out of memory at {batch} rows per batch ({kind}): {smaller}")
        return None

    def _batch(
        self, kind: PassKind, runner: Runner, works: Sequence[Work], start: int, batch: int
    ) -> list[tuple[_Stretch, Tensor]]:
        """The results of the next rows of the whole list: each work's stretch of them and its part."""
        # A batch may end one work and begin the next: the last batch of each would be small otherwise, and
        # a paper's set of estimators is several short works.
        stretches: list[_Stretch] = []
        before = 0
        for work in works:
            first = max(start - before, 0)
            last = min(start + batch - before, work.count)
            if first < last:
                stretches.append(_Stretch(work, first, last))
            before += work.count
        leading = stretches[0]
        self.watch(leading.work.name(leading.start))
        sizes = [stop - start for _, start, stop in stretches]
        # What is compiled is compiled for one number of rows: the last batch is filled up with zeros.
        padding = batch - sum(sizes) if runner.compiled else 0
        rows = _joined([work.rows(start, stop) for work, start, stop in stretches], padding)
        if kind == "gradients":
            targets = [work.targets(start, stop) for work, start, stop in stretches if work.targets]
            result = runner.gradients(rows, _joined(targets, padding), leading.work.output)
        else:
            result = runner.logits(rows)
            check_logits(result, len(rows))
            result = result.to(self.accumulate)
        parts = torch.split(result[: sum(sizes)], sizes)
        return list(zip(stretches, parts, strict=True))

    def _probe(self, image: Tensor) -> None:
        """Refuse a model whose logits for an image depend on its batch, or on chance."""
        # The other image of the pair differs, so that a model that mixes its batch is found out by it.
        pair = torch.cat([image, 0.5 * image.flip(-1)])
        with torch.inference_mode(False), arithmetic_on(self.device, tf32=False):
            try:
                together, again = (self._plain.logits(pair) for _ in range(2))
                check_logits(together, 2)
            except (RuntimeError, MemoryError, InputError):
                return  # the run itself says what is wrong
            if not same_logits(again, together, 1e-3):
                raise InputError(f"the model ({type(self.model).__name__}) {_VARIES}")
            try:
                alone = self._plain.logits(image)
            except ValueError:  # a batch norm refuses a single value
                alone = torch.full_like(together[:1], torch.inf)
        if not same_logits(alone, together[:1], 1e-3):
            norms = [
                name
                for name, part in self.model.named_modules()
                if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is None
            ]
            which = f"; without running statistics: {', '.join(norms[:3])}" if norms else ""
            raise InputError(f"the model ({type(self.model).__name__}) {_MIXES}{which}")

    def _runner(self, kind: PassKind, row: Tensor) -> Runner:
        # The unmasked logit and the explained class come from the model as it was given, in no faster form.
        if kind == "exact":
            return self._plain
        precision = self.precision.gradients if kind == "gradients" else self.precision.forwards
        # One form serves any number of tokens: each is a copy of the model.
        key = (precision, row.shape if row.ndim == 4 else row.shape[2:])
        if key not in self._runners:
            self._runners[key] = fastest_form(self._plain, precision, row)
        return self._runners[key]


_VARIES = "gives an image other logits each time: switch off what is random, such as dropout, in eval mode"
_MIXES = (
    "gives an image other logits in another batch, so its explanations would depend on the batch: use layers "
    "that treat every image alone, such as batch norms with running statistics"
)


def _checked_images(images: Tensor) -> Tensor:
    """The images, or the error that says what is wrong with them."""
    if not isinstance(images, Tensor) or images.is_nested or images.ndim != 4:
        raise InputError(f"images must be a tensor [N, C, H, W], got {shape_or_type(images)}")
    if images.numel() == 0:
        raise InputError(f"there are no images: got an empty batch {list(images.shape)}")
    check_plain("images", images)
    if not images.is_floating_point():
        raise InputError(f"images must be floating point, normalised for the model, got {images.dtype}")
    return images


def _joined(parts: list[Tensor], padding: int) -> Tensor:
    """All parts, and as many rows of zeros after them."""
    if padding:
        parts = [*parts, parts[0].new_zeros(padding, *parts[0].shape[1:])]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
