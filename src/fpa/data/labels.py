"""Which output of a model stands for which class of the images."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fpa.data.splits import ImageData
from fpa.errors import InputError


def class_numbers(
    classes: Sequence[str], outputs: int, names: Sequence[str] | None = None, class_index: str | None = None
) -> list[int] | None:
    """For every class of the data the output of the model that stands for it; None where that is not known.

    It is known if `class_index` says it: a list "[0,217]", or a JSON file of a mapping from the names of the
    classes to numbers, or the other way round ({"0": ["n01440764", "tench"], ...}). It is known too if all
    names are among the `names` of the model's outputs; or, where these have no names, if there are as many
    classes as outputs, which then have the same order.

    >>> class_numbers(["french_horn", "tench"], 3, ["tench", "goldfish", "French horn"])
    [2, 0]
    >>> class_numbers(["cat", "dog"], 1000) is None
    True
    """
    if class_index is not None:
        if not classes:
            raise InputError("the images have no classes to index: they are not in a folder for each class")
        numbers = _indexed_numbers(classes, class_index)
        if wrong := [number for number in numbers if not 0 <= number < outputs]:
            raise InputError(f"the class index {wrong[0]} is not among the model's {outputs} outputs")
        return numbers
    known, wanted = list(map(_plain, names or [])), list(map(_plain, classes))
    if wanted and wanted != known and all(known.count(name) == 1 for name in wanted):
        return [known.index(name) for name in wanted]
    # Names are the same also where two outputs share one, as ImageNet's cranes; numbers are no names.
    ordered = not known or wanted == known or known == [str(number) for number in range(len(known))]
    return list(range(outputs)) if wanted and len(wanted) == outputs and ordered else None


def labels_for(
    classes: Sequence[str], outputs: int, names: Sequence[str] | None = None, class_index: str | None = None
) -> tuple[list[int] | None, str | None]:
    """For an evaluation: as `class_numbers`, but the order decides where names do not; and a note about it.

    Folders are often named by codes (n01440764) and outputs by words, in the same order. Training on a wrong
    order would spoil a model, so there it is not assumed.

    >>> labels_for(["n01440764", "n01443537"], 2, ["tench", "goldfish"])[0]
    [0, 1]
    """
    numbers = class_numbers(classes, outputs, names, class_index)
    if not classes:
        return None, "the images have no labels (they are not in a folder for each class), so no accuracy"
    named = list(map(_plain, names or [])) == list(map(_plain, classes))
    order = list(range(outputs))
    if numbers is not None and (class_index is not None or named or numbers != order):
        return numbers, None
    if len(classes) == outputs:
        note = "assuming that the classes of the images are in the order of the model's outputs"
        return order, f"{note}: their names do not tell; --class_index would"
    question = f"which of the model's {outputs} outputs stand for the {len(classes)} classes of the images?"
    return None, f"labels unknown, so no accuracy: {question} --class_index says it"


def relabelled(data: ImageData, classes: list[str], numbers: Sequence[int]) -> ImageData:
    """The data with the model's classes instead of its own."""
    index = torch.tensor(numbers)
    train, test = (replace(split, labels=index[split.labels]) for split in (data.train, data.test))
    return replace(data, classes=classes, train=train, test=test)


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ").strip()


def _indexed_numbers(classes: Sequence[str], index: str) -> list[int]:
    path = Path(index)
    try:
        content = json.loads(path.read_text(encoding="utf-8") if path.is_file() else index)
    except (OSError, ValueError) as error:
        raise InputError(f"the class index must be like [0,217] or a JSON file, got {index!r}") from error
    if isinstance(content, list):
        if len(content) != len(classes) or not all(isinstance(number, int) for number in content):
            raise InputError(f"the class index must be {len(classes)} whole numbers, one for each class")
        return content
    numbers: dict[str, int] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, int):
            numbers[_plain(str(key))] = value
        elif str(key).isdigit():
            words = [value] if isinstance(value, str) else value
            numbers |= {_plain(str(word)): int(key) for word in words}
    if missing := [name for name in classes if _plain(name) not in numbers]:
        raise InputError(f"the class index {index} does not name the class {missing[0]!r}")
    return [numbers[_plain(name)] for name in classes]
