"""The words for what an evaluation costs and leaves out, and for what to doubt about a model."""

from collections.abc import Mapping, Sequence

from fpa.errors import counted, percent
from fpa.evaluation.quick import IMAGES as QUICK_IMAGES
from fpa.notes import Kind
from fpa.progress import duration
from fpa.show.words.reader import Phrase, Reader, first_of

_REASONS = {
    "not finite": "a NaN or infinite value in a curve",
    "not positive": "an unmasked output that is not positive",
    "excluded": "being excluded by `keep`",
}


def _not_finite(reader: Reader, *, what: str, estimator: str, count: int, images: Sequence[int]) -> str:
    of = f"estimator {reader.name(estimator)}: " if estimator else ""
    s, are = ("", "is") if count == 1 else ("s", "are")
    return f"{of}{count} {what}{s} (image{s} {first_of(images, count)}) {are} not finite"


def _never_finite(reader: Reader, *, estimator: str) -> str:
    return f"estimator {reader.name(estimator)} has no finite curve and is left out"


def _left_out(reader: Reader, *, reason: str, count: int, of: int, images: Sequence[int]) -> str:
    named = f"image{'s' * (count > 1)} {first_of(images, count)}"
    return f"{count} of {of} images left out for {_REASONS[reason]} ({named})"


def _single_image(reader: Reader) -> str:
    return "a single image is used: there is no interval"


def _small_outputs(
    reader: Reader, *, small: int, used: int, shift: float, interval: float, robust: float
) -> str:
    return (
        f"{small} of {used} images have an unmasked output under a tenth of the median; without them A moves "
        f"by {shift:+.2f}, more than the interval ±{interval:.2f} of the others; without the lowest and the "
        f"highest 5 % of the images A is {robust:.2f}"
    )


def _incomplete(reader: Reader) -> str:
    return "the evaluation was not completed"


def _passes(reader: Reader, *, gradients: int, forwards: int, images: int | None) -> str:
    each = f"{counted(gradients, 'gradient')} and {forwards:,} forward passes for each image"
    if images is None:
        return each
    return f"{each}: {images * (gradients + forwards):,} passes for {counted(images)}"


def _long_work(reader: Reader, *, seconds: float, longer: bool, offers_quick: bool) -> str:
    took = f"{'more than' if longer else 'about'} {duration(round(seconds))} on this machine"
    if not offers_quick:
        return took
    return (
        f"{took}; for a first look at {QUICK_IMAGES} images, with fewer steps and points, stop it (Ctrl-C) "
        "and add --quick, in Python quick=True"
    )


def _quick_look(reader: Reader, *, images: int | None, gradients: int, points: int, protocols: int) -> str:
    of = "" if images is None else f" at {counted(images)}"
    one = " and one protocol" if protocols == 1 else ""
    return (
        f"a quick look{of}, with {counted(gradients, 'gradient')} for each, {points} points{one}: it cannot "
        "decide small differences between explanations, nor whether their order holds under other maskings "
        "and protocols"
    )


def _passes_of_scores(
    reader: Reader,
    *,
    scores: Sequence[str],
    forwards: int,
    explanations: int,
    gradients: int,
    images: int | None,
) -> str:
    work = f"{forwards:,} forward passes"
    if explanations:
        times = "once more" if explanations == 1 else f"{explanations:,} times more"
        work = f"every estimator explains {times} ({gradients:,} gradients)"
    which = "image" if images is None else f"of {images} images"
    return f"{', '.join(scores)}: {work} for each {which}"


def _taken_for_unsigned(reader: Reader, *, estimator: str) -> str:
    return f"{reader.name(estimator)}: no negative value, so unsigned"


def _score_left_out(reader: Reader, *, score: str, reason: str) -> str:
    return f"left out: the score {score} {reason}"


def _protocol_left_out(reader: Reader, *, protocol: str, why: str, features: int = 0, needed: int = 0) -> str:
    reasons = {
        "no scikit-image": "needs scikit-image (pip install 'fpa[segments]')",
        "single pixels": "would remove single pixels of images of this size",
        "no patches": f"removes no whole patches of the network, which are {features} pixels a side",
        "few features": f"makes {features} pieces of an image of this size: at least {needed} are needed",
    }
    return f"left out: the protocol {protocol} {reasons[why]}"


def _tokens_left_out(reader: Reader, *, patch: int, share: float, class_token: bool) -> str:
    left = "the class token" if class_token else "one patch"
    return (
        f"removed patches, {patch} pixels a side, are not given to the network: along the curves it gets "
        f"{percent(share)} of the tokens of whole images, with everything removed {left} alone; nothing is "
        "filled, and where explanations need a reference, as integrated gradients do, it is 0"
    )


def _other_masking(reader: Reader, *, trained: Mapping[str, object], evaluated: Mapping[str, object]) -> str:
    # The name alone tells two kinds apart; of the same kind the settings differ.
    alike = trained["name"] == evaluated["name"]
    first, second = (
        ", ".join(f"{key} {value}" for key, value in each.items()) if alike else each["name"]
        for each in (trained, evaluated)
    )
    return (
        f"the model was trained with the masking {first} and is evaluated with {second}, which it does not "
        "know: the test may be unreliable (fpa audit tells)"
    )


def _doubtful_classes(reader: Reader, *, accuracy: float, confidence: float) -> str:
    return (
        f"the accuracy is only {percent(accuracy)}, but the model is sure of its predictions "
        f"({100 * confidence:.0f} % on average): classes are probably assigned wrongly (see class_index)"
    )


def _offset_matters(
    reader: Reader, *, offset: float, estimator: str, areas: Sequence[float], opposite: Sequence[float]
) -> str:
    return (
        f"the mean of all logits is {100 * offset:.0f} % of the centred logit; a number added to all logits, "
        f"which changes no prediction, changes A: that of {reader.name(estimator)} is {areas[0]:.1f} for the "
        f"logit and {areas[1]:.1f} for the centred one; opposite pairs: {opposite[0]:.0f} and "
        f"{opposite[1]:.0f}: use the output centred"
    )


def _earlier_words(reader: Reader, *, text: str) -> str:
    return text


PHRASES: dict[Kind, Phrase] = {
    Kind.NOT_FINITE: _not_finite,
    Kind.NEVER_FINITE: _never_finite,
    Kind.LEFT_OUT: _left_out,
    Kind.SINGLE_IMAGE: _single_image,
    Kind.SMALL_OUTPUTS: _small_outputs,
    Kind.INCOMPLETE: _incomplete,
    Kind.PASSES: _passes,
    Kind.LONG_WORK: _long_work,
    Kind.QUICK_LOOK: _quick_look,
    Kind.PASSES_OF_SCORES: _passes_of_scores,
    Kind.TAKEN_FOR_UNSIGNED: _taken_for_unsigned,
    Kind.SCORE_LEFT_OUT: _score_left_out,
    Kind.PROTOCOL_LEFT_OUT: _protocol_left_out,
    Kind.TOKENS_LEFT_OUT: _tokens_left_out,
    Kind.OTHER_MASKING: _other_masking,
    Kind.DOUBTFUL_CLASSES: _doubtful_classes,
    Kind.OFFSET_MATTERS: _offset_matters,
    Kind.EARLIER_WORDS: _earlier_words,
}
