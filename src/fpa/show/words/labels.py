"""The words for labels of images, and for the outputs of a model that stand for them."""

from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader


def _no_labels(reader: Reader) -> str:
    return "the images have no labels (they are not in one folder per class), so no accuracy"


def _numbers_or_order(reader: Reader, *, in_order: bool, right: int, otherwise: int) -> str:
    where = "in the order of their names" if in_order else "with these numbers"
    tried = f"{right} of the images tried are classified correctly this way, otherwise {otherwise}"
    return f"the folders stand for the model's outputs {where} ({tried}); {_overridden(reader)}"


def _numbers(reader: Reader) -> str:
    return f"the folders stand for the model's outputs with these numbers; {_overridden(reader)}"


def _wordnet_ids(reader: Reader) -> str:
    assumed = "assuming the model's outputs are ImageNet's"
    return f"the folders are named by WordNet ids: {assumed}; {_overridden(reader)}"


def _order_assumed(reader: Reader) -> str:
    return (
        "assuming that the classes of the images are in the order of the model's outputs: their names do not "
        f"match; {reader.option('class_index')} says which is which"
    )


def _labels_unknown(reader: Reader, *, outputs: int, classes: int) -> str:
    return (
        f"labels unknown, so no accuracy: which of the model's {outputs} outputs stand for the {classes} "
        f"classes of the images? Say it with {reader.option('class_index')}"
    )


def _overridden(reader: Reader) -> str:
    return f"{reader.option('class_index')} overrides it"


PHRASES: dict[Kind, Phrase] = {
    Kind.NO_LABELS: _no_labels,
    Kind.NUMBERS_OR_ORDER: _numbers_or_order,
    Kind.NUMBERS: _numbers,
    Kind.WORDNET_IDS: _wordnet_ids,
    Kind.ORDER_ASSUMED: _order_assumed,
    Kind.LABELS_UNKNOWN: _labels_unknown,
}
