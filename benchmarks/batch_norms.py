"""Do batch norms that average over more batches keep a fine-tuned network's accuracy? With and without.

    python benchmarks/batch_norms.py --weights mobilenet_v2-b0353104.pth --photos imagenet-val

Fine-tunes torchvision's MobileNetV2 towards its own predictions, twice from the same weights and on the same
batches: with batch norms that average as published (over about ten batches) and as `fpa.finetune` lets them,
and prints the accuracy on photos that were not trained on. `--classes` are the classes of ImageNet taken,
four photos of each to train on and one to judge.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import finetune_imagenet
import fpa
from fpa.data.normalisation import Normalisation
from fpa.engine.devices import chosen_device
from fpa.training import finetuning
from fpa.training.trainer import accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    device = chosen_device(None)
    model = finetune_imagenet.network("mobilenet_v2", options.weights, options.size)
    with tempfile.TemporaryDirectory() as folder:
        how = {"workers": options.workers, "few": options.classes}
        data = finetune_imagenet.photos(options.photos, Path(folder), options.size, **how)
    data = replace(data, normalisation=Normalisation(model.card.mean, model.card.std))
    print(f"{len(data.train)} photos to train on, {len(data.test)} to judge, {options.size} px", flush=True)

    def show(name: str, network: object) -> None:
        right = accuracy(network, data, device, batch_size=50)
        print(f"{name:45} {100 * right:.1f} %", flush=True)

    show("as published", model.to(device))
    longer = finetuning._steady
    for name, steady in (("averages of ten batches", lambda *_: None), ("averages of more batches", longer)):
        finetuning._steady = steady
        settings = {"epochs": options.epochs, "learning_rate": options.learning_rate}
        settings |= {"batch_size": options.batch_size, "targets": "model", "device": device}
        show(f"{options.epochs} epochs, {name}", fpa.finetune(model, data, **settings).to(device))


if __name__ == "__main__":
    main()
