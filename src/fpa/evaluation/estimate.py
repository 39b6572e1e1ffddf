"""What an evaluation takes, before it starts: its first passes are timed, all others are counted."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fpa.data import ImageBlock, ImageSource
from fpa.engine.engine import Engine
from fpa.engine.estimate import LIMIT, Estimate, Stage
from fpa.engine.rehearsal import Rehearsal, TooLongError
from fpa.evaluation.computing import ComputedBlock, Engines, compute_block
from fpa.evaluation.description import Description, Origin, SubjectFacts
from fpa.evaluation.keywords import with_options
from fpa.evaluation.loop import default_block_size, suited
from fpa.evaluation.options import EvaluateOptions
from fpa.evaluation.plan import Plan, plan_of
from fpa.evaluation.quick import quickened
from fpa.evaluation.shards import EvaluationFolder
from fpa.evaluation.subject import Case, opened, prepare
from fpa.evaluation.targets import with_signs
from fpa.files import temporary_folder
from fpa.models.hubs import Opened
from fpa.values import checked


@dataclass(frozen=True)
class Sample:
    """What a few images of an evaluation took."""

    images: int
    """How many there were."""
    passes: dict[str, int]
    """Of them, by kind."""
    seconds: float
    """Of the passes of these images, had all been run."""
    beside: float
    """Seconds of what is no pass: sorting maps, filling images, storing results."""
    gradient: float
    """Seconds of one gradient."""
    forward: float
    """Seconds of one forward pass."""
    disk: int
    """Bytes that are stored of them, in one block."""
    will_compile: bool
    disk_a_block: int = 0
    """Of these bytes, those that do not depend on the number of images."""
    longer: bool = False


@with_options(EvaluateOptions)
@checked
@torch.inference_mode(False)
def estimate_evaluation(model: nn.Module | Engine | Opened, data: Any, options: EvaluateOptions) -> Estimate:
    """What `evaluate` takes with the same arguments.

    Args:
        model: As for `evaluate`.
        data: As for `evaluate`.
        options: Each is a keyword.

    """
    network, options = opened(model, quickened(options))
    case = prepare(
        network,
        data,
        plan_of(options),
        options,
        normalisation=options.normalisation,
        classes=options.classes,
        masks=options.masks,
        judge=options.judge,
    )
    return estimate_case(case, options.folder, examples=options.examples)


def estimate_case(
    case: Case,
    folder: Path | str | None = None,
    *,
    name: str = "evaluation",
    examples: int = 0,
    seconds: float = LIMIT,
) -> Estimate:
    """What carrying out a case takes; of what is in the `folder` already, nothing."""
    engines = Engines(case.subject.engine, None if case.judge is None else case.judge.engine)
    plan, _ = with_signs(suited(case.plan, case.source, engines.judging), engines.explaining, case.source)
    stage = estimate_blocks(engines, case.source, plan, folder, name=name, examples=examples, seconds=seconds)
    return Estimate((stage,), str(engines.judging.device), case.source.count)


def estimate_blocks(
    engines: Engines,
    source: ImageSource,
    plan: Plan,
    folder: Path | str | None = None,
    *,
    name: str = "evaluation",
    examples: int = 0,
    seconds: float = LIMIT,
) -> Stage:
    """What the blocks of a plan take that suits these images and whose signs are known."""
    stored = [] if folder is None else EvaluationFolder(folder).blocks
    size = default_block_size(engines.explaining, source.first)
    # A stream that does not say how long it is: what is known is what its first images take.
    count = len(source.first) if source.count is None else source.count
    left = max(count - size * len(stored), 0)
    engines.expect(count * plan.passes)
    sample = rehearse(engines, source, plan, min(size, count), seconds)
    each = 1 / sample.images
    again = plan.explained_again
    maps_again = min(examples, count) * plan.gradients + min(plan.score_images, left) * again.gradients
    once = maps_again * sample.gradient + min(plan.score_images, left) * again.forwards * sample.forward
    pixels = source.first.shape[2:].numel()
    return Stage(
        name,
        seconds=left * each * (sample.seconds + sample.beside) + (once if left else 0.0),
        shares=max(1, -(-left // size)),
        passes={kind: round(rows * left * each) for kind, rows in sample.passes.items()},
        memory=max(engine.peak_memory for engine in engines.distinct),
        disk=_disk(sample, count, size) + 8 * min(examples, count) * len(plan.estimators) * pixels,
        longer=sample.longer,
        will_compile=sample.will_compile,
    )


def _disk(sample: Sample, images: int, block_size: int) -> int:
    """Bytes of the blocks of so many images."""
    blocks = -(-images // block_size)
    return blocks * sample.disk_a_block + images * (sample.disk - sample.disk_a_block) // sample.images


def rehearse(engines: Engines, source: ImageSource, plan: Plan, size: int, seconds: float) -> Sample:
    """Time a block of at most `size` images, most of whose passes are counted and not run."""
    began = time.monotonic()
    rehearsals = {engine: Rehearsal(engine, seconds) for engine in engines.distinct}
    judge = None if engines.judge is None else rehearsals[engines.judge]
    trial = _Trial(Engines(rehearsals[engines.explaining], judge), [*rehearsals.values()], source, plan)
    # One image first: it warms everything up, and says how many more there is time for.
    try:
        one = trial.of(1)
    except TooLongError:
        return _unfinished(plan, time.monotonic() - began)
    spent = sum(engine.inside for engine in rehearsals.values())
    left = 0.8 * (seconds - (time.monotonic() - began)) - spent
    images = min(size, int(left / max(one.beside, 1e-3)))
    if images < 2:
        return one
    # Whatever else a machine does comes and goes: a second of each kind of pass tells more than a moment.
    lists = max(1, sum(len(engine.lists) for engine in rehearsals.values()))
    for engine in rehearsals.values():
        engine.enough = max(0.1, min(1.0, 0.7 * left / lists))
    try:
        several = trial.of(images)
    except TooLongError:
        return one
    each = (several.disk - one.disk) // (images - 1)
    return replace(several, disk_a_block=max(one.disk - each, 0))


def _unfinished(plan: Plan, seconds: float) -> Sample:
    """What is known where not even one image was done in time."""
    return Sample(
        images=1,
        passes={"gradients": plan.gradients, "forwards": plan.passes - plan.gradients},
        seconds=seconds,
        beside=0.0,
        gradient=0.0,
        forward=0.0,
        disk=0,
        will_compile=False,
        longer=True,
    )


class _Trial:
    """Computes and stores blocks of the first images, most of whose passes are not run."""

    def __init__(
        self, engines: Engines, rehearsals: Sequence[Rehearsal], source: ImageSource, plan: Plan
    ) -> None:
        self.engines = engines
        self.rehearsals = rehearsals
        self.source = source
        self.plan = plan
        origin = Origin(plan.stored(engines.explaining, engines.judge), engines.weights)
        self.description = Description(
            plan=origin.plan, model=origin.model, block_size=1, images=None, subject=SubjectFacts()
        )

    def of(self, images: int) -> Sample:
        """What so many images take."""
        for engine in self.rehearsals:
            engine.begin()
        began = time.monotonic()
        computed = compute_block(self._block(images), self.engines, self.plan, [])
        disk = self._stored_size(computed)
        wall = time.monotonic() - began
        passes: Counter[str] = Counter()
        for engine in self.rehearsals:
            passes.update(engine.counted)
        return Sample(
            images,
            dict(passes),
            seconds=sum(engine.seconds for engine in self.rehearsals),
            beside=max(wall - sum(engine.inside for engine in self.rehearsals), 0.0),
            gradient=max(engine.seconds_a_row("gradients") for engine in self.rehearsals),
            forward=max(engine.seconds_a_row("forwards") for engine in self.rehearsals),
            disk=disk,
            will_compile=any(engine.will_compile for engine in self.rehearsals),
        )

    def _block(self, images: int) -> ImageBlock:
        """A block of the images that were read to try the model with, each as often as it takes."""
        # Not read from the source: an iterator would lose its images by it, and a folder start workers.
        first = self.source.first
        rows = torch.arange(images) % len(first)
        numbers = list(self.source.numbers[: len(first)]) or list(range(len(first)))
        label = 0 if self.plan.targets == "label" else -1
        masks = torch.zeros(images, *first.shape[2:], dtype=torch.bool) if self.source.has_masks else None
        return ImageBlock(
            0,
            first[rows],
            torch.full((images,), label),
            [numbers[row] for row in rows.tolist()],
            foreground=masks,
            exact=self.source.exact,
            maker=self.source.maker,
        )

    def _stored_size(self, computed: ComputedBlock) -> int:
        """Bytes of a block on the disk; it is written where nothing stays."""
        with temporary_folder() as place:
            EvaluationFolder(place).write(0, computed.fetched(), self.description)
            return sum(file.stat().st_size for file in place.rglob("*.parquet"))
