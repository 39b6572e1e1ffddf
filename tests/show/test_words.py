"""Every kind of note has its words: here they are, all of them."""

import json
import math
from dataclasses import replace

import pytest

from fpa.notes import Kind, Note, Severity
from fpa.show.report.verdict import ALONE, EFFECTS, Meaning, verdict
from fpa.show.words import PHRASES, Reader, clause, sentence, sentences
from fpa.show.words.verdicts import MEANINGS, headline
from fpa.statistics.intervals import Estimate
from studies import made_up_study

WORDS = [
    (
        Kind.SMALL_NOT_JUDGED,
        {"small": 5, "images": 1000, "output": "centred"},
        "5 of 1000 images have a centred logit under a tenth of the median, and curves that are divided by it"
        " swing by themselves: the verdict is without them",
    ),
    (
        Kind.NO_LABELS,
        {},
        "the images have no labels (they are not in one folder per class), so no accuracy",
    ),
    (
        Kind.NUMBERS_OR_ORDER,
        {"in_order": True, "right": 9, "otherwise": 1},
        "the folders stand for the model's outputs in the order of their names (9 of the images tried are"
        " classified correctly this way, otherwise 1); class_index overrides it",
    ),
    (
        Kind.NUMBERS_OR_ORDER,
        {"in_order": False, "right": 9, "otherwise": 1},
        "the folders stand for the model's outputs with these numbers (9 of the images tried are classified"
        " correctly this way, otherwise 1); class_index overrides it",
    ),
    (
        Kind.NUMBERS,
        {},
        "the folders stand for the model's outputs with these numbers; class_index overrides it",
    ),
    (
        Kind.WORDNET_IDS,
        {},
        "the folders are named by WordNet ids: assuming the model's outputs are ImageNet's; class_index"
        " overrides it",
    ),
    (
        Kind.ORDER_ASSUMED,
        {},
        "assuming that the classes of the images are in the order of the model's outputs: their names do not"
        " match; class_index says which is which",
    ),
    (
        Kind.LABELS_UNKNOWN,
        {"outputs": 10, "classes": 2},
        "labels unknown, so no accuracy: which of the model's 10 outputs stand for the 2 classes of the"
        " images? Say it with class_index",
    ),
    (
        Kind.NOT_FINITE,
        {"what": "map", "estimator": "vg_sum", "count": 2, "images": [3, 5]},
        "estimator VG_sum: 2 maps (images 3, 5) are not finite",
    ),
    (
        Kind.NOT_FINITE,
        {"what": "image", "estimator": "", "count": 1, "images": [7]},
        "1 image (image 7) is not finite",
    ),
    (
        Kind.NOT_FINITE,
        {"what": "curve", "estimator": "", "count": 6, "images": [0, 1, 2, 3, 4]},
        "6 curves (images 0, 1, 2, 3, 4, ...) are not finite",
    ),
    (
        Kind.NEVER_FINITE,
        {"estimator": "vg_sum"},
        "estimator VG_sum has no finite curve and is left out",
    ),
    (
        Kind.LEFT_OUT,
        {"reason": "not finite", "count": 1, "of": 12, "images": [4]},
        "1 of 12 images left out for a NaN or infinite value in a curve (image 4)",
    ),
    (
        Kind.LEFT_OUT,
        {"reason": "not positive", "count": 2, "of": 12, "images": [4, 5]},
        "2 of 12 images left out for an unmasked output that is not positive (images 4, 5)",
    ),
    (
        Kind.LEFT_OUT,
        {"reason": "excluded", "count": 1, "of": 12, "images": [4]},
        "1 of 12 images left out for being excluded by `keep` (image 4)",
    ),
    (Kind.SINGLE_IMAGE, {}, "a single image is used: there is no interval"),
    (
        Kind.TWIN_MOVED,
        {"images": 200, "agreement": 0.87, "logits": 0.954, "maps": 0.7, "learned_from": False},
        "compared with the original on 200 images without masks: same class for 87.0 %; correlation 0.95 of "
        "logits and 0.70 of their maps",
    ),
    (
        Kind.TWIN_MOVED,
        {"images": 1, "agreement": 1.0, "logits": None, "maps": None, "learned_from": True},
        "compared with the original on 1 image without masks, among those it learned from: same class for "
        "100.0 %",
    ),
    (
        Kind.TWIN_FORGOT,
        {"images": 40, "agreement": 0.4},
        "after fine-tuning the model classifies only 40.0 % of 40 images as before: it says little about the "
        "original; more images, and more epochs, bring it closer",
    ),
    (
        Kind.SMALL_OUTPUTS,
        {"small": 10, "used": 200, "shift": 3.0, "interval": 1.5, "robust": 12.345},
        "10 of 200 images have an unmasked output under a tenth of the median; without them A moves by +3.00,"
        " more than the interval ±1.50 of the others; without the lowest and the highest 5 % of the images A"
        " is 12.35",
    ),
    (Kind.INCOMPLETE, {}, "the evaluation was not completed"),
    (
        Kind.PASSES,
        {"gradients": 8, "forwards": 2000, "images": 3},
        "8 gradients and 2,000 forward passes for each image: 6,024 passes for 3 images",
    ),
    (
        Kind.PASSES,
        {"gradients": 1, "forwards": 24, "images": None},
        "1 gradient and 24 forward passes for each image",
    ),
    (
        Kind.LONG_WORK,
        {"seconds": 7260.4, "longer": False, "offers_quick": True},
        "about 2 h 1 min on this machine; for a first look at 100 images, with fewer steps and points, stop "
        "it (Ctrl-C) and add --quick, in Python quick=True",
    ),
    (
        Kind.LONG_WORK,
        {"seconds": 90.0, "longer": True, "offers_quick": False},
        "more than 1 min 30 s on this machine",
    ),
    (
        Kind.QUICK_LOOK,
        {"images": 100, "gradients": 34, "points": 11, "protocols": 1},
        "a quick look at 100 images, with 34 gradients for each, 11 points and one protocol: it cannot "
        "decide small differences between explanations, nor whether their order holds under other "
        "maskings and protocols",
    ),
    (
        Kind.PASSES_OF_SCORES,
        {"scores": ["a", "b"], "forwards": 7, "explanations": 0, "gradients": 0, "images": None},
        "a, b: 7 forward passes for each image",
    ),
    (
        Kind.PASSES_OF_SCORES,
        {"scores": ["a"], "forwards": 7, "explanations": 1, "gradients": 9, "images": 100},
        "a: every estimator explains once more (9 gradients) for each of 100 images",
    ),
    (Kind.TAKEN_FOR_UNSIGNED, {"estimator": "vg_sum"}, "VG_sum: no negative value, so unsigned"),
    (
        Kind.PROTOCOL_LEFT_OUT,
        {"protocol": "segments:50", "why": "no scikit-image"},
        "left out: the protocol segments:50 needs scikit-image (pip install 'fpa[segments]')",
    ),
    (
        Kind.PROTOCOL_LEFT_OUT,
        {"protocol": "1/8", "why": "single pixels"},
        "left out: the protocol 1/8 would remove single pixels of images of this size",
    ),
    (
        Kind.PROTOCOL_LEFT_OUT,
        {"protocol": "1/3", "why": "few features", "features": 9, "needed": 10},
        "left out: the protocol 1/3 makes 9 pieces of an image of this size: at least 10 are needed",
    ),
    (
        Kind.PROTOCOL_LEFT_OUT,
        {"protocol": "1/8", "why": "no patches", "features": 16},
        "left out: the protocol 1/8 removes no whole patches of the network, which are 16 pixels a side",
    ),
    (
        Kind.TOKENS_LEFT_OUT,
        {"patch": 16, "share": 0.475, "class_token": True},
        "removed patches, 16 pixels a side, are not given to the network: along the curves it gets 47.5 % of"
        " the tokens of whole images, with everything removed the class token alone; nothing is filled, and"
        " where explanations need a reference, as integrated gradients do, it is 0",
    ),
    (
        Kind.BY_PROTOCOL,
        {
            "own": {"features": "pixels", "masking": "constant", "low": 15, "high": 17, "pairs": 18},
            "fewest": {"features": "1/8", "masking": "constant", "low": 0, "high": 0, "pairs": 18},
        },
        "by patches of 1/8 of the side MIF and LIF rank 0 of 18 signed-unsigned pairs in opposite order, by"
        " pixels 15 to 17; agreeing with itself is not being right: where the truth is known, it did not tell"
        " which errs least",
    ),
    (
        Kind.BY_PROTOCOL,
        {
            "own": {"features": 16, "masking": "blur", "low": 1, "high": 2, "pairs": 12},
            "fewest": {"features": "segments:50", "masking": "mean", "low": 0, "high": 1, "pairs": 18},
        },
        "by about 50 segments (mean) MIF and LIF rank 0 to 1 of 18 signed-unsigned pairs in opposite order,"
        " by patches of 16 pixels (blur) 1 to 2 of 12; agreeing with itself is not being right: where the"
        " truth is known, it did not tell which errs least",
    ),
    (
        Kind.BY_PROTOCOL,
        {
            "own": {"features": "pixels", "masking": "constant", "low": 2, "high": 2, "pairs": 18},
            "fewest": None,
        },
        "by pixels MIF and LIF rank 2 of 18 signed-unsigned pairs in opposite order, by no other protocol"
        " fewer; agreeing with itself is not being right: where the truth is known, it did not tell which"
        " errs least",
    ),
    (
        Kind.RECOMMENDED_PROTOCOL,
        {
            "protocol": "1/8+blur",
            "errors": [0.176, 0.172],
            "features": "pixels",
            "masking": "constant",
            "own_errors": [0.25, 0.221],
            "shown": False,
        },
        "where it is known which of two maps is truer, A by patches of 1/8 of the side (blur) prefers the"
        " worse one in 17.6 % of pairs (with FPA 17.2 %), A by pixels in 25.0 % of pairs (with FPA 22.1 %):"
        ' protocols="1/8+blur" adds it, for as many passes again',
    ),
    (
        Kind.RECOMMENDED_PROTOCOL,
        {
            "protocol": "1/8+blur",
            "errors": [0.176, 0.172],
            "features": 16,
            "masking": "uniform",
            "own_errors": None,
            "shown": True,
        },
        "where it is known which of two maps is truer, A by patches of 1/8 of the side (blur) prefers the"
        " worse one in 17.6 % of pairs (with FPA 17.2 %): its column is above",
    ),
    (
        Kind.PREFERS_WORSE,
        {"features": "1/8", "masking": "constant", "errors": {"none": [0.261, 0.018], "fpa": [0.2, 0.02]}},
        "of two maps of an image, A by patches of 1/8 of the side prefers the worse one in 26.1 ± 1.8 % of"
        " pairs (none) and 20.0 ± 2.0 % (fpa)",
    ),
    (
        Kind.PREFERS_WORSE,
        {"features": "pixels", "masking": "blur", "errors": {"mine": [0.25, math.nan]}},
        "of two maps of an image, A by pixels (blur) prefers the worse one in 25.0 % of pairs",
    ),
    (
        Kind.PREFERS_WORSE,
        {"features": "pixels", "masking": "constant", "errors": {"mine": [math.nan, math.nan]}},
        "of two maps of an image, A by pixels could not be asked: no pair of maps differs in truth by more"
        " than its noise",
    ),
    (
        Kind.ERROR_CHANGES,
        {
            "features": "pixels",
            "masking": "constant",
            "before": "none",
            "after": "fpa",
            "reduction": 0.051,
            "interval": 0.02,
        },
        "by pixels this error is 5.1 ± 2.0 points lower with fpa than with none",
    ),
    (
        Kind.ERROR_CHANGES,
        {
            "features": "1/8",
            "masking": "constant",
            "before": "none",
            "after": "fpa",
            "reduction": -0.01,
            "interval": 0.02,
        },
        "by patches of 1/8 of the side this error is 1.0 ± 2.0 points higher with fpa than with none, which"
        " may be chance",
    ),
    (
        Kind.TRUTH_AT_CHANCE,
        {"models": ["none", "fpa"]},
        "none and fpa are no better than chance: what is true of a model that knows nothing says little",
    ),
    (
        Kind.MAPS_WITHOUT_TRUTH,
        {"why": "not finite", "of": {"vg_sum": 3, "mine": 1}, "model": "fpa"},
        "maps of fpa without truth, as they are not finite: 3 by VG_sum, 1 by mine",
    ),
    (
        Kind.MAPS_WITHOUT_TRUTH,
        {"why": "zero", "of": {"vg_sum": 2}},
        "maps without truth, as they are 0 wherever something has an effect: 2 by VG_sum",
    ),
    (
        Kind.SCORE_LEFT_OUT,
        {"score": "localisation", "reason": "needs masks"},
        "left out: the score localisation needs masks",
    ),
    (
        Kind.OTHER_MASKING,
        {"trained": {"name": "constant", "value": 0.0}, "evaluated": {"name": "blur", "sigma": 4}},
        "the model was trained with the masking constant and is evaluated with blur, which it does not know:"
        " the test may be unreliable (fpa audit tells)",
    ),
    (
        Kind.OTHER_MASKING,
        {"trained": {"name": "blur", "sigma": 1}, "evaluated": {"name": "blur", "sigma": 4}},
        "the model was trained with the masking name blur, sigma 1 and is evaluated with name blur, sigma 4,"
        " which it does not know: the test may be unreliable (fpa audit tells)",
    ),
    (
        Kind.DOUBTFUL_CLASSES,
        {"accuracy": 0.02, "confidence": 0.915},
        "the accuracy is only 2.0 %, but the model is sure of its predictions (92 % on average): classes are"
        " probably assigned wrongly (see class_index)",
    ),
    (
        Kind.OFFSET_MATTERS,
        {"offset": 0.24, "estimator": "vg_sum", "areas": (1.23, 4.56), "opposite": (2.0, 4.0)},
        "the mean of all logits is 24 % of the centred logit; a number added to all logits, which changes no"
        " prediction, changes A: that of VG_sum is 1.2 for the logit and 4.6 for the centred one; opposite"
        " pairs: 2 and 4: use the output centred",
    ),
    (
        Kind.CONSISTENT,
        {"images": 1200, "kinds": {"signed-signed": (3, 1, 0), "signed-unsigned": (18, 4, 0)}},
        "no pair is surely in opposite order, by 1,200 images: signed-signed (1 of 3 in opposite order, 0"
        " surely), signed-unsigned (4 of 18 in opposite order, 0 surely)",
    ),
    (
        Kind.NOT_CONSISTENT,
        {"kinds": {"signed-signed": (3, 3, 2)}},
        "some pairs are surely in opposite order: signed-signed (3 of 3 in opposite order, 2 surely)",
    ),
    (
        Kind.CONTRADICTIONS,
        {"pairs": [("ig_sum", "vg_sum"), ("a", "b")], "more": 0},
        "cannot be ordered, because they are surely in opposite order: ig_sum and VG_sum; a and b",
    ),
    (
        Kind.TIES,
        {"pairs": [("ig_sum", "vg_sum")], "more": 5},
        "cannot be ordered, because A does not differ significantly: ig_sum and VG_sum; 5 more",
    ),
    (
        Kind.NEAR_DUPLICATES,
        {"of": {"own": "vg_sum", "again": "own"}},
        "near-duplicates, in no pair: own (as VG_sum), again (as own)",
    ),
    (
        Kind.IN_ALL_OPPOSITE,
        {"estimator": "vg_sum", "pairs": 2},
        "all 2 pairs in opposite order have VG_sum in them",
    ),
    (
        Kind.NOT_ABOVE_CHANCE,
        {"accuracy": 0.1, "labels": 500, "chance": 0.1},
        "nothing to explain: the accuracy, 10.0 % of 500 images, is not above chance (10.0 %, the commonest"
        " label)",
    ),
    (
        Kind.LITTLE_CHANGE,
        {"output": "centred", "change": (0.05, 0.02, 0.08), "needed": 0.1, "masked": 1.0},
        "nothing to explain: masking everything takes away 5.0 % of the centred logit (2.0 % to 8.0 %; more"
        " than 10.0 % is needed)",
    ),
    (
        Kind.LITTLE_CHANGE,
        {"output": "log_odds", "change": (0.05, 0.02, 0.08), "needed": 0.1, "masked": 0.95},
        "nothing to explain: masking 95.0 % of the pixels takes away 5.0 % of the log odds (2.0 % to 8.0 %;"
        " more than 10.0 % is needed)",
    ),
    (
        Kind.TOO_FEW_IMAGES,
        {"images": 500, "used": 80, "needed": 100},
        "too few images: 80 could be used (420 of 500 have no finite curves, or an output that is not"
        " positive or under a tenth of the median), at least 100 are needed",
    ),
    (
        Kind.TOO_FEW_IMAGES,
        {"images": 80, "used": 80, "needed": 100},
        "too few images: 80 could be used, at least 100 are needed",
    ),
    (
        Kind.TOO_FEW_ESTIMATORS,
        {"pairs": 2, "by_chance": 0.279},
        "too few estimators: 2 pairs of a signed and an unsigned one agree by chance in 27.9 % of cases",
    ),
    (
        Kind.OPPOSITE_PAIRS,
        {
            "opposite": (16, 15, 17),
            "pairs": 18,
            "allowed": 3,
            "side": "above",
        },
        "MIF and LIF rank 16 of 18 pairs of a signed and an unsigned estimator in opposite order (by paired"
        " tests 15 to 17, more than the 3 allowed)",
    ),
    (
        Kind.OPPOSITE_PAIRS,
        {
            "opposite": (2, 0, 5),
            "pairs": 18,
            "allowed": 3,
            "side": "across",
        },
        "MIF and LIF rank 2 of 18 pairs of a signed and an unsigned estimator in opposite order (by paired"
        " tests 0 to 5, on both sides of the 3 allowed)",
    ),
    (
        Kind.AGREEING_BY_CHANCE,
        {"pairs": 18, "allowed": 3, "alike": 0.024, "groups": 0.304, "apart": 4.0},
        "what no number of images excludes: rankings that have nothing to do with each other have at most 3"
        " of 18 pairs in opposite order in 2.4 % of cases, in 30.4 % where signed and unsigned estimators are"
        " two groups 4 standard deviations apart",
    ),
    (
        Kind.OUTPUT_KEPT,
        {"output": "logit", "masked": 10, "kept": (0.95, 0.94, 0.96), "side": "above", "limit": 0.8},
        "with 10 % of the pixels masked at random the raw logit keeps 95.0 % of its size (94.0 % to 96.0 %;"
        " above the limit of 80.0 %)",
    ),
    (
        Kind.CHANCE_UNKNOWN,
        {"labels": 12},
        "the accuracy was not compared with chance: all known labels are of one class",
    ),
    (Kind.CHANCE_UNKNOWN, {"labels": 0}, "the accuracy was not compared with chance: no label is known"),
    (
        Kind.OTHER_OUTPUT,
        {"output": "probability", "centred_verdict": None},
        "what is judged here is the probability; the limits are those of the centred logit",
    ),
    (
        Kind.OTHER_OUTPUT,
        {"output": "logit", "centred_verdict": "reliable"},
        "what is judged here is the raw logit; the limits are those of the centred logit, which along the"
        " same maps gives: reliable",
    ),
    (
        Kind.RAW_LOGIT_DIFFERS,
        {"verdict": "reliable", "offset": 0.5},
        "the raw logit, which a number added to all logits changes, would give another verdict: reliable (the"
        " mean of all logits is 50.0 % of the centred logit)",
    ),
    (
        Kind.OTHER_PROTOCOLS_DIFFER,
        {"judged": "pixels", "others": ["pixels+mean", "1/8"]},
        "the verdict holds for the protocol pixels: by pixels+mean and 1/8 the ranking of the estimators may"
        " be different",
    ),
    (Kind.EVALUATE, {}, "evaluate explanations on this model with the masking that was judged here"),
    (Kind.DO_NOT_CHOOSE, {}, "do not choose between explanations by masking pixels of this model as it is"),
    (Kind.FINE_TUNE, {}, "fine-tune it with FPA and audit it again"),
    (
        Kind.OTHER_TRAINING_IMAGES,
        {},
        "these images are for evaluation only. Fine-tuning (fpa finetune) needs different ones: in train/"
        " beside them, or in a folder of photos, which need no labels",
    ),
    (
        Kind.CHECK_LABELS,
        {},
        "check the labels, the order of the classes and the normalisation; or train the model",
    ),
    (Kind.CHECK_MASKING, {}, "check that the model sees the images, or judge a masking that removes more"),
    (Kind.ENOUGH_IMAGES, {"needed": 100}, "audit at least 100 images; 1,000 give narrow intervals"),
    (Kind.MORE_ESTIMATORS, {}, "audit with more estimators, such as the set paper"),
    (
        Kind.MORE_IMAGES,
        {},
        "audit more images: more pairs are then told apart, and four times as many halve the other intervals",
    ),
    (Kind.EARLIER_WORDS, {"text": "the model was trained so"}, "the model was trained so"),
]


@pytest.mark.parametrize(("kind", "values", "words"), WORDS)
def test_a_note_in_words(kind, values, words):
    assert clause(Note(kind, values=values), Reader({"vg_sum": "VG_sum"})) == words


def test_every_kind_has_words():
    assert {kind for kind, *_ in WORDS} == set(Kind) == set(PHRASES)


def test_a_sentence_begins_with_a_capital_and_ends_with_a_full_stop():
    alone = Note(Kind.SINGLE_IMAGE)
    assert sentence(alone) == "A single image is used: there is no interval."
    assert sentences([alone, Note(Kind.INCOMPLETE)])[1] == "The evaluation was not completed."


def test_options_are_typed_with_dashes_in_a_shell():
    assert clause(Note(Kind.NUMBERS), Reader(at_shell=True)).endswith("; --class_index overrides it")


@pytest.mark.parametrize("verdict", MEANINGS)
def test_a_verdict_is_a_sentence(verdict):
    assert headline(verdict) == f"{verdict.capitalize()}: {MEANINGS[verdict]}."


@pytest.mark.parametrize(("kind", "values"), [case[:2] for case in WORDS])
def test_a_note_can_be_stored(kind, values):
    """Through JSON, which has lists for tuples, it says the same."""
    note = Note(kind, values=values)
    again = Note.from_json(json.loads(json.dumps(note.to_json())))
    assert (again.kind, again.severity) == (note.kind, note.severity)
    assert clause(again) == clause(note)


def test_a_sentence_of_an_earlier_version_is_kept_as_it_is():
    note = Note.from_json("the model was trained with another masking")
    assert note.kind is Kind.EARLIER_WORDS
    assert sentence(note) == "The model was trained with another masking."


def test_what_is_kept_of_too_few_images_has_no_interval():
    values = {"output": "logit", "masked": 10, "kept": (0.95, math.nan, math.nan), "side": "across"}
    said = clause(Note(Kind.OUTPUT_KEPT, Severity.WARNING, values | {"limit": 0.8}))
    assert said.endswith("keeps 95.0 % of its size (too few images for an interval; the limit is 80.0 %)")


def test_no_page_says_consistent_above_inconsistent():
    """One vocabulary: pairs are in opposite order, surely or not; verdicts have their own three words."""
    texts = [words for _, _, words in WORDS] + [headline(verdict) for verdict in MEANINGS]
    assert not [text for text in texts if "onsisten" in text]


def test_the_verdict_of_a_study_in_words():
    study = made_up_study(variants=("none", "fpa"))
    for name, count in (("none", (17, 16, 18)), ("fpa", (10, 9, 12))):
        model = study.models[name]
        opposite = model.reliability.opposite | {"signed-unsigned": Estimate(*count)}
        counted = replace(model, reliability=replace(model.reliability, opposite=opposite))
        study = replace(study, models=study.models | {name: counted})
    assert verdict(study) == (
        "Of the 18 pairs of a signed and an unsigned estimator, MIF and LIF rank 17 in opposite order "
        "without augmentation (95 % interval 16 to 18) and 10 with FPA (9 to 12). FPA makes the evaluation "
        "contradict itself less often here, though most pairs are still in opposite order. Accuracy: "
        "95.0 % without augmentation, 95.0 % with FPA."
    )


def test_every_meaning_of_a_verdict_has_words_of_its_own():
    said = EFFECTS | ALONE
    with_numbers = {Meaning.NOTHING_TO_EXPLAIN, Meaning.TOO_FEW_IMAGES}
    assert set(said) == set(Meaning) - with_numbers
    assert len(set(said.values())) == len(said)
