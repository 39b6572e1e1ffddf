"""Which output of a model stands for which class of the images."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpa.data.loaders import as_tensor
from fpa.data.splits import ImageData
from fpa.errors import InputError, shortened
from fpa.notes import Kind, Note, Severity


def class_numbers(
    classes: Sequence[str], outputs: int, names: Sequence[str] | None = None, class_index: Any = None
) -> list[int] | None:
    """For every class of the data the output of the model that stands for it; None where that is not known.

    It is known if `class_index` says it: a list or an array of numbers, a mapping from the names of the
    classes to numbers or the other way round ({"0": ["n01440764", "tench"], ...}), or one of these as JSON,
    in a file or as text ("[0,217]"). It is known too if all names are among the `names` of the model's
    outputs; if they are WordNet ids (n01440764) of ImageNet and the model has its 1,000 outputs; if they are
    numbers of outputs, and the outputs have no such names; or, where the outputs have no names, if there are
    as many classes as outputs, in the same order.

    >>> class_numbers(["french_horn", "tench"], 3, ["tench", "goldfish", "French horn"])
    [2, 0]
    >>> class_numbers(["n01443537", "n15075141"], 1000), class_numbers(["7", "12"], 1000)
    ([1, 999], [7, 12])
    >>> class_numbers(["cat", "dog"], 1000) is None
    True
    """
    if class_index is not None:
        if not classes:
            raise InputError("the images have no classes to index: they are not in one folder per class")
        numbers = _indexed_numbers(classes, class_index)
        if wrong := [number for number in numbers if not 0 <= number < outputs]:
            raise InputError(f"the class index {wrong[0]} is not among the model's {outputs} outputs")
        return numbers
    # From the surest to the least sure: equal names, the ids of ImageNet, numbers, the order. Each rule must
    # hold for all classes: half of them by name and half by order would be wrong without anyone noticing.
    known = list(map(_plain, names or []))
    wanted = list(map(_plain, classes))
    if wanted and wanted == known:  # also where two outputs share a name, as ImageNet's cranes
        return list(range(outputs))
    if wanted and all(known.count(name) == 1 for name in wanted):
        return [known.index(name) for name in wanted]
    if outputs == 1000 and classes and set(classes) <= set(imagenet_ids()):
        return [imagenet_ids().index(name) for name in classes]
    if by_number := _as_numbers(classes, outputs):  # training on a wrong order would spoil a model
        by_text = len(by_number) == outputs and by_number != sorted(by_number)  # may be meant as well
        return None if by_text else by_number
    ordered = len(wanted) == outputs and not has_names(names or [])
    return list(range(outputs)) if wanted and ordered else None


def has_names(classes: Sequence[str]) -> bool:
    """Whether classes have names: numbers in their order are none, models that came without any have them.

    >>> has_names(["cat", "dog"]), has_names(["0", "1"])
    (True, False)
    """
    return list(classes) != [str(number) for number in range(len(classes))]


def other_classes(theirs: Sequence[str], ours: Sequence[str]) -> str | None:
    """How the classes of another model differ from a model's own, in words; None where they do not.

    >>> other_classes(["cat", "eel"], ["cat", "dog"]), other_classes(["0", "1"], ["cat", "dog"])
    ("its class 1 is 'eel', not 'dog'", None)
    """
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} classes, not {len(ours)}"
    pairs = enumerate(zip(theirs, ours, strict=True) if has_names(theirs) and has_names(ours) else ())
    differ = (f"its class {number} is {one!r}, not {two!r}" for number, (one, two) in pairs if one != two)
    return next(differ, None)


def labels_for(
    classes: Sequence[str],
    outputs: int,
    names: Sequence[str] | None = None,
    class_index: Any = None,
    *,
    right: Callable[[list[int]], int] = lambda numbers: 0,
) -> tuple[list[int] | None, Note | None]:
    """For an evaluation: as `class_numbers`, but the order decides where names do not; and a note about it.

    Folders are often named by codes and outputs by words, in the same order. Training on a wrong order would
    spoil a model, so there it is not assumed. Folders 0, 1, 10, 11, ... may stand for the outputs of these
    numbers, or, for a model trained on such folders, for the outputs in the order of the text: `right` says
    how many of a few images each choice classifies correctly, and where that decides nothing, it is the
    numbers.

    >>> labels_for(["code1", "code2"], 2, ["tench", "goldfish"])[0]
    [0, 1]
    """
    numbers = class_numbers(classes, outputs, names, class_index)
    if not classes:
        return None, Note(Kind.NO_LABELS, Severity.WARNING)
    known = list(map(_plain, names or []))
    named = all(_plain(name) in known for name in classes)
    order = list(range(outputs))
    if numbers is None and (by_number := _as_numbers(classes, outputs)):
        right_by_number = right(by_number)
        right_in_order = right(order)
        in_order = right_in_order > right_by_number
        values = {
            "in_order": in_order,
            "right": max(right_by_number, right_in_order),
            "otherwise": min(right_by_number, right_in_order),
        }
        return order if in_order else by_number, Note(Kind.NUMBERS_OR_ORDER, Severity.INFO, values)
    if class_index is None and numbers is not None and not named:
        if numbers == _as_numbers(classes, outputs):
            return numbers, Note(Kind.NUMBERS, Severity.INFO)
        if outputs == 1000 and set(classes) <= set(imagenet_ids()):
            return numbers, Note(Kind.WORDNET_IDS, Severity.INFO)
    if numbers is not None and (class_index is not None or named or numbers != order):
        return numbers, None
    if len(classes) == outputs:
        return order, Note(Kind.ORDER_ASSUMED, Severity.WARNING)
    unknown = {"outputs": outputs, "classes": len(classes)}
    return None, Note(Kind.LABELS_UNKNOWN, Severity.WARNING, unknown)


def relabelled(data: ImageData, classes: list[str], numbers: Sequence[int]) -> ImageData:
    """The data with the model's classes instead of its own."""
    index = torch.tensor(numbers)
    train, test = (replace(split, labels=index[split.labels]) for split in (data.train, data.test))
    return replace(data, classes=classes, train=train, test=test)


@cache
def imagenet_ids() -> list[str]:
    """The WordNet ids of ImageNet's 1,000 classes, in the order of the outputs."""
    return (Path(__file__).parent / "imagenet-ids.txt").read_text(encoding="ascii").split()


def _as_numbers(classes: Sequence[str], outputs: int) -> list[int] | None:
    """Names of classes that are numbers of outputs, each once; None where they are not."""
    if not all(name.isascii() and name.isdigit() for name in classes):
        return None
    numbers = [int(name) for name in classes]
    return numbers if len({*numbers}) == len(numbers) and max(numbers, default=outputs) < outputs else None


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ").strip()


def whole_number(value: Any) -> int | None:
    """A whole number, whoever's type it is of; None for anything else.

    >>> whole_number(torch.tensor(3)), whole_number(3.0), whole_number(True)
    (3, None, None)
    """
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0 and not getattr(value, "is_meta", False):
        value = value.item()
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def _indexed_numbers(classes: Sequence[str], index: Any) -> list[int]:
    """The numbers that an index of any accepted form has for the classes."""
    content = read_class_index(index)
    given = shortened(str(index))
    if isinstance(content, list):
        numbers = [whole_number(each) for each in content]
        known = [number for number in numbers if number is not None]
        if not len(known) == len(numbers) == len(classes):
            raise InputError(f"the class index must be {len(classes)} whole numbers, one for each class")
        return known
    by_name: dict[str, int] = {}
    for key, value in content.items():
        name = str(key)
        number = whole_number(value)
        words = [value] if isinstance(value, str) else value
        texts = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        if number is not None:
            by_name[_plain(name)] = number
        elif name.isdecimal() and texts:
            by_name |= {_plain(word): int(name) for word in words}
        else:
            expected = "numbers by names, or names by numbers"
            raise InputError(f"the class index {given} must hold {expected}: {key!r} is {value!r:.80}")
    if missing := [name for name in classes if _plain(name) not in by_name]:
        raise InputError(f"the class index {given} does not name the class {missing[0]!r}")
    return [by_name[_plain(name)] for name in classes]


def read_class_index(index: Any) -> list[Any] | Mapping[Any, Any]:
    """A list or a mapping, from what holds it: a path, JSON, a sequence, an array; all else is refused."""
    shown = shortened(repr(index))
    wanted = f"the class index must be like [0,217], a mapping, or a JSON file, got {shown}"
    if isinstance(index, str | os.PathLike):
        path = os.fspath(index)
        try:
            index = json.loads(Path(path).read_text(encoding="utf-8") if os.path.isfile(path) else path)
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise InputError(wanted) from error
    if isinstance(index, Tensor | np.ndarray):
        index = as_tensor("the class index", index).tolist()  # a number, where there is but one
    if isinstance(index, Mapping):
        return index
    if not isinstance(index, Sequence) or isinstance(index, str | bytes):
        raise InputError(wanted)
    return list(index)
