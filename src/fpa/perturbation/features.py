"""What is removed together, and in which order: pixels, patches, segments, and their ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.data.loaders import as_tensor
from fpa.engine.tasks import check_indices
from fpa.errors import InputError, at_least
from fpa.seeds import Stream, by_image

USUAL_SEGMENTS = 100


class PixelShares(NamedTuple):
    """The exact shares of pixels removed, [N, K] by map; None where features do not differ in size."""

    mif: dict[str, Tensor] | None = None
    lif: dict[str, Tensor] | None = None


class Pixels:
    """Every pixel is a feature."""

    def __init__(self, images: Tensor) -> None:
        self.shape = images.shape[2:]
        self.most = self.shape.numel()
        self.counts = torch.full((len(images),), self.most)
        self.equal = True
        self.device = images.device

    @property
    def numbers(self) -> Tensor:
        """The number of every pixel's feature, [N, H, W]."""
        return (
            torch.arange(self.most, device=self.device).view(1, *self.shape).expand(len(self.counts), -1, -1)
        )

    def random_order(self, device: torch.device, seed: int, indices: Sequence[int]) -> Tensor:
        """The features of every image in the order in which equal scores are put, [N, F]."""
        # As many numbers as there are pixels, whatever the features, so that an image draws the same in every
        # block. Integers: float32 has so few values that ties among them would be common.
        numbers = by_image((self.shape.numel(),), seed, indices, Stream.TIES, device=device, draw="integers")
        return numbers[:, : self.most].argsort(dim=1, stable=True)

    def ranks(self, maps: Tensor, order: Tensor) -> Tensor:
        """The place of every feature in the LIF order, [N, F]; equal scores follow the random order."""
        # Adding 0 turns -0 into 0: they are equal and must tie.
        scores = self.scores(maps) + 0.0
        # Shuffled first and then sorted stably, so equal scores stay shuffled; `order` leads back.
        sorted_places = scores.gather(1, order).argsort(dim=1, stable=True)
        # All maps' ranks are held until the last curve is run, so they are as small as they can be.
        dtype = torch.int16 if scores.shape[1] <= torch.iinfo(torch.int16).max else torch.int32
        places = torch.arange(scores.shape[1], device=scores.device, dtype=dtype).expand_as(scores)
        return torch.empty_like(places).scatter_(1, order.gather(1, sorted_places), places)

    def scores(self, maps: Tensor) -> Tensor:
        """The score of every feature of maps [N, H, W]: the mean of its pixels, [N, F]."""
        return maps.flatten(1)

    def to_pixels(self, ranks: Tensor) -> Tensor:
        """Every pixel's feature's rank, [maps * N, H, W], of ranks [maps, N, F]."""
        return ranks.view(-1, *self.shape)

    def pixel_shares(self, ranks: Tensor, removed: Tensor, names: list[str]) -> "PixelShares":
        """The shares of pixels at the points of the curves, from ranks [maps, N, F] and removed [N, K]."""
        return PixelShares()


Features = str | int | Tensor | Pixels
"""What is removed together: "pixels", squares of so many pixels a side, or of that share of the image's
shorter side, as in "1/8", "segments" of each image (about 100, or as in "segments:50"; at 32 px far fewer:
"segments:30" gives 4 to 20), the segments of a label map, or what `features_of` made of one of these."""


class Segments(Pixels):
    """Features are the segments of a label map [N, H, W] with labels 0, 1, ... in each image.

    Where images come in blocks that need not be `alike`, all have the same points, and exact shares beside.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, alike: bool = True) -> None:
        super().__init__(images)
        self.alike = alike
        self.labels = labels.to(images.device).flatten(1)
        self.counts = labels.flatten(1).amax(1).cpu() + 1
        self.most = int(self.counts.max())
        self.equal = alike and bool((self.counts == self.most).all())
        self.sizes = torch.zeros(len(labels), self.most, dtype=torch.int64, device=images.device)
        self.sizes.scatter_add_(1, self.labels, torch.ones_like(self.labels))

    def at(self, rows: Sequence[int]) -> "Segments":
        """The segments of some of the images."""
        labels = self.labels[torch.tensor(rows, dtype=torch.long)].view(-1, *self.shape)
        return Segments(labels[:, None], labels, alike=self.alike)

    @property
    def numbers(self) -> Tensor:
        """The number of every pixel's feature, [N, H, W]."""
        return self.labels.view(-1, *self.shape)

    def scores(self, maps: Tensor) -> Tensor:  # noqa: D102
        values = maps.flatten(1).double()
        # Whole numbers add up to the same sum in any order, so equal segments tie on every device.
        scale = values.abs().nan_to_num(0, 0, 0).amax(1, keepdim=True).clamp(min=1e-300) / 2**40
        whole = (values / scale).nan_to_num(0, 0, 0).round().long()
        sums = torch.zeros_like(self.sizes).scatter_add_(1, self.labels, whole)
        return (sums.double() / self.sizes).masked_fill(self.sizes == 0, torch.inf)

    def to_pixels(self, ranks: Tensor) -> Tensor:  # noqa: D102
        labels = self.labels.expand(len(ranks), *self.labels.shape)
        return ranks.gather(2, labels).view(-1, *self.shape)

    def pixel_shares(self, ranks: Tensor, removed: Tensor, names: list[str]) -> PixelShares:  # noqa: D102
        if self.equal and bool((self.sizes == self.sizes[:, :1]).all()):
            return PixelShares()
        # The sizes in the order of removal: their running sum is how many pixels the first k features have.
        sizes = torch.zeros_like(ranks, dtype=torch.int64)
        sizes.scatter_(2, ranks.long(), self.sizes.expand_as(ranks))
        least_first = torch.nn.functional.pad(sizes.cumsum(2), (1, 0))

        def share(features: Tensor) -> Tensor:
            places = features.to(ranks.device).expand(len(ranks), -1, -1)
            return least_first.gather(2, places).double() / self.shape.numel()

        # What MIF removes first LIF leaves to the end: k features are gone when all but k are left.
        mif = 1 - share(self.counts[:, None] - removed)
        return PixelShares(
            mif=dict(zip(names, mif, strict=True)),
            lif=dict(zip(names, share(removed), strict=True)),
        )


def ranks(
    maps: Tensor, *, seed: int = 0, indices: Sequence[int] | None = None, features: Features = "pixels"
) -> Tensor:
    """The place of every pixel in the LIF order: 0 is removed first. [N, H, W] -> int [N, H, W].

    Equal scores are put in a random order drawn from the seed and the number of the image. With `features`
    (see `perturbation_curves`) all pixels of a feature have its place.

    >>> ranks(torch.tensor([[[0.5, -1.0], [3.0, 2.0]]])).tolist()
    [[[1, 0], [3, 2]]]
    """
    if segment_count(features):
        raise InputError("segments are found in images, not in maps: give them as a label map")
    parts = features_of(features, maps.unsqueeze(1))
    order = parts.random_order(maps.device, seed, check_indices(indices, len(maps)))
    return parts.to_pixels(parts.ranks(maps, order)[None])


def features_of(features: Features, images: Tensor) -> Pixels:
    """The features of these images: pixels, patches of that many pixels, or segments."""
    height, width = images.shape[2:]
    if isinstance(features, Pixels):
        return features
    if count := segment_count(features):
        return Segments(images, segmented(images, count), alike=False)
    if divisor := side_divisor(features):
        features = patch_side(divisor, min(height, width))
    if isinstance(features, str):
        return Pixels(images)
    if isinstance(features, int):
        if not 1 <= features <= max(height, width):
            raise InputError(f"the patch size must be in 1..{max(height, width)} pixels, got {features}")
        across = -(-width // features)
        patch_row = torch.arange(height) // features
        patch_column = torch.arange(width) // features
        return Segments(images, (patch_row[:, None] * across + patch_column).expand(len(images), -1, -1))
    labels = as_tensor("the label map", features)
    if labels.shape not in (images.shape[2:], (len(images), height, width)) or labels.is_floating_point():
        expected = f"[{len(images)}, {height}, {width}] or [{height}, {width}]"
        got = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f"the label map must be whole numbers {expected}, got {got}")
    return Segments(images, _numbered(labels.cpu().expand(len(images), height, width)))


def segment_count(features: Features) -> int | None:
    """How many segments a name stands for; None for other features. Refuses names that stand for nothing.

    >>> segment_count("segments"), segment_count("segments:50"), segment_count("pixels"), segment_count(16)
    (100, 50, None, None)
    """
    if not isinstance(features, str) or features == "pixels" or side_divisor(features):
        return None
    word, colon, count = features.partition(":")
    if word != "segments" or (colon and not (count.isdecimal() and len(count) < 9)):
        known = '"pixels", a patch size in pixels or as in "1/8", "segments", "segments:50" or a label map'
        raise InputError(f"features must be {known}, got {features!r}")
    at_least("the number of segments", wanted := int(count or USUAL_SEGMENTS), 2)
    return wanted


def side_divisor(features: Features) -> int | None:
    """How many patches fit along the shorter side, where their size is a share of it; else None.

    >>> side_divisor("1/8"), side_divisor("pixels"), side_divisor(4)
    (8, None, None)
    """
    if not isinstance(features, str) or not features.startswith("1/"):
        return None
    divisor = features.removeprefix("1/")
    if not (divisor.isdecimal() and len(divisor) < 9 and int(divisor) >= 2):
        raise InputError(f"patches must be a share of the side as in 1/8, 1/2 at most, got {features!r}")
    return int(divisor)


def patch_side(divisor: int, side: int) -> int:
    """The side of patches in pixels, at least one."""
    if divisor > side:
        raise InputError(f"patches of 1/{divisor} of {side} pixels would be smaller than a pixel")
    return max(1, round(side / divisor))


def segments_can_be_found() -> bool:
    """Whether the package that finds segments is installed."""
    try:
        import skimage.segmentation  # noqa: F401
    except ImportError:
        return False
    return True


def check_segmentation() -> None:
    """Refuse segments where the package that finds them is not installed."""
    if not segments_can_be_found():
        raise InputError("segments need scikit-image: pip install 'fpa[segments]'")


def segmented(images: Tensor, count: int) -> Tensor:
    """Label maps [N, H, W] of about `count` segments of every image: SLIC superpixels of its own colours."""
    check_segmentation()
    from skimage.segmentation import slic

    values = images.double().nan_to_num(0, 0, 0)
    low = values.amin((1, 2, 3), keepdim=True)
    high = values.amax((1, 2, 3), keepdim=True)
    unit = ((values - low) / (high - low).clamp(min=1e-12)).permute(0, 2, 3, 1).cpu().numpy()
    # The weight of closeness against colour, for colours in CIELAB and for other channels in 0..1.
    in_colour = images.shape[1] == 3
    compactness = 10.0 if in_colour else 0.1
    labels = [
        slic(
            image,
            count,
            compactness=compactness,
            convert2lab=in_colour,
            start_label=0,
            channel_axis=-1,
        )
        for image in unit
    ]
    return _numbered(torch.stack([torch.from_numpy(each) for each in labels]))


def _numbered(labels: Tensor) -> Tensor:
    """Label maps with the labels 0, 1, ... in each image."""
    return torch.stack([label.unique(return_inverse=True)[1] for label in labels])
