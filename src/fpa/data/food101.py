"""Food-101, in its official layout."""

from dataclasses import replace

from fpa.data.photos import file_bytes, file_data, file_split, locate, z_score
from fpa.data.splits import DataRequest, FileSplit, ImageData


def load(request: DataRequest) -> ImageData:
    """`images/` and the lists of its files in `meta/`, z-scored by the colours of the training images."""
    needed = ("images", "meta/classes.txt", "meta/train.txt", "meta/test.txt")
    folder = locate(request, "food-101", needed)
    classes = sorted(file_bytes(folder / "meta/classes.txt").decode().split())

    def split(part: str) -> FileSplit:
        listing = folder / f"meta/{part}.txt"
        files = [(line.partition("/")[0], f"{line}.jpg") for line in file_bytes(listing).decode().split()]
        return file_split(folder / "images", classes, files, request.size, listing)

    train = split("train")
    data = file_data(request, classes, train, split("test"), official=101)
    return replace(data, normalisation=z_score(train, folder / f"fpa-normalisation-{request.size}.json"))
