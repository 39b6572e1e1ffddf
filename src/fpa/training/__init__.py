"""Training with random masking: the augmentations, the batches, and one trainer for all who train.

Recipes, fine-tuning and a user's own loader go through the same steps, checkpoints and history.
"""

from typing import TYPE_CHECKING, Any

from fpa.training.settings import FPASettings, RectangleSettings, TrainingSettings, suggested_fpa

if TYPE_CHECKING:
    from fpa.training.augment import FPA, Rectangle
    from fpa.training.finetuning import finetune
    from fpa.training.run import Job, Trained, TrainingError
    from fpa.training.trainer import train_jobs

__all__ = [
    "FPA",
    "FPASettings",
    "Job",
    "Rectangle",
    "RectangleSettings",
    "Trained",
    "TrainingError",
    "TrainingSettings",
    "finetune",
    "suggested_fpa",
    "train_jobs",
]

_HOME = {
    "FPA": "augment",
    "Job": "run",
    "Rectangle": "augment",
    "Trained": "run",
    "TrainingError": "run",
    "finetune": "finetuning",
    "train_jobs": "trainer",
}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is used: recipes are read, and studies shown, without it."""
    if name not in _HOME:
        raise AttributeError(f"module 'fpa.training' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fpa.training.{_HOME[name]}"), name)
