"""The training step: eager, or captured in a CUDA graph with those of other models."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fpa.engine.devices import compiled
from fpa.masking import lent
from fpa.models.wrap import logits_of
from fpa.seeds import Stream, derive
from fpa.training.augment import FPA, Cell, Rectangle
from fpa.training.batches import Batches, FileBatches
from fpa.training.run import Run
from fpa.training.tokens import DropTokens
from fpa.training.transform import Draws

if TYPE_CHECKING:
    from fpa.training.trainer import Trainer


class EagerSteps:
    """A step at a time, as written."""

    def __init__(self, group: list[Run], trainer: "Trainer") -> None:
        self.group = group
        self.trainer = trainer
        self.batches = batches_of(group)

    def __call__(self) -> None:  # noqa: D102
        useful = {id(batches): batches.advance() for batches in self.batches}
        for run in self.group:
            if not useful[id(run.batches)]:
                run.totals[4] += 1
                continue
            if isinstance(run.batches, FileBatches):  # other runs may have drawn numbers in between
                torch.manual_seed(derive(run.job.seed, Stream.DROPOUT, run.epoch, run.step))
            precision = self.trainer.precision
            batch = next_batch(run, precision)
            logits = logits_for(run.network, batch.images, precision, *left_tokens(run, batch.images))
            loss = functional.cross_entropy(logits, batch.targets)
            if batch.whole is not None:
                loss = mixed_loss(run, loss, logits_for(run.network, batch.whole, precision), batch.targets)
            run.optimizer.zero_grad()
            self.trainer.accelerator.backward(loss)
            run.optimizer.step()
            count(run.totals, loss.detach(), logits.detach(), batch.labels, reduce=self.trainer.reduce)


class CapturedSteps:
    """The whole step of every run compiled and captured in one CUDA graph, one stream per run.

    At small batches the time goes into launching kernels; a graph launches them all at once, and the kernels
    of different runs fill the gaps that each leaves.
    """

    def __init__(self, group: list[Run], trainer: "Trainer") -> None:
        self.group = group
        self.precision = trainer.precision
        self.batches = batches_of(group)
        self.forward = compiled(logits_for, repeatable=True)
        self.counted = compiled(count, repeatable=True)
        self.parameters = [[p for p in run.model.parameters() if p.requires_grad] for run in group]
        before = [{name: value.clone() for name, value in run.tensors().items()} for run in group]
        draws = [run.draws.get_state() for run in group]
        streams = [torch.cuda.Stream() for _ in group]  # type: ignore[no-untyped-call]
        # Compiling and choosing kernels happen in steps before the one that is captured. They train for real,
        # on real batches, so all that they change is put back afterwards.
        for warm_up in range(3):
            for batches in self.batches:
                if warm_up % batches.steps == 0:  # an epoch may have fewer steps than this
                    batches.start(group[0].epoch, 0)
                batches.advance()
            self._side_by_side(streams)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        for run in group:
            self.graph.register_generator_state(run.draws)
        # The loader's thread that pins memory calls CUDA too; only this thread's calls must be capturable.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self._side_by_side(streams)
        for run, tensors, state in zip(group, before, draws, strict=True):
            run.load(tensors)
            run.draws.set_state(state)

    def __call__(self) -> None:  # noqa: D102
        for batches in self.batches:
            batches.advance()
        self.graph.replay()

    def _side_by_side(self, streams: list[torch.cuda.Stream]) -> None:
        main = torch.cuda.current_stream()
        for run, parameters, stream in zip(self.group, self.parameters, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                batch = next_batch(run, self.precision, captured=True)
                logits = self.forward(run.network, batch.images, self.precision)
                # Not compiled: the compiler orders its sums differently from process to process.
                loss = functional.cross_entropy(logits, batch.targets)
                if batch.whole is not None:
                    whole = self.forward(run.network, batch.whole, self.precision)
                    loss = mixed_loss(run, loss, whole, batch.targets)
                # Not backward(): it accumulates on the stream a parameter was first used on.
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                run.optimizer.step()
                self.counted(run.totals, loss.detach(), logits.detach(), batch.labels)
        for stream in streams:
            main.wait_stream(stream)


def batches_of(group: list[Run]) -> list[Batches]:
    """The batches of runs, each once: runs may share theirs."""
    return list({id(run.batches): run.batches for run in group}.values())


class Batch(NamedTuple):
    """What a step learns from."""

    images: Tensor
    """Normalised and perturbed."""
    labels: Tensor
    targets: Tensor
    """Of the loss: the labels, or what a teacher says."""
    whole: Tensor | None
    """The images unperturbed, where they have a share of the loss."""


def mixed_loss(run: Run, loss: Tensor, whole: Tensor, targets: Tensor) -> Tensor:
    """The loss of perturbed images, and of the logits of `whole` ones by their share."""
    share = run.job.clean
    return (1 - share) * loss + share * functional.cross_entropy(whole, targets)


def next_batch(run: Run, precision: str, captured: bool = False) -> Batch:
    """The run's next batch."""
    images, labels = run.batches.batch(run.draws)
    augment = None if isinstance(run.job.augment, DropTokens) else run.job.augment
    batch_size = run.batches.batch_size
    draws = None
    noise = None
    if augment is not None:
        draws = augment.draw((batch_size, *images.shape[2:]), images.device, run.draws)
        noise = augment.masking.noise(images.new_empty((batch_size, *images.shape[1:])), run.draws)
        noise = None if noise is None else noise[run.batches.mine]
    prepared = _compiled_prepare if captured else prepare
    perturbed = prepared(
        images,
        run.normalisation,
        augment,
        mine=run.batches.mine,
        draws=draws,
        noise=noise,
        batch_size=batch_size,
    )
    whole = run.normalisation(images) if run.job.clean else None
    if run.teacher is None:
        return Batch(perturbed, labels, labels, whole)
    taught = _compiled_taught if captured else taught_by
    labels, targets = taught(run.teacher, run.normalisation(images), labels, precision)
    return Batch(perturbed, labels, targets, whole)


def prepare(
    images: Tensor,
    normalisation: Callable[[Tensor], Tensor],
    augment: FPA | Rectangle | Cell | None,
    *,
    draws: Draws | None,
    noise: Tensor | None,
    batch_size: int,
    mine: slice,
) -> Tensor:
    """Normalised and perturbed images from bytes, the random numbers given.

    The mask is made for the whole batch and cut to this process's share `mine` of it.
    """
    normalised = normalisation(images)
    if augment is None or draws is None:
        return normalised
    mask = augment.mask_of(draws, (batch_size, *images.shape[2:]))[mine]
    # Images that came normalised are what the teacher sees, too.
    return augment.masking(lent(augment.masking, normalised), mask, noise)


_compiled_prepare = compiled(prepare, repeatable=True)


def taught_by(teacher: nn.Module, images: Tensor, labels: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """What a model says of unperturbed images: classes [N] and probabilities [N, K].

    An unreadable image keeps its label and gets no probability at all, so that it counts for nothing.
    """
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = teacher(images)
    readable = labels >= 0
    return torch.where(readable, logits.argmax(1), labels), logits.float().softmax(1) * readable[:, None]


_compiled_taught = compiled(taught_by, repeatable=True)


def left_tokens(run: Run, images: Tensor) -> tuple[Tensor, int] | tuple[()]:
    """The random numbers that choose tokens, and how many are given; nothing where all of them are."""
    augment = run.job.augment
    if not isinstance(augment, DropTokens):
        return ()
    level = augment.level(run.job.seed, run.epoch, run.step)
    if not level:
        return ()
    count = run.token_count(images)
    # For the whole batch, of which this process has a share: all processes draw alike.
    uniform = torch.rand((run.batches.batch_size, count), generator=run.draws, device=run.draws.device)
    return uniform[run.batches.mine], augment.kept(count, level)


def logits_for(network: nn.Module, images: Tensor, precision: str, *tokens: Any) -> Tensor:
    """The logits [N, K] in float32, whatever the precision of the network's own arithmetic.

    `tokens` says which of them a network that can be without some is given, see `TokenNetwork`.
    """
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = logits_of(
            network(images, *tokens)
        )  # in training, some architectures return more than logits
    return logits.float()


def count(
    totals: Tensor,
    loss: Tensor,
    logits: Tensor,
    labels: Tensor,
    *,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Add a step to a run's totals, on the device; `reduce` sums what several processes have seen of it."""
    seen = (labels >= 0).sum()
    right = (logits.argmax(1) == labels).sum()
    step = torch.stack([loss * seen, right.float(), seen.float(), (~torch.isfinite(loss)).float()])
    if reduce is not None:
        step = reduce(step)
    # The first bad step is noted, not raised: whether there is one is not asked before the host looks.
    bad = torch.where((totals[3] < 0) & (step[3] > 0), totals[4], totals[3])
    totals.copy_(torch.cat([totals[:3] + step[:3], torch.stack([bad, totals[4] + 1])]))
