"""What is refused before a training starts."""

from collections.abc import Sequence

import torch

from fpa.data.splits import ArraySplit, ImageData
from fpa.errors import InputError
from fpa.models.wrap import class_count
from fpa.training.batches import LoaderBatches
from fpa.training.run import Job
from fpa.training.tokens import DropTokens


def check_jobs(jobs: Sequence[Job], data: ImageData | LoaderBatches) -> None:
    """Refuse, before training, settings and images that do not fit each other or the model."""
    settings = jobs[0].settings
    settings.check()
    if isinstance(data, LoaderBatches):  # which says what is wrong with a batch when it comes
        return
    size = settings.batch_size
    images = len(data.train)
    classes = len(data.classes)
    if size > images:
        raise InputError(f"training.batch_size is {size}, but there are only {images} training images")
    for split in (data.train, data.test):
        low, high = map(int, split.labels.aminmax()) if len(split) else (0, 0)
        if len(split) and (low < 0 or high >= classes):
            raise InputError(f"labels must be in 0..{classes - 1} for {classes} classes, found {low}..{high}")
        if isinstance(split, ArraySplit) and split.images.dtype != torch.uint8:
            raise InputError(f"images must be uint8, got {split.images.dtype}")
    for job in jobs:
        if job.augment is not None and not isinstance(job.augment, DropTokens):
            job.augment.check(torch.empty(1, *data.input_shape))
    name = jobs[0].description.get("model")
    model = jobs[0].model()
    try:
        outputs = class_count(model, data.input_shape)
    except InputError as error:
        raise InputError(f"model {name!r} does not fit the data: {error}") from error
    for job in jobs:
        if isinstance(job.augment, DropTokens):
            job.augment.check_model(model, torch.zeros(1, *data.input_shape))
    if outputs != classes:
        raise InputError(f"model {name!r} has {outputs} outputs, the data have {classes} classes")
