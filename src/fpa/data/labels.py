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
    same = list(range(outputs)) if classes and len(classes) == outputs else None
    # The outputs of models that came without names are called by their numbers.
    named = names is not None and list(names) != [str(number) for number in range(len(names))]
    return _by_name(classes, names, same) or (None if named else same)


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
    if numbers is not None and (class_index is not None or _by_name(classes, names, numbers) == numbers):
        return numbers, None
    if len(classes) == outputs:
        return list(range(outputs)), (
            "assuming that the classes of the images are in the order of the model's outputs: their names "
            "do not tell; --class_index would"
        )
    return None, (
        f"labels unknown, so no accuracy: which of the model's {outputs} outputs stand for the "
        f"{len(classes)} classes of the images? --class_index says it"
    )


def relabelled(data: ImageData, classes: list[str], numbers: Sequence[int]) -> ImageData:
    """The data with the model's classes instead of its own."""
    index = torch.tensor(numbers)
    train, test = (replace(split, labels=index[split.labels]) for split in (data.train, data.test))
    return replace(data, classes=classes, train=train, test=test)


def _by_name(classes: Sequence[str], names: Sequence[str] | None, same: list[int] | None) -> list[int] | None:
    """The output of every class's name, if each is the name of one; `same` where all names are alike."""
    known, wanted = list(map(_plain, names or [])), list(map(_plain, classes))
    if wanted and wanted == known:  # also where two outputs have one name, as ImageNet's cranes
        return same
    if wanted and all(known.count(name) == 1 for name in wanted):
        return [known.index(name) for name in wanted]
    return None


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
