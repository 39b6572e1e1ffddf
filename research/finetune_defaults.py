"""What makes a model fit for evaluation: its own predictions or labels, which epochs and learning rates?

    fpa train digits --augment none && fpa train cifar10 --data.root data --augment none
    python research/finetune_defaults.py shapes-none runs/digits/none/model.safetensors --output OUTPUT
    python research/finetune_defaults.py runs/cifar10/none/model.safetensors --data data --output OUTPUT
    python research/finetune_defaults.py mobilenet_v2 --weights mobilenet_v2-b0353104.pth \
        --photos imagenet-val --output OUTPUT
    python research/finetune_defaults.py --shown --output docs/results/finetuning/defaults.csv

Every model is audited as it is and after fine-tuning with each of `--targets`, `--epochs`, `--rates` and
`--shares` (largest shares of selected pixels), always from its own weights; 0 stands for the default of `fpa
finetune`. The networks of finetune_imagenet.py have four photos of each class, as there. Accuracy is over all
test images. OUTPUT gets a table for each model; run again, it continues. `--shown` prints such a table;
`--tiny` does a little of it on a CPU.
"""

import argparse
import itertools
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import finetune_imagenet
import fpa
from finetuning import margin
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.explanation import Settings
from fpa.training.trainer import accuracy


def start(name: str, options: argparse.Namespace) -> tuple[Any, ImageData]:
    """The model to begin with, and its data."""
    if name in finetune_imagenet.NETWORKS:
        model = finetune_imagenet.network(name, options.weights, 224)
        data = finetune_imagenet.photos(
            options.photos,
            options.output / "photos",
            224,
            workers=options.workers,
            few=8 if options.tiny else None,
            crops=True,
        )
        return model, replace(data, normalisation=Normalisation(model.card.mean, model.card.std))
    model = fpa.load_model(name)
    data = load_data(model.card.recipe["data"]["name"], options.data)
    return model, replace(data, normalisation=Normalisation(model.card.mean, model.card.std))


def measure(model: Any, data: ImageData, options: argparse.Namespace) -> dict[str, Any]:
    """The audit's verdict and evidence, and the accuracy."""
    count, steps = (8, 2) if options.tiny else (options.count, options.ig_steps)
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[:count].sort().values
    images = data.normalisation(data.test.images[order]).to(options.device), data.test.labels[order]
    model = model.to(options.device)
    verdict = fpa.audit(
        model,
        images,
        settings=Settings(ig_steps=steps),
        maskings=["constant"],
        estimators="paper",
        progress=False,
    )
    found = verdict.evidence
    return {
        "accuracy": 100 * accuracy(model, data, options.device, batch_size=100),
        "verdict": verdict.verdict,
        "opposite": None if found.opposite is None else round(found.opposite.value),
        "interval": "" if found.opposite is None else f"{found.opposite.low:g} to {found.opposite.high:g}",
        "margin": margin(verdict),
        "kept at 10 %": 100 * found.kept[10].value if 10 in found.kept else None,
    }


@dataclass(frozen=True)
class Asked:
    """What a model learns, and how; 0 stands for the default of `fpa finetune`."""

    targets: str = "none"
    epochs: int = 0
    rate: float = 0.0
    share: float = 0.0

    @property
    def numbers(self) -> str:
        """How the table names it, beside the targets."""
        return f"{self.epochs} {self.rate} {self.share}"

    def is_in(self, rows: list[dict[str, Any]]) -> bool:
        """Was it measured already?"""
        mine = (self.targets, float(self.epochs), self.rate, self.share)
        return any((row["targets"], *map(float, str(row["asked"]).split())) == mine for row in rows)


def measured(model: Any, data: ImageData, asked: Asked, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table: the model is fine-tuned as asked, and audited."""
    began = time.perf_counter()
    tuned = model
    used = asked
    if asked.targets != "none":
        tuned = fpa.finetune(
            model,
            data,
            epochs=asked.epochs or None,
            learning_rate=asked.rate or None,
            targets=asked.targets,
            fpa={"p1_max": asked.share} if asked.share else None,
            workers=options.workers,
            device=options.device,
        )
        # The table has what the defaults came to.
        recipe = tuned.card.recipe
        used = Asked(
            targets=asked.targets,
            epochs=recipe["training"]["epochs"],
            rate=recipe["training"]["learning_rate"],
            share=recipe["fpa"]["p1_max"],
        )
    seconds = time.perf_counter() - began
    return {
        "targets": used.targets,
        "asked": asked.numbers,
        "epochs": used.epochs,
        "rate": used.rate,
        "share": used.share,
        **measure(tuned, data, options),
        "seconds": round(seconds),
    }


def show(rows: pd.DataFrame) -> None:
    """A table for each model: a row for each number of epochs, a column for each way of the rest."""
    for name, model in rows.groupby("model", sort=False):
        before = model[model.targets == "none"].iloc[0]
        print(f"\n{name}: {before.accuracy:.1f} %, {before.opposite:.0f} of 18, {before.verdict} as it is\n")
        print("| learns | epochs | rate | share | verdict | pairs | kept | change of accuracy | seconds |")
        print("|---|---|---|---|---|---|---|---|---|")
        for row in model[model.targets != "none"].to_dict("records"):
            share = row.get("share", math.nan)  # tables of before have none
            cells = [
                row["targets"],
                row["epochs"],
                f"{row['rate']:g}",
                "" if math.isnan(share) else f"{share:g}",
                row["verdict"],
                f"{row['opposite']:.0f} of 18",
                f"{row['kept at 10 %']:.0f} %",
                f"{row['accuracy'] - before.accuracy:+.1f}",
                row["seconds"],
            ]
            print("|", " | ".join(map(str, cells)), "|")


def label_of(name: str, model: Any, data: ImageData) -> str:
    """What a model is called in the tables."""
    if name in (*finetune_imagenet.NETWORKS, "shapes-none"):
        return name
    return f"{data.name}, {model.card.architecture}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", help="a shipped name, a model file, mobilenet_v2, ...")
    parser.add_argument("--data", default="data", help="folder that holds the data sets")
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--targets", nargs="+", default=["model", "labels"])
    parser.add_argument("--epochs", type=int, nargs="+", default=[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0])
    parser.add_argument("--count", type=int, default=300, help="images of each audit")
    parser.add_argument("--images", type=int, help="training images, chosen by chance; default: all")
    parser.add_argument("--ig-steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--shown", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.shown:
        rows = pd.read_csv(options.output)
        if "targets" not in rows:  # before there was a choice
            rows["targets"] = ["labels" if epochs else "none" for epochs in rows.epochs]
        return show(rows)
    options.device = chosen_device(options.device)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        model, data = start(name, options)
        if options.images:
            data = replace(data, train=first_images(data.train, options.images))
        if options.tiny:
            few = torch.arange(min(40, len(data.test)))
            data = replace(data, train=first_images(data.train, 96), evaluation=few)
        label = label_of(name, model, data)
        table = options.output / f"{label.replace(', ', '-').replace(':', '-')}.csv"
        rows = pd.read_csv(table).to_dict("records") if table.exists() else []
        ways = itertools.product(options.targets, options.epochs, options.rates, options.shares)
        for asked in [Asked(), *itertools.starmap(Asked, ways)]:
            if not asked.is_in(rows):
                rows.append({"model": label, **measured(model, data, asked, options)})
                pd.DataFrame(rows).to_csv(table, index=False, float_format="%.6g")
                print(rows[-1], flush=True)
    return show(pd.concat([pd.read_csv(path) for path in sorted(options.output.glob("*.csv"))]))


if __name__ == "__main__":
    main()
