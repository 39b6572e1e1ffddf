"""Which way of fine-tuning a published network towards its own predictions keeps what it knows?

    python research/finetune_ways.py --weights mobilenet_v2-b0353104.pth --photos imagenet-val \
        --ways untouched 10 "frozen adam 1e-4 30" --output runs/ways

The networks and photos of finetune_imagenet.py: the last photo of every class is for judging, the others are
for fine-tuning. Or a saved or shipped model and `--images` of the training images of its own data set:

    python research/finetune_ways.py --network cifar10-small-none --images 400 --ways 10 --output runs/ways

A plain loop, so that ways can be tried which `fpa.finetune` does not have. A
way is a line of words, each of which changes one thing of the default:

    frozen      batch norms keep their statistics (default: those of the batch, and running means)
    adam        AdamW without weight decay instead of SGD with momentum
    0.001       largest learning rate (default 0.003); 30: epochs (default 10)
    crops       random crops of a quarter to all of a photo, instead of shifts by up to 16 pixels
    logits      squared distance of the centred logits instead of the cross-entropy of the probabilities
    hard        the class that the network predicts instead of the probabilities of all classes
    mixup       two photos of a batch laid over each other, in shares drawn for every batch
    images      a coin and a share of masked pixels for each image instead of each batch
    always      every batch is masked, instead of every other
    70%         up to so many of the pixels are selected, instead of the paper's share for the size
    early       only the first third of the weight tensors are trained
    mixed       the weights are the mean of those before and after
    averaged    the learning rate does not fall, and the weights are the mean of those of the second half
    untouched   nothing is done
    unmasked    no masking at all: what does the training alone cost?

Prints and stores, for every way, accuracy on all judging photos, the centred logit kept with a tenth of the
pixels masked, signed-unsigned pairs in opposite order, the least by which LIF agrees with MIF on such a pair
(`margin`; below 0: it does not), and the verdict of the audit on `--count` of them.
"""

import argparse
import copy
import csv
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import fpa
from finetune_imagenet import network, photos
from finetuning import margin
from fpa.data.crops import RandomCrop, resized_crops
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.explanation import Settings
from fpa.training.augment import _grow_squares
from fpa.training.batches import crop_and_flip


class Masks:
    """FPA with one coin for a batch, or one for every image."""

    def __init__(self, words: set[str], size: int, device: str) -> None:
        settings = fpa.suggested_fpa(size, size)
        p = 1.0 if "always" in words else settings.p
        most = next((float(word[:-1]) / 100 for word in words if word[-1] == "%"), settings.p1_max)
        self.by_image, self.off = "images" in words, "unmasked" in words
        draws = torch.Generator(device).manual_seed(1)
        self.augment = fpa.FPA(**asdict(replace(settings, p=p, p1_max=most)), generator=draws)

    def __call__(self, images: Tensor) -> Tensor:
        if self.off:
            return images
        if not self.by_image:
            return self.augment(images)
        augment, (count, _, *sides) = self.augment, images.shape
        coin, share = torch.rand(2, count, 1, 1, generator=augment.generator, device=images.device)
        masked = share * augment.p1_max * (coin < augment.p)
        uniform = torch.rand(count, *sides, generator=augment.generator, device=images.device)
        squares = masked * augment.p2
        return augment.masking(images, _grow_squares(uniform < masked, uniform, squares, augment.s_max))


def tuned(model: nn.Module, data: ImageData, way: str, *, batch: int, device: str, half: bool) -> nn.Module:
    """The network after fine-tuning in this way."""
    words = set(way.split())
    numbers = sorted(float(word) for word in words if word[0].isdigit() and word[-1] != "%")
    epochs = int(next((number for number in numbers if number >= 1), 10))
    rate = next((number for number in numbers if number < 1), 0.003)
    student, teacher = copy.deepcopy(model).to(device), copy.deepcopy(model).to(device).eval()
    student.to(memory_format=torch.channels_last).train()
    if "frozen" in words:
        student.eval()
    parameters = list(student.parameters())
    if "early" in words:
        parameters = parameters[: len(parameters) // 3]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    if "adam" in words:
        optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    images, size = data.train.images.to(device), data.input_shape[-1]
    masks, crop, draws = Masks(words, size, device), RandomCrop(size), torch.Generator().manual_seed(0)
    compiled = device.startswith("cuda")
    forward, taught = (torch.compile(each) if compiled else each for each in (student, teacher))
    steps, done = len(images) // batch, 0
    mean = torch.optim.swa_utils.AveragedModel(student) if "averaged" in words else None
    sides = torch.full((batch,), size)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=draws)[: steps * batch].split(batch):
            place = done / (epochs * steps)
            fall = (1 + math.cos(math.pi * (place - 0.1) / 0.9)) / 2 if mean is None else 1
            for group in optimizer.param_groups:
                group["lr"] = rate * (place / 0.1 if place < 0.1 else fall)
            done += 1
            if "crops" in words:
                uniform = torch.rand(batch, crop.draws, generator=draws)
                uniform[:, :10] = 0.2 + 0.8 * uniform[:, :10]  # a quarter of the area and more
                boxes = crop.boxes(uniform, sides, sides).to(device)
                pixels = resized_crops(images[chosen.to(device)], boxes, size)
            else:
                most = data.crop_padding
                shift = torch.randint(-most, most + 1, (2, batch), generator=draws).to(device)
                flipped = (torch.rand(batch, generator=draws) < 0.5).to(device)
                pixels = crop_and_flip(images, chosen.to(device), shift, flipped)
            whole = data.normalisation(pixels).to(memory_format=torch.channels_last)
            if "mixup" in words:
                whole = whole.lerp(whole.roll(1, 0), float(torch.rand((), generator=draws)))
            with torch.autocast(whole.device.type, torch.bfloat16, enabled=half):
                with torch.no_grad():
                    target = taught(whole).float()
                logits = forward(masks(whole).to(memory_format=torch.channels_last)).float()
            if "logits" in words:
                centred, wanted = (each - each.mean(1, keepdim=True) for each in (logits, target))
                loss = functional.mse_loss(centred, wanted)
            else:
                wanted = target.argmax(1) if "hard" in words else target.softmax(1)
                loss = functional.cross_entropy(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if mean is not None and place >= 0.5:
                mean.update_parameters(student)
    if mean is not None:
        student = mean.module
    if "mixed" in words:
        with torch.no_grad():
            for ours, theirs in zip(student.parameters(), model.to(device).parameters(), strict=True):
                ours.lerp_(theirs, 0.5)
    return student.to(memory_format=torch.contiguous_format).eval()


@torch.inference_mode()
def right(model: nn.Module, data: ImageData, device: str) -> Tensor:
    """Which of the judging photos the network gets right."""
    parts = data.test.images.split(250), data.test.labels.split(250)
    return torch.cat(
        [model(data.normalisation(x.to(device))).argmax(1).cpu() == y for x, y in zip(*parts, strict=True)]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--count", type=int, default=300, help="photos of the audits")
    parser.add_argument("--size", type=int, default=224, help="of the photos")
    parser.add_argument("--ig-steps", type=int, default=50)
    parser.add_argument("--points", type=int, default=21, help="of the curves")
    parser.add_argument("--bfloat16", action="store_true", help="on a CPU too, which must be able to")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--save", action="store_true", help="keep the weights")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    device, size, few = chosen_device(options.device), options.size, None
    if options.tiny:
        size, few, options.count, options.ig_steps, options.batch_size = 32, 8, 8, 2, 8
    options.output.mkdir(parents=True, exist_ok=True)
    if options.photos is None:
        original = fpa.load_model(options.network)
        data = load_data(original.card.recipe["data"]["name"], options.data)
        data = replace(data, train=first_images(data.train, options.images))
        data = replace(data, test=first_images(data.test, 1000))
    else:
        data = photos(options.photos, options.output / "photos", size, workers=options.workers, few=few)
        original = network(options.network, options.weights, size)
    data = replace(data, normalisation=Normalisation(original.card.mean, original.card.std))
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[: options.count]
    chosen = order.sort().values
    images, labels = data.normalisation(data.test.images[chosen]).to(device), data.test.labels[chosen]
    known = right(original.to(device), data, device)
    table = options.output / "ways.csv"
    for number, way in enumerate(options.ways):
        began = time.perf_counter()
        model = original.to(device)
        if way != "untouched":
            half = options.bfloat16 or device.startswith("cuda")
            model = tuned(original, data, way, batch=options.batch_size, device=device, half=half)
        seconds = time.perf_counter() - began
        hits = right(model, data, device)
        change = (hits.float() - known.float()) * 100
        verdict = fpa.audit(
            model, (images, labels), settings=Settings(ig_steps=options.ig_steps), maskings=["constant"],
            estimators="paper", progress=False, points=options.points,
            precision="bfloat16" if options.bfloat16 else None,
        )  # fmt: skip
        evidence = verdict.evidence
        row = {
            "way": way,
            "seconds": f"{seconds:.0f}",
            "accuracy": f"{100 * hits.float().mean():.1f}",
            "change": f"{change.mean():.1f}",
            "interval": f"{1.96 * change.std() / math.sqrt(len(change)):.1f}",
            "kept": f"{evidence.kept[10][0]:.3f}" if evidence.kept else "",
            "opposite": "" if evidence.opposite is None else f"{evidence.opposite[0]:g}",
            "significant": evidence.contradictions,
            "margin": f"{margin(verdict):.1f}",
            "verdict": verdict.verdict,
        }
        print(row, flush=True)
        with table.open("a", newline="") as file:
            rows = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                rows.writeheader()
            rows.writerow(row)
        if options.save and way != "untouched":
            torch.save(model.state_dict(), options.output / f"{number}.pt")


if __name__ == "__main__":
    main()
