"""The loop of every evaluation: predict, explain, perturb, score and store, block after block.

A run of days survives a crash: run it again with the same folder and the blocks that are there are checked
against the images and kept. Data that can be indexed are addressed by number, so that any process can make
any block; a stream is read in order, and read again when it is resumed.
"""

import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpa import __version__
from fpa.data import ImageBlock, ImageSource
from fpa.engine.engine import Engine
from fpa.engine.outputs import OUTPUTS
from fpa.errors import InputError, at_least, warn
from fpa.evaluation.computing import ComputedBlock, Engines, compute_block
from fpa.evaluation.description import Description, Origin, SubjectFacts
from fpa.evaluation.own_code import note_calls
from fpa.evaluation.places import evenly
from fpa.evaluation.plan import Plan
from fpa.evaluation.probing import answers_now
from fpa.evaluation.same_images import difference
from fpa.evaluation.selection import ExamplePicker
from fpa.evaluation.shards import EvaluationFolder
from fpa.evaluation.sharing import Share, wait_for
from fpa.evaluation.starting import Start, described, started
from fpa.evaluation.targets import classes_of, with_signs
from fpa.masking.fills import Fill
from fpa.notes import Kind, Note, Severity
from fpa.progress import Tell, telling
from fpa.showing import clause

_AHEAD = {"cuda": 1}
"""By kind of device, how many blocks may wait to be fetched and stored while the next one is computed."""
_NOISY_COPIES = 15
"""Of every image, which SmoothGrad makes by default."""


def evaluate_blocks(
    engine: Engine,
    source: ImageSource,
    plan: Plan,
    folder: Path | str,
    *,
    subject: SubjectFacts | None = None,
    examples: int = 0,
    block_size: int | None = None,
    judge: Engine | None = None,
    overwrite: bool = False,
    progress: "bool | Tell" = True,
    share: Share | None = None,
) -> Description:
    """Carry out a plan on all images of a source, block after block; returns what evaluation.json says.

    `subject` is what evaluation.json says of the model and the images, for people. Images, maps or logits
    that are not finite are named, left out (NaN) and counted; the rest goes on. `examples` images are kept
    with their maps. A `judge` is another model whose outputs the curves and scores are of: the maps, and the
    classes explained, stay those of the engine. With `overwrite` an evaluation that is there is thrown away,
    but not before it is known that the new one can start.

    Processes with the same plan share a folder, each with its `share` of the blocks; another plan is refused.
    The first process of a job waits for the blocks of the others.
    """
    at_least("the number of images in a block", block_size, 1)
    share = share or Share()
    engines = Engines(engine, judge)
    # Whatever the plan cannot be carried out on is refused here, before anything in the folder is touched.
    plan, unsigned = with_signs(suited(plan, source, engines.judging), engine, source)
    stored = EvaluationFolder(folder)
    origin = Origin(plan.stored(engine, judge), engines.weights)
    asked = Description(
        plan=origin.plan,
        model=origin.model,
        block_size=block_size or default_block_size(engine, source.first),
        images=None,
        subject=subject or SubjectFacts(),
        made_with=made_with(engine.device),
        scores_left_out=plan.left_out or None,
        answers={who: answers_now(each, source.first.shape[1:]) for who, each in engines.named.items()},
        normalisation=None if source.exact or not source.normalisation else source.normalisation.to_json(),
        places=source.count if source.indexed else None,
    )
    with ExitStack() as after:
        after.callback(note_calls, plan)
        start = Start(stored, asked, fixed_size=block_size is not None, overwrite=overwrite)
        begun = started(start, share, after)
        if source.count is not None:
            engines.expect(source.count * plan.passes)
        tell = after.enter_context(telling(source.count, progress))
        writer = after.enter_context(ThreadPoolExecutor(1))
        if share.job.first:
            for note in _announced(plan, source, stored, begun.description.block_size, unsigned):
                tell.line(clause(note))
        picker = ExamplePicker(examples if share.rank == 0 else 0, source.count)
        loop = _Loop(engines, plan, stored, begun.description, tell=tell, writer=writer)
        # Examples are explained once more, and shown on the display like the rest.
        with loop.watching():
            numbers = loop.run(source, picker, share, begun.there)
            if share.finishes:
                wait_for(stored, numbers, share, begun.present, tell)
                _check_whole(stored, begun.description.block_size, loop.places)
                _check_total(plan, source)
            description = begun.description
            if share.rank == 0:
                description = described(stored, description, engines.forms_used, share)
                picker.complete(source)
                picker.write(stored.path, engine, source, plan, origin)
        tell.line(f"peak memory: {engine.peak_memory / 2**30:.2f} GiB")
    return description


class _Loop:
    """Blocks on their way: one is computed, those before it are fetched and stored by another thread.

    Storing waits for the device, for compression and for the disk. On a GPU the next block is queued
    meanwhile, so that the device always has work; on a CPU both would only compete for it.
    """

    def __init__(
        self,
        engines: Engines,
        plan: Plan,
        stored: EvaluationFolder,
        description: Description,
        *,
        tell: Tell,
        writer: ThreadPoolExecutor,
    ) -> None:
        self.engines = engines
        self.plan = plan
        self.stored = stored
        self.description = description
        self.tell = tell
        self.writer = writer
        self.pending: deque[tuple[int, Future[list[Note]]]] = deque()
        """Of every block that is being stored: its number of images, and what is left out of them."""
        self.warned: set[object] = set()
        self.compiled_before = engines.compile_seconds
        self.places = 0
        """Images that there are, as far as is known, those included that cannot be read."""

    def run(self, source: ImageSource, picker: ExamplePicker, share: Share, before: list[int]) -> range:
        """Compute and store every block of a share that is not there yet; the numbers of all blocks."""
        size = self.description.block_size
        blocks = None if source.count is None else -(-source.count // size)
        chosen = share.chosen(blocks, before)
        if share.size > 1 and source.count is not None:
            starts = (number * size for number in range(blocks or 0) if chosen(number))
            self.tell.images = sum(min(size, source.count - start) for start in starts)
        # By place, not by block: which images these are must not depend on the size of a block.
        explained_again = evenly(self.plan.score_images, source.count)
        ahead = _AHEAD.get(self.engines.explaining.device.type, 0)
        try:
            # A stream is read to its end by all: only so they know how long it is.
            for block in source.blocks(size, chosen if source.indexed else lambda number: True):
                picker.look(block, size)
                self.places = block.number * size + len(block.indices)
                if not chosen(block.number):
                    continue
                # Looked at only now: another process may have made it meanwhile.
                there = self.stored.has(block.number)
                if there and self._stays(block):
                    self.tell.skip(len(block.indices))
                elif not block.indices:  # no file of the block could be read
                    self.stored.write_empty(block.number)
                else:
                    rows = _rows_at(explained_again, block, size)
                    computed = compute_block(block, self.engines, self.plan, rows)
                    writing = self.writer.submit(self._store, block.number, computed, there)
                    self.pending.append((len(block.indices), writing))
                    self._settle(ahead)
            self._settle(0)
            if source.indexed and source.count is not None:
                self.places = source.count
            return range(-(-self.places // size))
        except KeyboardInterrupt:
            # What was computed is stored, so that nothing is lost but the block under way.
            self._settle(0)
            kept = f"complete blocks are kept in {self.stored.path}"
            self.tell.line(f"interrupted: {kept}; run again to continue")
            raise

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile, blocks count as done and the display moves on whenever an engine begins a batch."""
        before: dict[Engine, Callable[[str], None]] = {each: each.watch for each in self.engines.distinct}
        for engine in before:
            engine.watch = self._watch
        try:
            yield
        finally:
            for engine, watch in before.items():
                engine.watch = watch

    def _watch(self, name: str) -> None:
        # A block counts when it is stored, not when the next one is computed too. One that could not be
        # stored waits for the loop: the engine would take a MemoryError for its own, and go on without.
        if not any(writing.done() and writing.exception() for _, writing in self.pending):
            self._settle(len(self.pending))
        self.tell.at(name)

    def _settle(self, most: int) -> None:
        """Count the blocks that are stored, and wait until at most so many are not."""
        while self.pending and (len(self.pending) > most or self.pending[0][1].done()):
            images, writing = self.pending.popleft()
            self.tell.compiling = self.engines.compile_seconds - self.compiled_before
            for note in writing.result():
                key = (note.values["what"], note.values["estimator"])
                if key not in self.warned:  # once for all blocks: the result counts them
                    self.warned.add(key)
                    warn(f"{clause(note)}: left out")
            self.tell.advance(images)

    def _store(self, number: int, computed: ComputedBlock, anew: bool) -> list[Note]:
        """Fetch and store a block; what is left out of it. This runs in the writer's thread."""
        results = computed.fetched()
        self.stored.write(number, results, self.description, anew=anew)
        return results.notes.left_out

    def _stays(self, block: ImageBlock) -> bool:
        """Whether a block on disk can stay. It must be of these images; other labels are put into it."""
        kept = self.stored.read_block(block.number, self.description)
        problem = difference(self.stored, block, kept.columns)
        if problem is not None:
            raise InputError(f"{problem}: use another folder or remove it")
        labels = block.labels.numpy()
        if np.array_equal(kept.columns["label"], labels):
            return True
        engine = self.engines.explaining
        # refuses labels that the model does not have
        classes_of(engine, engine.images(block.images), block.labels, self.plan, block.indices)
        # outputs and scores other than A may depend on the labels
        by_label = any(OUTPUTS[name].uses_labels for name in self.plan.outputs)
        if by_label or len(self.plan.scores) > 1 or self.plan.targets == "label":
            return False
        kept.columns["label"] = labels
        self.stored.write(block.number, kept, self.description, anew=True)
        return True


def _announced(
    plan: Plan, source: ImageSource, stored: EvaluationFolder, block_size: int, unsigned: Iterable[str]
) -> Iterator[Note]:
    """What a person is told before the work begins: what it costs, and what was decided about the plan."""
    left = None if source.count is None else max(source.count - block_size * len(stored.blocks), 0)
    if left != 0:
        yield from plan.work(left)
    for name in unsigned:
        yield Note(Kind.TAKEN_FOR_UNSIGNED, Severity.INFO, {"estimator": name})
    yield from plan.protocols_left_out
    for score, reason in plan.left_out.items():
        yield Note(Kind.SCORE_LEFT_OUT, Severity.WARNING, {"score": score, "reason": reason})


def _check_whole(stored: EvaluationFolder, block_size: int, places: int) -> None:
    """Refuse data without images, and a folder that holds blocks of more images than there are."""
    # A stream does not say how long it is, so this is known only now.
    if not stored.blocks:
        raise InputError("there are no images: the data are empty")
    if any(number * block_size >= places for number in stored.blocks):
        held = f"{stored.path} holds blocks of more images than the {places} given now"
        raise InputError(f"{held}: use another folder")


def _check_total(plan: Plan, source: ImageSource) -> None:
    """Refuse more maps than images; a stream has shown only at its end how many it has."""
    if source.total is not None:
        for name, estimator in plan.estimators.items():
            estimator.raw.check_total(name, source.total)


def _rows_at(places: set[int], block: ImageBlock, block_size: int) -> list[int]:
    """The rows of a block that are at these places; files that could not be read move those after them."""
    first = block.number * block_size
    return [row for row in range(len(block.indices)) if first + row in places]


def suited(plan: Plan, source: ImageSource, judge: Engine | None = None) -> Plan:
    """The plan as it can be carried out on these images, or the error that says why it cannot, before work.

    What nobody named is left out where these images, or the model that judges, do not allow it: scores that
    `all` stands for, and protocols that `usual` does.
    """
    grid = None if judge is None else plan.token_grid(judge, source.first)
    plan = plan.suiting(source.first, grid)
    plan.check_features(source.first, grid)
    for masking in (plan.masking, *(protocol.masking for protocol in plan.protocols.values())):
        if isinstance(masking, Fill):
            masking.check(source.first)
    if any(estimator.raw.needs_numbers for estimator in plan.estimators.values()):
        source.check_numbers()
    for name, estimator in plan.estimators.items():
        if estimator.raw.knows_truth and source.maker is None:
            raise InputError(f"{name} needs images that can be made again: {source.name} is no world")
        estimator.raw.check(name, source.numbers or range(source.count or 0), source.first.shape[1:])
    _check_total(plan, source)
    card = getattr(judge.model, "card", None) if judge else None
    given = replace(
        plan.given,
        masks=source.has_masks,
        labels=source.has_labels,
        world=source.maker is not None,
        data=source.name,
        augmentation=getattr(card, "augmentation", ""),
    )
    return plan.suited(given)


def default_block_size(engine: Engine, images: Tensor) -> int:
    """Images in a block: a power of two, small enough that its noisy copies take little memory."""
    # Bytes that the noise of SmoothGrad may take for a block, and images that a block has at most.
    room = 64 << 20
    most = 32
    if engine.device.type == "cuda":
        memory = torch.cuda.get_device_properties(engine.device).total_memory
        room = min(max(memory >> 6, 256 << 20), 2 << 30)
        most = 1024
    fits = room // (4 * _NOISY_COPIES * images[0].numel())  # 4 bytes of a float32
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def made_with(device: torch.device) -> dict[str, Any]:
    """What a result may depend on beside its plan."""
    versions = {"fpa": __version__, "torch": torch.__version__, "numpy": np.__version__}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {"versions": versions | {"python": platform.python_version()}, "device": name}
