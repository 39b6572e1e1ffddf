"""Images in: data sets by name, folders of photos, and the loaders people bring, in batches or blocks.

Here is also what a label means to a model: which of its outputs stands for which class of the images.
"""

from fpa.data.loaders import ImageBatches
from fpa.data.looks import looks, same_images
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data, load_evaluation_data, register
from fpa.data.source import ImageBlock, ImageSource, image_source
from fpa.data.splits import ArraySplit, DataRequest, FileSplit, ImageData, array_data

__all__ = [
    "ArraySplit", "DataRequest", "FileSplit", "ImageBatches", "ImageBlock", "ImageData", "ImageSource",
    "Normalisation", "array_data", "image_source", "load_data", "load_evaluation_data", "looks", "register",
    "same_images",
]  # fmt: skip
