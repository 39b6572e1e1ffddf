"""A few images kept with the maps of every estimator."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data.loaders import ImageBatches
from fpa.engine import Engine
from fpa.explanation import Estimator, Settings, explain
from fpa.masking import Masking, fully_masked, noise_by_image
from fpa.perturbation.features import ranks

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Examples:
    """A few evaluation images with the maps of every estimator, for figures and the explorer."""

    images: NDArray[np.uint8]
    """[M, C, H, W], as the data set has them."""
    indices: NDArray[np.int64]
    """[M]: their numbers in the test split; the same number stands in `Evaluation.indices`."""
    labels: NDArray[np.int64]
    """[M]: true classes."""
    targets: NDArray[np.int64]
    """[M]: classes the model predicts, and explained."""
    maps: dict[str, NDArray[np.float32]]
    """[M, H, W] for every estimator."""
    ranks: dict[str, NDArray[np.int32]]
    """[M, H, W] for every estimator: the place in the LIF order, 0 is removed first; MIF is the reverse."""
    fill: NDArray[np.uint8]
    """[M, C, H, W]: the fully masked images, as bytes: what a removed pixel looks like."""
    foreground: NDArray[np.bool_] | None = None
    """[M, H, W]: the pixels of the true shape, where known."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays by name, as a file keeps it."""
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in ("images", "indices", "labels", "targets", "fill")
        }
        if self.foreground is not None:
            arrays["foreground"] = self.foreground
        arrays |= {f"map.{name}": values for name, values in self.maps.items()}
        return arrays | {f"rank.{name}": values for name, values in self.ranks.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Examples":
        """The examples that `to_arrays` took apart."""

        def named(prefix: str) -> dict[str, NDArray[Any]]:
            found = {name: values for name, values in arrays.items() if name.startswith(prefix)}
            return {name.removeprefix(prefix): values for name, values in found.items()}

        plain = {name: arrays[name] for name in ("images", "indices", "labels", "targets", "fill")}
        return cls(**plain, maps=named("map."), ranks=named("rank."), foreground=arrays.get("foreground"))


def make_examples(
    engine: Engine,
    images: Tensor,
    pictures: NDArray[np.uint8],
    to_pictures: Callable[[Tensor], NDArray[np.uint8]],
    indices: Sequence[int],
    labels: Tensor,
    estimators: Mapping[str, Estimator],
    settings: Settings,
    masking: Masking,
    seed: int,
    foreground: NDArray[np.bool_] | None = None,
) -> Examples:
    """Normalised images [M, C, H, W] with the maps their curves are made of.

    `pictures` are the same images for people, and `to_pictures` makes such of normalised ones.
    """
    maps = explain(engine, images, estimators, indices=indices, seed=seed, settings=settings, masking=masking)
    fill = fully_masked(masking, images, noise_by_image(masking, images, seed, indices))
    return Examples(
        images=pictures,
        indices=np.asarray(indices, dtype=np.int64),
        labels=labels.numpy(),
        targets=engine.predict(images).argmax(1).cpu().numpy(),
        maps={name: values.float().cpu().numpy() for name, values in maps.items()},
        ranks={
            name: ranks(values, seed=seed, indices=indices).cpu().numpy().astype(np.int32)
            for name, values in maps.items()
        },
        fill=to_pictures(fill),
        foreground=foreground,
    )


class _Kept:
    """Batches passed on, of which a few images are kept: evenly over the data if their number is known."""

    def __init__(self, batches: ImageBatches, count: int) -> None:
        self.batches, self.dataset = batches, batches.dataset
        total = count if self.dataset is None else len(self.dataset)
        places = np.linspace(0, max(total - 1, 0), min(count, total)).round().astype(int)
        self.places = set(places.tolist())
        self.held: list[tuple[Tensor, Tensor, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self.held, at = [], 0
        for batch in self.batches:
            rows = [row for row in range(len(batch[0])) if at + row in self.places]
            at += len(batch[0])
            if rows:
                self.held.append((batch[0][rows], batch[1][rows], batch[2][rows]))
            yield batch

    def chosen(self) -> tuple[Tensor, Tensor, Tensor]:
        """The images, labels and numbers kept."""
        images, labels, numbers = (torch.cat(part) for part in zip(*self.held, strict=True))
        return images, labels, numbers


def _pictures(batches: ImageBatches, images: Tensor) -> Callable[[Tensor], NDArray[np.uint8]]:
    """What makes bytes of normalised images: the inverse of the normalisation, else from black to white."""

    def known(given: Tensor) -> Tensor:
        assert batches.normalisation is not None
        return batches.normalisation.inverse(given)

    finite = images.nan_to_num(posinf=0, neginf=0)
    low, high = finite.amin((1, 2, 3), keepdim=True), finite.amax((1, 2, 3), keepdim=True)

    def stretched(given: Tensor) -> Tensor:
        return (given - low) / (high - low).clamp(min=1e-6)

    form = stretched if batches.normalisation is None else known
    return lambda given: form(given.cpu()).nan_to_num().mul(255).round().clamp(0, 255).byte().numpy()
