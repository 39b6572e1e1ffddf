"""CIFAR-10, from the official binary or python files."""

import hashlib
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive

from fpa.data.photos import file_bytes
from fpa.data.request import DataRequest, array_data
from fpa.data.splits import ArraySplit, ImageData
from fpa.errors import InputError

Content = tuple[list[str], ArraySplit, ArraySplit]


def load(request: DataRequest) -> ImageData:
    """50,000 images to train on and 10,000 to test, downloaded where the files are not there."""
    root = request.root
    for folder_name, first_file, read in (
        ("cifar-10-batches-bin", "data_batch_1.bin", _cifar10_binary),
        (datasets.CIFAR10.base_folder, "data_batch_1", _cifar10_python),
    ):
        below = root / folder_name
        if below.is_dir() or (root / first_file).is_file():
            content = read(below if below.is_dir() else root)
            break
    else:
        content = _cifar10_python(_download_cifar10(root))
    classes, train, test = content
    return array_data(request, train, test, classes, crop_padding=4, flip=True)


def _cifar10_binary(folder: Path) -> Content:
    """The official binary version: records of a label byte and 3 x 1024 bytes of colour planes."""
    classes = file_bytes(folder / "batches.meta.txt").decode().split()
    if len(classes) != 10:
        raise InputError(f"{folder / 'batches.meta.txt'} must list 10 class names, it has {len(classes)}")

    def read(name: str) -> ArraySplit:
        path = folder / f"{name}.bin"
        raw = np.frombuffer(file_bytes(path), dtype=np.uint8)
        if len(raw) == 0 or len(raw) % 3073:
            raise InputError(f"{path} has {len(raw)} bytes: expected records of 3,073 (10,000 of them)")
        records = raw.reshape(-1, 3073)
        if len(records) != 10_000:
            warnings.warn(f"{path} has {len(records)} images, the official file has 10,000", stacklevel=2)
        labels = torch.from_numpy(records[:, 0].astype(np.int64))
        if labels.max() > 9:
            raise InputError(f"{path} has the label {labels.max()}: expected labels in 0..9")
        return ArraySplit(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), labels)

    return classes, _joined([read(f"data_batch_{i}") for i in range(1, 6)]), read("test_batch")


def _cifar10_python(folder: Path) -> Content:
    """The official python version: pickles, which could run any code, so only the official bytes are read."""
    official = datasets.CIFAR10

    def entry(name: str, md5: str) -> Any:
        content = file_bytes(folder / name)
        actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if actual != md5:
            raise InputError(
                f"{folder / name} is not the official file, and was not unpickled: "
                f"its md5 is {actual}, expected {md5}"
            )
        return pickle.loads(content, encoding="latin1")

    def read(name: str, md5: str) -> ArraySplit:
        batch = entry(name, md5)
        images = torch.from_numpy(batch["data"].reshape(-1, 3, 32, 32).copy())
        return ArraySplit(images, torch.tensor(batch["labels"]))

    classes = entry(official.meta["filename"], official.meta["md5"])[official.meta["key"]]
    train, test = (
        _joined([read(*file) for file in files]) for files in (official.train_list, official.test_list)
    )
    return list(classes), train, test


def _download_cifar10(root: Path) -> Path:
    official = datasets.CIFAR10
    folder: Path = root / official.base_folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".cifar10.") as temporary:
            download_and_extract_archive(
                official.url, temporary, filename=official.filename, md5=official.tgz_md5
            )
            (Path(temporary) / official.base_folder).rename(folder)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cifar10 is not in {root} (expected the folder cifar-10-batches-bin or {official.base_folder}, "
            f"the official binary or python version) and could not be downloaded from {official.url}: {error}"
        ) from error
    return folder


def _joined(parts: list[ArraySplit]) -> ArraySplit:
    return ArraySplit(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
