"""Removal without a fill: a vision transformer is not given the tokens of removed patches."""

from dataclasses import dataclass
from typing import Never

from torch import Tensor

from fpa.errors import InputError
from fpa.masking.masking import Masking


@dataclass(frozen=True)
class Drop(Masking):
    """Removed patches are left out: the tokens of the others, and the class token, are all that is given.

    Nothing takes the place of what is removed, so there are no masked images: whoever asks for one is
    refused. Features are the patches of the network, or unions of them. 0 stands in where others use the
    fully masked image (integrated gradients).
    """

    selects = True

    def __call__(self, images: Tensor, mask: Tensor, noise: Tensor | None = None) -> Never:  # noqa: D102
        problem = "the masking drop leaves tokens of a vision transformer out and makes no masked images"
        raise InputError(f"{problem}: use one that fills, such as constant")
