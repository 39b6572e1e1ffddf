"""Images without some of their pixels, and what the model says of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fpa.engine import Work
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import Task
from fpa.masking import Fill, lent, noise_by_image


class Removal:
    """Images of a task with pixels removed, built row by row; the noise of the masking is drawn once."""

    def __init__(self, task: Task) -> None:
        self.images = task.images
        self.masking = task.masking
        self.noise = noise_by_image(task.masking, task.images, task.seed, task.indices)
        # A fill is made once too, for every image and not for every row: a blur costs as much as a layer.
        self.fill = None
        if isinstance(task.masking, Fill):
            noise = lent(task.masking, self.noise)
            self.fill = lent(task.masking, task.masking.fill(lent(task.masking, task.images), noise))

    def __call__(self, image: Tensor, mask: Tensor) -> Tensor:
        """The images of these places [B], each without the pixels of its mask [B, H, W]."""
        # Copies, as the mask and the noise are: a masking may work in place.
        visible = self.images.index_select(0, image)
        if self.fill is None:
            noise = None if self.noise is None else self.noise.index_select(0, image)
            return self.masking(visible, mask, noise)
        gone = self.fill if len(self.fill) == 1 else self.fill.index_select(0, image)
        # The same as torch.where for finite values, exactly, and several times faster on the CPU.
        return visible.lerp_(gone, mask[:, None].to(visible.dtype))


class Answers:
    """What some outputs say of every row of a list, put down as its logits come in.

    The list goes through the images again and again: `rows_per_image` rows of each before the next.
    """

    def __init__(
        self, task: Task, labels: Tensor, outputs: Sequence[str], rows: int, *, rows_per_image: int
    ) -> None:
        self.task = task
        self.labels = labels
        self.rows_per_image = rows_per_image
        images = task.images
        self.values = {name: torch.empty(rows, dtype=images.dtype, device=images.device) for name in outputs}

    def take(self, start: int, stop: int, logits: Tensor) -> None:
        """The logits of the rows `start:stop`, which are not kept: of 1,000 classes they would be large."""
        row = torch.arange(start, stop, device=logits.device)
        image = row // self.rows_per_image % len(self.task.images)
        classes = self.task.targets.index_select(0, image)
        labels = self.labels.index_select(0, image)
        for name, values in self.values.items():
            values[start:stop] = OUTPUTS[name](logits, classes, labels)


def outputs_without(task: Task, masks: Tensor, labels: Tensor, output: str, name: str = "") -> Tensor:
    """An output of every image without the pixels of each of its masks, [N or 1, R, H, W] -> [N, R].

    `labels` [N] are the true classes; `name` says in the progress display what the passes are for.
    """
    per_image = masks.shape[1]
    device = task.images.device
    remove = Removal(task)
    count = len(task.images) * per_image
    answers = Answers(task, labels, [output], count, rows_per_image=per_image)
    flat = masks.to(device).flatten(0, 1)

    def rows(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)
        # Masks of a single image serve all of them: the list of masks begins anew with every image.
        return remove(row // per_image, flat.index_select(0, row % len(flat)))

    task.engine.logits([Work(count, rows, answers.take, name=lambda start: name)])
    return answers.values[output].view(-1, per_image)
