"""CIFAR-10, from the official binary or python files."""

import hashlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import download_and_extract_archive

from fpa.data.photos import file_bytes
from fpa.data.splits import ArraySplit, DataRequest, ImageData, array_data
from fpa.errors import InputError, warn

Content = tuple[list[str], list[tuple[Any, Any]]]
"""The names of the classes, and (bytes [N, 3072], labels [N]) of each file, those of the test at the end."""


def load(request: DataRequest) -> ImageData:
    """50,000 images to train on and 10,000 to test, downloaded where the files are not there."""
    root = request.root
    binary = root / "cifar-10-batches-bin"
    python = root / CIFAR10.base_folder
    if binary.is_dir() or (root / "data_batch_1.bin").is_file():
        classes, parts = _binary(binary if binary.is_dir() else root)
    elif python.is_dir() or not (root / "data_batch_1").is_file():
        classes, parts = _python(python if python.is_dir() else _downloaded(root))
    else:
        classes, parts = _python(root)
    train = _split(parts[:-1])
    test = _split(parts[-1:])
    return array_data(request, train, test, classes, crop_padding=4, flip=True)


def _split(parts: list[tuple[Any, Any]]) -> ArraySplit:
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ArraySplit(torch.from_numpy(images).reshape(-1, 3, 32, 32), torch.from_numpy(labels).long())


def _binary(folder: Path) -> Content:
    """The official binary version: records of a label byte and 3 x 1024 bytes of colour planes."""
    classes = file_bytes(folder / "batches.meta.txt").decode().split()
    if len(classes) != 10:
        raise InputError(f"{folder / 'batches.meta.txt'} must list 10 class names, but has {len(classes)}")

    def read(name: str) -> tuple[Any, Any]:
        path = folder / f"{name}.bin"
        content = np.frombuffer(file_bytes(path), dtype=np.uint8)
        if len(content) == 0 or len(content) % 3073:
            raise InputError(f"{path} has {len(content)} bytes: expected records of 3,073 (10,000 of them)")
        records = content.reshape(-1, 3073)
        if len(records) != 10_000:
            warn(f"{path} has {len(records)} images, but the official file has 10,000")
        if records[:, 0].max() > 9:
            raise InputError(f"{path} has the label {records[:, 0].max()}: expected labels in 0..9")
        return records[:, 1:], records[:, 0]

    return classes, [read(name) for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]


def _python(folder: Path) -> Content:
    """The official python version: pickles, which could run any code, so only the official bytes are read."""

    def entry(name: str, md5: str) -> Any:
        content = file_bytes(folder / name)
        actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if actual != md5:
            problem = f"{folder / name} is not the official file, and was not unpickled"
            raise InputError(f"{problem}: its md5 is {actual}, expected {md5}")
        return pickle.loads(content, encoding="latin1")

    classes = entry(CIFAR10.meta["filename"], CIFAR10.meta["md5"])[CIFAR10.meta["key"]]
    batches = [entry(*file) for file in (*CIFAR10.train_list, *CIFAR10.test_list)]
    return list(classes), [(batch["data"], batch["labels"]) for batch in batches]


def _downloaded(root: Path) -> Path:
    """The folder of the python version, fetched from its official place."""
    folder: Path = root / CIFAR10.base_folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".cifar10.") as scratch:
            download_and_extract_archive(CIFAR10.url, scratch, filename=CIFAR10.filename, md5=CIFAR10.tgz_md5)
            (Path(scratch) / CIFAR10.base_folder).rename(folder)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cifar10 is not in {root} (expected the folder cifar-10-batches-bin or {CIFAR10.base_folder}, "
            f"the official binary or python version) and could not be downloaded from {CIFAR10.url}: {error}"
        ) from error
    return folder
