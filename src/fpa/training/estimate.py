"""What trainings take, before they start: a few steps of each are run on copies, all others are counted."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import torch

from fpa.data.splits import ImageData
from fpa.engine.devices import arithmetic_on, peak_memory, time_when_done
from fpa.engine.estimate import LIMIT, Stage
from fpa.training.batches import LoaderBatches
from fpa.training.checks import check_jobs
from fpa.training.run import Job, Run
from fpa.training.steps import EagerSteps
from fpa.training.trainer import Trainer, accuracy

_WARM_UP = 2
"""Steps that are not timed: the first ones load kernels and take memory."""

_TESTED = 500
"""Images that tell how long a test takes."""


def estimate_training(
    jobs: Sequence[Job],
    data: ImageData | LoaderBatches,
    *,
    device: str | None = None,
    workers: int = 0,
    further_tests: int = 0,
    seconds: float = LIMIT,
) -> Stage:
    """What the training of all jobs takes. Models are copies, and nothing is written.

    `further_tests`: how often the test images are looked at besides the tests of the training.
    """
    check_jobs(jobs, data)
    settings = jobs[0].settings
    # Capturing the step in a graph takes longer than an estimate may.
    eager = replace(settings, compile=False)
    trainer = Trainer(eager, device, workers=workers)
    cuda = trainer.device.type == "cuda"
    with (
        torch.cuda.device(trainer.device) if cuda else nullcontext(),
        torch.random.fork_rng([trainer.device] if cuda else []),
        arithmetic_on(trainer.device, tf32=trainer.precision != "float32"),
        closing(trainer),
    ):
        data = trainer.prepared(data)
        # Without a folder: nothing is read or written there.
        copies = [replace(job, settings=eager, folder=None, card=None, locked=None) for job in jobs]
        runs = [Run(job, data, trainer) for job in copies]
        # Those that read files share what is read, and take their steps together.
        groups = [runs] if trainer.loaders else [[run] for run in runs]
        each = [_seconds_a_step(group, trainer, 0.7 * seconds / len(groups)) for group in groups]
        steps = settings.epochs * runs[0].batches.steps
        tests = further_tests + sum(
            epoch == settings.epochs or epoch % settings.test_every == 0
            for epoch in range(1, settings.epochs + 1)
        )
        test = _test_seconds(runs[0], data, trainer) if isinstance(data, ImageData) else 0.0
        return Stage(
            "training",
            seconds=steps * sum(each),
            once=tests * len(runs) * test,
            shares=settings.batch_size,
            passes={"steps": steps * len(runs)},
            memory=peak_memory(trainer.device),
            disk=sum(value.nbytes for run in runs for value in run.model.state_dict().values()),
            will_compile=cuda and settings.compile and trainer.processes == 1,
        )


def _seconds_a_step(group: list[Run], trainer: Trainer, seconds: float) -> float:
    """What a step of runs that advance together takes, timed for at most so many seconds."""
    steps = EagerSteps(group, trainer)
    trainer.start_epoch(group)
    most = group[0].batches.steps
    ends = time.monotonic() + seconds
    began = 0.0
    done = 0
    timed = 0
    while done < most and (timed == 0 or time.monotonic() < ends):
        if done == min(_WARM_UP, most - 1):
            began = time_when_done(trainer.device)
        steps()
        done += 1
        for run in group:
            run.step = done
        timed = max(done - min(_WARM_UP, most - 1), 0)
    return (time_when_done(trainer.device) - began) / timed


def _test_seconds(run: Run, data: ImageData, trainer: Trainer) -> float:
    """What a test of one model takes."""
    few = data.evaluation[:_TESTED]
    if not len(few):
        return 0.0
    began = time_when_done(trainer.device)
    accuracy(run.model, replace(data, evaluation=few), trainer.device, workers=trainer.workers)
    return (time_when_done(trainer.device) - began) * len(data.evaluation) / len(few)
