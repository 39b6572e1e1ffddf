"""Trainings on CUDA that are stopped in the middle."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fpa.training.steps import CapturedSteps


@contextmanager
def stopped_before(step: int) -> Iterator[None]:
    """Stop the training inside before its captured step number `step`; checkpoints may follow every step."""
    calls, usual = iter(range(step + 1)), CapturedSteps.__call__

    def stops(steps: CapturedSteps) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt
        usual(steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapturedSteps, "__call__", stops)
        patch.setattr("fpa.training.trainer.PATIENCE", {"cuda": 0.0})
        with pytest.raises(KeyboardInterrupt):
            yield
