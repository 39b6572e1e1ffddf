"""Images in: data sets by name, folders of photos, and the loaders people bring, in batches or blocks.

Here is also what a label means to a model: which of its outputs stands for which class of the images.
"""

from fpa.data.blocks import ImageBlock, ImageSource
from fpa.data.loaders import ImageBatches
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data, load_evaluation_data, register
from fpa.data.sketch import digests, same_images, same_means, sketches
from fpa.data.source import image_source
from fpa.data.splits import ArraySplit, DataRequest, FileSplit, ImageData, array_data

looks = sketches
"""The name that `sketches` had."""

__all__ = [
    "ArraySplit", "DataRequest", "FileSplit", "ImageBatches", "ImageBlock", "ImageData", "ImageSource",
    "Normalisation", "array_data", "digests", "image_source", "load_data", "load_evaluation_data", "looks",
    "register", "same_images", "same_means", "sketches",
]  # fmt: skip
