"""The words for what an audit advises."""

from fpa.notes import Kind
from fpa.show.words.reader import Phrase, Reader


def _evaluate(reader: Reader) -> str:
    return "evaluate explanations on this model with the masking that was judged here"


def _do_not_choose(reader: Reader) -> str:
    return "do not choose between explanations by masking pixels of this model as it is"


def _fine_tune(reader: Reader) -> str:
    return "fine-tune it with FPA and audit it again"


def _other_training_images(reader: Reader) -> str:
    return (
        "these images are for evaluation only. Fine-tuning (fpa finetune) needs different ones: in train/ "
        "beside them, or in a folder of photos, which need no labels"
    )


def _check_labels(reader: Reader) -> str:
    return "check the labels, the order of the classes and the normalisation; or train the model"


def _check_masking(reader: Reader) -> str:
    return "check that the model sees the images, or judge a masking that removes more"


def _enough_images(reader: Reader, *, needed: int) -> str:
    return f"audit at least {needed} images; 1,000 give narrow intervals"


def _more_estimators(reader: Reader) -> str:
    return "audit with more estimators, such as the set paper"


def _more_images(reader: Reader) -> str:
    return (
        "audit more images: more pairs are then told apart, and four times as many halve the other intervals"
    )


PHRASES: dict[Kind, Phrase] = {
    Kind.EVALUATE: _evaluate,
    Kind.DO_NOT_CHOOSE: _do_not_choose,
    Kind.FINE_TUNE: _fine_tune,
    Kind.OTHER_TRAINING_IMAGES: _other_training_images,
    Kind.CHECK_LABELS: _check_labels,
    Kind.CHECK_MASKING: _check_masking,
    Kind.ENOUGH_IMAGES: _enough_images,
    Kind.MORE_ESTIMATORS: _more_estimators,
    Kind.MORE_IMAGES: _more_images,
}
