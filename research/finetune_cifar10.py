"""How many epochs of fine-tuning with FPA does a CIFAR-10 model trained without it need?

    fpa train cifar10 --data.root data --augment none,fpa
    python research/finetune_cifar10.py --model runs/cifar10/none/model.safetensors --data data \
        --scratch runs/cifar10/fpa --epochs 1 2 5 10 --output runs/finetune-cifar10

Fine-tunes the model for each number of epochs (each a run of its own with its own schedule) and evaluates the
untouched model, the fine-tuned ones and the one trained with FPA from scratch, on the same `--count` test
images with the ten estimators: table.csv, table.md, finetune.png and .pdf in the output folder. Accuracy is
over all test images; the seconds include compiling. Run again, it continues from what is there. `--tiny`
does the same with the models of shapes in a minute or two on a CPU, to see that it works.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from finetuning import Measured, draw, measure, tabulate, timed, write_tables
from fpa import finetune, load_model
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.models.saved import model_path
from fpa.progress import Display

SCRATCH = "FPA from scratch"
UNTOUCHED = "untouched"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with those that `--tiny` makes small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="shapes-none", help="the model trained without FPA")
    parser.add_argument("--scratch", default="shapes-fpa", help="the model trained with FPA, or its folder")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds CIFAR-10")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--count", type=int, help="test images of the curves; default all")
    parser.add_argument("--ig-steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    options.batch_size = 64
    if options.tiny:
        options.count = 8
        options.ig_steps = 2
        options.batch_size = 32
    return options


def images_of(options: argparse.Namespace) -> tuple[ImageData, Tensor, Tensor]:
    """The data, and the normalised images and labels that the curves are of."""
    if options.tiny:
        data = load_data("shapes", evaluation_images=options.count)
        data = replace(data, train=first_images(data.train, 96), evaluation=torch.arange(40))
    else:
        data = load_data("cifar10", options.data)
    # The data set's own fixed choice, while accuracy is over all test images of `data`.
    chosen = load_data(data.name, options.data, evaluation_images=options.count).evaluation
    images = data.normalisation(data.test.images[chosen]).to(chosen_device(options.device))
    return data, images, data.test.labels[chosen]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    data, images, labels = images_of(options)
    scratch = Path(options.scratch)
    scratch = scratch / "model.safetensors" if scratch.is_dir() else model_path(options.scratch)
    original = load_model(options.model)

    found: list[Measured] = []
    with Display() as display:

        def add(
            name: str, model: nn.Module, place: Path, epochs: int | None = None, seconds: float | None = None
        ) -> None:
            measured = measure(
                name,
                model,
                place,
                data=data,
                images=images,
                labels=labels,
                ig_steps=options.ig_steps,
                display=display,
                epochs=epochs,
                seconds=seconds,
            )
            found.append(measured)

        def finetuned(epochs: int, place: Path) -> nn.Module:
            return finetune(
                original,
                data,
                epochs=epochs,
                learning_rate=options.learning_rate,
                batch_size=options.batch_size,
                targets="labels",
                seed=options.seed,
                device=chosen_device(options.device),
                folder=place,
                progress=display,
            )

        add(UNTOUCHED, load_model(options.model), folder / "untouched")
        for epochs in options.epochs:
            place = folder / f"epochs-{epochs}"
            tuned, seconds = timed(place, partial(finetuned, epochs, place))
            add(f"{epochs} epochs" if epochs > 1 else "1 epoch", tuned, place, epochs=epochs, seconds=seconds)
        add(SCRATCH, load_model(scratch), folder / "scratch")
    table = tabulate(found, SCRATCH)
    write_tables(table, folder)
    draw(table, folder / "finetune", {SCRATCH: "--", UNTOUCHED: ":"})
    print((folder / "table.md").read_text())


if __name__ == "__main__":
    main()
