"""Small generated copies of real data sets, in their official layouts on disk."""

import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10

from fpa.data import splits
from fpa.training import jpegs

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ODD_FILES = [
    "usual",
    "padded",
    "progressive",
    "grey",
    "no transform",
    "cmyk",
    "png",
    "cut off",
    "text",
    "no table",
]
TRAIN_BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def picture(rng: np.random.Generator, height: int, width: int, tint: float) -> np.ndarray:
    """A smooth RGB picture, uint8 [H, W, 3]: coarse blocks of colour around a tint in 0..1."""
    blocks = rng.uniform(-0.3, 0.3, (4, 4, 3)) + np.array([tint, 1 - tint, 0.5])
    image = Image.fromarray((blocks.clip(0, 1) * 255).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def cifar10_arrays(per_file: int, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """File name -> (images uint8 [N, 3, 32, 32], labels uint8 [N]) of the six files."""
    rng = np.random.default_rng(seed)
    files = {}
    for name in [*TRAIN_BATCHES, "test_batch"]:
        labels = rng.permutation(np.arange(per_file) % 10).astype(np.uint8)
        images = [picture(rng, 32, 32, label / 9).transpose(2, 0, 1) for label in labels]
        files[name] = np.stack(images), labels
    return files


def write_cifar10_binary(root: Path, per_file: int = 20, seed: int = 0) -> Path:
    """root/cifar-10-batches-bin: a label byte and 3,072 bytes of colour planes an image."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (images, labels) in cifar10_arrays(per_file, seed).items():
        records = np.concatenate([labels[:, None], images.reshape(-1, 3072)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_CLASSES) + "\n\n")
    return folder


def write_cifar10_python(root: Path, monkeypatch, per_file: int = 20, seed: int = 0) -> Path:
    """root/cifar-10-batches-py, pickled; its md5s take the place of the official ones."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    md5s = {}

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        md5s[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()

    for name, (images, labels) in cifar10_arrays(per_file, seed).items():
        write(name, {"data": images.reshape(-1, 3072), "labels": labels.tolist(), "batch_label": name})
    write("batches.meta", {"label_names": CIFAR10_CLASSES, "num_vis": 3072})
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5s[name]] for name in TRAIN_BATCHES])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5s["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5s["batches.meta"]})
    return folder


def write_class_folder(
    folder: Path,
    classes: list[str],
    per_class: int,
    suffix: str = ".jpg",
    seed: int = 0,
    sides: tuple[int, int] = (40, 80),
) -> Path:
    """folder/CLASS/CLASS_NUMBER.jpg, pictures of random sizes with sides in the given range."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(per_class):
            height, width = rng.integers(*sides, size=2)
            image = Image.fromarray(picture(rng, height, width, number / max(1, len(classes) - 1)))
            kind = "PNG" if suffix == ".png" else "JPEG"
            image.save(folder / name / f"{name}_{index}{suffix}", format=kind)
    return folder


def write_image_folder(
    folder: Path,
    classes: tuple[str, ...] = ("cat", "dog"),
    train: int = 6,
    val: int = 3,
    suffix: str = ".jpg",
    test_name: str = "val",
) -> Path:
    """A class-per-subfolder set: folder/train/CLASS/*.jpg and folder/val/CLASS/*.jpg."""
    write_class_folder(folder / "train", list(classes), train, suffix, seed=0)
    write_class_folder(folder / test_name, list(classes), val, suffix, seed=1)
    return folder


def write_imagenet(
    root: Path,
    wnids: tuple[str, ...] = ("n01440764", "n02102040", "n03000684"),
    train: int = 4,
    val: int = 2,
) -> Path:
    """root/imagenet/train/WNID/*.JPEG and val/WNID/*.JPEG: ILSVRC2012, val sorted into classes."""
    return write_image_folder(root / "imagenet", wnids, train, val, suffix=".JPEG")


def write_food101(
    root: Path,
    classes: tuple[str, ...] = ("apple_pie", "beef_tartare", "waffles"),
    train: int = 4,
    test: int = 2,
) -> Path:
    """root/food-101/images/CLASS/ID.jpg, and meta/ with the official lists, as text and as JSON."""
    folder = root / "food-101"
    write_class_folder(folder / "images", list(classes), train + test)
    (folder / "meta").mkdir()
    (folder / "meta/classes.txt").write_text("".join(f"{name}\n" for name in classes))
    titles = (name.replace("_", " ").capitalize() for name in classes)
    (folder / "meta/labels.txt").write_text("".join(f"{title}\n" for title in titles))
    for split, numbers in (("train", range(train)), ("test", range(train, train + test))):
        listed = {name: [f"{name}/{name}_{number}" for number in numbers] for name in classes}
        (folder / f"meta/{split}.json").write_text(json.dumps(listed))
        lines = [f"{line}\n" for lines in listed.values() for line in lines]
        (folder / f"meta/{split}.txt").write_text("".join(lines))
    return folder


def write_pets(folder: Path, official: bool = False, train: int = 12, test: int = 20, size: int = 60) -> Path:
    """Oxford-IIIT Pets, every third one a cat: images/ and annotations/, or clean/, trimap/ and pets.csv."""
    rng = np.random.default_rng(5)
    photos = folder / ("images" if official else "clean")
    photos.mkdir(parents=True)
    rows = []
    for number in range(train + test):
        species = "cat" if number % 3 == 0 else "dog"
        name = f"{'Sphynx' if species == 'cat' else 'pug'}_{number}"
        image = Image.fromarray(picture(rng, size, size + number, 0.2 if species == "cat" else 0.8))
        image.save(photos / f"{name}.jpg", quality=95)
        rows.append((name, species, "trainval" if number < train else "test"))
    if official:
        (folder / "annotations").mkdir()
        for part in ("trainval", "test"):
            lines = [f"{name} 1 {1 + (kind == 'dog')} 1\n" for name, kind, where in rows if where == part]
            (folder / f"annotations/{part}.txt").write_text("".join(lines))
    else:
        lines = [f"{name},1,{kind},{where},1,2,3,4\n" for name, kind, where in rows]
        head = "name,breed,species,split,xmin,ymin,xmax,ymax\n"
        (folder / "pets.csv").write_text("".join([head, *lines]))
    return folder


def make_odd(paths: Sequence[Path], grain: float = 30) -> dict[str, Path]:
    """Let the first files of a data set be JPEG files of all kinds, other images, and damaged ones."""
    rng = np.random.default_rng(7)
    odd: dict[str, Path] = dict(zip(ODD_FILES, paths, strict=False))
    for number, (kind, path) in enumerate(odd.items()):
        height, width = rng.integers(50, 140, 2)
        grains = rng.uniform(-grain, grain, (height, width, 3))
        pixels = (picture(rng, height, width, number / len(odd)) + grains).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(pixels).convert({"grey": "L", "cmyk": "CMYK"}.get(kind, "RGB"))
        how = {"progressive": {"progressive": True}, "no transform": {"keep_rgb": True}}.get(kind, {})
        image.save(path, format="PNG" if kind == "png" else "JPEG", quality=90, **how)
        file = path.read_bytes()
        # Without its table of quantisation steps a file has a header and an end, but no decoder reads it.
        changed = {"padded": file + bytes(9), "cut off": file[: len(file) // 2], "text": b"no image"}
        changed["no table"] = file.replace(b"\xff\xdb", b"\xff\xe5")
        path.write_bytes(changed.get(kind, file))
    return odd


def make_unreadable(monkeypatch, bad: Path) -> None:
    """Let a file of a data set be one that cannot be decoded any more."""
    usual = splits.decode

    def fails(path):
        if path == bad:
            raise splits.UnreadableImage(path, OSError("gone"))
        return usual(path)

    usual_jpeg, nothing = jpegs._usual_jpeg, (b"", (0, 0))
    found = lambda path, most: nothing if path == bad else usual_jpeg(path, most)  # noqa: E731
    monkeypatch.setattr(jpegs, "_usual_jpeg", found)
    monkeypatch.setattr(splits, "decode", fails)
    monkeypatch.setattr("fpa.training.photos_on_device.decode", fails)
