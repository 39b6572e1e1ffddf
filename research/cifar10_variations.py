"""Which of the paper's open choices move which numbers of the CIFAR-10 study.

    python research/cifar10_variations.py runs/cifar10 --data data
    python research/cifar10_variations.py runs/cifar10 --data data --train everywhere no-crop 90-epochs
    python research/cifar10_variations.py runs/cifar10 --data data --only "public code"

Evaluated anew with the study's own models (without augmentation and with FPA): the noise of SmoothGrad, its
number of samples, the reference of integrated gradients, the mean of the curves before the division, and
what the authors' public code does: integrated gradients from zeros (the default here), 50 samples of
SmoothGrad, and steps of 51 pixels up to 99.6 % (`--only` runs some of these).
Trained anew with `--train`: squares at every pixel (Algorithm 1 as printed), no random crop, 90 epochs.
Every A is over the same images, the first `--count` of the test set. Rows are added to `--output`.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import fpa
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine import Engine
from fpa.evaluation.evaluation import Evaluation
from fpa.explanation import PAPER, Settings
from fpa.masking import get_masking
from fpa.models.saved import load_model, read_card
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import reliability
from fpa.study.recipe import Recipe, load_recipe
from fpa.study.trainings import train

SMOOTH = ["sg_abs", "sgx_sum", "sgx_abs", "sqsg_sum"]
INTEGRATED = ["ig_sum", "ig_abs"]
NINETY = {"training.epochs": 90, "training.milestones": [30, 60]}
TRAINED: dict[str, dict[str, Any]] = {
    "everywhere": {"augmentations": ["fpa"], "fpa.squares": "everywhere"},
    "no-crop": {"augmentations": ["none", "fpa"]},
    "90-epochs": {"augmentations": ["none", "fpa"], **NINETY},
}

SIGNED = {name: each.signed for name, each in PAPER.items() if each.sign != "baseline"}


class Variations:
    """Scores of every variation over the same images, as rows of a table."""

    def __init__(self, data: ImageData, count: int, device: str, tiny: bool, output: Path) -> None:
        self.images = data.normalisation(data.test.images[:count])
        self.labels = data.test.labels[:count]
        self.data = data
        self.device = device
        self.tiny = tiny
        self.output = output
        self.rows: list[dict[str, Any]] = []
        if output.exists():
            self.rows = pd.read_csv(output).to_dict("records")

    def evaluate(
        self,
        engine: Engine,
        estimators: str | list[str],
        settings: Settings,
        shares: list[float] | None = None,
    ) -> Evaluation:
        """The curves of some estimators with these settings, at these shares of masked pixels."""
        if self.tiny:
            settings = replace(settings, ig_steps=3, sg_samples=2)
        result = fpa.evaluate(
            engine,
            (self.images, self.labels),
            estimators,
            settings=settings,
            fractions=shares,
            examples=0,
            progress=False,
        )
        return result.evaluation

    def add(self, variation: str, augmentation: str, found: Evaluation, began: float) -> None:
        """Add a row for each estimator, and write all rows so far."""
        scores = {
            name: Fidelity.from_curves(found.mif[name], found.lif[name], found.fractions)
            for name in found.mif
        }
        opposite = None
        if "random" in scores:  # all ten
            pairs = [pair for pair in reliability(scores, SIGNED).pairs if pair.kind == "signed-unsigned"]
            opposite = sum(pair.contradiction for pair in pairs)
        accuracy = float((found.labels == found.targets).mean())
        for name, score in scores.items():
            self.rows.append(
                {
                    "variation": variation,
                    "augmentation": augmentation,
                    "estimator": name,
                    "area": score.area,
                    "interval": score.interval,
                    "mean_then_divide": score.area_mean_then_divide,
                    "accuracy": accuracy,
                    "contradictions": opposite,
                    "images": score.used,
                }
            )
        pd.DataFrame(self.rows).to_csv(self.output, index=False, float_format="%.4f")
        print(f"{augmentation:9} {variation:12} {time.perf_counter() - began:6.1f} s", flush=True)

    def of_settings(self, model: Path, augmentation: str, only: list[str]) -> None:
        """The study's own model with other settings of the estimators, or with some of them."""
        engine = Engine(load_model(model, self.device), expected_rows=10**7 if not self.tiny else 0)
        for variation, estimators, settings, shares in self.settings():
            if not only or variation in only:
                began = time.perf_counter()
                found = self.evaluate(engine, estimators, settings, shares)
                self.add(variation, augmentation, found, began)

    def settings(self) -> Iterator[tuple[str, str | list[str], Settings, list[float] | None]]:
        """Name, estimators, their settings and the shares of masked pixels (None: the default) of each."""
        normalisation = self.data.normalisation
        black: Any = get_masking("black", normalisation.mean, normalisation.std)
        yield "default", "paper", Settings(), None
        for sigma in (0.05, 0.1, 0.2, 0.3):
            yield f"sigma {sigma:g}", SMOOTH, Settings(sigma=sigma), None
        yield "n 50", SMOOTH, Settings(sg_samples=50), None
        yield "black", INTEGRATED, Settings(reference=black), None
        yield "public code", "paper", Settings(sg_samples=50), [51 * step / 1024 for step in range(21)]

    def of_training(self, name: str, recipe: Recipe, folder: Path) -> None:
        """Models trained in another way, with the default settings of the estimators."""
        data = replace(self.data, crop_padding=0) if name == "no-crop" else self.data
        began = time.perf_counter()
        for trained in train(recipe, folder / name, data=data, device=self.device):
            accuracy = read_card(trained.path).accuracy
            print(f"{trained.name:9} {name:12} accuracy {accuracy:.4f}", flush=True)
        print(f"{'':9} {name:12} {time.perf_counter() - began:6.1f} s of training", flush=True)
        for augmentation in recipe.augmentations:
            began = time.perf_counter()
            model = load_model(folder / name / augmentation / "model.safetensors", self.device)
            engine = Engine(model, expected_rows=10**7 if not self.tiny else 0)
            self.add(name, augmentation, self.evaluate(engine, "paper", Settings()), began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="folder of a CIFAR-10 study")
    parser.add_argument("--data", default="data", help="folder that holds CIFAR-10")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--train", nargs="*", default=[], choices=list(TRAINED))
    parser.add_argument("--only", nargs="*", default=[], help="settings to run; default: all")
    parser.add_argument("--output", type=Path, default=Path("variations.csv"))
    parser.add_argument("--tiny", action="store_true", help="few images and steps, to see that it runs")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = load_data("cifar10", chosen.data)
    variations = Variations(data, 3 if chosen.tiny else chosen.count, device, chosen.tiny, chosen.output)
    if not chosen.train:
        for augmentation in ("none", "fpa"):
            model = chosen.study / augmentation / "model.safetensors"
            variations.of_settings(model, augmentation, chosen.only)
    for name in chosen.train:
        fields = dict(TRAINED[name])
        if chosen.tiny:
            fields |= {"training.epochs": 1, "training.milestones": [], "data.train_images": 128}
            variations.data = replace(data, train=first_images(data.train, 128), evaluation=torch.arange(8))
        variations.of_training(name, load_recipe("cifar10", fields), chosen.study / "variations")


if __name__ == "__main__":
    main()
