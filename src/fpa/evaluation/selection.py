"""A few of the images of an evaluation, evenly over the data: those shown as examples, and others."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data import ImageBlock, ImageSource
from fpa.engine.engine import Engine
from fpa.errors import DamagedError
from fpa.evaluation.description import Origin
from fpa.evaluation.examples import Examples, read_examples, write_examples
from fpa.evaluation.places import evenly
from fpa.evaluation.plan import Plan
from fpa.evaluation.targets import classes_of
from fpa.explanation import maps_of
from fpa.explanation.true_maps import centred_effects_of, regions_of
from fpa.masking import fully_masked, noise_by_image
from fpa.perturbation import features_of, ranks
from fpa.perturbation.features import Pixels


@dataclass(frozen=True)
class _Kept:
    """An image that was chosen as an example."""

    place: int
    index: int
    label: Tensor
    image: Tensor
    foreground: Tensor | None


class ExamplePicker:
    """Keeps a few of the images that come by: evenly over the data if their number is known."""

    def __init__(self, count: int, total: int | None) -> None:
        self.places = evenly(count, total)
        self.looked: set[int] = set()
        """Those of the places that have come by."""
        self.kept: list[_Kept] = []

    def look(self, block: ImageBlock, size: int) -> None:
        """Keep what was chosen of a block of so many images."""
        first = block.number * size
        self.looked |= self.places & set(range(first, first + size))
        for row, index in enumerate(block.indices):
            if first + row in self.places:
                # Copies: a slice would keep the whole block in memory.
                mask = None if block.foreground is None else block.foreground[row].clone()
                label = block.labels[row]
                self.kept.append(_Kept(first + row, index, label, block.images[row].clone(), mask))

    def complete(self, source: ImageSource) -> None:
        """Read those that did not come by: other processes have made their blocks."""
        missing = self.places - self.looked
        if missing and source.indexed:
            for block in source.blocks(1, missing.__contains__):
                self.look(block, 1)
        self.kept.sort(key=lambda each: each.place)

    def write(self, folder: Path, engine: Engine, source: ImageSource, plan: Plan, origin: Origin) -> None:
        """Write the examples with the maps their curves are made of, unless the same ones are there."""
        if not self.kept:
            return
        indices = [each.index for each in self.kept]
        labels = torch.stack([each.label for each in self.kept])
        stored = None
        with suppress(DamagedError):  # those of another evaluation are replaced
            stored = read_examples(folder, origin)
        same = stored is not None and stored.indices.tolist() == indices
        if stored is not None and same and stored.labels.tolist() == labels.tolist():
            return
        write_examples(folder, self._examples(engine, source, plan, indices, labels), origin)

    def _examples(
        self, engine: Engine, source: ImageSource, plan: Plan, indices: list[int], labels: Tensor
    ) -> Examples:
        """The images that were kept, with their maps."""
        images = engine.images(torch.stack([each.image for each in self.kept]))
        masks = [each.foreground for each in self.kept if each.foreground is not None]
        targets = classes_of(engine, images, labels, plan, indices).explained
        task = plan.task(engine, images, targets, indices, maker=source.maker)
        maps = maps_of(task, plan.estimators)
        noise = noise_by_image(plan.masking, images, plan.seed, indices)
        fill = fully_masked(plan.masking, images, noise)
        features = features_of(plan.features, images)
        return Examples(
            images=source.pictures(images.cpu()),
            indices=np.asarray(indices, dtype=np.int64),
            labels=labels.numpy(),
            targets=targets.cpu().numpy(),
            maps={name: values.float().cpu().numpy() for name, values in maps.items()},
            ranks={name: _places(values, plan.seed, indices, features) for name, values in maps.items()},
            fill=source.pictures(fill.cpu(), like=images.cpu()),
            foreground=torch.stack(masks).numpy() if masks else None,
            regions=regions_of(task).cpu().numpy() if plan.knows_truth else None,
            effects=centred_effects_of(task).cpu().numpy() if plan.knows_truth else None,
        )


def _places(maps: Tensor, seed: int, indices: Sequence[int], features: Pixels) -> NDArray[np.int32]:
    """The place [N, H, W] of every pixel's feature in the LIF order."""
    return ranks(maps, seed=seed, indices=indices, features=features).cpu().numpy().astype(np.int32)
