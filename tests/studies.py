"""A study made up of plausible numbers, for the tests of tables, figures and the report."""

import numpy as np

from fpa.evaluation.examples import Examples
from fpa.evaluation.shards import Evaluation
from fpa.explanation import PAPER
from fpa.scores.fidelity import Fidelity, common_images
from fpa.statistics.contradictions import reliability
from fpa.study.recipe import load_recipe
from fpa.study.results import ModelResult, Study

SIGNED = {name: estimator.signed for name, estimator in PAPER.items() if name != "random"}


def made_up_study(images=40, examples=4, size=16, name="shapes", augmentations=("none", "rectangle", "fpa")):
    rng = np.random.default_rng(0)
    classes = ["disc", "square", "diamond", "a <b>bold</b> & odd name"]
    fractions = np.arange(21) / 20
    evaluations, models = {}, {}
    for augmentation in augmentations:
        unmasked = rng.uniform(4, 9, images)
        mif, lif, scores = {}, {}, {}
        for place, estimator in enumerate(PAPER):
            signed = SIGNED.get(estimator, False)
            strength = 1 + 0.15 * place
            bump = 1.5 if signed and augmentation == "fpa" else 0.0
            sharper = 4.0 if augmentation != "fpa" and signed else 2.0
            fall = (1 - fractions) ** (sharper * strength)
            keep = 1 - fractions ** (strength if estimator != "random" else 1)
            if estimator == "random":
                fall = keep = (1 - fractions) ** 2
            noise = rng.normal(0, 0.05, (2, images, 21)) * (fractions > 0) * (fractions < 1)
            mif[estimator] = unmasked[:, None] * (fall + noise[0])
            lif[estimator] = unmasked[:, None] * (keep + bump * fractions * (1 - fractions) + noise[1])
            line = np.linspace(-1 if signed else 0, 1, size * size)
            scores[estimator] = line**3 * strength
        evaluations[augmentation] = Evaluation(
            fractions, np.arange(images), rng.integers(0, 4, images), rng.integers(0, 4, images), unmasked,
            mif, lif, scores=scores,
        )  # fmt: skip
    keep = common_images(*(evaluation.unmasked for evaluation in evaluations.values()))
    for augmentation, evaluation in evaluations.items():
        fidelity = {
            estimator: Fidelity.from_curves(
                evaluation.mif[estimator], evaluation.lif[estimator], fractions, keep=keep
            )
            for estimator in PAPER
        }
        maps = {estimator: rng.normal(0, 1, (examples, size, size)).astype(np.float32) for estimator in PAPER}
        maps = {key: value if SIGNED.get(key) else np.abs(value) for key, value in maps.items()}
        ranks = {
            key: value.reshape(examples, -1).argsort(1).argsort(1).reshape(value.shape).astype(np.int32)
            for key, value in maps.items()
        }
        epochs = np.arange(1, 6)
        history = {
            "epoch": epochs.tolist(),
            "learning_rate": (0.1 / epochs).tolist(),
            "loss": (2 / epochs).tolist(),
            "accuracy": (1 - 0.5 / epochs).tolist(),
            "test_accuracy": [None, 0.6, None, None, 0.93],
            "images_per_second": [1000.0] * 5,
        }
        pictures = rng.integers(0, 255, (examples, 3, size, size)).astype(np.uint8)
        models[augmentation] = ModelResult(
            augmentation, 0.93, history, evaluation, fidelity, reliability(fidelity, draws=50),
            Examples(
                pictures, np.arange(examples), evaluation.labels[:examples], evaluation.targets[:examples],
                maps, ranks, np.full_like(pictures, 128), rng.random((examples, size, size)) < 0.3,
            ),
        )  # fmt: skip
    manifest = {"versions": {"fpa": "0.1.0", "torch": "2.11"}, "device": "cpu", "seeds": {"seed": 0}}
    manifest["timings"] = {"none": {"train": 31.0, "evaluate": 12.5}, "tables": 0.4}
    return Study(name, load_recipe(name), classes, models, SIGNED, manifest)
