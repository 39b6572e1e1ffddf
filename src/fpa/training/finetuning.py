"""Fine-tuning with FPA: a short training from existing weights, so that a model becomes fit for evaluation.

It is a training like any other (`trainer.py`), on a data set or on the batches of a loader of your own.
What is chosen, and why:

- The learning rate goes up over the first tenth of the steps and down to 0 along a cosine: the first steps do
  not throw the model off, and the last ones settle it, however few there are.
- No weight decay: whatever changes in the weights, changes because of the masked pixels.
- A model that learns labels is trained like any other, by SGD. One that learns its own predictions is
  usually a published network with few photos to learn from. It is trained by AdamW in evaluation mode: its
  batch norms keep their statistics. Every batch is masked, since its teacher sees the images whole, and more
  pixels of large images are selected, up to half at 224 px, since maps differ in LIF mostly where half of the
  pixels and more are masked. For the same loss of accuracy fewer contradictions are left than with SGD;
  selecting more pixels leaves fewer still, for up to 2.5 points more (docs/results/finetuning.md).
- Small sets are seen more often, so that there are enough steps.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fpa.calling import renamed
from fpa.engine.engine import Engine
from fpa.errors import counted, warn
from fpa.files import is_main_process
from fpa.given import note_calls_of
from fpa.masking import MaskingLike
from fpa.models.hubs import Opened
from fpa.models.wrap import unwrapped
from fpa.notes import Severity
from fpa.progress import Display, shown
from fpa.showing import clause
from fpa.training.augment import FPA, Cell
from fpa.training.run import Job, Trained
from fpa.training.settings import FPASettings
from fpa.training.tokens import DropTokens
from fpa.training.trainer import train_jobs
from fpa.training.tuning import Start, Targets, TuningChoices, prepare_tuning
from fpa.training.tuning_images import ClassIndex, Variation
from fpa.training.twins import TwinDistance
from fpa.values import checked


@renamed(output="folder", display="progress")
@checked
@torch.inference_mode(False)
def finetune(
    model: nn.Module | Engine | Opened,
    data: Any,
    *,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int = 64,
    fpa: FPA | Cell | DropTokens | FPASettings | Mapping[str, Any] | None = None,
    masking: MaskingLike | None = None,
    targets: Targets = "auto",
    class_index: ClassIndex | None = None,
    normalisation: Any = None,
    crop: bool = True,
    flip: bool = True,
    clean: float = 0.0,
    way: float = 1.0,
    seed: int = 0,
    device: str | None = None,
    folder: Path | str | None = None,
    inplace: bool = False,
    data_root: Path | str = "data",
    workers: int = 8,
    overwrite: bool = False,
    progress: bool | Display = True,
) -> nn.Module:
    """A copy of the model after a short training with FPA, in evaluation mode, on the device of the original.

    `data` is the name of a data set (`shapes`, `cifar10`, `folder:PATH`, ...), an `ImageData`, or your own
    `DataLoader` of normalised images and labels; a `Dataset`, or images and labels as `evaluate` takes them,
    are shuffled into batches. The same seed gives the same weights on a CPU; a loader that shuffles with its
    own generator must be made again for that.

    Frozen weights (`requires_grad=False`) stay as they are, unless all are frozen, as in models for
    inference: then all are trained. Training runs in float32; the result has the precision of the model.

    With targets "model" it learns to say of a masked image what the original says of the unmasked one
    (self-distillation): no labels are needed, and the function that is explained stays as close as possible
    to the original. With "labels" it learns the data's labels. Their classes are the model's by name or, if
    it has no names, by number; where they differ, `class_index` (a dict from the data's class names, or a
    list, to the model's classes) says which is which. "auto" is "labels" if `class_index` is given, otherwise
    "model".

    Without `epochs` there are as many as make 7,800 steps, but no more than 60. The largest `learning_rate`
    is 0.01 for labels (SGD) and 0.0003 for the model's own predictions (AdamW; batch norms keep their
    statistics).

    `masking` is what removing a pixel means, as in `evaluate`; with "drop" a vision transformer is not given
    a share of its tokens, up to 7/8 of them or p1_max: see `DropTokens`. `fpa` sets the perturbation: an
    augmentation, the settings from `suggested_fpa`, or a dict of what differs from the default, which is the
    paper's settings for the image size, but for the model's own predictions p = 1, and p1_max grows to 0.5 at
    224 px. `Cell` in its place deletes single cells, for the score idsds.

    Of photos, random parts are cut out and flipped. Images from a loader, a `Dataset` or tensors are moved by
    up to an eighth of their side, and flipped. A data set held whole (`cifar10`, `digits`) says itself what
    is done to it. `crop=False` and `flip=False` leave that out: for a loader that does so itself, and where
    the mirror image means something else (digits, text, X-rays).

    Two ways to stay nearer to the original: `clean` is the share of the loss that the images without masks
    have, 0 by default (another pass through the model for each step); `way` is how much of the way from the
    original weights to those that were learned the result goes, 1 by default.

    `folder` is where model.safetensors and training.csv are stored, for models that fpa can rebuild
    (`load_model`); a stopped run continues from there. A loader is then read again from the start of the
    epoch, and batches that were already trained on are skipped. `inplace=True` changes and returns the model
    itself. `progress=False` shows no progress.

    At the end the model is compared with the original on up to 200 images without masks: see `twin_distance`.
    One line says how far it has moved, `card.distance` keeps it, and a warning follows if it classifies fewer
    than two thirds of them as before.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    >>> images, labels = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    >>> tuned = finetune(model, (images, labels), epochs=1, batch_size=8, progress=False)
    >>> tuned(images).shape, tuned is model
    (torch.Size([32, 4]), False)
    """
    choices = TuningChoices(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        fpa=fpa,
        masking=masking,
        targets=targets,
        class_index=class_index,
        normalisation=normalisation,
        crop=crop,
        flip=flip,
        clean=clean,
        way=way,
        seed=seed,
        device=device,
        folder=folder,
        data_root=data_root,
        workers=workers,
    )
    return tune(model, data, choices, inplace=inplace, overwrite=overwrite, progress=progress)


@torch.inference_mode(False)
def tune(
    model: nn.Module | Engine | Opened,
    data: Any,
    choices: TuningChoices,
    *,
    inplace: bool = False,
    overwrite: bool = False,
    progress: bool | Display = True,
) -> nn.Module:
    """As `finetune` does it."""
    tuning = prepare_tuning(model, data, choices)
    try:
        with shown(is_main_process() and progress) as display:
            display.say(_announced(tuning.job, tuning.images.variation))
            (trained,) = train_jobs(
                [tuning.job],
                tuning.learned_from(),
                device=choices.device,
                display=display,
                workers=choices.workers,
                overwrite=overwrite,
            )
            _tell(trained.distance, display)
    finally:
        note_calls_of(tuning.code)
    network = model.model if isinstance(model, Engine | Opened) else model
    original = unwrapped(network)
    result = original if inplace else copy.deepcopy(original)
    _fill(result, tuning.start, tuning.job, trained)
    return (network if inplace else result).eval()


def _tell(distance: TwinDistance | None, display: Display) -> None:
    """Say how far the twin has moved; that it is too far is said to those who see no progress, too."""
    for note in [] if distance is None else distance.notes:
        if note.severity == Severity.WARNING:
            warn(clause(note))
        else:
            display.say(clause(note))


def _announced(job: Job, variation: Variation) -> str:
    """What is learned, for how long, and what is done to the images beside the masks."""
    learned = "the labels" if job.teacher is None else "the model's own predictions"
    done = [word for word, used in (("cropped", variation.crop), ("flipped", variation.flip)) if used]
    images = f", images {' and '.join(done)} at random" if done else ""
    return f"learning {learned}, {counted(job.settings.epochs, 'epoch')}{images}"


def _fill(result: nn.Module, start: Start, job: Job, trained: Trained) -> None:
    """Give a model the trained weights, in its own precision and on its own device, and its card."""
    # Through the copy, not from the file: the network may be a module around it, with longer names.
    start.network.load_state_dict(trained.state())
    result.load_state_dict(start.tuned.state_dict())
    if job.card is not None:
        result.card = job.card_of(trained.accuracy, trained.distance)  # type: ignore[assignment]
