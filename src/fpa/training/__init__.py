"""Training with random masking: the augmentations, the batches, and one trainer for all who train.

Recipes, fine-tuning and a user's own loader go through the same steps, checkpoints and history.
"""

from importlib import import_module
from typing import Any

from fpa.training.settings import FPASettings, RectangleSettings, TrainingSettings, suggested_fpa

_HOME = dict.fromkeys(("Cell", "FPA", "Rectangle"), "augment") | {
    "finetune": "finetuning",
    "DropTokens": "tokens",
}
_HOME |= dict.fromkeys(("Job", "Trained", "TrainingError"), "run") | {"train_jobs": "trainer"}

__all__ = ["FPASettings", "RectangleSettings", "TrainingSettings", "suggested_fpa", *_HOME]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is used: recipes are read without it."""
    if name not in _HOME:
        raise AttributeError(f"module 'fpa.training' has no attribute {name!r}")
    return getattr(import_module(f"fpa.training.{_HOME[name]}"), name)
