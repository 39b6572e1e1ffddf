"""What is removed together, and in which order: pixels, patches, segments, and their ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fpa.errors import InputError
from fpa.explanation.estimator import check_indices
from fpa.seeds import by_image

_TIES = 3  # stream of random numbers


def ranks(maps: Tensor, *, seed: int = 0, indices: Sequence[int] | None = None) -> Tensor:
    """The place of every pixel in the LIF order: 0 is removed first. [N, H, W] -> int [N, H, W].

    Equal scores are put in a random order drawn from the seed and the number of the image.

    >>> ranks(torch.tensor([[[0.5, -1.0], [3.0, 2.0]]])).tolist()
    [[[1, 0], [3, 2]]]
    """
    numbers = check_indices(indices, len(maps))
    order = by_image((maps[0].numel(),), seed, numbers, _TIES, maps.device, "integers").argsort(
        dim=1, stable=True
    )
    return _ranks(maps.flatten(1), order).view(maps.shape)


def _ranks(scores: Tensor, order: Tensor) -> Tensor:
    """Ranks [N, F] of scores [N, F]; equal scores follow the random order [N, F]."""
    # Adding 0 turns -0 into 0: they are equal and must tie.
    sorted_places = (scores + 0.0).gather(1, order).argsort(dim=1, stable=True)
    places = torch.arange(scores.shape[1], device=scores.device, dtype=torch.int32)
    if scores.shape[1] <= torch.iinfo(torch.int16).max:
        places = places.to(torch.int16)
    found = torch.empty(scores.shape, dtype=places.dtype, device=scores.device)
    return found.scatter_(1, order.gather(1, sorted_places), places.expand_as(scores))


class _Pixels:
    """Every pixel is a feature."""

    def __init__(self, images: Tensor) -> None:
        self.shape = images.shape[2:]
        self.most = self.shape.numel()
        self.counts = torch.full((len(images),), self.most)
        self.equal = True

    def scores(self, values: Tensor) -> Tensor:
        return values.flatten(1)

    def to_pixels(self, ranks: Tensor) -> Tensor:
        return ranks.view(-1, *self.shape)

    def pixel_shares(
        self, ranks: Tensor, removed: Tensor, names: list[str]
    ) -> tuple[dict[str, Tensor] | None, dict[str, Tensor] | None]:
        return None, None


class _Segments(_Pixels):
    """Features are the segments of a label map [N, H, W] with labels 0, 1, ... in each image."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images)
        self.labels = labels.to(images.device).flatten(1)
        self.counts = labels.flatten(1).amax(1).cpu() + 1
        self.most = int(self.counts.max())
        self.equal = bool((self.counts == self.most).all())
        self.sizes = torch.zeros(len(labels), self.most, dtype=torch.int64, device=images.device)
        self.sizes.scatter_add_(1, self.labels, torch.ones_like(self.labels))

    def scores(self, values: Tensor) -> Tensor:
        values = values.flatten(1).double()
        # Whole numbers add up to the same sum in any order, so equal segments tie on every device.
        scale = values.abs().nan_to_num(0, 0, 0).amax(1, keepdim=True).clamp(min=1e-300) / 2**40
        whole = (values / scale).nan_to_num(0, 0, 0).round().long()
        sums = torch.zeros_like(self.sizes).scatter_add_(1, self.labels, whole)
        means = sums.double() / self.sizes
        return means.masked_fill(self.sizes == 0, torch.inf)

    def to_pixels(self, ranks: Tensor) -> Tensor:
        labels = self.labels.expand(len(ranks), *self.labels.shape)
        return ranks.gather(2, labels).view(-1, *self.shape)

    def pixel_shares(
        self, ranks: Tensor, removed: Tensor, names: list[str]
    ) -> tuple[dict[str, Tensor] | None, dict[str, Tensor] | None]:
        if self.equal and bool((self.sizes == self.sizes[:, :1]).all()):
            return None, None
        pixels = self.shape.numel()
        sizes = (
            torch.zeros_like(self.sizes)
            .expand_as(ranks)
            .scatter(2, ranks.long(), self.sizes.expand_as(ranks))
        )
        least_first = torch.cat([torch.zeros_like(sizes[..., :1]), sizes.cumsum(2)], 2)
        removed, counts = removed.to(ranks.device), self.counts.to(ranks.device)

        def share(place: int, upto: Tensor) -> Tensor:
            return least_first[place].gather(1, upto).double() / pixels

        lif = {name: share(place, removed) for place, name in enumerate(names)}
        mif = {name: 1 - share(place, counts[:, None] - removed) for place, name in enumerate(names)}
        return mif, lif


def check_features(features: str | int | Tensor, images: Tensor) -> _Pixels:
    """The features of these images, or the error that says why there are none."""
    height, width = images.shape[2:]
    if isinstance(features, str):
        if features != "pixels":
            raise InputError(f'features must be "pixels", a patch size or a label map, got {features!r}')
        return _Pixels(images)
    if isinstance(features, int):
        if not 1 <= features <= max(height, width):
            raise InputError(f"the patch size must be in 1..{max(height, width)} pixels, got {features}")
        across = -(-width // features)
        down, right = torch.arange(height) // features, torch.arange(width) // features
        return _Segments(images, (down[:, None] * across + right).expand(len(images), -1, -1))
    labels = torch.as_tensor(features)
    if labels.shape not in (images.shape[2:], (len(images), height, width)) or labels.is_floating_point():
        raise InputError(
            f"the label map must be whole numbers [{len(images)}, {height}, {width}] or [{height}, {width}], "
            f"got {labels.dtype} {list(labels.shape)}"
        )
    labels = labels.cpu().expand(len(images), height, width)
    return _Segments(images, torch.stack([label.unique(return_inverse=True)[1] for label in labels]))
