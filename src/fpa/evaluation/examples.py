"""A few images kept with the maps of every estimator, for figures and the report's explorer."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data.source import ImageBlock, ImageSource
from fpa.engine.engine import Engine
from fpa.evaluation.plan import Plan
from fpa.evaluation.result import Examples
from fpa.evaluation.shards import EXAMPLES
from fpa.explanation.explainer import maps_of
from fpa.explanation.task import Task
from fpa.files import write_arrays
from fpa.masking import fully_masked, noise_by_image
from fpa.perturbation.features import ranks


class ExamplePicker:
    """Keeps a few of the images that come by: evenly over the data if their number is known."""

    def __init__(self, count: int, total: int | None) -> None:
        total = count if total is None else total
        places = np.linspace(0, max(total - 1, 0), min(count, total)).round().astype(int)
        self.places, self.seen = set(places.tolist()), 0
        self.kept: list[ImageBlock] = []

    def look(self, block: ImageBlock) -> None:
        """Keep what was chosen of a block."""
        rows = [row for row in range(len(block.indices)) if self.seen + row in self.places]
        self.seen += len(block.indices)
        if rows:
            foreground = None if block.foreground is None else block.foreground[rows]
            indices = [block.indices[row] for row in rows]
            self.kept.append(
                ImageBlock(block.number, block.images[rows], block.labels[rows], indices, foreground)
            )

    def write(self, folder: Path, engine: Engine, source: ImageSource, plan: Plan) -> None:
        """Write the examples, unless they are there."""
        if self.kept and not (folder / EXAMPLES).exists():
            write_arrays(folder / EXAMPLES, make_examples(self.kept, engine, source, plan).to_arrays())


def make_examples(kept: list[ImageBlock], engine: Engine, source: ImageSource, plan: Plan) -> Examples:
    """The images with the maps their curves are made of, and what a removed pixel looks like."""
    images = engine.images(torch.cat([part.images for part in kept]))
    indices = [index for part in kept for index in part.indices]
    targets = engine.predict(images).argmax(1)
    task = Task(engine, images, targets, indices, seed=plan.seed, masking=plan.masking)
    maps = maps_of(task, plan.estimators)
    fill = fully_masked(plan.masking, images, noise_by_image(plan.masking, images, plan.seed, indices))
    masks = [part.foreground for part in kept if part.foreground is not None]

    def placed(values: Tensor) -> NDArray[np.int32]:
        places = ranks(values, seed=plan.seed, indices=indices, features=plan.features)
        return places.cpu().numpy().astype(np.int32)

    return Examples(
        images=source.pictures(images.cpu()),
        indices=np.asarray(indices, dtype=np.int64),
        labels=torch.cat([part.labels for part in kept]).numpy(),
        targets=targets.cpu().numpy(),
        maps={name: values.float().cpu().numpy() for name, values in maps.items()},
        ranks={name: placed(values) for name, values in maps.items()},
        fill=source.pictures(fill.cpu(), like=images.cpu()),
        foreground=torch.cat(masks).numpy() if masks else None,
    )
