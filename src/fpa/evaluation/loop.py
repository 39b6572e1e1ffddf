"""The loop of every evaluation: predict, explain, perturb, score and store, block after block.

A run of days survives a crash: run it again with the same folder and the blocks that are there are checked
against the images and kept. Data that can be indexed are addressed by number, so that any process can make
any block; a stream is read in order, and read again when it is resumed.
"""

import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa import __version__
from fpa.data import ImageBlock, ImageSource, digests, same_images, same_means, sketches
from fpa.data.normalisation import Normalisation
from fpa.data.sketch import COMPUTED
from fpa.engine.engine import Engine
from fpa.engine.outputs import OUTPUTS
from fpa.errors import InputError, at_least, warn
from fpa.evaluation.answers import Answers
from fpa.evaluation.computing import ComputedBlock, Engines, compute_block
from fpa.evaluation.description import Description, Origin, SubjectFacts
from fpa.evaluation.own_code import note_calls
from fpa.evaluation.places import evenly
from fpa.evaluation.plan import Plan
from fpa.evaluation.probing import answers_now
from fpa.evaluation.selection import ExamplePicker
from fpa.evaluation.shards import EvaluationFolder
from fpa.evaluation.targets import classes_of, with_signs
from fpa.files import clear_temporaries, folder_lock, refuse_links
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
) -> Description:
    """Carry out a plan on all images of a source, block after block; returns what evaluation.json says.

    `subject` is what evaluation.json says of the model and the images, for people. Images, maps or logits
    that are not finite are named, left out (NaN) and counted; the rest goes on. `examples` images are kept
    with their maps. A `judge` is another model whose outputs the curves and scores are of: the maps, and the
    classes explained, stay those of the engine. With `overwrite` an evaluation that is there is thrown away,
    but not before it is known that the new one can start. The folder is locked meanwhile: another run into it
    is refused.
    """
    at_least("the number of images in a block", block_size, 1)
    engines = Engines(engine, judge)
    # Whatever the plan cannot be carried out on is refused here, before anything in the folder is touched.
    plan, unsigned = with_signs(suited(plan, source, engines.judging), engine, source)
    stored = EvaluationFolder(folder)
    with folder_lock(stored.path), ExitStack() as after:
        after.callback(note_calls, plan)
        refuse_links(stored.path, ["blocks"])
        if overwrite:
            stored.clear()
        # Files that a killed run was writing; nobody else writes here, since the folder is locked.
        clear_temporaries(stored.path)
        clear_temporaries(stored.path / "blocks")
        origin = Origin(plan.stored(engine, judge), engines.weights)
        size = _block_size(stored, origin, block_size) or default_block_size(engine, source.first)
        description = _described(
            stored,
            origin,
            block_size=size,
            subject=subject or SubjectFacts(),
            made_with=made_with(engine.device),
            scores_left_out=plan.left_out or None,
            answers={who: answers_now(each, source.first.shape[1:]) for who, each in engines.named.items()},
            normalisation=None if source.exact else source.normalisation,
        )
        if source.count is not None:
            engines.expect(source.count * plan.passes)
        picker = ExamplePicker(examples, source.count)
        with telling(source.count, progress) as tell, ThreadPoolExecutor(1) as writer:
            for note in _announced(plan, source, stored, size, unsigned):
                tell.line(clause(note))
            loop = _Loop(engines, plan, stored, description, tell=tell, writer=writer)
            # Examples are explained once more, and shown on the display like the rest.
            with loop.watching():
                loop.run(source, picker)
                _check_whole(stored, source, size, picker.seen)
                _check_total(plan, source)
                description = replace(description, images=picker.seen).with_arithmetic(engines.forms_used)
                stored.describe(description)
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
        before = stored.description()
        self.is_described = before is not None and before.answers == description.answers
        """Whether evaluation.json says what later runs compare; one of an earlier version does not."""

    def run(self, source: ImageSource, picker: ExamplePicker) -> None:
        """Compute and store every block that is not there yet."""
        size = self.description.block_size
        there = set(self.stored.blocks)
        # By place, not by block: which images these are must not depend on the size of a block.
        explained_again = evenly(self.plan.score_images, source.count)
        ahead = _AHEAD.get(self.engines.explaining.device.type, 0)
        try:
            for block in source.blocks(size):
                picker.look(block)
                if block.number in there and self._stays(block):
                    self.tell.skip(len(block.indices))
                elif block.indices:  # there is none where no file of the block could be read
                    rows = _rows_at(explained_again, block, size)
                    computed = compute_block(block, self.engines, self.plan, rows)
                    writing = self.writer.submit(self._store, block.number, computed)
                    self.pending.append((len(block.indices), writing))
                    self._settle(ahead)
            self._settle(0)
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

    def _store(self, number: int, computed: ComputedBlock) -> list[Note]:
        """Fetch and store a block; what is left out of it. This runs in the writer's thread."""
        results = computed.fetched()
        # It appears with the first block: a run that fails before it leaves a folder without an evaluation.
        if not self.is_described:
            self.stored.describe(self.description)
            self.is_described = True
        self.stored.write(number, results, self.description)
        return results.notes.left_out

    def _stays(self, block: ImageBlock) -> bool:
        """Whether a block on disk can stay. It must be of these images; other labels are put into it."""
        kept = self.stored.read_block(block.number, self.description)
        problem = self._difference(block, kept.columns)
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
        self.stored.write(block.number, kept, self.description)
        return True

    def _difference(self, block: ImageBlock, columns: Mapping[str, NDArray[Any]]) -> str | None:
        """Why what is stored is not of the images of this block; None: it is."""
        # `looks` is what the files call the sketches of images. A result in memory has none: there is no
        # telling whether the images to come are those that it was made from.
        if "looks" not in columns:
            return f"{self.stored.path} was written by Result.save and cannot be continued"
        if columns["index"].tolist() != block.indices:
            return f"{self.stored.file(block.number)} was made from other images"
        if not _same_pixels(block, columns):
            other = "of other images, or of the same images at another size or normalisation"
            return f"{self.stored.path} holds an evaluation {other}"
        masks = block.foreground
        if masks is not None and not _same_digests(columns.get("mask_digest"), masks):
            return f"{self.stored.path} holds an evaluation with other masks of the objects"
        return None


def _same_pixels(block: ImageBlock, columns: Mapping[str, NDArray[Any]]) -> bool:
    """Whether what is stored is of a block's images: tensors to the bit, photos but for their rounding."""
    before = columns["looks"].copy()
    now = sketches(block.images)
    if block.exact and "digest" in columns:
        return _same_digests(columns["digest"], block.images)
    if block.exact:  # an earlier version stored no digests
        return same_images(before, now, COMPUTED)
    means = columns.get("means")
    same = means is None or same_means(means.copy(), block.images.float().mean((2, 3)), before)
    return same and same_images(before, now)


def _same_digests(stored: NDArray[Any] | None, tensors: Tensor) -> bool:
    """Whether tensors are those of digests that were stored; yes where there are none to compare with."""
    return stored is None or stored.tolist() == digests(tensors).tolist()


def _block_size(stored: EvaluationFolder, origin: Origin, asked: int | None) -> int | None:
    """How many images a block holds: as was asked for, or as those that are there; None: neither says."""
    there = stored.images_a_block(origin)
    if there is not None and asked not in (None, there):
        held = f"{stored.path} holds blocks of {there} images, not {asked}"
        raise InputError(f"{held}: use another folder")
    return asked or there


def _described(
    stored: EvaluationFolder,
    origin: Origin,
    *,
    block_size: int,
    subject: SubjectFacts,
    made_with: Mapping[str, Any],
    scores_left_out: Mapping[str, str] | None,
    answers: Mapping[str, Answers],
    normalisation: Normalisation | None,
) -> Description:
    """What evaluation.json will say until all images are done; what it says already stays.

    What is there of a model that answers otherwise, or of images normalised otherwise, is refused.
    """
    description = Description(
        plan=origin.plan,
        model=origin.model,
        block_size=block_size,
        images=None,
        subject=subject,
        made_with=made_with,
        scores_left_out=scores_left_out,
        answers=answers,
        normalisation=None if normalisation is None else normalisation.to_json(),
    )
    before = stored.description()
    if before is not None:
        stored.check_same_answers(before, description)
    else:  # blocks may be there, and their evaluation.json lost: it is made anew
        before = stored.described_by_blocks(description)
    return description if before is None else description.continuing(before)


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


def _check_whole(stored: EvaluationFolder, source: ImageSource, block_size: int, images: int) -> None:
    """Refuse data without images, and a folder that holds blocks of more images than there are."""
    # A stream does not say how long it is, so this is known only now.
    if images == 0:
        raise InputError("there are no images: the data are empty")
    # Files that could not be read have places too.
    if any(number * block_size >= images + len(source.lost) for number in stored.blocks):
        held = f"{stored.path} holds blocks of more images than the {images} given now"
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
