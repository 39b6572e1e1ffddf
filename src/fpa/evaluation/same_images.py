"""Whether a block that is stored is of the images that come now."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from fpa.data import ImageBlock, digests, same_images, same_means, sketches
from fpa.data.sketch import COMPUTED
from fpa.evaluation.shards import EvaluationFolder


def difference(
    stored: EvaluationFolder, block: ImageBlock, columns: Mapping[str, NDArray[Any]]
) -> str | None:
    """Why what is stored is not of the images of this block; None: it is."""
    # `looks` is what the files call the sketches of images. A result in memory has none: there is no
    # telling whether the images to come are those that it was made from.
    if "looks" not in columns:
        return f"{stored.path} was written by Result.save and cannot be continued"
    if columns["index"].tolist() != block.indices:
        return f"{stored.file(block.number)} was made from other images"
    if not _same_pixels(block, columns):
        other = "of other images, or of the same images at another size or normalisation"
        return f"{stored.path} holds an evaluation {other}"
    masks = block.foreground
    if masks is not None and not _same_digests(columns.get("mask_digest"), masks):
        return f"{stored.path} holds an evaluation with other masks of the objects"
    return None


def _same_pixels(block: ImageBlock, columns: Mapping[str, NDArray[Any]]) -> bool:
    """Whether what is stored is of a block's images: tensors to the bit, photos but for their rounding."""
    before = columns["looks"].copy()
    now = sketches(block.images)
    if block.exact and "digest" in columns:
        return _same_digests(columns["digest"], block.images)
    if block.exact:  # an earlier version stored no digests
        return same_images(before, now, COMPUTED)
    means = columns.get("means")
    same = means is None or same_means(means.copy(), block.images.float().mean((2, 3)), before)
    return same and same_images(before, now)


def _same_digests(stored: NDArray[Any] | None, tensors: Tensor) -> bool:
    """Whether tensors are those of digests that were stored; yes where there are none to compare with."""
    return stored is None or stored.tolist() == digests(tensors).tolist()
