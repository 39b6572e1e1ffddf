"""What "removing a pixel" means: the one definition used by training and by evaluation.

A masking takes images [N, C, H, W] and a bool mask [N, H, W], True where the pixel (all its channels) is
removed, and returns masked copies. Every masking that comes with fpa, ROAD's apart, is described by its
*fill*, the image with everything removed: a masked pixel takes the value the fill has at its place. The fully
masked image is also what integrated gradients start from by default. `Drop` fills nothing: it stands for
tokens that a vision transformer is not given.
"""

from fpa.masking.drop import Drop
from fpa.masking.fills import (
    Blur,
    Bokeh,
    Constant,
    Fill,
    Maximum,
    Mean,
    Minimum,
    Uniform,
    black,
    gaussian,
)
from fpa.masking.masking import Channels, FunctionMasking, Masking, MaskingLike, check_mask, code_of, lent
from fpa.masking.names import (
    ALIASES,
    MASKINGS,
    fully_masked,
    get_masking,
    masking_code,
    masking_json,
    noise_by_image,
)
from fpa.masking.road import Road

__all__ = [
    "ALIASES", "MASKINGS", "Blur", "Bokeh", "Channels", "Constant", "Drop", "Fill", "FunctionMasking",
    "Masking", "MaskingLike", "Maximum", "Mean", "Minimum", "Road", "Uniform", "black", "check_mask",
    "code_of", "fully_masked", "gaussian", "get_masking", "lent", "masking_code", "masking_json",
    "noise_by_image",
]  # fmt: skip

# Stored plans name these classes `fpa.masking:Blur`, wherever in this room they are written.
for _kind in (
    Blur,
    Bokeh,
    Constant,
    Drop,
    Fill,
    FunctionMasking,
    Masking,
    Maximum,
    Mean,
    Minimum,
    Road,
    Uniform,
):
    _kind.__module__ = __name__
